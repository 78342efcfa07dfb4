"""A partitioned table with heap retention, partitions sealed and T moved by hand, and the seam read by hand."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.events import AdvanceWanted
from mirror_pump.pipeline.flow.requests import TierAdvance
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.testing.mirror import Mirror, RunningPump, assert_same, await_true, lake_rows, normalised

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WIDTH = 100
"""Tier values of a partition."""
COLUMNS = "at, id, n, v, big"

Row = tuple[Any, ...]


@dataclass
class Divided:
    """public.events: partitions p0, p1 ... of WIDTH, a default partition, and public.model, a plain table that gets
    every change in the same transaction."""

    mirror: Mirror
    partitions: int
    sealed: int = 0
    """Partitions that T has passed."""

    @classmethod
    def create(cls, mirror: Mirror, partitions: int = 3, rows: int = 50) -> Divided:
        """Creates and registers the table with `rows` rows a partition; a pump has to copy it."""
        self = cls(mirror, partitions)
        with mirror.database.connect(autocommit=False) as connection:
            connection.execute(
                "CREATE TABLE events (at bigint, id bigint, n int, v text, big text, PRIMARY KEY (at, id))"
                " PARTITION BY RANGE (at)"
            )
            connection.execute("CREATE TABLE model (LIKE events INCLUDING INDEXES)")
            for number in range(partitions):
                run(
                    connection,
                    f"CREATE TABLE p{number} PARTITION OF events FOR VALUES FROM ({number * WIDTH})"
                    f" TO ({(number + 1) * WIDTH})",
                )
            connection.execute("CREATE TABLE p_default PARTITION OF events DEFAULT")
            for table in ("events", "model"):
                run(
                    connection,
                    f"INSERT INTO {table} SELECT p * {WIDTH} + g * {WIDTH} / {rows}, g, 0, 'first',"
                    f" repeat(md5(g::text), 80) FROM generate_series(0, {partitions - 1}) p,"
                    f" generate_series(0, {rows - 1}) g",
                )
        mirror.register("public.events")
        self.retain()
        return self

    @property
    def table_id(self) -> TableId:
        return TableId(int(self.mirror.database.rows("SELECT 'events'::regclass::oid::bigint")[0][0]))

    @property
    def cut(self) -> int:
        """T."""
        rows = self.mirror.database.rows("SELECT tier_key_hi FROM modak.cutline WHERE table_id = %s", (self.table_id,))
        return int(rows[0][0])

    def retain(self) -> None:
        """What the service does by itself is done by hand in these tests."""
        with self.mirror.database.connect(autocommit=False) as connection:
            connection.execute("UPDATE modak.tables SET heap_retention_lag = 0 WHERE table_id = %s", (self.table_id,))
            for number in range(self.partitions):
                connection.execute(
                    "INSERT INTO modak.partitions"
                    " (table_id, partition_id, tier_key_lo, tier_key_hi, state, relation_id)"
                    " VALUES (%s, %s, %s, %s, 'hot', to_regclass(%s)::oid::bigint)",
                    (self.table_id, f"p{number}", number * WIDTH, (number + 1) * WIDTH, f"p{number}"),
                )
            connection.execute(
                "SELECT modak.retain_triggers(%s, 'p_default'::regclass, 'default', 'default')", (self.table_id,)
            )

    def seal(self) -> None:
        """Begins the way out of the next partition."""
        with self.mirror.database.connect(autocommit=False) as connection:
            connection.execute("SELECT modak.seal(%s, %s)", (self.table_id, f"p{self.sealed}"))
        self.mirror.database.rows("SELECT 1")
        with self.mirror.database.connect() as connection:
            connection.execute(
                "UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint"
                " WHERE table_id = %s AND partition_id = %s AND state = 'sealing'",
                (self.table_id, f"p{self.sealed}"),
            )

    def ask(self, running: RunningPump) -> str | None:
        """Asks the pump once for T to pass the sealed partition; why not, or None."""
        with connect(self.mirror.database.dsn, autocommit=True) as connection:
            table = load_table(connection, self.table_id)
        assert table is not None
        name = f"p{self.sealed}"
        answer: Future[str | None] = Future()
        running.pump.submit(AdvanceWanted(table, TierAdvance(name, (self.sealed + 1) * WIDTH), answer))
        await_true(answer.done, 30, "an answer to the advance")
        return "the session ended" if answer.cancelled() else answer.result()

    def advance(self, running: RunningPump) -> None:
        """Has the pump move T past the next partition."""
        self.seal()
        self.finish_advance(running)

    def finish_advance(self, running: RunningPump) -> None:
        """Has the pump move T past the partition that is sealed."""
        self.mirror.await_frontier()
        said: list[str | None] = []

        def landed() -> bool:
            said.append(self.ask(running))
            return said[-1] is None

        await_true(landed, 30, "T moved")
        self.sealed += 1

    def seam(self, duckdb: DuckDBPyConnection | None = None) -> tuple[list[Row], list[Row]]:
        """The table as a seam read finds it, and the model, both as of one Postgres snapshot. S is scanned without a
        filter."""
        with self.mirror.database.connect(autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            row = connection.execute(
                "SELECT tier_key_hi, lake_props ->> 'metadata_location' FROM modak.cutline WHERE table_id = %s",
                (self.table_id,),
            ).fetchone()
            assert row is not None
            cut, location = row
            delta = connection.execute(
                "SELECT op, tier_key, payload FROM modak.delta WHERE table_id = %s ORDER BY version", (self.table_id,)
            ).fetchall()
            hot = run(connection, f"SELECT {COLUMNS} FROM events WHERE at >= {cut}").fetchall()
            model = run(connection, f"SELECT {COLUMNS} FROM model").fetchall()
        found = lake_rows(location, duckdb)
        cold = {(row[0], row[1]): row for row in found}
        assert len(cold) == len(found), "S holds a row twice"
        for op, tier_key, payload in delta:
            assert tier_key < cut, "every delta row targets a cold row"
            key = (payload["at"], payload["id"])
            cold.pop(key, None)
            if op == 0:
                cold[key] = tuple(payload[name] for name in COLUMNS.split(", "))
        assert all(key[0] < cut for key in cold), f"S holds a row at or above T = {cut}"
        return normalised([*hot, *cold.values()]), normalised(model)

    def assert_exact(self, duckdb: DuckDBPyConnection | None = None) -> None:
        """Fails unless a seam read finds exactly what the table holds."""
        found, wanted = self.seam(duckdb)
        assert_same(wanted, found, f"the seam at T = {self.cut}")

    def write(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """One transaction's changes, anywhere in the table, and the same to the model."""
        top = self.partitions * WIDTH
        at, key = chance.randrange(top), chance.randrange(60)
        to, value = chance.randrange(top), f"{chance.random()}"
        match chance.randrange(6):
            case 0 | 1:
                upsert(connection, at, key, value)
            case 2:
                delete(connection, at, key)
            case 3:
                # What the heap holds of it, as ordinary DML has it: in sealed partitions too, and across T.
                rows = run(
                    connection, f"DELETE FROM events WHERE at BETWEEN {at} AND {at + 3} RETURNING at, id"
                ).fetchall()
                for gone in rows:
                    connection.execute("DELETE FROM model WHERE (at, id) = (%s, %s)", gone)
            case 4:
                rows = run(
                    connection, f"UPDATE events SET n = n + 1 WHERE at BETWEEN {at} AND {at + 9} RETURNING at, id"
                ).fetchall()
                for changed in rows:
                    connection.execute("UPDATE model SET n = n + 1 WHERE (at, id) = (%s, %s)", changed)
            case 5:
                rows = connection.execute(
                    "UPDATE events SET at = %s, v = %s WHERE (at, id) IN (SELECT at, id FROM events"
                    " WHERE at BETWEEN %s AND %s LIMIT 1)"
                    " AND NOT EXISTS (SELECT FROM model m WHERE m.at = %s AND m.id = events.id) RETURNING id, n, big",
                    (to, value, at, at + 5, to),
                ).fetchall()
                for number, _, _ in rows:
                    connection.execute(
                        "UPDATE model SET at = %s, v = %s WHERE at BETWEEN %s AND %s AND id = %s"
                        " AND NOT EXISTS (SELECT FROM events e WHERE e.at = model.at AND e.id = model.id)",
                        (to, value, at, at + 5, number),
                    )


def run(connection: psycopg.Connection[Any], query: str) -> psycopg.Cursor[Any]:
    """A statement that is put together from numbers."""
    return connection.execute(query.encode())


def upsert(connection: psycopg.Connection[Any], at: int, key: int, value: str) -> None:
    """A whole row, wherever its key is."""
    connection.execute(
        "SELECT modak.upsert('events', jsonb_build_object('at', %s::bigint, 'id', %s::bigint, 'n', 7, 'v', %s::text))",
        (at, key, value),
    )
    connection.execute(
        "INSERT INTO model VALUES (%s, %s, 7, %s, NULL) ON CONFLICT (at, id)"
        " DO UPDATE SET n = excluded.n, v = excluded.v, big = excluded.big",
        (at, key, value),
    )


def delete(connection: psycopg.Connection[Any], at: int, key: int) -> None:
    """The row of a key, wherever it is."""
    connection.execute(
        "SELECT modak.delete('events', jsonb_build_object('at', %s::bigint, 'id', %s::bigint))", (at, key)
    )
    connection.execute("DELETE FROM model WHERE (at, id) = (%s, %s)", (at, key))
