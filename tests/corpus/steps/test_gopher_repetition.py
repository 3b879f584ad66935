import dataclasses
import itertools

import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Workspace
from jaxtrain.corpus.steps import gopher_repetition
from tests.corpus.judging import judge

OFF = {field.name: None for field in dataclasses.fields(gopher_repetition.Config)}


def outcome(text, **options):
    return judge(gopher_repetition, text, **options)


def only(name, text):
    """The outcome where one rule alone is on."""
    default = getattr(gopher_repetition.Config(), name)
    return outcome(text, **OFF | {name: default})


def distinct(count, start=0):
    """Different words of eight letters."""
    return [f"w{number:07}" for number in range(start, start + count)]


def test_duplicate_lines_are_judged_at_their_threshold():
    lines = distinct(10)
    three = [*lines[:7], *lines[:3]]
    assert only("max_duplicate_lines_frac", "\n \n".join(three)).dropped is None
    four = outcome("\n".join([*lines[:6], *(f"  {line} " for line in lines[:4])]))
    assert (four.dropped, four.because) == ("duplicate lines", "share of lines 0.4 > 0.3")


def test_blank_lines_are_no_duplicates_of_each_other():
    assert outcome("\n\n\n\n".join(distinct(10))).dropped is None


def test_duplicate_paragraphs_are_judged_at_their_threshold():
    name, paragraphs = "max_duplicate_paragraphs_frac", [f"{w}\nand" for w in distinct(10)]
    assert only(name, "\n\n".join([*paragraphs[:7], *paragraphs[:3]])).dropped is None
    four = only(name, "\n\n".join([*paragraphs[:6], *paragraphs[:4]]))
    assert (four.dropped, four.because) == ("duplicate paragraphs", "share of paragraphs 0.4 > 0.3")


@pytest.mark.parametrize(
    ("name", "rule", "join"),
    [
        ("max_duplicate_line_chars_frac", "characters in duplicate lines", "\n"),
        ("max_duplicate_paragraph_chars_frac", "characters in duplicate paragraphs", "\n\n"),
    ],
)
def test_characters_in_duplicate_blocks_are_judged_at_their_threshold(name, rule, join):
    block, rest = "b" * 20, "r" * 60
    assert only(name, join.join([block, block, rest])).dropped is None  # 20 of 100
    over = only(name, join.join([block, block, rest[1:]]))  # 20 of 99
    assert (over.dropped, over.because) == (rule, "share of characters 0.202 > 0.2")


@pytest.mark.parametrize(("n", "length", "repeats"), [(2, 100, 10), (3, 300, 18), (4, 100, 4)])
def test_most_frequent_ngram_is_judged_at_its_threshold(n, length, repeats):
    """Words of equal length: shares of characters are shares of words."""
    gram, fillers = distinct(n, 10**6), distinct(length)
    for times, rule in ((repeats, None), (repeats + 1, f"most frequent {n}-gram")):
        parts = [[*gram, filler] for filler in fillers[:times]]
        words = [*itertools.chain(*parts), *fillers[times : length - n * times]]
        assert len(words) == length
        assert only(f"max_top_{n}gram_chars_frac", " ".join(words)).dropped == rule


@pytest.mark.parametrize(("n", "percent"), [(5, 15), (6, 14), (7, 13), (8, 12), (9, 11), (10, 10)])
def test_duplicate_ngrams_are_judged_at_their_threshold(n, percent):
    """One passage of `percent` words of 100 comes again; of 200, where it must be longer than n."""
    length = 100 if percent >= n else 200
    for over in (0, 1):
        again = percent * length // 100 + over
        words = distinct(length - again)
        found = only(f"max_duplicate_{n}gram_chars_frac", " ".join([*words, *words[:again]]))
        assert found.dropped == (f"duplicate {n}-grams" if over else None)
    share = again / length
    assert found.because == f"share of characters {share:.4g} > {percent / 100:.2g}"


def test_outcome_does_not_depend_on_the_batch():
    """Documents are measured in groups by size."""
    texts = [" ".join(distinct(n, n) + distinct(n // 3, n)) for n in range(0, 900, 7)]
    texts.insert(5, "word " * 100_000)
    step = gopher_repetition.make(gopher_repetition.Config(), Workspace(None))  # type: ignore
    documents = [Document(str(i), text, "", {}) for i, text in enumerate(texts)]
    together = step(documents)
    assert together == [step([document])[0] for document in documents]
    assert len({found.dropped for found in together}) > 2
    assert step([]) == []


def test_first_rule_of_the_published_order_takes_the_blame():
    line = "one and the same line of eight words"
    assert outcome("\n".join([line] * 4)).dropped == "duplicate lines"
    assert outcome(" ".join([line] * 4)).dropped == "most frequent 2-gram"
    assert outcome(" ".join(distinct(40) * 2)).dropped == "duplicate 5-grams"


def test_chinese_repetition_is_found_without_spaces():
    varied = "".join(chr(0x4E00 + number) for number in range(400))
    assert outcome(varied).dropped is None
    assert outcome(varied + varied[:40]).dropped is None  # 40 of 440: 9 %
    assert outcome(varied + varied[:80]).dropped == "duplicate 5-grams"  # 80 of 480: 17 %
    assert outcome("哈哈" * 50).dropped == "most frequent 2-gram"


def test_share_that_judges_nothing_is_refused():
    with pytest.raises(ValueError, match=r"^max_top_2gram_chars_frac=1: no fraction is above it"):
        gopher_repetition.Config(max_top_2gram_chars_frac=1)
    assert outcome("a a a\na a a", **OFF).dropped is None
