"""The publish transaction: the only place where the lake, the frontier and the copies' progress change.

Invariant: `mirror_slots.applied_lsn` = A if and only if, in every mirrored table that is not failed, exactly the
transactions that end at or below A are in the lake (design section 3). It holds because Iceberg's pointers are
rows of the same database: one COMMIT moves them and A. Whoever holds a `LandedPublish` knows that such a COMMIT
happened; only this module makes one, and the slot can be acknowledged with nothing else.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyiceberg.table  # noqa: F401 - else its first use, in the middle of the first batch, takes the half second it needs
from psycopg.types.json import Jsonb
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from mirror_pump.errors import CommitConflict, ConnectionLost, NotLeader, OutcomeUnknown, TableError
from mirror_pump.lake.catalog import swap_pointer
from mirror_pump.lake.commit import BornFile, LakeTable, RowDelta, StagedCommit
from mirror_pump.lake.storage import StorageOptions, delete
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState, format_lsn
from mirror_pump.pipeline.requests import PublishRequest, TableDelta
from mirror_pump.source.connect import PgConnection
from sql import queries

FRONTIER_PROPERTY = "mirror-pump.frontier"
"""Snapshot summary key: the F that the snapshot was published with, in Postgres's notation."""

_SQL = queries("publish")

_MADE_HERE = object()


@dataclass(frozen=True)
class LandedPublish:
    """Proof that a publish transaction committed. Only `Publisher` makes one."""

    frontier: Lsn
    """Everything that ends at or below it is in the lake."""
    live: tuple[TableId, ...] = ()
    """Tables that became live with this publish."""
    dropped: tuple[TableId, ...] = ()
    """Tables whose changes were left out: unregistered, registered anew, or failed meanwhile."""
    snapshots: int = 0
    """Iceberg snapshots committed."""
    seal: object = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.seal is not _MADE_HERE:
            raise TypeError("a LandedPublish comes from Publisher.publish() and from nowhere else")


@dataclass(frozen=True)
class _Registered:
    """A table's row in the catalog as it stands now."""

    state: TableState
    start_lsn: Lsn
    generation: int
    metadata_location: str
    pinned: frozenset[int]


@dataclass(frozen=True)
class RetryPolicy:
    """How often a publish that met a conflict is tried, and how long the pauses between get."""

    attempts: int = 16
    longest_pause: float = 10.0
    """Seconds; pauses grow exponentially from 50 ms, with jitter."""


