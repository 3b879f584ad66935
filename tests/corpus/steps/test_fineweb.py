import pytest

from jaxtrain.corpus.steps import fineweb
from tests.corpus.judging import judge

OFF = {
    "min_punctuated_lines_frac": None,
    "max_duplicate_line_chars_frac": None,
    "max_short_lines_frac": None,
    "max_newlines_per_word": None,
}


def only(text, **options):
    """The outcome with the given rules on and no other."""
    return judge(fineweb, text, **OFF | options)


def test_share_of_punctuated_lines_is_judged_at_its_threshold():
    ends = ["It is so.", "Is it so?", "“It is so!”"]
    over = [*ends, *[f"menu item {n}" for n in range(21)]]  # 3 of 24: 0.125
    at = [*ends, *[f"menu item {n}" for n in range(22)]]  # 3 of 25: 0.12
    assert only("\n \n".join(over), min_punctuated_lines_frac=0.12).dropped is None
    found = only("\n".join(at), min_punctuated_lines_frac=0.12)
    assert found.dropped == "too few punctuated lines"
    assert found.because == "share of lines that end in punctuation 0.12 ≤ 0.12"


def test_characters_in_duplicate_lines_are_judged_at_their_threshold():
    option = {"max_duplicate_line_chars_frac": 0.1}
    block = "b" * 10
    assert only(f"{block}\n {block}\n" + "r" * 81, **option).dropped is None  # 10 of 101
    found = only(f"{block}\n {block}\n" + "r" * 80, **option)  # 10 of 100
    assert (found.dropped, found.because) == (
        "characters in duplicate lines",
        "share of characters 0.1 ≥ 0.1",
    )


@pytest.mark.parametrize(
    ("short", "long"), [("a" * 30, "a" * 31), ("中" * 10, "中" * 10 + "a"), ("ไ" * 30, "ไ" * 31)]
)
def test_share_of_short_lines_is_judged_at_its_threshold(short, long):
    option = {"max_short_lines_frac": 0.67}
    assert only("\n".join([*[short] * 66, *[long] * 34]), **option).dropped is None
    assert only("\n".join([*[short] * 67, *[long] * 33]), **option).dropped == (
        "too many short lines"
    )


def test_newlines_per_word_are_judged_at_their_threshold():
    option = {"max_newlines_per_word": 0.3}
    assert only("\n" * 3 + "word " * 10, **option).dropped is None
    found = only("\n" * 4 + "word " * 10, **option)
    assert (found.dropped, found.because) == ("too many newlines", "newlines per word 0.4 > 0.3")
    assert only("\n" * 3 + "字" * 10, **option).dropped is None
    assert only("\n" * 4 + "字" * 10, **option).dropped == "too many newlines"


def test_prose_is_kept_by_the_defaults_in_many_scripts():
    for text in (
        "This is a sentence of a text that is long enough to be one.\n"
        "And here is another of them, again long enough.",
        "这是一个足够长的句子，可以当作正文的一部分。\n这里还有另外一个，长度也是足够的。",
        "ここには十分に長い文章があります。だから残されます。",
        "ประโยคภาษาไทยที่ยาวพอสมควรและไม่มีเครื่องหมายจบประโยคเลย",
        "यह एक लंबा वाक्य है जो पाठ का हिस्सा माना जा सकता है।",
    ):
        assert judge(fineweb, text).dropped is None, text


def test_text_without_a_line_is_dropped():
    assert judge(fineweb, " \n\t\n").dropped == "no line"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_punctuated_lines_frac": 1.0}, r"min_punctuated_lines_frac=1.0 must be in \[0, 1\)"),
        ({"max_short_lines_frac": 0}, r"max_short_lines_frac=0 must be in \(0, 1\]"),
        ({"max_duplicate_line_chars_frac": 1.1}, r"max_duplicate_line_chars_frac=1.1 must be"),
        ({"short_line_letters": 0}, "short_line_letters=0 must be above 0"),
        ({"max_newlines_per_word": -1}, "max_newlines_per_word=-1 must be above 0"),
    ],
)
def test_threshold_that_judges_nothing_or_everything_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        fineweb.Config(**options)
