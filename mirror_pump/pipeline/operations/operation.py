"""The interface of all operations, and the values that they work with on the lake's and the catalog's side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import psycopg

from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.replacement import EveryFile, FilesAbove
from mirror_pump.lake.commit.row_delta import BackdatedFile, Replacement, SegmentFiles
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.unwritten_files import NONE_UNWRITTEN, UnwrittenFiles
from mirror_pump.lake.key_index.index_plan import SegmentKeys
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.model import Lsn, MirroredTable, TableState
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.source.connect import LOCK_TIMEOUT
from mirror_pump.table_life import TableEvent, state_after

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]


@dataclass(frozen=True)
class SegmentChange:
    """The changes of one segment to one table."""

    files: SegmentFiles
    keys: SegmentKeys | None = None
    """The keys that it deletes and adds, if its deletes are not written to a file yet."""

    deleted_rows: RemovedRows | None = None
    """Rows that it deletes, of a table whose rows are found by all their values."""

    unwritten: UnwrittenFiles = NONE_UNWRITTEN
    """Those of its data files that wait for the IDs of their rows."""

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return not (self.files.data or self.deleted)

    @property
    def deleted(self) -> int:
        """Number of keys that it deletes."""
        rows = self.deleted_rows.rows.num_rows if self.deleted_rows else 0
        return (
            sum(file.record_count for file in self.files.deletes) + (len(self.keys.packed) if self.keys else 0) + rows
        )

    @property
    def locations(self) -> tuple[str, ...]:
        """URIs of its files."""
        return tuple(file.path for file in (*self.files.data, *self.files.deletes))


@dataclass(frozen=True)
class TablePlan:
    """The combined effect of the operations on one table, before any file is written."""

    state: TableState
    """The table's state after the publish, not counting a copy or fill that the publish completes."""
    segments: tuple[SegmentChange, ...] = ()
    """In stream order."""
    backdated: tuple[BackdatedFile, ...] = ()
    """Copied files with their data sequence numbers."""
    hidden: Mapping[str, Positions] = field(default_factory=dict, repr=False)
    """Rows to delete by position, besides those that the segments delete: as `RowDelta.hidden`."""
    partitions: Mapping[str, PartitionTuple] = field(default_factory=dict, repr=False)
    """As `RowDelta.partitions`."""
    replaces: Replacement | None = None
    """The existing files that the same snapshot removes."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns that have a raw text column in the files. Missing raw text columns are added to the
    schema."""
    changes_columns: bool = False
    starts_copy: bool = False
    """The copy begins or restarts: chunks that were read so far are worthless."""
    keeps_files: bool = False
    """A copy begins for which all earlier files stay: it replaces only the rows that differ."""
    fills: bool = False
    """Files have to be rewritten before readers may see what is committed."""
    archive_due: bool = False
    """The archive branch has to be refreshed."""
    cut: int | None = None
    """The new cut-line, as a tier value. None: it does not change."""
    not_live_before: Lsn | None = None
    """The table may not go live before the frontier reaches this."""
    forgets_index: bool = False
    """The table's key index does not match the table after the publish."""
    awaits_index: bool = False
    """Its deletes wait for the key index, rather than to be written by key."""

    def after(self, event: TableEvent) -> TablePlan:
        """The plan with the state that the event leads to. Raises ValueError if the event is not allowed in the current
        state."""
        return replace(self, state=state_after(self.state, event))

    @property
    def empties(self) -> bool:
        """Whether all rows at or above the cut-line are removed. Without heap retention, that is every row."""
        return isinstance(self.replaces, EveryFile | FilesAbove)

    @property
    def keeps_below(self) -> bool:
        """Whether rows below the cut-line stay while all others are removed."""
        return isinstance(self.replaces, FilesAbove)

    @property
    def takes_start_number(self) -> bool:
        """Whether the copy that begins needs a start sequence number of its own, later than all files that stay."""
        return self.keeps_below or self.keeps_files

    @property
    def merged(self) -> tuple[MergedFile, ...]:
        """Data files that replace others."""
        return self.replaces.merged if isinstance(self.replaces, FileRewrite) else ()

    @property
    def writes_snapshot(self) -> bool:
        """Whether the plan itself requires a snapshot."""
        return bool(self.segments or self.backdated or self.fills or self.keeps_files) or self.replaces is not None

    def waits_beyond(self, live: Lsn) -> bool:
        """Whether the operations keep the table from going live at the frontier `live`."""
        later = self.not_live_before is not None and self.not_live_before > live
        return self.starts_copy or self.fills or later


@dataclass(frozen=True)
class Recording:
    """What operations need to know in the publish transaction."""

    table: MirroredTable
    registration: Registration
    """The registration on which the operation was staged."""
    state: TableState
    """The table's state after the publish."""
    slot: str
    frontier: Lsn
    """The frontier of this publish."""
    base_sequence: int
    """The lake table's last sequence number before the publish. The publish's segments are numbered from the next one
    on."""
    archive: StagedArchive | None
    """The archive branch, if the publish refreshes it."""
    values_kept: tuple[int, int] | None = None
    """Of a table with ranges whose rows the lake keeps: no such row has a lower or a higher tier value. None if that is
    not determined."""


def refusal_of(
    cursor: Cursor,
    query: str,
    parameters: dict[str, Any],
    unregistered: str = "the table is not registered any more",
) -> str | None:
    """Runs a query that takes locks of users' tables, and returns NULL, or why nothing was done. Waits for each lock
    for LOCK_TIMEOUT. Raises psycopg.Error. `unregistered`: the reason if the query returns no row."""
    cursor.execute("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
    cursor.execute(query, parameters)
    row = cursor.fetchone()
    cursor.execute("SET LOCAL lock_timeout = DEFAULT")
    if row is None:
        return unregistered
    return None if row[0] is None else str(row[0])


class Operation:
    """One thing that a publish does to one table. The subclasses are frozen dataclasses, listed in
    `combinations.ORDER`.

    The methods here do nothing. A subclass overrides those that it needs.
    """

    reports_refusal: ClassVar[bool] = False
    """Whether the thread that requested the operation has to learn that it was left out."""
    reads_heap_again: ClassVar[bool] = False
    """Whether the operation replaces the table's rows by those of the heap. It is refused while the lake alone has some
    of them."""
    supersedes: ClassVar[tuple[type[Operation], ...]] = ()
    """Operations that are left out if they come in the same publish."""

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of the files that were written for the operation. They are removed if the publish certainly failed."""
        return ()

    def fitting(self, table: MirroredTable, registration: Registration) -> Self | None:
        """The part of the operation that still applies to the current registration. None if nothing does."""
        return self

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        """The plan with the operation's effect added. Has no side effects, so it can be repeated on another
        registration after a conflict."""
        return plan

    def lock(self, cursor: Cursor, recording: Recording) -> None:
        """Takes locks that have to be taken before the registration's row. Raises if one is not available."""

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        """Updates the table's description in the catalog, before the lake's pointer moves."""

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        """Records in the catalog what the lake now holds, after the pointer has moved."""
