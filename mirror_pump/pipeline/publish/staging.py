"""What a publish writes to the lake before its transaction: each table's next Iceberg metadata.

Staging builds on the state that the catalog names, and moves no pointer. What was staged has no effect until
`mirror_pump.pipeline.publish.publisher` commits it. A table's part that does not fit the table's present state is left
out, so that it does not hold up the others.

The combined effect of a table's operations is a `TablePlan`, worked out without I/O (mirror_pump.pipeline.operations).
This module writes plans.

Which frontier a snapshot has. Invariant: a snapshot with FRONTIER_PROPERTY = the frontier holds the table's rows at
that frontier, and at each frontier that is published until the next snapshot. For a live table this is the protocol's
own promise. The snapshots of a table under copy do not hold its rows at any frontier: a chunk shows the heap as of the
time when it was read, which may be later than the frontier of its publish, and other chunks are missing. These
snapshots are marked as copying. The table goes live in the publish whose frontier has passed the end of WAL noted after
the last chunk. By then the stream has delivered each change that a chunk may have seen in part or missed. So after that
publish's own changes the rows are those at its frontier, which was not certain at any earlier published frontier. Hence
that publish, and no other, makes the first snapshot with a frontier. If it does not change the table, that snapshot is
empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from mirror_pump.errors import FileDamaged, FileMissing, ForeignTable, LakeError, MirrorPumpError, TableError, about
from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.commit.schema_evolution import SchemaConflict
from mirror_pump.lake.deletes.commit_cache import CommitCache
from mirror_pump.lake.document.snapshot_summary import (
    COPYING_PROPERTY,
    FILLING_PROPERTY,
    FRONTIER_PROPERTY,
    POSITION_PROPERTY,
    TIMELINE_PROPERTY,
)
from mirror_pump.lake.format.partitioning import same_partitions
from mirror_pump.lake.format.raw_text_columns import raw_text_fields, with_raw_text, without_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard, gathered_writes
from mirror_pump.model import (
    LakePartitioning,
    Lsn,
    MirroredTable,
    SequenceNumber,
    TableId,
    TableMode,
    TableState,
    format_lsn,
)
from mirror_pump.pipeline.key_index.key_indexes import EncodedDeletes, IndexNotReady, KeyIndexes
from mirror_pump.pipeline.key_index.whole_rows import RowReading, WholeRowDeletes
from mirror_pump.pipeline.landing.published_tables import Swap
from mirror_pump.pipeline.missing_files.damaged_files import damage_failure
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles
from mirror_pump.pipeline.operations.advance_cutline import AdvanceRefused
from mirror_pump.pipeline.operations.combinations import TableOperation
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.operation import TablePlan
from mirror_pump.pipeline.operations.registrations import Registration, line_of
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.publish.archive_refresh import (
    ArchiveBranches,
    archive_refresh_due,
    completes_fill,
    deletes_converted_meanwhile,
    unstored,
    values_kept,
    would_lose,
)
from mirror_pump.pipeline.publish.due_tables import TableGoingLive
from mirror_pump.pipeline.publish.staged_publish import StagedPublish, StagedTable
from mirror_pump.runtime.table_work import work_for

_FAILURES = (TableError, SchemaConflict, ForeignTable, FileMissing, FileDamaged)
"""Errors of which a table fails, and the others of its publish do not."""


def with_tables_going_live(request: PublishRequest, due: Sequence[TableGoingLive]) -> PublishRequest:
    """Returns the request with an entry for each table that goes live with it. Even a table without operations gets a
    snapshot."""
    starts = {(table_request.table.table_id, registered_start(table_request)) for table_request in request.tables}
    missing = [
        due_table.table for due_table in due if (due_table.table.table_id, due_table.table.start_lsn) not in starts
    ]
    return replace(request, tables=(*request.tables, *map(TableRequest, missing)))


def without_delayed(
    due: Sequence[TableGoingLive], request: PublishRequest, registered: Mapping[TableId, Registration]
) -> list[TableGoingLive]:
    """Returns the due tables without those of a resync of which the request makes one wait longer, by a TRUNCATE or a
    schema change that restarts its copy for instance."""
    in_resync = {(due_table.table.table_id, due_table.table.start_lsn): due_table for due_table in due}
    waiting_resyncs = set()
    for table_request in request.tables:
        table_id = table_request.table.table_id
        due_table, row = in_resync.get((table_id, registered_start(table_request))), registered.get(table_id)
        if due_table is None or due_table.resync_since is None or row is None:
            continue
        # Staging meets the same error, and reports it.
        with suppress(TableError), work_for(table_request.table):
            if planned(fitted(table_request, row)[0], row).waits_beyond(due_table.frontier):
                waiting_resyncs.add(due_table.resync_since)
    return [due_table for due_table in due if due_table.resync_since not in waiting_resyncs]


def registered_start(table_request: TableRequest) -> Lsn:
    """Returns the start LSN under which the table is registered before the publish."""
    return table_request.table.start_lsn if table_request.change is None else table_request.change.former_lsn


def lake_table_gone(table: MirroredTable) -> TableError:
    """The table has to fail: its changes have nowhere to go. If they were left out, they would be missing once the lake
    table is back."""
    return TableError(
        f"{table.name}: its lake table is not in the Iceberg catalog any more: another engine dropped or renamed it",
        "Unregister the table and register it: it is copied again.",
    )


class Stager:
    """Stages commits and keeps the tables' metadata in memory. Only one thread at a time may use it."""

    def __init__(
        self,
        storage: StorageOptions,
        indexes: KeyIndexes,
        left_to_the_lake: Callable[[TableId], str | None],
        missing: MissingFiles,
        timeline: int,
    ) -> None:
        """`left_to_the_lake` returns which rows of a table only the lake has, or None if there are none. `timeline` is
        the server's, which snapshots record beside their frontier."""
        self._storage = storage
        self._indexes = indexes
        self._left_to_the_lake = left_to_the_lake
        self._missing = missing
        self._timeline = timeline
        self._tables: dict[TableId, LakeTable] = {}
        self._cache = CommitCache()
        self._archive = ArchiveBranches(storage)
        self._whole_rows = WholeRowDeletes(storage, indexes.row_hashes)

    def load_state(self, table_id: TableId, location: str) -> LakeTable:
        """Returns the state that this metadata file describes. It is in memory unless another engine committed."""
        lake = self._tables.get(table_id)
        if lake is None or lake.metadata_location != location:
            lake = self._tables[table_id] = LakeTable.load(location, self._storage, self._cache)
        return lake

    def stage(
        self, request: PublishRequest, registered: Mapping[TableId, Registration], due: Sequence[TableGoingLive]
    ) -> StagedPublish:
        """Writes what the request asks for. `due` lists the tables that go live with it. The request has an entry for
        each of them.

        Raises LakeError, AdvanceRefused and ConnectionLost. Whenever it raises, it leaves nothing behind.
        """
        staged = StagedPublish()
        goes_live_at = {(due_table.table.table_id, due_table.table.start_lsn): due_table.frontier for due_table in due}
        failing = {(failure.table.table_id, failure.table.start_lsn) for failure in request.failures}
        missing = self._missing_in_heads(request, registered)
        try:
            # Nothing refers to the files before the publish's transaction, so all tables wait for the storage together.
            with gathered_writes():
                for table_request in sorted(request.tables, key=lambda table_request: table_request.table.table_id):
                    row = registered.get(table_request.table.table_id)
                    start_lsn = registered_start(table_request)
                    if row is None or row.start_lsn != start_lsn or row.state.has_ended:
                        staged.dropped.append(table_request.table.table_id)
                    elif row.lake_table_missing:
                        failed_table = replace(table_request.table, start_lsn=row.start_lsn)
                        staged.failures.append(Failure.of(failed_table, lake_table_gone(failed_table)))
                    elif (table_request.table.table_id, start_lsn) not in failing:
                        _refuse_swept(table_request, row, request)
                        live = goes_live_at.get((table_request.table.table_id, start_lsn))
                        missing_file = missing.get(table_request.table.table_id)
                        self._stage_or_fail(table_request, row, request.frontier, live, staged, missing_file)
        except BaseException:
            discard(staged.written, self._storage)
            raise
        return staged

    def complete(self, due: Sequence[TableGoingLive], staged: StagedPublish) -> None:
        """Prepares the swap of tables that were copied again and go live with what is staged. Raises LakeError; nothing
        is removed then.

        A table whose staged operations make it wait longer is swapped in by a later publish.
        """
        commits = {
            accepted.request.table.table_id: accepted.table
            for accepted in staged.accepted
            if accepted.goes_live and accepted.table is not None
        }
        for due_table in due:
            commit = commits.get(due_table.table.table_id)
            if due_table.staged is None or commit is None:
                continue
            if due_table.pointer is None:
                staged.failures.append(Failure.of(due_table.table, lake_table_gone(due_table.table)))
                continue
            try:
                with work_for(due_table.table):
                    staged.swaps[due_table.table.table_id] = Swap.of(commit, due_table.pointer)
            except _FAILURES as error:
                staged.failures.append(self._failure(due_table.table, error))

    def landed(self, staged: StagedPublish, live: Collection[TableId]) -> dict[TableId, LakeTable]:
        """Takes over the result of a publish that landed and made the tables `live` go live. Returns the new state of
        the tables that it committed to."""
        committed: dict[TableId, LakeTable] = {}
        for accepted in staged.accepted:
            if accepted.table is not None and accepted.encoded is not None:
                committed[accepted.request.table.table_id] = accepted.table
                table = accepted.request.table
                try:
                    with work_for(table):
                        if table.whole_rows:
                            self._whole_rows.landed(table, accepted.encoded)
                        else:
                            self._indexes.landed(table, accepted.encoded, accepted.table, accepted.plan.merged)
                except TableError:
                    # What has landed is right. Without its index the table goes on, and another one is built.
                    self._indexes.forget(table.table_id)
        self._tables |= committed
        self._tables |= {table_id: swap.table for table_id, swap in staged.swaps.items() if table_id in live}
        return {table_id: self._tables[table_id] for table_id in committed}

    def row_reading(self, table: MirroredTable, lake: LakeTable, rows: Sequence[RemovedRows]) -> RowReading | None:
        """As WholeRowDeletes.reading. Raises LakeError and TableError."""
        with work_for(table):
            return self._whole_rows.reading(table, lake, rows)

    def later_reading(self, table: MirroredTable, lake: LakeTable) -> RowReading | None:
        """As WholeRowDeletes.later_reading. Raises LakeError and TableError."""
        with work_for(table):
            return self._whole_rows.later_reading(table, lake)

    def _missing_in_heads(
        self, request: PublishRequest, registered: Mapping[TableId, Registration]
    ) -> dict[TableId, FileMissing]:
        """Returns the tables of the request that lack a file which a commit builds on. Metadata in memory would hide
        the loss."""
        missing, heads = {}, {}
        for table_id, table in {part.table.table_id: part.table for part in request.tables}.items():
            row = registered.get(table_id)
            if row is None or row.lake_table_missing or row.state is TableState.FAILED:
                continue
            try:
                with work_for(table):
                    heads[table_id] = self.load_state(table_id, row.metadata_location)
            except FileMissing as error:
                missing[table_id] = error
            except (ForeignTable, FileDamaged, TableError):
                # Staging reports the error.
                continue
        return missing | self._missing.in_heads(heads)

    def _stage_or_fail(
        self,
        table_request: TableRequest,
        row: Registration,
        frontier: Lsn | None,
        live: Lsn | None,
        staged: StagedPublish,
        missing: FileMissing | None,
    ) -> None:
        """Stages one table's part, without operations that do not fit its state. `live` is the frontier at which the
        table is due to go live. `missing` is a missing file that the commit would build on."""
        failed_table = replace(table_request.table, start_lsn=row.start_lsn)
        try:
            with work_for(failed_table):
                fitting, refused = fitted(table_request, row)
                staged.refused += refused
                if (reason := self._would_lose(fitting, row)) is not None:
                    staged.failures.append(Failure(failed_table, reason))
                    return
                if missing is not None:
                    raise missing
                try:
                    accepted = self._stage(fitting, row, frontier, live)
                except FileRewriteSuperseded:
                    staged.refused.append(fitting.table.table_id)
                    accepted = self._stage(fitting.without(RewriteFiles), row, frontier, live)
                except IndexNotReady:
                    staged.refused.append(fitting.table.table_id)
                    accepted = self._stage(fitting.without(FoldCorrections), row, frontier, live)
        except _FAILURES as error:
            staged.failures.append(self._failure(failed_table, error))
        else:
            staged.accepted.append(accepted)

    def _failure(self, table: MirroredTable, error: MirrorPumpError) -> Failure:
        """Why the table fails, by an error of its part."""
        match error:
            case TableError():
                return Failure.of(table, error)
            case FileMissing():
                return self._missing.failure(table, error)
            case FileDamaged():
                return damage_failure(table, error)
        return Failure(table, about(str(table.name), f"{error}. {error.remedy}"))

    def _would_lose(self, table_request: TableRequest, row: Registration) -> str | None:
        """Returns why the table must not be copied again, if it is to be: rows that were not deleted would be lost."""
        if row.tier is None or not any(operation.reads_heap_again for operation in table_request.operations):
            return None
        change, table_id = table_request.change, table_request.table.table_id
        stored = None if change is not None and change.emptied else self._left_to_the_lake(table_id)
        left = " and ".join(filter(None, (stored, unstored(change, row.tier.cut))))
        return would_lose(table_request.table, change, left) if left else None

    def _stage(self, request: TableRequest, row: Registration, frontier: Lsn | None, live: Lsn | None) -> StagedTable:
        """Writes one table's part. Leaves nothing behind if it raises."""
        plan = planned(request, row)
        lake = self._base(request.table, row)
        if live is not None and plan.waits_beyond(live):
            live = None
        schema = _schema_of(request.table, plan, lake)
        commits = plan.writes_snapshot or schema is not None or live is not None
        # Readers keep their present archive branch until a copy or fill that begins here is complete.
        visible = row.readers_see_commits and plan.state is TableState.LIVE
        refreshes = visible and archive_refresh_due(row.tier, row.snapshot_id, lake, required=plan.archive_due)
        kept_values = values_kept(request, plan, row, lake)
        accepted = StagedTable(request, plan, row, lake.metadata.last_sequence_number, values_kept=kept_values)
        if not (commits or refreshes):
            return accepted
        # The key index is not used: keys of rows that left with their partition may be in the table twice until these
        # rows are removed.
        if plan.forgets_index or row.rows_dropped:
            self._indexes.forget(request.table.table_id)
        summary = _own_summary(plan, lake, row.mode, frontier, live, self._timeline)
        with StagedFiles(self._storage) as written:
            encoded = self._encoded(request.table, plan, lake, row, written, goes_live=live is not None)
            staged = None
            if commits:
                staged = _committed(lake, _row_delta(request.table, lake, plan, encoded, schema, summary), row)
                written.add(*staged.files)
            base = staged.table if staged is not None else lake
            converted = staged is not None and visible and deletes_converted_meanwhile(row.tier, base)
            archive = None
            if refreshes or converted or completes_fill(row, goes_live=live is not None):
                archive = self._stage_archive(request.table, plan, row, base, summary)
        number = SequenceNumber(accepted.base_sequence + 1) if plan.takes_start_number else None
        return replace(
            accepted,
            encoded=encoded,
            staged=staged,
            archive=archive,
            data_sequence_number=number,
            goes_live=live is not None,
        )

    def _base(self, table: MirroredTable, row: Registration) -> LakeTable:
        """Returns the state that the table's part builds on. Raises ForeignTable if the mirror cannot write to it."""
        lake = self.load_state(table.table_id, row.metadata_location)
        if lake.foreign_partitions or (
            row.tier is not None and not same_partitions(lake.partitioning, table.partitioning)
        ):
            raise _partitioned_by_others()
        return replace(lake, retention=row.retention)

    def _encoded(
        self,
        table: MirroredTable,
        plan: TablePlan,
        lake: LakeTable,
        row: Registration,
        written: StagedFiles,
        *,
        goes_live: bool,
    ) -> EncodedDeletes:
        """Encodes the plan's segments, with their deletes as files. The files belong to `written`."""
        if table.whole_rows:
            return self._whole_rows.encode(table, lake, plan, has_all_rows=goes_live or table.state.has_all_rows)
        encoded = self._indexes.encode(
            table,
            lake,
            plan.segments,
            emptied=plan.empties and not plan.keeps_below,
            positions_allowed=row.files_may_be_rewritten,
            awaits_index=plan.awaits_index and not row.rows_dropped,
        )
        written.add(*encoded.written)
        return encoded

    def _stage_archive(
        self, table: MirroredTable, plan: TablePlan, row: Registration, base: LakeTable, summary: Mapping[str, str]
    ) -> StagedArchive:
        """Refreshes the archive branch on top of `base`."""
        try:
            line = line_of(table, row.tier, plan.cut)
        except TableError as error:
            raise AdvanceRefused(str(error)) from error
        snapshot_ids = row.snapshots_to_keep(base.metadata)
        return self._archive.stage(table.table_id, base, line, snapshot_ids, summary)


