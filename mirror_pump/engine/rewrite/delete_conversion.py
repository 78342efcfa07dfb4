"""Spark task that converts equality deletes: finds the positions of the rows that they hide.

Only key columns are read. A task writes nothing, so it may run any number of times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from decoders.columns import ColumnType
from mirror_pump.engine.rewrite.deleted_keys import DeletedKeys, Ints, deleted_keys
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.columns import column_names, plain
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.deletion_vectors import VectorPlace
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.position_deletes import leaf_of
from mirror_pump.lake.format.row_batches import row_batches
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, local_path

_READ_ROWS = 256 * 1024
"""Deleted keys read at a time."""

_REMOTE_FILES = 8
"""Data files read from an object store in parallel, since reading small ones is mostly waiting."""


@dataclass(frozen=True)
class OrderedFile:
    """A data file or equality-delete file with its data sequence number."""

    path: str
    sequence_number: int
    partition: PartitionTuple = UNPARTITIONED
    first_row_id: int | None = None
    """Of a data file the ID of its first row; None without row lineage."""
    vector: VectorPlace | None = None
    """Of a data file its deletion vector, which has all rows of it that are deleted by position."""

    @classmethod
    def of(cls, file: LiveFile, vector: VectorPlace | None = None) -> OrderedFile:
        """The file as a task needs it."""
        return cls(file.path, file.sequence_number, file.partition, file.first_row_id, vector)


@dataclass(frozen=True)
class ConversionTask:
    """Data files to search for deleted keys."""

    data: tuple[OrderedFile, ...]
    deletes: tuple[OrderedFile, ...]
    """Equality-delete files on the table's key. Each reaches data files with a strictly lower number."""
    positions: tuple[str, ...]
    """Position-delete files that may refer to rows of the data files, which are not repeated
    (`DeleteForm.unrepeated`)."""
    schema: LakeSchema
    """The table's schema."""
    storage: StorageOptions


@dataclass(frozen=True)
class FoundRows:
    """The rows that a task has found to be hidden."""

    hidden: HiddenRows
    rows_read: int = 0
    """Number of rows whose keys were examined."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """The task writes no file."""
        return ()


def convert_deletes(task: ConversionTask) -> FoundRows:
    """Searches the data files for the deletes' keys, but for rows that are not repeated.

    Memory: 16 bytes for each deleted key of integers, some 100 for one of text, a batch of at most 2 million rows, and
    8 bytes per row found. Raises LakeError.
    """
    parts = list(_key_parts(task))
    searched = list(_search_all(task, deleted_keys(parts))) if parts else []
    hidden = HiddenRows.of({path: rows for path, rows, _ in searched})
    if hidden and task.positions:
        hidden = hidden.without(HiddenRows.read(task.positions, hidden.keys(), task.storage))
    return FoundRows(hidden, sum(rows_read for _, _, rows_read in searched))


def _search_all(task: ConversionTask, keys: DeletedKeys) -> Iterator[tuple[str, Ints, int]]:
    search = partial(_search, keys=keys, task=task)
    if all(local_path(file.path) is not None for file in task.data):
        yield from map(search, task.data)
        return
    with ThreadPoolExecutor(_REMOTE_FILES) as pool:
        yield from pool.map(search, task.data)


def _search(file: OrderedFile, keys: DeletedKeys, task: ConversionTask) -> tuple[str, Ints, int]:
    """URI of the file, its rows with a deleted key, and the number of rows examined."""
    parts: list[Ints] = [np.zeros(0, np.int64)]
    rows_read = 0
    with open_parquet(file.path, task.storage) as parquet:
        for start, columns in _key_batches(parquet, task.schema, file.path, keys):
            rows_read += len(columns[0])
            rows, numbers = _find(keys, columns)
            # An equality delete reaches rows of a strictly lower data sequence number (Iceberg spec).
            parts.append(rows[numbers > file.sequence_number] + start)
    return file.path, np.concatenate(parts), rows_read


def _find(keys: DeletedKeys, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """DeletedKeys.find for columns that may hold NULL. No delete reaches a row with a NULL."""
    if not any(column.null_count for column in columns):
        return keys.find(columns)
    not_null = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
    valid = np.flatnonzero(not_null)
    rows, numbers = keys.find([column.take(pa.array(valid)) for column in columns])
    return valid[rows], numbers


def _key_parts(task: ConversionTask) -> Iterator[tuple[pa.Table, int]]:
    """The deleted keys, with the data sequence numbers of their files."""
    for file in task.deletes:
        with open_parquet(file.path, task.storage) as parquet:
            for _, columns in _key_batches(parquet, task.schema, file.path, None):
                yield pa.table(columns, names=[str(index) for index in range(len(columns))]), file.sequence_number


def _key_batches(
    parquet: pq.ParquetFile, schema: LakeSchema, path: str, keys: DeletedKeys | None
) -> Iterator[tuple[int, list[pa.Array]]]:
    """The file's key columns in batches, each with the number of its first row. Skips row groups whose statistics rule
    out all `keys`. Raises LakeError if the file lacks a key column."""
    names = column_names(parquet, [field.field_id for field in schema.key.fields], path)
    size, groups = _READ_ROWS, None
    if keys is not None:
        place, first_type = leaf_of(parquet, names[0]), schema.key.fields[0].type
        chunks = [parquet.metadata.row_group(number).column(place) for number in range(parquet.num_row_groups)]
        size = keys.batch_rows
        groups = {number for number, chunk in enumerate(chunks) if _may_contain(chunk, first_type, keys)}
    for first, batch in row_batches(parquet, size, sys.maxsize, columns=names, groups=groups):
        columns = zip(names, schema.key.fields, strict=True)
        yield first, [plain(batch.column(name)).cast(field.type.arrow) for name, field in columns]


def _may_contain(chunk: pq.ColumnChunkMetaData, first_type: ColumnType, keys: DeletedKeys) -> bool:
    """Whether a row group can hold one of the keys, by the statistics of its first key column."""
    statistics = chunk.statistics
    if not first_type.is_ordinal or statistics is None or not statistics.has_min_max:
        return True
    return keys.first_between(int(statistics.min_raw), int(statistics.max_raw))
