"""Publication, slot and server checks against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, TableName
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.server import check_server
from mirror_pump.source.stream.slot import (
    add_to_publication,
    check_slot,
    create_publication,
    create_slot,
    drop_slot,
    read_slot,
    remove_from_publication,
    sends_generated,
    system_identity,
)
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true


@pytest.fixture
def conn(database: Database) -> Iterator[PgConnection]:
    with connect(database.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def slot(database: Database) -> str:
    return f"s_{database.name}"[:60]


def test_publication_is_made_once_and_checked(conn: PgConnection) -> None:
    assert create_publication(conn, 'odd "name"') is True
    assert create_publication(conn, 'odd "name"') is False
    row = conn.execute("SELECT pubviaroot, puballtables FROM pg_publication").fetchone()
    assert row == (True, False)
    assert sends_generated(conn, 'odd "name"') is (conn.info.server_version >= 180000)
    conn.execute("CREATE PUBLICATION everything FOR ALL TABLES; CREATE PUBLICATION leaves")
    conn.execute("CREATE SCHEMA s; CREATE PUBLICATION whole FOR TABLES IN SCHEMA s WITH (publish_via_partition_root)")
    for name in ("everything", "leaves", "whole"):
        with pytest.raises(SourceError) as failure:
            create_publication(conn, name)
        assert failure.value.remedy


def test_tables_come_and_go(conn: PgConnection) -> None:
    migrate(conn)
    conn.execute('CREATE TABLE public."T x" (id int PRIMARY KEY) PARTITION BY LIST (id)')
    create_publication(conn, "p")
    table = TableName("public", "T x")
    assert add_to_publication(conn, "p", table) is True
    assert add_to_publication(conn, "p", table) is False
    ((table_id, name),) = conn.execute(
        "SELECT r.prrelid::bigint, r.prrelid::regclass::text FROM pg_publication_rel r"
        " JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = 'p'"
    ).fetchall()
    assert name == 'public."T x"'
    assert remove_from_publication(conn, "p", table_id) is False, "only publications of the mirror are touched"
    conn.execute(
        "INSERT INTO modak.mirror_slots (slot_name, publication_name, system_identifier, timeline, database_name,"
        " applied_lsn) VALUES ('s', 'p', '1', 1, 'd', 0)"
    )
    assert remove_from_publication(conn, "p", table_id) is True
    assert remove_from_publication(conn, "p", table_id) is False
    with pytest.raises(SourceError):
        add_to_publication(conn, "p", TableName("public", "missing"))


def test_slot_is_made_once_and_read(conn: PgConnection, slot: str) -> None:
    assert read_slot(conn, slot) is None
    made, created = create_slot(conn, slot)
    assert created
    assert made.plugin == "pgoutput"
    assert made.failover is (True if conn.info.server_version >= 170000 else None)
    assert made.wal_status == "reserved"
    assert not made.active
    assert made.confirmed_flush_lsn is not None
    assert made.retained_bytes is not None
    assert made.retained_bytes >= 0
    again, created = create_slot(conn, slot)
    assert not created
    assert again.confirmed_flush_lsn == made.confirmed_flush_lsn
    assert drop_slot(conn, slot) is True
    assert drop_slot(conn, slot) is False
    with pytest.raises(SourceError, match="not a valid slot name"):
        create_slot(conn, "Not-Allowed")


def test_a_slot_waits_for_open_transactions(database: Database, slot: str) -> None:
    """However long they are open, and for whatever time the session's other statements wait for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'"
        " AND query LIKE '%create_logical_replication_slot%' AND clock_timestamp() - query_start > interval '500 ms'"
    )
    with (
        connect(database.dsn, autocommit=True, lock_timeout="100ms") as connection,
        database.connect(autocommit=False) as transaction,
        ThreadPoolExecutor() as threads,
    ):
        transaction.execute("SELECT pg_current_xact_id()")
        made = threads.submit(create_slot, connection, slot)
        await_true(lambda: made.done() or database.rows(waiting) == [(1,)], 60, "it waits for the transaction")
        transaction.rollback()
        assert made.result()[1]
        assert connection.execute("SHOW lock_timeout").fetchone() == ("100ms",)
        assert drop_slot(connection, slot)


