"""From a record (keys and values, as a line or a row holds them) to a document."""

import datetime
import decimal
import json
from collections.abc import Mapping
from typing import Any

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs.reading import Fault, Part, ReadingConfig, Skipped

_RESERVED = frozenset(("id", "text", "source", "origin"))  # what a document says of itself
EMPTY = "empty text"
NO_TEXT = "no text"
TOO_LONG = "too long"


def to_document(
    record: dict[str, Any], part: Part, offset: int, num_bytes: int, reading: ReadingConfig
) -> Document | Skipped:
    """The document of a record that begins at `offset`; `record` is taken apart.

    Raises:
      Fault: what is wrong with the record.
    """
    text = _text(record, reading.text_field)
    place = f"{part.name}:{offset}"
    identity = _name(record, reading.id_field, "id") or place
    source = _name(record, reading.source_field, "source")
    if part.is_named and source is not None:
        if source != part.source:
            record["input_source"] = source
        source = None
    for field in reading.fields:
        if field not in record:
            raise Fault("missing field", f"has no `{field}` among its keys {sorted(record)}")
    if not text or text.isspace():
        return Skipped(part.name, offset, EMPTY, num_bytes)
    for key in _RESERVED.intersection(record):
        record[f"input_{key}"] = record.pop(key)
    record["origin"] = place
    return Document(identity, text, source or part.source, record)


def refuse_surrogates(record: Mapping[str, Any]) -> None:
    """Raises Fault where a string of the record holds half a surrogate pair, which is no text."""
    for key, value in record.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        try:
            text.encode()
            key.encode()
        except UnicodeEncodeError as error:
            raise Fault(
                "lone surrogate",
                f"`{key.encode(errors='replace').decode()}` has the lone surrogate "
                f"U+{ord(error.object[error.start]):04X} at character {error.start}, "
                "which is no text",
            ) from error


def refuse_constant(name: str) -> None:
    """For `parse_constant` of the json module, which would read NaN and Infinity."""
    raise ValueError(f"{name} is no JSON value")


def plain(value: Any) -> Any:
    """A value of a table as a JSON value: dates in ISO form, decimals as they are written.

    Raises:
      Fault: where it is bytes that are no text.
    """
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise Fault("bad UTF-8", f"holds bytes that are no UTF-8 at {error.start}") from error
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _text(record: dict[str, Any], field: str) -> str:
    if field not in record:
        raise Fault(NO_TEXT, f"has no `{field}` among its keys {sorted(record)}")
    text = record.pop(field)
    if not isinstance(text, str):
        raise Fault(NO_TEXT, f"`{field}` is {_shown(text)}, but must be a string")
    return text


def _name(record: dict[str, Any], field: str | None, usual: str) -> str | None:
    """The id or source that a record gives itself; None where it need not and does not."""
    value = record.pop(field or usual, None)
    if value is None and field is not None:
        raise Fault("missing field", f"has no `{field}` among its keys {sorted(record)}")
    if type(value) is int:
        return str(value)
    if value is not None and (not isinstance(value, str) or not value):
        raise Fault(f"bad {usual}", f"`{field or usual}` is {_shown(value)}, but must be a string")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
