import pytest

from jaxtrain.provenance import check_same

_WANTED = {"format": 1, "config": {"heldout_frac": 0.05}, "input_sha256": "aa"}


def test_result_made_from_the_same_passes_wherever_it_lies():
    check_same("out", dict(_WANTED), _WANTED)
    check_same("moved/out", dict(_WANTED), _WANTED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"heldout_frac": 0.1}}, r"out exists .*config\.heldout_frac: 0\.1 -> 0\.05"),
        ({"input_sha256": "bb"}, r"input_sha256: 'bb' -> 'aa'"),
        ({"more": 1}, r"more: 1 -> '\(absent\)'"),
        ({f"k{i}": i for i in range(10)}, r"k7: 7 -> '\(absent\)'; and 2 more\. Write"),
    ],
)
def test_result_made_from_something_else_is_refused_with_the_difference(change, message):
    with pytest.raises(ValueError, match=message):
        check_same("out", _WANTED | change, _WANTED)
