"""All documents of some inputs as one text: read in order, its files known by their hashes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed, ReadingConfig, Skipped, Unit, plan, read, storage
from jaxtrain.progress import show_bytes


class Collection:
    """What `inputs.plan` finds, with the hash of each file."""

    def __init__(self, given: Sequence[str], reading: ReadingConfig | None = None) -> None:
        """Args: given: `[name=]` path, glob, folder or URL, each.

        Raises:
          ValueError: names an input that matches no file, or a file whose format is not known.
        """
        self._reading = reading or ReadingConfig()
        with _hints_of_prepare():
            self._units = plan(given, self._reading)
        self._parts = {part.file: part for unit in self._units for part in unit.parts}
        #: File → SHA-256, in order.
        self.sha256 = {file: storage.sha256(file) for file in self._parts}

        #: Why → how many records were no document in the last pass, as far as it has come.
        self.num_skipped: Counter[str] = Counter()

    @property
    def recipe(self) -> list[list[str]]:
        """(source as given, hash of the content) of each file, in an order of their own."""
        return sorted(
            [part.source if part.is_named else "", self.sha256[file]]
            for file, part in self._parts.items()
        )

    def documents(self, what: str) -> Iterator[Document]:
        """All documents in order; shows on stderr how far `what` has come.

        Raises:
          ValueError: names the file and the place of a malformed record.
        """
        with show_bytes(what, sum(unit.num_bytes for unit in self._units)) as show:
            before = 0
            self.num_skipped.clear()
            for unit in self._units:
                num_read = 0
                for item in _read(unit, self._reading):
                    if not isinstance(item, Document):
                        self.num_skipped[item.reason] += 1
                    else:
                        yield item
                        num_read += len(item.text)
                        show(before + min(num_read, unit.num_bytes))
                before += unit.num_bytes
                show(before)


def _read(unit: Unit, reading: ReadingConfig) -> Iterator[Document | Malformed | Skipped]:
    with _hints_of_prepare():
        yield from read(unit, reading)


@contextmanager
def _hints_of_prepare() -> Iterator[None]:
    """Errors that name a setting of reading say whose it is: who reads a collection has none."""
    try:
        yield
    except ValueError as error:
        text = str(error).replace("config.reading.", "prepare's config.reading.")
        raise ValueError(text) from error