def planned(table_request: TableRequest, row: Registration) -> TablePlan:
    """Returns the combined effect of the operations on the table as it is registered. Raises AdvanceRefused if the
    cut-line cannot move now."""
    plan = TablePlan(row.state)
    for operation in table_request.operations:
        plan = operation.stage(plan, table_request.table, row)
    return plan


def fitted(table_request: TableRequest, row: Registration) -> tuple[TableRequest, list[TableId]]:
    """Returns the request without operations that no longer apply to the registration. Also returns the table if a
    thread waits for one of the operations that were left out."""
    superseded = tuple(kind for operation in table_request.operations for kind in operation.supersedes)
    operations: list[TableOperation] = []
    refused = []
    for operation in table_request.operations:
        fitting = None if isinstance(operation, superseded) else operation.fitting(table_request.table, row)
        if fitting is not None:
            operations.append(fitting)
        elif operation.reports_refusal:
            refused.append(table_request.table.table_id)
    return replace(table_request, operations=tuple(operations)), refused


def _row_delta(
    table: MirroredTable,
    lake: LakeTable,
    plan: TablePlan,
    encoded: EncodedDeletes,
    schema: LakeSchema | None,
    summary: Mapping[str, str],
) -> RowDelta:
    """Converts the plan to the row delta on top of `lake`."""
    segments = encoded.segments
    if plan.takes_start_number:
        # Earlier deletes stay, for rows below the cut-line for instance, and must not reach what is copied now. So the
        # copy gets the first sequence number after the base, which no other file has: later than these deletes, and
        # earlier than what the stream brings.
        segments = (SegmentFiles((), ()), *segments)
    return RowDelta(
        segments=segments,
        backdated=plan.backdated,
        replaces=plan.replaces,
        # An ingest is published alone, by a process without a key index.
        hidden=plan.hidden or encoded.hidden,
        partitions=plan.partitions if plan.hidden else encoded.partitions,
        schema=schema,
        partitioning=_partitioning_of(table, plan, lake),
        summary=summary,
    )


