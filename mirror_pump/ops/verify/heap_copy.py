"""Copies a table's heap as of a consistent point into a scratch Iceberg table, and brings it to the frontier."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from decoders.text import parse_rows
from mirror_pump.engine.ingest.chunk_copy import ChunkTask, copy_chunk
from mirror_pump.errors import ConnectionLost, MirrorPumpError, SourceError
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import BackdatedFile, LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.raw_text_columns import (
    every_raw_text,
    narrowed,
    raw_text_fields,
    widened,
    with_raw_text,
    without_raw_text,
)
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column, MirroredTable
from mirror_pump.ops.catch_up_changes import CatchUpTable, UnchangedValue, former_rows
from mirror_pump.ops.document_rows import has_variants
from mirror_pump.pipeline.key_index.row_hashes import RowHashes
from mirror_pump.pipeline.key_index.whole_rows import RowFinder
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.heap.block_reader import Chunk

if TYPE_CHECKING:
    # Imported for type checking only, since it loads pyspark.
    from mirror_pump.engine.spark_runtime.runner import TaskRunner


class ChangedMeanwhile(MirrorPumpError):
    """While the table was being read, it changed in a way that cannot be derived from the stream. A new attempt, from
    the start, may succeed."""


class NotReadable(MirrorPumpError):
    """The table's heap cannot be read. A new attempt would fail as well."""


def read_heap(
    table: MirroredTable,
    chunks: Sequence[Chunk],
    snapshot: str,
    runner: TaskRunner,
    dsn: str,
    storage: StorageOptions,
    location: str,
    on_chunk: Callable[[int], None] = lambda _: None,
) -> LakeTable:
    """Copy the rows that the exported database snapshot `snapshot` sees into an Iceberg table at `location`.

    `on_chunk` is called in this thread, with the number of rows of each chunk that was read. Raises ChangedMeanwhile if
    the heap or a partition was rewritten, dropped, altered or locked for too long, and NotReadable if Postgres cannot
    output a row."""
    # No read prunes the scratch table, and fewer files are read faster.
    target = replace(table, location=location, partitioning=None)
    schema = LakeSchema.of_table(table).without_defaults
    version = VECTOR_VERSION if has_variants(schema) else FORMAT_VERSION
    staged = LakeTable.create(schema, location, storage, {}, _now_ms(), format_version=version)
    futures = [runner.submit(copy_chunk, ChunkTask(dsn, target, chunk, storage, snapshot)) for chunk in chunks]
    backdated = []
    raw_text: frozenset[int] = frozenset()
    try:
        for future in futures:
            try:
                result = future.result()
            except ConnectionLost as error:
                # Also raised for a lock held too long. If the server is gone, the next attempt reports that.
                raise ChangedMeanwhile(f"its heap could not be read: {error}") from error
            if result.error is not None:
                raise NotReadable(result.error)
            if result.heap_rewritten:
                raise ChangedMeanwhile(
                    "its heap, or a partition's, was rewritten, altered or dropped while it was being read"
                )
            backdated += [BackdatedFile(file, staged.sequence_number) for file in result.files]
            raw_text |= result.raw_text_columns
            on_chunk(result.rows)
    finally:
        for future in futures:
            future.cancel()
        # Wait for running tasks: the caller is about to remove the files that they write.
        for future in futures:
            if not future.cancelled():
                future.exception()
    schema = with_raw_text(staged.table.schema, raw_text)
    return staged.table.stage(RowDelta((), backdated=tuple(backdated), schema=schema), _now_ms()).table


def with_changes(heap: LakeTable, changes: CatchUpTable, reader: PgConnection, storage: StorageOptions) -> LakeTable:
    """The scratch table with the changes applied. `reader` sees the consistent point. Raises ChangedMeanwhile if the
    heap has been truncated or rewritten since, so that `reader` no longer finds the rows of the consistent point."""
    if not changes.rows and not changes.removed and not changes.truncated:
        return heap
    table, schema = changes.table, without_raw_text(heap.schema)
    raw_text = raw_text_fields(heap.schema)
    rows = changed_rows(changes, reader)
    data: tuple[WrittenFile, ...] = ()
    deletes: tuple[WrittenFile, ...] = ()
    if rows:
        typed, file_schema = narrowed(typed_rows(rows, table.columns, schema), schema)
        raw_text |= raw_text_fields(file_schema)
        data = (write_data_file(typed, file_schema, heap.location, storage),)
    hidden = _removed(changes, heap, storage) if changes.removed else {}
    if changes.rows and not table.keyless:
        keys = typed_rows(list(changes.rows), table.key_columns, schema).select(schema.key.arrow.names)
        deletes = (write_equality_deletes(keys, schema, heap.location, storage),)
    grown = with_raw_text(schema, raw_text)
    replaces = EveryFile() if changes.truncated else None
    delta = RowDelta(
        (SegmentFiles(data, deletes),),
        replaces=replaces,
        hidden=hidden,
        schema=grown,
    )
    return heap.stage(delta, _now_ms()).table


def _removed(changes: CatchUpTable, heap: LakeTable, storage: StorageOptions) -> Mapping[str, Positions]:
    """The rows of the consistent point that went, by data file URI. Raises ChangedMeanwhile if it does not have
    them."""
    schema = without_raw_text(heap.schema)
    removed = RemovedRows(every_raw_text(schema), typed_rows(changes.removed, changes.table.columns, schema))
    search = RowFinder(storage, RowHashes()).search(changes.table, heap, emptied=changes.truncated)
    if search.find(removed).rows.num_rows:
        raise ChangedMeanwhile("rows of it that were deleted have not been read")
    return search.taken


def changed_rows(changes: CatchUpTable, reader: PgConnection) -> list[tuple[Any, ...]]:
    """The changed rows, completed by the values that the stream did not send. Raises ChangedMeanwhile if the heap of
    the consistent point is gone."""
    try:
        # In a savepoint, so that after an error the reader can read other tables.
        with source_errors(f"reading rows of {changes.table.name}"), reader.transaction():
            old_rows = former_rows(changes, reader)
        return [
            tuple(
                old_rows[cell.key][place] if isinstance(cell, UnchangedValue) else cell
                for place, cell in enumerate(row)
            )
            for row in changes.rows.values()
            if row is not None
        ]
    except ConnectionLost:
        raise
    except SourceError as error:
        raise ChangedMeanwhile(f"its rows could not be read: {error}") from error
    except KeyError as error:
        raise ChangedMeanwhile("its heap was truncated or rewritten before all of it was read") from error


def typed_rows(rows: Sequence[tuple[Any, ...]], columns: Sequence[Column], schema: LakeSchema) -> pa.Table:
    """The rows as an Arrow table with the columns, and every raw text column of the schema."""
    typed, raw = parse_rows(rows, {column.name: column.type for column in columns})
    return widened(pa.table(typed), raw, schema)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
