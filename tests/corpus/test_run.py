import errno
import hashlib
import os
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain import files
from tests.corpora import documents, make_config, prepare, texts, tree, write_lines

STEPS = ("own_steps:shout", "drop_exact_duplicates", "own_steps:drop_short")
OWN_STEPS = '''
import os, pathlib
from jaxtrain.corpus.step import Outcome

def shout(batch):
    """Upper case for every fox; knows the length before."""
    outcomes = []
    for document in batch:
        text = document.text.replace("fox", "FOX")
        metadata = {**document.metadata, "old_length": len(document.text)}
        edits = {"fox": document.text.count("fox")}
        outcomes.append(Outcome(document._replace(text=text, metadata=metadata), edits=edits))
    return outcomes
shout.writes = {"old_length": int}
shout.rules = ("fox",)

def drop_short(batch):
    return [
        Outcome(d, "short", f"{d.metadata['old_length']} < 60")
        if d.metadata["old_length"] < 60 else Outcome(d)
        for d in batch
    ]
drop_short.needs = ("old_length",)

def die(batch):
    if any("number 7" in document.text for document in batch):
        os._exit(3)
    return [Outcome(document) for document in batch]

def fail(batch):
    return [Outcome(document) if "number 7" not in document.text else 1 / 0 for document in batch]

def one_less(batch):
    return [Outcome(document) for document in batch][:-1]

def plain_texts(batch):
    return [document.text for document in batch]

def forgets_field(batch):
    return [Outcome(document) for document in batch]
forgets_field.writes = {"score": float}

def wrong_type(batch):
    return [
        Outcome(document._replace(metadata={**document.metadata, "score": 1})) for document in batch
    ]
wrong_type.writes = {"score": float}

def empties(batch):
    return [Outcome(document._replace(text="")) for document in batch]

def drop_all(batch):
    return [Outcome(document, "all", "by order") for document in batch]

def needs_mood(batch):
    return [Outcome(document) for document in batch]
needs_mood.needs = ("mood",)
'''


