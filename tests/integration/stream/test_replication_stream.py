"""The replication stream against a real server: what arrives, what is acknowledged, how it waits and how it ends."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mirror_pump.errors import ConnectionLost, SourceError
from mirror_pump.model import Lsn
from mirror_pump.source.connect import PgConnection, replication_connect
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.stream import copy_both
from mirror_pump.source.stream.copy_both import LibpqCopy, SocketCopy
from mirror_pump.source.stream.replication_stream import ReplicationStream
from mirror_pump.source.stream.slot import add_to_publication, create_publication, create_slot, drop_slot, read_slot
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.tls_proxy import tls_proxy
from tests.support.users_tables import connect_as_user

pytestmark = pytest.mark.further

DEADLINE = 20.0

# Commands of the replication protocol have other literals than SQL.
PUBLICATION = "pub, \"'\\lication"


@pytest.fixture
def conn(database: Database) -> Iterator[PgConnection]:
    with connect_as_user(database.dsn) as connection:
        yield connection


@pytest.fixture
def slot(database: Database, conn: PgConnection) -> str:
    name = f"s_{database.name}"[:60]
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    create_publication(conn, PUBLICATION)
    add_to_publication(conn, PUBLICATION, resolve_name(conn, "t")[0])
    create_slot(conn, name)
    return name


@pytest.fixture(params=[SocketCopy, LibpqCopy])
def stream(
    database: Database, slot: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReplicationStream]:
    """By each of the two ways to exchange messages."""
    if request.param is LibpqCopy:
        monkeypatch.setattr(copy_both, "_begins_in_clear", lambda _: False)
    with ReplicationStream.start(database.dsn, slot, PUBLICATION, Lsn(0)) as opened:
        assert isinstance(opened._copy, request.param)
        yield opened


def read_until(stream: ReplicationStream, done: Callable[[list[bytes]], bool]) -> list[bytes]:
    messages: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    while not done(messages):
        assert time.monotonic() < deadline, tags(messages)
        messages += stream.read(0.2).contents()
        if stream.reply_requested:
            stream.send_status(Lsn(0), Lsn(0), Lsn(0))
    return messages


def tags(messages: list[bytes]) -> str:
    return "".join(chr(message[0]) for message in messages)


def commit_end(message: bytes) -> Lsn:
    """pgoutput commit: tag, flags, commit LSN, end LSN, time."""
    end: int = struct.unpack_from(">Q", message, 10)[0]
    return Lsn(end)


def test_whole_transactions_arrive_as_raw_messages(conn: PgConnection, stream: ReplicationStream) -> None:
    with conn.transaction():
        conn.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'); UPDATE t SET v = 'c' WHERE id = 1")
        conn.execute("SELECT pg_logical_emit_message(true, 'mirror', 'hello')")
    conn.execute("DELETE FROM t WHERE id = 2; TRUNCATE t")
    messages = read_until(stream, lambda got: tags(got).count("C") == 2)
    # The server describes a relation before its first use, and again whenever something made it look the relation up
    # anew, also within a transaction.
    assert tags(messages).startswith("BRI")
    assert tags(messages).replace("R", "") == "BIIUMCBDTC"
    assert messages[2].endswith(b"t\x00\x00\x00\x01a")


def test_the_bytes_of_one_read_are_bounded(conn: PgConnection, stream: ReplicationStream) -> None:
    """A pump that may not read, since too much is in flight, must not take it all at once afterwards."""
    conn.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i")
    sizes, count = [], 0
    deadline = time.monotonic() + DEADLINE
    while True:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        block = stream.read(DEADLINE)
        sizes.append(len(block.data))
        read = tags(list(block.contents()))
        count += read.count("I")
        if read.endswith("C"):
            break
    assert count == 60_000
    assert max(sizes) <= (8 << 20) + 2000


def test_acknowledged_transactions_do_not_come_again(
    database: Database, conn: PgConnection, slot: str, stream: ReplicationStream
) -> None:
    conn.execute("INSERT INTO t VALUES (1, 'first')")
    first = commit_end(read_until(stream, lambda got: tags(got).endswith("C"))[-1])
    stream.send_status(first, first, first)
    deadline = time.monotonic() + DEADLINE
    while True:
        status = read_slot(conn, slot)
        assert status is not None
        assert status.active
        if status.confirmed_flush_lsn is not None and status.confirmed_flush_lsn >= first:
            break
        assert time.monotonic() < deadline
        stream.read(0.01)
    conn.execute("INSERT INTO t VALUES (2, 'second')")
    stream.close()
    with started_again(database, slot, Lsn(0)) as again:
        messages = read_until(again, lambda got: tags(got).endswith("C"))
    assert b"second" in b"".join(messages)
    assert b"first" not in b"".join(messages)
    # It was not acknowledged, so it is sent again, unless the start position is beyond it.
    second = commit_end(messages[-1])
    conn.execute("INSERT INTO t VALUES (3, 'third')")
    with started_again(database, slot, second) as again:
        messages = read_until(again, lambda got: tags(got).endswith("C"))
    assert b"third" in b"".join(messages)
    assert b"second" not in b"".join(messages)


def started_again(database: Database, slot: str, start: Lsn) -> ReplicationStream:
    """Streams as soon as the previous walsender has released the slot."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return ReplicationStream.start(database.dsn, slot, PUBLICATION, start)
        except ConnectionLost:
            assert time.monotonic() < deadline


