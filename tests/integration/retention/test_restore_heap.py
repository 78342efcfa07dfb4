"""`unregister --restore-heap`: rows below the cut-line come back into the heap, and each is always found once."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from pydantic import ByteSize

from mirror_pump.errors import SourceError, TableError
from mirror_pump.ops.register.unregistration import abort_restore
from mirror_pump.ops.restore.restoration import RestoreStep
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.advisory_locks import advisory_key, key_halves
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, normalised
from mirror_pump.testing.program import Program
from tests.support.cli import ThreadedProgram
from tests.support.error_bounds import printed_seed
from tests.support.events_table import COLUMNS, EventsTable, RetentionTables, cold_rows, delete, upsert
from tests.support.ingest_scene import IngestScene
from tests.support.interrupts import signalled_restore
from tests.support.pipeline import in_thread, writing
from tests.support.retention_table import WIDTH, Row, run

_BOUNDS: LiteralString = (
    "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'events'::regclass ORDER BY 1"
)
_REGISTERED: LiteralString = "SELECT count(*) FROM modak.tables"
_FRONTIER: LiteralString = "SELECT applied_lsn FROM modak.mirror_slots"
_RESTORING: LiteralString = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint, objid::bigint) = (%s, %s)"
)
_LARGE = 100_000
"""Rows in a partition of the large table."""


def _assert_ordinary(events: EventsTable, *partitions: str) -> None:
    """The table is as if it had never been registered: all rows, and these partitions."""
    database = events.database
    with database.session() as connection:
        heap, model = (f"SELECT {events.columns} FROM {name}" for name in ("events", "model"))
        differing = f"({heap} EXCEPT ALL {model}) UNION ALL ({model} EXCEPT ALL {heap}) LIMIT 10"
        assert run(connection, differing).fetchall() == []
    assert [name for name, _ in database.rows(_BOUNDS)] == sorted(partitions)
    ours: LiteralString = (
        "SELECT t.tgname FROM pg_trigger t JOIN pg_partition_tree('events') p ON p.relid = t.tgrelid"
        " WHERE t.tgname ~ 'modak|mirror_pump'"
    )
    assert database.rows(ours) == []
    assert database.rows("SELECT conname FROM pg_constraint WHERE conname LIKE 'mirror_pump%'") == []
    for name in ("tables", "read_pins", "op_log", "delta"):
        assert database.rows(f"SELECT count(*) FROM modak.{name}") == [(0,)], name


def _assert_found_once(events: EventsTable, duckdb: Any) -> bool:
    """Reads the table in one snapshot, as it is to be read at that moment. Returns whether it is registered still."""
    with events.database.session(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = connection.execute("SELECT tier_key_hi, lake_props ->> 'metadata_location' FROM modak.cutline").fetchone()
        model = run(connection, f"SELECT {COLUMNS} FROM model").fetchall()
        if row is None:
            heap = run(connection, f"SELECT {COLUMNS} FROM events").fetchall()
            assert_same(normalised(model), normalised(heap), "the heap, after")
            return False
        cut, location = row
        delta = connection.execute("SELECT op, payload FROM modak.delta ORDER BY version").fetchall()
        hot = run(connection, f"SELECT {COLUMNS} FROM events WHERE at >= {cut}").fetchall()
    cold = cold_rows(location, COLUMNS, (), duckdb)
    for op, payload in delta:
        cold.pop((payload["at"], payload["id"]), None)
        if op == 0:
            cold[payload["at"], payload["id"]] = tuple(payload[name] for name in COLUMNS.split(", "))
    assert_same(normalised(model), normalised([*hot, *cold.values()]), f"across the cut-line {cut}")
    return True


def _write(events: EventsTable) -> Any:
    """A writer like any, which notices that the table is not registered any more."""

    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        try:
            events.write(connection, chance)
        except psycopg.errors.UndefinedTable:
            connection.rollback()
            key = chance.randrange(10**9)
            for table in ("events", "model"):
                run(connection, f"INSERT INTO {table} VALUES ({key % 400}, {key}, 1, 'after')")

    return write


def _shed(events: EventsTable, count: int = 3) -> None:
    """Returns once the first partitions are dropped."""
    events.await_state(60, **{f"p{number}": "dropped" for number in range(count)})


def test_rows_come_back_while_others_read_and_write(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=5, rows=200, fold_age=0.3)
    steps: list[RestoreStep] = []
    reads = 0

    def read(stop: threading.Event) -> None:
        nonlocal reads
        with duckdb_connection() as duckdb:
            while not stop.is_set():
                _assert_found_once(events, duckdb)
                reads += 1

    with events.mirror.pumping():
        _shed(events)
        with writing(events.database, _write(events), random.getrandbits(32)) as written, in_thread(read, "reader"):
            begun = written()
            said = events.mirror.unregister("events", restore_heap=True, report=lambda step, _: steps.append(step))
            count = written()
            while written() < count + 20 or reads < 3:
                threading.Event().wait(0.01)
    assert count > begun
    assert "partitions with" in said
    assert list(dict.fromkeys(steps)) == list(RestoreStep)
    gap = [name for name, _ in events.database.rows(_BOUNDS) if name.startswith("events_restored")]
    _assert_ordinary(events, "p0", "p1", "p2", "p3", "p4", *gap)
    assert dict(events.database.rows(_BOUNDS))["p1"] == f"FOR VALUES FROM ('{WIDTH}') TO ('{2 * WIDTH}')"


def test_a_table_that_is_not_copied_yet_gets_its_heap_back(
    retention_tables: RetentionTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a restore that is interrupted before its journal names the pin leaves none, which would last a day."""
    events = retention_tables.automatic(partitions=2, rows=5)
    mirror, database = events.mirror, events.database
    assert database.rows("SELECT state FROM modak.mirror_tables") == [("copying",)]

    def interrupted(*_: object, **__: object) -> None:
        assert database.rows("SELECT count(*) FROM modak.read_pins") == [(1,)]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mirror_pump.ops.restore.restoration.plan_ranges", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mirror.unregister("events", restore_heap=True)
    assert database.rows("SELECT count(*) FROM modak.read_pins") == [(0,)]
    mirror.unregister("events", restore_heap=True)
    _assert_ordinary(events, "p0", "p1")


