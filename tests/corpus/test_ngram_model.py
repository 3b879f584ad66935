import collections
import gzip
import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.ngram_model import NGramModel, train

WORDS = "abcdefgh"


def _texts(num, seed):
    """Words that mostly follow one another, some far more frequent than others."""
    drawn = random.Random(seed)
    texts = []
    for _ in range(num):
        place, words = 0, []
        for _ in range(drawn.randint(1, 12)):
            place = (place + drawn.choice([1, 1, 1, 2, 5])) % len(WORDS)
            words.append(WORDS[place if drawn.random() < 0.8 else 0])
        texts.append(" ".join(words))
    return texts


class _Reference:
    """Modified Kneser-Ney in dictionaries, from the formulas of Chen and Goodman."""

    def __init__(self, texts, order):
        sequences = [("<s>", *text.split()) for text in texts]
        self.order, self.counts = order, {}
        for n in range(order, 0, -1):
            raw = collections.Counter(
                s[i : i + n]
                for s in sequences
                for i in range(len(s) - n + 1)
                if s[i + n - 1] != "<s>"
            )
            if n == order:
                self.counts[n] = raw
            else:
                before = collections.defaultdict(set)
                for gram in self.counts[n + 1]:
                    before[gram[1:]].add(gram[0])
                self.counts[n] = {
                    gram: raw[gram] if gram[0] == "<s>" else len(before[gram]) for gram in raw
                }
        self.words = {gram[0] for gram in self.counts[1]}

    def _discount(self, n, count):
        found = collections.Counter(self.counts[n].values())
        n1, n2, n3, n4 = (found[k] for k in (1, 2, 3, 4))
        discounts = (0.5, 1.0, 1.5)
        if n1 and n2 and n3 and n4:
            y = n1 / (n1 + 2 * n2)
            exact = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
            if all(0 < d <= k for k, d in enumerate(exact, 1)):
                discounts = exact
        return discounts[min(count, 3) - 1]

    def probability(self, word, history):
        history = tuple(history)[-(self.order - 1) :] if self.order > 1 else ()
        return self._probability(word, history)

    def _probability(self, word, history):
        n = len(history) + 1
        lower = self._probability(word, history[1:]) if history else 1 / (len(self.words) + 1)
        followers = {g: c for g, c in self.counts[n].items() if g[:-1] == history}
        total = sum(followers.values())
        if not total:
            return lower
        count = followers.get((*history, word), 0)
        share = (count - self._discount(n, count)) / total if count else 0
        backoff = sum(self._discount(n, c) for c in followers.values()) / total
        return share + backoff * lower


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("num_texts", [3, 60])
def test_perplexity_is_that_of_the_formulas(order, num_texts):
    texts = _texts(num_texts, seed=order)
    model, reference = train(texts, order), _Reference(texts, order)
    judged = [*_texts(10, seed=9), "a zz a b", "zz", "b"]
    expected = []
    for text in judged:
        words = ["<s>", *text.split()]
        logs = [math.log(reference.probability(words[i], words[:i])) for i in range(1, len(words))]
        expected.append(math.exp(-sum(logs) / len(logs)))
    # Log probabilities are kept as float32.
    np.testing.assert_allclose(model.perplexities(judged), expected, rtol=1e-5)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_probabilities_of_all_next_words_sum_to_one(order):
    texts = _texts(40, seed=1)
    model = train(texts, order)
    vocabulary = [*sorted({word for text in texts for word in text.split()}), "unknown"]
    for history in (["a"], ["a", "b", "c"], ["unknown"], ["c", "unknown", "a"], ["h", "h", "h"]):
        before = " ".join(history)
        base = -len(history) * math.log(model.perplexities([before])[0])
        total = 0.0
        for word in vocabulary:
            whole = -(len(history) + 1) * math.log(model.perplexities([f"{before} {word}"])[0])
            total += math.exp(whole - base)
        assert total == pytest.approx(1, abs=1e-5)  # float32 logs


def test_saved_model_scores_as_before(tmp_path):
    model, judged = train(_texts(30, 0), 3), ["a b c", "q", "", "汉字"]
    model.save(tmp_path / "m.npz")
    loaded = NGramModel.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(loaded.perplexities(judged), model.perplexities(judged))
    assert loaded.facts == model.facts == {"order": 3, "texts": 30, "words": model.facts["words"]}


def test_model_does_not_depend_on_the_order_of_its_texts(tmp_path):
    texts = _texts(30, 0)
    for number, each in enumerate((texts, texts[::-1])):
        train(each, 3).save(tmp_path / f"{number}.npz")
    assert (tmp_path / "0.npz").read_bytes() == (tmp_path / "1.npz").read_bytes()


@settings(max_examples=50)
@given(st.lists(st.text("abc zz汉.\n", max_size=30), max_size=8))
def test_perplexity_depends_on_the_text_alone_and_is_above_one(texts):
    together = _MODEL.perplexities(texts)
    alone = [float(_MODEL.perplexities([text])[0]) for text in texts]
    np.testing.assert_array_equal(together, alone)
    for text, value in zip(texts, alone, strict=True):
        assert value > 1 or not any(letter.isalpha() for letter in text)


_MODEL = train(_texts(50, 3), 3)


def test_text_without_a_word_has_no_perplexity_and_trains_nothing(tmp_path):
    assert np.isnan(_MODEL.perplexities(["", "...", "a"])).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="the reference text holds no word"):
        train(["", "!"])
    np.savez(tmp_path / "m.npz", format="ngram-0")
    with pytest.raises(
        ValueError, match=r"m\.npz was made by ngram-0, not ngram-1 .*train it anew"
    ):
        NGramModel.load(tmp_path / "m.npz")


@pytest.mark.shared
def test_prose_is_less_perplexing_than_its_words_in_disorder(shared_dir):
    packed = (shared_dir / "data" / "web" / "wiki_demo.txt.gz").read_bytes()
    model = train(gzip.decompress(packed).decode().split("\n"), 3)
    path = shared_dir / "data" / "web" / "dclm-quality-majority.jsonl.gz"
    rows = gzip.decompress(path.read_bytes()).splitlines()[:40]
    texts = [json.loads(row)["text"] for row in rows]
    mixed = [" ".join(random.Random(0).sample(t.split(), len(t.split()))) for t in texts]
    assert (model.perplexities(texts) < model.perplexities(mixed)).all()
