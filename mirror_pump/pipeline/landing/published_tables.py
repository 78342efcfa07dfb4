"""What is published of registered tables, and the statements that move it, for holders of the slot's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict, LakeError
from mirror_pump.lake.commit.rebase import rebase
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import PgConnection
from sql import queries

_SQL = queries("publish")


@dataclass(frozen=True)
class ExaminedState:
    """A state of a registration's lake table that holds the rows of the recorded one."""

    table_id: TableId
    start_lsn: Lsn
    old: TableHead | None
    """The recorded one."""
    head: TableHead


@dataclass(frozen=True)
class RewrittenTable:
    """A table with the same rows in other files, or under other metadata."""

    lake_name: TableName
    base: PublishedState
    """What the next state was staged on."""
    table: LakeTable

    @property
    def examined(self) -> ExaminedState | None:
        """The state to record. None if another engine has committed to the base. What builds on that is another
        engine's work too, until the pump has examined it."""
        old = former_head(self.base)
        if old is None or not self.base.examined:
            return None
        return ExaminedState(self.base.table_id, self.base.start_lsn, old, TableHead.of(self.table))


@dataclass(frozen=True)
class PublishedMove:
    """A pointer that moves together with the published snapshot."""

    table_id: TableId
    lake_name: TableName
    old: str
    """The metadata file that the next state was staged on."""
    new: str
    snapshot_id: SnapshotId
    props: Mapping[str, object]
    """What readers find in the catalog (docs/catalog-schema.md)."""


@dataclass(frozen=True)
class Swap:
    """The swap of the new content of a table that was copied again, or filled. It is valid as long as no commit moves
    the pointer."""

    staged: str
    """The metadata location that mirror_tables names at the time of the swap."""
    pointer: str
    """The pointer's value when it was read."""
    table: LakeTable
    """The table that readers see afterwards."""

    @classmethod
    def of(cls, staged: LakeTable, pointer: str) -> Swap:
        """Creates the swap, including what other engines did to the table meanwhile. Raises LakeError, or ForeignTable
        if those changes are not allowed in a mirrored table."""
        return cls(staged.metadata_location, pointer, rebase(staged, read_metadata(pointer, staged.storage)))

    @property
    def files(self) -> tuple[str, ...]:
        """Returns the files that were written for the swap."""
        location = self.table.metadata_location
        return () if location == self.staged else (location,)


def read_published(connection: PgConnection, start_lsns: Mapping[TableId, Lsn]) -> dict[TableId, PublishedState]:
    """What is published of registrations, by their start LSNs; without those that have ended, and those whose tables
    are copied."""
    states = published_states(connection, table_ids=start_lsns)
    return {each.table_id: each for each in states if each.is_settled and each.start_lsn == start_lsns[each.table_id]}


def former_head(state: PublishedState) -> TableHead | None:
    """The state that the mirror left or examined."""
    return None if state.head is None else TableHead.from_json(state.head)


def record_examined(connection: PgConnection, states: Sequence[ExaminedState]) -> bool:
    """Records the states that the mirror builds on from now on. Returns False if another one was recorded meanwhile."""
    if not states:
        return True
    parameters = {
        "table_ids": [state.table_id for state in states],
        "start_lsns": [state.start_lsn for state in states],
        "formers": [None if state.old is None else Jsonb(state.old.to_json()) for state in states],
        "heads": [Jsonb(state.head.to_json()) for state in states],
    }
    return connection.execute(_SQL["examined"], parameters).rowcount == len(states)


def publish_snapshot(lock: SlotLock, table_id: TableId, snapshot_id: SnapshotId, props: Mapping[str, object]) -> None:
    """Makes the snapshot the one that readers pin."""
    parameters = {"table_id": table_id, "snapshot_id": snapshot_id, "props": Jsonb(dict(props))}
    lock.connection.execute(_SQL["publish_snapshot"], parameters)


def publish_state(lock: SlotLock, table_id: TableId, table: LakeTable) -> None:
    """Names the table's state as the published one."""
    publish_snapshot(lock, table_id, table.snapshot_id, _props(table))


def land_rewritten(lock: SlotLock, tables: Sequence[RewrittenTable]) -> None:
    """Makes these the states of their tables, which keep all rows. Raises CommitConflict if a pointer is not where it
    was, and LakeError if a table would not keep its rows."""
    published = []
    for rewritten in tables:
        state, after = rewritten.examined, rewritten.table
        if state is not None and state.old is not None and not state.old.may_be_rewritten_as(state.head):
            raise LakeError(f"{rewritten.lake_name} would not keep its rows: {state.old} would become {state.head}")
        old, new = rewritten.base.pointer, after.metadata_location
        if state is None or rewritten.base.has_cutline:
            # The published snapshot stays where it is.
            lock.move(rewritten.lake_name, old, new)
        else:
            published.append(
                PublishedMove(state.table_id, rewritten.lake_name, old, new, after.snapshot_id, _props(after))
            )
    move_published(lock, published)
    record_examined(lock.connection, [state for rewritten in tables if (state := rewritten.examined) is not None])


def move_published(lock: SlotLock, moves: Sequence[PublishedMove]) -> None:
    """Moves pointers, and publishes the snapshots, all by one statement. Raises CommitConflict if one is not where it
    was."""
    if not moves:
        return
    rows = lock.connection.execute(
        _SQL["move_pointers"],
        {
            "table_ids": [move.table_id for move in moves],
            "namespaces": [move.lake_name.schema for move in moves],
            "lake_tables": [move.lake_name.name for move in moves],
            "old": [move.old for move in moves],
            "new": [move.new for move in moves],
            "snapshot_ids": [move.snapshot_id for move in moves],
            "props": [Jsonb(dict(move.props)) for move in moves],
        },
    )
    moved = {table_id for (table_id,) in rows.fetchall()}
    for move in moves:
        if move.table_id not in moved:
            raise CommitConflict(f"another writer committed to {move.lake_name} in the lake")


def stage_snapshot(lock: SlotLock, table_id: TableId, old: str | None, new: str, snapshot_id: SnapshotId) -> None:
    """Names the state on which the next commit builds, which readers do not see until `swap_staged`."""
    parameters = {"table_id": table_id, "old": old, "new": new, "snapshot_id": snapshot_id}
    lock.connection.execute(_SQL["stage_snapshot"], parameters)


def swap_staged(lock: SlotLock, slot: str, frontier: Lsn, swaps: Mapping[TableId, Swap]) -> None:
    """Shows readers what was copied again or filled. Raises CommitConflict if a pointer is not where it was."""
    rows = lock.connection.execute(
        _SQL["swap_in"],
        {
            "slot": slot,
            "frontier": frontier,
            "table_ids": list(swaps),
            "staged": [swap.staged for swap in swaps.values()],
            "seen": [swap.pointer for swap in swaps.values()],
            "locations": [swap.table.metadata_location for swap in swaps.values()],
            "heads": [Jsonb(TableHead.of(swap.table).to_json()) for swap in swaps.values()],
        },
    )
    if any(not swapped for (swapped,) in rows.fetchall()):
        raise CommitConflict("another writer committed to a table in the lake that was copied again")


def _props(table: LakeTable) -> dict[str, object]:
    """The pointer to the published snapshot, as the seam protocol defines it (docs/catalog-schema.md)."""
    return {"metadata_location": table.metadata_location, "snapshot_id": str(table.snapshot_id)}
