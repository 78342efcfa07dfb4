"""Spark task that merges files: the live rows of small data files into one, or what position-delete files say.

A task writes files under new names and commits nothing, so it may run any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from mirror_pump.engine.rewrite.delete_conversion import FoundRows, OrderedFile
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.contents.dropped_rows import DroppedRows
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.columns import absent_column, cast_to
from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple, sort_keys, sorted_places
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.row_batches import BATCH_BYTES, stored_rows
from mirror_pump.lake.format.row_lineage import lineage_of, with_lineage
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import LakePartitioning, SortedColumn

_BATCH_ROWS = 64 * 1024

SORTED_BYTES = 64 << 20
"""Rows of a merge that are sorted in memory take at most this much of it, in Arrow's format."""


@dataclass(frozen=True)
class MergeTask:
    """Data files to merge into one. All of them are in one lake partition."""

    data: tuple[OrderedFile, ...]
    positions: tuple[str, ...]
    """Position-delete files that may refer to rows of data files without a deletion vector."""
    schema: LakeSchema
    """The table's schema."""
    location: str
    storage: StorageOptions
    initial: Mapping[int, pa.Array] = field(default_factory=dict)
    """By field ID, the value of rows whose file lacks the column, as an array of one value; NULL for other columns."""
    dropped: tuple[DroppedRows, ...] = ()
    """Rows removed together with their partition: those in files up to a sequence number."""
    packing: KeyPacking | None = None
    """How to pack the keys of the new file's rows, which are returned; None to return no keys."""
    batch_bytes: int = BATCH_BYTES
    """Rows are read about this many bytes at a time."""
    order: tuple[SortedColumn, ...] = ()
    """By what the new file's rows are sorted, if these do not take more than `sorted_bytes` of memory. Larger files are
    sorted by compaction."""
    sorted_bytes: int = SORTED_BYTES

    @property
    def partition(self) -> PartitionTuple:
        """The lake partition of the data files. Raises ValueError if they are in several: a file of their rows would
        be in none."""
        partitions = {file.partition for file in self.data}
        if len(partitions) != 1:
            raise ValueError(f"data files of the partitions {partitions} cannot be merged into one")
        return partitions.pop()

    @property
    def has_lineage(self) -> bool:
        """Whether the rows have IDs, which the new file keeps."""
        return all(file.first_row_id is not None for file in self.data)

    @cached_property
    def file_schema(self) -> LakeSchema:
        """The new file's columns."""
        return with_lineage(self.schema) if self.has_lineage else self.schema

    def rows_of(self, file: OrderedFile, first: int, columns: Mapping[int, pa.Array], rows: int) -> pa.Table:
        """Rows of a data file as those of the new one. `columns`: what the file has of them, by field ID. `first`: the
        number of the first row. Raises LakeError if the file lacks a required column."""
        arrays = [column_of(column, columns, rows, file.path, self) for column in self.schema.fields]
        if self.has_lineage:
            assert file.first_row_id is not None
            arrays += lineage_of(columns, first, rows, file.first_row_id, file.sequence_number)
        return pa.table(arrays, schema=self.file_schema.arrow)


@dataclass(frozen=True)
class PositionsTask:
    """Position-delete files to merge."""

    files: tuple[str, ...]
    data: frozenset[str]
    """URIs of the data files that stay. Positions in other files are left out."""
    storage: StorageOptions


