"""Which files are read, as what, and cut into which units.

The order is that of the inputs as given and of file names within each, never that of a file system.
Names are paths without what depends on where the data lies: relative to the fixed part of the
glob, with as many folders before it as keep names of different files apart.
"""

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxtrain.corpus.inputs import dataset, storage
from jaxtrain.corpus.inputs.reading import AUTO, Part, ReadingConfig, Unit

_MAX_UNIT_BYTES = 256 << 20
_MIN_UNIT_BYTES = 8 << 20
_NUM_UNITS = 64  # about so many where the input is small: enough for the workers of one machine
_ENDINGS = {
    "json_lines": (".jsonl", ".ndjson", ".jsonlines"),
    "json_array": (".json",),
    "parquet": (".parquet",),
    "text": (".txt", ".text", ".md", ".markdown"),
    "warc": (".warc", ".wet"),
}
_CORPUS_MARK = "card.json"


class _File(NamedTuple):
    path: str
    top: str  # the folder that its name is relative to
    format: str
    source: str
    is_named: bool


def plan(
    inputs: Sequence[str], reading: ReadingConfig, unit_bytes: int | None = None
) -> list[Unit]:
    """Finds the files of `inputs` and cuts them into units; reads no more than their ends.

    Args:
      inputs: each a path, glob or URL, `name=` before it where its documents get that source. A
        folder is one that `datasets` saved, a corpus that `prepare` wrote, or a source tree.
      unit_bytes: how large a unit is, about; by default so that there are enough to share out.

    Raises:
      ValueError: names an input that matches no file, or a file whose format is not known.
    """
    if not inputs:
        raise ValueError("inputs is empty; give at least one path, glob or URL")
    found = [file for each in inputs for file in _files(each, reading)]
    repeated = [path for path, count in Counter(file.path for file in found).items() if count > 1]
    if repeated:
        raise ValueError(f"inputs match {repeated[0]} more than once; each file is read once")
    sizes = [storage.size(file.path) for file in found]
    if unit_bytes is None:
        unit_bytes = min(max(sum(sizes) // _NUM_UNITS, _MIN_UNIT_BYTES), _MAX_UNIT_BYTES)
    pieces: list[tuple[Part, int]] = []
    for file, name, num_bytes in zip(found, _names(found), sizes, strict=True):
        whole = Part(file.path, name, file.format, 0, None, file.source, file.is_named)
        pieces += _cut(whole, num_bytes, unit_bytes)
    return list(_gather(pieces, unit_bytes))


def check(setting: str, inputs: Sequence[str], reading: ReadingConfig) -> None:
    """Refuses what `plan` would refuse, under the name of the setting that holds the inputs."""
    try:
        plan(inputs, reading)
    except ValueError as error:
        raise ValueError(re.sub(r"^inputs\b", setting, str(error))) from error


def _files(given: str, reading: ReadingConfig) -> list[_File]:
    match = re.fullmatch(r"(?:([\w.-]+)=)?(.+)", given, re.DOTALL)
    if not match:
        raise ValueError(f"inputs holds {given!r}; give [name=]path, glob or URL")
    try:
        name, pattern = match[1], storage.normal(match[2])
    except ValueError as error:  # a scheme that nothing here can open
        raise ValueError(f"inputs: {error}") from error
    if storage.is_directory(pattern):
        top, found = pattern, _in_directory(pattern, reading)
    else:
        top, paths = _fixed_folder(pattern), storage.matching(pattern)
        found = [(path, _format(path, reading.format)) for path in paths]
    if not found:
        raise ValueError(f"inputs: {pattern} matches no file; correct the path or glob")
    is_one_file = found[0][0] == pattern
    source = name or _stem(pattern if is_one_file else top)
    return [_File(path, top, kind, source, name is not None) for path, kind in found]


def _in_directory(directory: str, reading: ReadingConfig) -> list[tuple[str, str]]:
    """The files of a folder that are read, each with its format."""
    if reading.format in (AUTO, "dataset") and (paths := dataset.data_files(directory)):
        return [(path, "dataset") for path in paths]
    is_corpus = storage.exists(f"{directory}/{_CORPUS_MARK}")
    if is_corpus and (paths := storage.matching(f"{directory}/train/*.parquet")):
        return [(path, "parquet") for path in paths]
    if reading.format not in (AUTO, "code"):
        raise ValueError(f"inputs: {directory} is a folder; give a glob such as {directory}/**/*")
    paths = storage.below(directory, reading.exclude)
    data = [path for path in paths if _known(path) not in (None, "text", "json_array")]
    if data and reading.format == AUTO:
        raise ValueError(
            f"inputs: {directory} is a folder with data such as {data[0]}; give a glob, or "
            "config.reading.format=code where it is a source tree all the same"
        )
    return [(path, "code") for path in paths]


def _known(path: str) -> str | None:
    bare = path.lower().removesuffix(".gz").removesuffix(".zst")
    for name, endings in _ENDINGS.items():
        if bare.endswith(endings):
            return name
    return None


def _format(path: str, configured: str) -> str:
    kind = _known(path) if configured == AUTO else configured
    if kind is None:
        endings = ", ".join(ending for each in _ENDINGS.values() for ending in each)
        raise ValueError(
            f"inputs: {path} has none of the endings {endings} (.gz, .zst behind them); leave it "
            "out, or set config.reading.format"
        )
    if kind == "json_array" and configured == AUTO:
        first = next(storage.blocks(path), b"").removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        return "json_array" if first == b"[" else "json_lines"
    return kind


def _stem(path: str) -> str:
    """The last part of a path without its endings."""
    last = path.rstrip("/").rpartition("/")[2]
    return last.lstrip(".").split(".")[0] or "input"


def _fixed_folder(pattern: str) -> str:
    """The folder before the first part of a path that holds a wildcard, or that is the file."""
    if storage.exists(pattern):
        return pattern.rpartition("/")[0]
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return fixed.rpartition("/")[0]


def _names(found: Sequence[_File]) -> list[str]:
    tops = {file.top: file.top for file in found}
    while True:
        names = [file.path.removeprefix(tops[file.top]).lstrip("/") for file in found]
        counts = Counter(names)
        clashing = {file.top for file, name in zip(found, names, strict=True) if counts[name] > 1}
        if not clashing:
            return names
        for top in clashing:
            tops[top] = tops[top].rpartition("/")[0]


def _cut(whole: Part, num_bytes: int, unit_bytes: int) -> Iterator[tuple[Part, int]]:
    """A file as ranges of about `unit_bytes`, each with its size."""
    if whole.format == "json_lines" and not whole.file.endswith(storage.COMPRESSED):
        ranges = [
            (start, min(start + unit_bytes, num_bytes), min(unit_bytes, num_bytes - start))
            for start in range(0, max(num_bytes, 1), unit_bytes)
        ]
    elif whole.format == "parquet":
        module = importlib.import_module("jaxtrain.corpus.inputs.parquet")
        ranges = module.ranges(whole.file, unit_bytes)
    else:
        ranges = [(0, None, num_bytes)]
    for start, stop, size in ranges:
        yield whole._replace(start=start, stop=stop), size


def _gather(pieces: Sequence[tuple[Part, int]], unit_bytes: int) -> Iterator[Unit]:
    """Small neighbours together, as far as they are within `unit_bytes`."""
    held: list[Part] = []
    num_held = 0
    for part, num_bytes in pieces:
        if held and num_held + num_bytes > unit_bytes:
            yield Unit(tuple(held), num_held)
            held, num_held = [], 0
        held.append(part)
        num_held += num_bytes
    if held:
        yield Unit(tuple(held), num_held)
