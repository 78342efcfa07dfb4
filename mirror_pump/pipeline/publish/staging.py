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
publish's own delta the rows are those at its frontier, which was not certain at any earlier published frontier. Hence
that publish, and no other, makes the first snapshot with a frontier. If it brings the table no change, that snapshot is
empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirror_pump.errors import FileMissing, ForeignTable, LakeError, TableError, about
from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.commit.schema_evolution import SchemaConflict
from mirror_pump.lake.format.raw_text_columns import raw_text_fields, with_raw_text, without_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.metadata.snapshot_summary import COPYING_PROPERTY, FILLING_PROPERTY, FRONTIER_PROPERTY
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard
from mirror_pump.model import Lsn, MirroredTable, SequenceNumber, TableId, TableName, TableState, format_lsn
from mirror_pump.pipeline.key_index.key_indexes import EncodedDeletes, KeyIndexes
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles
from mirror_pump.pipeline.operations.advance_cutline import AdvanceRefused
from mirror_pump.pipeline.operations.combinations import TableOperation
from mirror_pump.pipeline.operations.cut_lines import line_of
from mirror_pump.pipeline.operations.operation import Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import PublishRequest, TableDelta
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.publish.archive_refresh import (
    ArchiveBranches,
    archive_refresh_due,
    completes_fill,
    deletes_converted_meanwhile,
    would_lose,
)
from mirror_pump.pipeline.publish.swap_in import DueTable, Swap


@dataclass(frozen=True)
class StagedDelta:
    """One table's part of a publish under way."""

    delta: TableDelta
    """The table's delta, with the operations that are published."""
    plan: TablePlan
    """The combined effect of these operations."""
    registration: Registration
    """The registration that it was staged on."""
    base_sequence: int
    """The lake table's last sequence number before the publish."""
    encoded: EncodedDeletes | None = None
    staged: StagedCommit | None = None
    """None if nothing of main changes."""
    archive: StagedArchive | None = None
    """The refreshed published snapshot, on top of `staged`."""
    data_sequence_number: SequenceNumber | None = None
    """The data sequence number of files that are copied from here on, if it changes."""
    goes_live: bool = False
    """The table goes live with this publish, and `staged` says at which frontier."""

    def recording(self, slot: str, frontier: Lsn) -> Recording:
        """Returns what its operations need to know in the publish transaction."""
        return Recording(
            table=self.delta.table,
            registration=self.registration,
            state=self.plan.state,
            slot=slot,
            frontier=frontier,
            base_sequence=self.base_sequence,
            archive=self.archive,
        )

    @property
    def table(self) -> LakeTable | None:
        """The table after the publish; None if nothing of the lake changes."""
        if self.archive is not None:
            return self.archive.table
        return None if self.staged is None else self.staged.table

    @property
    def files(self) -> tuple[str, ...]:
        """Files that staging wrote."""
        return (*(self.staged.files if self.staged else ()), *(self.archive.files if self.archive else ()))


@dataclass
class Staged:
    """The staged publish, table by table."""

    accepted: list[StagedDelta] = field(default_factory=list)
    dropped: list[TableId] = field(default_factory=list)
    """Tables whose changes were left out: unregistered, registered again, or failed meanwhile."""
    refused: list[TableId] = field(default_factory=list)
    """Tables whose file rewrite or fold was left out."""
    failures: list[Failure] = field(default_factory=list)
    """Tables that fail: another engine altered the lake table, the lake table cannot take their columns, or the table
    would lose rows."""
    swaps: dict[TableId, Swap] = field(default_factory=dict)
    """The swaps of tables that were copied again and go live."""

    @property
    def names(self) -> dict[TableId, TableName]:
        """Returns the new names of tables that may have been renamed."""
        tables = [accepted.delta.table for accepted in self.accepted if accepted.delta.change is not None]
        return {table.table_id: table.name for table in tables}

    @property
    def going_live(self) -> frozenset[TableId]:
        """Returns the tables whose staged snapshot says that they go live."""
        return frozenset(accepted.delta.table.table_id for accepted in self.accepted if accepted.goes_live)


def with_due_tables(request: PublishRequest, due: Sequence[DueTable]) -> PublishRequest:
    """Returns the request with a delta for each table that goes live with it. Even a table without other operations
    gets a snapshot."""
    present = {(delta.table.table_id, registered_start(delta)) for delta in request.deltas}
    missing = [
        due_table.table for due_table in due if (due_table.table.table_id, due_table.table.start_lsn) not in present
    ]
    return replace(request, deltas=(*request.deltas, *map(TableDelta, missing)))


