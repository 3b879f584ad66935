import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.distributions import Distribution, length_bin, number_bin, number_bin_edges

_finite = st.floats(allow_nan=False, allow_infinity=False)
_values = st.lists(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=1))
)


def _distribution(values) -> Distribution:
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    return distribution


@given(_finite)
def test_bin_holds_its_number(value):
    low, high = number_bin_edges(number_bin(value))
    assert low <= value <= high or math.isclose(abs(value), abs(low), rel_tol=1e-15)


@given(_finite, _finite)
def test_bins_keep_the_order_of_numbers(a, b):
    low, high = sorted((a, b))
    assert number_bin(low) <= number_bin(high)


@pytest.mark.parametrize(
    ("value", "edges"),
    [
        (0.0, (0.0, 0.05)),
        (0.0499, (0.0, 0.05)),
        (0.5, (0.5, 0.55)),
        (1.0, (0.95, 1.0)),
        (1.3, (1.0, 2**0.5)),
        (2.0, (2.0, 2**1.5)),
        (1000.0, (2**9.5, 2**10)),
        (1024.0, (2**10, 2**10.5)),
        (-0.01, (-0.05, 0.0)),
        (-3.0, (-4.0, -(2**1.5))),
    ],
)
def test_bin_of_known_numbers(value, edges):
    assert number_bin_edges(number_bin(value)) == pytest.approx(edges)


def test_bins_follow_each_other_without_a_gap():
    for index in range(-60, 60):
        assert number_bin_edges(index)[1] == number_bin_edges(index + 1)[0]


@pytest.mark.parametrize(
    ("num_bytes", "index"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10)]
)
def test_lengths_are_binned_by_powers_of_two(num_bytes, index):
    assert length_bin(num_bytes) == index


@given(_values, st.integers(0, 30), st.randoms())
def test_distribution_depends_neither_on_order_nor_on_parts(values, cut, random):
    shuffled = random.sample(values, len(values))
    both = _distribution(shuffled[:cut]) + _distribution(shuffled[cut:])
    assert both.to_json() == _distribution(values).to_json()


@given(_values)
def test_every_document_is_counted_once(values):
    counted = _distribution(values)
    total = sum(counted.bins.values()) + sum(counted.values.values()) + counted.missing
    assert total == len(values)


@given(_values)
def test_distribution_comes_back_from_json(values):
    written = _distribution(values).to_json()
    assert Distribution.from_json(json.loads(json.dumps(written))).to_json() == written


def test_identifiers_are_given_up_whole_or_in_parts():
    names = [f"user {i}" for i in range(400)]
    whole = _distribution(names)
    assert whole.too_many_values
    assert not whole.values
    parts = _distribution(names[:200]) + _distribution(names[200:])
    assert parts.to_json() == whole.to_json()
    assert (whole + _distribution(["en"])).to_json() == whole.to_json()


def test_labels_and_truth_values_are_counted_by_name():
    assert _distribution(["en", "zh", "en", True]).values == {"en": 2, "zh": 1, "true": 1}


def test_what_is_no_number_is_missing():
    assert _distribution([None, float("nan"), float("inf"), 10**400, ["en"]]).missing == 5
