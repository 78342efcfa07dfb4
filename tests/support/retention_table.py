"""Tables with heap retention: how tests create them, record them in the catalog, and see their partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from mirror_pump.model import TableId
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true

WIDTH = 100
"""Tier values of a partition."""

Row = tuple[Any, ...]


def at_once(
    lag: str, premake: int = 0, width: str | None = None, lake_partition: str | None = None
) -> RetentionOptions:
    """Heap retention without the default grace of partitions: tests do not wait for an hour."""
    return RetentionOptions(lag=lag, premake=premake, width=width, drop_grace="0", lake_partition=lake_partition)


@dataclass
class RetentionTable:
    """A table partitioned by range of the integer column `key`: `width` values per partition, from 0 on."""

    database: Database
    partitions: int = 0
    name: str = "events"
    prefix: str = "p"
    """Partition n is called `<prefix>n`, the DEFAULT partition `<prefix>_default`."""
    width: int = WIDTH
    key: str = "at"

    def create_tables(self, definitions: str, *, model: str | None = None, default: bool = False) -> None:
        """Creates the table with its partitions; `model` is a plain table with the same columns."""
        with self.database.session(autocommit=False) as connection:
            run(connection, f"CREATE TABLE public.{self.name} ({definitions}) PARTITION BY RANGE ({self.key})")
            if model is not None:
                run(
                    connection,
                    f"CREATE TABLE public.{model} (LIKE public.{self.name} INCLUDING INDEXES INCLUDING GENERATED)",
                )
            for number in range(self.partitions):
                self.make_partition(connection, number)
            if default:
                self.make_default(connection)

    def make_default(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the DEFAULT partition."""
        run(connection, f"CREATE TABLE public.{self.prefix}_default PARTITION OF public.{self.name} DEFAULT")

    def make_partition(self, connection: psycopg.Connection[Any], number: int) -> None:
        """Creates partition `number`."""
        run(
            connection,
            f"CREATE TABLE public.{self.prefix}{number} PARTITION OF public.{self.name}"
            f" FOR VALUES FROM ({number * self.width}) TO ({(number + 1) * self.width})",
        )

    def record_retention(self) -> None:
        """Records retention and partitions of a registered table in the catalog, as the service would. The service does
        not touch its partitions: the test seals them and moves the cut-line."""
        with self.database.session(autocommit=False) as connection:
            connection.execute("UPDATE modak.tables SET heap_retention_lag = 0 WHERE table_id = %s", (self.table_id,))
            for number in range(self.partitions):
                name = f"{self.prefix}{number}"
                connection.execute(
                    "INSERT INTO modak.partitions"
                    " (table_id, partition_id, tier_key_lo, tier_key_hi, state, relation_id, proven_as)"
                    " VALUES (%s, %s, %s, %s, 'hot', to_regclass(%s)::oid::bigint, modak.attachment(to_regclass(%s)))",
                    (self.table_id, name, number * self.width, (number + 1) * self.width, name, name),
                )
            self.retain_default(connection)

    def retain_default(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the triggers of the DEFAULT partition."""
        default = f"{self.prefix}_default"
        connection.execute(
            "SELECT modak.retain_triggers(%s, %s::regclass, %s, 'default')", (self.table_id, default, default)
        )

    def begin_seal(self, partition: str) -> str | None:
        """Seals a partition and records its WAL position. Returns why it is not sealed, or None."""
        with self.database.session() as connection:
            row = connection.execute("SELECT modak.seal(%s, %s)", (self.table_id, partition)).fetchone()
            connection.execute(
                "UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint"
                " WHERE table_id = %s AND state = 'sealing' AND sealed_lsn IS NULL",
                (self.table_id,),
            )
        assert row is not None
        reason: str | None = row[0]
        return reason

    @property
    def table_id(self) -> TableId:
        return TableId(int(self.database.rows("SELECT %s::regclass::oid::bigint", (self.name,))[0][0]))

    @property
    def cut(self) -> int:
        """The cut-line."""
        rows = self.database.rows("SELECT tier_key_hi FROM modak.cutline WHERE table_id = %s", (self.table_id,))
        return int(rows[0][0])

    def states(self) -> dict[str, str]:
        """States of all partitions, by name."""
        return {
            name.removeprefix("public."): state
            for name, state in self.database.rows(
                "SELECT partition_id, state FROM modak.partitions ORDER BY tier_key_hi"
            )
        }

    def reason(self, partition: str) -> str:
        """Why a partition's next step was not taken."""
        rows = self.database.rows(
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
        return self.database.rows(
            "SELECT partition_id, tier_key_lo, tier_key_hi, state, sealed_lsn, reason, attempts FROM modak.partitions"
            " ORDER BY tier_key_hi, tier_key_lo"
        )


def run(connection: psycopg.Connection[Any], query: str) -> psycopg.Cursor[Any]:
    """A statement composed from numbers."""
    return connection.execute(query.encode())