@pytest.mark.further
def test_drop_lake_and_keep_lake_want_to_know_what_becomes_of_the_only_copy(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=4, rows=20)
    mirror = events.mirror
    with mirror.pumping():
        _shed(events, 2)
        with pytest.raises(TableError, match="only copy") as refused:
            mirror.unregister("events")
        assert "--restore-heap" in str(refused.value.remedy)
        with pytest.raises(TableError, match="would destroy the only copy"):
            mirror.unregister("events", drop_lake=True)
        upsert_and_delete(events)
        said = mirror.unregister("events", drop_lake=True, restore_heap=True)
    assert "its lake table and its files were removed" in said
    assert events.database.rows("SELECT count(*) FROM modak.iceberg_tables") == [(0,)]
    _assert_ordinary(events, "p0", "p1", "p2", "p3")


@pytest.mark.further
def test_rows_come_back_in_another_cluster(retention_tables: RetentionTables) -> None:
    """In a copy of the database. `init` refuses it before it changes the server, and what the remedy says can be
    done."""
    events = retention_tables.automatic(partitions=4, rows=20)
    mirror, database = events.mirror, events.database
    with mirror.pumping():
        _shed(events, 2)
    database.execute(
        "UPDATE modak.mirror_slots SET system_identifier = '1', database_name = 'the original'",
        f"DROP PUBLICATION {mirror.settings.publication}",
    )
    with pytest.raises(SourceError, match="database the original of cluster 1,") as refused:
        initialise(mirror.settings, lambda _: None)
    assert database.rows("SELECT count(*) FROM pg_publication") == [(0,)]
    assert "keep a copy of the warehouse" in refused.value.remedy
    assert "--restore-heap" in refused.value.remedy
    assert "uninstall.sql" in refused.value.remedy
    mirror.unregister("events", keep_lake=True, restore_heap=True)
    _assert_ordinary(events, "p0", "p1", "p2", "p3")


