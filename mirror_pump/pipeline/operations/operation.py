"""What all operations have in common, and what their two sides, lake and catalog, are given to work with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

import psycopg

from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.replacement import EveryFile, FilesAbove
from mirror_pump.lake.commit.row_delta import BackdatedFile, Replacement
from mirror_pump.model import Lsn, MirroredTable, TableState
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.segments import SegmentChange
from mirror_pump.table_life import TableEvent, state_after

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]


@dataclass(frozen=True)
class TablePlan:
    """What the operations on one table come to in the lake, before any file is written."""

    state: TableState
    """The table's state after the publish, but for a copy or fill that it completes."""
    segments: tuple[SegmentChange, ...] = ()
    """In stream order."""
    backdated: tuple[BackdatedFile, ...] = ()
    """Copied files, with the data sequence number that they take their place at."""
    replaces: Replacement | None = None
    """Files of before that go in the same snapshot."""
    raw_text_columns: frozenset[int] = frozenset()
    """Field IDs of the columns whose raw text is in the files; the schema gets those that it lacks."""
    changes_columns: bool = False
    starts_copy: bool = False
    """The copy begins, or begins again: chunks read so far count for nothing."""
    fills: bool = False
    """Files are to be written anew before readers may see what is committed."""
    archive_due: bool = False
    """The archive branch is to be made anew."""
    cut: int | None = None
    """The new cut-line, a tier value; None leaves it."""
    not_live_before: Lsn | None = None
    """The table may not go live before the frontier reaches this."""
    forgets_index: bool = False
    """The table's key index does not describe what is there afterwards."""

    def after(self, event: TableEvent) -> TablePlan:
        """In the state that the event leads to. ValueError if it cannot come in the present one."""
        return replace(self, state=state_after(self.state, event))

    @property
    def empties(self) -> bool:
        """Whether every row that readers and the stream know goes, but for those below the cut-line."""
        return isinstance(self.replaces, EveryFile | FilesAbove)

    @property
    def keeps_below(self) -> bool:
        """Whether rows below the cut-line stay although the others go."""
        return isinstance(self.replaces, FilesAbove)

    @property
    def merged(self) -> tuple[MergedFile, ...]:
        """Data files that take the place of others."""
        return self.replaces.merged if isinstance(self.replaces, FileRewrite) else ()

    @property
    def writes_snapshot(self) -> bool:
        """Whether the table gets a snapshot, whatever else happens to it."""
        return bool(self.segments or self.backdated or self.fills) or self.replaces is not None

    def waits_longer(self, live: Lsn) -> bool:
        """Whether the operations keep the table from going live at this frontier."""
        later = self.not_live_before is not None and self.not_live_before > live
        return self.starts_copy or self.fills or later


@dataclass(frozen=True)
class Recording:
    """What an operation may need to know inside the publish transaction."""

    table: MirroredTable
    registration: Registration
    """The catalog's row as it was when the operation was staged."""
    state: TableState
    """The table's state after it."""
    slot: str
    frontier: Lsn
    """Of this publish."""
    base_sequence: int
    """The lake table's last sequence number before the publish: its segments are numbered from the next one."""
    archive: StagedArchive | None
    """The archive branch, if the publish makes it anew."""


class Operation:
    """One thing that happens to one table in one publish. Immutable; its subclasses are frozen dataclasses.

    `combinations.ORDER` names every one. The methods here are what an operation does that has nothing to say.
    """

    reports_refusal: ClassVar[bool] = False
    """Whoever asked for it is told if it is left out."""
    reads_heap_again: ClassVar[bool] = False
    """Rows that only the lake has would be gone after it: it is refused while there are any."""
    supersedes: ClassVar[tuple[type[Operation], ...]] = ()
    """Operations of the same publish that count for nothing beside it."""

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of files that were written for it: to be removed if the publish is known to have failed."""
        return ()

    def fitting(self, table: MirroredTable, registration: Registration) -> Self | None:
        """What of it still applies to the registration as it is now; None if nothing does."""
        return self

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        """The plan with its part. Pure: may be repeated on another registration after a conflict."""
        return plan

    def lock(self, cursor: Cursor, recording: Recording) -> None:
        """Takes locks that have to come before the registration's row, and fails if it cannot have them."""

    def describe(self, cursor: Cursor, recording: Recording) -> None:
        """Makes the catalog say what the table is from here on, before the lake's pointer moves."""

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        """Marks what the lake has now, behind the pointer."""
