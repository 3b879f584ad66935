"""Writing what a teacher said of a store's tokens, row by row; a kill costs the rows since a save.

    writer = TeacherWriter(path, source, k=32, settings={"weights": …, "temperature": 1.0})
    for block in plan_rows(source, batch_size, first=writer.num_rows):
        writer.write(block, *top_k(block.batch))       # ids and log-probabilities [B, T, k]
    writer.finish()

Entries go to their tokens' places, whatever row they were in. teacher.json is written last and is
what makes the files a teacher's output; until then teacher.progress.json says how far they are. One
process writes, into a local directory.
"""

import os
import pathlib
from typing import IO, Any

import numpy as np

from jaxtrain import files
from jaxtrain.data.metadata import FileInfo, StoreError, token_dtype
from jaxtrain.data.plan_rows import PlanRows
from jaxtrain.data.sources import Source
from jaxtrain.data.storage import local_path
from jaxtrain.data.teacher import (
    IDS_FILE,
    LOGPROB_DTYPE,
    LOGPROBS_FILE,
    TEACHER_FILE,
    TeacherMetadata,
    rows_of,
)

PROGRESS_FILE = "teacher.progress.json"

#: Written between saves of the progress, each of which waits for the disk.
_SAVED_BYTES = 1 << 26

#: How far above 0 the rounding of a teacher's precision may put the log-probability of 1.
_ROUNDING = 1e-2


