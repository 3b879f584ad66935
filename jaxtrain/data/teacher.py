"""What a teacher said of every token of a store: its k likeliest next ids, beside the store.

A directory or URL of three files, made by `teacher_writer.py`:

    teacher.json        which store (its fingerprint), k, and how the teacher was run; written last
    teacher.ids         ids, likeliest first: [tokens of the store, k], uint16 or uint32 as there
    teacher.logprobs    their log-probabilities in nats: [tokens of the store, k], float16

Entry t is the teacher's distribution of what follows token t, so that it is served for a row's
inputs by the very pieces that fill the row. Where a document ends nothing follows; there is an
entry, and no loss weight.

Float16 keeps 11 bits of a log-probability, so that each is off by at most 2⁻¹¹ of itself and the
probabilities by at most H/2048 in total, H being the entropy in nats. The KL divergence from the
exact distribution is below 1e-6 nats (tests/data/test_teacher.py), far below that of a teacher that
computes in bfloat16. Float32 would double what is most of the bytes.
"""

import json
from typing import Any, NamedTuple

import numpy as np

from jaxtrain.data.metadata import REMEDY, FileInfo, StoreError, sha256_json, token_dtype
from jaxtrain.data.packing import Pieces
from jaxtrain.data.sources import Source
from jaxtrain.data.storage import StoredFiles
from jaxtrain.data.store import VERIFIED_BYTES, Store

FORMAT, VERSION = "jaxtrain teacher", 1
TEACHER_FILE = "teacher.json"
IDS_FILE, LOGPROBS_FILE = "teacher.ids", "teacher.logprobs"
LOGPROB_DTYPE = np.dtype("<f2")


class Rows(NamedTuple):
    """The rows in which a teacher saw the tokens: how they were packed, and whether that matters.

    Where every document is whole and alone it has one context only, whatever the rows.
    """

    packing: str
    seq_len: int
    whole_documents: bool

    def agree(self, other: "Rows") -> bool:
        """Whether each token has the same context in both."""
        both_whole = self.whole_documents and other.whole_documents
        return both_whole or self[:2] == other[:2]


class TeacherMetadata(NamedTuple):
    """What teacher.json says."""

    store: str  # fingerprint
    num_tokens: int
    k: int
    vocab_size: int
    rows: Rows
    settings: dict[str, Any]  # of the teacher: weights' hash, precision, temperature, as JSON
    files: dict[str, FileInfo]

    @property
    def fingerprint(self) -> str:
        """A hash of the content."""
        return sha256_json([VERSION, self._asdict()])

    def to_json(self) -> str:
        value = {"format": FORMAT, "version": VERSION, "fingerprint": self.fingerprint}
        plain = {**self._asdict(), "rows": self.rows._asdict()}
        return json.dumps({**value, **plain}, indent=1) + "\n"

    @staticmethod
    def from_json(text: bytes, path: str) -> "TeacherMetadata":
        """Parses teacher.json. `path` is for the error messages."""
        try:
            value = json.loads(text)
            known = (value.pop("format"), value.pop("version"))
            fingerprint = value.pop("fingerprint")
            rows = Rows(**value.pop("rows"))
            files = {name: FileInfo(*info) for name, info in value.pop("files").items()}
            metadata = TeacherMetadata(**value, rows=rows, files=files)
            damaged = known != (FORMAT, VERSION) or metadata.fingerprint != fingerprint
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged = True
        if damaged:
            raise StoreError(
                f"{path}: not the metadata of a teacher's output, version {VERSION}; {REMEDY}"
            )
        return metadata


class TeacherStore:
    """A teacher's output opened for reading, checked as a `Store` is."""

    def __init__(self, path: str):
        self.path = path
        text = StoredFiles(path).whole(TEACHER_FILE)
        if text is None:
            raise StoreError(
                f"{path}: no teacher's output here ({TEACHER_FILE} is missing); it is written when "
                "the last row is done"
            )
        self.metadata = TeacherMetadata.from_json(text, f"{path}/{TEACHER_FILE}")
        self._open()
        files = self.metadata.files
        self._files.check_sizes(files, TEACHER_FILE)
        if sum(info.num_bytes for info in files.values()) <= VERIFIED_BYTES:
            self._files.check_content(files, TEACHER_FILE)

    def _open(self) -> None:
        self._files = StoredFiles(self.path)
        self.k = self.metadata.k
        self._id_dtype = token_dtype(self.metadata.vocab_size)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "metadata": self.metadata}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def check_serves(self, store: Store, rows: Rows, where: str) -> None:
        """Raises ValueError where it is of another store, or saw its tokens in other contexts."""
        made = self.metadata
        if made.store != store.metadata.fingerprint:
            raise ValueError(
                f"{where}={self.path!r} is what a teacher said of another store "
                f"({made.store[:12]}), not of {store.path!r} "
                f"({store.metadata.fingerprint[:12]}); run the teacher on this one."
            )
        if not made.rows.agree(rows):
            raise ValueError(
                f"{where}={self.path!r} was made in rows of packing={made.rows.packing!r}, "
                f"seq_len={made.rows.seq_len}, where tokens have another context than with "
                f"config.data.packing={rows.packing!r}, seq_len={rows.seq_len}; set those, or run "
                "the teacher again."
            )

    def read(self, pieces: Pieces, offsets: np.ndarray, ids: np.ndarray, logprobs: np.ndarray):
        """Copies the entries of pieces to `offsets` of flat arrays [positions, k]."""
        spans = list(
            zip(pieces.starts.tolist(), pieces.lengths.tolist(), offsets.tolist(), strict=True)
        )
        for name, dtype, out in (
            (IDS_FILE, self._id_dtype, ids),
            (LOGPROBS_FILE, LOGPROB_DTYPE, logprobs),
        ):
            self._files.gather(((name, *span) for span in spans), dtype, out)


def rows_of(source: Source) -> Rows:
    """How a source's rows show its tokens to a teacher."""
    config = source.config
    whole = config.packing != "concat" and not source.ledger.num_cut_documents
    return Rows(config.packing, config.seq_len, whole)
