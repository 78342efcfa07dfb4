"""Catalog rows of mirrored tables, and leadership, in a real database with schema modak."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.synchronize import Event

import pytest

from mirror_pump.errors import ConnectionLost, NotLeader, SourceError
from mirror_pump.model import (
    EVERYTHING_IN_HEAP,
    Lsn,
    MirroredTable,
    SequenceNumber,
    SnapshotId,
    TableId,
    TableState,
)
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.source.catalog.tables import delete_table, insert_table, load_table, load_tables
from mirror_pump.source.connect import PgConnection, replication_connect
from mirror_pump.source.relations.relations import describe, resolve_name
from mirror_pump.source.stream.leader import Leader, check_epoch, is_led, lock_key
from mirror_pump.testing.database import Database
from tests.support.users_tables import connect_as_user

SLOT = "the_slot"


@pytest.fixture
def conn(database: Database) -> Iterator[PgConnection]:
    with connect_as_user(database.dsn) as connection:
        migrate(connection)
        connection.execute(
            "INSERT INTO modak.mirror_slots (slot_name, publication_name, system_identifier, timeline, database_name,"
            " applied_lsn) VALUES ('the_slot', 'p', '1', 1, current_database(), 0)"
        )
        yield connection


def mirrored(conn: PgConnection, name: str) -> MirroredTable:
    description = describe(conn, resolve_name(conn, name)[1])
    return MirroredTable(
        table_id=description.table_id,
        name=description.name,
        columns=description.columns,
        key=description.key,
        state=TableState.COPYING,
        start_lsn=Lsn(2**62),
        data_sequence_number=SequenceNumber(1),
        generation=0,
        lake_table=description.name.name,
        location=f"file:///lake/{name}",
        live_after_lsn=None,
    )


def test_a_table_comes_back_as_it_was_written(conn: PgConnection) -> None:
    conn.execute(
        'CREATE TABLE t (v numeric(5,2)[], "Ke y" timestamptz, a uuid NOT NULL, PRIMARY KEY ("Ke y", a));'
        " CREATE TABLE u (id text PRIMARY KEY)"
    )
    first, second = mirrored(conn, "t"), replace(mirrored(conn, "u"), live_after_lsn=Lsn(7), state=TableState.LIVE)
    for table in (first, second):
        insert_table(conn, table, SnapshotId(5), {"metadata_location": "file:///m.json"}, SLOT, "p")
    # The shape is the database's description of the table at that time.
    stored = load_tables(conn, SLOT)
    first, second = (
        replace(table, next_field_id=len(table.columns) + 1, shape=registered.shape)
        for table, registered in zip((first, second), stored, strict=True)
    )
    assert stored == (first, second)
    assert [column["name"] for column in json.loads(first.shape)["columns"]] == ["v", "Ke y", "a"]
    assert load_tables(conn, "other") == ()
    assert load_table(conn, first.table_id) == first
    row = conn.execute(
        "SELECT mode, tier_key_col, tier_key_type, primary_key_cols, lake_table_ref, publication_name,"
        " tables.slot_name, tier_key_hi, lake_snapshot_id, replicated_lsn, lake_props, next_field_id FROM modak.tables"
        " JOIN modak.cutline USING (table_id) JOIN modak.mirror_tables USING (table_id) WHERE table_name = 't'"
    ).fetchone()
    props = {"metadata_location": "file:///m.json"}
    assert row == (
        "mirrored", "Ke y", "timestamptz", ["Ke y", "a"], "public.t", "p", SLOT,
        EVERYTHING_IN_HEAP, 5, None, props, 4,
    )  # fmt: skip
    with pytest.raises(SourceError):
        insert_table(conn, first, SnapshotId(5), {}, SLOT, "p")
    assert delete_table(conn, first.table_id) is True
    assert delete_table(conn, first.table_id) is False
    assert load_table(conn, first.table_id) is None
    assert load_table(conn, TableId(1)) is None
    assert conn.execute("SELECT count(*) FROM modak.cutline").fetchone() == (1,)


def test_one_leader_at_a_time(database: Database, conn: PgConnection) -> None:
    assert not is_led(conn, SLOT)
    with Leader.acquire(database.dsn, SLOT) as leader:
        assert leader.epoch == 1
        assert is_led(conn, SLOT)
        assert not is_led(conn, "another_slot")
        leader.check()
        with pytest.raises(NotLeader, match=f"process id {os.getpid()}"):
            Leader.acquire(database.dsn, SLOT)
        with conn.transaction():
            check_epoch(conn, SLOT, leader.epoch)
    assert not is_led(conn, SLOT)
    assert conn.execute("SELECT leader FROM modak.mirror_slots").fetchone() == (None,)
    leader.release()
    with Leader.acquire(database.dsn, SLOT) as second:
        assert second.epoch == 2
        with pytest.raises(NotLeader, match="has taken over"), conn.transaction():
            check_epoch(conn, SLOT, leader.epoch)
    with pytest.raises(SourceError, match="not in the catalog"):
        Leader.acquire(database.dsn, "unknown_slot")
    with pytest.raises(NotLeader):
        check_epoch(conn, "unknown_slot", 1)


@pytest.mark.usefixtures("conn")
def test_a_lost_lead_is_tried_again(database: Database) -> None:
    with Leader.acquire(database.dsn, SLOT) as leader:
        with pytest.raises(ConnectionLost, match="former connection"):
            Leader.acquire(database.dsn, SLOT, former_epoch=leader.epoch)
        with pytest.raises(NotLeader, match="leads slot"):
            Leader.acquire(database.dsn, SLOT, former_epoch=leader.epoch - 1)
    with Leader.acquire(database.dsn, SLOT, former_epoch=leader.epoch) as again:
        assert again.epoch == leader.epoch + 1


@pytest.mark.usefixtures("conn")
def test_the_server_notices_within_a_minute_that_a_pump_is_gone(database: Database) -> None:
    """By probes of its own, since a host that crashed, or a network that is cut, sends nothing."""
    with Leader.acquire(database.dsn, SLOT) as leader:
        settings = ("idle", "interval", "count")
        shown = [leader.connection.execute(f"SHOW tcp_keepalives_{name}".encode()).fetchone() for name in settings]
        assert shown == [("30",), ("10",), ("3",)]
        # The same while an answer is under way, when there are no probes.
        assert leader.connection.execute("SHOW tcp_user_timeout").fetchone() == ("60000",)
    stream = replication_connect(database.dsn)
    try:
        assert stream.exec_(b"SHOW tcp_keepalives_idle").get_value(0, 0) == b"30"
        # A busy pump does not read for some time, which must not end the stream.
        assert stream.exec_(b"SHOW tcp_user_timeout").get_value(0, 0) == b"0"
    finally:
        stream.finish()


def test_lock_keys_fit_and_differ() -> None:
    keys = {lock_key(f"slot_{number}") for number in range(100)}
    assert len(keys) == 100
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert any(key < 0 for key in keys)


def lead_until_killed(dsn: str, leading: Event) -> None:
    with Leader.acquire(dsn, SLOT):
        leading.set()
        signal.pause()


def test_a_killed_leader_leaves_the_lock(database: Database, conn: PgConnection) -> None:
    context = multiprocessing.get_context("spawn")
    leading = context.Event()
    process = context.Process(target=lead_until_killed, args=(database.dsn, leading))
    process.start()
    try:
        assert leading.wait(60)
        with pytest.raises(NotLeader, match=f"process id {process.pid}"):
            Leader.acquire(database.dsn, SLOT)
    finally:
        process.kill()
        process.join()
    deadline = time.monotonic() + 20
    while is_led(conn, SLOT):
        assert time.monotonic() < deadline
    with Leader.acquire(database.dsn, SLOT) as successor:
        assert successor.epoch == 2


def test_a_leader_without_its_connection_knows(database: Database, conn: PgConnection) -> None:
    with Leader.acquire(database.dsn, SLOT) as leader:
        conn.execute("SELECT pg_terminate_backend(%s)", (leader.connection.info.backend_pid,))
        with pytest.raises(ConnectionLost):
            leader.check()
