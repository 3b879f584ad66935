"""The contract of steps: what it offers beside its types, and what every step has to keep."""

import functools
import json
from collections import defaultdict

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxtrain.corpus.config import STEP_MODULES
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.step import Outcome, Workspace, load_observed


def test_an_outcome_keeps_its_document_and_says_nothing_by_default():
    document = Document("1", "text", "source", {})
    assert Outcome(document) == (document, None, "", {})


def test_observed_arrays_are_read_back_and_never_as_objects(tmp_path):
    path = tmp_path / "chunk.npz"
    np.savez(path, keys=np.arange(3, dtype=np.uint64))
    np.testing.assert_array_equal(load_observed(path)["keys"], [0, 1, 2])
    np.savez(path, keys=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_observed(path)["keys"]


def test_a_workspace_has_an_executor_in_fit_only(tmp_path):
    assert Workspace(tmp_path).executor is None


# What the steps below are to agree on, however documents come: prose, copies, near-copies, mail
# addresses, listed words, markup, other scripts, nothing but marks.
_PROSE = "The old ferry left the harbour at dawn and nobody on the pier waved to it any more. "
_POOL = (
    _PROSE * 3,
    _PROSE * 3 + "Gulls cried.",
    _PROSE.replace("harbour", "haven") * 2,
    "Short line\n" * 4 + _PROSE,
    "Write to ann@example.org or bob@example.org today. " + _PROSE,
    "What a grunk! " + _PROSE,
    "<p>Markup { } here</p> javascript\n" + _PROSE,
    "渡船在黎明离开了港口，码头上没有人向它挥手。海鸥在叫，老人慢慢走回家去。" * 2,
    "e\u0301te\u0301\r\nCafe\u0301 " + _PROSE,
    "… !!! …",
    "word",
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """What a step needs beside its defaults, here."""
    folder = tmp_path_factory.mktemp("settings")

    def write(name, *texts, key="text"):
        lines = "".join(json.dumps({key: text}) + "\n" for text in texts)
        (folder / name).write_text(lines)
        return str(folder / name)

    (folder / "words.txt").write_text("grunk\n海鸥\n")
    good, bad = write("good.jsonl", *_POOL[:4]), write("bad.jsonl", *_POOL[4:7])
    bench = write("bench.jsonl", _PROSE + "Gulls cried.", key="q")
    return {
        "classify_quality": {"positives": (good,), "negatives": (bad,), "keep_frac": 0.5},
        "score_perplexity": {"reference": (good,), "drop": ("tail",)},
        "flag_toxicity": {"word_lists": (str(folder / "words.txt"),)},
        "decontaminate": {"benchmarks": (f"b={bench}:q",)},
        "drop_repeated_spans": {"min_bytes": 20},
        "mask_pii": {"max_finds": 1},
    }


@pytest.fixture(scope="module")
def step_of(settings, tmp_path_factory):
    """Steps by name, each made once."""

    @functools.cache
    def make(name):
        module = STEP_MODULES[name]
        config = module.Config(**settings.get(name, {}))
        workspace = Workspace(tmp_path_factory.mktemp(name), LocalExecutor(1))
        if hasattr(module, "fit"):
            module.check(config)
            module.fit(config, workspace)
        return module.make(config, workspace)

    return make


def _judge(judge, step, chunks):
    """Text as it came -> what became of it, sorted: of equal texts one may stay and one go."""
    outcomes = (
        judge(step, *chunks).outcomes
        if hasattr(step, "decide")
        else [outcome for chunk in chunks for outcome in step(chunk)]
    )
    documents = [document for chunk in chunks for document in chunk]
    became = defaultdict(list)
    for document, outcome in zip(documents, outcomes, strict=True):
        kept = None if outcome.dropped else outcome.document.text
        became[document.text].append((outcome.dropped or "", kept or "", *outcome.edits.items()))
    return {text: sorted(each) for text, each in became.items()}


@pytest.mark.parametrize("name", sorted(STEP_MODULES))
@hypothesis.settings(max_examples=15)
@hypothesis.given(
    texts=st.lists(st.sampled_from(_POOL), max_size=8),
    order=st.randoms(use_true_random=False),
    size=st.integers(1, 4),
)
def test_what_becomes_of_a_text_depends_on_no_order_and_no_chunks(
    name, step_of, judge, texts, order, size
):
    documents = [
        Document(f"d{i}", text, "s", {"mime": "text/html"}) for i, text in enumerate(texts)
    ]
    shuffled = order.sample(documents, len(documents))
    chunks = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    step = step_of(name)
    assert _judge(judge, step, chunks or [[]]) == _judge(judge, step, [documents])


# These keep a share of whatever comes, or (three sentences) may cut what met only by a cut.
_NOT_AT_ONCE = {"classify_quality", "score_perplexity", "drop_repeated_spans"}


@pytest.mark.parametrize("name", sorted(set(STEP_MODULES) - _NOT_AT_ONCE))
@hypothesis.settings(max_examples=15)
@hypothesis.given(texts=st.lists(st.sampled_from(_POOL), max_size=8))
def test_a_second_time_changes_nothing(name, step_of, judge, texts):
    documents = [
        Document(f"d{i}", text, "s", {"mime": "text/html"}) for i, text in enumerate(texts)
    ]
    step = step_of(name)

    def once(given):
        outcomes = judge(step, given).outcomes if hasattr(step, "decide") else step(given)
        return [outcome.document for outcome in outcomes if not outcome.dropped]

    kept = once(documents)
    assert once(kept) == kept
