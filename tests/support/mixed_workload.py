"""Random rows of all types under random schema changes: the schema workload with the type tests' pool of values.

Values are compared in the type tests' form (tests/support/type_oracle.py): the text that Postgres prints, and the value
that the lake must hold, in the typed column or in its raw text column.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.raw_text_columns import is_raw_text, raw_text_id
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from tests.support.ddl_workload import SCHEMA, DdlWriter, State
from tests.support.type_oracle import CASES, KEYS, Held, by_duckdb, create_pool, held_by_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LONGEST = 1000
"""Characters of a random value: every row is read after every transaction. Larger values are in columns `big`."""


@dataclass(frozen=True)
class Palette:
    """Types and values to draw from. A type has the name that Postgres prints, with its schema."""

    cases: dict[str, int]
    """The case of each type."""
    held: list[Held]
    drawn: list[list[int]]
    """By case, the pool's rows whose values are drawn."""
    kept: list[int]
    """By case, how many of those, from the first on, need no raw text column."""
    keys: frozenset[str]
    """Types of columns that may become part of a key, whatever their values are."""

    @classmethod
    def of(cls, database: Database) -> Palette:
        """Creates the pool as table `public.pool`."""
        with database.session() as connection:
            create_pool(connection, "pool")
        held = held_by_text(database)
        with connect(database.dsn, autocommit=True) as connection:
            connection.execute("SET search_path = pg_catalog")
            names = connection.execute(
                "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = 'public.pool'::regclass AND attnum > 2 ORDER BY attnum"
            ).fetchall()
            lengths = [
                connection.execute(f"SELECT length(c{n}::text) FROM public.pool ORDER BY id".encode()).fetchall()
                for n in range(len(CASES))
            ]
        drawn = [
            [row for row, (length,) in enumerate(lengths[n]) if length is not None and length <= _LONGEST]
            for n in range(len(CASES))
        ]
        return cls(
            cases={name: n for n, (name,) in enumerate(names)},
            held=held,
            drawn=drawn,
            kept=[sum(row < len(case.values) for row in drawn[n]) for n, case in enumerate(CASES)],
            keys=frozenset(
                name for n, (name,) in enumerate(names) if CASES[n].type in KEYS and not CASES[n].unheld and drawn[n]
            ),
        )

    def value(self, type_: str, chance: random.Random) -> str:
        """An expression for a value of this type, or for NULL."""
        n = self.cases.get(type_)
        if n is None or not self.drawn[n] or chance.random() < 0.15:
            return "NULL"
        return f"(SELECT c{n} FROM public.pool WHERE id = {chance.choice(self.drawn[n])})"

    def cell(self, type_: str, text: str | None) -> tuple[Any, str | None]:
        """What the lake must hold for a value: in the typed column, and in the raw text column."""
        n = self.cases[type_]
        found = self.held[n].get(text)
        if found is None:
            assert text is not None
            # Not a value of the pool: it was converted, or is a label that was added later.
            kind = ColumnType.parse(CASES[n].lake).kind
            assert kind in (Kind.STRING, Kind.INT, Kind.LONG), f"{text!r} of {type_} is not in the pool"
            found = (int(text) if kind in (Kind.INT, Kind.LONG) else text, None)
        return found


def create_tables(database: Database, palette: Palette, chance: random.Random) -> list[str]:
    """Creates the workload's tables, with random columns in addition to those that it relies on. Returns their
    definitions."""
    types = list(palette.cases)

    def columns(count: int) -> str:
        return "".join(f", c{number} {chance.choice(types)}" for number in range(count))

    more = columns(4)
    statements = [
        f"CREATE SCHEMA {SCHEMA}",
        f"CREATE TABLE {SCHEMA}.t (id int PRIMARY KEY, code int NOT NULL UNIQUE, big text{columns(6)})",
        f"ALTER TABLE {SCHEMA}.t ALTER big SET STORAGE EXTERNAL",
        f"CREATE TABLE {SCHEMA}.u (id int PRIMARY KEY, code int NOT NULL UNIQUE, big text{columns(3)})",
        f"CREATE TABLE {SCHEMA}.p (id int, code int, big text{more}, PRIMARY KEY (id, code)) PARTITION BY LIST (code)",
        *(f"CREATE TABLE {SCHEMA}.p{n} PARTITION OF {SCHEMA}.p FOR VALUES IN ({n})" for n in range(3)),
        f"CREATE TABLE {SCHEMA}.rest PARTITION OF {SCHEMA}.p DEFAULT",
    ]
    with database.session() as connection:
        connection.execute("SET search_path = pg_catalog")
        for statement in statements:
            connection.execute(statement.encode())
    return [statement for statement in statements if statement.startswith("CREATE TABLE") and "big" in statement]


