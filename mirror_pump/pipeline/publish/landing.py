"""Lands what maintenance did to a table: one short commit, in the transaction that makes it the mirror's own state.

The pump's publishes wait for the slot's row, which this transaction locks first. What takes long is done before: the
rewrite of the files, and the files of the new state, since a store may take half a minute for one. Under the lock the
pointer moves from the state that was staged on. If a publish came in between, the state is staged again; in the end
under the lock, if that is quick (`StagedLanding`). No other program, which might be busy or slow, is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from mirror_pump.errors import CommitConflict, ConnectionLost, LakeError
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.forked_rewrite import ForkedRewrite
from mirror_pump.lake.commit.merged_manifests import MergedManifests, with_merged_manifests
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.snapshot_summary import (
    FRONTIER_PROPERTY,
    NO_COPY_PROPERTY,
    POSITION_PROPERTY,
    TIMELINE_PROPERTY,
)
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, discard, write_all
from mirror_pump.model import Lsn, TableId, TableName
from mirror_pump.pipeline.publish.foreign_commits import record_examined
from mirror_pump.pipeline.publish.republication import Published, publish_state, read_published
from mirror_pump.source.connect import PgConnection, source_errors
from sql import queries

_LOCK = queries("publish")["lock_slot"]
_SET_TIMEOUT = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"
_TRIES = 4
"""How often a state is staged, if publishes come in between."""
_CARRIED = (FRONTIER_PROPERTY, TIMELINE_PROPERTY, POSITION_PROPERTY, NO_COPY_PROPERTY)
"""Entries of a snapshot's summary that hold for the next one too if it has the same rows."""

Base = TypeVar("Base")


@dataclass(frozen=True)
class StagedState:
    """A state of a table whose files are durable."""

    table: LakeTable
    files: tuple[str, ...]
    """URIs of the files that were written for it. They go if it does not land."""


@dataclass(frozen=True)
class StagedLanding(Generic[Base]):
    """A landing whose files are written before the slot's lock is taken."""

    connection: PgConnection
    slot: str
    lake_name: TableName
    storage: StorageOptions
    stopped_seconds: int
    """If this process is stopped while it holds the lock, the server ends its session after this time."""
    read: Callable[[], Base]
    """The state that is published, as the catalog has it. Raises CommitConflict if nothing can land on it."""
    stage: Callable[[Base], StagedState]
    """Writes the next state."""
    swap: Callable[[Base, LakeTable], None]
    """Moves the pointer. Raises CommitConflict."""

    def land(self) -> LakeTable:
        """Returns the state that landed. Raises CommitConflict if other writers commit at the same time all the time,
        and what the functions raise; then no file is left, unless the connection was lost."""
        for tries_left in range(_TRIES - 1, -1, -1):
            with source_errors(f"reading what is published of {self.lake_name}"):
                base = self.read()
            began = time.monotonic()
            staged = self.stage(base)
            # The pump may publish faster than anything is staged beside it. Then it waits as long as that takes.
            stages = not tries_left and time.monotonic() - began < self.stopped_seconds / 2
            try:
                return self._commit(base, staged, stages=stages)
            except CommitConflict:
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _commit(self, base: Base, staged: StagedState, *, stages: bool) -> LakeTable:
        """`stages`: if the state has changed since, another one is staged under the lock."""
        files = staged.files
        try:
            with source_errors(f"committing to {self.lake_name} in the lake"), self.connection.transaction():
                hold_slot(self.connection, self.slot, self.stopped_seconds)
                published = self.read()
                if published != base:
                    staged = self._staged_again(published, stages=stages)
                    files += staged.files
                self.swap(published, staged.table)
        except ConnectionLost:
            # It may have landed.
            raise
        except BaseException:
            discard(files, self.storage)
            raise
        discard([file for file in files if file not in staged.files], self.storage)
        return staged.table

    def _staged_again(self, published: Base, *, stages: bool) -> StagedState:
        if not stages:
            raise CommitConflict(f"another writer committed to {self.lake_name} in the lake")
        return self.stage(published)


