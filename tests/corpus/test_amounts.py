import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus import amounts
from jaxtrain.corpus.amounts import Amount, Edited, Flow, PassedBy, Places, added, plain, total

_counts = st.integers(0, 2**70)
_amounts = st.builds(Amount, _counts, _counts)
_edited = st.builds(Edited, _counts, _counts)
_names = st.sampled_from("abc")
_flows = st.builds(
    Flow,
    _amounts,
    _amounts,
    st.integers(),
    st.dictionaries(_names, _amounts),
    st.dictionaries(_names, _edited),
)
_places = st.builds(
    Places, _amounts, st.lists(_counts, max_size=5).map(lambda found: tuple(sorted(found)))
)
_files = st.dictionaries(st.integers(0, 300).map("{:03d}".format), _places, max_size=4)


@given(_flows, _flows, _flows)
def test_flows_add_in_any_order(a, b, c):
    assert ((a + b) + c).to_json() == (c + (b + a)).to_json() == total([b, c, a]).to_json()


@given(_flows)
def test_flow_comes_back_from_json(flow):
    written = flow.to_json()
    assert Flow.from_json(json.loads(json.dumps(written))).to_json() == written


@given(_places, _places, _places)
def test_places_add_in_any_order_and_stay_the_first(a, b, c):
    assert (a + b) + c == c + (b + a)
    assert (a + b).offsets == tuple(sorted(a.offsets + b.offsets)[:5])


@given(st.lists(st.builds(PassedBy, _amounts, _files), min_size=1), st.randoms())
def test_input_passed_by_adds_in_any_order_exactly_for_the_first_files(parts, random):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amounts, "_FILES_KEPT", 3)
        whole = sum(random.sample(parts, len(parts)), start=PassedBy())
    every = added(Places, *(part.files for part in parts))
    assert whole.files == dict(sorted(every.items())[:3])
    assert whole.amount == sum((part.amount for part in parts), start=Amount())


@given(st.builds(PassedBy, _amounts, _files))
def test_input_passed_by_comes_back_from_json(passed_by):
    written = dataclasses.asdict(passed_by)
    assert PassedBy.from_json(json.loads(json.dumps(written))) == passed_by


def test_mappings_add_key_by_key():
    sums = added(Amount, {"a": Amount(1, 10)}, {"a": Amount(2, 5), "b": Amount(1, 1)})
    assert sums == {"a": Amount(3, 15), "b": Amount(1, 1)}
    assert list(plain(sums)) == ["a", "b"]