def registered_start(delta: TableDelta) -> Lsn:
    """Returns the start LSN by which the catalog knows the delta's registration."""
    return delta.table.start_lsn if delta.change is None else delta.change.former_lsn


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
    ) -> None:
        """`left_to_the_lake` returns which rows of a table only the lake has, or None if there are none."""
        self._storage = storage
        self._indexes = indexes
        self._left_to_the_lake = left_to_the_lake
        self._missing = missing
        self._tables: dict[TableId, LakeTable] = {}
        self._archive = ArchiveBranches(storage)

    def known(self, table_id: TableId, location: str) -> LakeTable:
        """Returns the state that this metadata file describes. It is in memory unless another engine committed."""
        known = self._tables.get(table_id)
        if known is None or known.metadata_location != location:
            known = self._tables[table_id] = LakeTable.load(location, self._storage)
        return known

    def stage(
        self, request: PublishRequest, registered: Mapping[TableId, Registration], due: Sequence[DueTable]
    ) -> Staged:
        """Writes what the request asks for. `due` lists the tables that go live with it, each of which has a delta.

        Raises LakeError, AdvanceRefused and ConnectionLost. Whenever it raises, it leaves nothing behind.
        """
        staged = Staged()
        live_at = {(due_table.table.table_id, due_table.table.start_lsn): due_table.frontier for due_table in due}
        failing = {(failure.table.table_id, failure.table.start_lsn) for failure in request.failures}
        missing = self._missing_in_heads(request, registered)
        try:
            for delta in sorted(request.deltas, key=lambda delta: delta.table.table_id):
                row = registered.get(delta.table.table_id)
                former = registered_start(delta)
                if row is None or row.start_lsn != former or row.state.has_ended:
                    staged.dropped.append(delta.table.table_id)
                elif row.lake_table_missing:
                    known = replace(delta.table, start_lsn=row.start_lsn)
                    staged.failures.append(Failure.of(known, lake_table_gone(known)))
                elif (delta.table.table_id, former) not in failing:
                    _refuse_swept(delta, row, request)
                    live = live_at.get((delta.table.table_id, former))
                    self._stage_or_fail(delta, row, request.frontier, live, staged, missing.get(delta.table.table_id))
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def complete(self, due: Sequence[DueTable], staged: Staged) -> None:
        """Prepares the swap of tables that were copied again and go live with what is staged. Raises LakeError; nothing
        is removed then.

        A table whose staged operations make it wait longer is swapped in by a later publish.
        """
        commits = {
            accepted.delta.table.table_id: accepted.table
            for accepted in staged.accepted
            if accepted.goes_live and accepted.table is not None
        }
        for due_table in due:
            commit = commits.get(due_table.table.table_id)
            if due_table.staged is None or commit is None:
                continue
            if due_table.seen is None:
                staged.failures.append(Failure.of(due_table.table, lake_table_gone(due_table.table)))
                continue
            try:
                staged.swaps[due_table.table.table_id] = Swap.of(commit, due_table.seen)
            except ForeignTable as error:
                staged.failures.append(
                    Failure(due_table.table, about(str(due_table.table.name), f"{error}. {error.remedy}"))
                )
            except FileMissing as error:
                staged.failures.append(self._missing.failure(due_table.table, error))

    def discard(self, staged: Staged) -> None:
        """Removes the files of a publish that certainly failed."""
        for swap in staged.swaps.values():
            discard(swap.files, self._storage)
        for accepted in staged.accepted:
            discard(accepted.files, self._storage)
            if accepted.archive is not None:
                self._archive.forget(accepted.delta.table.table_id)
            if accepted.encoded is not None:
                self._indexes.discard(accepted.encoded)

    def landed(self, staged: Staged, live: Collection[TableId]) -> dict[TableId, LakeTable]:
        """Takes over the result of a publish that landed and made the tables `live` go live. Returns the new state of
        the tables that it committed to."""
        committed: dict[TableId, LakeTable] = {}
        for accepted in staged.accepted:
            if accepted.table is not None and accepted.encoded is not None:
                committed[accepted.delta.table.table_id] = accepted.table
                self._indexes.landed(accepted.delta.table, accepted.encoded, accepted.table, accepted.plan.merged)
        self._tables |= committed
        self._tables |= {table_id: swap.table for table_id, swap in staged.swaps.items() if table_id in live}
        return {table_id: self._tables[table_id] for table_id in committed}

    def _missing_in_heads(
        self, request: PublishRequest, registered: Mapping[TableId, Registration]
    ) -> dict[TableId, FileMissing]:
        """Returns the tables of the request that lack a file which a commit builds on. Metadata in memory would hide
        the loss."""
        missing, heads = {}, {}
        for table_id in {delta.table.table_id for delta in request.deltas}:
            row = registered.get(table_id)
            if row is None or row.lake_table_missing or row.state is TableState.FAILED:
                continue
            try:
                heads[table_id] = self.known(table_id, row.metadata_location)
            except FileMissing as error:
                missing[table_id] = error
            except ForeignTable:
                # Staging reports the error.
                continue
        return missing | self._missing.in_heads(heads)

    def _stage_or_fail(
        self,
        delta: TableDelta,
        row: Registration,
        frontier: Lsn | None,
        live: Lsn | None,
        staged: Staged,
        missing: FileMissing | None,
    ) -> None:
        """Stages one table's part, without operations that do not fit its state. `live` is the frontier at which the
        table is due to go live. `missing` is a missing file that the commit would build on."""
        fitting, refused = fitted(delta, row)
        staged.refused += refused
        known = replace(fitting.table, start_lsn=row.start_lsn)
        if (reason := self._would_lose(fitting, row)) is not None:
            staged.failures.append(Failure(known, reason))
            return
        try:
            if missing is not None:
                raise missing
            try:
                accepted = self._stage(fitting, row, frontier, live)
            except FileRewriteSuperseded:
                staged.refused.append(fitting.table.table_id)
                accepted = self._stage(fitting.without(RewriteFiles), row, frontier, live)
        except (SchemaConflict, ForeignTable) as error:
            staged.failures.append(Failure(known, about(str(known.name), f"{error}. {error.remedy}")))
        except FileMissing as error:
            staged.failures.append(self._missing.failure(known, error))
        else:
            staged.accepted.append(accepted)

    def _would_lose(self, delta: TableDelta, row: Registration) -> str | None:
        """Returns why the table must not be copied again, if it is to be: rows that were not deleted would be lost."""
        if row.tier is None or not any(operation.reads_heap_again for operation in delta.operations):
            return None
        left = self._left_to_the_lake(delta.table.table_id)
        return None if left is None else would_lose(delta.table, delta.change, left)

    def _stage(self, delta: TableDelta, row: Registration, frontier: Lsn | None, live: Lsn | None) -> StagedDelta:
        """Writes one table's part. Leaves nothing behind if it raises."""
        known = self._base(delta.table.table_id, row)
        plan = planned(delta, row)
        if live is not None and plan.waits_longer(live):
            live = None
        schema = _schema_of(delta.table, plan, known)
        commits = plan.writes_snapshot or schema is not None or live is not None
        # Readers keep their present archive branch until a copy or fill that begins here is complete.
        shown = row.readers_see_commits and plan.state is TableState.LIVE
        renewing = shown and archive_refresh_due(row.tier, row.snapshot_id, known, asked=plan.archive_due)
        accepted = StagedDelta(delta, plan, row, known.metadata.last_sequence_number)
        if not (commits or renewing):
            return accepted
        # The key index is not used: keys of rows that left with their partition may be in the table twice until these
        # rows are removed.
        if plan.forgets_index or row.rows_dropped:
            self._indexes.forget(delta.table.table_id)
        summary = _frontier_summary(plan, known, frontier, live)
        with StagedFiles(self._storage) as written:
            encoded = self._encoded(delta.table, plan, known, row, written)
            staged = None
            if commits:
                staged = _committed(known, _row_delta(plan, encoded, schema, summary), row)
                written.own(*staged.files)
            base = staged.table if staged is not None else known
            converted = staged is not None and shown and deletes_converted_meanwhile(row.tier, base)
            archive = None
            if renewing or converted or completes_fill(row, goes_live=live is not None):
                archive = self._stage_archive(delta.table, plan, row, base, summary)
        number = SequenceNumber(accepted.base_sequence + 1) if plan.keeps_below else None
        return replace(
            accepted,
            encoded=encoded,
            staged=staged,
            archive=archive,
            data_sequence_number=number,
            goes_live=live is not None,
        )

    def _base(self, table_id: TableId, row: Registration) -> LakeTable:
        """Returns the state that the table's part builds on. Raises ForeignTable if the mirror cannot write to it."""
        known = self.known(table_id, row.metadata_location)
        if known.partitioned:
            # Deletes would be written into one partition, and would not reach rows of any other.
            raise ForeignTable(
                "another engine partitioned the lake table",
                "unregister and register it; it must have no partition field",
            )
        return replace(known, retention=row.retention)

    def _encoded(
        self, table: MirroredTable, plan: TablePlan, known: LakeTable, row: Registration, written: StagedFiles
    ) -> EncodedDeletes:
        """Encodes the plan's segments, with their deletes as files. The files belong to `written`."""
        encoded = self._indexes.encode(
            table,
            known,
            plan.segments,
            emptied=plan.empties and not plan.keeps_below,
            positions_allowed=row.files_may_be_rewritten,
        )
        written.own(*encoded.written)
        return encoded

    def _stage_archive(
        self, table: MirroredTable, plan: TablePlan, row: Registration, base: LakeTable, summary: Mapping[str, str]
    ) -> StagedArchive:
        """Refreshes the archive branch on top of `base`."""
        try:
            line = line_of(table, row.tier, plan.cut)
        except TableError as error:
            raise AdvanceRefused(str(error)) from error
        kept = row.kept(base.metadata)
        return self._archive.stage(table.table_id, base, line, kept, row.rewrite_since, summary)