@pytest.mark.further
def test_without_the_heap_the_lake_goes_by_yes_alone(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=4, rows=20)
    with events.mirror.pumping():
        _shed(events, 2)
        events.mirror.unregister("events", drop_lake=True, yes=True)
    assert events.database.rows(_REGISTERED) == [(0,)]
    assert [name for name, _ in events.database.rows(_BOUNDS)] == ["p2", "p3"]


def upsert_and_delete(events: EventsTable) -> None:
    """Corrects old rows, also one below all partitions and one where a tombstone was."""
    with events.database.session(autocommit=False) as connection:
        upsert(connection, 5, 77, "corrected")
        delete(connection, 10, 2)
        upsert(connection, 10, 2, "again")
        delete(connection, 15, 3)
        for table in ("events", "model"):
            run(connection, f"INSERT INTO {table} VALUES (150, 9999, 3, NULL), (150, 9998, NULL, '')")


class _Ended(BaseException):
    """Stands for the end of the process: nothing but the database's own work happens after it."""


def _end_once_proven(step: RestoreStep, _: str) -> None:
    """The report of a restore that ends before it attaches anything."""
    if step is RestoreStep.PROVEN:
        raise _Ended


def test_a_restore_that_is_killed_at_any_step_goes_on(retention_tables: RetentionTables) -> None:
    """Each attempt ends one step later. A file that was copied is not copied again."""
    events = retention_tables.automatic(partitions=4, rows=60)
    mirror, database = events.mirror, events.database
    copied = files = 0
    with mirror.pumping():
        _shed(events, 2)
        upsert_and_delete(events)
    for last in range(1, 100):
        taken: list[RestoreStep] = []

        def report(step: RestoreStep, _: str, last: int = last, taken: list[RestoreStep] = taken) -> None:
            nonlocal copied
            copied += step is RestoreStep.COPIED_FILE
            taken.append(step)
            if len(taken) == last or step is RestoreStep.ATTACHED:
                raise _Ended

        with pytest.raises(_Ended):
            mirror.unregister("events", restore_heap=True, report=report)
        files = database.rows("SELECT count(*) FROM modak.op_log WHERE phase = 'restored'")[0][0]
        assert database.rows(_REGISTERED) == [(1,)]
        assert [name for name, _ in database.rows(_BOUNDS)] == ["events_old_rows", "p2", "p3"]
        events.assert_exact()
        if taken[-1] is RestoreStep.ATTACHED:
            break
        with database.session(autocommit=False) as connection:
            upsert(connection, 20 + last, last, "between attempts")
    assert copied == files
    mirror.unregister("events", restore_heap=True)
    _assert_ordinary(events, "p0", "p1", "p2", "p3")


@pytest.mark.further
def test_a_restore_that_gets_a_signal_at_each_step(retention_tables: RetentionTables) -> None:
    """SIGINT and SIGTERM in turn: readers find every row once, and the last attempt goes on."""
    events = retention_tables.automatic(partitions=4, rows=60)
    mirror, database = events.mirror, events.database
    with mirror.pumping():
        _shed(events, 2)
        upsert_and_delete(events)
    halves = key_halves(advisory_key(f"restore {events.table_id}"))
    lock = (halves["high"], halves["low"])
    for number, step in enumerate(RestoreStep):
        signalled = (signal.SIGINT, signal.SIGTERM)[number % 2]
        code = signalled_restore(mirror.settings, "events", step, signalled)
        assert code == (130 if signalled is signal.SIGINT else -signalled), step
        await_true(lambda: not database.rows(_RESTORING, lock), 30, "the session of the interrupted restore has ended")
        assert database.rows(_REGISTERED) == [(1,)]
        events.assert_exact()
    mirror.unregister("events", restore_heap=True)
    _assert_ordinary(events, "p0", "p1", "p2", "p3")


