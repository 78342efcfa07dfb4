"""Reads Parquet files of any writer: typed columns, by row group, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.errors import UsageError
from mirror_pump.ops.row_files.input_files import InputFile
from mirror_pump.ops.row_files.row_batch import InputError, RowBatch, RowPlace, RowRefused

BATCH_ROWS = 128 * 1024


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file."""

    file: InputFile
    index: int
    first_row: int
    """Rows of the file before it."""
    stored_bytes: int


def open_parquet(file: InputFile, source: Any, buffer_bytes: int = 0) -> pq.ParquetFile:
    """A seekable file. `buffer_bytes`: what is read of it at a time, otherwise the column of a row group. Raises
    InputError for what is not Parquet."""
    try:
        return pq.ParquetFile(source, buffer_size=buffer_bytes, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file.name} is not a Parquet file: {error}", "give --format, if it is something else"
        ) from error


def row_groups(file: InputFile, parquet: pq.ParquetFile) -> list[RowGroup]:
    """The row groups, in their order."""
    groups, first, metadata = [], 0, parquet.metadata
    for index in range(metadata.num_row_groups):
        rows = metadata.row_group(index).num_rows
        groups.append(RowGroup(file, index, first, file.size * rows // max(metadata.num_rows, 1)))
        first += rows
    return groups


def require_columns(file: InputFile, parquet: pq.ParquetFile, names: Sequence[str]) -> None:
    """Raises UsageError if the file lacks one of the columns."""
    file_columns = parquet.schema_arrow.names
    missing = [name for name in names if name not in file_columns]
    if missing:
        raise UsageError(f"{file.name} has no column {', '.join(missing)}", f"it has {', '.join(file_columns)}")


def group_rows(
    parquet: pq.ParquetFile, group: RowGroup, names: Sequence[str], batch_rows: int = BATCH_ROWS
) -> Iterator[RowBatch]:
    """The rows of a row group. Memory: its compressed pages and one batch. Raises RowRefused if it cannot be read."""
    row = group.first_row
    batches = parquet.iter_batches(batch_rows, [group.index], list(names), use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            place = RowPlace(group.file.number, row + 1, group.file.name, "row")
            raise RowRefused(place, f"the file cannot be read from this row on: {error}", "it is damaged") from error
        if batch is None:
            return
        lines = np.arange(row + 1, row + 1 + batch.num_rows, dtype=np.int64)
        stored = group.stored_bytes if row == group.first_row else 0
        columns = {name: batch.column(name) for name in names}
        yield RowBatch(group.file, columns, lines, "row", stored_bytes=stored)
        row += batch.num_rows