@pytest.fixture
def own_steps(tmp_path, monkeypatch):
    """A user's module of steps on the path."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "own_steps.py").write_text(OWN_STEPS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_steps", raising=False)


def _records(num=120):
    """Documents with ids of their own, a third of them duplicates of others."""
    unique = [{"id": f"a/{i}", "text": text} for i, text in enumerate(texts(num))]
    copies = [record | {"id": f"b/{i}"} for i, record in enumerate(unique[::3])]
    return unique + copies


@pytest.fixture
def inputs(tmp_path):
    records = _records()
    folder = tmp_path / "data"
    return [
        write_lines(folder / f"{i}.jsonl", records[start::3]) for i, start in enumerate(range(3))
    ]


SMALL = {"steps": STEPS, "chunk_bytes": 6_000, "rejected": "all", "heldout_frac": 0.2}


@pytest.mark.parametrize(
    "work",
    [
        {"num_workers": 2},
        {"num_workers": 3},
        pytest.param({"executor": "ray", "num_workers": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_result_is_the_same_on_any_workers_and_executor(own_steps, inputs, tmp_path, work):
    if "executor" in work:
        pytest.importorskip("ray")
    prepare(make_config(inputs, **SMALL), tmp_path / "one")
    prepare(make_config(inputs, **SMALL, **work), tmp_path / "other")
    assert tree(tmp_path / "one") == tree(tmp_path / "other")
    assert len(documents(tmp_path / "one")) > 60


def test_kept_are_the_same_texts_however_the_input_is_cut_and_ordered(own_steps, inputs, tmp_path):
    prepare(make_config(inputs, **SMALL), tmp_path / "one")
    records = _records()
    random.Random(1).shuffle(records)
    other = [
        write_lines(tmp_path / "cut" / f"{start}.jsonl", records[start : start + 70])
        for start in range(0, len(records), 70)
    ]
    prepare(make_config(other[::-1], **SMALL | {"chunk_bytes": 9_000}), tmp_path / "other")
    one, another = (sorted(d.text for d in documents(tmp_path / run)) for run in ("one", "other"))
    assert one == another
    assert len(one) > 60


def test_first_failing_write_anywhere_is_told_and_the_next_start_comes_to_the_same(
    own_steps, inputs, tmp_path, monkeypatch
):
    """Every file that a run writes is once the one for which the disk is full."""
    config = make_config(inputs[:1], **SMALL | {"chunk_bytes": 9_000})
    prepare(config, tmp_path / "whole")
    whole = tree(tmp_path / "whole")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of runs: not on a power cut
    write_whole = files.write_whole
    writes = 0
    fail_at = None

    def counted(path):
        nonlocal writes
        writes += 1
        if writes == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_whole(path)

    monkeypatch.setattr(files, "write_whole", counted)
    prepare(config, tmp_path / "counted")
    assert writes > 20
    for fail_at in range(1, writes + 1):
        workdir, writes = tmp_path / f"fails-{fail_at}", 0
        with pytest.raises((OSError, RuntimeError), match="No space left"):
            prepare(config, workdir)
        prepare(config, workdir)
        assert tree(workdir) == whole, f"after failing at write {fail_at}"


def test_second_start_reads_on_inside_a_unit(own_steps, tmp_path, monkeypatch):
    lines = write_lines(tmp_path / "a.jsonl", _records())
    config = make_config([lines], **SMALL | {"steps": ("own_steps:shout",)})
    from jaxtrain.corpus import segment

    judged = []
    first = segment._Passage.first

    def stop_after_two(self, items, facts):
        if len(judged) == 2:
            raise KeyboardInterrupt
        judged.append(len(items))
        first(self, items, facts)

    monkeypatch.setattr(segment._Passage, "first", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        prepare(config, tmp_path / "run")
    done = sum(judged)

    def count(self, items, facts):
        judged.append(len(items))
        first(self, items, facts)

    judged.clear()
    monkeypatch.setattr(segment._Passage, "first", count)
    prepare(config, tmp_path / "run")
    assert sum(judged) == len(_records()) - done
    assert {d.id for d in documents(tmp_path / "run")} == {r["id"] for r in _records()}


def test_unfinished_work_of_another_config_or_input_is_refused(own_steps, inputs, tmp_path):
    bad = {"steps": ("own_steps:fail",)}
    bad |= {"chunk_bytes": 3_000}
    write_lines(inputs[2], [*_records(), {"text": "number 7"}])  # so that chunks are done before
    with pytest.raises(RuntimeError, match="division by zero"):
        prepare(make_config(inputs, **bad), tmp_path / "run")
    before = tree(tmp_path / "run")
    with pytest.raises(ValueError, match=r"config\.heldout_frac: 0\.05 -> 0\.5"):
        prepare(make_config(inputs, **bad, heldout_frac=0.5), tmp_path / "run")
    inputs[1].write_text(inputs[1].read_text().replace("old", "odd", 1))
    with pytest.raises(ValueError, match=r"inputs\.1\.jsonl\.sha256"):
        prepare(make_config(inputs, **bad), tmp_path / "run")
    assert tree(tmp_path / "run") == before


def test_work_that_came_to_nothing_does_not_stand_in_the_way_of_a_mended_config(inputs, tmp_path):
    (tmp_path / "bad.jsonl").write_text("no JSON\n")
    for steps, own, message in (
        (("score_perplexity",), {}, r"^config\.score_perplexity\.reference is empty"),
        (
            ("score_perplexity",),
            {"score_perplexity__reference": (str(tmp_path / "bad.jsonl"),)},
            r"^config\.score_perplexity: .*bad\.jsonl:1: not JSON",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(make_config(inputs, steps=steps, **own), tmp_path / "run")
    prepare(make_config(inputs, steps=("normalize",)), tmp_path / "run")


def test_edited_own_step_makes_another_corpus(own_steps, inputs, tmp_path, monkeypatch):
    config = make_config(inputs, **SMALL)
    prepare(config, tmp_path / "run")
    file = tmp_path / "code" / "own_steps.py"
    file.write_text(file.read_text().replace("< 60", "< 70"))
    monkeypatch.delitem(sys.modules, "own_steps")
    with pytest.raises(ValueError, match="own_steps:shout"):
        prepare(config, tmp_path / "run")


def test_worker_that_dies_is_an_error_that_names_its_unit(own_steps, inputs, tmp_path):
    write_lines(inputs[1], [{"text": "number 7"}])
    config = make_config(
        inputs, num_workers=2, steps=("own_steps:die",), reading__malformed="count"
    )
    with pytest.raises(RuntimeError, match=r"unit 0 .*died \(exit code 3\); start again"):
        prepare(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("fail", r"unit 0 .*chunk 0: step own_steps:fail: ZeroDivisionError: .*own_steps\.py:"),
        ("one_less", r"own_steps:one_less returned 4 outcomes for 5 documents"),
        ("plain_texts", r"step own_steps:plain_texts: returned str; it must return an Outcome"),
        ("forgets_field", r"own_steps:forgets_field: set no field 'score' on document '"),
        ("wrong_type", r"own_steps:wrong_type: set 'score' of .* to 1, but declares float"),
        ("empties", r"own_steps:empties left no text of document"),
    ],
)
def test_step_that_breaks_its_contract_is_named(own_steps, tmp_path, step, message):
    lines = write_lines(tmp_path / "a.jsonl", [{"text": f"number {i}"} for i in range(4, 9)])
    with pytest.raises(RuntimeError, match=message) as error:
        prepare(make_config([lines], steps=(f"own_steps:{step}",)), tmp_path / "run")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("drop_exact_duplicate",), "did you mean drop_exact_duplicates"),
        (("own_steps:absent",), "own_steps has no function 'absent'"),
        (("no_module:f",), "cannot import no_module"),
        (("own_steps:needs_mood",), "needs the field 'mood', but no step writes it; name it in"),
        (
            ("own_steps:drop_short", "own_steps:shout"),
            "needs the field 'old_length', but own_steps:shout writes it, so must come before",
        ),
        (("score_perplexity",), r"^config\.score_perplexity\.reference is empty"),
        (("decontaminate",), r"^config\.decontaminate\.benchmarks is empty"),
    ],
)
def test_line_that_cannot_work_is_refused_before_anything_is_read(
    own_steps, inputs, tmp_path, steps, message
):
    with pytest.raises(ValueError, match=message):
        prepare(make_config(inputs, steps=steps), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_field_after_a_step_that_learns_is_checked_before_it_learns(own_steps, inputs, tmp_path):
    config = make_config(
        inputs,
        steps=("score_perplexity", "own_steps:needs_mood"),
        score_perplexity__reference=(str(inputs[0]),),
    )
    with pytest.raises(ValueError, match="needs_mood needs the field 'mood', but no step writes"):
        prepare(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_field_that_the_input_is_said_to_have_may_be_needed(own_steps, tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", [{"text": f"x{i}", "mood": "good"} for i in range(9)])
    config = make_config([lines], steps=("own_steps:needs_mood",), reading__fields=("mood",))
    prepare(config, tmp_path / "run")
    assert {d.metadata["mood"] for d in documents(tmp_path / "run")} == {"good"}


def test_same_step_twice_has_two_lines_in_the_card(own_steps, inputs, tmp_path):
    steps = ("drop_exact_duplicates", "own_steps:shout", "drop_exact_duplicates")
    card = prepare(make_config(inputs, steps=steps), tmp_path / "run")
    assert [step["step"] for step in card["steps"]] == [
        "drop_exact_duplicates",
        "own_steps:shout",
        "drop_exact_duplicates (2)",
        "split",
    ]
    assert card["steps"][2]["in"] == card["steps"][2]["out"]


def test_nothing_left_is_an_error_that_says_why_and_frees_the_workdir(own_steps, inputs, tmp_path):
    with pytest.raises(ValueError, match=r"of 160 that were read \(own_steps:drop_all: all 160\)"):
        prepare(make_config(inputs, steps=("own_steps:drop_all",)), tmp_path / "run")
    prepare(make_config(inputs), tmp_path / "run")
    assert len(documents(tmp_path / "run")) == 160


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt"])
def test_file_of_no_bytes_holds_nothing_and_is_no_crash(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"no document is left to train on, of 0 .*holds none"):
        prepare(make_config([tmp_path / name]), tmp_path / "run")


def test_document_longer_than_a_chunk_goes_through_whole(tmp_path):
    long = "word " * 5_000
    records = [{"id": str(i), "text": text} for i, text in enumerate(["a", long, "b"])]
    lines = write_lines(tmp_path / "a.jsonl", records)
    prepare(make_config([lines], chunk_bytes=1_000, heldout_frac=0.0), tmp_path / "run")
    assert [d.text for d in documents(tmp_path / "run")] == ["a", long, "b"]


def test_without_held_out_documents_there_are_no_baselines(inputs, tmp_path):
    card = prepare(make_config(inputs, heldout_frac=0.0), tmp_path / "run")
    assert card["heldout_bits_per_byte"] == {}
    assert card["outputs"]["heldout"]["documents"] == 0


def test_second_start_in_use_is_refused(inputs, tmp_path):
    from jaxtrain.corpus import run

    with run._hold(tmp_path / "run"), pytest.raises(ValueError, match="in use by another start"):
        prepare(make_config(inputs), tmp_path / "run")


def test_workdir_with_files_of_others_is_left_alone(inputs, tmp_path):
    other = tmp_path / "run" / "train" / "mine.txt"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    with pytest.raises(ValueError, match="neither a card nor unfinished work"):
        prepare(make_config(inputs), tmp_path / "run")
    assert other.read_text() == "mine"


def test_workdir_below_a_file_is_an_error_with_its_path(inputs, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file") as error:
        prepare(make_config(inputs), tmp_path / "file" / "run")
    assert error.value.filename


def test_one_document_lost_by_the_runner_is_found(own_steps, inputs, tmp_path, monkeypatch):
    from jaxtrain.corpus import segment

    judged = segment._Passage._judged
    monkeypatch.setattr(segment._Passage, "_judged", lambda *given: judged(*given)[1:])
    with pytest.raises((AssertionError, RuntimeError), match="were left, others came"):
        prepare(make_config(inputs, steps=("own_steps:shout",) * 2), tmp_path / "run")


# What a random step does with a text, decided by the text alone.
_ACTS = {
    "drop": lambda text: None,
    "cut": lambda text: text[: len(text) // 2 + 1],
    "grow": lambda text: text + " é",
    "keep": lambda text: text,
}


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(sorted(_ACTS)), st.integers(0, 3)), max_size=4))
def test_ledger_counts_what_random_steps_do(tmp_path_factory, acts):
    folder = tmp_path_factory.mktemp("random")
    lines = write_lines(folder / "a.jsonl", _records(30))
    name = f"random_steps_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(_module_of(acts))
    sys.path.insert(0, str(folder))
    try:
        steps = tuple(f"{name}:step_{i}" for i in range(len(acts)))
        config = make_config([lines], steps=steps, chunk_bytes=2_000, heldout_frac=0.0)
        left = [record["text"] for record in _records(30)]
        if not _expected(acts, left)[1]:
            return
        card = prepare(config, folder / "run")
    finally:
        sys.path.remove(str(folder))
    counts, left = _expected(acts, left)
    for step, (before, after) in zip(card["steps"], counts, strict=False):
        assert step["in"] == _amount(before)
        assert step["out"] == _amount(after)
    assert sorted(d.text for d in documents(folder / "run")) == sorted(left)
    assert card["summary"]["written"]["train"] == _amount(left)


def _module_of(acts):
    """A module of steps that do what `_expected` does, in words of its own."""
    lines = ["import hashlib", "from jaxtrain.corpus.step import Outcome"]
    bodies = {
        "drop": "Outcome(d, 'drop')",
        "cut": "Outcome(d._replace(text=d.text[: len(d.text) // 2 + 1]), edits={'cut': 1})",
        "grow": "Outcome(d._replace(text=d.text + ' é'), edits={'grow': 1})",
        "keep": "Outcome(d)",
    }
    for i, (act, remainder) in enumerate(acts):
        lines += [
            f"def step_{i}(batch):",
            "    def hit(d): return hashlib.sha256(d.text.encode()).digest()[0] % 4 == "
            + str(remainder),
            f"    return [{bodies[act]} if hit(d) else Outcome(d) for d in batch]",
        ]
    return "\n".join(lines)


def _expected(acts, left):
    counts = []
    for act, remainder in acts:
        after = []
        for text in left:
            hit = hashlib.sha256(text.encode()).digest()[0] % 4 == remainder
            result = _ACTS[act](text) if hit else text
            after += [] if result is None else [result]
        counts.append((left, after))
        left = after
    return counts, left


def _amount(found):
    return {"documents": len(found), "bytes": sum(len(text.encode()) for text in found)}
