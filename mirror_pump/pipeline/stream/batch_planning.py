"""Plans the publish of a decoded batch: order, truncations, completed rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from decoders.incomplete_rows import IncompleteRows
from mirror_pump.engine.ingest.segment_tasks import TableResult, keys_by_file
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import FileDamaged, FileMissing, ForeignTable, TableError, about
from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.format.initial_defaults import initial_scalar
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields
from mirror_pump.lake.format.row_lineage import has_lineage
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.unwritten_files import NONE_UNWRITTEN, UnwrittenFiles, encoded_data_files
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard
from mirror_pump.model import Column, Lsn, MirroredTable, SequenceNumber, TableId, TableState
from mirror_pump.pipeline.feeds.feed_planning import FeedPart, plan_feed
from mirror_pump.pipeline.flow.batches import BatchEnd, DecodedBatch
from mirror_pump.pipeline.missing_files.damaged_files import damage_failure
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles
from mirror_pump.pipeline.operations.append_changes import AppendChanges
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.combinations import TableOperation, schema_operation
from mirror_pump.pipeline.operations.copy_again import CopyAgain
from mirror_pump.pipeline.operations.operation import SegmentChange
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.operations.truncate import Truncate
from mirror_pump.pipeline.stream.toast_completion import Completer
from mirror_pump.pipeline.stream.toast_lookup import Completed, VersionedFile
from mirror_pump.runtime.spill import Spill
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection


class BatchPlanner:
    """Makes a decoded batch the request of a publish. `lake_table` loads a table's current state, to look up missing
    values."""

    def __init__(
        self,
        runner: TaskRunner,
        storage: StorageOptions,
        connect: Callable[[], PgConnection],
        lake_table: Callable[[MirroredTable], LakeTable],
        missing: MissingFiles,
        part_bytes: int,
    ) -> None:
        """`part_bytes`: rows with missing values are completed about this many bytes at a time."""
        self._storage = storage
        self._connect = connect
        self._completer = Completer(runner, storage, connect, part_bytes)
        self._lake_table = lake_table
        self._missing = missing
        self._written: list[str] = []
        """URIs of the files with completed rows of the current batch."""
        self._part_bytes = part_bytes
        self._spill = Spill(part_bytes)
        """Has files of completed rows that are not written yet."""
        self._frontier = Lsn(0)
        """The frontier when the current batch began, as far as known."""

    def plan(self, batch: DecodedBatch) -> PublishRequest:
        """What a publish does with the batch. Raises LakeError if the storage fails. Leaves no file of its own behind
        after an error."""
        self._written, self._spill = [], Spill(self._part_bytes)
        try:
            planned = self._plan(batch)
        except BaseException:
            discard(self._written, self._storage)
            raise
        # The next batch comes after this one is published.
        self._frontier = batch.end.end_lsn
        return planned

    def _plan(self, batch: DecodedBatch) -> PublishRequest:
        end, tables = batch.end, batch.tables
        # If a table was registered again within the batch, results of the earlier registration do not count.
        final_tables = _final_tables(end, tables)
        failures = {
            failure.table.table_id: failure
            for failure in end.failures
            if failure.table.start_lsn == final_tables.get(failure.table.table_id, failure.table).start_lsn
        }
        by_table: dict[TableId, dict[int, TableResult]] = {}
        for number, (segment, result) in enumerate(zip(tables, batch.results, strict=True)):
            counted = {table.table_id for table in segment if table.start_lsn == final_tables[table.table_id].start_lsn}
            for table_result in result.tables:
                if table_result.table_id not in counted:
                    continue
                by_table.setdefault(table_result.table_id, {})[number] = table_result
                if table_result.table_id in failures:
                    continue
                table = final_tables[table_result.table_id]
                if table_result.error is not None:
                    failures[table_result.table_id] = Failure(table, about(str(table.name), table_result.error))
                elif table_result.missing is not None:
                    missing = FileMissing(f"{table_result.missing} could not be written", "", table_result.missing)
                    failures[table_result.table_id] = self._missing.failure(table, missing)
        truncated = {
            truncation.table_id: truncation.before
            for truncation in end.truncations
            if truncation.table.start_lsn == final_tables[truncation.table_id].start_lsn
        }
        changes = _changes(end, final_tables)
        table_requests = []
        for table_id in sorted(by_table.keys() | truncated.keys() | changes.keys()):
            if table_id in failures:
                continue
            table, by_segment = final_tables[table_id], by_table.get(table_id, {})
            try:
                with work_for(table):
                    table_request = self._planned_table(
                        table, by_segment, batch, truncated.get(table_id), changes.get(table_id)
                    )
            except TableError as error:
                failures[table_id] = Failure.of(final_tables[table_id], error)
            except FileMissing as error:
                failures[table_id] = self._missing.failure(final_tables[table_id], error)
            except FileDamaged as error:
                failures[table_id] = damage_failure(final_tables[table_id], error)
            else:
                table_requests.append(table_request)
        return PublishRequest(
            frontier=end.end_lsn,
            commit_time_us=end.commit_time_us,
            tables=tuple(table_requests),
            failures=tuple(_as_published(failure, changes) for failure in failures.values()),
            written_since=batch.written_since,
        )

    def _planned_table(
        self,
        table: MirroredTable,
        by_segment: Mapping[int, TableResult],
        batch: DecodedBatch,
        truncated_before: int | None,
        change: TableChange | None,
    ) -> TableRequest:
        """What a batch does to one table and to its change feed. Arguments and errors as those of `_table_request`."""
        results = {number: _under(result, batch.tables[number], table) for number, result in by_segment.items()}
        if any(result.looks_rows_up for result in results.values()):
            results = {number: self._with_files(result) for number, result in results.items()}
        table_request = self._table_request(table, results, truncated_before, change, batch.end.xids)
        feed = self._feed_changes(table_request, results, batch)
        return table_request if feed is None else table_request.adding(feed)

    def _table_request(
        self,
        table: MirroredTable,
        results: Mapping[int, TableResult],
        truncated_before: int | None,
        change: TableChange | None,
        xids: Sequence[int],
    ) -> TableRequest:
        """What a batch does to one table. `results` are by segment; those before `truncated_before` do not count.
        `xids`: the batch's transactions. Raises TableError, FileMissing and FileDamaged, of this table only."""
        counted = {number: result for number, result in results.items() if number >= (truncated_before or 0)}
        emptied = truncated_before is not None or (change is not None and change.copy_again)
        changes = {
            number: SegmentChange(result.files, result.keys, result.deleted_rows, result.unwritten)
            for number, result in counted.items()
        }
        raw_text_columns: frozenset[int] = frozenset().union(*(result.raw_text_columns for result in counted.values()))
        heap_read_at: Lsn | None = None
        incomplete = {number: result.incomplete for number, result in counted.items() if result.incomplete is not None}
        if incomplete:
            files = {number: change.files for number, change in changes.items()}
            versions = self._versions(table, files, in_lake=not emptied)

            def take(completed: Completed) -> None:
                nonlocal heap_read_at, raw_text_columns
                heap_read_at = max(heap_read_at or Lsn(0), completed.heap_read_at or Lsn(0)) or None
                for number, rows in completed.rows.items():
                    changes[number], more = self._with_rows(table, changes[number], rows)
                    raw_text_columns |= more

            self._completer.complete(table, incomplete, versions, xids, self._frontier, take)
        segments = tuple(changes[number] for number in sorted(changes) if not changes[number].empty)
        operations: list[TableOperation] = [ApplyStream(segments, raw_text_columns, heap_read_at)]
        if truncated_before is not None:
            operations.append(Truncate())
        if change is not None:
            dropped = [
                (sum(number < before and not segment.empty for number, segment in changes.items()), bounds)
                for before, bounds in change.dropped
            ]
            operations.append(schema_operation(change, dropped))
        return TableRequest(table, tuple(operations))

    def _feed_changes(
        self, request: TableRequest, results: Mapping[int, TableResult], batch: DecodedBatch
    ) -> AppendChanges | None:
        """What the batch brings to the table's change feed; None if it has none that is live. `results` are by segment,
        those before a TRUNCATE too. Raises as `_table_request`."""
        table = request.table
        if table.feed is None or table.state is not TableState.LIVE or request.get(CopyAgain) is not None:
            return None
        truncations = [
            truncation
            for truncation in batch.end.truncations
            if truncation.table_id == table.table_id and truncation.table.start_lsn == table.start_lsn
        ]
        parts = {
            number: FeedPart(result.feed, _feed_rows(result), batch.results[number].transactions)
            for number, result in results.items()
        }
        if not parts and not truncations:
            return None
        versions: list[VersionedFile] = []
        scratch: list[str] = []

        def complete(number: int, rows: IncompleteRows, take: Callable[[pa.Table], None]) -> None:
            if not versions:
                versions.extend(self._feed_versions(table, results, batch.end.xids, scratch))
            self._completer.complete(
                table,
                {number: rows},
                versions,
                batch.end.xids,
                self._frontier,
                lambda completed: take(completed.rows[number]),
            )

        try:
            with StagedFiles(self._storage) as written:
                changes = plan_feed(table, parts, truncations, complete, self._storage, written)
                self._written.extend(written.locations)
                return changes
        except FileMissing as error:
            if not error.location.startswith(f"{table.feed.location}/"):
                raise
            # The feed gets a reset once it is there again.
            return AppendChanges(is_whole=False)
        finally:
            discard(scratch, self._storage)

    def _feed_versions(
        self, table: MirroredTable, results: Mapping[int, TableResult], xids: Sequence[int], scratch: list[str]
    ) -> list[VersionedFile]:
        """The files that may hold previous versions of rows of the feed: those of all segments, with completed rows,
        and those of the lake, although a TRUNCATE may follow. `scratch` gets those that no publish names."""
        files = {number: result.files for number, result in results.items()}
        versions = self._versions(table, files, in_lake=True)
        last = max(number for number, result in results.items() if _feed_rows(result) is not None)
        incomplete = {
            number: result.incomplete
            for number, result in results.items()
            if result.incomplete is not None and number < last
        }
        if incomplete:

            def take(completed: Completed) -> None:
                for number, rows in completed.rows.items():
                    narrow, schema = narrowed(rows, LakeSchema.of_table(table))
                    written = write_data_files(narrow, schema, table.location, self._storage, table.partitioning)
                    scratch.extend(file.path for file in written)
                    versions.extend(VersionedFile(file.path, number) for file in written)

            self._completer.complete(table, incomplete, list(versions), xids, self._frontier, take)
        return versions

    def _versions(self, table: MirroredTable, files: Mapping[int, SegmentFiles], in_lake: bool) -> list[VersionedFile]:
        """The files that may hold rows' previous versions.

        While the table is being copied, a row may have no version in the lake. Then the equality delete files are
        included as well: they show which versions belong to another row.
        """
        deletes_count = not table.state.has_all_rows
        versions = [VersionedFile(file.path, number) for number, segment in files.items() for file in segment.data]
        if deletes_count:
            versions += [
                VersionedFile(file.path, number, deletes=True)
                for number, segment in files.items()
                for file in segment.deletes
            ]
        if in_lake:
            try:
                lake = self._lake_table(table)
            except ForeignTable as error:
                raise TableError(about(str(table.name), str(error)), error.remedy) from error
            older = [(file, False) for file in lake.live_data_files()]
            if deletes_count:
                older += [(file, True) for file in lake.live_equality_deletes()]
            if table.where_different and deletes_count:
                # What the table had before its copy began may be older than the stream says: its rows differ perhaps.
                first = self._start_number(table)
                older = [(file, is_delete) for file, is_delete in older if file.sequence_number >= first]
            # Files in the lake get orders below those of all segments, in the order of their data sequence numbers.
            sequences = sorted({file.sequence_number for file, _ in older}, reverse=True)
            ranks = {sequence: rank for rank, sequence in enumerate(sequences)}
            versions += [VersionedFile(file.path, -2 - ranks[file.sequence_number], deletes) for file, deletes in older]
        return versions

    def _start_number(self, table: MirroredTable) -> SequenceNumber:
        """The data sequence number of the copy that is under way. Raises SourceError."""
        with closing(self._connect()) as connection:
            current = load_table(connection, table.table_id)
        if current is None:
            raise TableError(f"{table.name} is not registered any more")
        return current.data_sequence_number

    def _with_files(self, result: TableResult) -> TableResult:
        """The result with all of its files written, since rows are looked up in them."""
        result.unwritten.write(self._storage)
        return replace(result, unwritten=NONE_UNWRITTEN)

    def _with_rows(
        self, table: MirroredTable, change: SegmentChange, rows: pa.Table
    ) -> tuple[SegmentChange, frozenset[int]]:
        """Add completed rows, which have every raw text column, to a segment's change. Also returns the field IDs of
        the columns whose raw text columns are still needed."""
        if not rows.num_rows:
            return change, frozenset()
        rows, schema = narrowed(rows, LakeSchema.of_table(table))
        keys, unwritten = change.keys, change.unwritten
        # Such rows replace others. So their files are written with the IDs of these, if a key index may tell them.
        if keys is not None and has_lineage(table.format_version):
            data, encoded = encoded_data_files(rows, schema, table.location, table.partitioning)
            unwritten = UnwrittenFiles.joined([unwritten, self._spill.stored(encoded, encoded.nbytes)])
        else:
            data = write_data_files(rows, schema, table.location, self._storage, table.partitioning)
            self._written.extend(file.path for file in data)
        if keys is not None:
            # The segment may have been packed for other columns. In that case no key index uses its keys.
            packing = KeyPacking.of(schema, keys.packing.secret) or keys.packing
            packed = keys_by_file(rows, schema, packing, table.partitioning)
            keys = replace(keys, rows=(*keys.rows, *packed))
        files = replace(change.files, data=(*change.files.data, *data))
        return replace(change, files=files, keys=keys, unwritten=unwritten), raw_text_fields(schema)


