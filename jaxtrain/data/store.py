"""The token store: flat token ids, where each document ends, and where each came from.

A store is a directory, local or in object storage (`gs://`, `s3://`, `http://`, `memory://`):

    store.json            metadata; the only file that is ever replaced, and always as a whole
    parts/NAME.tokens     token ids, little-endian uint16 (vocabulary up to 65,536) or uint32
    parts/NAME.ends       uint64 per document: the index in this part just past its last token
    parts/NAME.names      uint64 per document: the end of its record, then the records: JSON
                          arrays [document id, source file and offset]
    parts/NAME.mask       uint8 per token: 1 where it is trained, 0 where it is only read; a part
                          without this file trains every token

Parts are written by `writer.py`; only those that store.json names exist. Other files may travel
along (the tokenizer, the corpus's card), see `Store.companion`.

A part's files are headerless, so that one layout serves both engines: a local store is mapped into
memory and a remote one is read by byte ranges through tensorstore's key-value drivers. A row of 512
tokens costs 0.5 to 1.5 µs mapped and 6 to 9 µs by range (warm files, CPU time; docs/data.md has the
table), hence the mapping.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorstore as ts

FORMAT = "jaxtrain token store"
VERSION = 1
MASKED_VERSION = 2  # of a store with masks: a reader that knows none would train every token
#: Setting of a store: the tokenizer whose reserved ids its own has named; all other ids mean the
#: same.
TAUGHT_FROM = "taught_from"
METADATA_FILE = "store.json"
REMEDY = "restore the file or tokenize again"

#: One per process, so that connections are shared and a memory:// store is the same everywhere.
_CONTEXT = ts.Context()

#: Stores up to this size are verified whenever they are opened: 0.2 s of CPU time (1.4 GB/s).
VERIFIED_BYTES = 1 << 28

#: Read and hashed at a time; 64 MB cost twice as much, as their memory is fresh each time.
_HASHED_BYTES = 1 << 22

#: Mapped parts kept open at once; each holds a file descriptor, of which 1,024 is a usual limit.
_MAX_MAPPED = 256


class StoreError(ValueError):
    """A store that is missing, damaged or not what was asked for; one line, naming the file."""


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest stored type that holds every id of the vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def sha256_json(value: Any) -> str:
    """A hash of a JSON value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def text_sha256(files: Sequence[str]) -> str:
    """One hash for text that lies in several files, from theirs in order; that of a single one."""
    return files[0] if len(files) == 1 else sha256_json(list(files))


@dataclass(frozen=True)
class Tokenization:
    """What turned text into the ids of a store; a store holds one tokenization only."""

    vocab_size: int
    special_ids: Mapping[str, int]  # "eos", "bos", "pad", "mask" where the tokenizer has them
    tokenizer_sha256: str
    settings: Mapping[str, Any]  # everything else that decides the ids, as JSON values


class FileInfo(NamedTuple):
    """The size and hash that a file must have."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """Some of a store's documents, written by one process."""

    name: str
    num_tokens: int
    num_documents: int
    num_text_bytes: int
    files: Mapping[str, FileInfo]  # "tokens", "ends", "names", and "mask" where not all are trained
    num_masked_targets: int | None = None  # trained tokens with one before them in their document

    def path(self, kind: str) -> str:
        return f"parts/{self.name}.{kind}"

    @property
    def has_mask(self) -> bool:
        """Whether it says of each token if it is trained; otherwise all are."""
        return "mask" in self.files


