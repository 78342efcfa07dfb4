"""Random transactions that mix row changes and schema changes, and the content of the tables after each.

One session writes, so the content after each of its transactions is what every frontier from that commit to the next
has to show.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import psycopg

from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Row, normalised

SCHEMA = "d"

_VALUES: dict[str, Callable[[random.Random], str]] = {
    "integer": lambda chance: str(chance.randrange(-(2**31), 2**31)),
    "smallint": lambda chance: str(chance.randrange(-100, 100)),
    "bigint": lambda chance: str(chance.randrange(-(2**63), 2**63)),
    "text": lambda chance: chance.choice(["NULL", "''", "'x'", "repeat('y', 40)", "'it''s ü'"]),
    "character varying": lambda chance: chance.choice(["NULL", "''", "'v'"]),
    "numeric": lambda chance: chance.choice(["NULL", "0", "-1.25", "99999.99"]),
    "boolean": lambda chance: chance.choice(["NULL", "true", "false"]),
    "double precision": lambda chance: chance.choice(["NULL", "0.1", "-1e300"]),
    "USER-DEFINED": lambda chance: chance.choice(["NULL", "'ok'", "'bad'"]),
}
_TYPES = ("int", "bigint", "text", "varchar(20)", "numeric(10,2)", "boolean", "float8", f"{SCHEMA}.mood")
_FILLED = (
    ("int", "5"),
    ("text", "'filled'"),
    ("text", "''"),
    ("float8", "random()"),
    ("numeric(10,2)", "1.50"),
    ("boolean", "false"),
    (f"{SCHEMA}.mood", "'bad'"),
    ("bigint", "-1"),
    ("varchar(20)", "'v'"),
)

DDL = (
    f"CREATE SCHEMA {SCHEMA}",
    f"CREATE TYPE {SCHEMA}.mood AS ENUM ('ok', 'bad')",
    f"CREATE TABLE {SCHEMA}.t (id int PRIMARY KEY, code int NOT NULL UNIQUE, big text, a text, b int)",
    f"ALTER TABLE {SCHEMA}.t ALTER big SET STORAGE EXTERNAL",
    f"CREATE TABLE {SCHEMA}.u (id int PRIMARY KEY, code int NOT NULL UNIQUE, big text, v varchar(20))",
    f"CREATE TABLE {SCHEMA}.p (id int, code int, big text, a text, PRIMARY KEY (id, code)) PARTITION BY LIST (code)",
    *(f"CREATE TABLE {SCHEMA}.p{n} PARTITION OF {SCHEMA}.p FOR VALUES IN ({n})" for n in range(3)),
    f"CREATE TABLE {SCHEMA}.rest PARTITION OF {SCHEMA}.p DEFAULT",
)
TABLES = ("t", "u", "p")


@dataclass(frozen=True)
class State:
    """A table after a transaction: its name, the names of its columns, its rows."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]


@dataclass
class StateHistory:
    """By table OID, the states with the WAL positions between which each of them became current."""

    states: dict[int, list[tuple[int, int, State]]] = field(default_factory=dict)

    def possible(self, table_id: int, frontier: int) -> list[State]:
        """The possible states of the table at the frontier: one, or two if the frontier is within the few bytes of a
        commit."""
        known = self.states[table_id]
        ended = [state for _, after, state in known if after <= frontier][-1:]
        return ended + [state for before, after, state in known if before < frontier < after]


def comparable(rows: list[Row]) -> tuple[str, ...]:
    """Rows as text: a numeric is a Decimal or, without a precision, a string."""
    return tuple(
        map(repr, normalised([tuple(str(cell) if isinstance(cell, Decimal) else cell for cell in row) for row in rows]))
    )


