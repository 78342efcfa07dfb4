"""Reads whole rows of a data file some megabytes at a time: a task's memory must not depend on how large rows are."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

_BATCH_BYTES = 16 << 20
"""What a batch takes in memory, about: a quarter of the largest row group that a task of ours writes."""


def read_batches(file: pq.ParquetFile, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows in their order, all columns, at most `most_rows` at a time: fewer where a row group's rows are large by
    the average. No batch has rows of two row groups."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        rows = _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
        yield from file.iter_batches(max(min(most_rows, rows), 1), row_groups=[number])
