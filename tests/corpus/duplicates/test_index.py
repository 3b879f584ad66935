import json
import subprocess
import sys

import numpy as np
import pytest

from jaxtrain.corpus.chunks import write_chunk
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates.index import SETTINGS
from jaxtrain.corpus.duplicates.near import NearDuplicates
from jaxtrain.corpus.duplicates.shingles import WORDS, Shingler
from jaxtrain.corpus.duplicates.sketches import MinHash
from jaxtrain.corpus.executors import LocalExecutor


def _sketch(seed=1, size=3):
    return MinHash(Shingler(WORDS, size), bands=4, rows=2, seed=seed)


def _step(reference=(), save_index=None, **sketch):
    return NearDuplicates(
        "near-duplicate", _sketch(**sketch), 0.8, [str(each) for each in reference], save_index
    )


def _words(start, number=60):
    return " ".join(f"w{i:06d}" for i in range(start, start + number))


OLD = [
    Document("r0", _words(0), "old", {}),
    Document("r1", _words(0), "old", {}),
    Document("r2", _words(900), "old", {}),
]
NEW = [
    Document("n0", _words(0), "new", {}),
    Document("n1", _words(500), "new", {}),
    Document("n2", _words(500), "new", {}),
    Document("n3", _words(700, 90), "new", {}),
    Document("n4", _words(898), "new", {}),
]


@pytest.fixture
def index(tmp_path, judge):
    folder = tmp_path / "index"
    judge(_step(save_index=folder), OLD[:1], OLD[1:])
    return folder


@pytest.fixture
def workdir(tmp_path):
    """A finished run as far as it matters: its documents, and a card, which is written last."""
    write_chunk(tmp_path / "run" / "train" / "00000.parquet", OLD[:2], {})
    write_chunk(tmp_path / "run" / "heldout" / "00000.parquet", OLD[2:], {})
    (tmp_path / "run" / "card.json").write_text("{}")
    return tmp_path / "run"


@pytest.mark.parametrize("reference", ["index", "workdir"])
def test_new_documents_go_where_the_reference_has_them_and_it_stays(reference, request, judge):
    """CLN-04: of two new copies one stays, and what a removed one duplicates is named."""
    folder = request.getfixturevalue(reference)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = judge(_step([folder]), NEW[:2], NEW[2:])
    assert len(result.outcomes) == len(NEW)
    removed = dict(result.removed)
    kept_copy = ({"n1", "n2"} - removed.keys()).pop()
    assert removed.pop("n0") in {f"similarity 1.000 to r{i} of the reference" for i in (0, 1)}
    assert removed.pop("n4") == "similarity 0.933 to r2 of the reference"
    assert list(removed.values()) == [f"similarity 1.000 to {kept_copy}"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_reference_is_read_by_workers_too(workdir, judge):
    executor = LocalExecutor(2)
    try:
        spread = judge(_step([workdir]), NEW, executor=executor)
    finally:
        executor.close()
    assert spread == judge(_step([workdir]), NEW)


def test_index_holds_what_was_kept(index):
    arrays = [dict(np.load(path)) for path in sorted(index.glob("*.npz"))]
    assert sum(len(each["num_shingles"]) for each in arrays) == 2
    ids = b"".join(each["ids"].tobytes() for each in arrays)
    assert ids in (b"r0r2", b"r1r2")
    assert b"".join(each["text"].tobytes() for each in arrays).decode() == _words(0) + _words(900)
    for each in arrays:
        assert len(each["keys"]) == len(each["order"]) == len(each["text_ends"])


def test_reference_stays_even_where_its_documents_are_alike(workdir, judge):
    result = judge(_step([workdir]), [])
    assert result.figures["duplicates"] == 0
    assert result.figures["documents"] == 0


@pytest.mark.parametrize(
    ("sketch", "names"), [({"seed": 2}, "seed=1; this run has seed=2"), ({"size": 4}, "size=3; ")]
)
def test_index_of_other_settings_is_refused_before_anything_is_read(index, sketch, names):
    """CLN-15."""
    with pytest.raises(ValueError, match=names) as caught:
        _step([index], **sketch)
    assert str(index) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_workdir_serves_for_any_settings(workdir, judge):
    assert "n0" in judge(_step([workdir], seed=2), NEW).removed


def test_folder_that_is_no_reference_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has neither index\.json nor card\.json"):
        _step([tmp_path])


def test_index_is_whole_or_none(index, judge):
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    assert json.loads(before[SETTINGS]) == _sketch().settings

    class Failing(LocalExecutor):
        def map(self, function, items):
            if function.__name__ == "_keep":
                raise OSError("disk full")
            return super().map(function, items)

    with pytest.raises(OSError, match="disk full"):
        judge(_step(save_index=index), OLD, executor=Failing(1))
    with pytest.raises(ValueError, match="has neither"):
        _step([index])
    judge(_step(save_index=index), OLD[:1], OLD[1:])
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before


_TWO_RUNS = """
import pathlib, sys
import numpy as np
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.steps import drop_near_duplicates as step_of

save, index, *texts = sys.argv[1:]
config = step_of.Config(save_index=index) if save == "save" else step_of.Config(reference=(index,))
step = step_of.make(config, None)
documents = [Document(f"d{i}", text, "web", {}) for i, text in enumerate(texts)]
folder = pathlib.Path(index + "-" + save)
folder.mkdir()
np.savez(folder / "0.npz", **step.observe(documents))
step.decide([folder / "0.npz"], LocalExecutor(1), folder)
print([outcome.dropped and outcome.because for outcome in step.apply(0, documents, folder)])
"""


def test_index_serves_in_another_process_of_another_hash_seed(tmp_path, root_dir):
    """CLN-15: nothing rests on Python's own hashes, which differ between processes."""

    def run(hash_seed, *arguments):
        return subprocess.run(
            [sys.executable, "-c", _TWO_RUNS, *arguments],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root_dir)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    index = str(tmp_path / "index")
    assert run("1", "save", index, _words(0), _words(300)) == "[None, None]"
    found = run("2", "use", index, _words(0), _words(500), _words(500))
    copy = "'similarity 1.000 to d{}'"
    assert found in {
        f"['similarity 1.000 to d0 of the reference', None, {copy.format(1)}]",
        f"['similarity 1.000 to d0 of the reference', {copy.format(2)}, None]",
    }
