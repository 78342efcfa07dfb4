"""Keeps a moment: the snapshots of all tables at one frontier stay until it is dropped.

Invariant: once the transaction that enters a moment is committed, every snapshot that it names is in its table's
history, and stays there with all of its files until the moment is dropped or the registration's files are removed,
which is refused while a moment needs them.

- *It is there.* The snapshots are chosen as of one moment of the catalog, and pinned, so that commits leave them in the
  histories while files are written. The transaction that enters the moment holds the lock of the slot's row, under
  which alone publishes, expiries and what maintenance lands move a pointer, and looks that each table is at the
  metadata that was staged on. That has the snapshot. A snapshot in the history has all of its files: expiry takes a
  snapshot out of the history before it deletes files.
- *It stays.* The same transaction gives each lake table a tag that names the snapshot, and so moves the pointer. A
  publish or a landing that was staged on the former metadata, before the moment was known, is a conflict and is staged
  again on one that has the tag. Thinning and expiry spare what a tag names, those of other engines too, and the rows of
  `modak.moment_tables` besides, should an engine remove the tag. A copy keeps the tags of its table when it is shown.
- *All or nothing.* What was written is removed unless the moment is kept, or nothing tells whether it is. Files that
  were written before the process died are named by nothing, and a sweep removes them. So the moment is not kept if its
  files may look like those to a sweep.

Each snapshot gets a metadata file of its own, in which it is the current and only one, with the schema of its time: it
is what readers open, whatever becomes of the table. Sweeps know it from the moment's row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import TracebackType
from typing import Self

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import CommitConflict, OutcomeUnknown, SourceError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import moment_location
from mirror_pump.lake.document.next_metadata import moment_metadata, with_tags
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName, format_lsn
from mirror_pump.ops.moments.choice import (
    ChosenTable,
    MomentChoice,
    cannot_be_kept,
    moment_at,
)
from mirror_pump.ops.moments.staged_tags import StagedTags, side_by_side
from mirror_pump.ops.reads.state_choice import LeftOutTable
from mirror_pump.ops.reads.time_travel import PastPoint
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.kept_moments import (
    KeptTable,
    insert_moment,
    moment_name,
    read_moments,
    tag_names,
)
from mirror_pump.source.catalog.pins import PinnedSet, PinRelation, PinSubject, of_snapshots
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import PgConnection, connect, source_errors

_LONGEST = timedelta(minutes=20)
"""The pins last so long, and what was written longer ago is not named: a sweep may take it for garbage. It is the same
with what a publish stages."""


class KeepStep(StrEnum):
    """What has just been done."""

    CHOSEN = "chosen"
    WRITTEN = "written"
    ENTERED = "entered"
    TAGGED = "tagged"
    COMMITTED = "committed"


@dataclass(frozen=True)
class MomentOptions:
    """What is to be kept."""

    name: str
    when: PastPoint | None = None
    """None: the present frontier."""
    note: str | None = None
    partial: bool = False
    """Tables that cannot be shown at the frontier are left out. Otherwise nothing is kept if there is one."""


@dataclass(frozen=True)
class MomentOutcome:
    """A moment that was kept."""

    frontier: Lsn
    tables: tuple[KeptTable, ...]
    left_out: Mapping[TableName, LeftOutTable]
    """Mirrored tables that are not part of it, and why."""


def keep(
    settings: Settings, wish: MomentOptions, observer: Callable[[KeepStep], None] = lambda _step: None
) -> MomentOutcome:
    """Keep a moment. The pump's publishes wait only while it is entered into the catalog.

    Raises UsageError for a name that none may have, and for a future; TableError if there is a moment of that name, or
    a table cannot be shown at the frontier; SourceError and LakeError.
    """
    moment_name(wish.name)
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-moment") as connection,
        WrittenFiles(lake_storage(settings)) as files,
        _Keeping(settings, connection, files, wish, observer) as keeping,
    ):
        try:
            choice = keeping.land()
        except CommitConflict as conflict:
            raise TableError(
                f"the moment {wish.name} was not kept: its lake tables change faster than the storage takes metadata"
                " files",
                "try again when less is written to them",
            ) from conflict
        observer(KeepStep.COMMITTED)
        return MomentOutcome(choice.frontier, keeping.entries, choice.left_out)


class _Keeping(Landing[list[PublishedState], MomentChoice]):
    """One moment that is being kept. Leaving it releases its pins."""

    tries = 16
    stopped_seconds = 60

    def __init__(
        self,
        settings: Settings,
        connection: PgConnection,
        files: WrittenFiles,
        wish: MomentOptions,
        observer: Callable[[KeepStep], None],
    ) -> None:
        super().__init__(connection, settings.slot, files, f"keeping the moment {wish.name}")
        self._settings = settings
        self._wish = wish
        self._observer = observer
        self._tags = StagedTags(connection, files)
        self._choice: MomentChoice | None = None
        """None: the snapshots are to be chosen, anew."""
        self.entries: tuple[KeptTable, ...] = ()
        self._pins = PinnedSet(lambda: nullcontext(connection), PinRelation.TABLES, _LONGEST.total_seconds())
        self._began = 0.0
        """When the first file was begun, seconds since 1970."""

    def read(self) -> list[PublishedState]:
        if self._choice is None:
            self._choose()
        return self.look()

    def look(self) -> list[PublishedState]:
        return self._current(self._chosen_before)

    def has_moved(self, _base: list[PublishedState], current: list[PublishedState]) -> bool:
        return bool(self._tags.moved(current))

    def supersede(self, conflict: CommitConflict) -> None:
        """Tables that have not moved stay staged, unless the choice is off."""
        if self._choice is None:
            super().supersede(conflict)

    @property
    def _chosen_before(self) -> MomentChoice:
        assert self._choice is not None
        return self._choice

    def _choose(self) -> None:
        """Chooses the snapshots, pins them, and writes the metadata file of each."""
        self._release_pins()
        self._tags.clear()
        if read_moments(self.connection, self.slot, self._wish.name):
            raise self._there_already()
        choice = self._chosen(published_states(self.connection, slot=self.slot))
        snapshots = [PinSubject(table.state.table_id, id_) for table in choice.tables for id_ in _snapshot_ids(table)]
        self._pins.take(of_snapshots(snapshots))
        self._observer(KeepStep.CHOSEN)
        self._began = time.time()
        self.entries = tuple(side_by_side(self._entry, choice.tables))
        self._choice = choice

    def _chosen(self, states: list[PublishedState]) -> MomentChoice:
        lakes = self._lakes([state for state in states if cannot_be_kept(state) is None])
        applied = catalog_slot(self.connection, self.slot).applied
        choice = moment_at(states, lakes, self._wish.when, applied, time.time_ns() // 1_000_000)
        reasons = "; ".join(map(str, choice.left_out.values()))
        if not choice.tables:
            raise TableError(f"no table can be kept{f': {reasons}' if reasons else ': none is mirrored'}")
        if choice.left_out and not self._wish.partial:
            raise TableError(
                f"not all tables can be kept at frontier {format_lsn(choice.frontier)}: {reasons}",
                "wait until `mirror-pump status` shows them live, or keep the others with --partial",
            )
        return choice

    def _lakes(self, tables: Collection[PublishedState]) -> dict[TableId, LakeTable]:
        def load(table: PublishedState) -> LakeTable:
            assert table.metadata_location is not None
            return LakeTable.load(table.metadata_location, self.files.storage)

        return dict(zip([table.table_id for table in tables], side_by_side(load, tables), strict=True))

    def _entry(self, chosen: ChosenTable) -> KeptTable:
        """Writes the metadata files in which the table's snapshots are the current ones."""
        locations = {snapshot.snapshot_id: moment_location(chosen.lake.metadata) for snapshot in _snapshots(chosen)}
        self.files.write(
            [
                (locations[snapshot.snapshot_id], moment_metadata(chosen.lake.metadata, snapshot).to_json())
                for snapshot in _snapshots(chosen)
            ]
        )
        return KeptTable(
            chosen.state.table_id,
            chosen.state.lake_name,
            chosen.snapshot.snapshot_id,
            locations[chosen.snapshot.snapshot_id],
            chosen.main.snapshot_id,
            locations[chosen.main.snapshot_id],
        )

    def _current(self, choice: MomentChoice) -> list[PublishedState]:
        """The chosen tables as they are in the catalog now. Raises CommitConflict, and the choice is off, if one was
        registered anew, is being copied, or what was written may be gone; TableError if it was written too long ago."""
        candidates = {table.table_id: table for table in published_states(self.connection, slot=self.slot)}
        tables = []
        for chosen in (table.state for table in choice.tables):
            table = candidates.get(chosen.table_id)
            if table is None or table.start_lsn != chosen.start_lsn or not table.is_settled:
                raise self._drop_choice(f"{chosen.lake_name} was registered anew, or is being copied")
            if table.read_at - chosen.read_at > _LONGEST:
                raise TableError(
                    f"the moment {self._wish.name} was not kept: its files took the storage longer than {_LONGEST}",
                    "try again when the storage is quicker: mirror-pump doctor looks at it",
                )
            if table.swept_before is not None and table.swept_before >= self._began:
                raise self._drop_choice(f"a sweep may have removed files that were written for {chosen.lake_name}")
            tables.append(table)
        return tables

    def stage(self, base: list[PublishedState]) -> MomentChoice:
        choice = self.stage_late(base)
        self._observer(KeepStep.WRITTEN)
        return choice

    def stage_late(self, base: list[PublishedState]) -> MomentChoice:
        """Writes the tables' next metadata. Raises CommitConflict, and the choice is off, if a history has lost a
        snapshot, and TableError if a table has a branch of the tag's name."""
        choice = self._chosen_before
        chosen_tables = {chosen.state.table_id: chosen for chosen in choice.tables}

        def tagged(candidate: PublishedState, lake: LakeTable, now_ms: int) -> TableMetadata:
            chosen = chosen_tables[candidate.table_id]
            if not all(lake.has_snapshot(snapshot_id) for snapshot_id in _snapshot_ids(chosen)):
                raise CommitConflict(f"{candidate.lake_name} has lost a snapshot of the moment")
            self._refuse_branches(candidate, lake)
            tag, main_tag = tag_names(self._wish.name)
            tags = {tag: chosen.snapshot.snapshot_id}
            if chosen.main != chosen.snapshot:
                tags[main_tag] = chosen.main.snapshot_id
            return with_tags(lake.metadata, tags, lake.metadata_location, now_ms)

        lakes = {table_id: chosen.lake for table_id, chosen in chosen_tables.items()}
        try:
            self._tags.stage(base, tagged, lakes)
        except CommitConflict:
            self._choice = None
            raise
        return choice

    def _refuse_branches(self, candidate: PublishedState, lake: LakeTable) -> None:
        """Raise TableError if a branch of another engine has the name that a tag of the moment would have. A tag that a
        dropped moment of that name left behind is replaced."""
        for tag in tag_names(self._wish.name):
            ref = lake.metadata.refs.get(tag)
            if ref is not None and ref.is_branch:
                raise TableError(
                    f"{candidate.lake_name} has a branch {tag} in the lake", "choose another name for the moment"
                )

    def swap(self, lock: SlotLock, base: list[PublishedState], state: MomentChoice) -> None:
        if read_moments(self.connection, self.slot, self._wish.name):
            raise self._there_already()
        insert_moment(self.connection, self.slot, self._wish.name, state.frontier, self._wish.note, self.entries)
        self._observer(KeepStep.ENTERED)
        self._tags.land(lock, base)
        self._observer(KeepStep.TAGGED)

    def has_landed(self, error: SourceError) -> bool:
        """Waits for the end of the former session. Raises OutcomeUnknown if the server does not say."""
        locations = [entry.metadata_location for entry in self.entries]
        try:
            with (
                connect(self._settings.require_dsn(), autocommit=True) as connection,
                source_errors(self.doing),
                connection.transaction(),
            ):
                SlotLock.take(connection, self.slot, self.stopped_seconds)
                moments = read_moments(connection, self.slot, self._wish.name)
        except SourceError as again:
            raise OutcomeUnknown(
                f"the connection was lost while the moment {self._wish.name} was entered: {error}; and then: {again}",
                "mirror-pump moment list shows whether it is kept",
            ) from again
        landed = {table.metadata_location for moment in moments for table in moment.tables}
        return landed.issuperset(locations)

    def _there_already(self) -> TableError:
        return TableError(
            f"there is a moment {self._wish.name} already",
            f"choose another name, or give it up first: `mirror-pump moment drop {self._wish.name}`",
        )

    def _drop_choice(self, reason: str) -> CommitConflict:
        self._choice = None
        return CommitConflict(reason)

    def _release_pins(self) -> None:
        if not self.connection.closed:
            # Those of a lost connection expire.
            with suppress(SourceError):
                self._pins.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release_pins()


def _snapshots(chosen: ChosenTable) -> tuple[Snapshot, ...]:
    """What is kept of a table: one snapshot, or two."""
    return (chosen.snapshot,) if chosen.main == chosen.snapshot else (chosen.snapshot, chosen.main)


def _snapshot_ids(chosen: ChosenTable) -> list[SnapshotId]:
    return [snapshot.snapshot_id for snapshot in _snapshots(chosen)]
