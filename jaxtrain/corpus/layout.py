"""Where a run of the corpus stage keeps what: the results, and `work/` until they are there.

work/recipe.json                what the work is made from
work/models/                    what steps have learnt
work/0/, work/1/, …             a folder for each segment of the line, in it for each chunk
    00003-00001.parquet         its documents on their way (unit 3, chunk 1 of it)
    00003-00001.train.parquet   … or as they go to an output
    00003-00001.npz             what the next global step observed
    00003-00001.fates.parquet       what has become of each document so far
    00003-00001.rejected.parquet    removed ones, as far as they are kept
    00003-00001.json            its report, written last: the chunk is done
work/1/scratch/, decided.json   what the global step before segment 1 decided
"""

import pathlib
from typing import NamedTuple

WORK = "work"
CARD = "card.json"


class ChunkName(NamedTuple):
    """A chunk by its unit and its number in there; sorts in the order of documents."""

    unit: int
    number: int

    def __str__(self) -> str:
        return f"{self.unit:05d}-{self.number:05d}"


class Segment(NamedTuple):
    """The folder of a segment."""

    folder: pathlib.Path

    def documents(self, chunk: ChunkName) -> pathlib.Path:
        """Documents that go on to the next segment."""
        return self.folder / f"{chunk}.parquet"

    def output(self, chunk: ChunkName, name: str) -> pathlib.Path:
        """Documents that go to an output."""
        return self.folder / f"{chunk}.{name}.parquet"

    def observed(self, chunk: ChunkName) -> pathlib.Path:
        """What the next global step observed."""
        return self.folder / f"{chunk}.npz"

    def fates(self, chunk: ChunkName) -> pathlib.Path:
        """What has become of its documents so far."""
        return self.folder / f"{chunk}.fates.parquet"

    def rejected(self, chunk: ChunkName) -> pathlib.Path:
        """Documents that the segment removed, as far as they are kept."""
        return self.folder / f"{chunk}.rejected.parquet"

    def report(self, chunk: ChunkName) -> pathlib.Path:
        """The report, whose presence says that the chunk is done."""
        return self.folder / f"{chunk}.json"

    @property
    def scratch(self) -> pathlib.Path:
        """The verdicts of the global step that the segment begins with."""
        return self.folder / "scratch"

    @property
    def decided(self) -> pathlib.Path:
        """Its figures for the card; present when it has decided."""
        return self.folder / "decided.json"

    def done(self) -> list[ChunkName]:
        """Chunks that are done, in the order of documents."""
        names = (path.stem for path in self.folder.glob("?????*-?????*.json"))
        return sorted(ChunkName(*map(int, name.split("-"))) for name in names)


class Layout(NamedTuple):
    """Paths below a workdir."""

    workdir: pathlib.Path

    @property
    def work(self) -> pathlib.Path:
        """All that is removed when the corpus is there."""
        return self.workdir / WORK

    @property
    def recipe(self) -> pathlib.Path:
        """What the work is made from."""
        return self.work / "recipe.json"

    @property
    def models(self) -> pathlib.Path:
        """What steps have learnt."""
        return self.work / "models"

    @property
    def card(self) -> pathlib.Path:
        """The data card; present when the corpus is whole."""
        return self.workdir / CARD

    @property
    def has_results(self) -> bool:
        """Whether any work is done: a chunk, or something learnt."""
        return bool(self.segment(0).done()) or any(self.models.glob("*.done"))

    def segment(self, index: int) -> Segment:
        """The folder of segment `index`."""
        return Segment(self.work / str(index))

    @property
    def rejected(self) -> pathlib.Path:
        """Documents that were removed, with the reason."""
        return self.workdir / "rejected"

    def fates(self, index: int) -> pathlib.Path:
        """What became of the documents of chunk `index`."""
        return self.workdir / "fates" / f"{index:05d}.parquet"

    def shard(self, output: str, index: int) -> pathlib.Path:
        """A file of the result."""
        return self.workdir / output / f"{index:05d}.parquet"
