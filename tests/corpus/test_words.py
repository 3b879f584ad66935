import re
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxtrain.corpus import words

MIXED = st.text(st.sampled_from("aZ9é.,，。“”（ \n\u3000你好ひカกา์ཀကខ한"), max_size=30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two words, here.", ["Two", "words,", "here."]),
        ("你好，世界。", ["你", "好，", "世", "界。"]),
        ("他说：“好。”", ["他", "说：“", "好。”"]),
        ("“好”", ["“好”"]),
        ("使用 Python 编程", ["使", "用", "Python", "编", "程"]),
        ("用Python3写", ["用", "Python3", "写"]),
        ("（Python）语言", ["（Python）", "语", "言"]),
        ("猫である", ["猫", "で", "あ", "る"]),
        ("한국어 문장입니다.", ["한국어", "문장입니다."]),
        ("ที่นี่", ["ที่", "นี่"]),  # a consonant with its vowel and its tone
        ("a\u3000b\u2028c", ["a", "b", "c"]),
        ("— …", ["—", "…"]),
        (" \n", []),
    ],
)
def test_words_are_what_white_space_parts_and_single_letters_of_scripts_without(text, expected):
    assert words.split_words(text) == expected


@given(MIXED | st.text())
def test_words_hold_every_character_but_white_space_in_order(text):
    assert "".join(words.split_words(text)) == "".join(text.split())


@given(MIXED)
@example("abc“你")
@example("abc— 你")
def test_counting_words_agrees_with_splitting(text):
    split, counts = words.split_words(text), words.count_words(text)
    unspaced = [word for word in split if words.UNSPACED_LETTERS.search(word)]
    assert (counts.total, counts.num_unspaced) == (len(split), len(unspaced))


def test_unspaced_letters_are_those_that_unicode_names_so():
    scripts = (
        "CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HANGZHOU NUMERAL", "HIRAGANA",
        "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO", "TIBETAN", "MYANMAR", "KHMER",
    )  # fmt: skip
    wrong = []
    for code in range(0x1AFF0):  # beyond are rare ideographs of which every version adds some
        character = chr(code)
        if re.match(r"[^\W\d_]", character) and not unicodedata.category(character).startswith("N"):
            named = unicodedata.name(character, "").startswith(scripts)
            found = words.UNSPACED_LETTERS.match(character) is not None
            if named != found and character not in "々〆〻〼ー":  # signs that stand for letters
                wrong.append(f"{code:04X} {unicodedata.name(character, '')}")
    assert wrong == []
    assert words.UNSPACED_LETTERS.fullmatch("𠮷\U0002a700\U00030000")


def test_lines_end_at_newlines_only():
    assert words.filled_lines(" a\u2028b \n\n \t\nc\x85d\n") == ["a\u2028b", "c\x85d"]


def test_paragraphs_are_parted_by_blank_lines():
    assert words.paragraphs("\n\na\nb\n \n\n c\n\t\nd\n") == ["a\nb", "c", "d"]


def test_length_counts_a_chinese_or_japanese_character_as_three_letters():
    assert words.length_in_letters("abc") == 3
    assert words.length_in_letters("naïve") == 5
    assert words.length_in_letters("中文ab。") == 3 * 2 + 2 + 1
    assert words.length_in_letters("ไทย 한국") == 6


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("It ends.", True), ("Does it?", True), ("It does!", True), ("“It ends.”", True),
        ("(It ends.)", True), ('as "quoted"', True), ("他说：“好”", True), ("结束。", True),
        ("結束了！」", True), ("نهاية؟", True), ("अंत।", True), ("It goes on", False),
        ("it goes on,", False), ("(see below)", False), ("然后，", False), ("Menu:", False),
    ],
)  # fmt: skip
def test_line_ends_a_sentence_by_the_marks_of_its_script(line, expected):
    assert words.ends_sentence(line) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("English", True), ("中文", True), ("ภาษาไทยไม่มีจุด", False), ("ພາສາລາວ", False),
     ("mostly English with ไทย", True), ("", True)],
)  # fmt: skip
def test_thai_and_lao_mark_no_sentences(text, expected):
    assert words.marks_sentences(text) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [("One. Two! Three?", 3), ("About 3.14 of it", 1), ("第一句。第二句！第三句", 2),
     ("no mark", 1),
     ("He said “Go.” Then he went.", 2), ("www.example.org is a site.", 1), ("Wait... What?!", 2)],
)  # fmt: skip
def test_sentences_are_counted_by_their_end_marks(line, expected):
    assert words.count_sentences(line) == expected


def test_scanning_a_long_run_of_marks_is_linear():
    """A pattern that backtracks would take hours for these."""
    assert len(words.split_words("=" * 300_000 + " 中")) == 2
    assert words.count_words("“" * 300_000 + "a 中").total == 2
    assert words.count_sentences("." * 300_000 + "a") == 1
    assert sys.getsizeof(words.split_words("。" * 300_000 + "中")[0]) > 300_000