@dataclass(frozen=True)
class Metadata:
    """What store.json says."""

    tokenization: Tokenization
    text_sha256: tuple[str, ...]  # one for each time that text was added
    parts: tuple[Part, ...]

    @property
    def version(self) -> int:
        """Of the format: the lowest that holds what this store has."""
        return MASKED_VERSION if any(part.has_mask for part in self.parts) else VERSION

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal wherever the store lies and whatever its files are called.

        The names of the documents' sources are left out, as they may hold paths.
        """
        kinds = ("tokens", "ends", "mask")
        parts = [
            [p.num_tokens, p.num_documents, p.num_text_bytes]
            + [p.files[kind].sha256 for kind in kinds if kind in p.files]
            for p in self.parts
        ]
        return sha256_json([self.version, asdict(self.tokenization), self.text_sha256, parts])

    def to_json(self) -> str:
        tokenization = self.tokenization
        value = {
            "format": FORMAT,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "dtype": token_dtype(tokenization.vocab_size).name,
            "num_tokens": sum(p.num_tokens for p in self.parts),
            "num_documents": sum(p.num_documents for p in self.parts),
            "num_text_bytes": sum(p.num_text_bytes for p in self.parts),
            "settings_sha256": sha256_json(tokenization.settings),
            "text_sha256": self.text_sha256,
            **asdict(tokenization),
            "parts": [_plain_part(p) for p in self.parts],
        }
        return json.dumps(value, indent=1) + "\n"

    @staticmethod
    def from_json(text: bytes, path: str) -> "Metadata":
        """Parses store.json. `path` is for the error messages."""
        try:
            value = json.loads(text)
            if value["format"] != FORMAT:
                raise ValueError(f"its format is {value['format']!r}, not {FORMAT!r}")
            version = value["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path}: not a token store's metadata ({error}); {REMEDY}") from None
        if version not in (VERSION, MASKED_VERSION):
            raise StoreError(
                f"{path}: format version {version}, but this jaxtrain reads versions {VERSION} and "
                f"{MASKED_VERSION}; tokenize again, or use the jaxtrain that wrote it"
            )
        try:
            metadata = Metadata(
                Tokenization(**{k: value[k] for k in Tokenization.__dataclass_fields__}),
                tuple(value["text_sha256"]),
                tuple(_parse_part(part) for part in value["parts"]),
            )
            found = (metadata.version, metadata.fingerprint)
            damaged = found != (version, value["fingerprint"])
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged = True
        if damaged:
            raise StoreError(f"{path}: its fields do not match its fingerprint; {REMEDY}")
        return metadata


def _plain_part(part: Part) -> dict[str, Any]:
    return {key: value for key, value in asdict(part).items() if value is not None}


def _parse_part(value: dict[str, Any]) -> Part:
    files = {kind: FileInfo(*info) for kind, info in value["files"].items()}
    return Part(**{**value, "files": files})


def local_path(path: str) -> str | None:
    """The directory behind a path or file:// address; None for object storage."""
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return None if "://" in path else os.path.abspath(path)


def open_directory(path: str) -> ts.KvStore:
    """The files below a local path or a URL, as tensorstore's key-value store."""
    local = local_path(path)
    spec = path.rstrip("/") + "/" if local is None else {"driver": "file", "path": local + "/"}
    try:
        return ts.KvStore.open(spec, context=_CONTEXT).result()
    except ValueError as error:
        raise StoreError(f"{path}: {reason(error)}; use a path or a URL") from None


def read_metadata(path: str) -> Metadata:
    """Reads and checks store.json alone."""
    text = _result(open_directory(path).read(METADATA_FILE), f"{path}/{METADATA_FILE}")
    if text is None:
        raise StoreError(
            f"{path}: no token store here ({METADATA_FILE} is missing); "
            "make one with python -m jaxtrain.tokenize"
        )
    return Metadata.from_json(text, f"{path}/{METADATA_FILE}")


def reason(error: Exception) -> str:
    """Why tensorstore failed, in one line without its error codes."""
    return re.sub(r" \[\w+=.*", "", str(error).splitlines()[0])


def _result(future: Any, file: str) -> bytes | None:
    """The bytes that a read brings, None where the file is missing."""
    try:
        result = future.result()
    except ValueError as error:
        if "OUT_OF_RANGE" in str(error):
            return b""
        raise StoreError(f"{file}: cannot be read: {reason(error)}") from None
    return None if result.state == "missing" else result.value


