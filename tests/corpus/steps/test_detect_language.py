import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.language_id import Guess, bundled_model
from jaxtrain.corpus.steps import detect_language
from jaxtrain.corpus.steps.detect_language import Config, DetectLanguage, sample
from tests.corpus.judging import judge

ENGLISH = "The cat sleeps on the sofa while it rains outside, and nobody minds."
FRENCH = "Le chat dort sur le canapé pendant que la pluie tombe dehors."


class Fixed:
    """A model that says what it is told, to every text."""

    labels = ("en", "zh")

    def __init__(self, language, score):
        self.guesses = Guess(language, score)

    def guess(self, texts):
        return [self.guesses] * len(texts)


def outcome(config, language, score):
    step = DetectLanguage(config, Fixed(language, score))
    [found] = step([Document("one", "text", "test", {"kept": 1})])
    return found


def test_kept_document_has_its_language_and_score_beside_its_other_fields():
    found = judge(detect_language, FRENCH, {"kept": 1})
    assert found.dropped is None
    assert found.document.metadata.keys() == {"kept", "language", "language_score"}
    assert found.document.metadata["language"] == "fr"
    assert 0.9 < found.document.metadata["language_score"] <= 1
    assert found.document.text == FRENCH


def test_score_is_judged_at_its_threshold():
    assert outcome(Config(), "en", 0.65).dropped is None
    below = outcome(Config(), "en", 0.6499)
    assert (below.dropped, below.because) == ("language uncertain", "en at 0.6499 < 0.65")
    assert outcome(Config(min_score=None), "en", 0.01).dropped is None


def test_languages_not_listed_are_dropped():
    config = Config(keep=("en", "zh:0.9"))
    assert outcome(config, "en", 0.7).dropped is None
    other = outcome(config, "fr", 0.99)
    assert (other.dropped, other.because) == ("language not kept", "fr at 0.99")
    assert outcome(config, "zh", 0.9).dropped is None
    assert outcome(config, "zh", 0.89).because == "zh at 0.89 < 0.9"
    assert outcome(Config(keep=("zh:0.5",)), "zh", 0.5).dropped is None


@pytest.mark.parametrize("text", ["", "123 456", "!!! … 。", "\n"])
def test_text_without_a_letter_is_undetermined(text):
    assert judge(detect_language, text).because == "und at 0 < 0.65"
    found = judge(detect_language, text, min_score=None)
    assert found.document.metadata == {"language": "und", "language_score": 0.0}


@pytest.mark.parametrize("separator", [" ", "\n", "\r\n", "\n\n\t"])
@pytest.mark.parametrize("repeats", [2, 100])
def test_line_breaks_and_trailing_newlines_change_nothing(separator, repeats):
    expected = judge(detect_language, " ".join([FRENCH] * repeats)).document.metadata
    for end in ("", "\n", "\n\n"):
        found = judge(detect_language, separator.join([FRENCH] * repeats) + end)
        assert found.document.metadata == expected


@pytest.mark.shared
def test_three_forms_of_a_text_get_one_label_and_score(shared_dir):
    lines = (shared_dir / "cases/inputs/CLN-09.jsonl").read_text(encoding="utf-8").splitlines()
    found = [judge(detect_language, json.loads(line)["text"]).document.metadata for line in lines]
    assert [metadata["language"] for metadata in found] == ["fr"] * 3
    scores = [metadata["language_score"] for metadata in found]
    assert max(scores) - min(scores) < 0.02


@given(st.text(st.sampled_from("ab \n\u3000"), max_size=60), st.integers(1, 20))
def test_sample_is_bounded_and_whole_where_the_text_is_short(text, num_chars):
    found = sample(text, num_chars)
    assert len(found) <= num_chars
    collapsed = " ".join(text.split())
    assert found == collapsed or len(collapsed) > num_chars
    assert "\n" not in found


def test_sample_of_a_long_text_is_spread_over_it():
    text = "".join(chr(0x4E00 + number) for number in range(10_000))
    pieces = sample(text, 1000).split(" ")
    places = [text.index(piece[0]) for piece in pieces]
    assert places == [0, 3250, 6500, 9750]
    assert all(
        text[place : place + 200] in piece for place, piece in zip(places, pieces, strict=True)
    )


def test_outcomes_come_in_order_with_undetermined_ones_between():
    step = DetectLanguage(Config(min_score=None), bundled_model())
    texts = ["1", ENGLISH, "2", "3", FRENCH]
    found = step([Document(str(i), text, "test", {}) for i, text in enumerate(texts)])
    languages = [outcome.document.metadata["language"] for outcome in found]
    assert languages == ["und", "en", "und", "und", "fr"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ("en:0",)}, r"keep: 'en:0' must be a language, such as en, or one with a score"),
        ({"keep": ("en:high",)}, "keep: 'en:high' must be a language"),
        ({"keep": ("",)}, "keep: '' must be a language"),
        ({"keep": ("en", "en:0.5")}, "keep: en is named twice; name it once"),
        ({"min_score": 0}, "min_score=0: no fraction is below it"),
        ({"sample_chars": 0}, "sample_chars=0 must be above 0"),
    ],
)
def test_option_that_judges_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Config(**options)


def test_language_that_the_model_does_not_know_is_refused():
    with pytest.raises(
        ValueError,
        match=r"^keep: the model knows no language 'eng'; it has 140 codes, .* en$",
    ):
        judge(detect_language, ENGLISH, keep=("eng",))
