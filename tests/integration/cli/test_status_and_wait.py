"""`status` and `wait` on catalogs made by hand: an UPDATE stands for a publish of the pump."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.model import format_lsn, parse_lsn
from mirror_pump.source.stream.leader import Leader, lock_key
from mirror_pump.source.stream.standby import Standby
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.cli import RunCommand, register_by_hand
from tests.support.json_schema import mismatches

STOPPED = {
    "at": "2026-01-01T00:00:10+00:00", "since": "2026-01-01T00:00:00+00:00", "attempts": 3, "error": "no room",
    "remedy": "make some", "retry_in": None, "host": "h", "pid": 1,
}  # fmt: skip
"""modak.mirror_slots.last_error of a pump that has stopped."""


@pytest.fixture
def mirror(run: RunCommand, slot: str, tmp_path: Path) -> str:
    """The slot of an initialised mirror without tables."""
    result = run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    assert result.exit_code == 0, result.stderr
    return slot


def publish(database: Database, position: int) -> None:
    """Changes the catalog's positions as a publish does."""
    with database.connect() as connection, connection.transaction():
        connection.execute(
            "UPDATE modak.mirror_slots SET applied_lsn = %s, applied_commit_time = now(), applied_at = now()",
            (position,),
        )
        connection.execute("UPDATE modak.cutline SET replicated_lsn = %s", (position,))


def status(run: RunCommand) -> dict[str, Any]:
    result = run("status", "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def point_at_metadata(database: Database, path: Path, summary: dict[str, str]) -> None:
    document = {
        **TableMetadata.new(LakeSchema(0, (), ()), path.parent.as_uri(), {}, 1).document,
        "current-snapshot-id": 7,
        "last-sequence-number": 3,
        "snapshots": [
            {"snapshot-id": 7, "timestamp-ms": 1, "summary": summary},
            {"snapshot-id": 8, "timestamp-ms": 2},
        ],
    }
    path.write_text(json.dumps(document))
    with database.connect() as connection:
        # The registration was made by hand too, and first.
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "INSERT INTO modak.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)"
            " VALUES ('lake', 'public', 't', %s)",
            (f"file://{path}",),
        )


def test_status_without_tables(run: RunCommand, database: Database, mirror: str) -> None:
    document = status(run)
    assert document["database"] == database.name
    assert document["tables"] == []
    assert document["leader"] is None
    assert document["slot"]["name"] == mirror
    assert document["slot"]["exists"] is True
    assert document["slot"]["active"] is False
    assert "no tables" in run("status").stdout


@pytest.mark.unverified("its table is a row of the catalog only")
def test_status_of_a_live_table(run: RunCommand, database: Database, mirror: str, tmp_path: Path) -> None:
    position = database.lsn()
    register_by_hand(database, mirror)
    publish(database, position)
    summary = {
        "total-records": "1000", "total-data-files": "3", "total-delete-files": "2",
        "total-equality-deletes": "40", "total-position-deletes": "5", "total-files-size": "123456",
        "mirror-pump.equality-deletes-since": str(int((time.time() - 90) * 1000)),
    }  # fmt: skip
    point_at_metadata(database, tmp_path / "m.json", summary)
    index = {"mode": "position", "phase": "ready", "rows": 960, "bytes": 3 << 20}
    with database.connect() as connection:
        connection.execute("UPDATE modak.mirror_tables SET key_index = %s", (Jsonb(index),))

    (table,) = status(run)["tables"]

    assert table["state"] == "live"
    assert table["frontier"] == format_lsn(position)
    assert table["lag_bytes"] > 0
    assert 0 < table["lag_seconds"] < 60
    assert table["rows"] == 995
    assert table["rows_exact"] is False
    assert (table["data_files"], table["delete_files"], table["equality_deletes"]) == (3, 2, 40)
    assert 90 <= table["equality_deletes_age"] < 150
    assert table["size_bytes"] == 123456
    assert table["error"] is None
    human = run("status").stdout
    for shown in ("public.t", "live", format_lsn(position), "<= 995", "40, ", "position", "3.0 MiB"):
        assert shown in human
    # While another engine rewrites the table, the index exists but must not be used.
    with database.connect() as connection:
        connection.execute("UPDATE modak.mirror_tables SET key_index = %s", (Jsonb({**index, "mode": "equality"}),))
    human = run("status").stdout
    for shown in ("equality", "3.0 MiB"):
        assert shown in human