@pytest.mark.further
def test_rows_that_are_ingested_meanwhile_come_too(retention_tables: RetentionTables, tmp_path: Path) -> None:
    """They are in the lake, and no correction: once before the comparison with the lake, and once after it."""
    events = retention_tables.automatic(partitions=4, rows=60)
    scene = IngestScene(events.database, tmp_path / "input", events.mirror, COLUMNS.split(", "))
    ingested: list[RestoreStep] = []

    def report(step: RestoreStep, _: str) -> None:
        if step in (RestoreStep.COPIED, RestoreStep.PROVEN) and step not in ingested:
            ingested.append(step)
            # One is new, and one replaces a row.
            rows = [(7, 5000 + len(ingested), 1, "ingested"), (5, 3, len(ingested), "ingested")]
            scene.ingest(scene.csv(f"{step}.csv", rows))
            scene.into_model(rows)

    with events.mirror.pumping():
        _shed(events, 2)
        events.mirror.unregister("events", drop_lake=True, restore_heap=True, report=report)
    assert ingested == [RestoreStep.COPIED, RestoreStep.PROVEN]
    _assert_ordinary(events, "p0", "p1", "p2", "p3")


@pytest.mark.further
def test_an_unfinished_restore_is_finished_or_removed(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=4, rows=20)
    mirror, database = events.mirror, events.database

    with mirror.pumping():
        _shed(events, 2)
        with pytest.raises(_Ended):
            mirror.unregister("events", restore_heap=True, report=_end_once_proven)
        assert database.rows("SELECT count(*) FROM p0") == [(20,)]
        assert "restore-heap" in str(database.rows("SELECT retention_stopped FROM modak.status"))
        for options in ({}, {"keep_lake": True}, {"drop_lake": True, "yes": True}):
            with pytest.raises(TableError, match="being brought back"):
                mirror.unregister("events", **options)
        assert "are removed" in abort_restore(mirror.settings, "events")
        assert "no restore" in abort_restore(mirror.settings, "events")
        assert database.rows("SELECT to_regclass('p0'), to_regclass('p1')") == [(None, None)]
        assert database.rows("SELECT count(*) FROM modak.read_pins") == [(0,)]
        # Retention goes on.
        events.grow()
        _shed(events, 3)
        mirror.unregister("events", restore_heap=True)
    _assert_ordinary(events, "p0", "p1", "p2", "p3", "p4")


@pytest.mark.further
def test_a_restore_whose_pin_has_expired_begins_again(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=4, rows=20, fold_age=0.1)
    mirror, database = events.mirror, events.database

    with mirror.pumping():
        _shed(events, 2)
        with pytest.raises(_Ended):
            mirror.unregister("events", restore_heap=True, report=_end_once_proven)
        database.execute("UPDATE modak.read_pins SET expires_at = now() - interval '1 second'")
        upsert_and_delete(events)
        # Nothing tells any more what was corrected since: it is in the lake.
        await_true(lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 60, "folded and cleared")
        mirror.unregister("events", restore_heap=True)
    _assert_ordinary(events, "p0", "p1", "p2", "p3")


@pytest.mark.further
def test_the_last_transaction_waits_for_readers_of_the_seam(retention_tables: RetentionTables) -> None:
    """A reader that pinned may look at the corrections again, until it releases its pin."""
    events = retention_tables.automatic(partitions=4, rows=20)
    mirror, database = events.mirror, events.database
    proven = threading.Event()

    def report(step: RestoreStep, _: str) -> None:
        if step is RestoreStep.PROVEN:
            proven.set()

    with mirror.pumping():
        _shed(events, 2)
        pin = database.rows("SELECT pin_id FROM modak.pin('events')")[0][0]

        def restore(_: threading.Event) -> None:
            mirror.unregister("events", restore_heap=True, report=report)

        with in_thread(restore, "restore", 120) as thread:
            assert proven.wait(60)
            with database.session(autocommit=False) as connection:
                upsert(connection, 5, 1, "meanwhile")
            assert thread.is_alive()
            assert database.rows(_REGISTERED) == [(1,)]
            events.assert_exact()
            with database.session() as connection:
                connection.execute("SELECT modak.release(%s)", (pin,))
            await_true(lambda: not thread.is_alive(), 60, "restored")
    _assert_ordinary(events, "p0", "p1", "p2", "p3")


