"""Readers that remember a frontier and go on from there, beside a pump that is killed again and again: together their
intervals have every change once, in order, and whole transactions."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.model import FeedMode, format_lsn, parse_lsn
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.crashing_pump import dying_pump
from tests.support.pipeline import in_thread
from tests.support.rest_catalog import ServedMirror, served

_TABLES = ("a", "b")
_AUDITED: LiteralString = """
CREATE SCHEMA IF NOT EXISTS audited;
CREATE TABLE IF NOT EXISTS audited.changes (place bigserial, xid bigint, relation text, op text, id int, v text);
CREATE OR REPLACE FUNCTION audited.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    INSERT INTO audited.changes (xid, relation, op)
      VALUES (pg_current_xact_id()::text::bigint, TG_TABLE_NAME, 'truncate');
  ELSE
    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND OLD.id <> NEW.id) THEN
      INSERT INTO audited.changes (xid, relation, op, id)
        VALUES (pg_current_xact_id()::text::bigint, TG_TABLE_NAME, 'delete', OLD.id);
    END IF;
    IF TG_OP <> 'DELETE' THEN
      INSERT INTO audited.changes (xid, relation, op, id, v)
        VALUES (pg_current_xact_id()::text::bigint, TG_TABLE_NAME,
                CASE WHEN TG_OP = 'UPDATE' AND OLD.id = NEW.id THEN 'update' ELSE 'insert' END, NEW.id, NEW.v);
    END IF;
  END IF;
  RETURN NULL; END $$;
