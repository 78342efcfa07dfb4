"""The publish transaction: the only place where the lake, the frontier and the copies' progress change.

Invariant: `mirror_slots.applied_lsn` = A if and only if, in every mirrored table that is not failed, exactly the
transactions that end at or below A are in the lake (design section 3). It holds because Iceberg's pointers are
rows of the same database: one COMMIT moves them and A. Whoever holds a `LandedPublish` knows that such a COMMIT
happened; only this module makes one, and the slot can be acknowledged with nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyiceberg.table  # noqa: F401 - else its first use, in the middle of the first batch, takes the half second it needs
from psycopg.types.json import Jsonb
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    NotLeader,
    OutcomeUnknown,
    TableError,
)
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.row_delta import LakeTable, StagedCommit
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import (
    Lsn,
    MirroredTable,
    SnapshotId,
    TableId,
    TableState,
)
from mirror_pump.pipeline.flow.batches import Failure
from mirror_pump.pipeline.flow.requests import PublishRequest, TierAdvance
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.publish.catalog_changes import rename, store_change
from mirror_pump.pipeline.publish.registrations import Registration, registration_of
from mirror_pump.pipeline.publish.staging import (
    AdvanceRefused,
    Staged,
    StagedDelta,
    Stager,
    lake_table_gone,
    starts_copy,
    with_due_tables,
)
from mirror_pump.pipeline.publish.swap_in import DueTable, Swap
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection
from mirror_pump.source.stream.publication import record_published, refuse_changed
from sql import queries

_SQL = queries("publish")
_FOLD_SQL = queries("fold")

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
    refused: tuple[TableId, ...] = ()
    """Tables whose resolution was left out: it does not fit their present state."""
    failures: tuple[Failure, ...] = ()
    """Tables that it set aside: those that it was asked to, and those whose lake table cannot take their columns. Not
    those that are not registered any more, or anew."""
    tables: Mapping[TableId, LakeTable] = field(default_factory=dict, repr=False)
    """The tables that it committed to, as they are now."""
    snapshots: int = 0
    """Iceberg snapshots committed."""
    seal: object = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.seal is not _MADE_HERE:
            raise TypeError("a LandedPublish comes from Publisher.publish() and from nowhere else")


@dataclass(frozen=True)
class RetryPolicy:
    """How often a publish that met a conflict is tried, and how long the pauses between get."""

    attempts: int = 16
    longest_pause: float = 10.0
    """Seconds; pauses grow exponentially from 50 ms, with jitter."""


@dataclass(frozen=True)
class _Landed:
    """What became of tables in a publish that landed."""

    live: tuple[TableId, ...]
    failures: tuple[Failure, ...]


class Publisher:
    """Stages Iceberg commits and publishes them. One thread at a time.

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
        indexes: KeyIndexes,
        staged: Callable[[PublishRequest], None],
    ) -> None:
        self._connect = connect
        self._connection = connect()
        self._slot = slot
        self._epoch = epoch
        self._retry = retry
        self._indexes = indexes
        self._staged = staged
        self._stager = Stager(storage, indexes, self._left_to_the_lake)
        self._applied = Lsn(0)
        self._publish_id = 0
        self.may_have_landed = False
        """COMMIT of the last publish was sent, and it is not known that it did not happen: its files are to stay."""

    def close(self) -> None:
        self._connection.close()

    def load(self, table: MirroredTable) -> LakeTable:
        """The table's present state in the lake. TableError when this registration is no more, or its lake table."""
        row = self._read_registrations([table.table_id]).get(table.table_id)
        if row is None or row.start_lsn != table.start_lsn:
            raise TableError(f"{table.name} is not registered any more")
        if row.lake_table_missing:
            raise lake_table_gone(table)
        return self._stager.known(table.table_id, row.metadata_location)

    def publish(self, request: PublishRequest) -> LandedPublish:
        """Make the request true, in one transaction.

        Raises NotLeader when another pump took over, LakeError when the storage fails (CommitConflict when the retries
        are used up), and ConnectionLost (PublicationChanged when the batch may lack changes): in all these cases the
        publish certainly did not happen. OutcomeUnknown when nobody can say yet.
        """
        for attempt in Retrying(
            stop=stop_after_attempt(self._retry.attempts),
            wait=wait_random_exponential(multiplier=0.05, max=self._retry.longest_pause),
            # What landed must not be published once more, whatever is raised behind it.
            retry=retry_if_exception(lambda error: isinstance(error, CommitConflict) and not self.may_have_landed),
            reraise=True,
        ):
            with attempt:
                return self._publish_once(request)
        raise AssertionError("tenacity either returns or raises")

    def _publish_once(self, request: PublishRequest) -> LandedPublish:
        self.may_have_landed = False
        due = self._due_tables(request.frontier)
        request = with_due_tables(request, due)
        registered = self._read_registrations([delta.table.table_id for delta in request.deltas])
        staged = self._stager.stage(request, registered, due)
        try:
            self._stager.complete(due, staged)
            self._staged(request)
        except BaseException:
            self._stager.discard(staged)
            raise
        request = replace(request, failures=(*request.failures, *staged.failures))
        try:
            landed = self._transaction(request, staged, registered)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            try:
                landed = self._resolve(error, request)
            except ConnectionLost:
                self._stager.discard(staged)
                raise
        except BaseException:
            # Of everything else that is raised after COMMIT was sent nobody knows what became of it.
            if not self.may_have_landed:
                self._stager.discard(staged)
            raise
        committed = self._stager.landed(staged, landed.live)
        return LandedPublish(
            frontier=self._applied,
            live=landed.live,
            dropped=tuple(staged.dropped),
            refused=tuple(staged.refused),
            failures=landed.failures,
            # A table that goes live has a delta of its own, which is not the one that was left out.
            tables={table_id: table for table_id, table in committed.items() if table_id not in staged.dropped},
            snapshots=len(committed),
            seal=_MADE_HERE,
        )

    def _left_to_the_lake(self, table_id: TableId) -> str | None:
        """Which of the table's rows only the lake has; None if there are none."""
        found = self._execute(_SQL["left_to_the_lake"], {"table_id": table_id})
        return str(found[0][0]) if found and found[0][0] is not None else None

    def _due_tables(self, frontier: Lsn | None) -> list[DueTable]:
        """The tables that go live at this F, or at the present one."""
        rows = self._execute(_SQL["due_to_go_live"], {"slot": self._slot, "frontier": frontier})
        tables = [(load_table(self._open(), TableId(row[0])), *row[1:]) for row in rows]
        return [DueTable(table, *others) for table, *others in tables if table is not None]

    def _read_registrations(self, table_ids: Sequence[TableId]) -> dict[TableId, Registration]:
        if not table_ids:
            return {}
        pin_in_hand = bool(self._execute(_SQL["pin_in_hand"], {})[0][0])
        rows = self._execute(_SQL["registrations"], {"table_ids": list(table_ids)})
        return {TableId(row[0]): registration_of(row[1:], pin_in_hand=pin_in_hand) for row in rows}

    def _transaction(
        self,
        request: PublishRequest,
        staged: Staged,
        registered: dict[TableId, Registration],
    ) -> _Landed:
        """All of it in one transaction. CommitConflict: nothing was done."""
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
            for one in staged.accepted:
                self._apply(cursor, one, registered[one.delta.table.table_id], request.written_since)
            failures = tuple(failure for failure in request.failures if _set_aside(cursor, failure))
            cursor.execute(
                _SQL["advance"],
                {
                    "slot": self._slot,
                    "frontier": self._applied,
                    "publish_id": self._publish_id,
                    "commit_time": request.commit_time_us / 1e6,
                },
            )
            rename(cursor, [one.delta for one in staged.accepted])
            self._swap_in(cursor, staged.swaps)
            live = self._go_live(cursor, staged.going_live - {failure.table.table_id for failure in failures})
            cursor.execute(_SQL["promise"], {"slot": self._slot, "frontier": self._applied})
            # The last thing that is looked at: the later, the less can have come behind its commit record unseen.
            refuse_changed(cursor, self._slot)
            self.may_have_landed = True
        return _Landed(live, failures)

    def _apply(
        self,
        cursor: psycopg.Cursor[tuple[Any, ...]],
        accepted: StagedDelta,
        row: Registration,
        written_since: float,
    ) -> None:
        """One table's part of the transaction: pointer, S, chunks, registration row."""
        delta, staged, archive = accepted.delta, accepted.staged, accepted.archive
        table = delta.table
        if delta.advance is not None:
            self._advance(cursor, table, delta.advance)
        again = starts_copy(delta, row)
        cursor.execute(
            _SQL["touch_table"],
            {
                "table_id": table.table_id,
                "start_lsn": row.start_lsn,
                "generation": row.generation,
                "again": again,
                "not_live_before": delta.not_live_before,
                "written_since": written_since,
                "read_at": row.read_at,
                "born_sequence": accepted.data_sequence_number,
                "key_index": Jsonb(self._deletes(accepted)),
            },
        )
        if cursor.rowcount != 1:
            raise CommitConflict(f"the registration of {table.name} changed while it was being published")
        if delta.change is not None:
            store_change(cursor, delta.change, accepted.dropped_rows)
        if delta.republished:
            record_published(cursor, self._slot, [table.table_id])
        if staged is not None and (row.staged or ((delta.copies or delta.fills) and row.state is TableState.LIVE)):
            # Readers stay at S, and at the F that was promised with it, until copy or fill is complete (swap_in).
            cursor.execute(
                _SQL["stage_snapshot"],
                {
                    "table_id": table.table_id,
                    "old": row.metadata_location if row.staged else None,
                    "new": staged.new_location,
                    "snapshot_id": staged.snapshot_id,
                },
            )
        elif accepted.table is not None:
            new = accepted.table.metadata_location
            if not swap_pointer(cursor, row.namespace, row.lake_table, row.metadata_location, new):
                raise CommitConflict(f"another writer committed to {table.name} in the lake")
            if archive is not None:
                props = {"metadata_location": archive.seam_location, "snapshot_id": str(archive.snapshot_id)}
                self._publish_snapshot(cursor, table, archive.snapshot_id, props)
            elif staged is not None and row.tier is None:
                self._publish_snapshot(cursor, table, staged.snapshot_id, lake_props(staged))
        if delta.fold is not None and archive is not None:
            cursor.execute(
                _SQL["mark_folded"],
                {
                    "table_id": table.table_id,
                    "sequence": archive.sequence_number,
                    "pks": [pk for pk, _ in delta.fold.versions],
                    "versions": [version for _, version in delta.fold.versions],
                },
            )
            cursor.execute(
                _FOLD_SQL["journal"],
                {
                    "table_id": table.table_id,
                    "snapshot_id": archive.snapshot_id,
                    "details": Jsonb({"operation": "fold", "kind": "fold", "rows": len(delta.fold.versions)}),
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

    def _swap_in(self, cursor: psycopg.Cursor[tuple[Any, ...]], swaps: Mapping[TableId, Swap]) -> None:
        """What was copied again becomes what readers see. CommitConflict: another engine committed meanwhile."""
        cursor.execute(
            _SQL["swap_in"],
            {
                "slot": self._slot,
                "frontier": self._applied,
                "table_ids": list(swaps),
                "staged": [swap.staged for swap in swaps.values()],
                "seen": [swap.seen for swap in swaps.values()],
                "locations": [swap.table.metadata_location for swap in swaps.values()],
            },
        )
        if any(not swapped for (swapped,) in cursor.fetchall()):
            raise CommitConflict("another writer committed to a table in the lake that was copied again")

    def _go_live(self, cursor: psycopg.Cursor[tuple[Any, ...]], expected: Collection[TableId]) -> tuple[TableId, ...]:
        """CommitConflict if other tables go live than those whose snapshots say so: a copy was completed, or given
        up, since these were staged."""
        cursor.execute(_SQL["go_live"], {"slot": self._slot, "frontier": self._applied})
        live = tuple(TableId(row[0]) for row in cursor.fetchall())
        if set(live) != set(expected):
            raise CommitConflict("the copy of a table was completed or given up while this was being published")
        return live

    def _deletes(self, accepted: StagedDelta) -> dict[str, object]:
        """What `status` is told with a commit: the table's index, and how deletes were written if there were any."""
        mode = accepted.encoded.mode if accepted.encoded is not None else None
        return {**self._indexes.report(accepted.delta.table.table_id), **({} if mode is None else {"mode": mode})}

    def _publish_snapshot(
        self,
        cursor: psycopg.Cursor[tuple[Any, ...]],
        table: MirroredTable,
        snapshot_id: SnapshotId,
        props: Mapping[str, object],
    ) -> None:
        cursor.execute(
            _SQL["publish_snapshot"],
            {"table_id": table.table_id, "snapshot_id": snapshot_id, "props": Jsonb(dict(props))},
        )

    def _advance(self, cursor: psycopg.Cursor[tuple[Any, ...]], table: MirroredTable, advance: TierAdvance) -> None:
        """The heap's part of moving T, under the partition's lock. AdvanceRefused: not now."""
        try:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
            cursor.execute(
                _SQL["advance_cutline"],
                {
                    "table_id": table.table_id,
                    "partition_id": advance.partition_id,
                    "cut": advance.cut,
                    "frontier": self._applied,
                },
            )
            row = cursor.fetchone()
            cursor.execute("SET LOCAL lock_timeout = DEFAULT")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            raise AdvanceRefused("the partition is locked by others") from error
        except (psycopg.OperationalError, psycopg.InterfaceError):
            raise
        except psycopg.Error as error:
            raise AdvanceRefused(str(error)) from error
        if row is None or row[0] is not None:
            raise AdvanceRefused(str(row[0] if row else "the table is not registered any more"))

    def _resolve(self, error: psycopg.Error, request: PublishRequest) -> _Landed:
        """The connection broke. Before COMMIT was sent, the publish failed; after that, ask the database.

        Every publish leaves a random number in the slot's row, and nobody but the leader writes that row: while we
        lead, it holds our number if and only if our COMMIT happened. Another pump may have replaced it since.
        """
        if not self.may_have_landed:
            raise ConnectionLost(f"the connection was lost before the publish was committed: {error}") from error
        try:
            connection = self._open()
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(_SQL["lock_slot"], {"slot": self._slot})
                slot = cursor.fetchone()
        except (psycopg.OperationalError, psycopg.InterfaceError, ConnectionLost) as again:
            raise OutcomeUnknown(
                f"the connection was lost during COMMIT, and its outcome could not be read: {again}",
                "The pump reads it back when it reconnects; no file of this publish was deleted.",
            ) from again
        landed = slot is not None and slot[2] == self._publish_id
        if not landed and (slot is None or slot[0] != self._epoch):
            raise OutcomeUnknown(
                "the connection was lost during COMMIT, and another pump took over before its outcome was read",
                "No file of this publish was deleted; what the other pump publishes is right either way.",
            ) from error
        if not landed:
            self.may_have_landed = False
            raise ConnectionLost(f"the connection was lost during COMMIT, which did not happen: {error}") from error
        # Which tables went live is read from the catalog when the pump starts over; here it is only an optimisation.
        return _Landed((), request.failures)

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


def _set_aside(cursor: psycopg.Cursor[tuple[Any, ...]], failure: Failure) -> bool:
    """False if the registration that failed is no more."""
    table = failure.table
    where = {"table_id": table.table_id, "start_lsn": table.start_lsn, "error": failure.error}
    return cursor.execute(_SQL["fail"], where).rowcount == 1


def lake_props(staged: StagedCommit) -> dict[str, object]:
    """The published pointer to S, as the seam protocol names its parts (seeds/002, cutline.lake_props)."""
    return {"metadata_location": staged.new_location, "snapshot_id": str(staged.snapshot_id)}