@pytest.mark.further
def test_what_was_detached_or_attached_late_is_not_taken_for_the_lakes_rows(retention_tables: RetentionTables) -> None:
    limits = InternalLimits(late_partition_bytes=ByteSize(1))
    events = retention_tables.automatic(partitions=5, rows=20, lag=None, limits=limits)
    mirror, database = events.mirror, events.database
    mirror.register("events", retention=RetentionOptions(lag="100", drop_grace="0", detach=True))
    with mirror.pumping():
        _shed(events)
        # A table of its own now, to which the mirror pays no attention.
        database.execute("UPDATE p0 SET v = 'not seen' WHERE id < 5", "DROP TABLE p1", "CREATE TYPE p1 AS (x int)")
        database.execute(
            "CREATE TABLE late (LIKE events INCLUDING ALL)",
            "INSERT INTO late VALUES (-50, 1, 1, 'never mirrored')",
            "ALTER TABLE events ATTACH PARTITION late FOR VALUES FROM (-100) TO (0)",
        )
        await_true(lambda: "late" in events.states(), 60, "noticed")
        with pytest.raises(TableError, match="late is attached below the cut-line") as refused:
            mirror.unregister("events", restore_heap=True)
        assert "DETACH PARTITION public.late" in str(refused.value.remedy)
        database.execute("ALTER TABLE events DETACH PARTITION late")
        said: list[str] = []
        mirror.unregister("events", restore_heap=True, report=lambda _, text: said.append(text))
    assert "public.p0, which was detached, stays a table of its own; its rows come from the lake" in said
    assert database.rows("SELECT count(*) FROM p0 WHERE v = 'not seen'") == [(5,)]
    _assert_ordinary(events, "p0_restored", "p1_restored", "p2_restored", "p3", "p4")


def test_partitions_that_are_on_their_way_out_stay(retention_tables: RetentionTables) -> None:
    """One that the cut-line has passed, and that is proven again; and one that is sealed."""
    events = retention_tables.manual(partitions=4, rows=30)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        events.advance(running)
        events.seal()
        upsert_and_delete(events)
        mirror.unregister("events", restore_heap=True)
    _assert_ordinary(events, "p0", "p1", "p2", "p3", "p_default")


@pytest.mark.further
def test_a_truncated_partition_is_not_taken_for_what_the_lake_has(retention_tables: RetentionTables) -> None:
    events = retention_tables.manual(partitions=3, rows=30)
    mirror, database = events.mirror, events.database
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        database.execute("TRUNCATE p0")
        with pytest.raises(TableError, match="not hold what the lake has"):
            mirror.unregister("events", restore_heap=True)
        database.execute("ALTER TABLE events DETACH PARTITION p0")
        database.execute("UPDATE modak.partitions SET state = 'dropped' WHERE partition_id = 'p0'")
        mirror.unregister("events", restore_heap=True)
    _assert_ordinary(events, "p0_restored", "p1", "p2", "p_default")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_large_table_comes_back_past_real_kills(retention_tables: RetentionTables, tmp_path: Path) -> None:
    """2,400,000 rows in 24 partitions, of which 22 have left. The command and the pump are processes, and both are
    killed at random moments while rows are corrected."""
    events = retention_tables.automatic(partitions=24, rows=_LARGE, copy_chunk_bytes=4 << 20, merge_bytes=0)
    mirror, database = events.mirror, events.database
    seed = printed_seed()
    chance = random.Random(seed)
    with mirror.pumping():
        events.await_state(1800, **{f"p{number}": "dropped" for number in range(22)})
    attached = database.rows(_BOUNDS)
    halves = key_halves(advisory_key(f"restore {events.table_id}"))
    lock = (halves["high"], halves["low"])
    with (
        in_thread(partial(_killed_pumps, mirror, tmp_path, seed), "pump", 120),
        writing(database, _write_rows(events), seed) as written,
    ):
        for attempt in range(13):
            # The first ones make tables and copy files. The last ones compare rows, and may come to their end.
            lines, seconds = (chance.randint(1, 12), 0.5) if attempt < 8 else (chance.randint(1, 3), 20)
            moment = (lines, chance.uniform(0, seconds)) if attempt < 12 else None
            ended = _killed_restore(mirror, tmp_path, attempt, moment)
            await_true(
                lambda: not database.rows(_RESTORING, lock), 120, "the server has noticed that the client is gone"
            )
            if not _is_as_before(events, attached):
                break
            assert ended is None, (tmp_path / f"restore{attempt}.log").read_text()
        print(f"the restore was killed {attempt} times", file=sys.stderr)
        assert database.rows(_REGISTERED) == [(0,)]
        assert attempt > 2
        count = written()
        await_true(lambda: written() > count + 20, 60, "rows are written to an ordinary table")
    gap = [name for name, _ in database.rows(_BOUNDS) if name.startswith("events_restored")]
    _assert_ordinary(events, *(f"p{number}" for number in range(24)), *gap)
    mirror.catch_up()