def _final_tables(end: BatchEnd, tables: Sequence[Sequence[MirroredTable]]) -> dict[TableId, MirroredTable]:
    """Each table as it is when the batch ends: the final state of its last registration."""
    final_tables: dict[TableId, MirroredTable] = {}
    changed = list(end.changed_tables)
    for number in range(len(tables) + 1):
        while changed and changed[0].before <= number:
            table = changed.pop(0).table
            final_tables[table.table_id] = table
        if number < len(tables):
            final_tables |= {table.table_id: table for table in tables[number]}
    for truncation in end.truncations:
        final_tables.setdefault(truncation.table_id, truncation.table)
    return final_tables


def _changes(end: BatchEnd, final_tables: Mapping[TableId, MirroredTable]) -> dict[TableId, TableChange]:
    """Combine the changes of each table, from its published registration to its state when the batch ends."""
    changes: dict[TableId, TableChange] = {}
    for change in end.changed_tables:
        table_id = change.table.table_id
        first = changes.get(table_id)
        connected = first is not None and first.table.start_lsn == change.former_lsn
        former_lsn = first.former_lsn if first is not None and connected else change.former_lsn
        reasons = [first.reason, change.reason] if first is not None and connected else [change.reason]
        reason = ", ".join(dict.fromkeys(reason for reason in reasons if reason))
        fills = change.fills or (first is not None and connected and first.fills)
        dropped = (*(first.dropped if first is not None and connected else ()), *change.dropped)
        remedy = change.remedy or (first.remedy if first is not None and connected else "")
        changes[table_id] = replace(
            change, former_lsn=former_lsn, reason=reason, remedy=remedy, fills=fills, dropped=dropped
        )
    return {
        table_id: replace(change, table=final_tables[table_id])
        for table_id, change in changes.items()
        if change.table.start_lsn == final_tables[table_id].start_lsn
    }


