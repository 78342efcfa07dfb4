"""What runs inside a Spark task that merges files: live rows of small data files into one, position deletes into one.

A task writes files under fresh names and commits nothing, so it may run any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.engine.delete_conversion import OrderedFile
from mirror_pump.engine.row_batches import read_batches
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.contents.dropped_rows import DroppedRows
from mirror_pump.lake.format.columns import places_by_id, plain
from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.position_deletes import Positions, read_position_deletes, write_position_deletes
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StagedFiles, StorageOptions, open_input

_BATCH_ROWS = 64 * 1024

OWN_POSITIONS = 4096
"""Deleted rows of a data file from which on a merge gives it a position-delete file of its own: pyiceberg goes through
a whole position-delete file for each data file that it names. With fewer, the file itself would cost more."""


@dataclass(frozen=True)
class MergeTask:
    """Data files to make one of."""

    data: tuple[OrderedFile, ...]
    positions: tuple[str, ...]
    """Position-delete files that may name rows of them."""
    schema: LakeSchema
    """The table's."""
    location: str
    storage: StorageOptions
    initial: Mapping[int, pa.Array] = field(default_factory=dict)
    """By field ID, what rows have in a column that their file lacks, as an array of one value; NULL in others."""
    dropped: tuple[DroppedRows, ...] = ()
    """Rows that go with their partition: those in files of up to a sequence number."""
    packing: KeyPacking | None = None
    """How to hand the keys of the new file's rows over; None: nobody asks."""


@dataclass(frozen=True)
class PositionsTask:
    """Position-delete files to make one of, and one for each data file of which many rows are deleted."""

    files: tuple[str, ...]
    data: frozenset[str]
    """URIs of the data files that stay: what is said of others is left out."""
    location: str
    storage: StorageOptions


@dataclass(frozen=True)
class MergedPositions:
    files: tuple[WrittenFile, ...]
    """Empty when nothing is left."""
    data: tuple[str, ...]
    """URIs of the data files that they name."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """Every file that the task wrote."""
        return self.files


def merge_files(task: MergeTask) -> MergedFile:
    """Writes one data file of the rows that no position delete hides, and that were not dropped, file by file, in their
    order.

    Memory: a row group of the new file, a batch of rows, and 20 bytes for each row. Raises LakeError if a file cannot
    be read, or lacks a required column.
    """
    sources = tuple(file.path for file in task.data)
    hidden = read_position_deletes(task.positions, set(sources), task.storage)
    names = {field.field_id: field.name for field in task.schema.fields}
    kept: list[Positions] = []
    keys: list[PackedKeys] = []
    with ExitStack() as stack:
        writer: DataFileWriter | None = None
        for number, path in enumerate(sources):
            sequence_number = task.data[number].sequence_number
            dropped = [one.bounds for one in task.dropped if sequence_number <= one.sequence_number]
            rows: list[Positions] = [np.zeros(0, np.int64)]
            gone = hidden.get(path, rows[0])
            for start, table in _tables(path, task):
                first, end = np.searchsorted(gone, [start, start + table.num_rows])
                live = np.ones(table.num_rows, np.bool_)
                live[gone[first:end] - start] = False
                for bounds in dropped:
                    live &= ~bounds.holds(table.column(names[bounds.field_id]))
                if not live.any():
                    continue
                if writer is None:
                    # Of nothing but dead rows no file is written.
                    writer = stack.enter_context(DataFileWriter(task.schema, task.location, task.storage))
                alive = table if live.all() else table.filter(pa.array(live))
                writer.write(alive)
                if task.packing is not None:
                    keys.append(task.packing.pack([alive.column(field.name) for field in task.schema.key.fields]))
                rows.append(np.flatnonzero(live) + start)
            kept.append(np.concatenate(rows))
    return MergedFile(
        file=None if writer is None else writer.written,
        sequence_number=max(file.sequence_number for file in task.data),
        sources=sources,
        source=np.repeat(np.arange(len(sources), dtype=np.int32), [len(rows) for rows in kept]),
        position=np.concatenate(kept),
        keys=None if task.packing is None else PackedKeys.concatenated(keys, task.packing.words),
    )


def merge_positions(task: PositionsTask) -> MergedPositions:
    """Writes a position-delete file for each data file of which `OWN_POSITIONS` rows are named, and one for all others.
    Memory: 8 bytes for each position. Raises LakeError."""
    positions = read_position_deletes(task.files, task.data, task.storage)
    own = [{path: rows} for path, rows in positions.items() if len(rows) >= OWN_POSITIONS]
    shared = {path: rows for path, rows in positions.items() if len(rows) < OWN_POSITIONS}
    files: list[WrittenFile] = []
    with StagedFiles(task.storage) as written:
        for named in (*own, shared):
            if named:
                files.append(write_position_deletes(named, task.location, task.storage))
                written.own(files[-1].path)
    return MergedPositions(tuple(files), tuple(positions))


def _tables(path: str, task: MergeTask) -> Iterator[tuple[int, pa.Table]]:
    """The file's rows in the table's schema, batch by batch, each with the number of its first row."""
    start = 0
    with open_input(path, task.storage) as source:
        parquet = pq.ParquetFile(source)
        places = places_by_id(parquet)
        for batch in read_batches(parquet, _BATCH_ROWS):
            columns = [
                _column(batch, places.get(field.field_id), field, path, task.initial.get(field.field_id))
                for field in task.schema.fields
            ]
            yield start, pa.table(columns, schema=task.schema.arrow)
            start += batch.num_rows


def _column(
    batch: pa.RecordBatch, place: int | None, field: LakeField, path: str, initial: pa.Array | None
) -> pa.Array:
    """The column as the table has it now: widened since, or added, when it is NULL in older files, or `initial`."""
    wanted = field.arrow.type
    if place is None:
        if field.required:
            raise LakeError(
                f"{path} has no column of field ID {field.field_id}, which is required",
                "rewrite the table's files with the engine that wrote this one, or copy the table again",
            )
        return (
            pa.nulls(batch.num_rows, wanted)
            if initial is None
            else cast_to(pa.repeat(initial[0], batch.num_rows), wanted)
        )
    return cast_to(batch.column(place), wanted)


def cast_to(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    column = plain(column)
    if column.type == wanted:
        return column
    if pa.types.is_list(wanted) and pa.types.is_list(column.type):
        # Concatenating one array makes its offsets begin at zero, and its values those that it uses.
        whole = pa.concat_arrays([column])
        values = cast_to(whole.values, wanted.value_type)
        return pa.ListArray.from_arrays(whole.offsets, values, type=wanted, mask=whole.is_null())
    return column.cast(wanted)