class Publisher:
    """Stages Iceberg commits and publishes them. One thread at a time; keeps the tables' metadata in memory.

    The outcome of a publish is landed, failed or unknown. Unknown (the connection broke during COMMIT) is resolved
    through a new connection: the slot's row is locked, which waits for the old backend to end, then read.
    """

    def __init__(
        self,
        connect: Callable[[], PgConnection],
        slot: str,
        epoch: int,
        storage: StorageOptions,
        retry: RetryPolicy,
        staged: Callable[[PublishRequest], None],
    ) -> None:
        self._connect = connect
        self._connection = connect()
        self._slot = slot
        self._epoch = epoch
        self._storage = storage
        self._retry = retry
        self._staged = staged
        self._tables: dict[TableId, LakeTable] = {}
        self._applied = Lsn(0)
        self._publish_id = 0
        self._in_commit = False

    def close(self) -> None:
        self._connection.close()

    def load(self, table: MirroredTable) -> LakeTable:
        """The table's present state in the lake. TableError when it is not registered (any more)."""
        row = self._read_registrations([table.table_id]).get(table.table_id)
        if row is None:
            raise TableError(f"{table.name} is not registered any more")
        return self._known(table.table_id, row)

    def publish(self, request: PublishRequest) -> LandedPublish:
        """Make the request true, in one transaction.

        Raises NotLeader when another pump took over, ConnectionLost when the publish certainly did not happen, and
        CommitConflict when the retries are used up.
        """
        for attempt in Retrying(
            stop=stop_after_attempt(self._retry.attempts),
            wait=wait_random_exponential(multiplier=0.05, max=self._retry.longest_pause),
            retry=retry_if_exception_type(CommitConflict),
            reraise=True,
        ):
            with attempt:
                return self._publish_once(request)
        raise AssertionError("tenacity either returns or raises")

    def _publish_once(self, request: PublishRequest) -> LandedPublish:
        registered = self._read_registrations([delta.table.table_id for delta in request.deltas])
        failing = {failure.table.table_id for failure in request.failures}
        accepted: list[tuple[TableDelta, StagedCommit | None]] = []
        dropped: list[TableId] = []
        try:
            for delta in sorted(request.deltas, key=lambda delta: delta.table.table_id):
                row = registered.get(delta.table.table_id)
                if row is None or row.start_lsn != delta.table.start_lsn or row.state is TableState.FAILED:
                    dropped.append(delta.table.table_id)
                elif delta.table.table_id not in failing:
                    current = _of_generation(delta, row.generation)
                    accepted.append((current, self._stage(current, row, request.frontier)))
            self._staged(request)
            live = self._transaction(request, accepted, registered)
        except (CommitConflict, NotLeader):
            self._discard(accepted)
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            live = self._resolve(error)
        for delta, staged in accepted:
            if staged is not None:
                self._tables[delta.table.table_id] = staged.table
        return LandedPublish(
            frontier=self._applied,
            live=live,
            dropped=tuple(dropped),
            snapshots=sum(staged is not None for _, staged in accepted),
            seal=_MADE_HERE,
        )

    def _read_registrations(self, table_ids: Sequence[TableId]) -> dict[TableId, _Registered]:
        if not table_ids:
            return {}
        rows = self._execute(_SQL["registrations"], {"table_ids": list(table_ids)})
        return {
            TableId(table_id): _Registered(TableState(state), Lsn(start), generation, location, frozenset(pins))
            for table_id, state, start, generation, location, pins in rows
        }

    def _stage(self, delta: TableDelta, row: _Registered, frontier: Lsn | None) -> StagedCommit | None:
        born = tuple(
            BornFile(chunk.file, delta.table.born_sequence) for chunk in delta.chunks if chunk.file is not None
        )
        if not (delta.segments or born or delta.truncate or delta.restart_copy):
            return None
        return self._known(delta.table.table_id, row).stage(
            RowDelta(
                segments=delta.segments,
                born=born,
                replace=delta.truncate,
                remove_born=delta.table.born_sequence if delta.restart_copy else None,
                summary={} if frontier is None else {FRONTIER_PROPERTY: format_lsn(frontier)},
            ),
            now_ms=time.time_ns() // 1_000_000,
            keep=row.pinned,
        )

    def _known(self, table_id: TableId, row: _Registered) -> LakeTable:
        """The state that the pointer names; from memory unless another engine committed."""
        known = self._tables.get(table_id)
        if known is None or known.metadata_location != row.metadata_location:
            known = self._tables[table_id] = LakeTable.load(row.metadata_location, self._storage)
        return known

    def _transaction(
        self,
        request: PublishRequest,
        accepted: Sequence[tuple[TableDelta, StagedCommit | None]],
        registered: dict[TableId, _Registered],
    ) -> tuple[TableId, ...]:
        """All of it in one transaction; returns the tables that went live. CommitConflict: nothing was done."""
        self._in_commit = False
        self._publish_id = random.getrandbits(63)
        connection = self._open()
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(_SQL["lock_slot"], {"slot": self._slot})
            slot = cursor.fetchone()
            if slot is None or slot[0] != self._epoch:
                raise NotLeader(
                    f"another pump has taken over slot {self._slot} (epoch {slot and slot[0]}, ours is {self._epoch})",
                    "Stop one of the two; nothing of this batch was published by this one.",
                )
            applied = Lsn(slot[1])
            self._applied = Lsn(max(applied, request.frontier or 0))
            for delta, staged in accepted:
                self._apply(cursor, delta, staged, registered[delta.table.table_id])
            for failure in request.failures:
                cursor.execute(
                    _SQL["fail"],
                    {
                        "table_id": failure.table.table_id,
                        "start_lsn": failure.table.start_lsn,
                        "error": failure.error,
                    },
                )
            cursor.execute(
                _SQL["advance"],
                {
                    "slot": self._slot,
                    "frontier": self._applied,
                    "publish_id": self._publish_id,
                    "commit_time": request.commit_time_us / 1e6,
                },
            )
            cursor.execute(_SQL["go_live"], {"slot": self._slot, "frontier": self._applied})
            live = tuple(TableId(row[0]) for row in cursor.fetchall())
            cursor.execute(_SQL["promise"], {"slot": self._slot, "frontier": self._applied})
            self._in_commit = True
        self._in_commit = False
        return live

    def _apply(
        self,
        cursor: psycopg.Cursor[tuple[Any, ...]],
        delta: TableDelta,
        staged: StagedCommit | None,
        row: _Registered,
    ) -> None:
        """One table's part of the transaction: pointer, S, chunks, registration row."""
        table = delta.table
        again = delta.restart_copy or (delta.truncate and row.state is TableState.COPYING)
        cursor.execute(
            _SQL["touch_table"],
            {
                "table_id": table.table_id,
                "start_lsn": table.start_lsn,
                "generation": row.generation,
                "again": again,
                "not_live_before": delta.not_live_before,
            },
        )
        if cursor.rowcount != 1:
            raise CommitConflict(f"the registration of {table.name} changed while it was being published")
        if staged is not None:
            if not swap_pointer(
                cursor, table.name.schema, table.lake_table, row.metadata_location, staged.new_location
            ):
                raise CommitConflict(f"another writer committed to {table.name} in the lake")
            cursor.execute(
                _SQL["publish_snapshot"],
                {
                    "table_id": table.table_id,
                    "snapshot_id": staged.snapshot_id,
                    "props": Jsonb(lake_props(staged)),
                },
            )
        if again:
            cursor.execute(_SQL["forget_chunks"], {"table_id": table.table_id})
        elif delta.chunks:
            for chunk in delta.chunks:
                cursor.execute(
                    _SQL["chunk_done"],
                    {
                        "table_id": table.table_id,
                        "generation": chunk.generation,
                        "chunk_no": chunk.chunk_no,
                        "rows": chunk.rows,
                    },
                )
            cursor.execute(_SQL["copy_progress"], {"table_id": table.table_id, "generation": row.generation})

    def _resolve(self, error: psycopg.Error) -> tuple[TableId, ...]:
        """The connection broke. Before COMMIT was sent, the publish failed; after that, ask the database.

        Every publish leaves a random number in the slot's row, and nobody but the leader writes that row: it holds
        our number if and only if our COMMIT happened.
        """
        if not self._in_commit:
            raise ConnectionLost(f"the connection was lost before the publish was committed: {error}") from error
        try:
            connection = self._open()
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(_SQL["lock_slot"], {"slot": self._slot})
                slot = cursor.fetchone()
                landed = slot is not None and slot[2] == self._publish_id
        except (psycopg.OperationalError, psycopg.InterfaceError) as again:
            raise OutcomeUnknown(
                f"the connection was lost during COMMIT, and its outcome could not be read: {again}",
                "The pump reads it back when it reconnects; no file of this publish was deleted.",
            ) from again
        if not landed:
            raise ConnectionLost(f"the connection was lost during COMMIT, which did not happen: {error}") from error
        # Which tables went live is read from the catalog when the pump starts over; here it is only an optimisation.
        return ()

    def _discard(self, accepted: Sequence[tuple[TableDelta, StagedCommit | None]]) -> None:
        """Remove the metadata files of a publish that certainly failed."""
        for _, staged in accepted:
            for path in () if staged is None else staged.files:
                delete(path, self._storage)

    def _open(self) -> PgConnection:
        if self._connection.closed or self._connection.broken:
            self._connection = self._connect()
        return self._connection

    def _execute(self, query: str, parameters: dict[str, object]) -> list[tuple[Any, ...]]:
        try:
            with self._open().cursor() as cursor:
                return list(cursor.execute(query, parameters))
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise ConnectionLost(f"the connection to the catalog was lost: {error}") from error


def lake_props(staged: StagedCommit) -> dict[str, object]:
    """The published pointer to S, as the seam protocol names its parts (seeds/002, cutline.lake_props)."""
    return {"metadata_location": staged.new_location, "snapshot_id": str(staged.snapshot_id)}


def _of_generation(delta: TableDelta, generation: int) -> TableDelta:
    """Without chunks that were read for a copy that has started again since."""
    stale = delta.table.generation != generation
    # What was read before a TRUNCATE, or for a copy that starts again, is not part of the table.
    again = delta.truncate or delta.restart_copy
    return replace(
        delta,
        chunks=tuple(chunk for chunk in delta.chunks if chunk.generation == generation and not again),
        restart_copy=delta.restart_copy and not stale,
    )