def test_keepalives_tell_how_far_an_idle_stream_is(conn: PgConnection, stream: ReplicationStream) -> None:
    conn.execute("CREATE TABLE other (id int); INSERT INTO other SELECT generate_series(1, 1000)")
    row = conn.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    deadline = time.monotonic() + DEADLINE
    while stream.keepalive is None or stream.keepalive.wal_end < row[0]:
        assert time.monotonic() < deadline
        stream.send_status(Lsn(0), Lsn(0), Lsn(0), reply=True)
        stream.read(0.05)
    assert abs(stream.keepalive.server_time_us - time.time() * 1e6) < 60e6


def test_waiting_costs_nothing_and_can_be_ended(stream: ReplicationStream) -> None:
    while len(stream.read(0.1)):
        pass
    stream.send_status(Lsn(0), Lsn(0), Lsn(0))
    cpu, start = time.thread_time(), time.monotonic()
    assert len(stream.read(1.5)) == 0
    elapsed = time.monotonic() - start
    assert elapsed > 1.4
    assert (time.thread_time() - cpu) / elapsed < 0.02
    threading.Timer(0.2, stream.wake).start()
    start = time.monotonic()
    assert len(stream.read(DEADLINE)) == 0
    assert time.monotonic() - start < DEADLINE / 2


def test_waking_a_stream_that_is_being_closed_touches_no_other_file(database: Database) -> None:
    """The pipe's number is free for whatever is opened next: a byte written too late would go there."""
    errors: list[BaseException] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            connection = replication_connect(database.dsn)
            stream = ReplicationStream(connection, LibpqCopy(connection), "unused")
            closed = threading.Event()

            def waking(stream: ReplicationStream = stream, closed: threading.Event = closed) -> None:
                try:
                    while not closed.is_set():
                        stream.wake()
                except BaseException as error:  # noqa: BLE001 - looked at below
                    errors.append(error)

            thread = threading.Thread(target=waking)
            thread.start()
            stream.close()
            pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(3)]
            stream.wake()
            closed.set()
            thread.join()
            for read_end, write_end in pipes:
                with pytest.raises(BlockingIOError):
                    os.read(read_end, 1)
                os.close(read_end)
                os.close(write_end)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_a_message_ends_the_wait(conn: PgConnection, stream: ReplicationStream) -> None:
    stream.read(0.1)
    threading.Timer(0.3, lambda: conn.execute("INSERT INTO t VALUES (1, 'x')")).start()
    messages: list[bytes] = []
    start = time.monotonic()
    while "C" not in tags(messages):
        assert time.monotonic() - start < DEADLINE
        messages += stream.read(DEADLINE).contents()
        if stream.reply_requested:
            stream.send_status(Lsn(0), Lsn(0), Lsn(0))
    assert time.monotonic() - start < DEADLINE / 2


