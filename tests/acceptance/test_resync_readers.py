"""Readers of all tables, all the while: a mirror loses its slot again and again, and its pumps are killed during each
resync, under writers and schema changes. Readers never see two moments, or an empty table, and no row is lost."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Row, assert_same, await_true, normalised
from mirror_pump.testing.verification import assert_verified
from tests.support.events_table import EventsTable, RetentionTables
from tests.support.killed_pump import die
from tests.support.pipeline import in_thread, writing
from tests.support.resyncs import (
    assert_one_swap,
    audit_promises,
    drop_slot,
    dying_in_the_catalog,
    forget_promises,
    move_slot,
    resynced,
)
from tests.support.retention_table import run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TABLES = ("a", "b", "events", "model")
"""Each transaction changes a and b alike, and events and model alike."""

_SEEN = """
SELECT t.table_name, c.replicated_lsn, c.tier_key_hi, i.metadata_location, m.resync_since IS NOT NULL
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) JOIN modak.cutline c USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
"""
"""What a reader of all tables asks for first."""

_KILLS = (
    ("streaming", 1),
    ("staged", 1),
    ("published", 1),
    ("published", 2),
    ("acknowledged", 1),
    ("chunk-copied", 1),
    ("chunk-copied", 3),
    ("chunk-copied/staged", 1),
    ("chunk-copied/published", 1),
)
_CRASHES = (("mirror_slots", "OLD.applied_lsn <> NEW.applied_lsn"), ("mirror_tables", "NEW.state = 'waiting'"))
"""Rows whose change ends the session of the command."""


@dataclass
class _Reader:
    """Reads all tables at one moment of the catalog, again and again. Fails if two tables with one frontier show two
    moments, if one is empty, or if a frontier moves back."""

    database: Database
    during: int = 0
    """Pairs of tables compared while a resync was under way."""
    after: int = 0
    """Other pairs compared."""
    promised: dict[str, int] = field(default_factory=dict)

    def work(self, stop: threading.Event) -> None:
        with duckdb_connection() as duckdb:
            while not stop.is_set():
                with self.database.session() as connection:
                    seen = connection.execute(_SEEN).fetchall()
                self._compare(
                    {
                        table: _ReadTable(frontier, cut, resync, self._rows(duckdb, table, frontier, location))
                        for table, frontier, cut, location, resync in seen
                    }
                )

    def _rows(self, duckdb: DuckDBPyConnection, table: str, frontier: int, location: str) -> list[Row]:
        assert frontier >= self.promised.get(table, 0), f"the frontier of {table} moved back"
        self.promised[table] = frontier
        columns = "id, n, v" if table in ("a", "b") else '"at", id, n, v'
        rows: list[Row] = duckdb.execute(f"SELECT {columns} FROM iceberg_scan('{location}')").fetchall()
        assert rows, f"{table} is empty at {format_lsn(Lsn(frontier))}"
        return rows

    def _compare(self, tables: dict[str, _ReadTable]) -> None:
        assert len({table.resync for table in tables.values()}) == 1, "all are marked, and all are shown, in one moment"
        for name, other_name in (("a", "b"), ("model", "events")):
            table, other = tables[name], tables[other_name]
            if table.frontier != other.frontier:
                continue
            rows, other_rows = table.rows, other.rows
            if other_name == "events":
                # Corrections of rows below the cut-line are in the lake only once they are folded.
                rows, other_rows = ([row for row in found if row[0] >= other.cut] for found in (rows, other_rows))
            where = f"{other_name} beside {name} at {format_lsn(Lsn(table.frontier))}"
            assert_same(normalised(rows), normalised(other_rows), where)
            if table.resync:
                self.during += 1
            else:
                self.after += 1


@dataclass
class _ReadTable:
    """What a reader finds of one table."""

    frontier: int
    cut: int
    resync: bool
    rows: list[Row]


@dataclass
class _Attack:
    """One mirror, and everything that happens to it."""

    events: EventsTable
    chance: random.Random
    changes: int = 0
    """Schema changes so far."""

    @property
    def mirror(self) -> Mirror:
        return self.events.mirror

    def write(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """One transaction that changes all tables."""
        self.events.write(connection, chance)
        first = chance.randrange(400)
        for table in ("a", "b"):
            run(connection, f"UPDATE {table} SET n = n + 1 WHERE id BETWEEN {first} AND {first + 9}")
            run(connection, f"DELETE FROM {table} WHERE id = {first + 10}")
            run(connection, f"INSERT INTO {table} (id, n, v) VALUES ({first + 10}, {first}, repeat('v', 200))")

    def change_schema(self) -> None:
        """A schema change or a TRUNCATE of some of the tables."""
        self.changes += 1
        number = self.changes
        match self.chance.randrange(5):
            case 0:
                statements = [f"ALTER TABLE {table} ADD COLUMN c{number} int DEFAULT {number}" for table in ("a", "b")]
            case 1:
                statements = [f"ALTER TABLE a ADD COLUMN c{number} float8 DEFAULT random()"]
            case 2:
                statements = ["TRUNCATE a, b", *(f"INSERT INTO {table} (id, n) VALUES (-1, 1)" for table in ("a", "b"))]
            case 3:
                statements = [
                    f"ALTER TABLE {table} ADD COLUMN c{number} int NOT NULL DEFAULT {number}"
                    for table in ("events", "model")
                ]
            case _:
                statements = [f"ALTER TABLE b ALTER v TYPE varchar({300 + number}), ALTER n TYPE bigint USING n"]
        for _ in range(20):
            try:
                with self.events.database.session(autocommit=False) as connection:
                    for statement in statements:
                        run(connection, statement)
                break
            except psycopg.errors.DeadlockDetected:
                # The writer needed the same tables.
                continue
        else:
            pytest.fail(f"{statements} failed again and again")
        if "events" in statements[0]:
            self.events.columns += f", c{number}"

    def lose_slot(self) -> None:
        """The slot is lost, and the command is run, perhaps after it crashed twice."""
        self.chance.choice((drop_slot, move_slot))(self.mirror)
        if self.chance.randrange(2):
            self.change_schema()
        if self.chance.randrange(2):
            for table, condition in _CRASHES:
                with (
                    dying_in_the_catalog(self.mirror.database, table, condition),
                    pytest.raises(SourceError),
                ):
                    resynced(self.mirror)
                self.change_schema()
        assert resynced(self.mirror).position is not None

    def kill(self, step: str, nth: int) -> None:
        """A pump that is killed there, while others write."""
        die(
            self.mirror,
            step,
            nth,
            once="false",
            copy_chunk_bytes=8192,
            copy_workers=1,
            fold_age=0.1,
            retention_interval=0.1,
        )
        self.mirror.assert_sound()

    def resync(self) -> None:
        """From the loss of the slot until all tables are live again."""
        kept = self.mirror.frontier()
        forget_promises(self.mirror.database)
        self.lose_slot()
        for step, nth in self.chance.sample(_KILLS, 2):
            self.kill(step, nth)
            self.events.assert_exact()
            if self.chance.randrange(2):
                self.change_schema()
            if not self.chance.randrange(3):
                self.lose_slot()
        assert "live" not in {self.mirror.state(f"public.{table}") for table in _TABLES}
        self.kill("live", 1)
        states = {
            table: (self.mirror.state(f"public.{table}"), self.mirror.error(f"public.{table}")) for table in _TABLES
        }
        assert states == dict.fromkeys(_TABLES, ("live", "")), states
        assert_one_swap(self.mirror.database, _TABLES, kept)
        self.events.assert_exact()

    def go_on(self) -> None:
        """For a while all is well: the cut-line moves on, corrections are folded, a schema changes. Then the pump is
        killed in the middle of it."""
        cut = self.events.cut
        with self.mirror.pumping():
            self.mirror.await_live(*(f"public.{table}" for table in _TABLES))
            self.events.grow()
            await_true(lambda: self.events.cut > cut, 60, "the cut-line moves on")
            self.events.assert_exact()
            self.change_schema()
            self.events.grow()
        self.kill("published", self.chance.randrange(1, 6))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.soak) for seed in range(4)])
def test_readers_see_one_moment_whatever_happens_to_resyncs(
    retention_tables: RetentionTables, database: Database, seed: int
) -> None:
    events = retention_tables.automatic(partitions=5, rows=20, fold_age=0.1, copy_chunk_bytes=8192)
    mirror = events.mirror
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, n int, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, n int, v text)",
        "INSERT INTO a SELECT g, 0, repeat('v', 200) FROM generate_series(1, 500) g",
        "INSERT INTO b SELECT * FROM a",
    )
    mirror.register("a", "b", "model")
    with mirror.pumping():
        mirror.await_live(*(f"public.{table}" for table in _TABLES))
        gone = "SELECT count(*) >= 2 FROM modak.partitions WHERE state = 'dropped'"
        await_true(lambda: database.rows(gone) == [(True,)], 60, "two partitions are gone from the heap")
    audit_promises(database)
    attack = _Attack(events, random.Random(seed))
    reader = _Reader(database)
    with writing(database, attack.write, seed), in_thread(reader.work, "reader", 60):
        for _ in range(3):
            attack.resync()
            attack.go_on()
    assert reader.during > 10
    assert reader.after > 10
    with mirror.pumping():
        # Tables stay live until the pump has read the last schema changes, which may have them filled or copied again.
        mirror.await_frontier()
        mirror.await_live(*(f"public.{table}" for table in _TABLES))
        mirror.await_frontier()
        mirror.assert_equal("public.a", "public.b", "public.model")
        folded = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: database.rows(folded) == [(0,)], 60, "all corrections are folded")
        events.assert_exact()
        assert_verified(database)
    mirror.assert_sound()
