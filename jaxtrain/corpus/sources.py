"""What a run reads, and the fingerprint of it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxtrain.corpus import inputs
from jaxtrain.corpus.config import CorpusConfig, naming_settings
from jaxtrain.corpus.inputs import ReadingConfig, Unit, stdlib, storage
from jaxtrain.corpus.step import Executor, Fields

_FIELDS_OF_FORMAT = {"warc": frozenset({"mime"}), "code": frozenset({"language"})}


class InputFile(NamedTuple):
    """A file of the input."""

    path: str  # or URL
    name: str  # as ids and origins have it: without what depends on where it lies
    num_bytes: int

    def __str__(self) -> str:
        return self.path


def plan(config: CorpusConfig) -> list[Unit]:
    """The units of all inputs, the standard library's last.

    Raises:
      ValueError: for an input that is nothing, or not there.
    """
    if not config.inputs:
        raise ValueError(
            "config.inputs is empty; name what to read: --config.inputs=web=/data/*.jsonl.gz"
        )
    libraries = [re.fullmatch(rf"(?:([\w.-]+)=)?{stdlib.INPUT}", each) for each in config.inputs]
    others = [each for each, library in zip(config.inputs, libraries, strict=True) if not library]
    with naming_settings(config, "config"):
        units = inputs.plan(others, config.reading) if others else []
    return units + [stdlib.unit(library[1]) for library in libraries if library]


def fields(units: Sequence[Unit], reading: ReadingConfig) -> set[str]:
    """The metadata fields that every document of the units has when it is read."""
    formats = {part.format for unit in units for part in unit.parts}
    written = [_FIELDS_OF_FORMAT.get(each, frozenset()) for each in formats]
    return {*reading.fields, *frozenset.intersection(*written)} if written else {*reading.fields}


def check_pages_become_text(units: Sequence[Unit], steps: Iterable[Fields]) -> None:
    """Refuses pages as crawled (WARC) where no step takes the text out of their HTML.

    A step that does needs the field `mime`. WET files hold text already.
    """
    if any("mime" in step.needs for step in steps):
        return
    for part in (part for unit in units for part in unit.parts):
        if part.format == "warc" and ".wet" not in part.name.lower():
            raise ValueError(
                f"config.inputs: {part.file} holds pages as HTML, and no step of config.steps "
                "takes the text out; begin them with extract_html (configs/corpus/web.py:warc)"
            )


def input_files(units: Sequence[Unit]) -> list[InputFile]:
    """Every file of the units once, in order."""
    parts = {part.file: part for unit in units for part in unit.parts}
    return [
        InputFile(part.file, part.name, 0 if part.file == stdlib.INPUT else storage.size(part.file))
        for part in parts.values()
    ]


def fingerprints(files: Sequence[InputFile], executor: Executor) -> Iterator[str]:
    """The SHA-256 of each file's content, in order."""
    return executor.map(_sha256, files)


def _sha256(file: InputFile) -> str:
    return stdlib.sha256() if file.path == stdlib.INPUT else storage.sha256(file.path)
