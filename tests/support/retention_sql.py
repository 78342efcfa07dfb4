"""A table with heap retention and no pump, for tests of the database alone.

The catalog's rows are made by hand, and the cut-line is moved by modak.advance() as in a publish.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.source.catalog.tables import columns_to_json
from mirror_pump.source.relations.relations import describe, resolve_name
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.retention_table import RetentionTable

LOW = -(2**63)


class SqlTable(RetentionTable):
    """public.ev, with partitions ev0 [0, 100), ev1 [100, 200), ev2 [200, 300) by `at` and DEFAULT partition ev_default,
    with a row in each of the first three; the cut-line is -2^63."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, 0, "ev", "ev")
        with database.session(autocommit=False) as connection:
            migrate(connection)
        self.create_tables(
            "id int, gone int, at bigint, v text DEFAULT 'none', n int NOT NULL DEFAULT 7,"
            " doubled int GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (id, at)"
        )
        with database.session(autocommit=False) as connection:
            connection.execute("ALTER TABLE ev DROP COLUMN gone")
            # A partition numbers its columns differently.
            connection.execute(
                "CREATE TABLE ev0 (v text, n int NOT NULL, at bigint NOT NULL, id int NOT NULL,"
                " doubled int GENERATED ALWAYS AS (n * 2) STORED)"
            )
            connection.execute("ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)")
            self.make_partition(connection, 1)
            self.make_partition(connection, 2)
            self.make_default(connection)
            self._record_live(connection)
        self.partitions = 3
        self.record_retention()
        database.execute("INSERT INTO ev VALUES (1, 50, 'old'), (2, 150, 'mid'), (3, 250, 'new')")

    @staticmethod
    def _record_live(connection: psycopg.Connection[Any]) -> None:
        """Records the table as mirrored and live, in a lake that does not exist."""
        connection.execute(
            "INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col,"
            " partition_scheme, lake_format, lake_table_ref, mode)"
            " VALUES ('ev'::regclass::oid::bigint, 'public', 'ev', '{id,at}', 'at', '{}', 'iceberg', 'public.ev',"
            " 'mirrored')"
        )
        connection.execute(
            "INSERT INTO modak.cutline VALUES ('ev'::regclass::oid::bigint, %s, 5, 10, NULL,"
            """ '{"metadata_location": "there", "snapshot_id": "5"}')""",
            (LOW,),
        )
        connection.execute(
            "INSERT INTO modak.mirror_slots"
            " SELECT 's', 'p', system_identifier::text, 1, 'd', 10 FROM pg_control_system()"
        )
        columns = describe(connection, resolve_name(connection, "ev")[1], "none").columns
        connection.execute(
            "INSERT INTO modak.mirror_tables (table_id, slot_name, state, start_lsn, start_sequence, columns, key,"
            " lake_table, location, next_field_id, retention)"
            " VALUES ('ev'::regclass::oid::bigint, 's', 'live', 0, 1, %s, '{id,at}', 'ev', 'l', 9, '{}')",
            (Jsonb(columns_to_json(columns)),),
        )

    def value(self, query: LiteralString, *parameters: Any) -> Any:
        """The first column of the first row."""
        return self.database.rows(query, parameters)[0][0]

    def seal(self, name: str) -> None:
        """Seals a partition, and records the position."""
        assert self.begin_seal(name) is None

    def advance(self, name: str, cut: int, frontier: int | None = None) -> str | None:
        """Returns why the cut-line cannot pass the partition; None if it has. `frontier`: by default the present end of
        WAL."""
        at = self.database.lsn() if frontier is None else frontier
        reason: str | None = self.value("SELECT modak.advance('ev'::regclass::oid::bigint, %s, %s, %s)", name, cut, at)
        return reason

    def gone(self, name: str) -> bool:
        """Records that a partition is no longer attached. Returns whether that was not known."""
        with self.database.session() as connection:
            return source.run(connection, "gone", {"table_id": self.table_id, "partition_id": name}) > 0

    def pass_by(self, name: str, cut: int) -> None:
        """Seals a partition and has the cut-line pass it."""
        self.seal(name)
        assert self.advance(name, cut) is None

    def delta(self) -> dict[str, tuple[int, int, Any]]:
        """op, tier key and payload by key, with a blank for chr(31)."""
        rows = self.database.rows("SELECT replace(pk, chr(31), ' '), op, tier_key, payload FROM modak.delta")
        return {row[0]: row[1:] for row in rows}

    def captured(self) -> dict[str, int]:
        """op by key, for captured changes that are valid."""
        rows = self.database.rows(
            "SELECT replace(pk, chr(31), ' '), op FROM modak.mirror_captured c JOIN modak.partitions p"
            " USING (table_id, partition_id) WHERE version > captured_after"
        )
        return dict(rows)

    def prove(self) -> None:
        """Records that all partitions below the cut-line are proven."""
        self.database.execute(
            "UPDATE modak.partitions SET state = 'tiered', proven_as = modak.watch_mark(relation_id::oid)"
            " WHERE state = 'tiering'"
        )

    def drop(self, name: str, lock_timeout: str = "200ms") -> str | None:
        """Returns why a partition is not dropped; None if it was. Does not prove anything first."""
        self.prove()
        with self.database.session() as connection:
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (lock_timeout,))
            row = connection.execute("SELECT modak.drop_proven('ev'::regclass::oid::bigint, %s)", (name,)).fetchone()
        assert row is not None
        reason: str | None = row[0]
        return reason

    def await_blocked_by(self, connection: psycopg.Connection[Any]) -> None:
        """Returns once another session waits for a lock that this one holds."""
        blocked: LiteralString = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        await_true(lambda: self.database.rows(blocked, (connection.info.backend_pid,)), 20, "a session that waits")


@contextmanager
def hasty(table: SqlTable) -> Iterator[psycopg.Connection[Any]]:
    """A session that waits for no lock."""
    with table.database.session() as connection:
        connection.execute("SET lock_timeout = '50ms'")
        yield connection


@contextmanager
def repeatable_read(table: RetentionTable) -> Iterator[psycopg.Connection[Any]]:
    """A session whose snapshot is taken now."""
    with table.database.session(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        yield connection
