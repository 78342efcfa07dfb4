"""Columns with a constant default on a table whose old rows are only in the lake: these rows get the value without a
copy."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from pyiceberg.table import StaticTable

from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.retention.fold import write_fold
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, read_duckdb
from mirror_pump.testing.mirror import assert_same, await_true, lake_rows, normalised
from mirror_pump.testing.tasks import GatedCopies
from mirror_pump.testing.verification import assert_verified
from tests.support.changed_tables import DEFAULTS
from tests.support.events_table import EventsTable, RetentionTables, delete, upsert
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH, run

EVENTS = "public.events"


def _both(database: Database, *statements: str) -> None:
    """Runs statements on the table and on its model, in one transaction. `{}` is replaced by the name."""
    with database.connect(autocommit=False) as connection:
        for statement in statements:
            for table in ("events", "model"):
                run(connection, statement.replace("{}", table))


def _read(events: EventsTable) -> list[tuple[Any, ...]]:
    """The table as `mirror-pump sql` shows it."""
    with open_query(events.mirror.settings, Query("FROM events"), print) as duckdb:
        listed = ", ".join(f'"{name}"' for name in events.columns.split(", "))
        table = duckdb.execute(f"SELECT {listed} FROM events").to_arrow_table()
    return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def _model(events: EventsTable) -> list[tuple[Any, ...]]:
    return normalised(events.mirror.database.rows(f"SELECT {events.columns} FROM model"))


def _published(events: EventsTable) -> tuple[Any, ...]:
    """The frontier, the published snapshot and its location."""
    return events.mirror.database.rows(
        "SELECT replicated_lsn, lake_snapshot_id, lake_props ->> 'metadata_location' FROM modak.cutline"
    )[0]


def _payloads(database: Database) -> list[dict[str, Any]]:
    rows = database.rows(
        "SELECT payload FROM modak.delta WHERE op = 0 UNION ALL SELECT payload FROM modak.mirror_captured WHERE op = 0"
    )
    return [payload for (payload,) in rows]


@pytest.mark.further
def test_old_rows_get_the_value_and_their_corrections_too(
    retention_tables: RetentionTables, database: Database, merge_gate: GatedCopies
) -> None:
    events = retention_tables.manual(runner=merge_gate, fold_age=3600)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 3, 3, "before")
            upsert(connection, 7, 7, "before")
            delete(connection, 0, 0)
        events.seal()
        _both(database, f"UPDATE {{}} SET v = 'captured' WHERE at = {WIDTH + 2}")
        mirror.await_frontier()
        before = _published(events)
        old = lake_rows(before[2])
        (pin,) = database.rows("SELECT pin_id, metadata_location FROM modak.pin('events', in_one_snapshot => true)")
        copied = running.steps.count(Step.CHUNK_COPIED)
        merge_gate.hold()
        # Two columns at once, one of them with a value that needs quotes.
        _both(database, "ALTER TABLE {} ADD COLUMN c int NOT NULL DEFAULT 7, ADD COLUMN d text DEFAULT 'it''s \"c\"'")
        events.columns += ", c, d"
        assert len(_payloads(database)) > 2
        assert all((payload["c"], payload["d"]) == (7, 'it\'s "c"') for payload in _payloads(database))
        events.assert_exact()
        await_true(lambda: merge_gate.waiting, 20, "a file that waits to be filled")
        assert mirror.state(EVENTS) == "filling"
        assert _published(events)[1:] == before[1:]
        with database.connect(autocommit=False) as connection:
            upsert(connection, 5, 5, "after, without the columns")
            connection.execute("INSERT INTO events (at, id, v) VALUES (6, 6, 'routed')")
            connection.execute("INSERT INTO model (at, id, v) VALUES (6, 6, 'routed')")
            connection.execute('SELECT modak.upsert(\'events\', \'{"at": 7, "id": 7, "c": 8, "d": null}\')')
            connection.execute("DELETE FROM model WHERE (at, id) = (7, 7)")
            connection.execute("INSERT INTO model (at, id, c, d) VALUES (7, 7, 8, NULL)")
        events.assert_exact()
        assert_same(_model(events), _read(events), "while files are filled")
        assert events.try_advance(running) == "the table is being copied or filled"
        # Another column, and changes of the stream, while files are filled.
        _both(database, "ALTER TABLE {} ADD COLUMN e int DEFAULT -1", "UPDATE {} SET c = c + 1 WHERE at > 150")
        events.columns += ", e"
        mirror.await_frontier()
        merge_gate.let_go(1)
        events.assert_exact()
        assert_same(_model(events), _read(events), "while files are filled again")
        merge_gate.let_go()
        mirror.await_live(EVENTS)
        events.assert_exact()
        after = _published(events)
        assert after[1] != before[1]
        assert {"c", "d", "e"} <= set(read_duckdb(after[2]).column_names)
        s = StaticTable.from_metadata(after[2]).scan().to_arrow()
        assert set(s.column("c").to_pylist()) == {7}
        assert set(s.column("e").to_pylist()) == {-1}
        assert_same(_model(events), _read(events), "filled")
        assert pin[1] == before[2]
        assert lake_rows(before[2]) == old, "a reader that pinned the snapshot still reads it"
        database.execute(f"SELECT modak.release({pin[0]})")
        # Main has every row; the cut-line and folds continue.
        rows = read_duckdb(mirror.location(EVENTS), "SELECT count(*) FILTER (WHERE c IS NULL OR e IS NULL) FROM lake")
        assert rows.column(0).to_pylist() == [0]
        events.finish_advance(running)
        events.assert_exact()
    with mirror.with_options(fold_age=0.1).pumping() as running:
        await_true(lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 30, "the fold")
        events.assert_exact()
        events.advance(running)
        events.assert_exact()
    assert running.steps.count(Step.TABLE_COPIED_AGAIN) == 0
    assert running.steps.count(Step.CHUNK_COPIED) == 0
    assert copied
    mirror.assert_sound()
    assert_verified(database)


@pytest.mark.further
def test_a_default_of_every_type(retention_tables: RetentionTables, database: Database) -> None:
    """Rows below the cut-line have the same value as those above it, which `verify` compares with the heap; so do
    corrections."""
    database.execute("""CREATE TYPE mood AS ENUM ('ok', 'it''s, "bad"')""", "CREATE DOMAIN positive AS int")
    events = retention_tables.manual(fold_age=3600)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 3, 3, "before")
        names = [f"c{n}" for n in range(len(DEFAULTS))]
        added = ", ".join(
            f"ADD COLUMN {name} {type_} DEFAULT {text}"
            for name, (type_, text) in zip(names, DEFAULTS.items(), strict=True)
        )
        with database.connect() as session:
            for setting in ("DateStyle = 'German'", "TimeZone = 'Asia/Tokyo'", "bytea_output = 'escape'"):
                session.execute(f"SET {setting}".encode())
            session.execute(f"ALTER TABLE events {added}".encode())
        with database.connect(autocommit=False) as connection:
            connection.execute("SELECT modak.upsert('events', '{\"at\": 4, \"id\": 4}')")
        # Corrections from before and from after name columns alike.
        first, second = ({name: payload[name] for name in names} for payload in _payloads(database))
        assert first == second
        mirror.await_frontier()
        mirror.await_live(EVENTS)
    with mirror.with_options(fold_age=0.1).pumping() as running:
        await_true(lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 30, "the fold")
        mirror.await_frontier()
    listed = ", ".join(f"{name}::text" for name in names)
    found = read_duckdb(
        mirror.location(EVENTS),
        f"SELECT {listed}, count(*), count(*) FILTER (WHERE lake.at < {WIDTH}) FROM lake GROUP BY ALL",
    )
    ((*_, rows, below),) = zip(*(column.to_pylist() for column in found.columns), strict=True)
    assert (rows, below) == (152, 52)
    assert running.steps.count(Step.TABLE_COPIED_AGAIN) == 0
    assert_verified(database)


@pytest.mark.further
def test_a_copy_of_young_rows_does_not_take_the_value_from_old_ones(
    retention_tables: RetentionTables, database: Database, merge_gate: GatedCopies
) -> None:
    """The heap is rewritten while files are filled, and in the transaction that adds a column."""
    events = retention_tables.manual(runner=merge_gate, fold_age=0.1)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        merge_gate.hold()
        _both(database, "ALTER TABLE {} ADD COLUMN c int DEFAULT 7")
        events.columns += ", c"
        await_true(lambda: merge_gate.waiting, 20, "a file that waits to be filled")
        _both(
            database, "ALTER TABLE {} ALTER n TYPE bigint USING n + 0", "UPDATE {} SET n = 5000000000 WHERE at >= 250"
        )
        await_true(lambda: running.steps.count(Step.TABLE_COPIED_AGAIN) == 1, 20, "a copy that begins again")
        with database.connect(autocommit=False) as connection:
            upsert(connection, 5, 5, "corrected")
        events.assert_exact()
        merge_gate.let_go()
        mirror.await_live(EVENTS)
        events.assert_exact()
        _both(
            database,
            "ALTER TABLE {} ADD COLUMN d text DEFAULT 'd'",
            "ALTER TABLE {} ALTER c TYPE bigint USING c + 0",
            "ALTER TABLE {} ADD COLUMN e int DEFAULT 3",
        )
        events.columns += ", d, e"
        mirror.await_frontier()
        mirror.await_live(EVENTS)
        events.assert_exact()
        assert_same(_model(events), _read(events), "copied again, and filled")
        await_true(lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 30, "the fold")
        events.advance(running)
        events.assert_exact()
        rows = read_duckdb(_published(events)[2], "SELECT DISTINCT c, d, e FROM lake")
        assert [column.to_pylist() for column in rows.columns] == [[7], ["d"], [3]]
    mirror.assert_sound()
    assert_verified(database)


@pytest.mark.further
def test_a_fold_that_was_written_before_the_column_comes_too_late(
    retention_tables: RetentionTables, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is handed over, the fill is complete. Its file would lack the value, and no other fill would follow."""
    events = retention_tables.manual(fold_age=0.05, index_memory=0)
    mirror = events.mirror
    written, over = threading.Event(), threading.Event()

    def held(*arguments: Any) -> FoldCorrections:
        fold = write_fold(*arguments)
        written.set()
        assert over.wait(60)
        return fold

    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        monkeypatch.setattr("mirror_pump.pipeline.retention.fold.write_fold", held)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 3, 3, "folded")
        assert written.wait(60)
        _both(database, "ALTER TABLE {} ADD COLUMN c int DEFAULT 7")
        events.columns += ", c"
        mirror.await_frontier()
        mirror.await_live(EVENTS)
        over.set()
        await_true(lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 30, "the fold")
        events.assert_exact()


