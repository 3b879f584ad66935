"""What reading is configured by, what its work is cut into, and what comes out beside documents."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from jaxtrain.corpus.documents import Document
from jaxtrain.options import option

FAIL, COUNT = "fail", "count"
AUTO = "auto"
# Each is a module of this package with `read(part, reading)`; see `read.py`.
FORMATS = ("json_lines", "json_array", "parquet", "text", "code", "dataset", "warc")
_ENOUGH_TO_JUDGE = 1000  # records, before a share of malformed ones stops a run half-way
# What a source tree holds that nobody of the project wrote, or that no one reads as text.
_NOT_WRITTEN_HERE = (
    *(".*", "__pycache__", "node_modules", "bower_components", "site-packages", "dist-packages"),
    *("vendor", "vendored", "_vendor", "third_party", "thirdparty", "third-party", "venv", "env"),
    *("build", "dist", "target", "Pods", "*.egg-info", "*.min.js", "*.min.css"),
    *("package-lock.json", "*_pb2.py", "*_pb2_grpc.py", "*.pb.go", "*.pb.cc", "*.pb.h"),
)


@dataclasses.dataclass(frozen=True)
class ReadingConfig:
    """How input files become documents."""

    text_field: str = option("text", "key or column that holds the text")
    id_field: str | None = option(
        None, "key or column of the id; None: `id` where there is one, else file and offset"
    )
    source_field: str | None = option(
        None,
        "key or column of the source of inputs without a name of their own; None: `source` "
        "where there is one, else by the input",
    )
    fields: tuple[str, ...] = option(
        (), "metadata fields that every record holds; one that lacks them is malformed"
    )
    format: str = option(
        AUTO, "what the files are; auto: by their endings", choices=(AUTO, *FORMATS)
    )
    malformed: str = option(
        FAIL, "what a malformed record does: stop the run, or be counted", choices=(FAIL, COUNT)
    )
    max_malformed_frac: float = option(
        0.01, "where they are counted: the share of records above which the run stops all the same"
    )
    max_document_bytes: int = option(
        50_000_000, "a longer document (bytes in the file) is malformed and is not held in memory"
    )
    exclude: tuple[str, ...] = option(
        _NOT_WRITTEN_HERE, "of a source tree: names of files and folders not read (globs)"
    )

    def __post_init__(self) -> None:
        if not self.text_field:
            raise ValueError("text_field is empty; name the key or column that holds the text")
        if not 0 <= self.max_malformed_frac <= 1:
            raise ValueError(
                f"max_malformed_frac={self.max_malformed_frac} is a share, from 0 to 1"
            )
        if self.max_document_bytes < 1:
            raise ValueError(f"max_document_bytes={self.max_document_bytes} must be at least 1")
        taken = {"id", "text", "source", "origin", self.text_field}.intersection(self.fields)
        if taken:
            raise ValueError(f"fields holds {sorted(taken)}, which every document has anyway")

    def check_malformed(self, num_malformed: int, num_read: int, done: bool = False) -> None:
        """Raises ValueError where too large a share of the records read was malformed.

        Called with the counts of a whole run as it goes on: few records say nothing until it is
        `done`.
        """
        enough = done or num_read >= _ENOUGH_TO_JUDGE
        if enough and num_malformed > self.max_malformed_frac * num_read:
            raise ValueError(
                f"{num_malformed:,} of {num_read:,} records are malformed, more than "
                f"config.reading.max_malformed_frac={self.max_malformed_frac}; mend the input, or "
                "raise it"
            )


class Part(NamedTuple):
    """A file, or a range of one, in units of its format: bytes, rows or row groups."""

    file: str  # path or URL
    name: str  # what ids and origins call it: the path without what depends on where it lies
    format: str
    start: int
    stop: int | None  # None: to the end
    source: str  # of documents that name none
    is_named: bool = False  # the user gave it: it goes before what the records say


class Unit(NamedTuple):
    """A portion of the input that is read in one go; together they are all of it, in order."""

    parts: tuple[Part, ...]  # several where files are small
    num_bytes: int  # in the files, about

    @property
    def name(self) -> str:
        """For progress and messages."""
        first, last = self.parts[0].name, self.parts[-1].name
        return first if first == last else f"{first} … {last}"


class Malformed(NamedTuple):
    """A record that should have become a document and cannot."""

    file: str  # `Part.name`
    offset: int  # where it begins, in the units of the format: byte, row, element
    reason: str  # one of few: a line of the ledger
    num_bytes: int  # in the file, about
    detail: str = ""  # what exactly
    line: int | None = None  # counted from 1, where known


class Skipped(NamedTuple):
    """What is no document and no fault: an empty text, a binary file, an error page."""

    file: str
    offset: int
    reason: str
    num_bytes: int


Item = Document | Malformed | Skipped
Items = Iterator[Item]


class Fault(ValueError):
    """Why a record is malformed; `reason` is one of few, the message says what exactly."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason
