"""A table that one mode's promises are held against, with its model: a plain table beside it that gets every change in
the same transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

from mirror_pump.testing.mirror import normalised
from tests.support.retention_table import WIDTH, RetentionTable, Row, run

COLUMNS = "at, id, n, v"
PARTITIONS = 5
ROWS = 10
"""Per partition, evenly spread: at the partition's lower bound, 10 above it, and so on."""


@dataclass
class PromiseTable(RetentionTable):
    """One of the tables, and its model. Its partitions are called `<name>_0`, `<name>_1`, and so on."""

    partitions: int = PARTITIONS
    sheds: bool = field(kw_only=True)
    """Old partitions leave the heap."""

    def __post_init__(self) -> None:
        self.prefix = f"{self.name}_"

    def create(self, *, partitioned: bool) -> None:
        definitions = "at bigint, id bigint, n int, v text, PRIMARY KEY (at, id)"
        suffix = " PARTITION BY RANGE (at)" if partitioned else ""
        with self.database.session(autocommit=False) as connection:
            run(connection, f"CREATE TABLE {self.name} ({definitions}){suffix}")
            run(connection, f"CREATE TABLE {self.name}_model ({definitions})")
            for number in range(self.partitions):
                if partitioned:
                    self.make_partition(connection, number)
                self._fill(connection, number)

    def grow(self) -> None:
        """Adds a partition with rows above all others, so that one more becomes due."""
        with self.database.session(autocommit=False) as connection:
            self.make_partition(connection, self.partitions)
            self._fill(connection, self.partitions)
        self.partitions += 1

    def _fill(self, connection: psycopg.Connection[Any], number: int) -> None:
        for table in (self.name, f"{self.name}_model"):
            run(
                connection,
                f"INSERT INTO {table} SELECT {number * WIDTH} + g * {WIDTH // ROWS}, g, 0, 'first'"
                f" FROM generate_series(0, {ROWS - 1}) g",
            )

    def partition(self, number: int) -> str:
        """Name of the partition with keys from `number` * WIDTH on."""
        return f"{self.prefix}{number}"

    @property
    def line(self) -> int | None:
        """The retention line."""
        line: int | None = self._cutline("retention_line")
        return line

    @property
    def published(self) -> str:
        """The metadata file of the published snapshot."""
        return str(self._cutline("lake_props ->> 'metadata_location'"))

    def _cutline(self, column: str) -> Any:
        with self.database.session() as connection:
            row = run(connection, f"SELECT {column} FROM modak.cutline WHERE table_id = {self.table_id}").fetchone()
        assert row is not None
        return row[0]

    def own_states(self) -> list[str]:
        """States of its partitions, the oldest first."""
        query: LiteralString = "SELECT state FROM modak.partitions WHERE table_id = %s ORDER BY tier_key_hi"
        return [state for (state,) in self.database.rows(query, (self.table_id,))]

    def history(self, number: int) -> list[str]:
        """The states that a partition has come to, in order."""
        query: LiteralString = (
            "SELECT state FROM audit.partitions WHERE table_id = %s AND partition_id = 'public.' || %s ORDER BY seen"
        )
        return [state for (state,) in self.database.rows(query, (self.table_id, self.partition(number)))]

    def attached(self) -> set[str]:
        """Names of the partitions that the heap has, without the DEFAULT one, which holds no row."""
        query: LiteralString = (
            "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = %s::regclass AND pg_get_expr(relpartbound, inhrelid) <> 'DEFAULT'"
        )
        return {name for (name,) in self.database.rows(query, (self.name,))}

    def heap(self, condition: str = "true") -> list[Row]:
        """Rows that PostgreSQL holds, normalised."""
        with self.database.session() as connection:
            return normalised(run(connection, f"SELECT {COLUMNS} FROM {self.name} WHERE {condition}").fetchall())

    def model(self, condition: str = "true") -> list[Row]:
        """Rows that the table is made of, normalised: those that have not expired."""
        with self.database.session() as connection:
            return self.model_on(connection, condition)

    def model_on(self, connection: psycopg.Connection[Any], condition: str = "true") -> list[Row]:
        """The same, in the connection's snapshot."""
        query = (
            f"SELECT {COLUMNS} FROM {self.name}_model WHERE at >= coalesce((SELECT retention_line FROM modak.cutline"
            f" WHERE table_id = '{self.name}'::regclass::oid::bigint), at) AND {condition}"
        )
        return normalised(run(connection, query).fetchall())

    def delta(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """Corrections, by canonical key: op and payload."""
        query: LiteralString = "SELECT pk, op, payload FROM modak.delta WHERE table_id = %s"
        return {pk: (op, payload) for pk, op, payload in self.database.rows(query, (self.table_id,))}

    def put(self, at: int, key: int, value: str) -> None:
        """Writes a whole row, wherever its key is."""
        with self.database.session(autocommit=False) as connection:
            self.put_on(connection, at, key, value)

    def put_on(self, connection: psycopg.Connection[Any], at: int, key: int, value: str) -> None:
        row = {"at": at, "id": key, "v": value}
        if self.sheds:
            connection.execute(
                "SELECT modak.upsert(%(table)s, jsonb_build_object("
                "'at', %(at)s::bigint, 'id', %(id)s::bigint, 'n', 7, 'v', %(v)s::text))",
                {**row, "table": self.name},
            )
        for table in (f"{self.name}_model",) if self.sheds else (self.name, f"{self.name}_model"):
            connection.execute(
                f"INSERT INTO {table} VALUES (%(at)s, %(id)s, 7, %(v)s)"
                " ON CONFLICT (at, id) DO UPDATE SET n = 7, v = excluded.v".encode(),
                row,
            )

    def remove(self, at: int, key: int) -> None:
        """Deletes a row, wherever it is."""
        with self.database.session(autocommit=False) as connection:
            self.remove_on(connection, at, key)

    def remove_on(self, connection: psycopg.Connection[Any], at: int, key: int) -> None:
        if self.sheds:
            connection.execute(
                "SELECT modak.delete(%s, jsonb_build_object('at', %s::bigint, 'id', %s::bigint))", (self.name, at, key)
            )
        else:
            run(connection, f"DELETE FROM {self.name} WHERE (at, id) = ({at}, {key})")
        run(connection, f"DELETE FROM {self.name}_model WHERE (at, id) = ({at}, {key})")

    def both(self, statement: str) -> int:
        """The same statement on table and model (`{}` in it), in one transaction. Returns how many rows it concerned in
        the table."""
        with self.database.session(autocommit=False) as connection:
            count = run(connection, statement.format(self.name)).rowcount
            run(connection, statement.format(f"{self.name}_model"))
        return count

    def settled(self) -> bool:
        """Whether all that is due has left the heap, or with a heap that stays is proven to be in the lake."""
        states = self.own_states()
        return (
            self.cut == (self.partitions - 2) * WIDTH
            and states.count("hot") == 2
            and {*states} == {"hot", "dropped" if self.sheds else "tiered"}
        )
