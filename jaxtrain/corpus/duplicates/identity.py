"""What decisions over a whole corpus know of a document: its place, its name and its order.

A *place* is (chunk << 32) | row in one int64: where to find a document, never what to keep. What is
kept follows from the *order*, made of content alone: longest text first, then the text's 128-bit
hash; for equal texts a hash of id and source, and where those are equal too, of the metadata. So it
is the same however documents are listed, cut into files and spread over workers.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxtrain.corpus.documents import Document

# 2^63 − bytes, the text's hash in two halves, hashes of id and source and of metadata: ascending.
ORDER = ("length", "text_high", "text_low", "name", "metadata")
_ROW_BITS = 32
_encode = json.JSONEncoder(sort_keys=True).encode


def places(chunk: int, rows: np.ndarray) -> np.ndarray:
    """The places of rows of a chunk."""
    return (np.int64(chunk) << np.int64(_ROW_BITS)) | rows.astype(np.int64)


def chunk_of(where: np.ndarray) -> np.ndarray:
    """The chunks of places."""
    return where >> np.int64(_ROW_BITS)


def row_of(where: np.ndarray) -> np.ndarray:
    """The rows of places within their chunks."""
    return where & np.int64((1 << _ROW_BITS) - 1)


def order_keys(chunk: Sequence[Document]) -> np.ndarray:
    """The order of each document, uint64 of (documents, len(ORDER)); columns count in turn."""
    keys = np.empty((len(chunk), len(ORDER)), np.uint64)
    for row, document in enumerate(chunk):
        text = document.text.encode()
        keys[row, 0] = (1 << 63) - len(text)
        keys[row, 1:3] = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), ">u8")
        keys[row, 3] = _hash([document.id, document.source])
        keys[row, 4] = _hash(dict(document.metadata))
    return keys


def _hash(values: Any) -> int:
    plain = _encode(values).encode()
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big")


def pack(strings: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Strings as bytes one after the other (UTF-8, uint8) and where each ends."""
    encoded = [string.encode() for string in strings]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def unpack(packed: np.ndarray, ends: np.ndarray, rows: Iterable[int]) -> list[str]:
    """The strings of some rows."""
    return [
        packed[ends[row - 1] if row else 0 : ends[row]].tobytes().decode() for row in map(int, rows)
    ]
