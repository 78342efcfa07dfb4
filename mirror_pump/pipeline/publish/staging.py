"""What a publish writes to the lake before its transaction: each table's next Iceberg metadata.

It builds on the state that the catalog names, and moves no pointer: what was staged is as if it were not, until
`mirror_pump.pipeline.publish.publisher` commits it. A table's part that does not fit the table's present state is
left out
instead of holding up the others'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirror_pump.errors import ForeignTable, LakeError, TableError, about
from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import BackdatedFile, LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.commit.schema_evolution import SchemaConflict
from mirror_pump.lake.contents.dropped_rows import DroppedRows
from mirror_pump.lake.format.raw_text_columns import raw_text_fields, with_raw_text, without_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StagedFiles, StorageOptions, discard
from mirror_pump.model import Lsn, MirroredTable, SequenceNumber, TableId, TableState, format_lsn
from mirror_pump.pipeline.flow.batches import Failure
from mirror_pump.pipeline.flow.requests import PublishRequest, TableDelta
from mirror_pump.pipeline.key_index.key_indexes import EncodedDeletes, KeyIndexes
from mirror_pump.pipeline.publish.archive_refresh import (
    ArchiveBranches,
    archive_refresh_due,
    deletes_converted_meanwhile,
    line_of,
    may_fold,
    would_lose,
)
from mirror_pump.pipeline.publish.registrations import Registration
from mirror_pump.pipeline.publish.swap_in import DueTable, Swap

FRONTIER_PROPERTY = "mirror-pump.frontier"
"""Snapshot summary key: an F at which the table's rows are the snapshot's, in Postgres's notation. Each snapshot of a
live table has it, beginning with the one that the publish makes with which the table goes live."""
COPYING_PROPERTY = "mirror-pump.copying"
"""Snapshot summary key, in place of FRONTIER_PROPERTY: the copy is not complete, or files are being filled; the table
had these rows at no F."""
FILLING_PROPERTY = "mirror-pump.filling"
"""Snapshot summary key, `true`: rows from before a column was added may still lack its value."""


class AdvanceRefused(Exception):
    """T cannot move now; the text says why. Nothing was done."""


@dataclass(frozen=True)
class StagedDelta:
    """One table's part of a publish under way."""

    delta: TableDelta
    encoded: EncodedDeletes | None
    staged: StagedCommit | None
    """None if nothing of main changes."""
    archive: StagedArchive | None = None
    """S made anew, on top of `staged`."""
    data_sequence_number: SequenceNumber | None = None
    """Where files are born that are copied from here on, if it is not where they were."""
    dropped_rows: tuple[DroppedRows, ...] = ()
    goes_live: bool = False
    """The table goes live with this publish, and `staged` says at which F."""

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
    """What a publish comes to, table by table."""

    accepted: list[StagedDelta] = field(default_factory=list)
    dropped: list[TableId] = field(default_factory=list)
    """Tables whose changes were left out: unregistered, registered anew, or failed meanwhile."""
    refused: list[TableId] = field(default_factory=list)
    """Tables whose resolution or fold was left out."""
    failures: list[Failure] = field(default_factory=list)
    """Tables whose lake table another engine altered or cannot take their columns, or that would lose rows."""
    swaps: dict[TableId, Swap] = field(default_factory=dict)
    """Of tables that were copied again and go live."""

    @property
    def going_live(self) -> frozenset[TableId]:
        """Tables with a snapshot that says that they go live."""
        return frozenset(one.delta.table.table_id for one in self.accepted if one.goes_live)


def with_due_tables(request: PublishRequest, due: Sequence[DueTable]) -> PublishRequest:
    """The request with a delta for each table that goes live with it: also one that nothing else happens to gets a
    snapshot."""
    present = {(delta.table.table_id, registered_start(delta)) for delta in request.deltas}
    missing = [one.table for one in due if (one.table.table_id, one.table.start_lsn) not in present]
    return replace(request, deltas=(*request.deltas, *map(TableDelta, missing)))


def registered_start(delta: TableDelta) -> Lsn:
    """L0 by which the catalog knows the registration that the delta is for."""
    return delta.table.start_lsn if delta.change is None else delta.change.former_lsn


def lake_table_gone(table: MirroredTable) -> TableError:
    """Its changes have nowhere to go; were they left out, they would be missing once it is back."""
    return TableError(
        f"{table.name}: its lake table is not in the Iceberg catalog any more: another engine dropped or renamed it",
        "Unregister the table and register it: it is copied again.",
    )