def _is_as_before(events: EventsTable, attached: Sequence[Row]) -> bool:
    """Whether the table is registered still, which it is exactly as long as no partition was attached."""
    with events.database.session(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        registered = connection.execute(_REGISTERED).fetchone() == (1,)
        assert (connection.execute(_BOUNDS).fetchall() == attached) is registered
    return registered


def _killed_restore(mirror: Mirror, directory: Path, attempt: int, moment: tuple[int, float] | None) -> int | None:
    """Runs the command until it has said that many lines, and kills it that many seconds later. Returns its exit code
    if it ended before; always without a moment."""
    program = Program(mirror.database.dsn, directory)
    log = directory / f"restore{attempt}.log"
    options = ("--slot", mirror.settings.slot, "--publication", mirror.settings.publication)
    process = program.start("unregister", "events", "--restore-heap", *options, log=log.name)
    try:
        if moment is None:
            return process.wait(900)
        lines, seconds = moment
        await_true(
            lambda: process.poll() is not None or len(log.read_text().splitlines()) >= lines, 900, f"{lines} lines"
        )
        with suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
        return None
    finally:
        program.kill(process)


def _killed_pumps(mirror: Mirror, directory: Path, seed: int, stop: threading.Event) -> None:
    """Runs one pump after the other. Each is killed some time after it has published."""
    chance = random.Random(seed)
    program = ThreadedProgram(mirror.database.dsn, directory, {"MIRROR_PUMP_RETENTION_INTERVAL": "0.1"})
    for number in itertools.count():
        before = mirror.database.rows(_FRONTIER)
        log = f"pump{number}.log"
        options = ("--slot", mirror.settings.slot, "--publication", mirror.settings.publication)
        process = program.start("run", *options, log=log)
        try:
            while not stop.is_set() and mirror.database.rows(_FRONTIER) == before:
                assert process.poll() is None, (directory / log).read_text()
                stop.wait(0.1)
            stop.wait(chance.uniform(0, 3))
            assert process.poll() is None, (directory / log).read_text()
        finally:
            program.kill(process)
        if stop.is_set():
            return


def _write_rows(events: EventsTable) -> Any:
    """Changes single rows of the large table, each of which it finds by its key, and adds some."""

    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        number = chance.randrange(_LARGE)
        at, key = chance.randrange(events.partitions) * WIDTH + number * WIDTH // _LARGE, number
        try:
            match chance.randrange(3):
                case 0:
                    upsert(connection, at, key, f"{chance.random()}")
                case 1:
                    delete(connection, at, key)
                case 2:
                    upsert(connection, at, chance.randrange(_LARGE, 2 * _LARGE), "new")
        except psycopg.errors.UndefinedTable:
            connection.rollback()
            for table in ("events", "model"):
                run(connection, f"UPDATE {table} SET n = n + 1 WHERE (at, id) = ({at}, {key})")

    return write
