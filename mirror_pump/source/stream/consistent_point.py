"""A consistent point: a WAL position, and a snapshot that sees exactly the transactions that ended before it.

It is made by creating a logical slot with an exported snapshot (protocol docs, CREATE_REPLICATION_SLOT). That takes no
lock, and later changes can be streamed from the same slot.
"""

from __future__ import annotations

import select
import time
from typing import Self

from psycopg import pq

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import SourceError, one_line_of
from mirror_pump.model import Lsn, format_lsn, parse_lsn
from mirror_pump.source.connect import replication_connect
from mirror_pump.source.stream.replication_stream import ReplicationStream


class ConsistentPoint:
    """A context manager. The snapshot can be imported until `stream` is called. A temporary slot ends with the
    connection."""

    def __init__(self, dsn: str, slot: str, timeout: float, *, temporary: bool = True) -> None:
        """Without `temporary`, the slot is the mirror's: it stays, with failover since PostgreSQL 17.

        Raises SourceError if the point is not reached within `timeout` seconds: transactions that were running at
        the start have to end first."""
        self._slot = slot
        self._temporary = temporary
        self._connection = replication_connect(dsn, application_name="mirror-pump-verify")
        try:
            self._create(timeout)
        except BaseException:
            self._connection.finish()
            raise

    def _create(self, timeout: float) -> None:
        connection = self._connection
        connection.send_query(self._command(connection.server_version).encode())
        connection.flush()
        deadline = time.monotonic() + timeout
        while connection.is_busy():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise SourceError(
                    f"no consistent point was reached within {timeout:.0f} s: a transaction is open all the while",
                    "See pg_stat_activity for transactions with a backend_xid; wait for them or end them.",
                )
            select.select([connection.socket], [], [], remaining)
            connection.consume_input()
        result = connection.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            message = one_line_of(connection.get_error_message())
            raise SourceError(
                f"no slot could be made: {message}",
                "It needs one free slot (max_replication_slots) and one free walsender (max_wal_senders).",
            )
        while connection.get_result() is not None:
            pass
        _, point, snapshot, _ = (result.get_value(0, column) for column in range(4))
        assert point is not None
        assert snapshot is not None
        self.lsn: Lsn = parse_lsn(point.decode())
        self.snapshot: str = snapshot.decode()
        """For SET TRANSACTION SNAPSHOT."""

    def _command(self, server_version: int) -> str:
        if self._temporary:
            return f"CREATE_REPLICATION_SLOT {self._slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        options = "(SNAPSHOT 'export', FAILOVER true)" if server_version >= 170000 else "EXPORT_SNAPSHOT"
        return f"CREATE_REPLICATION_SLOT {identifier(self._slot)} LOGICAL pgoutput {options}"

    def stream(self, publication: str) -> ReplicationStream:
        """Streams the changes after the point. The snapshot can no longer be imported."""
        return ReplicationStream.on(self._connection, self._slot, publication, self.lsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.finish()

    def __str__(self) -> str:
        return format_lsn(self.lsn)