def _as_published(failure: Failure, changes: Mapping[TableId, TableChange]) -> Failure:
    """Apply the failure to the registration in the catalog, because the batch's schema change is not published."""
    change = changes.get(failure.table.table_id)
    if change is None:
        return failure
    return replace(failure, table=replace(failure.table, start_lsn=change.former_lsn))


def _under(result: TableResult, segment: Sequence[MirroredTable], table: MirroredTable) -> TableResult:
    """A segment's result with its incomplete rows projected onto the table's columns at the end of the batch."""
    old_table = next(candidate for candidate in segment if candidate.table_id == table.table_id)
    if old_table.columns == table.columns:
        return result
    if result.incomplete is not None:
        result = replace(result, incomplete=project_rows(result.incomplete, old_table, table))
    if result.feed is not None and result.feed.incomplete is not None:
        feed = replace(result.feed, incomplete=project_rows(result.feed.incomplete, old_table, table))
        result = replace(result, feed=feed)
    return result


def _feed_rows(result: TableResult) -> IncompleteRows | None:
    return None if result.feed is None else result.feed.incomplete


def project_rows(rows: IncompleteRows, old_table: MirroredTable, table: MirroredTable) -> IncompleteRows:
    """Project `rows`, which have the columns of `old_table`, onto the columns of `table`.

    Columns are renamed, dropped and widened. New columns hold NULL or the value that existing rows have in them. Only
    rows that are not written yet need this: readers find columns in files by field ID, or the files are filled.
    """
    before = {column.field_id: column.name for column in old_table.columns}

    def cells(source: pa.Table, column: Column, absent: pa.Scalar) -> pa.ChunkedArray:
        name = before.get(column.field_id)
        if name is None:
            return pa.chunked_array([pa.repeat(absent, source.num_rows)])
        return source.column(name).cast(absent.type)

    def keys(source: pa.Table) -> pa.Table:
        names = [column.name for column in table.key_columns]
        nulls = [pa.scalar(None, column.type.arrow) for column in table.key_columns]
        return pa.table(
            [cells(source, column, null) for column, null in zip(table.key_columns, nulls, strict=True)], names=names
        )

    names = [column.name for column in table.columns]
    later = {column.field_id: column.name for column in table.columns}
    return IncompleteRows(
        rows=pa.table([cells(rows.rows, column, initial_scalar(column)) for column in table.columns], names=names),
        raw={
            later[column.field_id]: rows.raw[column.name]
            for column in old_table.columns
            if column.name in rows.raw and column.field_id in later
        },
        missing=pa.table([cells(rows.missing, column, pa.scalar(False)) for column in table.columns], names=names),  # noqa: FBT003
        lookup_keys=keys(rows.lookup_keys),
    )
