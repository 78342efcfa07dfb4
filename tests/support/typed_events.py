"""A table with heap retention, with many types, part of which has left the heap.

`public.shadow` is a plain table that gets the same statements: what every read must show.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from psycopg import Connection

from mirror_pump.testing.mirror import Mirror, Row, normalised
from tests.support.retention_table import RetentionTable, at_once

EVENTS, SHADOW = "public.events", "public.shadow"

_COLUMNS = """
    at bigint NOT NULL, id int NOT NULL, n numeric(10,2), u uuid, tags int[], words text[], day date, seen timestamptz,
    local timestamp, f float8, b bytea, j jsonb, kept boolean, t text, PRIMARY KEY (at, id)
"""

_ROW = """
    {at}, {id}, {n}, ('00000000-0000-0000-0000-' || lpad(to_hex({id}), 12, '0'))::uuid, ARRAY[{id}, NULL, 3],
    ARRAY['x', NULL, 'y"z'], {day}, timestamptz '2026-01-01 00:00:00.000001+00' + interval '1 min' * {id},
    timestamp '2026-01-01 00:00:00.000001' + interval '1 min' * {id}, -0.0::float8, '\\x00ff',
    jsonb_build_object('k', {id}, 'list', jsonb_build_array(1.10, null)), {id} % 2 = 0, 'row ' || {id}
"""


def row(at: int, number: int, *, n: str = "1.10", day: str = "date '2026-01-01'") -> str:
    """The values, in SQL, of a row of `events`."""
    return f"({_ROW.format(at=at, id=number, n=n, day=day)})"


@dataclass
class TypedEvents(RetentionTable):
    """`public.events` with partitions of WIDTH tier key values (`p0` from 0 on, `p1`, ...) and a DEFAULT one."""

    mirror: Mirror = field(kw_only=True)

    @classmethod
    def create(cls, mirror: Mirror, partitions: int) -> TypedEvents:
        """Creates both tables, without rows."""
        self = cls(mirror.database, partitions, mirror=mirror)
        self.create_tables(_COLUMNS, model="shadow", default=True)
        return self

    def both(self, statement: str, connection: Connection[object] | None = None) -> None:
        """Runs the statement on the table and on its shadow, in one transaction. The first `{}` is replaced by the
        name."""
        if connection is not None:
            for name in (EVENTS, SHADOW):
                connection.execute(statement.replace("{}", name, 1).encode())
            return
        with self.database.session(autocommit=False) as own:
            self.both(statement, own)

    def insert(self, *keys: tuple[int, int]) -> None:
        self.both(f"INSERT INTO {{}} VALUES {', '.join(row(at, number) for at, number in keys)}")

    def move_cutline(self) -> None:
        """Registers the table. Partition 0 leaves the heap. Partition 1 stays in it, sealed: a reader's pin holds it
        back. The cut-line is 200."""
        self.mirror.register(EVENTS, retention=at_once("150"))
        with self.database.session() as connection:
            connection.execute(
                "INSERT INTO modak.read_pins"
                " (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at, in_one_snapshot)"
                " SELECT table_id, lake_snapshot_id, 150, now() + interval '1 hour', true FROM modak.cutline"
            )
        with self.mirror.pumping():
            self.await_state(90, p0="dropped", p1="tiered", p2="hot", p3="hot")

    def pins(self) -> list[Row]:
        """The pins of readers except that of `move_cutline`."""
        return self.database.rows(
            "SELECT pin_id, pinned_tier_key_hi, pinned_lake_snapshot_id FROM modak.read_pins"
            " WHERE pinned_tier_key_hi <> 150 ORDER BY pin_id"
        )

    def truth(self, *, raw_texts: bool = False) -> list[Row]:
        """Every row of the shadow as the lake has it, normalised and sorted: json as Postgres prints it, and the texts
        of the raw text columns."""
        with self.database.session() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            columns = (
                "at, id, CASE WHEN n <> 'NaN' THEN n END, u, tags, words, CASE WHEN isfinite(day) THEN day END, seen,"
                " local, f, b, j::text, kept, t"
            )
            if raw_texts:
                columns += ", CASE WHEN n = 'NaN' THEN 'NaN' END, CASE WHEN NOT isfinite(day) THEN day::text END"
            return normalised(connection.execute(f"SELECT {columns} FROM {SHADOW}".encode()).fetchall())

    def upsert(self, at: int, number: int, **changed: str) -> None:
        """Corrects or inserts a row of the table, wherever it is, and of the shadow."""
        values = row(at, number, **changed)
        with self.database.session(autocommit=False) as connection:
            connection.execute(f"DELETE FROM {SHADOW} WHERE at = {at} AND id = {number}".encode())
            connection.execute(f"INSERT INTO {SHADOW} VALUES {values}".encode())
            connection.execute(
                # A number in jsonb has no -0.
                f"SELECT modak.upsert('{EVENTS}', to_jsonb(s) || jsonb_build_object('f', f::text)) FROM {SHADOW} s"
                f" WHERE at = {at} AND id = {number}".encode()
            )

    def delete(self, at: int, number: int) -> None:
        with self.database.session(autocommit=False) as connection:
            connection.execute(f"DELETE FROM {SHADOW} WHERE at = {at} AND id = {number}".encode())
            connection.execute(
                f"SELECT modak.delete('{EVENTS}', jsonb_build_object('at', {at}, 'id', {number}))".encode()
            )