"""
_WATCHED: LiteralString = """
CREATE TABLE {0} (id int PRIMARY KEY, v text);
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION audited.note();
CREATE TRIGGER note_all AFTER TRUNCATE ON {0} FOR EACH STATEMENT EXECUTE FUNCTION audited.note();
"""

_RowEvent = tuple[str, int | None, str | None]
"""Operation, key, and value."""


@dataclass
class _ChangeReader:
    """What one reader has read so far."""

    position: int
    """The frontier that it remembers."""
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    """By table, in the order of reading; within an interval by position and number."""
    intervals: int = 0

    def take(self, until: int, rows: dict[str, list[dict[str, Any]]]) -> None:
        """An interval. Fails unless all of it lies between the remembered frontier and its end, and every transaction
        is whole."""
        counts = {row["_lsn"]: dict(row["tables"]) for row in rows.pop("modak.transactions")}
        for table, changes in rows.items():
            for row in changes:
                assert self.position <= row["_lsn"] < until
            own = [row for row in changes if row["_op"] != "reset"]
            for lsn, tables in counts.items():
                here = sum(row["_lsn"] == lsn for row in own)
                assert here == tables.get(f"public.{table}", 0), (table, format_lsn(lsn), tables)
            assert {row["_lsn"] for row in own} <= counts.keys()
            self.rows[table] += sorted(changes, key=lambda row: (row["_lsn"], row["_seq"]))
        self.intervals += bool(counts)
        self.position = until


@pytest.mark.parametrize(("seconds", "lives"), [(12, (0.3, 2)), pytest.param(300, (0.5, 8), marks=pytest.mark.soak)])
def test_readers_that_go_on_miss_nothing_and_read_nothing_twice(
    database: Database,
    warehouse: str,
    tmp_path: Path,
    seconds: float,
    lives: tuple[float, float],
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"{seed=}")
    database.execute(_AUDITED, *(_WATCHED.format(table) for table in _TABLES))
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=2000, lease_timeout=20)
    mirror.register("a", feed=FeedOptions(FeedMode.KEYS))
    mirror.register("b", feed=FeedOptions(FeedMode.ROWS))
    mirror.catch_up()
    begin = mirror.frontier()
    by_duckdb, by_pyiceberg = _ChangeReader(begin), _ChangeReader(begin)
    program = Program(database.dsn, tmp_path, {"MIRROR_PUMP_SLOT": mirror.settings.slot})
    with served(mirror.settings) as catalog, _followed(program, tmp_path, begin) as printed:
        with (
            dying_pump(mirror, seed, *lives) as killed,
            in_thread(lambda stop: _write(database, random.Random(seed), stop), "writer"),
            in_thread(lambda stop: _read(by_duckdb, catalog, _duckdb_rows, stop), "reader by DuckDB", 120),
            in_thread(lambda stop: _read(by_pyiceberg, catalog, _pyiceberg_rows, stop), "reader by pyiceberg", 120),
        ):
            time.sleep(seconds)
            readers = (by_duckdb, by_pyiceberg)
            await_true(lambda: killed.total() >= 2 and all(reader.intervals > 2 for reader in readers), 120, "kills")
        mirror.catch_up()
        for reader, rows in ((by_duckdb, _duckdb_rows), (by_pyiceberg, _pyiceberg_rows)):
            _go_on(reader, catalog, rows)
        frontier = mirror.frontier()
        await_true(lambda: printed and printed[-1].get("frontier") == format_lsn(frontier), 60, "the last frontier")
    print(f"killed {dict(killed)}; {by_duckdb.intervals} intervals, {len(printed)} lines")
    audited = _audited(database)
    for reader in (by_duckdb, by_pyiceberg):
        for table in _TABLES:
            assert _by_transaction(reader.rows[table]) == audited[table]
    assert _by_transaction(_printed_rows(printed)) == audited["a"]
    frontiers = [parse_lsn(line["frontier"]) for line in printed if "frontier" in line]
    assert frontiers == sorted(set(frontiers))


def _write(database: Database, chance: random.Random, stop: threading.Event) -> None:
    with database.connect(autocommit=False) as connection:
        while not stop.is_set():
            for _ in range(chance.choice([1, 1, 3, 10])):
                _change(connection, chance)
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
            stop.wait(chance.choice([0, 0.01, 0.05, 0.3]))


def _change(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    table, key, value = chance.choice(_TABLES), chance.randrange(40), chance.choice(["x", "y", None])
    kinds = ["insert", "insert", "update", "delete", "key", "truncate" if chance.random() < 0.1 else "insert"]
    match chance.choice(kinds):
        case "insert":
            query = f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
            connection.execute(query.encode(), (key, value))
        case "update":
            query = f"UPDATE {table} SET v = %s WHERE id BETWEEN %s AND %s"
            connection.execute(query.encode(), (value, key, key + 5))
        case "delete":
            connection.execute(f"DELETE FROM {table} WHERE id = %s".encode(), (key,))
        case "key":
            connection.execute(
                f"UPDATE {table} SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM {table} WHERE id = %s)".encode(),
                (key + 100, key, key + 100),
            )
        case "truncate":
            connection.execute(f"TRUNCATE {table}".encode())


_RowsOf = Callable[[ServedMirror, str], dict[str, list[dict[str, Any]]]]


def _duckdb_rows(catalog: ServedMirror, warehouse: str) -> dict[str, list[dict[str, Any]]]:
    with catalog.duckdb(warehouse) as connection:
        return {
            name.removeprefix("public."): connection.execute(f"FROM lake.{name}").to_arrow_table().to_pylist()
            for name in ("public.b", "modak.transactions", "public.a")
        }


def _pyiceberg_rows(catalog: ServedMirror, warehouse: str) -> dict[str, list[dict[str, Any]]]:
    client = catalog.pyiceberg(warehouse)
    return {
        name.removeprefix("public."): client.load_table(name).scan().to_arrow().to_pylist()
        for name in ("public.a", "public.b", "modak.transactions")
    }


def _read(reader: _ChangeReader, catalog: ServedMirror, rows: _RowsOf, stop: threading.Event) -> None:
    while not stop.is_set():
        _go_on(reader, catalog, rows)
        stop.wait(0.2)


def _go_on(reader: _ChangeReader, catalog: ServedMirror, rows: _RowsOf) -> None:
    """Reads the changes after the remembered frontier up to the present one."""
    since = format_lsn(reader.position).replace("/", "-")
    answer = catalog.ask(f"/v1/config?warehouse=mirror%40{since}..latest").document
    until = parse_lsn(answer["defaults"]["mirror-pump.frontier"])
    end = format_lsn(until).replace("/", "-")
    if until > reader.position:
        reader.take(until, rows(catalog, f"mirror@{since}..{end}"))


@contextmanager
def _followed(program: Program, directory: Path, begin: int) -> Iterator[list[dict[str, Any]]]:
    """The lines of `mirror-pump changes --follow`, as they come."""
    command = program.command("changes", "a", "--since", format_lsn(begin), "--follow", "--json")
    lines: list[dict[str, Any]] = []
    with (directory / "changes.log").open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=program.environment, cwd=directory
        )
        assert process.stdout is not None
        stdout = process.stdout
        reading = threading.Thread(target=lambda: lines.extend(map(json.loads, stdout)), daemon=True)
        reading.start()
        try:
            yield lines
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (directory / "changes.log").read_text()
        finally:
            process.kill()
            process.wait()
            reading.join(10)


def _printed_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Printed changes, as a feed has them."""
    return [
        {
            "_op": line["op"],
            "_lsn": parse_lsn(line["lsn"]),
            "_seq": line["seq"],
            "_xid": line["xid"],
            "id": None,
            "v": None,
            **(line["row"] or {}),
        }
        for line in lines
        if "op" in line
    ]


def _by_transaction(rows: list[dict[str, Any]]) -> dict[int, list[_RowEvent]]:
    """The changes of each transaction, in their order. Fails unless all rows are in order, none of them twice."""
    places = [(row["_lsn"], row["_seq"]) for row in rows]
    assert places == sorted(set(places))
    transactions: dict[int, list[_RowEvent]] = defaultdict(list)
    for row in rows:
        assert row["_op"] != "reset"
        value = row["v"] if row["_op"] in ("insert", "update") else None
        transactions[row["_xid"]].append((row["_op"], row["id"], value))
    return dict(transactions)


def _audited(database: Database) -> dict[str, dict[int, list[_RowEvent]]]:
    """What triggers noted, by table and transaction."""
    changes: dict[str, dict[int, list[_RowEvent]]] = {table: defaultdict(list) for table in _TABLES}
    for relation, xid, *event in database.rows("SELECT relation, xid, op, id, v FROM audited.changes ORDER BY place"):
        changes[relation][xid].append((event[0], event[1], event[2]))
    return {table: dict(transactions) for table, transactions in changes.items()}
