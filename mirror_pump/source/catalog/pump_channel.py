"""The channel by which commands wake the pump: a client waits for the frontier, a table was registered, tables were
marked to be copied again, or partitions have to be checked again.

The payload is the wanted frontier, `copy`, `resync` or `retain`.
"""

from __future__ import annotations

from mirror_pump.source.connect import PgConnection
from sql.mirror_names import SUFFIX

CHANNEL = f"mirror_pump{SUFFIX}"
COPY = "copy"
"""The payload that tells the pump of a new registration, or of a stream that `init` has added."""
RETAIN = "retain"
"""The payload that asks the pump to retry the postponed steps of heap retention."""
RESYNC = "resync"
"""The payload that tells the pump that tables were marked to be copied again."""


def notify_pump(connection: PgConnection, payload: str) -> None:
    """Wakes the pump, once the connection's transaction is committed. Raises psycopg.Error.

    `payload`: the wanted frontier as a WAL position in Postgres's notation, or COPY, RESYNC or RETAIN.
    """
    connection.execute(f"SELECT pg_notify('{CHANNEL}', %s)", (payload,))
