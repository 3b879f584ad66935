"""How far a pass has come, read from the reports of its chunks: the same on any executor."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from jaxtrain import files
from jaxtrain.corpus.layout import ChunkName, Segment
from jaxtrain.progress import Done, show_documents

_EVERY_SECS = 1.0

Frac = Callable[[dict[int, int], set[int]], float]  # bytes done by unit, units that are done


@contextlib.contextmanager
def watch(what: str, place: Segment, frac: Frac) -> Iterator[None]:
    """Shows how far the chunks in `place` have come for as long as the block runs.

    Args:
      frac: the share of all that is done, of the bytes of text done in each unit and the set of
        units that are done.
    """
    stop = threading.Event()
    with show_documents(what) as show:
        thread = threading.Thread(target=_poll, args=(place, frac, show, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _poll(place: Segment, frac: Frac, show: Callable[[Done], None], stop: threading.Event) -> None:
    seen: set[ChunkName] = set()
    documents = num_bytes = 0
    by_unit: dict[int, int] = defaultdict(int)
    ended: set[int] = set()
    while True:
        ending = stop.is_set()
        for name in place.done():
            if name not in seen:
                seen.add(name)
                commit = files.read_json(place.report(name))
                documents += commit["documents"]
                num_bytes += commit["bytes"]
                by_unit[name.unit] += commit["bytes"]
                if commit["ends_unit"]:
                    ended.add(name.unit)
        show(Done(documents, num_bytes, frac(by_unit, ended)))
        if ending:
            return
        stop.wait(_EVERY_SECS)


def of_inputs(file_bytes: Sequence[int]) -> Frac:
    """The share of the input that is read; files may be compressed, by a ratio found on the way.

    Args:
      file_bytes: of each unit, as stored.
    """
    total = max(sum(file_bytes), 1)

    def frac(by_unit: dict[int, int], ended: set[int]) -> float:
        read = sum(file_bytes[unit] for unit in ended)
        ratio = sum(by_unit[unit] for unit in ended) / read if read else 1.0
        for unit, num_bytes in by_unit.items():
            if unit not in ended:
                read += min(int(num_bytes / (ratio or 1.0)), file_bytes[unit])
        return min(read / total, 1.0)

    return frac


def of_text(total_bytes: int) -> Frac:
    """The share of a known amount of text that is done."""
    return lambda by_unit, ended: min(sum(by_unit.values()) / max(total_bytes, 1), 1.0)
