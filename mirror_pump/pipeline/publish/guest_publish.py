"""Publishes within a transaction of a process that does not lead, under the slot's lock.

Only the leader moves the frontier, and nobody else does here. A guest moves the pointer and the published snapshot of
one table, for an operation that has nothing to do with the stream. It is safe beside a leader for three reasons:

- Every publish takes the lock of the slot's row first, and holds it to its end, and so does a guest. So the two come
  one after the other.
- The leader reads each table's registration before it stages, and moves the pointer only if it is where it was read. A
  commit of a guest in between is a conflict like that of any other engine, and the leader stages again. It drops the
  table's key index, which knows nothing of the guest's files.
- A guest does not touch `publish_id`, `applied_lsn` or the epoch, from which the leader and its successors tell what
  has landed.
"""

from __future__ import annotations

from dataclasses import replace

from mirror_pump.backoff import RetryPolicy
from mirror_pump.errors import SourceError, TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.operations.operation import Cursor
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.publisher import LockedSlotRow, Publisher
from mirror_pump.pipeline.publish.staged_publish import StagedPublish
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("publish")


class GuestPublisher(Publisher):
    """Publishes one request in the open transaction of `connection`, which is the caller's to commit."""

    def __init__(self, connection: PgConnection, slot: str, storage: StorageOptions) -> None:
        row = connection.execute(_SQL["timeline"]).fetchone()
        assert row is not None
        super().__init__(
            connect=lambda: connection,
            slot=slot,
            epoch=0,
            storage=storage,
            retry=RetryPolicy(),
            indexes=KeyIndexes(0, storage),
            staged=lambda _: None,
            timeline=int(row[0]),
        )
        self._pending: tuple[StagedPublish, dict[TableId, Registration]] | None = None

    def lock(self, cursor: Cursor) -> None:
        """Locks the slot's row until the end of the transaction or savepoint. Raises SourceError if it is gone."""
        slot = fetch_row(cursor.connection, LockedSlotRow, _SQL["lock_slot"], {"slot": self._slot})
        if slot is None:
            raise SourceError(f"the catalog no longer knows slot {self._slot}", "run `mirror-pump init` again")
        self._applied = slot.applied_lsn

    def stage(self, request: PublishRequest) -> None:
        """Writes the lake's commit, for the catalog as it is now. What was staged for another state is removed.

        Raises TableError if the table cannot take it.
        """
        self.discard()
        registered = self._read_registrations([part.table.table_id for part in request.tables])
        staged = self._stager.stage(request, registered, ())
        self._pending = staged, dict(registered)
        try:
            _require_whole(staged, request)
        except BaseException:
            self.discard()
            raise

    def is_staged(self) -> bool:
        """Whether what was staged still fits the catalog. Call it under the slot's lock."""
        if self._pending is None:
            return False
        present = self._read_registrations(list(self._pending[1]))
        return _without_time(present) == _without_time(self._pending[1])

    def land(self, cursor: Cursor, request: PublishRequest) -> None:
        """Carries out what was staged. Call it under the slot's lock. Raises CommitConflict if another engine
        committed meanwhile."""
        assert self._pending is not None
        for accepted in self._pending[0].accepted:
            self._apply(cursor, accepted, request.written_since)

    def discard(self) -> None:
        """Removes the files of what was staged. Call it only if the transaction certainly failed."""
        if self._pending is not None:
            self._stager.discard(self._pending[0])
            self._pending = None

    def keep(self) -> None:
        """What was staged has landed, or may have: its files stay."""
        self._pending = None


def _without_time(registered: dict[TableId, Registration]) -> dict[TableId, object]:
    return {table_id: replace(row, read_at=None) for table_id, row in registered.items()}  # type: ignore[arg-type]


def _require_whole(staged: StagedPublish, request: PublishRequest) -> None:
    """Raises TableError, unless everything that was requested is staged."""
    if staged.failures:
        raise TableError(staged.failures[0].error)
    if staged.dropped or staged.refused:
        names = ", ".join(str(part.table.name) for part in request.tables)
        raise TableError(
            f"{names} is being copied or filled, was altered, or was registered again",
            "try again when `mirror-pump status` shows it as live",
        )
