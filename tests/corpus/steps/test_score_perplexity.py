import itertools
import json
import math
import random

import numpy as np
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Workspace
from jaxtrain.corpus.steps.score_perplexity import Config, KenLM, check, fit, make

REFERENCE = ["the cat sat on the mat and the dog lay on the rug"] * 3 + ["a cat and a dog"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Where a model was trained."""
    folder = tmp_path_factory.mktemp("perplexity")
    path = folder / "reference.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in REFERENCE))
    workspace = Workspace(folder / "models")
    fit(Config(reference=(str(path),), order=3), workspace)
    return workspace


@pytest.fixture
def documents():
    drawn = random.Random(0)
    words = ["the", "cat", "sat", "on", "mat", "and", "dog", "lay", "rug"]
    strange = ["zyx", "wvu", "tsr"]
    texts = [
        " ".join(drawn.choices(words, k=6) + drawn.choices(strange, k=i % 7)) for i in range(30)
    ]
    return [Document(f"d{i}", text, "web", {"n": i}) for i, text in enumerate([*texts, "..."])]


def test_buckets_are_the_quantiles_of_perplexity(workspace, documents, judge):
    outcomes, figures = judge(make(Config(), workspace), documents)
    fields = {o.document.id: o.document.metadata for o in outcomes}
    by_bucket = {
        name: [m["perplexity"] for m in fields.values() if m["perplexity_bucket"] == name]
        for name in ("head", "middle", "tail")
    }
    assert [len(values) for values in by_bucket.values()] == list(figures["buckets"].values())
    head, middle = by_bucket["head"], by_bucket["middle"]
    assert len(head) == math.ceil(0.3 * 31)
    assert len(head) + len(middle) == math.ceil(0.6 * 31)
    tail = [value for value in by_bucket["tail"] if value is not None]
    assert max(head) < min(middle) <= max(middle) < min(tail)
    assert fields["d30"] == {"n": 30, "perplexity": None, "perplexity_bucket": "tail"}
    assert figures["head_max_perplexity"] == max(head)
    assert figures["middle_max_perplexity"] == max(middle)
    assert figures["reference_texts"] == len(REFERENCE)


def test_named_buckets_are_dropped_with_the_reason(workspace, documents, judge):
    step = make(Config(drop=("tail",)), workspace)
    outcomes, figures = judge(step, documents)
    dropped = [outcome for outcome in outcomes if outcome.dropped]
    assert {outcome.dropped for outcome in dropped} == set(step.rules) == {"perplexity in the tail"}
    assert len(dropped) == figures["buckets"]["tail"]
    assert dropped[-1].because == "no word"
    assert dropped[0].because.startswith("perplexity ")
    assert all(each.document.metadata["perplexity_bucket"] == "tail" for each in dropped)
    texts = {document.id: document.text for document in documents}
    assert all(each.document.text == texts[each.document.id] for each in dropped)


def test_buckets_depend_neither_on_order_nor_on_chunks(workspace, documents, judge):
    step, seen = make(Config(), workspace), set()
    for seed, size in itertools.product(range(2), (1, 7, 100)):
        shuffled = random.Random(seed).sample(documents, len(documents))
        chunks = [shuffled[i : i + size] for i in range(0, len(shuffled), size)]
        outcomes, figures = judge(step, *chunks)
        fields = sorted((o.document.id, str(o.document.metadata)) for o in outcomes)
        seen.add((tuple(fields), json.dumps(figures)))
    assert len(seen) == 1


def test_empty_corpus_has_no_cuts(workspace, judge):
    _, figures = judge(make(Config(), workspace), [])
    assert figures["head_max_perplexity"] is figures["middle_max_perplexity"] is None


def test_kenlm_file_stands_in_for_the_model(tmp_path):
    pytest.importorskip("kenlm")
    unigrams = ["-1.0\t<unk>", "-99\t<s>\t-0.2", "-0.5\t</s>", "-0.3\ta\t-0.1", "-0.7\tb\t0"]
    lines = ["\\data\\", "ngram 1=5", "ngram 2=1", "", "\\1-grams:", *unigrams, "", "\\2-grams:"]
    (tmp_path / "m.arpa").write_text("\n".join([*lines, "-0.4\ta b", "", "\\end\\", ""]))
    scorer = KenLM(str(tmp_path / "m.arpa"))
    values = scorer(["a b", "a\nq", " "])
    np.testing.assert_allclose(values[:2], [10 ** (1.4 / 3), 10 ** (2.1 / 3)], rtol=1e-6)
    assert np.isnan(values[2])
    (tmp_path / "m.bin").write_bytes(b"x" * 200)
    with pytest.raises(ValueError, match=r"^kenlm_model=.*m\.bin cannot be read"):
        KenLM(str(tmp_path / "m.bin"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, "^order=0 must lie between 1 and 8"),
        ({"head_frac": 0.0}, r"^head_frac=0\.0 must lie between 0 and 1"),
        ({"head_frac": 0.8}, "^middle_frac=0.3 and head_frac=0.8 are more than all documents"),
        ({"drop": ("tails",)}, r"^drop names \['tails'\]; it may hold head, middle, tail"),
        ({"kenlm_model": "m.bin", "reference": ("a",)}, "^kenlm_model is set, so reference"),
    ],
)
def test_impossible_config_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_nothing_to_learn_from_is_refused_before_anything_is_learnt():
    with pytest.raises(ValueError, match=r"^reference is empty; name text to train on"):
        check(Config())
    with pytest.raises(ValueError, match=r"^reference: nowhere\.jsonl matches no file"):
        check(Config(reference=("nowhere.jsonl",)))
