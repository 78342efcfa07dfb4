"""A table with heap retention as the service itself keeps it, its model, and the seam read by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from mirror_pump.source.retention.retention_plan import RetentionWish
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, lake_rows, normalised

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WIDTH = 100
"""Tier values of a partition."""
COLUMNS = "at, id, n, v"

Row = tuple[Any, ...]


def at_once(lag: str, premake: int = 0, width: str | None = None) -> RetentionWish:
    """Heap retention without the grace that partitions have by default: tests do not wait for an hour."""
    return RetentionWish(lag, premake, width, drop_grace="0")


@dataclass
class Shedding:
    """public.events (at bigint, id bigint, n int, v text), partitions p0, p1 ... of WIDTH, and public.model, a plain
    table that gets every change in the same transaction."""

    mirror: Mirror
    partitions: int
    columns: str = COLUMNS

    @classmethod
    def create(
        cls,
        mirror: Mirror,
        partitions: int = 4,
        rows: int = 40,
        *,
        lag: str | None = "100",
        premake: int = 0,
        computed: str | None = None,
    ) -> Shedding:
        """Makes both tables with `rows` rows a partition, and registers events with heap retention unless `lag` is
        None; a pump has to copy it. `computed`: the expression of one more column, `g bigint`, which is stored."""
        self = cls(mirror, partitions, COLUMNS if computed is None else f"{COLUMNS}, g")
        with mirror.database.connect(autocommit=False) as connection:
            further = "" if computed is None else f"g bigint GENERATED ALWAYS AS ({computed}) STORED, "
            run(
                connection,
                f"CREATE TABLE events (at bigint, id bigint, n int, v text, {further}PRIMARY KEY (at, id))"
                " PARTITION BY RANGE (at)",
            )
            connection.execute("CREATE TABLE model (LIKE events INCLUDING INDEXES INCLUDING GENERATED)")
            for number in range(partitions):
                self.make_partition(connection, number)
            for table in ("events", "model"):
                run(
                    connection,
                    f"INSERT INTO {table} SELECT p * {WIDTH} + g * {WIDTH} / {rows}, g, 0, 'first'"
                    f" FROM generate_series(0, {partitions - 1}) p, generate_series(0, {rows - 1}) g",
                )
        if lag is not None:
            mirror.register("public.events", retention=at_once(lag, premake))
        return self

    @staticmethod
    def make_partition(connection: psycopg.Connection[Any], number: int) -> None:
        """Makes partition `p<number>`."""
        run(
            connection,
            f"CREATE TABLE p{number} PARTITION OF events FOR VALUES FROM ({number * WIDTH})"
            f" TO ({(number + 1) * WIDTH})",
        )

    def grow(self) -> None:
        """Another partition, with rows above all others, so that one more below becomes due."""
        number = self.partitions
        with self.mirror.database.connect(autocommit=False) as connection:
            self.make_partition(connection, number)
            for table in ("events", "model"):
                run(
                    connection,
                    f"INSERT INTO {table} SELECT {number * WIDTH} + g * 5, g, 0, 'grown' FROM generate_series(0, 19) g",
                )
        self.partitions += 1

    @property
    def cut(self) -> int:
        """T."""
        return int(self.mirror.database.rows("SELECT tier_key_hi FROM modak.cutline")[0][0])

    def states(self) -> dict[str, str]:
        """States of all partitions, by name."""
        return {
            name.removeprefix("public."): state
            for name, state in self.mirror.database.rows(
                "SELECT partition_id, state FROM modak.partitions ORDER BY tier_key_hi"
            )
        }

    def reason(self, partition: str) -> str:
        """Why a partition's next step was not taken."""
        rows = self.mirror.database.rows(
            "SELECT coalesce(reason, '') FROM modak.partitions WHERE partition_id = 'public.' || %s", (partition,)
        )
        return str(rows[0][0])

    def await_state(self, seconds: float = 60, **wanted: str) -> None:
        """Returns once these partitions are in these states."""
        try:
            await_true(lambda: {**self.states(), **wanted} == self.states(), seconds, str(wanted))
        except AssertionError as error:
            raise AssertionError(f"{error}; there is {self.explained()}") from None

    def explained(self) -> list[Row]:
        """Partitions with their states and reasons, for messages."""
        return self.mirror.database.rows(
            "SELECT partition_id, state, sealed_lsn, reason, attempts FROM modak.partitions ORDER BY tier_key_hi"
        )

    def seam(self, duckdb: DuckDBPyConnection | None = None) -> tuple[list[Row], list[Row]]:
        """The table as a seam read finds it, and the model, both as of one Postgres snapshot. S is scanned without a
        filter."""
        with self.mirror.database.connect(autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            row = connection.execute(
                "SELECT tier_key_hi, lake_props ->> 'metadata_location' FROM modak.cutline"
            ).fetchone()
            assert row is not None
            cut, location = row
            delta = connection.execute("SELECT op, tier_key, payload FROM modak.delta ORDER BY version").fetchall()
            hot = run(connection, f"SELECT {self.columns} FROM events WHERE at >= {cut}").fetchall()
            model = run(connection, f"SELECT {self.columns} FROM model").fetchall()
        cold = {(row[0], row[1]): row for row in lake_rows(location, duckdb)}
        for op, tier_key, payload in delta:
            assert tier_key < cut, "every delta row targets a cold row"
            key = (payload["at"], payload["id"])
            cold.pop(key, None)
            if op == 0:
                cold[key] = tuple(payload[name] for name in self.columns.split(", "))
        assert all(key[0] < cut for key in cold), f"S holds a row at or above T = {cut}"
        return normalised([*hot, *cold.values()]), normalised(model)

    def assert_exact(self, duckdb: DuckDBPyConnection | None = None) -> None:
        """Fails unless a seam read finds exactly what the table holds."""
        found, wanted = self.seam(duckdb)
        assert_same(wanted, found, f"the seam at T = {self.cut}")

    def write(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """One transaction's changes, anywhere in the table, and the same to the model."""
        top = self.partitions * WIDTH
        at, key, value = chance.randrange(top), chance.randrange(60), f"{chance.random()}"
        match chance.randrange(6):
            case 0 | 1:
                connection.execute(
                    "SELECT modak.upsert('events', jsonb_build_object('at', %s::bigint, 'id', %s::bigint, 'n', 7,"
                    " 'v', %s::text))",
                    (at, key, value),
                )
                connection.execute(
                    "INSERT INTO model VALUES (%s, %s, 7, %s) ON CONFLICT (at, id)"
                    " DO UPDATE SET n = excluded.n, v = excluded.v",
                    (at, key, value),
                )
            case 2:
                connection.execute(
                    "SELECT modak.delete('events', jsonb_build_object('at', %s::bigint, 'id', %s::bigint))", (at, key)
                )
                connection.execute("DELETE FROM model WHERE (at, id) = (%s, %s)", (at, key))
            case 3:
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
                # Moves a row, also across T in either direction.
                to = chance.randrange(top)
                row = connection.execute(
                    "SELECT at, id FROM events WHERE at BETWEEN %s AND %s AND NOT EXISTS"
                    " (SELECT FROM model WHERE model.at = %s AND model.id = events.id) LIMIT 1",
                    (at, at + 9, to),
                ).fetchone()
                if row is not None:
                    moved = connection.execute(
                        "UPDATE events SET at = %s, v = %s WHERE (at, id) = (%s, %s)", (to, value, *row)
                    )
                    if moved.rowcount:
                        connection.execute(
                            "UPDATE model SET at = %s, v = %s WHERE (at, id) = (%s, %s)", (to, value, *row)
                        )


def run(connection: psycopg.Connection[Any], query: str) -> psycopg.Cursor[Any]:
    """A statement that is put together from numbers."""
    return connection.execute(query.encode())
