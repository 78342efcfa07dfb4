"""Reads whole rows of a data file in batches of some megabytes, so that memory does not depend on the rows' size."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_BYTES = 16 << 20
"""Approximate size of a batch in memory: a quarter of the largest row group that our tasks write."""


def read_batches(file: pq.ParquetFile, most_rows: int, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """All rows in order, with all columns, at most `most_rows` at a time; fewer if that many would take more than
    `batch_bytes` at the average size of the row group's rows. A batch never spans two row groups."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        rows = batch_bytes * group.num_rows // max(group.total_byte_size, 1)
        yield from file.iter_batches(max(min(most_rows, rows), 1), row_groups=[number])
