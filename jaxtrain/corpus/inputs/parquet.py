"""Parquet: one row, one document; a range is one of row groups, an offset is a row."""

import pyarrow as pa
import pyarrow.parquet as pq

from jaxtrain.corpus.inputs import storage
from jaxtrain.corpus.inputs.reading import Items, Malformed, Part, ReadingConfig
from jaxtrain.corpus.inputs.rows import documents, rows_at_once


def ranges(file: str, max_bytes: int) -> list[tuple[int, int | None, int]]:
    """(first row group, one behind the last, bytes) of about `max_bytes` each; by the footer."""
    found: list[tuple[int, int | None, int]] = []
    with storage.open_binary(file) as stream:
        try:
            footer = pq.ParquetFile(stream).metadata
        except (pa.ArrowException, OSError):
            return [(0, None, 0)]  # `read` says what is wrong with it
        start = num_bytes = 0
        for group in range(footer.num_row_groups):
            size = footer.row_group(group).total_byte_size
            if group > start and num_bytes + size > max_bytes:
                found.append((start, group, num_bytes))
                start, num_bytes = group, 0
            num_bytes += size
        return [*found, (start, footer.num_row_groups, num_bytes)]


def read(part: Part, reading: ReadingConfig) -> Items:
    """The documents of row groups part.start … part.stop."""
    row = 0
    with storage.open_binary(part.file) as stream:
        try:
            file = pq.ParquetFile(stream)
            footer = file.metadata
            stop = footer.num_row_groups if part.stop is None else part.stop
            row = sum(footer.row_group(group).num_rows for group in range(part.start))
            groups = [footer.row_group(group) for group in range(part.start, stop)]
            sizes = [rows_at_once(g.num_rows, g.total_byte_size) for g in groups if g.num_rows]
            step = min(sizes, default=1)
            for batch in file.iter_batches(step, row_groups=range(part.start, stop)):
                yield from documents(batch, row, part, reading)
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            yield Malformed(part.name, row, "damaged file", 0, " ".join(str(error).split()))
