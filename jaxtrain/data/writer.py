"""Writing a token store: each process writes parts of its own, one commit makes them visible.

    with PartWriter(path, tokenization) as writer:          # in each process
        writer.add(ids, document_id="web-17", source="web.jsonl:99120", num_text_bytes=512)
    create(path, tokenization, text_sha256, writer.parts)   # in one process, at the end

Part files never change once written and store.json is replaced as a whole, so readers see the old
store or the new one. What an interrupted writer left in parts/ is in no store.json and ignored.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
import tensorstore as ts

from jaxtrain.data.answers import KINDS
from jaxtrain.data.documents import Document, check_group, file_contents, num_masked_targets
from jaxtrain.data.metadata import (
    METADATA_FILE,
    FileInfo,
    Metadata,
    Part,
    StoreError,
    Tokenization,
    token_dtype,
)
from jaxtrain.data.storage import open_directory, reason
from jaxtrain.data.store import read_metadata

#: A part is finished at the document that fills it; the writer holds one part in memory.
PART_TOKENS = 1 << 26


class PartWriter:
    """Collects documents and writes them as parts of a store; one per process."""

    def __init__(self, path: str, tokenization: Tokenization, part_tokens: int = PART_TOKENS):
        """Args:
          part_tokens: a part is finished at the document, and the group, that fills it.

        Raises:
          StoreError: where the tokenization is of an unknown kind of answers.
        """
        kind = tokenization.answers
        if kind is not None and kind not in KINDS:
            raise StoreError(f"{path}: answers={kind!r} must be one of {', '.join(KINDS)}")
        self._path = path
        self._tokenization = tokenization
        self._dtype = token_dtype(tokenization.vocab_size)
        self._part_tokens = part_tokens
        self._parts: list[Part] = []
        self._start_part()

    def _start_part(self) -> None:
        self._documents: list[Document] = []
        self._group: list[Document] = []  # the last of them, which may get more
        self._num_tokens = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The finished parts, to be committed; picklable, for sending to the committing process."""
        return tuple(self._parts)

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, error_type, error, traceback) -> None:
        if error_type is None:
            self.finish_part()

    def add(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        document_id: str,
        source: str,
        num_text_bytes: int,
        mask: np.ndarray | None = None,
        value: float | None = None,
        joins: bool = False,
        labels: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Adds one document.

        Args:
          num_text_bytes: of its text in UTF-8, without special tokens.
          mask: whether each token is trained; by default all are.
          value: what is known of an answer; see `answers.py`.
          joins: whether it belongs to the group of the document before.
          labels: of answers judged by steps: 1 at the end of each good one.
          weights: how much each token counts, instead of a mask.

        Raises:
          StoreError: names the document and what is wrong; nothing of it is kept.
        """
        document = Document(
            ids=np.asarray(ids),
            document_id=document_id,
            source=source,
            num_text_bytes=num_text_bytes,
            mask=mask,
            value=value,
            joins=joins,
            labels=labels,
            weights=weights,
        )
        document.check(self._tokenization)
        if joins and not self._group:
            raise StoreError(f"{source}: document {document_id!r} joins a group, and is the first")
        if not joins:
            self._finish_group()
            if self._num_tokens >= self._part_tokens:
                self.finish_part()
        document = document.stored(self._dtype)
        self._documents.append(document)
        self._group.append(document)
        self._num_tokens += len(document.ids)

    def _finish_group(self) -> None:
        if self._group and self._tokenization.answers is not None:
            check_group(self._tokenization.answers, self._group)
        self._group = []

    def finish_part(self) -> None:
        """Writes what was collected, if anything, as one part; the last group ends with it."""
        self._finish_group()
        if not self._documents:
            return
        contents = file_contents(self._documents)
        part = Part(
            name=secrets.token_hex(8),
            num_tokens=self._num_tokens,
            num_documents=len(self._documents),
            num_text_bytes=sum(each.num_text_bytes for each in self._documents),
            files={
                kind: FileInfo(len(content), hashlib.sha256(content).hexdigest())
                for kind, content in contents.items()
            },
            num_masked_targets=num_masked_targets(self._documents, self._tokenization.answers),
        )
        directory = open_directory(self._path)
        writes = [(kind, directory.write(part.path(kind), v)) for kind, v in contents.items()]
        for kind, write in writes:
            _finish_write(write, f"{self._path}/{part.path(kind)}")
        self._parts.append(part)
        self._start_part()


def create(
    path: str, tokenization: Tokenization, text_sha256: str, parts: Sequence[Part]
) -> Metadata:
    """Makes `parts`, in this order, the whole store at `path`, replacing what it held."""
    metadata = Metadata(tokenization, (text_sha256,), tuple(parts))
    write = open_directory(path).write(METADATA_FILE, metadata.to_json())
    _finish_write(write, f"{path}/{METADATA_FILE}")
    return metadata


def append(
    path: str, tokenization: Tokenization, text_sha256: str, parts: Sequence[Part]
) -> Metadata:
    """Adds `parts` after those that the store holds; the tokenization must be the same."""
    directory = open_directory(path)
    # The generation is taken first: whatever changes after this line makes the write fail.
    generation = directory.read(METADATA_FILE).result().stamp.generation
    old = read_metadata(path)
    if difference := _difference(old.tokenization, tokenization):
        raise StoreError(
            f"{path}/{METADATA_FILE}: cannot append: {difference}; tokenize all text again"
        )
    metadata = replace(old, text_sha256=(*old.text_sha256, text_sha256), parts=(*old.parts, *parts))
    write = directory.write(METADATA_FILE, metadata.to_json(), if_equal=generation)
    if not _finish_write(write, f"{path}/{METADATA_FILE}").generation:
        raise StoreError(
            f"{path}/{METADATA_FILE}: another process changed the store meanwhile; "
            "nothing was added: run again"
        )
    return metadata


def orphans(path: str) -> list[str]:
    """Files in parts/ that store.json does not name.

    An interrupted writer left them, or one that is at work now: only the caller can know.
    """
    named = {part.path(kind) for part in read_metadata(path).parts for kind in part.files}
    found = open_directory(path).list(ts.KvStore.KeyRange("parts/", "parts0")).result()
    return sorted(key.decode() for key in found if key.decode() not in named)


def why_stale(path: str, tokenization: Tokenization, text_sha256: Sequence[str]) -> str | None:
    """What would have to be tokenized again: None where `path` already holds just this.

    Compares contents only (of the texts, the tokenizer and the settings), never paths or dates.
    """
    try:
        old = read_metadata(path)
    except StoreError as error:
        return str(error)
    if difference := _difference(old.tokenization, tokenization):
        return difference
    if old.text_sha256 != tuple(text_sha256):
        return "the text has changed"
    return None


def _difference(old: Tokenization, new: Tokenization) -> str | None:
    if old.tokenizer_sha256 != new.tokenizer_sha256:
        return "it was made with another tokenizer"
    before, after = _flat(old), _flat(new)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            return f"it has {name}={before.get(name)!r}, not {after.get(name)!r}"
    return None


def _flat(tokenization: Tokenization) -> Mapping[str, object]:
    # Through JSON, as the stored side has been: there a tuple is a list.
    fields = json.loads(json.dumps(asdict(tokenization)))
    return {"vocab_size": fields["vocab_size"], **fields["special_ids"], **fields["settings"]}


def _finish_write(write, file: str):
    try:
        return write.result()
    except ValueError as error:
        raise StoreError(
            f"{file}: cannot be written: {reason(error)}; the store is as it was: "
            "make room or choose another place, and run again"
        ) from None