@pytest.mark.unverified("its table is a row of the catalog only")
def test_status_of_tables_that_are_copied_or_have_failed(run: RunCommand, database: Database, mirror: str) -> None:
    register_by_hand(database, mirror, state="copying")
    with database.connect() as connection:
        connection.execute(
            "INSERT INTO modak.copy_chunks"
            " VALUES (4711, 0, 0, 1, 1, 0, 10, 500, now()), (4711, 0, 1, 1, 1, 10, NULL, NULL, NULL)"
        )
    (table,) = status(run)["tables"]
    assert table["frontier"] is None
    assert table["lag_seconds"] is None
    assert table["copy"] == {"chunks_total": 2, "chunks_done": 1, "rows": 500}
    assert "copying 1/2" in run("status").stdout

    database.execute("UPDATE modak.mirror_tables SET state = 'failed', error = 'column x: NaN'")
    (table,) = status(run)["tables"]
    assert table["error"] == "column x: NaN"
    assert "public.t: column x: NaN" in run("status").stdout


@pytest.mark.unverified("its table is a row of the catalog only")
def test_status_survives_unreadable_storage_and_a_missing_slot(
    run: RunCommand, database: Database, mirror: str, tmp_path: Path
) -> None:
    register_by_hand(database, mirror, frontier=1)
    point_at_metadata(database, tmp_path / "m.json", {})
    (tmp_path / "m.json").unlink()
    with database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (mirror,))

    document = status(run)

    assert document["slot"]["exists"] is False
    assert document["tables"][0]["rows"] is None
    assert "cannot be read" in document["tables"][0]["error"]
    assert "MISSING" in run("status").stdout