class Store:
    """A token store opened for reading: the parts that store.json named at that moment.

    Opening checks that every file is there with the size it should have (one small read each) and
    hashes everything where that is little (`VERIFIED_BYTES`); a larger store is hashed by `verify`
    only, see `verified`. Documents and tokens are numbered through all parts. Copies made by
    pickling (for worker processes) see the same parts, whatever was added since, and check nothing.
    """

    def __init__(self, path: str):
        self.path = path
        self.metadata = read_metadata(path)
        #: Whether the content was compared with the hashes of store.json.
        self.verified = False
        self._open()
        self._check_sizes()
        if self.num_bytes <= VERIFIED_BYTES:
            self.verify()

    def _open(self) -> None:
        parts = self.metadata.parts
        self._directory = open_directory(self.path)
        self._local = local_path(self.path)
        self._mapped: dict[tuple[int, str], np.ndarray] = {}
        self.dtype = token_dtype(self.metadata.tokenization.vocab_size)
        self._part_tokens = np.cumsum([0, *(p.num_tokens for p in parts)])
        self._part_documents = np.cumsum([0, *(p.num_documents for p in parts)])
        self.num_tokens = int(self._part_tokens[-1])
        self.num_documents = int(self._part_documents[-1])
        self.num_text_bytes = sum(p.num_text_bytes for p in parts)
        #: Whether some of its tokens are only read, not trained.
        self.has_mask = any(part.has_mask for part in parts)
        self.num_bytes = sum(info.num_bytes for p in parts for info in p.files.values())

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "metadata": self.metadata, "verified": self.verified}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def tokenization(self) -> Tokenization:
        return self.metadata.tokenization

    @property
    def num_targets(self) -> int:
        """Tokens that are trained where documents are kept apart: never the first of one."""
        return sum(
            part.num_tokens - part.num_documents
            if part.num_masked_targets is None
            else part.num_masked_targets
            for part in self.metadata.parts
        )

    def companion(self, name: str) -> bytes | None:
        """A file that travels in the store ("tokenizer.json", "card.json"), None where absent."""
        return _result(self._directory.read(name), f"{self.path}/{name}")

    def _check_sizes(self) -> None:
        reads = []
        for part in self.metadata.parts:
            for kind, info in part.files.items():
                last = slice(max(info.num_bytes - 1, 0), None)
                read = self._directory.read(part.path(kind), byte_range=last)
                reads.append((f"{self.path}/{part.path(kind)}", info.num_bytes, read))
        for file, num_bytes, read in reads:
            found = _result(read, file)
            if found is None:
                raise StoreError(f"{file}: the file is missing; {REMEDY}")
            if len(found) != min(num_bytes, 1):
                how = "shorter" if len(found) < 1 else "longer"
                raise StoreError(
                    f"{file}: {how} than the {num_bytes:,} bytes of {METADATA_FILE}; {REMEDY}"
                )

    def verify(self) -> None:
        """Reads every byte and compares the hashes; raises StoreError at the first difference."""
        for part in self.metadata.parts:
            for kind, info in part.files.items():
                digest = hashlib.sha256()
                for start in range(0, info.num_bytes, _HASHED_BYTES):
                    stop = min(start + _HASHED_BYTES, info.num_bytes)
                    digest.update(self._read_file(part, kind, start, stop))
                if digest.hexdigest() != info.sha256:
                    raise StoreError(
                        f"{self.path}/{part.path(kind)}: its content has changed "
                        f"(SHA-256 differs from {METADATA_FILE}); {REMEDY}"
                    )
        self.verified = True

    def _read_file(self, part: Part, kind: str, start: int, stop: int) -> bytes:
        file = f"{self.path}/{part.path(kind)}"
        read = self._directory.read(part.path(kind), byte_range=slice(start, stop))
        found = _result(read, file)
        if found is None or len(found) != stop - start:
            raise StoreError(f"{file}: changed after it was opened; {REMEDY}")
        return found

    @functools.cached_property
    def document_ends(self) -> np.ndarray:
        """The token index just past each document; kept in memory, 8 bytes per document."""
        document_ends = np.empty(self.num_documents, np.int64)
        for i, part in enumerate(self.metadata.parts):
            found = self._read_file(part, "ends", 0, part.files["ends"].num_bytes)
            ends = np.frombuffer(found, "<u8").astype(np.int64)
            if (np.diff(ends, prepend=0) < 0).any() or ends[-1] != part.num_tokens:
                raise StoreError(
                    f"{self.path}/{part.path('ends')}: its document ends do not rise to "
                    f"{part.num_tokens:,}; {REMEDY}"
                )
            first, stop = self._part_documents[i : i + 2]
            document_ends[first:stop] = ends + self._part_tokens[i]
        return document_ends

    def document_name(self, document: int) -> tuple[str, str]:
        """The id and the source (file and offset) of a document."""
        i = int(np.searchsorted(self._part_documents, document, side="right")) - 1
        part = self.metadata.parts[i]
        local = document - int(self._part_documents[i])
        table = self._read_file(part, "names", max(local - 1, 0) * 8, (local + 1) * 8)
        ends = [0, *np.frombuffer(table, "<u8").tolist()]
        blob = part.num_documents * 8
        document_id, source = json.loads(
            self._read_file(part, "names", blob + ends[-2], blob + ends[-1])
        )
        return document_id, source

    def read(
        self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, out: np.ndarray
    ) -> None:
        """Copies K pieces of the token stream into the flat array `out`.

        Piece k is `lengths[k]` tokens from `starts[k]` on and goes to `out[offsets[k]:]`.
        """
        self._read("tokens", self.dtype, self._split_at_parts(starts, lengths, offsets), out)

    def read_mask(
        self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, out: np.ndarray
    ) -> None:
        """Like `read`, but whether each token is trained: 0 or 1, into an array of ones."""
        self._read("mask", np.dtype(np.uint8), self._split_at_parts(starts, lengths, offsets), out)

    def _read(
        self, kind: str, dtype: np.dtype, pieces: tuple[list[int], ...], out: np.ndarray
    ) -> None:
        """Copies pieces as `_split_at_parts` gives them, of the parts that have such a file."""
        parts, size = self.metadata.parts, dtype.itemsize
        wanted = [piece for piece in zip(*pieces, strict=True) if kind in parts[piece[0]].files]
        if self._local is not None:
            for i, start, length, offset in wanted:
                out[offset : offset + length] = self._map(i, kind, dtype)[start : start + length]
            return
        batch = ts.Batch()  # lets the driver join neighbouring ranges into one request
        reads = []
        for i, start, length, offset in wanted:
            span = slice(start * size, (start + length) * size)
            read = self._directory.read(parts[i].path(kind), byte_range=span, batch=batch)
            reads.append((parts[i], read, length, offset))
        batch.submit()
        for part, read, length, offset in reads:
            file = f"{self.path}/{part.path(kind)}"
            content = _result(read, file)
            if content is None or len(content) != length * size:
                raise StoreError(f"{file}: changed after it was opened; {REMEDY}")
            out[offset : offset + length] = np.frombuffer(content, dtype)

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

    def _map(self, i: int, kind: str, dtype: np.dtype) -> np.ndarray:
        array = self._mapped.get((i, kind))
        if array is None:
            if len(self._mapped) >= _MAX_MAPPED:
                self._mapped.pop(next(iter(self._mapped)), None)
            file = os.path.join(str(self._local), self.metadata.parts[i].path(kind))
            # A plain array: slicing numpy.memmap, a subclass, costs several times as much.
            array = np.asarray(np.memmap(file, dtype, mode="r"))
            self._mapped[i, kind] = array
        return array
