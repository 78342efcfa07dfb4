"""Tables with heap retention and their models: how they are created, written to, and read across the cut-line."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from mirror_pump.model import TableId
from mirror_pump.source.retention.retention_plan import RetentionWish
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, normalised

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
class RetentionTable:
    """public.events (at bigint, id bigint, n int, v text), partitioned by `at` into p0, p1 ... of WIDTH, and
    public.model, a plain table that gets every change in the same transaction.

    Here are the tables, the writer and the read of the seam; the class below and ManualRetention say who moves the
    cut-line.
    """

    mirror: Mirror
    partitions: int
    columns: str = COLUMNS

    def create_tables(self, rows: int, *, computed: str | None = None, large: bool = False) -> None:
        """Creates both tables with `rows` rows a partition.

        `computed` is the expression of one more column, `g bigint`, which is stored. `large` adds `big text`, with
        values that Postgres stores out of line.
        """
        definitions, values = "at bigint, id bigint, n int, v text", "g, 0, 'first'"
        if large:
            self.columns += ", big"
            definitions += ", big text"
            values += ", repeat(md5(g::text), 80)"
        if computed is not None:
            self.columns += ", g"
            definitions += f", g bigint GENERATED ALWAYS AS ({computed}) STORED"
        with self.mirror.database.connect(autocommit=False) as connection:
            run(connection, f"CREATE TABLE events ({definitions}, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)")
            connection.execute("CREATE TABLE model (LIKE events INCLUDING INDEXES INCLUDING GENERATED)")
            for number in range(self.partitions):
                self.make_partition(connection, number)
            for table in ("events", "model"):
                run(
                    connection,
                    f"INSERT INTO {table} SELECT p * {WIDTH} + g * {WIDTH} / {rows}, {values}"
                    f" FROM generate_series(0, {self.partitions - 1}) p, generate_series(0, {rows - 1}) g",
                )

    @staticmethod
    def make_partition(connection: psycopg.Connection[Any], number: int) -> None:
        """Creates partition `p<number>`."""
        run(
            connection,
            f"CREATE TABLE public.p{number} PARTITION OF public.events"
            f" FOR VALUES FROM ({number * WIDTH}) TO ({(number + 1) * WIDTH})",
        )

    @property
    def table_id(self) -> TableId:
        return TableId(int(self.mirror.database.rows("SELECT 'events'::regclass::oid::bigint")[0][0]))

    @property
    def cut(self) -> int:
        """The cut-line."""
        rows = self.mirror.database.rows("SELECT tier_key_hi FROM modak.cutline WHERE table_id = %s", (self.table_id,))
        return int(rows[0][0])

    def seam(self, duckdb: DuckDBPyConnection | None = None) -> tuple[list[Row], list[Row]]:
        """The table as a seam read finds it, and the model, both as of one Postgres snapshot. The published snapshot
        is scanned without a filter."""
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
            initial = connection.execute("SELECT * FROM modak.initial_values('events')").fetchall()
            hot = run(connection, f"SELECT {self.columns} FROM events WHERE at >= {cut}").fetchall()
            model = run(connection, f"SELECT {self.columns} FROM model").fetchall()
        cold = cold_rows(location, self.columns, initial, duckdb)
        for op, tier_key, payload in delta:
            assert tier_key < cut, "every delta row targets a cold row"
            key = (payload["at"], payload["id"])
            cold.pop(key, None)
            if op == 0:
                cold[key] = tuple(payload[name] for name in self.columns.split(", "))
        assert all(key[0] < cut for key in cold), f"the snapshot holds a row at or above the cut-line {cut}"
        return normalised([*hot, *cold.values()]), normalised(model)

    def assert_exact(self, duckdb: DuckDBPyConnection | None = None) -> None:
        """Fails unless a seam read finds exactly what the table holds."""
        found, wanted = self.seam(duckdb)
        assert_same(wanted, found, f"the read across the cut-line {self.cut}")

    def write(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """One transaction's changes, anywhere in the table, and the same to the model."""
        top = self.partitions * WIDTH
        at, key, value = chance.randrange(top), chance.randrange(60), f"{chance.random()}"
        match chance.randrange(6):
            case 0 | 1:
                upsert(connection, at, key, value)
            case 2:
                delete(connection, at, key)
            case 3:
                rows = run(
                    connection, f"DELETE FROM events WHERE at BETWEEN {at} AND {at + 3} RETURNING at, id"
                ).fetchall()
                for key_values in rows:
                    connection.execute("DELETE FROM model WHERE (at, id) = (%s, %s)", key_values)
            case 4:
                rows = run(
                    connection, f"UPDATE events SET n = n + 1 WHERE at BETWEEN {at} AND {at + 9} RETURNING at, id"
                ).fetchall()
                for key_values in rows:
                    connection.execute("UPDATE model SET n = n + 1 WHERE (at, id) = (%s, %s)", key_values)
            case 5:
                # Moves a row, also across the cut-line in either direction.
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


@dataclass
class ServiceRetention(RetentionTable):
    """Its partitions are sealed, advanced past and dropped by the service itself."""

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
    ) -> ServiceRetention:
        """Creates the tables, and registers events with heap retention unless `lag` is None; a pump has to copy it."""
        self = cls(mirror, partitions)
        self.create_tables(rows, computed=computed)
        if lag is not None:
            mirror.register("public.events", retention=at_once(lag, premake))
        return self

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


def cold_rows(location: str, columns: str, initial: Sequence[Row], duckdb: DuckDBPyConnection | None) -> dict[Row, Row]:
    """Rows of the published snapshot by their first two columns, without a filter. What published snapshot does not
    have yet is `initial` (names, field IDs, texts), of int or text columns."""
    if duckdb is None:
        table = read_duckdb(location)
    else:
        table = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
    values = {name: int(text) if text.lstrip("-").isdecimal() else text for name, _, text in initial}
    found = normalised(
        list(
            zip(
                *(
                    table.column(name).to_pylist()
                    if name in table.column_names
                    else [values.get(name)] * table.num_rows
                    for name in columns.split(", ")
                ),
                strict=True,
            )
        )
    )
    by_key = {(row[0], row[1]): row for row in found}
    assert len(by_key) == len(found), "the snapshot holds a row twice"
    return by_key


def run(connection: psycopg.Connection[Any], query: str) -> psycopg.Cursor[Any]:
    """A statement that is put together from numbers."""
    return connection.execute(query.encode())


def upsert(connection: psycopg.Connection[Any], at: int, key: int, value: str) -> None:
    """A whole row, wherever its key is."""
    connection.execute(
        "SELECT modak.upsert('events', jsonb_build_object('at', %s::bigint, 'id', %s::bigint, 'n', 7, 'v', %s::text))",
        (at, key, value),
    )
    connection.execute("DELETE FROM model WHERE (at, id) = (%s, %s)", (at, key))
    connection.execute("INSERT INTO model VALUES (%s, %s, 7, %s)", (at, key, value))


def delete(connection: psycopg.Connection[Any], at: int, key: int) -> None:
    """The row of a key, wherever it is."""
    connection.execute(
        "SELECT modak.delete('events', jsonb_build_object('at', %s::bigint, 'id', %s::bigint))", (at, key)
    )
    connection.execute("DELETE FROM model WHERE (at, id) = (%s, %s)", (at, key))