def test_slots_of_another_kind_are_refused(conn: PgConnection, slot: str) -> None:
    conn.execute("SELECT pg_create_physical_replication_slot(%s)", (slot,))
    with pytest.raises(SourceError, match="physical"):
        create_slot(conn, slot)
    drop_slot(conn, slot)


def test_a_slot_that_cannot_go_on_is_refused(conn: PgConnection, slot: str) -> None:
    with pytest.raises(SourceError, match="does not exist") as failure:
        check_slot(conn, slot, applied_lsn=None)
    assert "mirror-pump resync --all" in failure.value.remedy
    made, _ = create_slot(conn, slot)
    confirmed = made.confirmed_flush_lsn
    assert confirmed is not None
    assert check_slot(conn, slot, applied_lsn=confirmed).name == slot
    assert check_slot(conn, slot, applied_lsn=None).name == slot
    with pytest.raises(SourceError, match="ahead"):
        check_slot(conn, slot, applied_lsn=Lsn(confirmed - 1))
    with pytest.raises(SourceError, match="beyond the end of WAL"):
        check_slot(conn, slot, applied_lsn=Lsn(confirmed + (1 << 40)))


def test_a_slot_of_another_database_is_refused(conn: PgConnection, slot: str, postgres_dsn: str) -> None:
    create_slot(conn, slot)
    with connect(postgres_dsn, autocommit=True) as elsewhere, pytest.raises(SourceError, match="belongs to database"):
        create_slot(elsewhere, slot)


@pytest.fixture
def postgres_dsn(database: Database) -> str:
    return database.server.dsn("postgres")


def test_the_server_is_fit(conn: PgConnection) -> None:
    facts = check_server(conn, slot_exists=False)
    assert facts.version >= 150000
    assert facts.free_slots > 0
    assert any("max_slot_wal_keep_size" in warning for warning in facts.warnings)


def test_a_role_that_may_not_stream_is_refused(conn: PgConnection, database: Database) -> None:
    role = f"plain_{database.name}"[:60]
    conn.execute(f"CREATE ROLE {role}; SET ROLE {role}".encode())
    try:
        with pytest.raises(SourceError, match="may not stream"):
            check_server(conn, slot_exists=False)
        assert system_identity(conn).database == database.name
    finally:
        conn.execute(f"RESET ROLE; DROP ROLE {role}".encode())


def test_a_server_whose_output_plugins_lack_ours_is_refused(conn: PgConnection, database: Database, slot: str) -> None:
    if conn.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").fetchone() is None:
        pytest.skip("the server restricts no output plugins: minor releases before August 2026")
    setting = f"ALTER DATABASE {database.name} SET output_plugin_libraries"
    # A single name, which is what the list in one literal becomes.
    conn.execute(f"{setting} = 'test_decoding, pgoutput'".encode())
    with connect(database.dsn, autocommit=True) as refused:
        with pytest.raises(SourceError, match="does not name pgoutput") as error:
            check_server(refused, slot_exists=False)
        libraries = "'test_decoding, pgoutput', 'pgoutput'"
        remedy = f"ALTER SYSTEM SET output_plugin_libraries = {libraries}; SELECT pg_reload_conf()"
        assert error.value.remedy == remedy
        check_server(refused, slot_exists=False, streams=False)
        with pytest.raises(SourceError, match="may not be used as an output plugin"):
            create_slot(refused, slot)
    conn.execute(f"{setting} = {libraries}".encode())
    with connect(database.dsn, autocommit=True) as mended:
        check_server(mended, slot_exists=False)
        create_slot(mended, slot)
