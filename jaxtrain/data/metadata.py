"""What store.json says: the tokenization, and of each part its sizes and the hashes of its files.

The format has three versions, and a store has the lowest that holds what is in it, so that a reader
that knows less refuses a store instead of misreading it: 1 tokens alone; 2 masks; 3 groups, values,
labels or weights (answers that are judged or compared, and weights other than 0 and 1).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

FORMAT = "jaxtrain token store"
PLAIN_VERSION, MASKED_VERSION, ANSWERS_VERSION = 1, 2, 3
METADATA_FILE = "store.json"
REMEDY = "restore the file or tokenize again"

#: Setting of a store: the tokenizer whose reserved ids its own has named; all other ids mean the
#: same.
TAUGHT_FROM = "taught_from"
#: Setting of a store of answers: which of `answers.KINDS`; absent where documents stand alone.
ANSWERS = "answers"

#: Files of a part whose content decides what is trained; "names" only says where it came from.
_HASHED = ("tokens", "ends", "mask", "groups", "values", "labels", "weights")
_ONLY_WITH_ANSWERS_VERSION = {"groups", "values", "labels", "weights"}


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

    @property
    def answers(self) -> str | None:
        """Which kind of answers the documents are; None where each stands alone."""
        return self.settings.get(ANSWERS)


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
    files: Mapping[str, FileInfo]  # by kind: "tokens", "ends", "names", and others where needed
    num_masked_targets: int | None = None  # trained tokens, where not all are; see `Store`

    def path(self, kind: str) -> str:
        return f"parts/{self.name}.{kind}"

    @property
    def has_mask(self) -> bool:
        """Whether it says of each token if (or how much) it is trained; otherwise all are."""
        return "mask" in self.files or "weights" in self.files

    @property
    def content(self) -> list[Any]:
        """What counts of it in the fingerprint."""
        sizes = [self.num_tokens, self.num_documents, self.num_text_bytes]
        hashes = [(kind, self.files[kind].sha256) for kind in _HASHED if kind in self.files]
        if _ONLY_WITH_ANSWERS_VERSION & self.files.keys():
            return [*sizes, *(list(each) for each in hashes)]  # kinds that may be left out: by name
        return [*sizes, *(sha256 for _, sha256 in hashes)]


@dataclass(frozen=True)
class Metadata:
    """What store.json says."""

    tokenization: Tokenization
    text_sha256: tuple[str, ...]  # one for each time that text was added
    parts: tuple[Part, ...]

    @property
    def version(self) -> int:
        """Of the format: the lowest that holds what this store has."""
        kinds = {kind for part in self.parts for kind in part.files}
        if self.tokenization.answers or kinds & _ONLY_WITH_ANSWERS_VERSION:
            return ANSWERS_VERSION
        return MASKED_VERSION if "mask" in kinds else PLAIN_VERSION

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal wherever the store lies and whatever its files are called.

        The names of the documents' sources are left out, as they may hold paths.
        """
        parts = [part.content for part in self.parts]
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
        if version not in (PLAIN_VERSION, MASKED_VERSION, ANSWERS_VERSION):
            raise StoreError(
                f"{path}: format version {version}, but this jaxtrain reads versions "
                f"{PLAIN_VERSION} to {ANSWERS_VERSION}; tokenize again, or use the jaxtrain that "
                "wrote it"
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