class DdlWriter:
    """The session that writes. The methods at the end determine its types and values."""

    key_types: frozenset[str] = frozenset()
    """Types of columns that may be part of a key, besides the two that every table has."""
    computing = major_version() >= 18
    """Whether stored generated columns are added and dropped: the server publishes them."""

    def __init__(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance
        self._next = 0
        self.committed = 0
        """Statements in transactions that committed."""
        self._names = 0
        self.done: list[str] = []
        """Statements that the database accepted, for the report of a failure."""
        self.history = StateHistory()
        self.table_ids = {
            int(oid): name
            for name, oid in connection.execute(
                "SELECT relname, oid FROM pg_class WHERE relnamespace = %s::regnamespace AND relname = ANY (%s)",
                (SCHEMA, list(TABLES)),
            )
        }
        self._kept()

    def transaction(self) -> None:
        """Runs a few statements. Whatever the database refuses is rolled back to the savepoint before it."""
        chance = self._chance
        self._run("BEGIN")
        taken = 0
        for _ in range(chance.choice([1, 1, 2, 3, 6])):
            table_id = chance.choice(list(self.table_ids))
            statements = self._ddl(table_id) if chance.random() < 0.35 else self._dml(table_id)
            self._run("SAVEPOINT s")
            try:
                for statement in statements:
                    self._run(statement)
                if chance.random() < 0.1:
                    self._run("ROLLBACK TO SAVEPOINT s")
                else:
                    taken += len(statements)
            except psycopg.errors.Error as error:
                self.done.append(f"-- {error.diag.message_primary}")
                self._run("ROLLBACK TO SAVEPOINT s")
        if not all(self._key(table_id) for table_id in self.table_ids):
            self._run("ROLLBACK")
            return
        before = self._lsn()
        ending = chance.choice(["COMMIT"] * 9 + ["ROLLBACK"])
        self._run(ending)
        if ending == "COMMIT":
            self.committed += taken
        self._kept(before)

    def _kept(self, before: int = 0) -> None:
        after = self._lsn()
        for table_id in self.table_ids:
            states = self.history.states.setdefault(table_id, [])
            state = self._state(table_id)
            if not states or states[-1][2] != state:
                states.append((before, after, state))

    def _state(self, table_id: int) -> State:
        columns = [name for name, _, _ in self._columns(table_id)]
        selected = ", ".join(f'"{column}"' for column in columns)
        rows = self._connection.execute(f"SELECT {selected} FROM {self._name(table_id)}".encode()).fetchall()
        name = self._connection.execute(
            "SELECT nspname || '.' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE c.oid = %s",
            (table_id,),
        ).fetchone()
        assert name is not None
        return State(name[0], tuple(columns), comparable(rows))

    def _lsn(self) -> int:
        row = self._connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        assert row is not None
        return int(row[0])

    def _run(self, statement: str) -> None:
        self._connection.execute(statement.encode())
        self.done.append(statement)

    def _name(self, table_id: int) -> str:
        row = self._connection.execute("SELECT %s::regclass::text", (table_id,)).fetchone()
        assert row is not None
        return str(row[0])

    def _columns(self, table_id: int) -> list[tuple[str, str, int]]:
        """Name, type and number of every column."""
        return self._connection.execute(
            "SELECT a.attname::text, CASE WHEN t.typtype = 'e' THEN 'USER-DEFINED'"
            " ELSE format_type(a.atttypid, NULL) END, a.attnum"
            " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
            " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (table_id,),
        ).fetchall()

    def _computed(self, table_id: int) -> list[str]:
        """The generated columns."""
        rows = self._connection.execute(
            "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s AND attgenerated <> ''", (table_id,)
        ).fetchall()
        return [name for (name,) in rows]

    def _key(self, table_id: int) -> bool:
        row = self._connection.execute(
            "SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = %s AND indisprimary)", (table_id,)
        ).fetchone()
        assert row is not None
        return bool(row[0])

    def _named(self, table_id: int) -> tuple[str, str, str, list[tuple[str, str]]]:
        """The table, the columns id and code (which keep their numbers), and the other columns with their types."""
        columns = self._columns(table_id)
        by_number = {number: name for name, _, number in columns}
        others = [(f'"{name}"', type_) for name, type_, number in columns if number > 2]
        return self._name(table_id), f'"{by_number[1]}"', f'"{by_number[2]}"', others

    def _dml(self, table_id: int) -> list[str]:
        chance = self._chance
        table, ident, code, others = self._named(table_id)
        partitioned = self.table_ids[table_id] == "p"
        first = chance.randrange(max(self._next, 1))
        span = f"{ident} % 1000000 BETWEEN {first} AND {first + chance.choice([0, 3, 40])}"
        computed = self._computed(table_id)
        others = [(name, type_) for name, type_ in others if name not in computed]
        given = [(name, self._value(type_)) for name, type_ in others if chance.random() < 0.6]
        large = [name for name, type_ in others if type_ == "text"]
        match chance.randrange(9):
            case 0 | 1:
                count = chance.choice([1, 3, 60])
                begin, self._next = self._next, self._next + count
                names = ", ".join([ident, code, *(name for name, _ in given)])
                codes = f"g % {chance.choice([1, 2, 4])}" if partitioned else "g"
                values = ", ".join(["g", codes, *(value for _, value in given)])
                return [
                    f"INSERT INTO {table} ({names}) SELECT {values} FROM generate_series({begin}, {self._next - 1}) g"
                ]
            case 2 | 3 if given:
                assigned = ", ".join(f"{name} = {value}" for name, value in given)
                return [f"UPDATE {table} SET {assigned} WHERE {span}"]
            case 4 if large:
                return [f"UPDATE {table} SET {chance.choice(large)} = repeat(md5({ident}::text), 100) WHERE {span}"]
            case 5:
                return [f"UPDATE {table} SET {ident} = {ident} + 1000000 WHERE {span} AND {ident} < 1000000"]
            case 6 if partitioned:
                return [f"UPDATE {table} SET {code} = ({code} + 1) % 4 WHERE {span}"]
            case 7:
                return [f"DELETE FROM {table} WHERE {span}"]
            case 8 if chance.random() < 0.2:
                return [f"TRUNCATE {table}"]
            case _:
                return [f"UPDATE {table} SET {code} = {code} WHERE {span}"]

    def _ddl(self, table_id: int) -> list[str]:
        chance = self._chance
        table, ident, code, others = self._named(table_id)
        partitioned = self.table_ids[table_id] == "p"
        self._names += 1
        new = f'"C {self._names}"'
        names = [name for name, _ in others]
        alter = f"ALTER TABLE {table}"
        if partitioned and chance.random() < 0.4:
            return self._partition_ddl(table)
        match chance.randrange(16 if self.computing else 14):
            case 0 | 1:
                return [f"{alter} ADD COLUMN {new} {self._type()}"]
            case 2 | 13:
                type_, value = self._filled()
                not_null = chance.choice(["", " NOT NULL"])
                added = f"{alter} ADD COLUMN {new} {type_} DEFAULT {value}{not_null}"
                if chance.random() < 0.3:
                    type_, value = self._filled()
                    added += f', ADD COLUMN "D {self._names}" {type_} DEFAULT {value}'
                return [added]
            case 3 if len(names) > 1:
                return [f"{alter} DROP COLUMN {chance.choice(names)}"]
            case 4 if names:
                return [f"{alter} RENAME COLUMN {chance.choice(names)} TO {new}"]
            case 5 if len(names) > 1:
                one, two = chance.sample(names, 2)
                return [
                    f"{alter} RENAME COLUMN {one} TO tmp",
                    f"{alter} RENAME COLUMN {two} TO {one}",
                    f"{alter} RENAME COLUMN tmp TO {two}",
                ]
            case 6 if names:
                gone = chance.choice(names)
                return [f"{alter} DROP COLUMN {gone}", f"{alter} ADD COLUMN {gone} {self._type()}"]
            case 7 | 8 if others:
                name, type_ = chance.choice(others)
                other = self._other_type(type_)
                return [f"{alter} ALTER {name} TYPE {other.replace('{name}', name)}"] if other else []
            case 9 if not partitioned:
                more = [f"{ident}, {name}" for name, type_ in others if type_ in self.key_types]
                key = chance.choice([ident, code, f"{ident}, {code}", *more])
                constraint = self._connection.execute(
                    "SELECT quote_ident(conname) FROM pg_constraint WHERE conrelid = %s AND contype = 'p'", (table_id,)
                ).fetchone()
                return [
                    f"{alter} DROP CONSTRAINT {constraint[0]}" if constraint else "SELECT 1",
                    f"{alter} ADD PRIMARY KEY ({key})",
                ]
            case 10:
                identity = chance.choice(["FULL", "DEFAULT"])
                leaves = self._connection.execute(
                    "SELECT relid::regclass::text FROM pg_partition_tree(%s) WHERE relid <> %s", (table_id, table_id)
                ).fetchall()
                return [
                    f"ALTER TABLE {leaf} REPLICA IDENTITY {identity}" for leaf in (*(leaf for (leaf,) in leaves), table)
                ]
            case 11:
                return [f"{alter} RENAME TO {'p' if partitioned else 'r'}{self._names}"]
            case 12 if names:
                return [f"{alter} ALTER {chance.choice(names)} SET DEFAULT NULL"]
            case 14:
                expression = f"{code} * {chance.randrange(9)}::bigint"
                return [f"{alter} ADD COLUMN {new} bigint GENERATED ALWAYS AS ({expression}) STORED"]
            case 15 if computed := self._computed(table_id):
                return chance.choice(
                    [
                        [f"{alter} ALTER {computed[0]} SET EXPRESSION AS ({code} - {chance.randrange(9)}::bigint)"],
                        [f"{alter} ALTER {computed[-1]} DROP EXPRESSION"],
                    ]
                )
            case _:
                return [f"{alter} RENAME COLUMN {chance.choice([ident, code])} TO {new}"]

    def _partition_ddl(self, table: str) -> list[str]:
        chance = self._chance
        number = self._names
        leaves = [
            leaf
            for (leaf,) in self._connection.execute(
                "SELECT relid::regclass::text FROM pg_partition_tree(%s::regclass) WHERE isleaf", (table,)
            )
        ]
        leaf = chance.choice(leaves)
        full = self._connection.execute("SELECT relreplident = 'f' FROM pg_class WHERE oid = %s::regclass", (table,))
        # A new partition does not inherit it, and a different one is another reason for the table to fail.
        identity = f"REPLICA IDENTITY {'FULL' if full.fetchone() == (True,) else 'DEFAULT'}"
        match chance.randrange(4):
            case 0:
                made = f"{SCHEMA}.l{number}"
                return [
                    f"CREATE TABLE {made} PARTITION OF {table} FOR VALUES IN ({10 + number})",
                    f"ALTER TABLE {made} {identity}",
                ]
            case 1:
                return [f"TRUNCATE {leaf}"]
            case 2 if len(leaves) > 2 and not leaf.endswith("rest"):
                gone = chance.choice([f"ALTER TABLE {table} DETACH PARTITION {leaf}", f"DROP TABLE {leaf}"])
                # Sometimes further rows with the same keys arrive at once, in the DEFAULT partition.
                return [gone, *self._dml(next(table_id for table_id, name in self.table_ids.items() if name == "p"))]
            case _:
                made = f"{SCHEMA}.l{number}"
                return [
                    f"CREATE TABLE {made} (LIKE {table} INCLUDING ALL)",
                    f"ALTER TABLE {made} {identity}",
                    f"INSERT INTO {made} SELECT * FROM {table} LIMIT 0",
                    f"ALTER TABLE {table} ATTACH PARTITION {made} FOR VALUES IN ({10 + number})",
                ]

    def _value(self, type_: str) -> str:
        """An expression for a value of a column of this type, as `_columns` names it."""
        return _VALUES[type_](self._chance)

    def _type(self) -> str:
        """The type of a new column."""
        return self._chance.choice(_TYPES)

    def _filled(self) -> tuple[str, str]:
        """Type and default of a new column."""
        return self._chance.choice(_FILLED)

    def _other_type(self, type_: str) -> str | None:
        """A type that a column of this type may change to, with the expression for it; None if there is none. `{name}`
        stands for the column."""
        return {
            "integer": "bigint", "smallint": "int", "character varying": "text", "boolean": "int USING 1",
            "numeric": self._chance.choice(["numeric(14,2)", "numeric", "numeric(16,4)"]), "text": "varchar(4000)",
        }.get(type_)  # fmt: skip