def _committed(lake: LakeTable, change: RowDelta, row: Registration) -> StagedCommit:
    return lake.stage(
        change,
        now_ms=time.time_ns() // 1_000_000,
        keep=row.snapshots_to_keep(lake.metadata),
    )


def _own_summary(
    plan: TablePlan, lake: LakeTable, mode: TableMode, frontier: Lsn | None, live: Lsn | None, timeline: int
) -> dict[str, str]:
    """Returns our own entries of the snapshot's summary. A tiered table is promised no frontier, but records it."""
    if mode is TableMode.MIRRORED:
        return _frontier_summary(plan, lake, frontier, live, timeline, goes_live=live is not None)
    summary = _frontier_summary(plan, lake, None, None, timeline, goes_live=live is not None)
    return summary | _position_summary(lake, frontier, timeline)


def _frontier_summary(
    plan: TablePlan, lake: LakeTable, frontier: Lsn | None, live: Lsn | None, timeline: int, *, goes_live: bool
) -> dict[str, str]:
    """Returns the summary entries about the snapshot's frontier (see the module's invariant). A tiered table has
    none."""
    if not goes_live and plan.state in (TableState.WAITING, TableState.COPYING):
        return {COPYING_PROPERTY: "true"}
    if not goes_live and plan.state is TableState.FILLING:
        return {COPYING_PROPERTY: "true", FILLING_PROPERTY: "true"}
    promised = frontier if live is None else live
    if promised is not None:
        return {FRONTIER_PROPERTY: format_lsn(promised), TIMELINE_PROPERTY: str(timeline)}
    # A commit that moves no frontier keeps the frontier of the previous snapshot.
    properties = (FRONTIER_PROPERTY, TIMELINE_PROPERTY)
    return {name: value for name in properties if (value := lake.summary.get(name)) is not None}


