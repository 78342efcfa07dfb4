"""Reads rows of a data file in batches of some megabytes, so that memory does not depend on the rows' size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.lake.format.columns import cast_to, places_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions

BATCH_BYTES = 16 << 20
"""Approximate size of a batch in memory: a quarter of the largest row group that our tasks write."""


def stored_rows(
    path: str,
    schema: LakeSchema,
    deleted: Positions | None,
    storage: StorageOptions,
    most_rows: int,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[int, dict[int, pa.Array], npt.NDArray[np.bool_]]]:
    """All rows of a file, in batches: the number of the first row; the columns that the file has, by field ID and in
    the types of the schema; and a mask of the rows that are not at the `deleted` positions. Raises LakeError."""
    with open_parquet(path, storage) as parquet:
        places = places_by_id(parquet)
        types = {field.field_id: field.arrow.type for field in schema.fields if field.field_id in places}
        for first, batch in row_batches(parquet, most_rows, batch_bytes):
            columns = {field_id: cast_to(batch.column(places[field_id]), kind) for field_id, kind in types.items()}
            yield first, columns, live_rows(deleted, first, batch.num_rows)


def live_rows(deleted: Positions | None, first: int, rows: int) -> npt.NDArray[np.bool_]:
    """A mask of the rows, from number `first` on, that are not at the deleted positions, which are in order."""
    live = np.ones(rows, np.bool_)
    if deleted is not None:
        begin, end = np.searchsorted(deleted, [first, first + rows])
        live[deleted[begin:end] - first] = False
    return live


def row_batches(
    file: pq.ParquetFile,
    most_rows: int,
    batch_bytes: int = BATCH_BYTES,
    *,
    columns: Sequence[str] | None = None,
    groups: Collection[int] | None = None,
    use_threads: bool = False,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows in order, each batch with the number of its first one: all columns and row groups, or these.

    A batch has at most `most_rows`; fewer if that many would take more than `batch_bytes` at the average size of the
    row group's rows. It never spans two row groups. Without `use_threads` the calling thread alone reads: a task is for
    one core.
    """
    first = 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        end = first + group.num_rows
        if groups is None or number in groups:
            rows = max(min(most_rows, batch_bytes * group.num_rows // max(group.total_byte_size, 1)), 1)
            for batch in file.iter_batches(rows, row_groups=[number], columns=columns, use_threads=use_threads):
                yield first, batch
                first += batch.num_rows
        first = end