@pytest.mark.further
def test_corrections_that_the_command_did_not_see(retention_tables: RetentionTables, database: Database) -> None:
    """ALTER TABLE in a transaction whose snapshot is older than the corrections."""
    events = retention_tables.manual(fold_age=3600)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        with database.connect(autocommit=False) as session:
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT count(*) FROM modak.cutline")
            with database.connect(autocommit=False) as connection:
                upsert(connection, 3, 3, "younger")
            for table in ("events", "model"):
                run(session, f"ALTER TABLE {table} ADD COLUMN c timestamptz DEFAULT '2026-01-01 00:00+13'")
        mirror.await_frontier()
        mirror.await_live(EVENTS)
        assert [payload["c"] for payload in _payloads(database)] == ["2025-12-31T11:00:00+00:00"]
        events.columns += ", c"
        assert_same(_model(events), _read(events), "completed by the pump")


@pytest.mark.further
def test_a_row_of_a_transaction_that_does_not_know_the_column(
    retention_tables: RetentionTables, database: Database
) -> None:
    """It would lack the value that the statement gives: catalogs are read as of the transaction's snapshot."""
    events = retention_tables.manual(fold_age=3600)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        events.seal()
        for row in ("3, 3", f"{WIDTH + 3}, 3"):
            with database.connect(autocommit=False) as session:
                session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                session.execute("SELECT count(*) FROM modak.cutline")
                _both(database, f"ALTER TABLE {{}} ADD COLUMN c{row[0]} int DEFAULT 7")
                with pytest.raises(psycopg.errors.SerializationFailure):
                    run(session, f"INSERT INTO events (at, id, c{row[0]}) VALUES ({row}, 8)")
            events.columns += f", c{row[0]}"
        mirror.await_live(EVENTS)
        events.assert_exact()


