"""How old the lake is, as `status` says: nothing that was committed longer ago is missing."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from mirror_pump.ops.status.status_reader import StatusReader, tells_age
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner


@pytest.fixture
def mirror(database: Database, tmp_path: Path) -> Mirror:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY)", "CREATE TABLE plain (v text)")
    mirror = Mirror.create(
        database, tmp_path.as_uri(), ThreadTaskRunner(), idle_publish_interval=600, idle_publish_bytes=1 << 40
    )
    mirror.register("public.t")
    return mirror


def look(mirror: Mirror, patience: float = 0.0) -> tuple[datetime, int, float | None]:
    """When `status` ran, alone, and what it says of the lag: bytes of WAL, seconds."""
    with StatusReader(mirror.settings) as reader:
        status = reader.until(tells_age, patience)
    return status.at, status.lag_bytes, status.lag_seconds


def test_others_wal_does_not_make_the_lake_old(mirror: Mirror, database: Database) -> None:
    with mirror.pumping():
        mirror.await_live("public.t")
        behind = 0
        for _ in range(4):
            assert database.rows("SELECT modak.wait_for(timeout => '20 seconds')") == [(True,)]
            database.execute("INSERT INTO plain SELECT repeat('x', 100) FROM generate_series(1, 100)")
            behind += look(mirror)[1] > 0
            began = time.monotonic()
            _, _, seconds = look(mirror, patience=20)
            assert seconds is not None
            assert seconds < 5
            assert time.monotonic() - began < 10
        assert behind, "the pump has read past the WAL before each look"


def test_a_reader_that_reads_again_remembers_where_wal_ended(mirror: Mirror, database: Database) -> None:
    """Others write without a pause, so that no look finds the mirror at the end of WAL."""
    with mirror.pumping():
        mirror.await_live("public.t")
        database.execute("INSERT INTO t VALUES (1)")
        mirror.await_frontier()
        began = time.monotonic()
        with StatusReader(mirror.settings) as reader:

            def is_younger_than_the_commit() -> bool:
                age = time.monotonic() - began
                database.execute("INSERT INTO plain SELECT repeat('x', 100) FROM generate_series(1, 1000)")
                status = reader.read_catalog()
                return status.lag_bytes > 0 and status.lag_seconds is not None and status.lag_seconds < age - 2

            await_true(is_younger_than_the_commit, 60, "the lake is known to be younger than its last commit")


@pytest.mark.further
def test_what_the_server_has_not_yet_sent_counts(mirror: Mirror, database: Database) -> None:
    """A pump that comes back holds nothing, and has reached what it was sent. But a commit waits behind others' WAL."""
    with mirror.pumping():
        mirror.await_live("public.t")
        database.execute("INSERT INTO t VALUES (1)")
        mirror.await_frontier()
    database.execute("INSERT INTO plain SELECT NULL FROM generate_series(1, 4000000)")
    database.execute("INSERT INTO t VALUES (2)")
    committed, position = database.rows("SELECT clock_timestamp(), (pg_current_wal_lsn() - '0/0')::bigint")[0]
    time.sleep(2)
    looks = 0
    with mirror.pumping():
        while mirror.frontier() < position:
            time.sleep(0.1)
            at, _, seconds = look(mirror)
            # The look's frontier is older than this one.
            if mirror.frontier() < position:
                looks += 1
                assert seconds is None or seconds >= (at - committed).total_seconds()
    assert looks > 3
    mirror.assert_sound()


def test_a_commit_that_waits_for_its_publish_ages(mirror: Mirror, database: Database) -> None:
    with mirror.pumping():
        mirror.await_live("public.t")
        database.execute("INSERT INTO t VALUES (1)")
        mirror.await_frontier()
        with database.connect() as blocker, blocker.transaction(), StatusReader(mirror.settings) as reader:
            blocker.execute("SELECT FROM modak.mirror_slots FOR UPDATE")
            database.execute("INSERT INTO t VALUES (2)")
            began = time.monotonic()
            while (now := time.monotonic()) - began < 3:
                database.execute("INSERT INTO plain VALUES ('x')")
                seconds = reader.read_catalog().lag_seconds
                assert seconds is not None
                assert seconds > now - began - 0.01, "it is not as old as the commit that the lake lacks"
                time.sleep(0.1)
        mirror.await_frontier()
    mirror.assert_sound()