class Stager:
    """Stages commits. One thread at a time; keeps the tables' metadata in memory."""

    def __init__(
        self, storage: StorageOptions, indexes: KeyIndexes, left_to_the_lake: Callable[[TableId], str | None]
    ) -> None:
        """`left_to_the_lake` says which rows of a table only the lake has, if there are any."""
        self._storage = storage
        self._indexes = indexes
        self._left_to_the_lake = left_to_the_lake
        self._tables: dict[TableId, LakeTable] = {}
        self._archive = ArchiveBranches(storage)

    def known(self, table_id: TableId, location: str) -> LakeTable:
        """The state that this metadata file describes; from memory unless another engine committed."""
        known = self._tables.get(table_id)
        if known is None or known.metadata_location != location:
            known = self._tables[table_id] = LakeTable.load(location, self._storage)
        return known

    def stage(
        self, request: PublishRequest, registered: Mapping[TableId, Registration], due: Sequence[DueTable]
    ) -> Staged:
        """Writes what the request asks for; `due` are tables that go live with it, each of which has a delta.

        Which F a snapshot has. Invariant: a snapshot with FRONTIER_PROPERTY = F holds the table's rows at F, and
        at each F that is published until the next snapshot. Of a live table that is the protocol's own promise. A table
        under copy had none of its snapshots' rows at any F: a chunk shows the heap as it was when it was read, which
        may be later than the F of its publish, and other chunks are missing. Its snapshots are marked as
        copying. It goes live in the publish whose F has passed the end of WAL noted after the last chunk: by then each
        change that a chunk may have seen in part, or may have missed, has come by the stream, so after that publish's
        own delta the rows are those at F, and were it for no earlier published F. Hence that publish, and no other,
        makes the first snapshot with an F; where it brings the table no change, an empty one.

        Raises LakeError, AdvanceRefused and ConnectionLost; whatever it raises, nothing of it is left.
        """
        staged = Staged()
        live_at = {(one.table.table_id, one.table.start_lsn): one.frontier for one in due}
        failing = {(failure.table.table_id, failure.table.start_lsn) for failure in request.failures}
        try:
            for delta in sorted(request.deltas, key=lambda delta: delta.table.table_id):
                row = registered.get(delta.table.table_id)
                former = registered_start(delta)
                if row is None or row.start_lsn != former or row.state is TableState.FAILED:
                    staged.dropped.append(delta.table.table_id)
                elif row.lake_table_missing:
                    known = replace(delta.table, start_lsn=row.start_lsn)
                    staged.failures.append(Failure.of(known, lake_table_gone(known)))
                elif (delta.table.table_id, former) not in failing:
                    _refuse_swept(delta, row, request)
                    live = live_at.get((delta.table.table_id, former))
                    self._stage_or_fail(delta, row, request.frontier, live, staged)
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def complete(self, due: Sequence[DueTable], staged: Staged) -> None:
        """Prepares the exchange of tables that were copied again and go live with what is staged. Raises LakeError;
        nothing is removed then.

        Of a table that what is staged makes wait for longer, the exchange is left for a later publish.
        """
        commits = {
            one.delta.table.table_id: one.staged for one in staged.accepted if one.goes_live and one.staged is not None
        }
        for one in due:
            commit = commits.get(one.table.table_id)
            if one.staged is None or commit is None:
                continue
            if one.seen is None:
                staged.failures.append(Failure.of(one.table, lake_table_gone(one.table)))
                continue
            try:
                staged.swaps[one.table.table_id] = Swap.of(commit.table, one.seen)
            except ForeignTable as error:
                staged.failures.append(Failure(one.table, about(str(one.table.name), f"{error}. {error.remedy}")))

    def discard(self, staged: Staged) -> None:
        """Remove the files that a publish wrote which certainly failed."""
        for swap in staged.swaps.values():
            discard(swap.files, self._storage)
        for one in staged.accepted:
            discard(one.files, self._storage)
            if one.archive is not None:
                self._archive.forget(one.delta.table.table_id)
            if one.encoded is not None:
                self._indexes.discard(one.encoded)

    def landed(self, staged: Staged, live: Collection[TableId]) -> dict[TableId, LakeTable]:
        """It was published, and made tables live: those that it committed to, as they are now."""
        committed: dict[TableId, LakeTable] = {}
        for one in staged.accepted:
            if one.table is not None and one.encoded is not None:
                committed[one.delta.table.table_id] = one.table
                resolution = one.delta.resolution
                merged = resolution.merged if resolution is not None else ()
                self._indexes.landed(one.delta.table, one.encoded, one.table, merged)
        self._tables |= committed
        self._tables |= {table_id: swap.table for table_id, swap in staged.swaps.items() if table_id in live}
        return {table_id: self._tables[table_id] for table_id in committed}

    def _stage_or_fail(
        self, delta: TableDelta, row: Registration, frontier: Lsn | None, live: Lsn | None, staged: Staged
    ) -> None:
        """One table's part, without what does not fit its state. `live`: the F at which the table is due to go live."""
        current = _of_generation(delta, row.generation)
        if current.resolution is not None and not row.files_may_be_rewritten:
            current = _without_resolution(current, staged.refused)
        if current.fold is not None and not may_fold(
            current.fold, row.tier, readers_see_commits=row.readers_see_commits
        ):
            current = replace(current, fold=None)
            staged.refused.append(current.table.table_id)
        if live is not None and _waits_longer(current, row, live):
            live = None
        known = replace(current.table, start_lsn=row.start_lsn)
        if (reason := self._would_lose(current, row)) is not None:
            staged.failures.append(Failure(known, reason))
            return
        try:
            try:
                one = self._stage(current, row, frontier, live)
            except FileRewriteSuperseded:
                one = self._stage(_without_resolution(current, staged.refused), row, frontier, live)
        except (SchemaConflict, ForeignTable) as error:
            staged.failures.append(Failure(known, about(str(known.name), f"{error}. {error.remedy}")))
        else:
            staged.accepted.append(one)

    def _would_lose(self, delta: TableDelta, row: Registration) -> str | None:
        """Why the table must not be copied again, if it is to be: rows that were not deleted would go."""
        if row.tier is None or not (delta.copies or delta.restart_copy):
            return None
        left = self._left_to_the_lake(delta.table.table_id)
        return None if left is None else would_lose(delta, left)

    def _stage(self, delta: TableDelta, row: Registration, frontier: Lsn | None, live: Lsn | None) -> StagedDelta:
        backdated = tuple(
            BackdatedFile(chunk.file, row.data_sequence_number) for chunk in delta.chunks if chunk.file is not None
        )
        known = self.known(delta.table.table_id, row.metadata_location)
        if known.partitioned:
            # Deletes would be written into a partition, and reach the rows of no other.
            raise ForeignTable(
                "another engine partitioned the lake table",
                "unregister and register it; it must have no partition field",
            )
        known = replace(known, retention=row.retention)
        schema = _schema_of(delta, known)
        emptied = delta.truncate or delta.copies
        segments = delta.segments if delta.fold is None else (*delta.segments, delta.fold.segment)
        work = (
            segments
            or backdated
            or emptied
            or delta.restart_copy
            or delta.resolution
            or schema
            or live is not None
            or delta.fills
        )
        renewing = (
            row.readers_see_commits
            and not delta.copies
            and archive_refresh_due(delta, row.tier, row.snapshot_id, known)
        )
        if delta.advance is not None and not row.readers_see_commits:
            raise AdvanceRefused("the table is being copied")
        if not (work or renewing):
            return StagedDelta(delta, None, None)
        keep_below = line_of(delta.table, row.tier) if emptied else None
        # Keys of rows that went with their partition may be in the table twice until these are gone.
        if delta.restart_copy or delta.copies or keep_below is not None or delta.dropped or row.rows_dropped:
            self._indexes.forget(delta.table.table_id)
        summary = _frontier_summary(delta, row, known, frontier, live)
        with StagedFiles(self._storage) as written:
            encoded = self._indexes.encode(
                delta.table,
                known,
                segments,
                emptied=emptied and keep_below is None,
                positions_allowed=row.files_may_be_rewritten,
            )
            written.own(*encoded.written)
            staged, data_sequence_number = None, None
            if work:
                change = RowDelta(
                    segments=encoded.segments,
                    backdated=backdated,
                    replace=emptied,
                    keep_below=keep_below,
                    remove_backdated=row.data_sequence_number if delta.restart_copy else None,
                    positions=encoded.positions,
                    resolution=delta.resolution,
                    schema=schema,
                    summary=summary,
                )
                staged, data_sequence_number = _staged_on(known, change, row)
                written.own(*staged.files)
            archive = self._stage_archive(delta, row, staged, known, summary, renewing=renewing)
        last = int(known.metadata["last-sequence-number"])
        gone = tuple(DroppedRows(last + segments_before, bounds) for segments_before, bounds in delta.dropped)
        return StagedDelta(delta, encoded, staged, archive, data_sequence_number, gone, goes_live=live is not None)

    def _stage_archive(
        self,
        delta: TableDelta,
        row: Registration,
        staged: StagedCommit | None,
        known: LakeTable,
        summary: Mapping[str, str],
        *,
        renewing: bool,
    ) -> StagedArchive | None:
        """S made anew on top of what is staged, if it has to be."""
        base = staged.table if staged is not None else known
        if not renewing and not (
            staged is not None and row.readers_see_commits and deletes_converted_meanwhile(row.tier, base)
        ):
            return None
        cut = delta.advance.cut if delta.advance is not None else None
        try:
            line = line_of(delta.table, row.tier, cut)
        except TableError as error:
            raise AdvanceRefused(str(error)) from error
        kept = row.kept(base.metadata)
        return self._archive.stage(delta.table.table_id, base, line, kept, row.rewrite_since, summary)


