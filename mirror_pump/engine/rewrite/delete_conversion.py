"""Spark task that converts equality deletes: finds the positions of the rows that they hide.

Only key columns are read. A task writes files under new names and commits nothing, so it may run any number of times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from decoders.columns import Kind
from mirror_pump.engine.rewrite.deleted_keys import DeletedKeys, Ints, deleted_keys
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.format.columns import column_names, plain
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.deletion_vectors import (
    DeletionVector,
    VectorPlace,
    read_deleted_rows,
    read_deletion_vectors,
)
from mirror_pump.lake.format.partitioned_files import write_position_delete_files
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple, partitions_of
from mirror_pump.lake.format.position_deletes import Positions, leaf_of
from mirror_pump.lake.format.row_batches import row_batches
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, local_path

KEYS_AT_ONCE = 4_000_000
"""How many deleted keys a task holds by default: 16 bytes each for integers, some 100 for text."""

_READ_ROWS = 256 * 1024
"""Deleted keys read at a time."""

_REMOTE_FILES = 8
"""Data files read from an object store in parallel, since reading small ones is mostly waiting."""

_NUMBERS = (Kind.INT, Kind.LONG, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


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


def read_hidden_rows(
    files: Sequence[OrderedFile], positions: Sequence[str], storage: StorageOptions
) -> dict[str, Positions]:
    """The rows of data files that are deleted by position, sorted, by URI: by their vectors, and of files without one
    by the position-delete files `positions`. Raises LakeError."""
    hidden = {}
    without = {file.path for file in files if file.vector is None}
    if without and positions:
        hidden = read_deleted_rows(positions, without, storage)
    vectors = {file.path: file.vector for file in files if file.vector is not None}
    for path, vector in zip(vectors, read_deletion_vectors(list(vectors.values()), storage), strict=True):
        hidden[path] = vector.positions
    return hidden


@dataclass(frozen=True)
class ConversionTask:
    """Data files to search for deleted keys."""

    data: tuple[OrderedFile, ...]
    deletes: tuple[OrderedFile, ...]
    """Equality-delete files on the table's key. Each reaches data files with a strictly lower number."""
    positions: tuple[str, ...]
    """Position-delete files that may refer to rows of the data files. Their positions are not repeated."""
    schema: LakeSchema
    """The table's schema."""
    location: str
    storage: StorageOptions
    keys_at_once: int = KEYS_AT_ONCE
    """Deleted keys held in memory at a time, beyond those of one file."""
    as_vectors: bool = False
    """Whether the positions are for deletion vectors, which the commit writes. Otherwise the task writes files."""


@dataclass(frozen=True)
class ConversionResult:
    """Equality deletes as position deletes of the data files that they concern."""

    files: tuple[WrittenFile, ...]
    """The position deletes, a file for each lake partition. None if no row has a deleted key, or if all such rows are
    already deleted by position."""
    data: tuple[str, ...]
    """URIs of the data files that `files` refer to."""
    rows_read: int
    """Number of rows whose keys were examined."""
    positions: int
    """Number of rows that have a deleted key; if files were written, without those that position deletes hide
    already."""
    vectors: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Instead of files the positions by URI of the data file, as deletion vectors (DeletionVector.to_blob)."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """Every file that the task wrote."""
        return self.files


def convert_deletes(task: ConversionTask) -> ConversionResult:
    """Searches the data files for the deletes' keys and writes the rows found, one position-delete file for each lake
    partition.

    Memory: `keys_at_once` keys, a batch of at most 2 million rows, and 8 bytes per row found. Raises LakeError.
    """
    rows_by_path: dict[str, list[Ints]] = {}
    rows_read = 0
    for keys in _keys_in_pieces(task):
        for path, rows, read in _search_all(task, keys):
            rows_read += read
            if len(rows):
                rows_by_path.setdefault(path, []).append(rows)
    positions = {path: np.unique(np.concatenate(parts)) for path, parts in rows_by_path.items()}
    if task.as_vectors:
        vectors = {path: DeletionVector.of(rows).to_blob() for path, rows in positions.items()}
        return ConversionResult((), tuple(vectors), rows_read, sum(map(len, positions.values())), vectors)
    if positions:
        already_deleted = read_deleted_rows(task.positions, positions.keys(), task.storage)
        for path, rows in already_deleted.items():
            positions[path] = np.setdiff1d(positions[path], rows, assume_unique=True)
    named = {path: rows for path, rows in positions.items() if len(rows)}
    files = write_position_delete_files(named, partitions_of(task.data), task.location, task.storage)
    return ConversionResult(files, tuple(named), rows_read, sum(map(len, named.values())))


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


def _keys_in_pieces(task: ConversionTask) -> Iterator[DeletedKeys]:
    """The deleted keys, in portions of about `keys_at_once` at most."""
    parts: list[tuple[pa.Table, int]] = []
    waiting = 0
    for file in task.deletes:
        with open_parquet(file.path, task.storage) as parquet:
            for _, columns in _key_batches(parquet, task.schema, file.path, None):
                table = pa.table(columns, names=[str(index) for index in range(len(columns))])
                parts.append((table, file.sequence_number))
                waiting += len(columns[0])
                if waiting >= task.keys_at_once:
                    yield deleted_keys(parts)
                    parts, waiting = [], 0
    if parts:
        yield deleted_keys(parts)


def _key_batches(
    parquet: pq.ParquetFile, schema: LakeSchema, path: str, keys: DeletedKeys | None
) -> Iterator[tuple[int, list[pa.Array]]]:
    """The file's key columns in batches, each with the number of its first row. Skips row groups whose statistics rule
    out all `keys`. Raises LakeError if the file lacks a key column."""
    names = column_names(parquet, [field.field_id for field in schema.key.fields], path)
    size, groups = _READ_ROWS, None
    if keys is not None:
        place, kind = leaf_of(parquet, names[0]), schema.key.fields[0].type.kind
        chunks = [parquet.metadata.row_group(number).column(place) for number in range(parquet.num_row_groups)]
        size = keys.batch_rows
        groups = {number for number, chunk in enumerate(chunks) if _may_hold(chunk, kind, keys)}
    for first, batch in row_batches(parquet, size, sys.maxsize, columns=names, groups=groups):
        columns = zip(names, schema.key.fields, strict=True)
        yield first, [plain(batch.column(name)).cast(field.type.arrow) for name, field in columns]


def _may_hold(chunk: pq.ColumnChunkMetaData, kind: Kind, keys: DeletedKeys) -> bool:
    """Whether a row group can hold one of the keys, by the statistics of its first key column."""
    statistics = chunk.statistics
    if kind not in _NUMBERS or statistics is None or not statistics.has_min_max:
        return True
    return keys.first_between(int(statistics.min_raw), int(statistics.max_raw))