def merge_files(task: MergeTask) -> MergedFile:
    """Writes one data file of all rows that neither a position delete hides nor a dropped partition took along.

    Rows stay in order, file by file, or are sorted. Memory: a row group of the new file, a batch of rows, and 20 bytes
    per row; if sorted, three times `sorted_bytes` more. Raises LakeError if a file cannot be read or lacks a required
    column.
    """
    sources = tuple(file.path for file in task.data)
    hidden = HiddenRows.read_each({file.path: file.vector for file in task.data}, task.positions, task.storage)
    names = {field.field_id: field.name for field in task.schema.fields}
    live_rows: list[Positions] = []
    keys: list[PackedKeys] = []
    with _SortingWriter(task) as writer:
        for file in task.data:
            dropped = [drop.bounds for drop in task.dropped if file.sequence_number <= drop.sequence_number]
            rows: list[Positions] = [np.zeros(0, np.int64)]
            for start, columns, live in stored_rows(
                file.path, task.file_schema, hidden.get(file.path), task.storage, _BATCH_ROWS, task.batch_bytes
            ):
                table = task.rows_of(file, start, columns, len(live))
                for bounds in dropped:
                    live &= ~bounds.holds(table.column(names[bounds.field_id]))
                if not live.any():
                    continue
                alive = table if live.all() else table.filter(pa.array(live))
                writer.write(alive)
                if task.packing is not None:
                    keys.append(task.packing.pack([alive.column(field.name) for field in task.schema.key.fields]))
                rows.append(np.flatnonzero(live) + start)
            live_rows.append(np.concatenate(rows))
    return MergedFile(
        file=writer.written,
        sequence_number=max(file.sequence_number for file in task.data),
        sources=sources,
        source=np.repeat(np.arange(len(sources), dtype=np.int32), [len(rows) for rows in live_rows]),
        position=np.concatenate(live_rows),
        keys=None if task.packing is None else PackedKeys.concatenated(keys, task.packing.words),
        row=writer.row,
        hidden=hidden,
    )


class _SortingWriter:
    """Writes rows as one data file, sorted if the table has an order and they fit into memory; a context manager.
    Without any row no file is written."""

    def __init__(self, task: MergeTask) -> None:
        self._task = task
        self._partition = task.partition
        self._sorted_by = sort_keys(LakePartitioning((), task.order), task.schema)
        self._gathered: list[pa.Table] = []
        self._bytes = 0
        self._writer: DataFileWriter | None = None
        self._stack = ExitStack()
        self.row: Positions | None = None
        """For each row in the order in which it came, its row number in the file; None: that order."""

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if error is None:
                self._write_sorted()
            else:
                self._stack.__exit__(kind, error, trace)

    def write(self, rows: pa.Table) -> None:
        """Takes rows."""
        if self._sorted_by:
            self._gathered.append(rows)
            self._bytes += rows.nbytes
            if self._bytes <= self._task.sorted_bytes:
                return
            gathered, self._gathered, self._sorted_by = self._gathered, [], []
            for earlier in gathered:
                self._put(earlier)
        else:
            self._put(rows)

    @property
    def written(self) -> WrittenFile | None:
        """The file, after the block has ended without error; None without rows."""
        return None if self._writer is None else self._writer.written

    def _write_sorted(self) -> None:
        if self._gathered:
            rows = pa.concat_tables(self._gathered)
            places = sorted_places(rows, self._sorted_by)
            self.row = np.empty(len(places), np.int64)
            self.row[places] = np.arange(len(places))
            for start in range(0, len(places), _BATCH_ROWS):
                self._put(rows.take(pa.array(places[start : start + _BATCH_ROWS])))

    def _put(self, rows: pa.Table) -> None:
        if self._writer is None:
            task = self._task
            self._writer = self._stack.enter_context(
                DataFileWriter(task.file_schema, task.location, task.storage, partition=self._partition)
            )
        self._writer.write(rows)


def merge_positions(task: PositionsTask) -> FoundRows:
    """Reads the files. Memory: 8 bytes per position. Raises LakeError."""
    return FoundRows(HiddenRows.read(task.files, task.data, task.storage))


def column_of(field: LakeField, columns: Mapping[int, pa.Array], rows: int, path: str, task: MergeTask) -> pa.Array:
    """A column of rows that were read; `initial`, its default or NULL if it was added since the file was written."""
    if field.field_id in columns:
        return columns[field.field_id]
    if field.required:
        raise LakeError(
            f"{path} has no column with field ID {field.field_id}, which is required",
            "rewrite the table's files with the engine that wrote this one, or copy the table again",
        )
    initial = task.initial.get(field.field_id)
    return absent_column(field, rows) if initial is None else cast_to(pa.repeat(initial[0], rows), field.arrow.type)
