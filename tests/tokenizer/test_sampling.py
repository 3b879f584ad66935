import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.tokenizer.sampling import Text, choose

_RNG = np.random.default_rng(0)
TEXTS = [
    Text(source, f"{source} {number} " + "x" * int(_RNG.integers(1, 200)))
    for source, count in (("en", 400), ("zh", 200), ("code", 50))
    for number in range(count)
]


def _bytes(texts) -> int:
    return sum(len(text.encode()) for text in texts)


def _taken(texts, weights, sample_bytes):
    return list(choose(texts, weights, sample_bytes).of(texts))


def test_everything_is_taken_unless_asked_otherwise():
    assert _taken(TEXTS, None, None) == [each.text for each in TEXTS]


def test_shares_are_those_of_the_weights_to_within_a_document():
    weights = {"en": 5.0, "zh": 3.0, "code": 2.0}
    sample = choose(TEXTS, weights, 10_000)
    for source, weight in weights.items():
        assert 10_000 * weight / 10 - 220 < sample.sources[source].num_bytes <= 1000 * weight
    taken = list(sample.of(TEXTS))
    assert _bytes(taken) == sum(each.num_bytes for each in sample.sources.values())
    assert len(taken) == sum(each.num_documents for each in sample.sources.values())


def test_without_a_size_the_scarcest_source_is_taken_whole():
    sample = choose(TEXTS, {"en": 1, "zh": 1, "code": 1}, None)
    assert sample.sources["code"].is_all
    code = sample.sources["code"].num_bytes
    assert code == _bytes(each.text for each in TEXTS if each.source == "code")
    for source in ("en", "zh"):
        assert code - 220 < sample.sources[source].num_bytes <= code


def test_source_of_less_than_its_share_is_taken_whole_and_not_repeated():
    sample = choose(TEXTS, {"en": 0, "zh": 0, "code": 1}, 10**9)
    assert list(sample.of(TEXTS)) == [each.text for each in TEXTS if each.source == "code"]
    assert sample.sources["en"].num_documents == 0


@given(st.permutations(range(60)))
def test_order_of_the_texts_does_not_change_what_is_taken(order):
    texts = [TEXTS[10 * number] for number in range(60)]
    expected = sorted(_taken(texts, None, 3000))
    assert sorted(_taken([texts[number] for number in order], None, 3000)) == expected


def test_larger_sample_holds_the_smaller_one():
    small, large = _taken(TEXTS, None, 5000), _taken(TEXTS, None, 20_000)
    assert set(small) < set(large)


def test_equal_texts_are_taken_all_or_none():
    texts = [Text("a", "same text")] * 10 + [Text("a", f"other {n}") for n in range(10)]
    for num_bytes in range(1, 200, 7):
        assert _taken(texts, None, num_bytes).count("same text") in (0, 10)


@pytest.mark.parametrize(
    ("weights", "sample_bytes", "message"),
    [
        (
            {"en": 1.0},
            None,
            "weights must name each source and no other: the text has code, en, zh",
        ),
        ({"en": 1, "zh": 1, "code": 1, "fr": 1}, None, "the weights code, en, fr, zh"),
        ({"en": -1, "zh": 1, "code": 1}, None, "must be at least 0, and one above it"),
        ({"en": 0, "zh": 0, "code": 0}, None, "must be at least 0, and one above it"),
        (None, 0, "sample_bytes=0 must be at least 1"),
    ],
)
def test_wrong_mixture_is_refused(weights, sample_bytes, message):
    with pytest.raises(ValueError, match=message):
        choose(TEXTS, weights, sample_bytes)


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="there is no text to train on"):
        choose([], None, None)
