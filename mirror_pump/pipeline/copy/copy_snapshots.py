"""The database snapshots in which tables without a key are copied.

Invariant: of such a table each row is copied or comes in the stream, and never both. No stream change deletes a copied
row, as there is no key. So the whole copy is read in one database snapshot, whose place in the stream is known exactly:
a lock keeps the table's writers out while the snapshot is taken and a note is committed. Every writer has either ended
before the lock was granted (the snapshot sees its rows, and they are before the note in the stream) or writes after the
note's commit. The note has the table copied again from its commit on: what the stream brought before is removed.

The snapshot is of the copy whose start LSN is between two positions of WAL that were read under the lock: any note that
was committed between them stands for the same content. It is of no use for another file of the heap, as rows that a
rewrite has moved are not visible in it. It ends with the session of the pump; then the copy begins again.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from mirror_pump.errors import ExpectedOutcome, SourceError
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.source.connect import PgConnection, limited, source_errors
from mirror_pump.source.heap.block_reader import read_leaves
from mirror_pump.source.relations.change_notes import note_copy
from mirror_pump.source.stream.slot import wal_end
from sql import queries

_SQL = queries("copy")


_IN_THE_WAY = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    # It was renamed or dropped while it was being locked.
    psycopg.errors.UndefinedTable,
)


_LONGEST_LOCK = "2s"
"""How long writers wait at most for this process to go on. It takes a few milliseconds."""
_MOST = 4
"""Snapshots at a time, each of which takes a connection. Copies of further tables wait for them."""


@dataclass(frozen=True)
class CopySnapshot:
    """A database snapshot that is held for the copy of one table."""

    name: str
    """For SET TRANSACTION SNAPSHOT."""
    filenodes: frozenset[int]
    """Of the table's heap, or those of its partitions."""
    earliest: Lsn
    """Read under the lock, before the note was committed."""
    latest: Lsn
    """Read under the lock, after the note was committed."""
    connection: PgConnection
    """Its transaction keeps the snapshot."""


class CopySnapshots:
    """The snapshots of one session. Owned by the copier's thread."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._snapshots: dict[TableId, CopySnapshot] = {}

    def snapshot_of(self, table: MirroredTable) -> CopySnapshot | None:
        """The snapshot in which this copy of the table is read. If there is none, one is taken, and the table is to be
        copied again from there: None until the stream has brought the note."""
        snapshot = self._snapshots.get(table.table_id)
        if snapshot is not None and table.start_lsn < snapshot.earliest:
            return None
        if snapshot is not None and table.start_lsn <= snapshot.latest:
            return snapshot
        self.release(table.table_id)
        if len(self._snapshots) < _MOST:
            with suppress(_TableLocked):
                self._snapshots[table.table_id] = self._take(table)
        return None

    def release(self, table_id: TableId) -> None:
        """The table's snapshot is not needed any more."""
        snapshot = self._snapshots.pop(table_id, None)
        if snapshot is not None:
            snapshot.connection.close()

    def keep_only(self, table_ids: Collection[TableId]) -> None:
        """Release the snapshots of all other tables."""
        for table_id in self._snapshots.keys() - set(table_ids):
            self.release(table_id)

    def close(self) -> None:
        """Release all snapshots."""
        self.keep_only(())

    def _take(self, table: MirroredTable) -> CopySnapshot:
        """Raises _TableLocked if an open transaction has written to the table or alters it."""
        reader = self._context.connect()
        try:
            with (
                self._context.connect() as noting,
                self._context.connect() as holder,
                source_errors(f"beginning to copy {table.name}"),
                limited(holder),
            ):
                filenodes = _lock(holder, table)
                reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                exported = reader.execute("SELECT pg_export_snapshot()").fetchone()
                assert exported is not None
                earliest = wal_end(holder)
                note_copy(noting, table.table_id)
                # This fails if the server has ended the transaction, and with it the lock.
                return CopySnapshot(str(exported[0]), filenodes, earliest, wal_end(holder), reader)
        except BaseException as error:
            reader.close()
            if isinstance(error, SourceError) and isinstance(error.__cause__, _IN_THE_WAY):
                raise _TableLocked from error
            raise


def _lock(connection: PgConnection, table: MirroredTable) -> frozenset[int]:
    """Keeps the table's writers out until the transaction ends, which the server sees to should this process hang.
    The files of its heaps, which nothing can add to or exchange meanwhile."""
    connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", (_LONGEST_LOCK,))
    row = connection.execute(_SQL["hold"], {"table_id": table.table_id}).fetchone()
    if row is None or row[0] is None:
        raise _TableLocked
    return frozenset(leaf.filenode for leaf in read_leaves(connection, table.table_id))


class _TableLocked(ExpectedOutcome):
    """The table's lock was not granted in time. Another try may succeed."""