@pytest.mark.soak
def test_column_defaults_beside_writers_and_partition_drops(
    retention_tables: RetentionTables, database: Database
) -> None:
    """Columns are added at random times, one of them while files are filled for another."""
    events = retention_tables.automatic(fold_age=0.1, fold_rows=20)
    mirror = events.mirror
    with mirror.pumping() as running, duckdb_connection() as duckdb:
        mirror.await_live(EVENTS)
        events.await_state(p0="dropped", p1="dropped")
        with writing(database, events.write, 7) as written:
            for number in range(3):
                for name in (f"c{number}", f"d{number}"):
                    default = f"NOT NULL DEFAULT {number + 3}" if name != "d1" else ""
                    with database.connect(autocommit=False) as connection:
                        # In the same order as the writers, which lock the table first.
                        for table in ("events", "model"):
                            run(connection, f"ALTER TABLE {table} ADD COLUMN {name} int {default}")
                    events.columns += f", {name}"
                    events.assert_exact(duckdb)
                events.grow()
                before = written()
                while mirror.state(EVENTS) != "live" or written() < before + 30:
                    events.assert_exact(duckdb)
        events.await_state(p2="dropped", p3="dropped", p4="dropped")
        mirror.await_frontier()
        events.assert_exact(duckdb)
        assert running.steps.count(Step.TABLE_FILLING) > 3
        assert running.steps.count(Step.TABLE_COPIED_AGAIN) == 0
        assert running.steps.count(Step.RETRYING) == 0
        assert database.rows("SELECT count(*) FROM modak.partitions WHERE reason LIKE '%differ%'") == [(0,)]
    mirror.assert_sound()
    assert_verified(database)