def test_a_killed_walsender_is_a_lost_connection(conn: PgConnection, slot: str, stream: ReplicationStream) -> None:
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    read_until(stream, lambda got: tags(got).endswith("C"))
    conn.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,))
    with pytest.raises(ConnectionLost, match=r"broke: terminating connection due to administrator command$"):
        read_until(stream, lambda _: False)
    with pytest.raises(ConnectionLost):
        stream.read(0.2)
    with pytest.raises(ConnectionLost):
        stream.send_status(Lsn(0), Lsn(0), Lsn(0))


def test_a_former_leader_that_reads_nothing_gives_way(
    database: Database, conn: PgConnection, slot: str, stream: ReplicationStream
) -> None:
    """Told to end, its walsender first waits to say so, behind rows that nobody reads."""
    conn.execute("INSERT INTO t SELECT g, repeat('x', 10000) FROM generate_series(1, 5000) g")
    active = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    waiting = "SELECT wait_event IN ('WalSenderWriteData', 'ClientWrite') FROM pg_stat_activity WHERE pid = %s"
    [(former,)] = database.rows(active, [slot])
    await_true(lambda: database.rows(waiting, [former]) == [(True,)], DEADLINE, "the socket is full")
    conn.execute("SELECT pg_terminate_backend(%s)", [former])
    with ReplicationStream.start(database.dsn, slot, PUBLICATION, Lsn(0)) as new:
        assert database.rows(active, [slot]) not in ([(None,)], [(former,)])
        assert tags(read_until(new, lambda got: tags(got).endswith("C"))).count("I") == 5000
    with pytest.raises(ConnectionLost):
        read_until(stream, lambda _: False)


def test_starting_is_refused_with_a_reason(database: Database, conn: PgConnection, slot: str) -> None:
    with pytest.raises(SourceError, match="does not exist") as failure:
        ReplicationStream.start(database.dsn, "no_such_slot", "p", Lsn(0))
    assert not isinstance(failure.value, ConnectionLost)
    assert failure.value.remedy
    with (
        ReplicationStream.on(replication_connect(database.dsn, application_name="another"), slot, PUBLICATION, Lsn(0)),
        pytest.raises(ConnectionLost, match="in use"),
    ):
        ReplicationStream.start(database.dsn, slot, PUBLICATION, Lsn(0))
    with pytest.raises(ConnectionLost):
        ReplicationStream.start("host=127.0.0.1 port=1", slot, "p", Lsn(0))


def test_a_missing_publication_ends_the_stream_with_its_name(database: Database, conn: PgConnection, slot: str) -> None:
    with ReplicationStream.start(database.dsn, slot, "nowhere", Lsn(0)) as stream:
        conn.execute("INSERT INTO t VALUES (1, 'x')")
        if conn.info.server_version < 180000:
            with pytest.raises(SourceError, match="nowhere"):
                read_until(stream, lambda _: False)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            assert drop_slot(conn, slot)
            break
        except SourceError:
            assert time.monotonic() < deadline


def test_an_encrypted_connection_is_read_by_libpq(database: Database, conn: PgConnection, slot: str) -> None:
    with (
        tls_proxy(database.dsn) as encrypted,
        ReplicationStream.start(encrypted, slot, PUBLICATION, Lsn(0)) as stream,
    ):
        assert isinstance(stream._copy, LibpqCopy)
        conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i")
        messages = read_until(stream, lambda got: tags(got).endswith("C"))
        assert tags(messages).count("I") == 20_000


def test_both_ways_return_the_same_messages(database: Database, conn: PgConnection, slot: str) -> None:
    copied = f"{slot[:50]}_again"
    conn.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (slot, copied))
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    conn.execute("INSERT INTO t SELECT i, repeat(chr(97 + i % 26), i % 3000) FROM generate_series(1, 20000) i")
    conn.execute("UPDATE t SET v = v || 'd' WHERE id % 3 = 0; DELETE FROM t WHERE id % 5 = 0; TRUNCATE t")
    read = {}
    with pytest.MonkeyPatch.context() as patched:
        for name in (slot, copied):
            with ReplicationStream.start(database.dsn, name, PUBLICATION, Lsn(0)) as stream:
                read[type(stream._copy)] = read_until(stream, lambda got: tags(got).endswith("TC"))
            patched.setattr(copy_both, "_begins_in_clear", lambda _: False)
    assert len(read) == 2
    assert read[SocketCopy] == read[LibpqCopy]