class MixedWriter(DdlWriter):
    """Draws types and values from a palette. Its connection is one of `source.connect`, which prints values as the
    pump's does."""

    computing = False

    def __init__(self, connection: psycopg.Connection[Any], chance: random.Random, palette: Palette) -> None:
        self._palette = palette
        self.key_types = palette.keys
        self._labels = ["ok"]
        connection.execute("SET search_path = pg_catalog")
        super().__init__(connection, chance)

    def table(self, table_id: int) -> str:
        """The table's present name, quoted if necessary."""
        return self._name(table_id)

    def rewrite(self) -> None:
        """VACUUM FULL of a table, which no transaction may contain: rows move, none changes."""
        self._run(f"VACUUM FULL {self._name(self._chance.choice(list(self.table_ids)))}")

    def label(self) -> None:
        """An enum of the pool gets another label, which columns may hold from then on."""
        self._labels.append(f"label {len(self._labels)}")
        self._run(f"ALTER TYPE public.mood ADD VALUE '{self._labels[-1]}'")

    def forget(self) -> None:
        """Reduces the history to the present states of the tables."""
        for states in self.history.states.values():
            del states[:-1]

    def _columns(self, table_id: int) -> list[tuple[str, str, int]]:
        return self._connection.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnum FROM pg_attribute"
            " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (table_id,),
        ).fetchall()

    def _state(self, table_id: int) -> State:
        columns = self._columns(table_id)
        selected = ", ".join(f'"{name}"' for name, *_ in columns)
        result = self._connection.execute(f"SELECT {selected} FROM {self._name(table_id)}".encode()).pgresult
        assert result is not None
        rows = [
            repr(
                [
                    self._palette.cell(
                        type_, None if (value := result.get_value(row, place)) is None else value.decode()
                    )
                    for place, (_, type_, _) in enumerate(columns)
                ]
            )
            for row in range(result.ntuples)
        ]
        return State(self._name(table_id), tuple(name for name, *_ in columns), tuple(sorted(rows)))

    def _value(self, type_: str) -> str:
        if type_ == "public.mood" and self._chance.random() < 0.3:
            return f"'{self._chance.choice(self._labels)}'::public.mood"
        return self._palette.value(type_, self._chance)

    def _type(self) -> str:
        return self._chance.choice(list(self._palette.cases))

    def _filled(self) -> tuple[str, str]:
        type_ = self._type()
        n = self._palette.cases[type_]
        kept = self._palette.drawn[n]
        # A default cannot be a query; what the database refuses is rolled back.
        values = CASES[n].values + CASES[n].unheld
        return type_, f"({values[self._chance.choice(kept)]})::{type_}" if kept else "NULL"

    def _other_type(self, type_: str) -> str | None:
        if self._chance.random() < 0.3:
            return "text USING {name}::text"
        return {
            "smallint": "integer",
            "integer": self._chance.choice(["bigint", "integer USING {name} # 12345", "bigint USING {name} # 12345"]),
            "character varying": "text",
            "character varying(5)": "character varying",
            "text": "character varying",
            "numeric(14,2)": "numeric(14,2) USING 0.01",
            "json": "json USING 'null'",
        }.get(type_)


def lake_state(location: str, duckdb: DuckDBPyConnection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns and rows of a lake table as DuckDB reads them, in the form of `State`."""
    schema = LakeTable.load(location, StorageOptions()).schema
    names = {field.field_id: field.name for field in schema.fields}
    columns = by_duckdb(location, {field.name: str(field.type) for field in schema.fields}, order="", duckdb=duckdb)
    own = [field for field in schema.fields if not is_raw_text(field)]
    absent = [None] * len(columns[own[0].name])
    cells = [
        list(zip(columns[field.name], columns.get(names.get(raw_text_id(field.field_id), ""), absent), strict=True))
        for field in own
    ]
    return tuple(field.name for field in own), tuple(sorted(repr(list(row)) for row in zip(*cells, strict=True)))
