import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.mixture import Mixture, _due_before

WEIGHTS = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0, 2.5, 1e-3]), min_size=1, max_size=5)


def draws_one_by_one(schedule, num_rows, limits=None):
    """The same mixture with state: the earliest (k + ½) / weight next, ties to the first source.

    Times begin anew where a weight changes or a source gives its last row.
    """
    num_sources = len(schedule[0][1])
    counts, since, out = np.zeros(num_sources, int), np.zeros(num_sources, int), []
    before = None
    for row in range(num_rows):
        weights = [w for first, w in schedule if first <= row][-1]
        weights = np.array(
            [w if limits is None or counts[i] < limits[i] else 0 for i, w in enumerate(weights)]
        )
        if not weights.any():
            break
        starts_anew = any(first == row for first, _ in schedule)
        weights = weights / math.fsum(weights)
        if starts_anew or before is None or not np.array_equal(before > 0, weights > 0):
            since[:] = 0
        before = weights
        due = [((since[i] + 0.5) / w, i) for i, w in enumerate(weights) if w > 0]
        source = min(due)[1]
        out.append((source, counts[source]))
        counts[source] += 1
        since[source] += 1
    return out


def pairs(draws):
    return list(zip(draws.sources.tolist(), draws.indexes.tolist(), strict=True))


@st.composite
def mixtures(draw):
    weights = draw(WEIGHTS.filter(any))
    schedule = [(0, weights)]
    for first in sorted(draw(st.sets(st.integers(1, 60), max_size=3))):
        changed = draw(st.permutations(weights))
        schedule.append((first, changed))
    limits = draw(
        st.none() | st.lists(st.integers(0, 30), min_size=len(weights), max_size=len(weights))
    )
    return schedule, limits


@given(mixtures())
def test_draws_are_those_of_a_mixer_with_state(case):
    schedule, limits = case
    mixture = Mixture(schedule, limits)
    expected = draws_one_by_one(schedule, 100, limits)
    assert pairs(mixture.draws(0, 100)) == expected
    if len(expected) < 100:
        assert mixture.num_rows == len(expected)


@given(mixtures(), st.lists(st.integers(0, 100), max_size=8))
def test_draws_do_not_depend_on_how_they_are_asked_for(case, cuts):
    mixture = Mixture(*case)
    edges = [0, *sorted(cuts), 100]
    pieces = [pairs(mixture.draws(a, b)) for a, b in itertools.pairwise(edges)]
    assert [pair for piece in pieces for pair in piece] == pairs(mixture.draws(0, 100))


@given(mixtures(), st.integers(0, 100))
def test_counts_are_those_of_the_draws_before(case, row):
    mixture = Mixture(*case)
    sources = mixture.draws(0, row).sources
    expected = np.bincount(sources, minlength=mixture.num_sources)
    assert mixture.counts(row).tolist() == expected.tolist()


@given(mixtures(), st.integers(1, 99), st.permutations([0.1, 0.7, 1.0, 2.5, 0.3]))
def test_editing_the_future_of_a_schedule_leaves_the_past_unchanged(case, row, new):
    schedule, limits = case
    past = [(first, weights) for first, weights in schedule if first < row]
    edited = [*past, (row, new[: len(schedule[0][1])])]
    before, after = Mixture(schedule, limits), Mixture(edited, limits)
    assert pairs(before.draws(0, row)) == pairs(after.draws(0, row))


@given(mixtures())
def test_without_repetition_each_weighted_source_is_read_once_and_in_order(case):
    schedule, _ = case
    schedule = schedule[:1]
    limits = [3 * i + 1 for i in range(len(schedule[0][1]))]
    mixture = Mixture(schedule, limits)
    drawn = pairs(mixture.draws(0, 1000))
    for source, weight in enumerate(schedule[0][1]):
        mine = [index for s, index in drawn if s == source]
        assert mine == list(range(limits[source] if weight else 0))
    assert mixture.num_rows == len(drawn)


def test_shares_are_exact_to_one_draw_at_every_row():
    weights = np.array([0.7, 0.2, 0.1])
    sources = Mixture([(0, weights)]).draws(0, 10_000).sources
    counts = np.cumsum(sources[:, None] == np.arange(3), axis=0)
    expected = np.arange(1, 10_001)[:, None] * weights
    assert np.abs(counts - expected).max() <= 1
    assert counts[-1].tolist() == [7000, 2000, 1000]


def test_shares_stay_exact_far_into_a_run():
    mixture = Mixture([(0, [0.7, 0.2, 0.1])])
    far = 10**12
    assert mixture.counts(far).tolist() == [7 * 10**11, 2 * 10**11, 10**11]
    before, after = mixture.counts(far), mixture.counts(far + 1000)
    drawn = mixture.draws(far, far + 1000)
    assert (after - before).tolist() == np.bincount(drawn.sources, minlength=3).tolist()
    for source in range(3):
        mine = drawn.indexes[drawn.sources == source]
        assert mine.tolist() == list(range(before[source], after[source]))


@pytest.mark.parametrize("steps", [-1, 0, 1])
def test_draws_due_before_a_time_are_counted_exactly_at_the_last_bit(steps):
    rng = np.random.default_rng(0)
    weights, draws = rng.random(5000), rng.integers(0, 10**9, 5000)
    times = (draws + 0.5) / weights  # when each source's draw with this index is due
    moved = np.nextafter(times, steps * np.inf) if steps else times
    assert _due_before(weights, moved).tolist() == (draws + (times < moved)).tolist()


@given(mixtures(), st.integers(10**13, 10**15))
def test_counts_and_draws_agree_where_rounding_is_coarse(case, row):
    """At these rows a due time has few binary digits left behind the point."""
    mixture = Mixture(case[0])
    drawn = mixture.draws(row, row + 20)
    for after in range(21):
        before = mixture.counts(row + after) - mixture.counts(row)
        first = np.bincount(drawn.sources[:after], minlength=mixture.num_sources)
        assert before.tolist() == first.tolist()


@pytest.mark.parametrize("sizes", list(itertools.permutations([0, 3, 1])))
def test_an_empty_source_neither_loses_nor_repeats_rows_in_any_order(sizes):
    """LDR-07: sources of no, three and one row."""
    drawn = pairs(Mixture([(0, [1.0] * 3)], sizes).draws(0, 50))
    expected = [(source, index) for source, size in enumerate(sizes) for index in range(size)]
    assert sorted(drawn) == expected


def test_mixture_ends_when_no_source_with_weight_has_rows_left():
    mixture = Mixture([(0, [1.0, 0.0])], [4, 9])
    assert mixture.num_rows == 4
    assert mixture.counts(100).tolist() == [4, 0]
    assert pairs(mixture.draws(4, 9)) == []
    assert Mixture([(0, [1.0, 0.0])]).num_rows is None
