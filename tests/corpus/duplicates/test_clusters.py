import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.duplicates import clusters
from jaxtrain.corpus.duplicates.clusters import Groups, bundles, choose, components

NUMBER = 8
GROUPS = st.lists(st.sets(st.integers(0, NUMBER - 1), min_size=2), max_size=6)
PAIRS = st.sets(st.sets(st.integers(0, NUMBER - 1), min_size=2, max_size=2).map(frozenset))


def _groups(lists):
    members = np.array([member for each in lists for member in sorted(each)], np.int64)
    return Groups(members, np.cumsum([len(each) for each in lists], dtype=np.int64))


def _similarity(similar, asked=None):
    def of(first, second):
        if asked is not None:
            asked.append((first, second))
        return 0.9 if frozenset((first, second)) in similar else None

    return of


@given(GROUPS, PAIRS, st.permutations(range(NUMBER)), st.sets(st.integers(0, NUMBER - 1)))
def test_document_goes_where_a_kept_candidate_before_it_is_similar(groups, similar, order, settled):
    order = sorted(order, key=lambda number: number not in settled)
    flags = np.array([number in settled for number in range(NUMBER)])
    found, counts = choose(order, flags, _groups(groups), _similarity(similar))
    candidates = {frozenset(pair) for each in groups for pair in itertools.combinations(each, 2)}
    kept, expected = [], {}
    for number in order:
        like = [k for k in kept if frozenset((k, number)) in candidates & similar]
        if like and number not in settled:
            expected[number] = like[0]
        else:
            kept.append(number)
    assert {cluster.duplicate: cluster.kept for cluster in found} == expected
    assert counts.similar == len(expected)
    assert counts.full_groups == counts.turned_away == 0


def test_chain_keeps_its_end():
    similar = {frozenset((0, 1)), frozenset((1, 2))}
    found, _ = choose(range(3), np.zeros(3, bool), _groups([range(3)]), _similarity(similar))
    assert found == [(1, 0, 0.9)]


def test_group_of_copies_costs_one_comparison_each():
    asked = []
    everything = {frozenset((i, j)) for i, j in itertools.combinations(range(300), 2)}
    similarity = _similarity(everything, asked)
    found, _ = choose(range(300), np.zeros(300, bool), _groups([range(300)] * 3), similarity)
    assert asked == [(number, 0) for number in range(1, 300)]
    assert len(found) == 299


def test_group_of_unlike_documents_costs_a_bounded_number_of_comparisons_each():
    number, limit = 1_000, clusters.MAX_LEADERS
    asked = []
    similar = {frozenset((0, 998)), frozenset((500, 999))}
    found, counts = choose(
        range(number), np.zeros(number, bool), _groups([range(number)]), _similarity(similar, asked)
    )
    assert len(asked) <= number * limit
    assert found == [(998, 0, 0.9)]  # 500 came when the group was full: 999 is not compared with it
    assert (counts.full_groups, counts.turned_away) == (1, number - limit - 1)


def test_another_group_finds_what_a_full_one_does_not():
    similar = {frozenset((500, 999))}
    found, _ = choose(
        range(1_000),
        np.zeros(1_000, bool),
        _groups([range(1_000), (500, 999)]),
        _similarity(similar),
    )
    assert found == [(999, 500, 0.9)]


@given(st.lists(GROUPS, max_size=4))
def test_components_are_those_that_groups_join(files):
    known, labels = components([lambda each=each: _groups(each) for each in files])
    expected = {member: {member} for groups in files for group in groups for member in group}
    for group in itertools.chain(*files):
        joined = set().union(*(expected[member] for member in group))
        for member in joined:
            expected[member] = joined
    assert known.tolist() == sorted(expected)
    found = {
        member: {known[i] for i in np.flatnonzero(labels == label)}
        for member, label in zip(known.tolist(), labels, strict=True)
    }
    assert found == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([], []), ([0, 0, 1, 1, 2], [0, 1, 2]), ([0, 1, 2, 3], [0, 0, 1, 1])],
)
def test_bundles_hold_whole_components(labels, expected):
    assert bundles(np.array(labels, np.int64), size=2).tolist() == expected
