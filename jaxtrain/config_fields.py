"""Fields of config dataclasses: their keys, declared types, defaults, and values of those types.

A value comes from Python (a config file) or from the text of a flag; either is exactly of the
declared type or an error that names its dotted path.
"""

import ast
import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any


def fields_of(spec: Any) -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """(key, field, type) of a config dataclass; the field `from_` has the key `from`."""
    cls = spec if isinstance(spec, type) else type(spec)
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield field.name.rstrip("_"), field, hints[field.name]


def default_of(spec: Any, field: dataclasses.Field) -> Any:
    """What a class declares (`dataclasses.MISSING`: nothing), or what an instance holds."""
    if not isinstance(spec, type):
        return getattr(spec, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def item_class(kind: Any) -> type | None:
    """The dataclass of a `Mapping[str, dataclass]` field, else None."""
    arguments = typing.get_args(kind)
    if len(arguments) == 2 and arguments[0] is str and dataclasses.is_dataclass(arguments[1]):
        return typing.cast(type, arguments[1])
    return None


def concrete(kind: Any) -> Any:
    """`X` of `X | None`; tuple of `tuple[...]`; any other type itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(arm for arm in typing.get_args(kind) if arm is not type(None))
    return typing.get_origin(kind) or kind


def is_required(field: dataclasses.Field, kind: Any) -> bool:
    """Whether a value has to be given."""
    optional = type(None) in typing.get_args(kind)
    return not optional and field.default is dataclasses.MISSING


def type_name(kind: Any) -> str:
    """A type as messages and `python -m jaxtrain.config` show it: "an int", "int | None"."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return {int: "an int", float: "a float", str: "a string", bool: "a bool"}.get(
            kind, kind.__name__
        )
    return str(kind).replace("typing.", "")


def parse(text: str, kind: Any, path: str) -> Any:
    """Flag text as a value of type `kind`; the text `None` only where the field may be None.

    Several strings are written plainly, commas between: `a,b`; or as Python, where one holds a
    comma: `("a,b",)`.
    """
    inner = concrete(kind)
    if text == "None" and inner is not kind:
        return None
    if inner is str:
        if text == "None":
            raise ValueError(f"{path}='None' would be a string of four letters; give a real value")
        return text
    if inner is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"{path}={text} must be true or false")
    if typing.get_args(kind) == (str, ...) and text[:1] not in ("(", "["):
        names = text.removesuffix(",").split(",") if text else []
        if not all(names):
            raise ValueError(f"{path}={text} has nothing between two commas")
        return checked(names, kind, path)
    wrong = f"{path}={text} must be {type_name(kind)}"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ValueError(wrong) from None
    try:
        return checked(value, kind, path)
    except ValueError:
        raise ValueError(wrong) from None


def checked(value: Any, kind: Any, path: str) -> Any:
    """`value` as exactly the declared type (ints widen to float, lists to tuples)."""
    arguments = typing.get_args(kind)
    if value is None and type(None) in arguments:
        return None
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return checked(value, concrete(kind), path)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{path}={value!r} must be {type_name(kind)}")
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(kinds) != len(value):
            raise ValueError(f"{path}={value!r} must be {type_name(kind)}")
        return tuple(
            checked(each, k, f"{path}[{i}]")
            for i, (each, k) in enumerate(zip(value, kinds, strict=True))
        )
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{path}={value!r} must be {type_name(kind)}")
    if kind is str and value == "None":
        raise ValueError(f"{path}='None' is a string of four letters; give a real value")
    return value
