"""modak.wait_for(): SQL that waits for the frontier, and wakes an idle pump."""

from __future__ import annotations

import time
from pathlib import Path

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner


def test_an_idle_pump_is_woken(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    mirror = Mirror.create(
        database, tmp_path.as_uri(), ThreadTaskRunner(), idle_publish_interval=600, idle_publish_bytes=1 << 40
    )
    mirror.register("public.t")
    with mirror.pumping():
        mirror.await_live("public.t")
        began = time.monotonic()
        for _ in range(3):
            position = database.rows("SELECT count(*), (pg_current_wal_insert_lsn() - '0/0')::bigint FROM t")[0][1]
            assert database.rows("SELECT modak.wait_for(timeout => '20 seconds')") == [(True,)]
            assert mirror.frontier() >= position
        assert time.monotonic() - began < 10
        # A session waits for a position that WAL has not reached, and may never reach. Others do not wait behind it.
        database.execute("SELECT pg_notify('mirror_pump', 'FFFFFFFF/FFFFFFFF')")
        for _ in range(2):
            position = database.rows("SELECT count(*), (pg_current_wal_insert_lsn() - '0/0')::bigint FROM t")[0][1]
            assert database.rows("SELECT modak.wait_for(timeout => '20 seconds')") == [(True,)]
            assert mirror.frontier() >= position
    mirror.assert_sound()
