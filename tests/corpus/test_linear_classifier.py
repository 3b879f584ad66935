import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.linear_classifier import (
    LinearClassifier,
    area_under_curve,
    sample,
    train,
)

GOOD, BAD = "proof theorem lemma hence follows", "click buy cheap offer now"
COMMON = "the of and a in it is to that was for on"
BUCKETS = 1 << 12


def _texts(own, num, seed):
    drawn = random.Random(seed)
    words = [*own.split(), *COMMON.split()]
    return [f"{own} {' '.join(drawn.choices(words, k=drawn.randint(5, 60)))}" for _ in range(num)]


@pytest.fixture(scope="module")
def classifier():
    positives, negatives = _texts(GOOD, 60, 0), _texts(BAD, 90, 1)
    return train(sample(positives, 1000), sample(negatives, 1000), num_buckets=BUCKETS)


def test_unseen_texts_are_told_apart(classifier):
    assert classifier.score(_texts(GOOD, 40, 2)).min() > 0.5
    assert classifier.score(_texts(BAD, 40, 3)).max() < 0.5
    assert classifier.facts["heldout_auc"] == 1.0


def test_weights_are_where_the_gradient_of_the_loss_vanishes():
    """Against a dense form of the loss in float64, without hashing: words of one letter."""
    texts = ["a b", "c a a", "b c c", "a d d", "d c", "b d"]  # none is held out
    positive = np.array([1, 1, 1, 0, 0, 0], bool)
    made = train(sample(texts[:3], 9), sample(texts[3:], 9), max_order=1, num_buckets=BUCKETS)
    counts = np.array([[text.split().count(word) for word in "abcd"] for text in texts], float)
    rows = np.sqrt(counts / counts.sum(1, keepdims=True))
    logits = made.score(texts)
    logits = np.log(logits / (1 - logits))
    bias = made.score([""])
    bias = np.log(bias / (1 - bias))
    weights = np.linalg.lstsq(rows, logits - bias, rcond=None)[0]
    residual = np.where(positive, -1, 1) / (1 + np.exp(np.where(positive, logits, -logits))) / 6
    # Float32 weights and the optimiser's own tolerance of 1e-5 on the gradient.
    np.testing.assert_allclose(rows.T @ residual + 1e-4 * weights, 0, atol=3e-5)
    np.testing.assert_allclose(residual.sum(), 0, atol=3e-5)


def test_model_does_not_depend_on_the_order_of_its_texts(tmp_path):
    positives, negatives = _texts(GOOD, 20, 0), _texts(BAD, 30, 1)
    written = []
    for seed in range(2):
        for texts in (positives, negatives):
            random.Random(seed).shuffle(texts)
        made = train(sample(positives, 15), sample(negatives, 15), num_buckets=BUCKETS)
        made.save(tmp_path / f"{seed}.npz")
        written.append((tmp_path / f"{seed}.npz").read_bytes())
    assert written[0] == written[1]


def test_sample_is_of_the_smallest_hashes_whatever_the_order():
    texts = [f"text {i}" for i in range(50)]
    chosen = sample(texts, 10)
    assert chosen == sample(texts[::-1], 10)
    assert chosen.num_read == 50
    assert chosen.hashes == sorted(chosen.hashes) == sample(texts, 100).hashes[:10]


def test_saved_model_scores_as_before(classifier, tmp_path):
    texts = [*_texts(GOOD, 5, 4), "", "!!!", "汉字 mixed 漢"]
    classifier.save(tmp_path / "m.npz")
    loaded = LinearClassifier.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(loaded.score(texts), classifier.score(texts))
    assert loaded.facts == classifier.facts


def test_file_of_another_hashing_is_refused(classifier, tmp_path):
    np.savez(tmp_path / "m.npz", format="linear-0")
    with pytest.raises(ValueError, match=r"m\.npz was made by linear-0, not linear-1 .*anew"):
        LinearClassifier.load(tmp_path / "m.npz")


@settings(max_examples=50)
@given(st.lists(st.text("ab proof 漢buy.\n", max_size=40), max_size=8))
def test_score_depends_on_the_text_alone(classifier, texts):
    together = classifier.score(texts)
    alone = [float(classifier.score([text])[0]) for text in texts]
    assert together.tolist() == alone


def test_long_batches_score_as_short_ones(classifier):
    long = " ".join(_texts(BAD, 3_000, 6))
    texts = [*_texts(GOOD, 30, 5), long, *_texts(BAD, 30, 7)]
    assert classifier.score(texts).tolist() == [float(classifier.score([t])[0]) for t in texts]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_area_under_curve_is_the_share_of_pairs_in_order(pairs):
    scores = np.array([score for score, _ in pairs], float)
    positive = np.array([truth for _, truth in pairs], bool)
    of_pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    expected = np.mean(of_pairs) if of_pairs else None
    found = area_under_curve(scores, positive)
    assert found == (expected if expected is None else pytest.approx(expected, abs=1e-12))


def test_empty_class_and_odd_number_of_buckets_are_refused():
    one = sample(["text"], 5)
    with pytest.raises(ValueError, match="negatives hold no document"):
        train(one, sample([], 5))
    with pytest.raises(ValueError, match="num_buckets=1000 must be a power of two"):
        train(one, one, num_buckets=1000)


@pytest.mark.shared
def test_human_labels_are_predicted_better_than_by_any_single_figure(shared_dir):
    """Cross-validated, so that no page is scored by a model that has seen it."""
    path = shared_dir / "data" / "web" / "dclm-quality-majority.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    texts = [row["text"] for row in rows]
    good = np.array([row["label"] for row in rows]) == 1
    folds = np.random.default_rng(0).permutation(len(rows)) % 3
    scores = np.zeros(len(rows))
    for fold in range(3):
        learnt, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        samples = [
            sample([texts[i] for i in learnt if good[i] == wanted], 1000)
            for wanted in (True, False)
        ]
        made = train(*samples, num_buckets=1 << 13)  # quick; the default gives 0.01 more
        scores[held_out] = made.score([texts[i] for i in held_out])
    words = [text.split() for text in texts]
    lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    figures = {
        "words": [len(each) for each in words],
        "mean word length": [np.mean([len(word) for word in each]) for each in words],
        "different words": [len(set(each)) / len(each) for each in words],
        "mean line length": [np.mean([len(line) for line in each]) for each in lines],
        "lines that end": [np.mean([line[-1] in '.!?"' for line in each]) for each in lines],
        "letters": [np.mean([letter.isalpha() for letter in text]) for text in texts],
        "capitals": [np.mean([letter.isupper() for letter in text]) for text in texts],
        "stop words": [
            np.mean(
                [
                    w.lower() in {"the", "be", "to", "of", "and", "that", "have", "with"}
                    for w in each
                ]
            )
            for each in words
        ],
    }
    single = {name: area_under_curve(np.array(each, float), good) for name, each in figures.items()}
    best = max(max(auc, 1 - auc) for auc in single.values())
    assert area_under_curve(scores, good) > max(best, 0.85)
