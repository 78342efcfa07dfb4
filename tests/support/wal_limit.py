"""A limit of the WAL that the server keeps for slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true

_SHOWN = "SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"


@contextmanager
def wal_limit(database: Database, mebibytes: int) -> Iterator[None]:
    """Within the block, max_slot_wal_keep_size is that many MiB, for all slots of the server."""
    with database.session() as connection:
        connection.execute(f"ALTER SYSTEM SET max_slot_wal_keep_size = '{mebibytes}MB'".encode())
        connection.execute("SELECT pg_reload_conf()")
        try:
            await_true(lambda: database.rows(_SHOWN) == [(mebibytes,)], 20, "the limit is in force")
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")
