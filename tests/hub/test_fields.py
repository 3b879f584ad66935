import pytest

from jaxtrain.hub.fields import Fields, raise_problems


def test_every_problem_is_in_one_error():
    fields = Fields({"a": 1, "b": "x", "c": True, "e": 0, "odd": [1]})
    assert fields.integer("a") == 1
    fields.integer("b")
    fields.number("c")
    fields.integer("d")
    fields.integer("e")
    fields.refuse_rest()
    with pytest.raises(ValueError, match=r"^here: ") as error:
        raise_problems(fields.problems, "here")
    for part in (
        "b='x' must be an integer",
        "c=True must be a number",
        "d is missing; it must be an integer",
        "e=0 must be from 1 to 2147483647",
        "odd=[1] is not known to this family and could change what the model computes",
    ):
        assert part in str(error.value)


def test_null_counts_as_absent_unless_it_means_something():
    fields = Fields({"a": None, "b": None})
    assert fields.integer("a", 3) == 3
    assert fields.number("b", 2.0, null=None) is None
    assert fields.number("c", 2.0, null=None) == 2
    fields.refuse_rest()
    assert fields.problems == []


def test_a_field_without_effect_is_known():
    fields = Fields({"a": 1, "b": 2})
    fields.without_effect("a")
    fields.refuse_rest({"b"})
    assert fields.problems == []


def test_only_certain_values_are_allowed():
    fields = Fields({"a": "gelu", "b": None})
    fields.only("a", "silu", why="it is so")
    fields.only("b", 0, why="it is so")
    fields.only("c", 0, why="it is so")
    assert fields.problems == ["a='gelu' is not supported (only 'silu'): it is so"]


def test_problems_of_a_section_name_it():
    fields = Fields({"inner": {"x": "?", "y": 1}, "other": 3})
    inner = fields.section("inner")
    assert inner is not None
    inner.number("x")
    inner.refuse_rest()
    assert fields.section("other") is None
    assert fields.problems[0] == "inner.x='?' must be a number"
    assert fields.problems[1].startswith("inner.y=1 is not known")
    assert fields.problems[2] == "other=3 must be an object"