def _position_summary(lake: LakeTable, frontier: Lsn | None, timeline: int) -> dict[str, str]:
    """Returns the summary entries by which a session tells that the database went back (pipeline/session). A commit
    that moves no frontier keeps those of the previous snapshot."""
    if frontier is not None:
        return {POSITION_PROPERTY: format_lsn(frontier), TIMELINE_PROPERTY: str(timeline)}
    properties = (POSITION_PROPERTY, TIMELINE_PROPERTY)
    return {name: value for name in properties if (value := lake.summary.get(name)) is not None}


def _refuse_swept(table_request: TableRequest, row: Registration, request: PublishRequest) -> None:
    """Raises LakeError if a sweep may have removed files of the operations."""
    if row.swept_before is not None and row.swept_before >= request.written_since:
        raise LakeError(
            f"files of {table_request.table.name} waited so long that a sweep may have removed them",
            "the pump receives the batch again by itself; a longer orphan_grace_hours avoids this",
        )


def _partitioning_of(table: MirroredTable, plan: TablePlan, lake: LakeTable) -> LakePartitioning | None:
    """Returns how the lake table is divided from this publish on; None if nothing changes. What the catalog says about
    a table that waits to be copied again becomes true when the copy begins, which removes all files. Raises
    ForeignTable if the lake table is divided otherwise: deletes would be written into partitions where they do not
    reach the rows."""
    if same_partitions(lake.partitioning, table.partitioning):
        return None
    if plan.starts_copy and plan.changes_columns and plan.empties and not plan.keeps_below:
        return table.partitioning or LakePartitioning(())
    raise _partitioned_by_others()


def _partitioned_by_others() -> ForeignTable:
    return ForeignTable(
        "another engine partitioned the lake table",
        "unregister and register it; only `mirror-pump register TABLE` may partition it",
    )


def _schema_of(table: MirroredTable, plan: TablePlan, lake: LakeTable) -> LakeSchema | None:
    """Returns the lake table's columns from this publish on, with its existing raw text columns and those that the new
    files introduce. None if nothing changes."""
    needed = plan.raw_text_columns
    if not plan.changes_columns and not needed:
        return None
    current_schema = lake.schema
    if not plan.changes_columns and needed <= raw_text_fields(current_schema):
        return None
    table_schema = LakeSchema.of_table(table) if plan.changes_columns else without_raw_text(current_schema)
    schema = with_raw_text(table_schema, needed | raw_text_fields(current_schema))
    return None if schema.fields == current_schema.fields else schema