@dataclass(frozen=True)
class Landing:
    """Lands changes of one registered table that keep all of its rows."""

    connection: PgConnection
    slot: str
    table_id: TableId
    start_lsn: Lsn
    lake_name: TableName
    storage: StorageOptions
    stopped_seconds: int = 10
    """If this process is stopped while it holds the lock, the server ends its session after this time."""

    def land_rewrite(self, rewrite: ForkedRewrite) -> LakeTable:
        """Returns the table with the rewrite. Raises CommitConflict if the table has changed in a way that the rewrite
        does not account for, LakeError and SourceError."""
        with _conflicts():
            # What takes time is done without the lock: reading what has landed since the rewrite began.
            ready = rewrite.checked(self.load_current().manifests, self.storage)
            return self.land(lambda state: _staged(state, ready))

    def land_manifests(self, merged: MergedManifests) -> LakeTable:
        """Returns the table with the merged manifests. Raises as `land_rewrite`."""

        def stage(state: LakeTable) -> StagedState:
            after = with_merged_manifests(state, merged, same_rows(state), time.time_ns() // 1_000_000)
            return StagedState(after, (after.metadata_location,))

        with _conflicts():
            return self.land(stage)

    def land_metadata(self, change: Callable[[TableMetadata, str, int], TableMetadata]) -> LakeTable:
        """Returns the table with a change that makes no snapshot. `change` gets the metadata, where it is stored, and
        the time in milliseconds since 1970 UTC. Raises as `land`."""

        def stage(state: LakeTable) -> StagedState:
            metadata = change(state.metadata, state.metadata_location, time.time_ns() // 1_000_000)
            location = next_location(metadata, state.metadata_location)
            write_all([(location, metadata.to_json())], self.storage)
            return StagedState(replace(state, metadata=metadata, metadata_location=location), (location,))

        return self.land(stage)

    def load_current(self) -> LakeTable:
        """The state that the catalog names. Raises CommitConflict, LakeError and SourceError."""
        with source_errors("reading what is published"):
            published = self._published()
        return LakeTable.load(published.metadata_location, self.storage)

    def land(self, stage: Callable[[LakeTable], StagedState]) -> LakeTable:
        """Commits what `stage` makes of the present state. Raises CommitConflict if another engine commits at the same
        time, or if the table may not be changed any more, and what `stage` raises."""

        def staged(published: Published) -> StagedState:
            return stage(LakeTable.load(published.metadata_location, self.storage))

        landing = StagedLanding(
            self.connection,
            self.slot,
            self.lake_name,
            self.storage,
            self.stopped_seconds,
            read=self._published,
            stage=staged,
            swap=self._swap,
        )
        return landing.land()

    def land_staged(self, base: LakeTable, after: LakeTable) -> None:
        """Makes `after`, which was staged on `base`, the table's state, in the caller's transaction, which holds the
        slot's lock (`hold_slot`). Raises CommitConflict if another engine has committed since, psycopg.Error."""
        published = self._published()
        if published.metadata_location != base.metadata_location:
            raise CommitConflict(f"another engine committed to {self.lake_name} in the lake")
        self._swap(published, after)

    def _published(self) -> Published:
        published = read_published(self.connection, self.table_id, self.start_lsn)
        if published is None:
            raise CommitConflict(f"{self.lake_name} was registered anew, or is being copied")
        return published

    def _swap(self, published: Published, after: LakeTable) -> None:
        head, new_head = published.former_head, TableHead.of(after)
        # Otherwise another engine has committed. What this one builds on that is another engine's work too, until the
        # pump has examined it.
        if head is not None and head.location == published.metadata_location:
            if not head.may_be_rewritten_as(new_head):
                raise LakeError(f"{self.lake_name} would not keep its rows: {head} would become {new_head}")
            if not published.has_cutline:
                publish_state(self.connection, self.table_id, after)
            record_examined(self.connection, self.table_id, self.start_lsn, head, new_head)
        schema, name = self.lake_name.schema, self.lake_name.name
        if not swap_pointer(self.connection, schema, name, published.metadata_location, after.metadata_location):
            raise CommitConflict(f"another engine committed to {self.lake_name} in the lake")


def hold_slot(connection: PgConnection, slot: str, stopped_seconds: int) -> None:
    """Keeps publishes and other landings out until the end of the caller's transaction. If this process is stopped
    meanwhile, the server ends its session after `stopped_seconds`."""
    connection.execute(_SET_TIMEOUT, (f"{stopped_seconds}s",))
    connection.execute(_LOCK, {"slot": slot})


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except FileRewriteSuperseded as error:
        raise CommitConflict(f"the pump has changed what was rewritten: {error}") from error


def same_rows(state: LakeTable) -> dict[str, str]:
    """The entries for the summary of a snapshot that holds the same rows as the state's."""
    return {name: value for name in _CARRIED if (value := state.summary.get(name)) is not None}


def _staged(state: LakeTable, rewrite: ForkedRewrite) -> StagedState:
    # The pump thins the history out, by the table's own policy.
    every_snapshot = frozenset(snapshot.snapshot_id for snapshot in state.metadata.snapshots)
    delta = RowDelta((), replaces=rewrite, summary=same_rows(state))
    staged = state.stage(delta, time.time_ns() // 1_000_000, every_snapshot)
    return StagedState(staged.table, staged.files)