@pytest.mark.unverified("its table is a row of the catalog only")
def test_status_fits_into_the_columns_that_the_environment_names(
    run: RunCommand, database: Database, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """watch(1) sets them, and gives the program no terminal."""
    register_by_hand(database, mirror, state="failed")
    database.execute("UPDATE modak.mirror_tables SET error = 'a long story: ' || repeat('no reason, ', 20)")
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("status").stdout.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 60
    assert any(line.startswith("public.t  failed") for line in lines)


@pytest.mark.unverified("its table is a row of the catalog only")
def test_status_json_is_what_its_documentation_shows(
    run: RunCommand, database: Database, mirror: str, tmp_path: Path
) -> None:
    """The schema has exactly the keys of the real document, at every level."""
    failing = {"thread": "follow", "error": "KeyError: 1", "since": "2026-05-04T09:28:11+00:00", "ends": 1}
    register_by_hand(database, mirror, frontier=1)
    point_at_metadata(database, tmp_path / "m.json", {})
    with database.connect() as connection:
        connection.execute(
            "UPDATE modak.mirror_slots SET leader = %s, last_error = %s",
            (Jsonb({"host": "h", "pid": 1, "started_at": "x", "failing_threads": [failing]}), Jsonb(STOPPED)),
        )
        connection.execute("UPDATE modak.tables SET maintenance_policy = %s", (Jsonb({"orphan_sweep_min_commits": 1}),))
        connection.execute(
            "INSERT INTO modak.change_feeds (feed_id, slot_name, mode, namespace, name, location)"
            " VALUES (1, %s, 'keys', 's', 't__changes', '')",
            (mirror,),
        )
        connection.execute("INSERT INTO modak.moments (slot_name, name, frontier) VALUES (%s, 'closing', 1)", (mirror,))
        connection.execute(
            "INSERT INTO modak.moment_tables VALUES (%s, 'closing', 1, 's', 't', 1, '', 1, '')", (mirror,)
        )

    with Standby(database.dsn, mirror), database.connect() as leader:
        leader.execute("SELECT pg_advisory_lock(%s)", (lock_key(mirror),))
        printed = status(run)
    assert mismatches(printed, "status") == []
    assert all(printed[key] for key in ("tables", "alerts", "standbys", "moments", "feeds")), "their items are checked"
    assert printed["leader"]["failing_threads"]


@pytest.mark.unverified("its table is a row of the catalog only")
def test_wait_returns_at_once_when_the_frontier_has_passed(run: RunCommand, database: Database, mirror: str) -> None:
    register_by_hand(database, mirror)
    publish(database, 5000)
    result = run("wait", "--lsn", "0/1000", "--timeout", "0")
    assert result.exit_code == 0, result.stderr
    assert "has passed 0/1000" in result.stdout


def test_wait_times_out_with_what_to_do(run: RunCommand, database: Database, mirror: str) -> None:
    result = run("wait", "--now", "--timeout", "0.2")
    assert result.exit_code == 1
    assert re.search(r"has not passed \w+/\w+ within 0.2 s", result.stderr)
    assert "mirror-pump run" in result.stderr


@pytest.mark.unverified("its table is a row of the catalog only")
def test_wait_ignores_tables_that_are_not_live(run: RunCommand, database: Database, mirror: str) -> None:
    register_by_hand(database, mirror, state="failed", frontier=10)
    with database.connect() as connection:
        connection.execute("UPDATE modak.mirror_slots SET applied_lsn = %s", (1 << 60,))
    result = run("wait", "--now", "--timeout", "1")
    assert result.exit_code == 0
    assert "not waited for: public.t (failed, readable as of 0/A)" in result.stdout
    assert database.rows("SELECT modak.wait_for(timeout => '0')") == [(True,)]


@pytest.mark.unverified("its table is a row of the catalog only")
@pytest.mark.parametrize(
    ("state", "frontier"),
    [
        ("waiting", 10),
        ("copying", None),
        ("filling", 10),
        *(
            pytest.param(*case, marks=pytest.mark.further)
            for case in (("waiting", None), ("copying", 10), ("filling", None))
        ),
    ],
)
def test_wait_says_no_while_no_table_is_readable(
    run: RunCommand, database: Database, mirror: str, state: str, frontier: int | None
) -> None:
    """All tables are copied again, or are copied for the first time."""
    register_by_hand(database, mirror, state=state, frontier=frontier)
    ((end, lsn),) = database.rows("SELECT (l - '0/0')::bigint, l::text FROM pg_current_wal_lsn() l")
    database.execute(f"UPDATE modak.mirror_slots SET applied_lsn = {end}")
    result = run("wait", "--lsn", lsn, "--timeout", "0.1")
    assert result.exit_code == 1
    assert f"public.t ({state}, readable as of {'never' if frontier is None else '0/A'})" in result.stderr
    with database.session() as connection:
        notices: list[str] = []
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        assert connection.execute(f"SELECT modak.wait_for('{lsn}', timeout => '0')").fetchall() == [(False,)]
        (notice,) = notices
        assert f"public.t ({state}, " in notice
    # It waits for its owner: no waiter waits for that.
    database.execute("UPDATE modak.mirror_tables SET state = 'waiting', error = 'it has no key'")
    assert run("wait", "--lsn", lsn, "--timeout", "0").exit_code == 0
    assert database.rows(f"SELECT modak.wait_for('{lsn}', timeout => '0')") == [(True,)]
    database.execute("UPDATE modak.mirror_tables SET state = 'live', error = NULL")
    publish(database, end)
    assert "not waited for" not in run("wait", "--lsn", lsn, "--timeout", "0").stdout
    assert database.rows(f"SELECT modak.wait_for('{lsn}', timeout => '0')") == [(True,)]


@pytest.mark.unverified("its table is a row of the catalog only")
def test_wait_asks_the_pump_and_sees_its_publish(run: RunCommand, database: Database, mirror: str) -> None:
    """The notification carries the position. The catalog change stands for the pump's answer."""
    register_by_hand(database, mirror)
    payloads: list[str] = []

    def pump() -> None:
        with database.connect() as connection:
            connection.execute("LISTEN mirror_pump")
            listening.set()
            for notification in connection.notifies(timeout=60, stop_after=1):
                payloads.append(notification.payload)
                publish(database, parse_lsn(notification.payload))

    listening = threading.Event()
    thread = threading.Thread(target=pump)
    thread.start()
    assert listening.wait(60)
    result = run("wait", "--now", "--timeout", "20")
    thread.join(60)

    assert result.exit_code == 0, result.stderr
    assert f"frontier {payloads[0]} has passed {payloads[0]}" in result.stdout


def test_status_names_the_leader_as_long_as_it_lives(run: RunCommand, database: Database, mirror: str) -> None:
    with Leader.acquire(database.dsn, mirror) as leader:
        alive = status(run)["leader"]
        assert (alive["pid"], alive["epoch"], alive["alive"]) == (os.getpid(), leader.epoch, True)
        assert f"leader: process {os.getpid()}" in run("status").stdout
        # As if the process had been killed: the row stays, the lock is released.
        leader.connection.close()
    await_true(lambda: status(run)["leader"]["alive"] is False, 20, "the server has noticed")
    assert "disconnected" in run("status").stdout


def test_status_says_why_the_last_pump_stopped(run: RunCommand, database: Database, mirror: str) -> None:
    assert status(run)["last_error"] is None
    with database.connect() as connection:
        connection.execute("UPDATE modak.mirror_slots SET last_error = %s", (Jsonb(STOPPED),))
    document = status(run)
    assert document["leader"] is None
    (alert,) = document["alerts"]
    assert "no pump leads" in alert["message"]
    assert "stopped at 2026-01-01 00:00:10 UTC: no room" in alert["message"]
    assert alert["remedy"] == "make some"
    # It waited between two attempts, and is long overdue: nobody is left to make the next one.
    with database.connect() as connection:
        connection.execute("UPDATE modak.mirror_slots SET last_error = %s", (Jsonb({**STOPPED, "retry_in": 30.0}),))
    document = status(run)
    assert document["leader"] is None
    assert "failing since 2026-01-01 00:00:00 UTC" in document["alerts"][0]["message"]
