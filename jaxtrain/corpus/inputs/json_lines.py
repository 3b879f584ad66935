r"""JSON Lines, plain or compressed: one record a line.

Lines end at `\n` and nowhere else: U+2028, U+0085 and their like are characters of a text. A range
of a file holds the lines that begin in it, so that ranges can be planned without reading.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jaxtrain.corpus.inputs import storage
from jaxtrain.corpus.inputs.reading import Fault, Items, Malformed, Part, ReadingConfig
from jaxtrain.corpus.inputs.records import TOO_LONG, refuse_constant, refuse_surrogates, to_document

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line and where it begins; `content` is None where it is too long to be held."""

    offset: int
    content: bytes | None
    num_bytes: int


def read(part: Part, reading: ReadingConfig) -> Items:
    """The documents of the lines that begin in [part.start, part.stop)."""
    number = 0 if part.start == 0 else None
    # From the byte before: where that ends a line, the next one begins in this range.
    begin = max(part.start - 1, 0)
    found = lines(storage.blocks(part.file, begin), reading.max_document_bytes, begin)
    offset = part.start
    if part.start:
        offset += next(found, Line(0, None, 1)).num_bytes - 1
    try:
        for line in found:
            if part.stop is not None and line.offset >= part.stop:
                return
            offset = line.offset + line.num_bytes
            number = None if number is None else number + 1
            if line.content is None or line.content.strip():
                yield _item(line, part, reading, number)
    except storage.Damaged as error:
        yield Malformed(part.name, offset, "damaged file", 0, str(error))


def lines(blocks: Iterable[bytes], max_bytes: int, offset: int = 0) -> Iterator[Line]:
    """Lines with their breaks left off; `num_bytes` counts the break.

    What stands behind the last break when `blocks` raises is no whole line and is not yielded.
    """
    held: list[bytes] = []  # the beginning of a line whose break has not come yet
    num_held = 0
    for block in blocks:
        *whole, rest = block.split(b"\n")
        for piece in whole:
            num_bytes = num_held + len(piece) + 1
            too_long = num_bytes - 1 > max_bytes
            content = None if too_long else b"".join([*held, piece]) if held else piece
            yield Line(offset, content, num_bytes)
            offset += num_bytes
            held, num_held = [], 0
        if rest:
            num_held += len(rest)
            held = [*held, rest] if num_held <= max_bytes else []
    if num_held:
        yield Line(offset, None if num_held > max_bytes else b"".join(held), num_held)


def parse(content: bytes) -> dict[str, Any]:
    """The record of one line.

    Raises:
      Fault: where it is no UTF-8, no JSON, no object or no text.
    """
    try:
        record = json.loads(content.decode(), parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        raise Fault("bad UTF-8", f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise Fault("bad JSON", "nested too deeply to be a document") from error
    except json.JSONDecodeError as error:
        raise Fault("bad JSON", f"not JSON ({error.msg} at character {error.pos})") from error
    except ValueError as error:  # a number of thousands of digits
        raise Fault("bad JSON", f"not JSON ({error})") from error
    if not isinstance(record, dict):
        raise Fault("bad JSON", f"a {type(record).__name__}, but must be a JSON object")
    if b"\\u" in content:
        refuse_surrogates(record)
    return record


def _item(line: Line, part: Part, reading: ReadingConfig, number: int | None) -> Any:
    try:
        if line.content is None:
            raise Fault(
                TOO_LONG,
                f"{line.num_bytes:,} bytes, more than max_document_bytes="
                f"{reading.max_document_bytes:,}",
            )
        content = line.content
        if line.offset == 0:
            content = content.removeprefix(_BYTE_ORDER_MARK)
        return to_document(parse(content), part, line.offset, line.num_bytes, reading)
    except Fault as fault:
        return Malformed(part.name, line.offset, fault.reason, line.num_bytes, str(fault), number)
