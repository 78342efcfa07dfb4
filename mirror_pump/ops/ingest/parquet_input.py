"""Reads Parquet files of any writer: typed columns, by row group, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.errors import TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.ingest.ingest_request import RowPlace, RowRefused
from mirror_pump.ops.ingest.input_batch import InputBatch
from mirror_pump.ops.row_files.input_files import InputFile, open_parquet_input

_BATCH_ROWS = 128 * 1024


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file."""

    file: InputFile
    index: int
    first_row: int
    """Rows of the file before it."""
    stored_bytes: int


def read_schema(file: InputFile, storage: StorageOptions) -> tuple[pa.Schema, list[RowGroup]]:
    """A file's columns and row groups. Raises TableError for what is not Parquet."""
    with open_parquet_input(file, storage) as source:
        try:
            footer = pq.ParquetFile(source)
            schema, metadata = footer.schema_arrow, footer.metadata
        except (pa.ArrowException, OSError) as error:
            raise TableError(
                f"{file.name} is not a Parquet file: {error}", "give --format, if it is something else"
            ) from error
    groups = []
    first = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        groups.append(RowGroup(file, index, first, file.size * group.num_rows // max(metadata.num_rows, 1)))
        first += group.num_rows
    return schema, groups


def read_row_group(group: RowGroup, names: Sequence[str], storage: StorageOptions) -> Iterator[InputBatch]:
    """The rows of a row group. Memory: its compressed pages and one batch. Raises RowRefused if it cannot be read."""
    row = group.first_row
    with open_parquet_input(group.file, storage) as source:
        batches = pq.ParquetFile(source).iter_batches(_BATCH_ROWS, [group.index], list(names), use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                place = RowPlace(group.file.number, row + 1, group.file.name, "row")
                raise RowRefused(place, f"the file cannot be read from this row on: {error}") from error
            if batch is None:
                return
            lines = np.arange(row + 1, row + 1 + batch.num_rows, dtype=np.int64)
            stored = group.stored_bytes if row == group.first_row else 0
            columns = {name: batch.column(name) for name in names}
            yield InputBatch(group.file, columns, lines, "row", stored_bytes=stored)
            row += batch.num_rows
