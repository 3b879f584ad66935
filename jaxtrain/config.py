"""Config files and flags in, one frozen dataclass tree out: the only seam to ml_collections.

A config file's `get_config()` returns a locked `ConfigDict` made by `to_config_dict`, with every
key present. Flags of the form `--config.path.to.key=value` are read by the declared type of the
field. `resolve` turns the result into the frozen tree or raises one `ValueError` with the dotted
path. The tree of a training run is in `run_config.py`; each section is declared beside the
component that reads it. `launch.py` runs a stage from the command line.

    python -m jaxtrain.config [--stage dpo] [--json]     path, type, default, meaning of every knob
"""

import argparse
import dataclasses
import difflib
import json
import os
import runpy
import signal
import typing
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from ml_collections import ConfigDict, config_dict

from jaxtrain.config_fields import (
    checked,
    concrete,
    default_of,
    fields_of,
    is_required,
    item_class,
    parse,
    type_name,
)

T = TypeVar("T")

_LONGEST_SHOWN = 200  # characters of a value in a difference


def to_config_dict(spec: Any) -> Any:  # a ConfigDict, whose attributes no type checker knows
    """The locked `ConfigDict` of a config dataclass (class or instance), every key present."""
    values: dict[str, Any] = {}
    for key, field, kind in fields_of(spec):
        value = default_of(spec, field)
        if dataclasses.is_dataclass(kind):
            values[key] = to_config_dict(kind if value is dataclasses.MISSING else value)
        elif item_class(kind):
            values[key] = ConfigDict({name: to_config_dict(item) for name, item in value.items()})
        elif value is dataclasses.MISSING or value is None:
            values[key] = config_dict.placeholder(concrete(kind))
        else:
            values[key] = value
    return ConfigDict(values).lock()


def resolve(cls: type[T], config: Any, path: str = "config") -> T:
    """The frozen dataclass tree of `config`, a `ConfigDict` or nested dicts.

    Raises:
      ValueError: names the dotted path of an unknown, missing or ill-typed value, or of values
        that contradict each other.
    """
    fields = {key: (field, kind) for key, field, kind in fields_of(cls)}
    for key in config:
        if key not in fields:
            raise ValueError(_unknown(f"{path}.{key}", key, fields))
    values = {}
    for key, (field, kind) in fields.items():
        here = f"{path}.{key}"
        value = config[key] if key in config else default_of(cls, field)
        if value is dataclasses.MISSING or (value is None and is_required(field, kind)):
            raise ValueError(f"{here} is missing; set it in the config file or with --{here}=…")
        values[field.name] = _resolve_value(value, kind, field, here)
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{path}.{error}") from error


def assign(section: ConfigDict, value: Any) -> None:
    """Sets every key of a section to what a config dataclass holds."""
    for key, field, _ in fields_of(value):
        section[key] = getattr(value, field.name)