def planned(delta: TableDelta, row: Registration) -> TablePlan:
    """Returns the combined effect of the operations on the table as it is registered. Raises AdvanceRefused if the
    cut-line cannot move now."""
    plan = TablePlan(row.state)
    for operation in delta.operations:
        plan = operation.stage(plan, delta.table, row)
    return plan


def fitted(delta: TableDelta, row: Registration) -> tuple[TableDelta, list[TableId]]:
    """Returns the delta without operations that no longer apply to the registration. Also returns the table if somebody
    waits for one of the operations that were left out."""
    superseded = tuple(kind for operation in delta.operations for kind in operation.supersedes)
    kept: list[TableOperation] = []
    refused = []
    for operation in delta.operations:
        fitting = None if isinstance(operation, superseded) else operation.fitting(delta.table, row)
        if fitting is not None:
            kept.append(fitting)
        elif operation.reports_refusal:
            refused.append(delta.table.table_id)
    return replace(delta, operations=tuple(kept)), refused


def _row_delta(
    plan: TablePlan,
    encoded: EncodedDeletes,
    schema: LakeSchema | None,
    summary: Mapping[str, str],
) -> RowDelta:
    """Converts the plan to the lake's row delta."""
    segments = encoded.segments
    if plan.keeps_below:
        # Earlier deletes stay, for rows below the cut-line, and must not reach what is copied now. So the copy gets the
        # first sequence number after the base, which no other file has: later than these deletes, and earlier than what
        # the stream brings.
        segments = (SegmentFiles((), ()), *segments)
    return RowDelta(
        segments=segments,
        backdated=plan.backdated,
        replaces=plan.replaces,
        positions=encoded.positions,
        schema=schema,
        summary=summary,
    )


