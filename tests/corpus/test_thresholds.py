import dataclasses

import pytest

from jaxtrain.corpus import thresholds


@dataclasses.dataclass
class Config:
    least: float | None = None
    most: float | None = None


@pytest.mark.parametrize(
    ("compare", "below", "at", "over"),
    [
        (thresholds.above, None, None, "x 0.51 > 0.5"),
        (thresholds.below, "x 0.49 < 0.5", None, None),
        (thresholds.reaching, None, "x 0.5 ≥ 0.5", "x 0.51 ≥ 0.5"),
        (thresholds.not_above, "x 0.49 ≤ 0.5", "x 0.5 ≤ 0.5", None),
    ],
)
def test_comparison_decides_on_both_sides_and_says_value_and_threshold(compare, below, at, over):
    for value, because in ((0.49, below), (0.5, at), (0.51, over)):
        verdict = compare("a rule", "x", value, 0.5)
        assert verdict == (because and ("a rule", because))
        assert compare("a rule", "x", value, None) is None


def test_reason_shows_the_difference_however_small():
    assert thresholds.above("r", "x", 0.5000001, 0.5).because == "x 0.5000001 > 0.5"
    assert thresholds.below("r", "words", 49, 50).because == "words 49 < 50"
    assert thresholds.above("r", "characters", 190_001, 190_000).because == (
        "characters 190001 > 190000"
    )


@pytest.mark.parametrize(
    ("require", "good", "bad"),
    [
        (thresholds.require_max_frac, (0, 0.5, None), (1, 1.5, -0.1, float("nan"))),
        (thresholds.require_min_frac, (1, 0.5, None), (0, -0.1, 1.5, float("nan"))),
        (thresholds.require_positive, (1, 0.5, None), (0, -1, float("inf"), float("nan"))),
    ],
)
def test_number_that_judges_nothing_is_refused_with_the_way_to_turn_a_rule_off(require, good, bad):
    for value in good:
        require(Config(least=value), "least", "most")
    for value in bad:
        with pytest.raises(ValueError, match=rf"^least={value}.*None turns the rule off"):
            require(Config(least=value), "least", "most")


def test_least_above_most_is_refused():
    thresholds.require_order(Config(3, 3), "least", "most")
    thresholds.require_order(Config(None, 3), "least", "most")
    with pytest.raises(ValueError, match=r"^least=4 is above most=3: .*swap"):
        thresholds.require_order(Config(4, 3), "least", "most")
