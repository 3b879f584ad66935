"""From a unit of input to its documents, one at a time, each format by its own module."""

import importlib
from collections.abc import Iterator, Sequence

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs.planning import plan
from jaxtrain.corpus.inputs.reading import COUNT, Items, Malformed, Part, ReadingConfig, Unit
from jaxtrain.corpus.inputs.records import NO_TEXT


def read(unit: Unit, reading: ReadingConfig) -> Items:
    """Yields what a unit holds in order, in bounded memory.

    Every document carries metadata["origin"], the file's name and the place in it.

    Raises:
      ValueError: names the file and the place of the first malformed record, where
        `reading.malformed` says that it fails the run.
    """
    for part in unit.parts:
        # The format's module is loaded where it is used: not everyone has every library.
        module = importlib.import_module(f"jaxtrain.corpus.inputs.{part.format}")
        for item in module.read(part, reading):
            if isinstance(item, Malformed) and reading.malformed != COUNT:
                raise ValueError(_complaint(item, part))
            yield item


def read_documents(
    inputs: Sequence[str], reading: ReadingConfig | None = None
) -> Iterator[Document]:
    """Yields the documents of all inputs in order; what `Skipped` and `Malformed` say is left out.

    Raises:
      ValueError: as `plan` and `read`, and where too many records are malformed.
    """
    reading = reading or ReadingConfig()
    num_read = num_malformed = 0
    for unit in plan(inputs, reading):
        for item in read(unit, reading):
            num_read += 1
            if isinstance(item, Document):
                yield item
            elif isinstance(item, Malformed):
                num_malformed += 1
                reading.check_malformed(num_malformed, num_read)
    reading.check_malformed(num_malformed, num_read, done=True)


def _complaint(malformed: Malformed, part: Part) -> str:
    place = f"{part.file}:{malformed.line}" if malformed.line else f"{part.file}"
    offset = "" if malformed.line else f" at {malformed.offset:,}"
    other_key = "name another key in config.reading.text_field, "
    return (
        f"{place}: {malformed.detail or malformed.reason}{offset}; mend or remove it, "
        f"{other_key if malformed.reason == NO_TEXT else ''}or set config.reading.malformed={COUNT}"
    )