def fill(spec: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A plain config of an earlier version with the defaults of keys that have come since.

    Keys that are gone stay, so that `differences` reports them.
    """
    filled = dict(saved)
    for key, field, kind in fields_of(spec):
        default, item = default_of(spec, field), item_class(kind)
        if dataclasses.is_dataclass(kind):
            below = kind if default is dataclasses.MISSING else default
            filled[key] = fill(below, saved.get(key, {}))
        elif item and key in saved:
            filled[key] = {name: fill(item, each) for name, each in saved[key].items()}
        elif key not in saved and default is not dataclasses.MISSING:
            filled[key] = to_plain(default)
    return filled


def override(
    cls: type, config: ConfigDict, path: str, text: str, open_sections: Container[str] = ()
) -> None:
    """Sets the value at a dotted path ("loop.num_steps") from flag text, by declared type.

    Args:
      open_sections: paths of sections whose names a flag may make up.
    """
    at = "config"
    node: Any = config
    kind: Any = cls
    keys = path.split(".")
    for depth, key in enumerate(keys):
        item = item_class(kind)
        if item and at in open_sections and key not in node and depth < len(keys) - 1:
            with node.unlocked():
                node[key] = to_config_dict(item)
        known = (
            {name: item for name in node}
            if item
            else {name: field_kind for name, _, field_kind in fields_of(kind)}
        )
        if key not in known:
            raise ValueError(_unknown(f"{at}.{key}", key, known))
        at, kind = f"{at}.{key}", known[key]
        is_section = dataclasses.is_dataclass(kind) or item_class(kind) is not None
        if is_section == (depth == len(keys) - 1):
            inside = ", ".join(node[key]) if is_section else "no keys: it is a value"
            raise ValueError(f"{at} holds {inside}; a flag sets one value, --config.path.key=value")
        if not is_section:
            node[key] = parse(text, kind, at)
        else:
            node = node[key]


def load(cls: type, file: str, overrides: Iterable[tuple[str, str]] = ()) -> Any:
    """Runs `get_config` of `file` (or `file.py:argument`) and applies overrides (path, text)."""
    name, _, argument = file.partition(":")
    if not os.path.isfile(name):
        raise ValueError(f"--config={name}: no such file")
    try:
        module = runpy.run_path(name)
        if "get_config" not in module:
            raise ValueError("it must define get_config() that returns the config")
        config = module["get_config"](*([argument] if argument else []))
        if not isinstance(config, ConfigDict):
            raise ValueError("get_config() must return the ConfigDict of config.to_config_dict(…)")
    except Exception as error:  # whatever a user's file raises; ml_collections: typo, wrong type
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"--config={name}: {kind}{' '.join(str(error).split())}") from error
    try:
        config = _complete(cls, config)
    except ValueError as error:
        raise ValueError(f"{error} (Or is {file} of another stage's command?)") from error
    # Beside names that the file has, a new one is a typing error; where it has none, it is welcome.
    open_sections = frozenset(_empty_sections(cls, config))
    for path, text in overrides:
        override(cls, config, path, text, open_sections)
    return config


def to_plain(value: Any) -> Any:
    """A config dataclass tree as nested dicts and lists for JSON; keys as users write them."""
    if dataclasses.is_dataclass(value):
        return {key: to_plain(getattr(value, field.name)) for key, field, _ in fields_of(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


class Knob(NamedTuple):
    """One configurable value as `python -m jaxtrain.config` prints it."""

    path: str
    type: str
    default: Any
    doc: str
    resumable: bool


def knobs(spec: Any, path: str = "") -> Iterator[Knob]:
    """Every knob below a config dataclass, depth first; `*` stands for a name the user chooses."""
    for key, field, kind in fields_of(spec):
        here = f"{path}.{key}" if path else key
        default = default_of(spec, field)
        item = item_class(kind)
        if dataclasses.is_dataclass(kind):
            yield from knobs(kind if default is dataclasses.MISSING else default, here)
        elif item:
            yield from knobs(item, f"{here}.*")
        else:
            meta = field.metadata
            doc = meta.get("doc", "")
            if meta.get("choices"):
                doc = f"{doc.removesuffix('.')}. One of: {', '.join(meta['choices'])}."
            shown = "(required)" if default is dataclasses.MISSING else default
            yield Knob(here, type_name(kind), shown, doc, bool(meta.get("resumable")))


def differences(old: Any, new: Any, path: str = "config") -> Iterator[str]:
    """Dotted paths with both values where two plain trees (see `to_plain`) differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(
                old.get(key, "(absent)"), new.get(key, "(absent)"), f"{path}.{key}"
            )
    elif old != new:
        yield f"{path}: {_in_short(old)} -> {_in_short(new)}"


def _in_short(value: Any) -> str:
    """A value for a message: of a section that the other side lacks, only how much it holds."""
    if isinstance(value, Mapping):
        return f"({len(value)} values)" if value else "{}"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


# ------------------------------------------------------------------------------------ internals


def _empty_sections(cls: type, config: Any, path: str = "config") -> Iterator[str]:
    """Paths of sections that hold named items, and hold none."""
    for key, _, kind in fields_of(cls):
        if dataclasses.is_dataclass(kind):
            yield from _empty_sections(typing.cast(type, kind), config[key], f"{path}.{key}")
        elif item_class(kind) and not config[key]:
            yield f"{path}.{key}"


def _resolve_value(value: Any, kind: Any, field: dataclasses.Field, path: str) -> Any:
    item = item_class(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else resolve(kind, value, path)
    if item:
        return {
            name: _resolve_value(each, item, field, f"{path}.{name}")
            for name, each in value.items()
        }
    result = checked(value, kind, path)
    choices = field.metadata.get("choices", ())
    if choices and result is not None and result not in choices:
        raise ValueError(f"{path}={result!r} must be one of {', '.join(choices)}")
    return result


def _complete(cls: type, config: Any, path: str = "config") -> ConfigDict:
    """Fills what a user's plain dicts under a `Mapping[str, dataclass]` field left out; locks."""
    completed: dict[str, Any] = {}
    known = {key: kind for key, _, kind in fields_of(cls)}
    for key, value in config.items():
        kind, here = known.get(key), f"{path}.{key}"
        if kind is None:
            raise ValueError(_unknown(here, key, known))
        item = item_class(kind)
        if item:
            value = {name: _filled(item, each, f"{here}.{name}") for name, each in value.items()}
        elif dataclasses.is_dataclass(kind):
            value = _complete(typing.cast(type, kind), value, here)
        completed[key] = value
    return ConfigDict(completed).lock()


def _filled(cls: type, given: Mapping[str, Any], path: str) -> ConfigDict:
    full = to_config_dict(cls)
    for key, value in given.items():
        if key not in full:
            raise ValueError(_unknown(f"{path}.{key}", key, full))
        full[key] = value
    return full


def _unknown(path: str, key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known here: {', '.join(known)}"
    return f"{path} is not a known key; {hint}"


def main(arguments: list[str] | None = None) -> None:
    """Prints every knob of a training run."""
    from jaxtrain.run_config import STAGES

    parser = argparse.ArgumentParser(prog="python -m jaxtrain.config", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--stage", choices=tuple(STAGES), default="pretrain", help="whose (%(default)s)"
    )
    options = parser.parse_args(arguments)
    rows = list(knobs(STAGES[options.stage]))
    if options.json:
        print(json.dumps({row.path: row._asdict() for row in rows}))
        return
    for row in rows:
        resumable = " May differ when a run resumes." if row.resumable else ""
        print(f"{row.path}  ({row.type}, default {row.default!r})\n    {row.doc}{resumable}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… | head` ends it quietly
    main()