def _staged_on(known: LakeTable, change: RowDelta, row: Registration) -> tuple[StagedCommit, SequenceNumber | None]:
    """The commit, and where files are born that are copied from here on, if it is not where they were."""
    data_sequence_number: SequenceNumber | None = None
    if change.keep_below is not None:
        # Deletes from before stay, for rows below T, and must not reach what is copied now: it is born after them,
        # at a number that no other file has, and before what the stream brings.
        data_sequence_number = SequenceNumber(int(known.metadata["last-sequence-number"]) + 1)
        change = replace(change, segments=(SegmentFiles((), ()), *change.segments))
    staged = known.stage(
        change,
        now_ms=time.time_ns() // 1_000_000,
        keep=row.kept(known.metadata),
        rewrite_since=row.rewrite_since,
    )
    return staged, data_sequence_number


def starts_copy(delta: TableDelta, row: Registration) -> bool:
    """Whether the delta makes a copy begin, or begin again."""
    return delta.restart_copy or delta.copies or (delta.truncate and row.state is TableState.COPYING)


def _waits_longer(delta: TableDelta, row: Registration, live: Lsn) -> bool:
    """Whether the delta itself keeps the table from going live at this F."""
    return (
        starts_copy(delta, row) or delta.fills or (delta.not_live_before is not None and delta.not_live_before > live)
    )