def _committed(known: LakeTable, change: RowDelta, row: Registration) -> StagedCommit:
    return known.stage(
        change,
        now_ms=time.time_ns() // 1_000_000,
        keep=row.kept(known.metadata),
        rewrite_since=row.rewrite_since,
    )


def _frontier_summary(plan: TablePlan, known: LakeTable, frontier: Lsn | None, live: Lsn | None) -> dict[str, str]:
    """Returns what the snapshot's summary says of the frontier (see the module's invariant)."""
    if live is not None:
        return {FRONTIER_PROPERTY: format_lsn(live)}
    if plan.state in (TableState.WAITING, TableState.COPYING):
        return {COPYING_PROPERTY: "true"}
    if plan.state is TableState.FILLING:
        return {COPYING_PROPERTY: "true", FILLING_PROPERTY: "true"}
    if frontier is not None:
        return {FRONTIER_PROPERTY: format_lsn(frontier)}
    # A commit that moves no frontier keeps the frontier of the previous snapshot.
    former = known.summary.frontier
    return {} if former is None else {FRONTIER_PROPERTY: format_lsn(former)}


def _refuse_swept(delta: TableDelta, row: Registration, request: PublishRequest) -> None:
    """Raises LakeError if files of the delta may have been removed by a sweep."""
    if row.swept_before is not None and row.swept_before >= request.written_since:
        raise LakeError(
            f"files of {delta.table.name} waited so long that a sweep may have taken them",
            "the pump receives the batch again by itself; a longer orphan_grace_hours spares it that",
        )


def _schema_of(table: MirroredTable, plan: TablePlan, known: LakeTable) -> LakeSchema | None:
    """Returns the lake table's columns from this publish on, with its existing raw text columns and those that the new
    files introduce. None if nothing changes."""
    needed = plan.raw_text_columns
    if not plan.changes_columns and not needed:
        return None
    present = known.schema
    if not plan.changes_columns and needed <= raw_text_fields(present):
        return None
    own = LakeSchema.of_table(table) if plan.changes_columns else without_raw_text(present)
    schema = with_raw_text(own, needed | raw_text_fields(present))
    return None if schema.fields == present.fields else schema
