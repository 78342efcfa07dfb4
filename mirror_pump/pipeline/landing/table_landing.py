"""Lands what keeps all rows of a registered table: rewrites of its files and manifests, and changes of its metadata."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.forked_rewrite import ForkedRewrite
from mirror_pump.lake.commit.merged_manifests import MergedManifests, with_merged_manifests
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.snapshot_summary import (
    FRONTIER_PROPERTY,
    NO_COPY_PROPERTY,
    POSITION_PROPERTY,
    TIMELINE_PROPERTY,
)
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId, TableName
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.published_tables import RewrittenTable, land_rewritten, read_published
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.connect import PgConnection, source_errors

_CARRIED = (FRONTIER_PROPERTY, TIMELINE_PROPERTY, POSITION_PROPERTY, NO_COPY_PROPERTY)
"""Entries of a snapshot's summary that hold for the next one too if it has the same rows."""

StageTable = Callable[[LakeTable, WrittenFiles], LakeTable]
"""Writes the next state of a table."""
ChangeMetadata = Callable[[TableMetadata, str, int], TableMetadata]
"""Makes the next metadata of a table from the present one, where that is stored, and the time in milliseconds since
1970 UTC."""


@dataclass(frozen=True)
class TableLanding:
    """Lands changes of one registered table."""

    connection: PgConnection
    slot: str
    table_id: TableId
    start_lsn: Lsn
    lake_name: TableName
    storage: StorageOptions
    stopped_seconds: int = 10
    """As of Landing."""

    def land_rewrite(self, rewrite: ForkedRewrite) -> LakeTable:
        """Returns the table with the rewrite, whose files go if it does not land. Raises CommitConflict if the table
        has changed in a way that the rewrite does not account for, LakeError and SourceError."""
        with WrittenFiles(self.storage) as files, _conflicts():
            files.own(*(file.path for file in (*rewrite.data, *rewrite.positions)))
            # What takes time is done without the lock: reading what has landed since the rewrite began.
            ready = rewrite.checked(self.load_current().manifests, self.storage)
            return self._land(lambda state, files: _rewritten(state, ready, files), files)

    def land_manifests(self, merged: MergedManifests) -> LakeTable:
        """Returns the table with the merged manifests. Raises as `land_rewrite`."""

        def stage(state: LakeTable, files: WrittenFiles) -> LakeTable:
            after = with_merged_manifests(state, merged, same_rows(state), time.time_ns() // 1_000_000)
            snapshot = after.metadata.current_snapshot
            assert snapshot is not None
            files.own(snapshot.manifest_list, after.metadata_location)
            return after

        with WrittenFiles(self.storage) as files, _conflicts():
            files.own(*merged.files)
            return self._land(stage, files)

    def land_metadata(self, change: ChangeMetadata) -> LakeTable:
        """Returns the table with a change that makes no snapshot. Raises as `land`."""
        return self.land(lambda state, files: with_metadata(state, change, files))

    def land(self, stage: StageTable) -> LakeTable:
        """Commits what `stage` makes of the present state. Raises CommitConflict if another engine commits at the same
        time, or if the table may not be changed any more, and what `stage` raises."""
        with WrittenFiles(self.storage) as files:
            return self._land(stage, files)

    def load_current(self) -> LakeTable:
        """The state that the catalog names. Raises CommitConflict, LakeError and SourceError."""
        with source_errors("reading what is published"):
            published = self.published()
        return LakeTable.load(published.pointer, self.storage)

    def published(self) -> PublishedState:
        """What is published. Raises CommitConflict if the registration has ended, or the table is copied again."""
        published = read_published(self.connection, {self.table_id: self.start_lsn}).get(self.table_id)
        if published is None:
            raise CommitConflict(f"{self.lake_name} was registered anew, or is being copied")
        return published

    def _land(self, stage: StageTable, files: WrittenFiles) -> LakeTable:
        return _OneTable(self, stage, files).land()


class _OneTable(Landing[PublishedState, LakeTable]):
    def __init__(self, table: TableLanding, stage: StageTable, files: WrittenFiles) -> None:
        super().__init__(table.connection, table.slot, files, f"committing to {table.lake_name} in the lake")
        self.stopped_seconds = table.stopped_seconds
        self._table = table
        self._stage = stage

    def look(self) -> PublishedState:
        return self._table.published()

    def stage(self, base: PublishedState) -> LakeTable:
        return self._stage(LakeTable.load(base.pointer, self.files.storage), self.files)

    def swap(self, lock: SlotLock, base: PublishedState, state: LakeTable) -> None:
        land_rewritten(lock, [RewrittenTable(self._table.lake_name, base, state)])


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except FileRewriteSuperseded as error:
        raise CommitConflict(f"the pump has changed what was rewritten: {error}") from error


def with_metadata(state: LakeTable, change: ChangeMetadata, files: WrittenFiles) -> LakeTable:
    """Writes the table's next metadata. Raises LakeError."""
    metadata, location = write_metadata(state.metadata, state.metadata_location, change, files)
    return replace(state, metadata=metadata, metadata_location=location)


def write_metadata(
    metadata: TableMetadata, location: str, change: ChangeMetadata, files: WrittenFiles
) -> tuple[TableMetadata, str]:
    """Writes the next metadata of a table whose present one is at `location`. Returns it, and its file's URI. Raises
    LakeError."""
    after = change(metadata, location, time.time_ns() // 1_000_000)
    new = next_location(after, location)
    files.write([(new, after.to_json())])
    return after, new


def same_rows(state: LakeTable) -> dict[str, str]:
    """The entries for the summary of a snapshot that holds the same rows as the state's."""
    return {name: value for name in _CARRIED if (value := state.summary.get(name)) is not None}


def _rewritten(state: LakeTable, rewrite: ForkedRewrite, files: WrittenFiles) -> LakeTable:
    # The pump thins the history out, by the table's own policy.
    every_snapshot = frozenset(snapshot.snapshot_id for snapshot in state.metadata.snapshots)
    delta = RowDelta((), replaces=rewrite, summary=same_rows(state))
    staged = state.stage(delta, time.time_ns() // 1_000_000, every_snapshot)
    files.own(*staged.files)
    return staged.table
