from typing import ClassVar

import numpy as np
import pytest

from jaxtrain import files
from jaxtrain.corpus import segment
from jaxtrain.corpus.config import STEP_MODULES
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed
from jaxtrain.corpus.layout import ChunkName
from jaxtrain.corpus.line import cut, named_steps
from jaxtrain.corpus.segment import Job, UnitTask, process_unit
from jaxtrain.corpus.sources import plan
from jaxtrain.corpus.step import Fields, Outcome
from tests.corpora import documents, make_config, prepare, write_lines


def _items(*sizes):
    return [Document(str(i), "x" * size, "s", {}) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), [[]]),
        ((10, 10), [[10, 10]]),
        ((10, 10_000, 10, 10), [[10, 10_000], [10, 10]]),
        ((20_000, 20_000), [[20_000], [20_000]]),
        ((1,) * 100, [[1] * 39, [1] * 39, [1] * 22]),  # 257 bytes each: what holds it counts too
    ],
)
def test_items_are_cut_once_they_hold_a_chunk(sizes, expected):
    chunks = list(segment._cut(iter(_items(*sizes)), 10_000))
    assert [[item.num_bytes for item in chunk.items] for chunk in chunks] == expected
    assert [chunk.ends_unit for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_nothing_but_malformed_records_makes_bounded_chunks_too():
    items = [Malformed("f", i, "bad JSON", 10) for i in range(100)]
    assert max(len(chunk.items) for chunk in segment._cut(iter(items), 2_560)) == 10


def test_batches_hold_all_documents_in_order_and_are_bounded(monkeypatch):
    monkeypatch.setattr(segment, "_BATCH_BYTES", 1_000)
    items = _items(*range(0, 2_000, 50))
    batches = list(segment._batches(items))
    assert [item for batch in batches for item in batch] == items
    assert all(sum(item.num_bytes for item in batch[:-1]) < 1_000 for batch in batches)
    assert list(segment._batches([])) == []


def _job(tmp_path, steps=(), **values):
    lines = write_lines(
        tmp_path / "a.jsonl", [{"id": str(i), "text": f"text {i}"} for i in range(20)]
    )
    config = make_config([lines], steps=steps, **values)
    made = [(step, step.make(config, tmp_path)) for step in named_steps(config)]
    job = Job(config, cut(made), tmp_path / "run", 0)
    job.layout.segment(0).folder.mkdir(parents=True)
    return job, UnitTask(job, 0, plan(config)[0])


def test_unit_that_is_done_is_not_read_again(tmp_path, monkeypatch):
    job, task = _job(tmp_path, chunk_bytes=1_000)
    count = process_unit(task)
    assert count == (20, 0)
    assert len(job.layout.segment(0).done()) == 5
    monkeypatch.setattr(segment, "read", None)
    assert process_unit(task) == count


def test_report_is_written_after_everything_else_of_its_chunk(tmp_path, monkeypatch):
    job, task = _job(tmp_path, ("drop_exact_duplicates",))
    place, name = job.layout.segment(0), ChunkName(0, 0)
    write_json = files.write_json

    def check(path, value):
        assert path == place.report(name)
        for other in (place.documents, place.observed, place.fates, place.rejected):
            assert other(name).exists()
        write_json(path, value)

    monkeypatch.setattr(files, "write_json", check)
    process_unit(task)
    assert place.report(name).exists()


class _LearningStep:
    """Drops what it was taught to; counts over the corpus in `decide`."""

    needs = ()
    writes: ClassVar = {"share": float}
    rules = ("taught",)

    def __init__(self, taught):
        self._taught = taught

    def observe(self, chunk):
        return {"sizes": np.array([d.num_bytes for d in chunk])}

    def decide(self, observed, executor, scratch):
        total = sum(int(np.load(path)["sizes"].sum()) for path in observed)
        files.write_json(scratch / "total.json", total)
        return {"total": total}

    def apply(self, index, chunk, scratch):
        total = files.read_json(scratch / "total.json")
        return [
            Outcome(d, "taught", "as learnt")
            if d.text == self._taught
            else Outcome(d._replace(metadata={**d.metadata, "share": d.num_bytes / total}))
            for d in chunk
        ]


class _Module:
    learnt = 0

    @staticmethod
    def check(config):
        return Fields(_LearningStep.needs, _LearningStep.writes)

    @classmethod
    def fit(cls, config, workspace):
        cls.learnt += 1
        assert workspace.executor.num_workers == 1
        files.write_json(workspace.models / "taught.json", "text 3")

    @staticmethod
    def make(config, workspace):
        return _LearningStep(files.read_json(workspace.models / "taught.json"))


def test_step_that_learns_is_taught_once_and_decides_on_the_whole(tmp_path, monkeypatch):
    monkeypatch.setitem(STEP_MODULES, "normalize", _Module)  # a name that has a section
    lines = write_lines(
        tmp_path / "a.jsonl", [{"id": str(i), "text": f"text {i}"} for i in range(9)]
    )
    config = make_config([lines], steps=("normalize",), chunk_bytes=1_000, heldout_frac=0.0)
    card = prepare(config, tmp_path / "run")
    assert _Module.learnt == 1
    assert card["global_steps"]["normalize"] == {"total": 9 * 6}
    found = documents(tmp_path / "run")
    assert [d.id for d in found] == [str(i) for i in range(9) if i != 3]
    assert {d.metadata["share"] for d in found} == {1 / 9}