def _frontier_summary(
    delta: TableDelta, row: Registration, known: LakeTable, frontier: Lsn | None, live: Lsn | None
) -> dict[str, str]:
    """What the snapshot says of F (see Stager.stage)."""
    if live is not None:
        return {FRONTIER_PROPERTY: format_lsn(live)}
    if delta.copies or row.state is TableState.COPYING:
        return {COPYING_PROPERTY: "true"}
    if delta.fills or row.state is TableState.FILLING:
        return {COPYING_PROPERTY: "true", FILLING_PROPERTY: "true"}
    if frontier is not None:
        return {FRONTIER_PROPERTY: format_lsn(frontier)}
    # What moves no F leaves the snapshot at the F of the one before.
    former = known.summary.get(FRONTIER_PROPERTY)
    return {} if former is None else {FRONTIER_PROPERTY: former}


def _refuse_swept(delta: TableDelta, row: Registration, request: PublishRequest) -> None:
    """LakeError for files that may be gone."""
    if row.swept_before is not None and row.swept_before >= request.written_since:
        raise LakeError(
            f"files of {delta.table.name} waited so long that a sweep may have taken them",
            "the pump receives the batch again by itself; a longer orphan_grace_hours spares it that",
        )


def _schema_of(delta: TableDelta, known: LakeTable) -> LakeSchema | None:
    """The lake table's columns from this delta on, with the sidecars that it had and those that the delta's files are
    the first to have; None if nothing changes."""
    needed = delta.sidecars.union(*(chunk.sidecars for chunk in delta.chunks))
    if delta.change is None and not needed:
        return None
    present = known.schema
    if delta.change is None and needed <= raw_text_fields(present):
        return None
    own = without_raw_text(present) if delta.change is None else LakeSchema.of_table(delta.table)
    schema = with_raw_text(own, needed | raw_text_fields(present))
    return None if schema.fields == present.fields else schema


def _without_resolution(delta: TableDelta, refused: list[TableId]) -> TableDelta:
    refused.append(delta.table.table_id)
    return replace(delta, resolution=None)


def _of_generation(delta: TableDelta, generation: int) -> TableDelta:
    """Without chunks that were read for a copy that has started again since."""
    stale = delta.table.generation != generation
    # What was read before a TRUNCATE, or for a copy that starts again, is not part of the table.
    again = delta.truncate or delta.restart_copy or delta.copies
    return replace(
        delta,
        chunks=tuple(chunk for chunk in delta.chunks if chunk.generation == generation and not again),
        restart_copy=delta.restart_copy and not stale,
    )
