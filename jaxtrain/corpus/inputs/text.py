"""Plain text and Markdown: one file, one document, characters as they are."""

import dataclasses

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import storage
from jaxtrain.corpus.inputs.reading import Fault, Items, Malformed, Part, ReadingConfig, Skipped
from jaxtrain.corpus.inputs.records import TOO_LONG, to_document

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read(part: Part, reading: ReadingConfig) -> Items:
    """The file as a document whose id is the file's name."""
    size = 0
    try:
        content = whole_content(part.file, reading.max_document_bytes)
        size = len(content)
        yield text_document(content, part, reading)
    except Fault as fault:
        yield Malformed(part.name, 0, fault.reason, size, str(fault))


def whole_content(file: str, max_bytes: int) -> bytes:
    """The content of a file that is one document.

    Raises:
      Fault: where it is damaged, or longer than `max_bytes`; no more than that is held.
    """
    held: list[bytes] = []
    size = 0
    try:
        for block in storage.blocks(file):
            size += len(block)
            if size > max_bytes:
                raise Fault(TOO_LONG, f"longer than max_document_bytes={max_bytes:,}")
            held.append(block)
    except storage.Damaged as error:
        raise Fault("damaged file", str(error)) from error
    return b"".join(held)


def text_document(
    content: bytes, part: Part, reading: ReadingConfig, **metadata: str
) -> Document | Skipped:
    """A whole file as a document; raises Fault where it is no UTF-8."""
    try:
        text = content.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        raise Fault("bad UTF-8", f"not UTF-8 at byte {error.start}") from error
    # Keys of records are no matter of files that are one text.
    reading = dataclasses.replace(reading, text_field="text", id_field=None, source_field=None)
    item = to_document({"text": text, **metadata}, part, 0, len(content), reading)
    return item if isinstance(item, Skipped) else item._replace(id=part.name)
