"""Random tables with masks, filters and column lists, random writes, schema changes, copies and killed pumps.

The lake is what the rules make of the heap, by PostgreSQL's own digests, and no byte of it has a value that the rules
keep back.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from mirror_pump.ops.resync.resync import resync
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.integration.types.test_masks import MARKER, assert_hidden
from tests.support.crashing_pump import dying_pump
from tests.support.error_bounds import printed_seed
from tests.support.table_wishes import parse_choices

_TYPES = ("text", "varchar(9000)", "text[]", "jsonb", "bytea", "char(40)")
_HASH = "encode(sha256(convert_to(format('%%s', {0}), 'UTF8')), 'hex')"
_MASKS = {
    "sha256": _HASH,
    "null": "NULL::text",
    "prefix(2)": "left(format('%%s', {0}), 2)",
    "constant(hidden)": "'hidden'",
}
"""Masks, and what PostgreSQL makes of a column in their place; NULL stays NULL."""


class RuledTable:
    """A table with a key, a number, columns with secrets, and the rules under which it is mirrored."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self._chance = name, chance
        self.secrets = {f"s{place}": chance.choice(_TYPES) for place in range(chance.randrange(2, 5))}
        self.masks = {
            column: chance.choice(list(_MASKS))
            for column in self.secrets
            if len(self.secrets) < 3 or chance.random() < 0.7
        } or {"s0": "sha256"}
        self.filtered = chance.random() < 0.5
        self.listed = not self.filtered and chance.random() < 0.5
        self._added = 0

    def create(self) -> list[str]:
        columns = ", ".join(f"{column} {kind}" for column, kind in self.secrets.items())
        identity = [f"ALTER TABLE {self.name} REPLICA IDENTITY FULL"] if self.filtered else []
        large = [f"ALTER TABLE {self.name} ALTER s0 SET STORAGE EXTERNAL"]
        return [f"CREATE TABLE {self.name} (id int PRIMARY KEY, n int, {columns})", *large, *identity]

    @property
    def choices(self) -> ColumnChoices:
        masks = [f"{column}={mask}" for column, mask in self.masks.items()]
        excluded = [column for column in self.secrets if column not in self.masks]
        where = "n % 3 = 0" if self.filtered else ""
        if self.listed:
            return parse_choices([], [], masks, where, listed=",".join(["id", "n", *self.masks]))
        return parse_choices([], excluded, masks, where)

    def secret(self, kind: str) -> str:
        """SQL of a value with the marker behind its first characters, small or large."""
        text = f"{self._chance.randrange(20):06}{MARKER}{'x' * self._chance.choice([0, 4000])}"
        if self._chance.random() < 0.1:
            return "NULL"
        match kind:
            case "text[]":
                return f"ARRAY['{text}', NULL]"
            case "jsonb":
                return f"to_jsonb('{text}'::text)"
            case "bytea":
                return f"convert_to('{text}', 'UTF8')"
            case "char(40)":
                return f"'{text[:20]}'"
        return f"'{text}'"

    def write(self) -> str:
        key, kind = self._chance.randrange(30), self._chance.random()
        values = {column: self.secret(kind_of) for column, kind_of in self.secrets.items()}
        if kind < 0.4:
            changed = ", ".join(f"{column} = excluded.{column}" for column in values)
            return (
                f"INSERT INTO {self.name} (id, n, {', '.join(values)})"
                f" VALUES ({key}, {key % 7}, {', '.join(values.values())}) ON CONFLICT (id) DO UPDATE SET {changed}"
            )
        if kind < 0.7:
            return f"UPDATE {self.name} SET n = n + 1 WHERE id % 5 = {key % 5}"
        if kind < 0.8:
            free = f"id NOT IN (SELECT id - 100 FROM {self.name})"
            return f"UPDATE {self.name} SET id = id + 100 WHERE id = {key} AND {free}"
        if kind < 0.98:
            return f"DELETE FROM {self.name} WHERE id IN ({key}, {key} + 100)"
        return f"TRUNCATE {self.name}"

    def alter(self) -> str:
        """A schema change: a masked column under another name or type, or another column with a secret."""
        kind, column = self._chance.random(), self._chance.choice(list(self.masks))
        self._added += 1
        if kind < 0.4:
            name = f"r{self._added}"
            self.secrets = {name if old == column else old: of for old, of in self.secrets.items()}
            self.masks = {name if old == column else old: mask for old, mask in self.masks.items()}
            return f"ALTER TABLE {self.name} RENAME COLUMN {column} TO {name}"
        if kind < 0.6 and not self.listed and self.secrets[column] == "varchar(9000)":
            self.secrets[column] = "text"
            return f"ALTER TABLE {self.name} ALTER {column} TYPE text USING {column} || 'y'"
        name = f"a{self._added}"
        default = self.secret("text") if kind < 0.8 else "NULL"
        self.secrets[name] = "text"
        return f"ALTER TABLE {self.name} ADD COLUMN {name} text DEFAULT {default}"

    def heap(self) -> str:
        """A query of what the lake should have."""
        masked = (
            f"CASE WHEN {column} IS DISTINCT FROM NULL THEN {_MASKS[mask].format(column)} END"
            for column, mask in self.masks.items()
        )
        where = " WHERE n % 3 = 0" if self.filtered else ""
        return f"SELECT id, n, {', '.join(masked)} FROM {self.name}{where}".replace("%%", "%")


