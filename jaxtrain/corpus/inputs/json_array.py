"""A .json file that holds one array of records; the offset of a record is its number in it.

The array is read piece by piece: no more is held than the records at hand.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

from jaxtrain.corpus.inputs import storage
from jaxtrain.corpus.inputs.reading import Fault, Items, Malformed, Part, ReadingConfig
from jaxtrain.corpus.inputs.records import (
    TOO_LONG,
    refuse_constant,
    refuse_surrogates,
    to_document,
)

_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
_SPACE = " \t\n\r"


def read(part: Part, reading: ReadingConfig) -> Items:
    """The documents of the array's records.

    What comes behind a break of the syntax cannot be told apart and counts as one malformed record.
    """
    number = -1
    try:
        found = elements(storage.blocks(part.file), reading.max_document_bytes)
        for number, (element, num_bytes) in enumerate(found):
            yield _item(element, number, num_bytes, part, reading)
    except Fault as fault:
        yield Malformed(part.name, number + 1, fault.reason, 0, str(fault))
    except storage.Damaged as error:
        yield Malformed(part.name, number + 1, "damaged file", 0, str(error))


def _item(element: Any, number: int, num_bytes: int, part: Part, reading: ReadingConfig) -> Any:
    try:
        if not isinstance(element, dict):
            raise Fault("bad JSON", f"a {type(element).__name__}, but must be a JSON object")
        refuse_surrogates(element)
        return to_document(element, part, number, num_bytes, reading)
    except Fault as fault:
        return Malformed(part.name, number, fault.reason, num_bytes, str(fault))


def elements(blocks: Iterable[bytes], max_bytes: int) -> Iterator[tuple[Any, int]]:
    """The values of an array in order, each with its length in bytes.

    Raises:
      Fault: where the text is no array, no UTF-8, or an element is longer than `max_bytes`.
    """
    text = _Window(blocks)
    if text.next_mark() != "[":
        raise Fault("bad JSON", "holds no array of objects; give JSON Lines or one array")
    text.at += 1
    mark = text.next_mark()
    if mark == "]":
        text.at += 1
    while mark != "]":
        yield text.value(max_bytes)
        mark = text.next_mark()
        text.at += 1
        if mark not in (",", "]"):
            raise Fault("bad JSON", f"{mark or 'the end'!r} where a comma or ] must be")
    if text.next_mark():
        raise Fault("bad JSON", "more text behind the array")


class _Window:
    """The text of a file as far as it is needed: grows at its end and is cut at its beginning."""

    def __init__(self, blocks: Iterable[bytes]):
        self._texts = self._decode(blocks)
        self._text = ""
        self.at = 0

    def next_mark(self) -> str:
        """The next character that is no space, "" at the end of the file; `at` stands on it."""
        while True:
            while self.at < len(self._text) and self._text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self._text) or not self._grow(1):
                return self._text[self.at : self.at + 1]

    def value(self, max_bytes: int) -> tuple[Any, int]:
        """The JSON value at the next mark and its length in bytes; `at` stands behind it."""
        self.next_mark()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self.at)
            except RecursionError as error:
                raise Fault("bad JSON", "nested too deeply to be a document") from error
            except json.JSONDecodeError as error:
                held = len(self._text) - self.at
                if held > max_bytes:
                    raise Fault(
                        TOO_LONG, f"longer than max_document_bytes={max_bytes:,}"
                    ) from error
                # By as much again, so that a long value is not begun anew for every block.
                if not self._grow(max(held, 1)):
                    raise Fault("bad JSON", f"not JSON ({error.msg})") from error
                continue
            except ValueError as error:
                raise Fault("bad JSON", f"not JSON ({error})") from error
            num_bytes = len(self._text[self.at : end].encode(errors="surrogatepass"))
            self.at = end
            return value, num_bytes

    def _grow(self, num_chars: int) -> bool:
        """Reads at least `num_chars` more, if there are; False at the end of the file."""
        self._text = self._text[self.at :]
        self.at = 0
        more = []
        while num_chars > 0 and (text := next(self._texts, "")):
            more.append(text)
            num_chars -= len(text)
        self._text += "".join(more)
        return bool(more)

    @staticmethod
    def _decode(blocks: Iterable[bytes]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        try:
            for block in blocks:
                if text := decoder.decode(block):
                    yield text
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise Fault("bad UTF-8", "not UTF-8 inside of the array") from error
