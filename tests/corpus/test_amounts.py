import json

from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.amounts import Amount, Edited, Flow, Malformed, added, plain, total

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
_malformed = st.builds(
    Malformed, _amounts, st.lists(_counts, max_size=5).map(lambda found: tuple(sorted(found)))
)


@given(_flows, _flows, _flows)
def test_flows_add_in_any_order(a, b, c):
    assert ((a + b) + c).to_json() == (c + (b + a)).to_json() == total([b, c, a]).to_json()


@given(_flows)
def test_flow_comes_back_from_json(flow):
    written = flow.to_json()
    assert Flow.from_json(json.loads(json.dumps(written))).to_json() == written


@given(_malformed, _malformed, _malformed)
def test_malformed_input_adds_in_any_order_and_keeps_the_first_places(a, b, c):
    assert (a + b) + c == c + (b + a)
    assert (a + b).offsets == tuple(sorted(a.offsets + b.offsets)[:5])


def test_mappings_add_key_by_key():
    sums = added(Amount, {"a": Amount(1, 10)}, {"a": Amount(2, 5), "b": Amount(1, 1)})
    assert sums == {"a": Amount(3, 15), "b": Amount(1, 1)}
    assert list(plain(sums)) == ["a", "b"]