class TeacherWriter:
    """Writes one teacher's output on one store; continues where the same was interrupted."""

    def __init__(self, path: str, source: Source, *, k: int, settings: dict[str, Any]):
        """Args:
          k: ids kept per token.
          settings: JSON values that tell the teacher from any other: the hash of its weights, its
            precision, the temperature.

        Raises:
          ValueError: where the directory holds something else.
        """
        local = local_path(path)
        if local is None:
            raise ValueError(f"{path}: a teacher's output is written to a local directory")
        self._directory = pathlib.Path(local)
        store = source.store
        self._vocab_size = store.tokenization.vocab_size
        if not 1 <= k <= self._vocab_size:
            raise ValueError(f"k={k} must be from 1 to the vocabulary's {self._vocab_size} ids")
        self._metadata = TeacherMetadata(
            store=store.metadata.fingerprint,
            num_tokens=store.num_tokens,
            k=k,
            vocab_size=self._vocab_size,
            rows=rows_of(source),
            settings=settings,
            files={},
        )
        self._all_rows = source.num_rows
        self._dtypes = {IDS_FILE: token_dtype(self._vocab_size), LOGPROBS_FILE: LOGPROB_DTYPE}
        #: Rows of the plan that are done; begin with this one.
        self.num_rows = 0
        self._num_tokens = 0
        self._num_unsaved_bytes = 0
        #: Whether the output was whole already; there is nothing to write then.
        self.done = self._is_there()
        if not self.done:
            self._resume()
            self._files = {name: self._open(name) for name in self._dtypes}

    def _is_there(self) -> bool:
        file = self._directory / TEACHER_FILE
        if not file.exists():
            return False
        found = TeacherMetadata.from_json(file.read_bytes(), str(file))
        if self._identity(found) != self._identity(self._metadata):
            raise StoreError(
                f"{self._directory} holds what another teacher said, or of another store or k; "
                "give another directory, or delete it"
            )
        self.num_rows = self._all_rows
        return True

    def _resume(self) -> None:
        file = self._directory / PROGRESS_FILE
        if not file.exists():
            return
        progress = files.read_json(file)
        if progress["identity"] != self._identity(self._metadata):
            raise StoreError(
                f"{self._directory} holds the unfinished output of another teacher, or of another "
                "store or k; give another directory, or delete it"
            )
        self.num_rows, self._num_tokens = progress["num_rows"], progress["num_tokens"]
        for name, dtype in self._dtypes.items():
            path = self._directory / name
            found = path.stat().st_size if path.exists() else 0
            least = self._num_tokens * self._metadata.k * dtype.itemsize  # wherever they lie
            if found < least:  # what is missing would be read as zeros
                raise StoreError(
                    f"{path} has {found:,} bytes, and {PROGRESS_FILE} says that {least:,} or more "
                    f"are written; delete {self._directory} to run the teacher again"
                )

    @staticmethod
    def _identity(metadata: TeacherMetadata) -> str:
        return metadata._replace(files={}).fingerprint

    def _open(self, name: str) -> IO[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / name).touch()
        return open(self._directory / name, "r+b", buffering=0)

    def write(self, block: PlanRows, ids: np.ndarray, logprobs: np.ndarray) -> None:
        """Writes the entries of a block's rows, [B, T, k] each, likeliest first.

        Raises:
          ValueError: where they are no entries of these rows, or the disk is full.
        """
        shape = (*block.shape, self._metadata.k)
        if ids.shape != shape or logprobs.shape != shape:
            raise ValueError(
                f"a teacher's ids {ids.shape} and log-probabilities {logprobs.shape} must be of "
                f"shape {shape}"
            )
        if block.first_row != self.num_rows:
            raise ValueError(f"row {block.first_row} came, and {self.num_rows} is next")
        offsets = block.pieces.rows * shape[1] + block.pieces.columns
        arrays = {
            IDS_FILE: ids.reshape(-1, shape[2]),
            LOGPROBS_FILE: logprobs.reshape(-1, shape[2]),
        }
        for start, length, offset in zip(
            block.pieces.starts.tolist(),
            block.pieces.lengths.tolist(),
            offsets.tolist(),
            strict=True,
        ):
            entries = {name: array[offset : offset + length] for name, array in arrays.items()}
            self._check(entries[IDS_FILE], entries[LOGPROBS_FILE])
            for name, values in entries.items():
                self._write(name, start, values)
            self._num_tokens += length
        self.num_rows = block.stop_row
        if self._num_unsaved_bytes >= _SAVED_BYTES:
            self._save()

    def _check(self, ids: np.ndarray, logprobs: np.ndarray) -> None:
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            raise ValueError(
                f"a teacher's ids run from {ids.min()} to {ids.max()}, but the store's vocabulary "
                f"has {self._vocab_size}; leave out what only the teacher has"
            )
        if not (logprobs <= _ROUNDING).all():  # NaN neither
            bad = logprobs[~(logprobs <= _ROUNDING)][0]
            raise ValueError(f"a teacher's log-probability is {bad}; they are at most 0")

    def _write(self, name: str, start: int, values: np.ndarray) -> None:
        with np.errstate(over="ignore"):  # below -65,504: no probability left, -inf
            content = np.ascontiguousarray(values, self._dtypes[name]).tobytes()
        place = start * self._metadata.k * self._dtypes[name].itemsize
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(self._files[name].fileno(), content[written:], place + written)
        except OSError as error:
            raise StoreError(
                f"{self._directory / name}: cannot be written: {error.strerror}; make room and run "
                "again: it goes on where it stopped"
            ) from None
        self._num_unsaved_bytes += len(content)

    def _save(self) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())
        progress = {
            "identity": self._identity(self._metadata),
            "num_rows": self.num_rows,
            "num_tokens": self._num_tokens,
        }
        files.write_json(self._directory / PROGRESS_FILE, progress)
        self._num_unsaved_bytes = 0

    def finish(self) -> None:
        """Makes the files a teacher's output; raises ValueError where rows are missing."""
        if self.done:
            return
        if self.num_rows != self._all_rows or self._num_tokens != self._metadata.num_tokens:
            raise ValueError(
                f"{self._directory}: {self.num_rows:,} of {self._all_rows:,} rows are written, "
                f"{self._num_tokens:,} of {self._metadata.num_tokens:,} tokens"
            )
        self._save()
        for file in self._files.values():
            file.close()
        infos = {}
        for name in self._dtypes:
            file = self._directory / name
            infos[name] = FileInfo(file.stat().st_size, files.sha256(file))
        metadata = self._metadata._replace(files=infos)
        with files.write_whole(self._directory / TEACHER_FILE) as file:
            file.write(metadata.to_json().encode())
        (self._directory / PROGRESS_FILE).unlink()
        self.done = True
