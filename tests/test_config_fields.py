import dataclasses
from collections.abc import Mapping

import pytest

from jaxtrain.config_fields import checked, default_of, fields_of, item_class, parse, type_name


@dataclasses.dataclass(frozen=True)
class Item:
    size: int = 3


@dataclasses.dataclass(frozen=True)
class Section:
    needed: int
    items: Mapping[str, Item] = dataclasses.field(default_factory=dict)
    from_: str | None = None


def test_fields_have_the_keys_that_users_write():
    assert [key for key, _, _ in fields_of(Section)] == ["needed", "items", "from"]
    assert [key for key, _, _ in fields_of(Section(1))] == ["needed", "items", "from"]


def test_default_is_what_the_class_declares_or_the_instance_holds():
    found = {key: default_of(Section, field) for key, field, _ in fields_of(Section)}
    assert found == {"needed": dataclasses.MISSING, "items": {}, "from": None}
    held = Section(5, {"a": Item(2)}, "x")
    assert [default_of(held, field) for _, field, _ in fields_of(held)] == [5, {"a": Item(2)}, "x"]


def test_items_are_those_of_a_mapping_from_names_to_dataclasses():
    kinds = {key: kind for key, _, kind in fields_of(Section)}
    assert item_class(kinds["items"]) is Item
    assert item_class(Mapping[str, int]) is None
    assert item_class(kinds["needed"]) is None


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", int, 7),
        ("7", float, 7.0),
        ("1e-3", float, 1e-3),
        ("TRUE", bool, True),
        ("7", str, "7"),
        ("None", int | None, None),
        ("None", str | None, None),
        ("a,b", tuple[str, ...], ("a", "b")),
        ("(1, 2)", tuple[int, int], (1, 2)),
        ("[(1, 2)]", tuple[tuple[int, float], ...], ((1, 2.0),)),
    ],
)
def test_flag_text_is_read_by_the_declared_type(text, kind, value):
    found = parse(text, kind, "config.x")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("7.0", int, "config.x=7.0 must be an int"),
        ("os.getcwd()", int, "config.x=os.getcwd() must be an int"),
        ("yes", bool, "config.x=yes must be true or false"),
        ("None", str, "config.x='None' would be a string of four letters"),
        ("(1, 2, 3)", tuple[int, int], "config.x=(1, 2, 3) must be tuple[int, int]"),
    ],
)
def test_flag_text_of_another_type_is_refused(text, kind, message):
    with pytest.raises(ValueError, match="config") as error:
        parse(text, kind, "config.x")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("value", [True, "7", 7.5, None, [7]])
def test_only_an_int_is_an_int(value):
    with pytest.raises(ValueError, match="must be an int"):
        checked(value, int, "config.x")


def test_ints_widen_to_float_and_bools_do_not():
    assert type(checked(7, float, "config.x")) is float
    with pytest.raises(ValueError, match="must be a float"):
        checked(True, float, "config.x")


def test_type_names_are_read_aloud():
    assert [type_name(kind) for kind in (int, str, bool, int | None)] == [
        "an int", "a string", "a bool", "int | None"
    ]  # fmt: skip
