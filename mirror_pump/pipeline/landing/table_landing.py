"""Lands what keeps all rows of a registered table: rewrites of its files and manifests, and changes of its metadata."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.forked_rewrite import ForkedRewrite
from mirror_pump.lake.commit.merged_manifests import MergedManifests, with_merged_manifests
from mirror_pump.lake.commit.row_delta import LakeTable, Replacement, RowDelta
from mirror_pump.lake.document.metadata_files import write_metadata
from mirror_pump.lake.document.snapshot_summary import (
    FRONTIER_PROPERTY,
    POSITION_PROPERTY,
    TIMELINE_PROPERTY,
)
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId, TableName
from mirror_pump.pipeline.landing.landing import Base, Landing
from mirror_pump.pipeline.landing.published_tables import RewrittenTable, land_rewritten, read_published
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.connect import PgConnection, source_errors

_CARRIED = (FRONTIER_PROPERTY, TIMELINE_PROPERTY, POSITION_PROPERTY)
"""Entries of a snapshot's summary that hold for the next one too if it has the same rows."""

ChangeMetadata = Callable[[TableMetadata, str, int], TableMetadata]
"""Makes the next metadata of a table from the present one, where that is stored, and the time in milliseconds since
1970 UTC."""


class LakeTableLanding(Landing[Base, LakeTable]):
    """Lands changes of one lake table that keep its rows, one after the other."""

    def __init__(self, connection: PgConnection, slot: str, lake_name: TableName, storage: StorageOptions) -> None:
        super().__init__(connection, slot, WrittenFiles(storage), f"committing to {lake_name} in the lake")
        self.storage = storage
        self._change: Callable[[Base, LakeTable], LakeTable]

    @abstractmethod
    def location_of(self, base: Base) -> str:
        """The metadata file of what the catalog has."""

    def load(self, base: Base) -> LakeTable:
        """The table's state. Raises LakeError."""
        return LakeTable.load(self.location_of(base), self.storage)

    def load_current(self) -> LakeTable:
        """The state that the catalog names. Raises CommitConflict, LakeError and SourceError."""
        with source_errors("reading what is published"):
            base = self.look()
        return self.load(base)

    def stage(self, base: Base) -> LakeTable:
        return self._change(base, self.load(base))

    def land_change(self, change: Callable[[Base, LakeTable], LakeTable]) -> LakeTable:
        """Commits what `change` makes of the present state; the files that it writes are `files`. Raises CommitConflict
        if another engine commits at the same time, or if the table may not be changed any more, LakeError, SourceError,
        and what `change` raises."""
        with WrittenFiles(self.storage) as self.files:
            return self._land(change)

    def _land(self, change: Callable[[Base, LakeTable], LakeTable]) -> LakeTable:
        self._change = change
        return self.land()

    def land_manifests(self, merged: MergedManifests) -> LakeTable:
        """Returns the table with the merged manifests. Raises as `land_change`."""

        def stage(_: Base, state: LakeTable) -> LakeTable:
            after = with_merged_manifests(state, merged, same_rows(state), time.time_ns() // 1_000_000)
            snapshot = after.metadata.current_snapshot
            assert snapshot is not None
            self.files.add(snapshot.manifest_list, after.metadata_location)
            return after

        with WrittenFiles(self.storage) as self.files, _conflicts():
            self.files.add(*merged.files)
            return self._land(stage)

    def stage_rewrite(self, state: LakeTable, rewrite: Replacement, keep: Collection[int]) -> LakeTable:
        """Writes the state with a rewrite. `keep`: snapshots that stay in the history."""
        delta = RowDelta((), replaces=rewrite, summary=same_rows(state))
        staged = state.stage(delta, time.time_ns() // 1_000_000, frozenset(keep))
        self.files.add(*staged.files)
        return staged.table


class TableLanding(LakeTableLanding[PublishedState]):
    """Lands changes of one registered table."""

    def __init__(
        self,
        connection: PgConnection,
        slot: str,
        table_id: TableId,
        start_lsn: Lsn,
        lake_name: TableName,
        storage: StorageOptions,
    ) -> None:
        super().__init__(connection, slot, lake_name, storage)
        self._table_id = table_id
        self._start_lsn = start_lsn
        self._lake_name = lake_name

    def land_rewrite(self, rewrite: ForkedRewrite) -> LakeTable:
        """Returns the table with the rewrite, whose files go if it does not land. Raises CommitConflict if the table
        has changed in a way that the rewrite does not account for, LakeError and SourceError."""

        def stage(_: PublishedState, state: LakeTable) -> LakeTable:
            # The pump thins the history out, by the table's own policy.
            return self.stage_rewrite(state, ready, [snapshot.snapshot_id for snapshot in state.metadata.snapshots])

        with WrittenFiles(self.storage) as self.files, _conflicts():
            self.files.add(*(file.path for file in (*rewrite.data, *rewrite.positions)))
            # What takes time is done without the lock: reading what has landed since the rewrite began.
            ready = rewrite.checked(self.load_current().manifests, self.storage)
            return self._land(stage)

    def land_metadata(self, change: ChangeMetadata) -> LakeTable:
        """Returns the table with a change that makes no snapshot. Raises as `land_change`."""
        return self.land_change(lambda _, state: with_metadata(state, change, self.files))

    def look(self) -> PublishedState:
        """Raises CommitConflict if the registration has ended, or the table is copied again."""
        published = read_published(self.connection, {self._table_id: self._start_lsn}).get(self._table_id)
        if published is None:
            raise CommitConflict(f"{self._lake_name} was registered anew, or is being copied")
        return published

    def location_of(self, base: PublishedState) -> str:
        return base.pointer

    def swap(self, lock: SlotLock, base: PublishedState, state: LakeTable) -> None:
        land_rewritten(lock, [RewrittenTable(self._lake_name, base, state)])


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except FileRewriteSuperseded as error:
        raise CommitConflict(f"the pump has changed what was rewritten: {error}") from error


def with_metadata(state: LakeTable, change: ChangeMetadata, files: WrittenFiles) -> LakeTable:
    """Writes the table's next metadata. Raises LakeError."""
    after = change(state.metadata, state.metadata_location, time.time_ns() // 1_000_000)
    location = write_metadata(after, state.metadata_location, files.storage)
    files.add(location)
    return replace(state, metadata=after, metadata_location=location)


def same_rows(state: LakeTable) -> dict[str, str]:
    """The entries for the summary of a snapshot that holds the same rows as the state's."""
    return {name: value for name in _CARRIED if (value := state.summary.get(name)) is not None}
