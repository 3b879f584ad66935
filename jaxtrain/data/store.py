"""The token store: flat token ids, where each document ends, and where each came from.

A store is a directory, local or in object storage (`gs://`, `s3://`, `http://`, `memory://`):

    store.json            metadata; the only file that is ever replaced, and always as a whole
    parts/NAME.tokens     token ids, little-endian uint16 (vocabulary up to 65,536) or uint32
    parts/NAME.ends       uint64 per document: the index in this part just past its last token
    parts/NAME.names      uint64 per document: the end of its record, then the records: JSON
                          arrays [document id, source file and offset]

and, only where there is something to say:

    parts/NAME.mask       uint8 per token: 1 where it is trained, 0 where it is only read; a part
                          with neither this file nor the next trains every token
    parts/NAME.weights    float32 per token, instead of the mask: how much it counts
    parts/NAME.groups     uint64 per group of answers that belong together: how many documents of
                          this part end with it; without this file each is a group of its own
    parts/NAME.values     float32 per document: what is known of an answer; without it 0
    parts/NAME.labels     uint8 per token: 1 where the step that ends there is good

What groups, values and labels mean is in `answers.py`. Numbers are little-endian. Parts are written
by `writer.py`; only those that store.json names exist. Other files may travel along (the tokenizer,
the corpus's card), see `Store.companion`.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxtrain.data.metadata import (
    METADATA_FILE,
    REMEDY,
    FileInfo,
    Metadata,
    Part,
    StoreError,
    Tokenization,
    token_dtype,
)
from jaxtrain.data.storage import StoredFiles

#: Stores up to this size are verified whenever they are opened: 0.2 s of CPU time (1.4 GB/s).
VERIFIED_BYTES = 1 << 28

_MASK, _WEIGHT, _VALUE = np.dtype(np.uint8), np.dtype("<f4"), np.dtype("<f4")


def read_metadata(path: str) -> Metadata:
    """Reads and checks store.json alone."""
    text = StoredFiles(path).whole(METADATA_FILE)
    if text is None:
        raise StoreError(
            f"{path}: no token store here ({METADATA_FILE} is missing); "
            "make one with python -m jaxtrain.tokenize"
        )
    return Metadata.from_json(text, f"{path}/{METADATA_FILE}")


class Store:
    """A token store opened for reading: the parts that store.json named at that moment.

    Opening checks that every file is there with the size it should have (one small read each) and
    hashes everything where that is little (`VERIFIED_BYTES`); a larger store is hashed by `verify`
    only, see `verified`. Documents, groups and tokens are numbered through all parts. Copies made
    by pickling (for worker processes) see the same parts, whatever was added since, and check
    nothing.
    """

    def __init__(self, path: str):
        self.path = path
        self.metadata = read_metadata(path)
        #: Whether the content was compared with the hashes of store.json.
        self.verified = False
        self._open()
        self._files.check_sizes(self._infos, METADATA_FILE)
        if self.num_bytes <= VERIFIED_BYTES:
            self.verify()

    def _open(self) -> None:
        parts = self.metadata.parts
        self._files = StoredFiles(self.path)
        self.dtype = token_dtype(self.metadata.tokenization.vocab_size)
        self._names = {
            kind: [part.path(kind) if kind in part.files else None for part in parts]
            for kind in ("tokens", "mask", "weights", "labels")
        }
        self._part_tokens = np.cumsum([0, *(p.num_tokens for p in parts)])
        self._part_documents = np.cumsum([0, *(p.num_documents for p in parts)])
        self.num_tokens = int(self._part_tokens[-1])
        self.num_documents = int(self._part_documents[-1])
        self.num_text_bytes = sum(p.num_text_bytes for p in parts)
        #: Whether some of its tokens are only read, or count otherwise than once.
        self.has_mask = any(part.has_mask for part in parts)
        #: Which of `answers.KINDS` its documents are; None where each stands alone.
        self.answers = self.metadata.tokenization.answers
        self.num_bytes = sum(info.num_bytes for info in self._infos.values())

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "metadata": self.metadata, "verified": self.verified}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def _infos(self) -> dict[str, FileInfo]:
        return {p.path(kind): info for p in self.metadata.parts for kind, info in p.files.items()}

    @property
    def tokenization(self) -> Tokenization:
        return self.metadata.tokenization

    @property
    def num_targets(self) -> int:
        """Tokens that are trained where documents are kept apart: never the first of one.

        In a store of "steps" it is the number of steps, as those are judged where they end.
        """
        return sum(
            part.num_tokens - part.num_documents
            if part.num_masked_targets is None
            else part.num_masked_targets
            for part in self.metadata.parts
        )

    def companion(self, name: str) -> bytes | None:
        """A file that travels in the store ("tokenizer.json", "card.json"), None where absent."""
        return self._files.whole(name)

    def verify(self) -> None:
        """Reads every byte and compares the hashes; raises StoreError at the first difference."""
        self._files.check_content(self._infos, METADATA_FILE)
        self.verified = True

    @functools.cached_property
    def document_ends(self) -> np.ndarray:
        """The token index just past each document; kept in memory, 8 bytes per document."""
        document_ends = np.empty(self.num_documents, np.int64)
        for i, part in enumerate(self.metadata.parts):
            ends = np.frombuffer(self._whole(part, "ends"), "<u8").astype(np.int64)
            if (np.diff(ends, prepend=0) < 0).any() or ends[-1] != part.num_tokens:
                raise StoreError(
                    f"{self.path}/{part.path('ends')}: its document ends do not rise to "
                    f"{part.num_tokens:,}; {REMEDY}"
                )
            first, stop = self._part_documents[i : i + 2]
            document_ends[first:stop] = ends + self._part_tokens[i]
        return document_ends

    @functools.cached_property
    def group_ends(self) -> np.ndarray:
        """The index just past the last document of each group; in memory, 8 bytes per group."""
        found = [np.zeros(0, np.int64)]
        for i, part in enumerate(self.metadata.parts):
            ends = np.arange(1, part.num_documents + 1)
            if "groups" in part.files:
                ends = np.frombuffer(self._whole(part, "groups"), "<u8").astype(np.int64)
                rising = len(ends) > 0 and (np.diff(ends, prepend=0) > 0).all()
                if not rising or ends[-1] != part.num_documents:
                    raise StoreError(
                        f"{self.path}/{part.path('groups')}: its groups do not rise to "
                        f"{part.num_documents:,} documents; {REMEDY}"
                    )
            found.append(ends + self._part_documents[i])
        return np.concatenate(found)

    @functools.cached_property
    def values(self) -> np.ndarray:
        """What is known of each document, float32; kept in memory, 4 bytes per document."""
        found = [np.zeros(0, np.float32)]
        for part in self.metadata.parts:
            if "values" in part.files:
                found.append(np.frombuffer(self._whole(part, "values"), _VALUE))
            else:
                found.append(np.zeros(part.num_documents, np.float32))
        return np.concatenate(found).astype(np.float32)

    def document_name(self, document: int) -> tuple[str, str]:
        """The id and the source (file and offset) of a document."""
        i = int(np.searchsorted(self._part_documents, document, side="right")) - 1
        part = self.metadata.parts[i]
        names = part.path("names")
        local = document - int(self._part_documents[i])
        table = self._files.read(names, max(local - 1, 0) * 8, (local + 1) * 8)
        ends = [0, *np.frombuffer(table, "<u8").tolist()]
        blob = part.num_documents * 8
        document_id, source = json.loads(self._files.read(names, blob + ends[-2], blob + ends[-1]))
        return document_id, source

    def read(
        self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, out: np.ndarray
    ) -> None:
        """Copies K pieces of the token stream into the flat array `out`.

        Piece k is `lengths[k]` tokens from `starts[k]` on and goes to `out[offsets[k]:]`.
        """
        pieces = self._split_at_parts(starts, lengths, offsets)
        self._files.gather(self._of_kind("tokens", pieces), self.dtype, out)

    def read_weights(
        self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, out: np.ndarray
    ) -> None:
        """Like `read`, but how much each token counts as a target, into an array of ones."""
        pieces = self._split_at_parts(starts, lengths, offsets)
        self._files.gather(self._of_kind("mask", pieces), _MASK, out)
        self._files.gather(self._of_kind("weights", pieces), _WEIGHT, out)

    def read_labels(
        self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, out: np.ndarray
    ) -> None:
        """Like `read`, but the labels of steps, into an array of zeros."""
        pieces = self._split_at_parts(starts, lengths, offsets)
        self._files.gather(self._of_kind("labels", pieces), _MASK, out)

    def _whole(self, part: Part, kind: str) -> bytes:
        return self._files.read(part.path(kind), 0, part.files[kind].num_bytes)

    def _of_kind(
        self, kind: str, pieces: tuple[list[int], ...]
    ) -> Iterator[tuple[str, int, int, int]]:
        """Pieces as `_split_at_parts` gives them, of the parts that have such a file."""
        names = self._names[kind]
        for i, start, length, offset in zip(*pieces, strict=True):
            if (name := names[i]) is not None:
                yield name, start, length, offset

    def _split_at_parts(self, starts, lengths, offsets) -> tuple[list[int], ...]:
        """Cuts pieces that run over the end of a part; returns (part, start, length, offset)."""
        parts = np.searchsorted(self._part_tokens, starts, side="right") - 1
        room = self._part_tokens[parts + 1] - starts
        over = lengths > room
        first = (
            parts.tolist(),
            (starts - self._part_tokens[parts]).tolist(),
            np.minimum(lengths, room).tolist(),
            offsets.tolist(),
        )
        if not over.any():
            return first
        rest = self._split_at_parts(
            (starts + room)[over], (lengths - room)[over], (offsets + room)[over]
        )
        return tuple(a + b for a, b in zip(first, rest, strict=True))
