"""Plans the publish of a decoded batch: completes rows, and writes what the plan needs. What a table's request is, once
its rows are complete, is decided by `mirror_pump.pipeline.flow.decoded_tables`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from decoders.incomplete_rows import IncompleteRows
from mirror_pump.engine.ingest.segment_tasks import keys_by_file
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import FileDamaged, FileMissing, ForeignTable, TableError, about
from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields
from mirror_pump.lake.format.row_lineage import has_lineage
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.unwritten_files import NONE_UNWRITTEN, UnwrittenFiles, encoded_data_files
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard
from mirror_pump.model import Lsn, MirroredTable, SequenceNumber
from mirror_pump.pipeline.feeds.feed_planning import plan_feed
from mirror_pump.pipeline.flow.batches import DecodedBatch
from mirror_pump.pipeline.flow.decoded_tables import DecodedTable, decoded_tables
from mirror_pump.pipeline.missing_files.damaged_files import damage_failure
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles
from mirror_pump.pipeline.operations.append_changes import AppendChanges
from mirror_pump.pipeline.operations.operation import SegmentChange
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.operations.table_changes import Failure
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
        end = batch.end
        tables, failures = decoded_tables(batch)
        requests = []
        for decoded in tables:
            try:
                with work_for(decoded.table):
                    requests.append(self._planned_table(decoded, end.xids))
                continue
            except TableError as error:
                failure = Failure.of(decoded.table, error)
            except FileMissing as error:
                failure = self._missing.failure(decoded.table, error)
            except FileDamaged as error:
                failure = damage_failure(decoded.table, error)
            failures.append(decoded.failed(failure))
        return PublishRequest(
            frontier=end.end_lsn,
            commit_time_us=end.commit_time_us,
            tables=tuple(requests),
            failures=tuple(failures),
            written_since=batch.written_since,
        )

    def _planned_table(self, decoded: DecodedTable, xids: Sequence[int]) -> TableRequest:
        """What a batch does to one table and to its change feed. `xids`: the batch's transactions. Raises TableError,
        FileMissing and FileDamaged, of this table only."""
        decoded.require_decoded()
        decoded = decoded.projected()
        if any(segment.result.looks_rows_up for segment in decoded.segments.values()):
            decoded = self._with_files(decoded)
        table_request = self._table_request(decoded, xids)
        feed = self._feed_changes(decoded, xids)
        return table_request if feed is None else table_request.adding(feed)

    def _table_request(self, decoded: DecodedTable, xids: Sequence[int]) -> TableRequest:
        """What a batch does to the table itself. Arguments and errors as those of `_planned_table`."""
        table, counted = decoded.table, decoded.counted
        changes = {
            number: SegmentChange(result.files, result.keys, result.deleted_rows, result.unwritten)
            for number, result in counted.items()
        }
        raw_text_columns: frozenset[int] = frozenset().union(*(result.raw_text_columns for result in counted.values()))
        heap_read_at: Lsn | None = None
        incomplete = {number: result.incomplete for number, result in counted.items() if result.incomplete is not None}
        if incomplete:
            files = {number: change.files for number, change in changes.items()}
            versions = self._versions(table, files, in_lake=not decoded.emptied)

            def take(completed: Completed) -> None:
                nonlocal heap_read_at, raw_text_columns
                heap_read_at = max(heap_read_at or Lsn(0), completed.heap_read_at or Lsn(0)) or None
                for number, rows in completed.rows.items():
                    changes[number], more = self._with_rows(table, changes[number], rows)
                    raw_text_columns |= more

            self._completer.complete(table, incomplete, versions, xids, self._frontier, take)
        return decoded.request(changes, raw_text_columns, heap_read_at)

    def _feed_changes(self, decoded: DecodedTable, xids: Sequence[int]) -> AppendChanges | None:
        """What the batch brings to the table's change feed; None if it has none that is live. Arguments and errors as
        those of `_planned_table`."""
        table = decoded.table
        if not decoded.has_live_feed or not (decoded.segments or decoded.truncations):
            return None
        versions: list[VersionedFile] = []
        scratch: list[str] = []

        def complete(number: int, rows: IncompleteRows, take: Callable[[pa.Table], None]) -> None:
            if not versions:
                versions.extend(self._feed_versions(decoded, xids, scratch))
            self._completer.complete(
                table, {number: rows}, versions, xids, self._frontier, lambda completed: take(completed.rows[number])
            )

        try:
            with StagedFiles(self._storage) as written:
                changes = plan_feed(decoded, complete, self._storage, written)
                self._written.extend(written.locations)
                return changes
        except FileMissing as error:
            if table.feed is None or not error.location.startswith(f"{table.feed.location}/"):
                raise
            # The feed gets a reset once it is there again.
            return AppendChanges(is_whole=False)
        finally:
            discard(scratch, self._storage)

    def _feed_versions(self, decoded: DecodedTable, xids: Sequence[int], scratch: list[str]) -> list[VersionedFile]:
        """The files that may hold previous versions of rows of the feed: those of all segments, with completed rows,
        and those of the lake, although a TRUNCATE may follow. `scratch` gets those that no publish names."""
        table = decoded.table
        files = {number: segment.result.files for number, segment in decoded.segments.items()}
        versions = self._versions(table, files, in_lake=True)
        last = max(number for number, segment in decoded.segments.items() if segment.feed_rows is not None)
        incomplete = {
            number: segment.result.incomplete
            for number, segment in decoded.segments.items()
            if segment.result.incomplete is not None and number < last
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

    def _with_files(self, decoded: DecodedTable) -> DecodedTable:
        """The same with all files written, since rows are looked up in them."""
        segments = {}
        for number, segment in decoded.segments.items():
            segment.result.unwritten.write(self._storage)
            segments[number] = replace(segment, result=replace(segment.result, unwritten=NONE_UNWRITTEN))
        return replace(decoded, segments=segments)

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