def play(mirror: Mirror, tables: list[RuledTable], chance: random.Random, transactions: int) -> None:
    database = mirror.database
    for _ in range(transactions):
        table = chance.choice(tables)
        if chance.random() < 0.05:
            database.execute(table.alter())
            continue
        with database.connect(autocommit=False) as connection:
            for _ in range(chance.randrange(1, 6)):
                connection.execute(table.write().encode())
            if chance.random() < 0.1:
                connection.rollback()


def assert_ruled(mirror: Mirror, table: RuledTable) -> None:
    with mirror.database.session() as connection:
        heap = [tuple(row) for row in connection.execute(table.heap().encode()).fetchall()]
    assert_same(heap, mirror.lake(f"public.{table.name}"), f"{table.name} {table.masks} {mirror.error(table.name)}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rounds", [2, pytest.param(3, marks=pytest.mark.further)])
def test_what_the_rules_keep_back_is_nowhere(database: Database, warehouse: str, rounds: int) -> None:
    seed = printed_seed()
    chance, steps = random.Random(seed), Steps()
    tables = [RuledTable(f"t{number}", chance) for number in range(4)]
    database.execute(*(statement for table in tables for statement in table.create()))
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    names = [f"public.{table.name}" for table in tables]
    play(mirror, tables, chance, 40)
    with mirror.pumping(steps):
        for table in tables:
            mirror.register(table.name, choices=table.choices)
        play(mirror, tables, chance, 40)
    for turn in range(rounds):
        with dying_pump(mirror, seed + turn, 0.05, 0.6):
            play(mirror, tables, chance, 60)
        with mirror.pumping(steps):
            if turn == 1:
                resync(
                    mirror.settings, [chance.choice(names)], wait=False, say=lambda _: None, on_progress=lambda _: None
                )
            play(mirror, tables, chance, 20)
            mirror.await_frontier()
            mirror.await_live(*names)
            mirror.await_frontier()
            for table in tables:
                assert_ruled(mirror, table)
        assert_hidden(mirror, warehouse, steps)
    assert assert_verified(database) == len(tables)


def test_postgres_refuses_what_would_change_a_filter(database: Database, warehouse: str) -> None:
    """Its columns cannot be dropped or get another type while the filter is there."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)", "ALTER TABLE t REPLICA IDENTITY FULL")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", choices=parse_choices([], [], [], "n > 1"))
    for statement in ("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ALTER n TYPE bigint"):
        with pytest.raises(psycopg.Error):
            database.execute(statement)
    mirror.catch_up()
