import gzip
import json
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py3langid import langid

from jaxtrain.corpus.language_id import UNKNOWN, FastText, bundled_model

TEXTS = [
    "The cat sleeps on the sofa while it rains outside.",
    "Le chat dort sur le canapé pendant que la pluie tombe dehors.",
    "外面下雨的时候，猫在沙发上睡觉。",
    "外は雨が降っていて、猫はソファーで寝ている。",
    "Кот спит на диване, пока на улице идёт дождь.",
    "THE CAT SLEEPS ON THE SOFA.",
    "e\u0301te\u0301 comme hiver",
    "okay then",
]


@pytest.fixture(scope="session")
def model():
    return bundled_model()


@pytest.fixture(scope="session")
def library():
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def test_guesses_equal_those_of_the_library(model, library):
    for text, guess in zip(TEXTS, model.guess(TEXTS), strict=True):
        language, score = library.classify(text)
        assert guess.language == language
        assert math.isclose(guess.score, score, rel_tol=1e-4)


@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=6))
def test_guess_does_not_depend_on_the_other_texts(model, texts):
    assert model.guess(texts) == [model.guess([text])[0] for text in texts]


def test_more_texts_than_walk_together_keep_their_order(model):
    texts = [TEXTS[i % len(TEXTS)] for i in range(1100)]
    alone = model.guess(TEXTS)
    assert model.guess(texts) == [alone[i % len(TEXTS)] for i in range(1100)]
    assert model.guess([]) == []


def test_text_that_holds_nothing_the_model_knows_is_undetermined(model):
    assert model.guess(["", "ok"]) == [UNKNOWN] * 2


def test_scores_are_probabilities(model, library):
    text = TEXTS[0]
    assert 0 < model.guess([text])[0].score <= 1
    assert np.isclose(sum(score for _, score in library.rank(text)), 1, atol=1e-5)


@pytest.mark.shared
def test_forty_languages_are_told_apart(model, shared_dir):
    """Paragraphs, and five of them together; both variants of `zh` and of `pt` have one label."""
    with gzip.open(shared_dir / "data/udhr/udhr.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    paragraphs = [(row["lang"], " ".join(row["text"].split())) for row in rows]
    by_variant = defaultdict(list)
    for row in rows:
        by_variant[row["lang"], row["variant"]].append(" ".join(row["text"].split()))
    chunks = [
        (language, " ".join(texts[start : start + 5]))
        for (language, _), texts in by_variant.items()
        for start in range(0, len(texts), 5)
    ]
    assert accuracy(model, paragraphs) >= 0.97
    assert accuracy(model, chunks) >= 0.97


def accuracy(model, labelled):
    guesses = model.guess([text for _, text in labelled])
    return np.mean(
        [guess.language == language for guess, (language, _) in zip(guesses, labelled, strict=True)]
    )


@pytest.fixture(scope="module")
def fasttext_model(write_fasttext, tmp_path_factory):
    """A fastText model of two languages."""
    words = {"fr": "le chat dort sur canapé", "en": "the cat sleeps on sofa"}
    return write_fasttext(tmp_path_factory.mktemp("fasttext"), words)


def test_fasttext_model_guesses_its_labels(fasttext_model):
    model = FastText(fasttext_model)
    assert sorted(model.labels) == ["en", "fr"]
    english, french = model.guess(["the cat sleeps", "le chat dort"])
    assert (english.language, french.language) == ("en", "fr")
    assert 0.5 < english.score <= 1
    assert model.guess([]) == []


def test_fasttext_model_that_cannot_be_read_is_refused(tmp_path):
    pytest.importorskip("fasttext")
    with pytest.raises(ValueError, match=r"^model=nowhere.bin is no file; name a fastText model"):
        FastText("nowhere.bin")
    (tmp_path / "bad.bin").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"^model=.*bad.bin is no fastText model"):
        FastText(str(tmp_path / "bad.bin"))


def test_missing_fasttext_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fasttext", None)
    with pytest.raises(ValueError, match="needs the package fasttext, which is not installed"):
        FastText("model.bin")
