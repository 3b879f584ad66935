import itertools
import json
import random

import numpy as np
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Workspace
from jaxtrain.corpus.steps import classify_quality
from jaxtrain.corpus.steps.classify_quality import Config, check, fit, make

GOOD, BAD = "proof theorem lemma hence follows", "click buy cheap offer now"
COMMON = "the of and a in it is to that was for on"


def _texts(own, num, seed):
    drawn = random.Random(seed)
    words = [*own.split(), *COMMON.split()]
    return [f"{own} {' '.join(drawn.choices(words, k=drawn.randint(5, 60)))}" for _ in range(num)]


def _write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return (str(path),)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Where a classifier was trained."""
    folder = tmp_path_factory.mktemp("quality")
    config = Config(
        positives=_write(folder / "good.jsonl", _texts(GOOD, 40, 0)),
        negatives=_write(folder / "bad.jsonl", _texts(BAD, 40, 1)),
    )
    workspace = Workspace(folder / "models")
    fit(config, workspace)
    return workspace


@pytest.fixture
def documents():
    texts = [*_texts(GOOD, 20, 2), *_texts(BAD, 20, 3), "same text", "same text", "same text"]
    return [Document(f"d{i}", text, "web", {"n": i}) for i, text in enumerate(texts)]


def test_documents_below_the_value_are_dropped_and_all_kept_are_scored(workspace, documents):
    step = make(Config(keep_frac=None, min_quality=0.5), workspace)
    outcomes = step(documents[:40])
    assert [outcome.dropped for outcome in outcomes] == [None] * 20 + ["low quality"] * 20
    assert all(0.5 <= outcome.document.metadata["quality"] <= 1 for outcome in outcomes[:20])
    assert outcomes[0].document.metadata["n"] == 0
    assert outcomes[-1].because.endswith("< 0.5")
    assert step([outcome.document for outcome in outcomes[:20]]) == outcomes[:20]


def test_without_a_threshold_documents_are_only_scored(workspace, documents):
    step = make(Config(keep_frac=None), workspace)
    assert list(step.rules) == []
    assert [outcome.dropped for outcome in step(documents)] == [None] * len(documents)


@pytest.mark.parametrize("keep_frac", [0.01, 0.3, 0.49, 0.95])
def test_kept_are_the_best_and_as_many_as_asked_for(workspace, documents, judge, keep_frac):
    step = make(Config(keep_frac=keep_frac), workspace)
    outcomes, figures = judge(step, documents)
    scored = make(Config(keep_frac=None), workspace)(documents)
    quality = {o.document.id: o.document.metadata["quality"] for o in scored}
    kept = [o.document.id for o in outcomes if o.dropped is None]
    lost = [o.document.id for o in outcomes if o.dropped]
    assert len(kept) == int(np.ceil(keep_frac * len(documents))) == figures["kept"]
    assert min(quality[i] for i in kept) >= max(quality[i] for i in lost)
    assert figures["min_quality"] == min(quality[i] for i in kept)
    assert figures["positives_used"] == figures["negatives_read"] == 40


def test_kept_depend_neither_on_order_nor_on_chunks(workspace, documents, judge):
    """Three documents of one text lie at the cut: a part of them stays."""
    step = make(Config(keep_frac=0.49), workspace)
    seen = set()
    for seed, size in itertools.product(range(3), (1, 7, 100)):
        shuffled = random.Random(seed).sample(documents, len(documents))
        chunks = [shuffled[i : i + size] for i in range(0, len(shuffled), size)]
        outcomes, _ = judge(step, *chunks)
        seen.add(frozenset(o.document.id for o in outcomes if o.dropped is None))
    assert len(seen) == 1
    assert 0 < len(seen.pop() & {"d40", "d41", "d42"}) < 3


def test_empty_corpus_has_no_cut_off(workspace, judge):
    _, figures = judge(make(Config(), workspace), [])
    assert figures["min_quality"] is None


def test_fasttext_model_scores_text_of_several_lines_as_one(write_fasttext, tmp_path, documents):
    model = write_fasttext(tmp_path, {"hq": GOOD, "cc": BAD})
    config = Config(fasttext_model=model, keep_frac=None, min_quality=0.5)
    assert check(config).writes == {"quality": float}
    outcomes = make(config, Workspace(tmp_path))(documents[:40])
    assert [outcome.dropped for outcome in outcomes] == [None] * 20 + ["low quality"] * 20
    scorer = classify_quality.FastText(model, "__label__hq")
    joined = scorer(["proof lemma hence", "proof\nlemma\nhence", "proof lemma hence\n"])
    assert joined[0] == joined[1] == pytest.approx(joined[2])
    with pytest.raises(ValueError, match=r"^fasttext_label='__label__x' is none of the model's"):
        check(Config(fasttext_model=model, fasttext_label="__label__x"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_frac": 1.5}, r"^keep_frac=1\.5 must lie between 0 and 1"),
        ({"keep_frac": None, "min_quality": 0.0}, r"^min_quality=0\.0 must lie between"),
        ({"min_quality": 0.5}, "^min_quality and keep_frac are both set"),
        ({"max_documents": 1}, "^max_documents=1 must be at least 2"),
        ({"fasttext_model": "m.bin", "positives": ("a",)}, "^fasttext_model is set, so positives"),
    ],
)
def test_impossible_config_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_nothing_to_learn_from_is_refused_before_anything_is_learnt(tmp_path):
    with pytest.raises(ValueError, match=r"^positives is empty; name text to train on"):
        check(Config())
    good = _write(tmp_path / "good.jsonl", [GOOD])
    with pytest.raises(ValueError, match=r"^negatives: nowhere\.jsonl matches no file"):
        check(Config(positives=good, negatives=("nowhere.jsonl",)))
    with pytest.raises(ValueError, match=r"^fasttext_model=none\.bin: no such file"):
        check(Config(fasttext_model="none.bin"))
