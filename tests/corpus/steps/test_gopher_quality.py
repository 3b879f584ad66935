import json

import pytest

from jaxtrain.corpus.steps import gopher_quality
from tests.corpus.judging import judge

STOPS = "the and of to with"


def dropped(text, metadata=None, **options):
    return judge(gopher_quality, text, metadata, **options).dropped


def reason(text, **options):
    return judge(gopher_quality, text, **options).because


def english(num_words, *others):
    """So many words: five stop words, the others, and fillers of four letters."""
    given = [*STOPS.split(), *others]
    return " ".join([*given, *["word"] * (num_words - len(given))])


def test_number_of_words_is_judged_at_its_thresholds():
    assert dropped(english(49)) == "too few words"
    assert dropped(english(50)) is None
    assert reason(english(49)) == "words 49 < 50"
    assert dropped(english(100_000)) is None
    assert dropped(english(100_001)) == "too many words"


@pytest.mark.parametrize(
    ("word", "expected"), [("ab", "words too short"), ("abc", None), ("a" * 10, None),
                           ("a" * 11, "words too long")]
)  # fmt: skip
def test_mean_word_length_is_judged_at_its_thresholds(word, expected):
    assert dropped(" ".join([word] * 60), min_stop_words=None) == expected


@pytest.mark.parametrize(
    ("sign", "rule"), [("#", "too many hashes"), ("...", "too many ellipses"),
                       ("…", "too many ellipses")]
)  # fmt: skip
def test_symbols_per_word_are_judged_at_their_thresholds(sign, rule):
    # 100 words of which 10, or 11, carry the sign.
    assert dropped(english(100, *[f"word{sign}"] * 10)) is None
    assert dropped(english(100, *[f"word{sign}"] * 11)) == rule


def test_run_of_full_stops_is_one_ellipsis():
    assert dropped(english(100, *["word......"] * 10)) is None
    assert dropped(english(100, *["他……"] * 10)) is None


@pytest.mark.parametrize("bullet", ["•", "-", "*", "●"])
def test_bullet_lines_are_judged_at_their_threshold(bullet):
    lines = [f" {bullet} {STOPS} animals plants"] * 10
    assert dropped("\n".join([*lines[:9], english(60)])) is None  # 0.9 of the lines
    assert dropped("\n".join(["", *lines, ""])) == "too many bullet lines"
    assert reason("\n".join(lines)) == "share of lines that begin with a bullet 1 > 0.9"


@pytest.mark.parametrize("end", ["...", "…", " …"])
def test_lines_ending_in_an_ellipsis_are_judged_at_their_threshold(end):
    whole, cut = english(40), english(40) + end
    assert dropped("\n".join([*[whole] * 7, *[cut] * 3])) is None
    assert dropped("\n".join([*[whole] * 6, *[cut] * 4])) == "too many lines ending in an ellipsis"


@pytest.mark.parametrize("other", ["1000", "—", "$5.00", "3.14%"])
def test_alphabetic_words_are_judged_at_their_threshold(other):
    assert dropped(english(100, *[other] * 20)) is None
    assert dropped(english(100, *[other] * 21)) == "too few alphabetic words"
    assert dropped(english(100, *["mp3,"] * 60)) is None  # one letter is enough


@pytest.mark.shared
def test_documents_with_79_80_and_100_alphabetic_words_of_100(shared_dir):
    lines = (shared_dir / "cases/inputs/CLN-02.jsonl").read_text().splitlines()
    outcomes = {row["id"]: judge(gopher_quality, row["text"]) for row in map(json.loads, lines)}
    assert {name: outcome.dropped for name, outcome in outcomes.items()} == {
        "a79": "too few alphabetic words", "a80": None, "a100": None,
    }  # fmt: skip
    assert outcomes["a79"].because == "share of words with a letter 0.79 < 0.8"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("the of", None), ("The, (OF)", None), ("the the", "too few stop words"),
     ("them often", "too few stop words")],
)  # fmt: skip
def test_two_different_stop_words_are_asked_for(text, expected):
    assert dropped(text + " word" * 60) == expected


def test_stop_words_are_asked_of_english_only():
    french = "Le chat dort sur le canapé pendant que la pluie tombe dehors. " * 6
    assert dropped(french, {"language": "fr"}) is None
    assert dropped(french, {"language": "en"}) == "too few stop words"
    assert dropped(french) == "too few stop words"  # Latin letters, language unknown
    russian = "Кот спит на диване, пока за окном идёт дождь и дует ветер. " * 6
    assert dropped(russian) is None
    assert dropped(french, {"language": "en"}, min_stop_words=None) is None


def test_chinese_is_counted_by_characters_and_not_judged_by_word_length():
    sentence = "红楼梦是一部很长的小说，"  # eleven letters
    assert dropped(sentence * 5) is None
    assert dropped(sentence * 4) == "too few words"
    assert reason(sentence * 4) == "words 44 < 50"
    # Where spaced words are the fewer, their length says little.
    assert dropped(sentence * 6 + " ConfigurationManagerFactory" * 10) is None


def test_text_without_words_is_dropped_even_without_a_least_number():
    assert dropped(" \n", min_words=None) == "too few alphabetic words"
    assert dropped("", min_words=None) == "too few alphabetic words"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_alphabetic_words_frac": 0}, "min_alphabetic_words_frac=0: no fraction is below it"),
        ({"max_bullet_lines_frac": 1.0}, r"max_bullet_lines_frac=1.0: no fraction is above it"),
        ({"min_stop_words": 0}, "min_stop_words=0 must be above 0"),
        ({"min_stop_words": 9}, "min_stop_words=9: there are 8 of them; give 1 to 8"),
        ({"min_words": 10, "max_words": 5}, "min_words=10 is above max_words=5"),
        ({"max_hashes_per_word": 0}, "max_hashes_per_word=0 must be above 0"),
    ],
)
def test_threshold_that_judges_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        gopher_quality.Config(**options)


def test_rules_can_be_turned_off():
    options = {field: None for field in gopher_quality.Config.__dataclass_fields__}
    assert dropped("# # ... 1", **options) is None
