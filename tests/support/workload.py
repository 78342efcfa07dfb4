"""Random transactions over tables of several shapes, applied to Postgres and to a model of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg

from mirror_pump.testing.mirror import Row
from tests.support.history_oracle import CommitLog, Contents, History

BIG = 3000
"""Bytes beyond which Postgres stores a value out of line, and an UPDATE of other columns does not send it."""

FILLERS = 120
"""Rows of a bulk insert: several heap blocks, so several chunks of a copy."""


@dataclass(frozen=True)
class TableShape:
    """A table of the workload. All have the value columns n, s and big; they differ in keys and replica identity."""

    name: str
    key_columns: str
    key: tuple[str, ...]
    keys: tuple[Row, ...]
    """The keys that single-row operations use."""
    filler: str
    """SQL for the key of bulk row g."""
    identity: str = ""

    @property
    def ddl(self) -> list[str]:
        key = f"PRIMARY KEY ({', '.join(self.key)})"
        statements = [
            f"CREATE TABLE {self.name} ({self.key_columns}, n int, s text, big text, {key})",
            f"ALTER TABLE {self.name} ALTER COLUMN big SET STORAGE EXTERNAL",
        ]
        return [*statements, f"ALTER TABLE {self.name} {self.identity}"] if self.identity else statements


_TEXT_KEYS = (("",), ("k",), ("K",), ("k ",), ("ü\n'\\\x1f",), ("k" * 40,))

SHAPES = (
    TableShape("w.plain", "id int", ("id",), tuple((i,) for i in range(-2, 5)), "1000 + g"),
    TableShape(
        "w.pair",
        "a bigint, b text",
        ("a", "b"),
        tuple((a, b) for a in (1, 2**40) for b in ("", "x", "y")),
        "5, 'f' || g",
    ),
    TableShape("w.named", "k text", ("k",), _TEXT_KEYS, "'filler' || g"),
    TableShape(
        "w.whole",
        "id uuid",
        ("id",),
        tuple((f"{i:08x}-0000-4000-8000-000000000000",) for i in range(5)),
        "('f0000000-0000-4000-8000-' || lpad(g::text, 12, '0'))::uuid",
        "REPLICA IDENTITY FULL",
    ),
)


class Act(StrEnum):
    """What one operation does. Keys are picked by number from the shape's."""

    PUT = "put"
    """Insert, or update of every value column if the key exists."""
    TOUCH = "touch"
    """Update of n only: a large value is sent as unchanged."""
    BIG = "big"
    DELETE = "delete"
    REINSERT = "reinsert"
    MOVE = "move"
    """Change of the key, the values unchanged."""
    MOVE_TOUCH = "move-touch"
    SWAP = "swap"
    """Three key changes that exchange two rows."""
    BUMP = "bump"
    """Update of every row."""
    FILL = "fill"
    """Bulk insert of the filler rows that do not exist."""
    DELETE_SOME = "delete-some"
    TRUNCATE = "truncate"
    TRUNCATE_TWO = "truncate-two"
    """One statement that changes two tables."""
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback-to"
    RELEASE = "release"


@dataclass(frozen=True)
class RowOperation:
    act: Act
    table: int
    first: int
    second: int
    n: int | None
    s: str | None
    big: int | None
    """Length of the large value; None for NULL."""


_COMMON = [Act.PUT, Act.TOUCH, Act.BIG, Act.DELETE, Act.REINSERT, Act.MOVE, Act.MOVE_TOUCH, Act.SWAP]
_RARE = [Act.BUMP, Act.FILL, Act.DELETE_SOME, Act.TRUNCATE, Act.TRUNCATE_TWO]
_NESTING = [Act.SAVEPOINT, Act.ROLLBACK_TO, Act.RELEASE]
_ACTS = (*_COMMON * 3, *_RARE, *_NESTING * 2)

_TEXTS = (None, "", "\\N", "NULL", "it's", "tab\there", "ünïcode 🚰", "x" * 300)
_LENGTHS = (None, 0, 5, BIG, 3 * BIG)


def random_operations(chance: random.Random, most: int) -> list[RowOperation]:
    """Up to `most` operations. They are drawn from a seed and not one by one by hypothesis, whose budget is for the
    steps."""
    return [
        RowOperation(
            act=chance.choice(_ACTS),
            table=chance.randrange(len(SHAPES)),
            first=chance.randrange(7),
            second=chance.randrange(7),
            n=chance.choice((None, 0, 3, chance.randrange(-(2**31), 2**31))),
            s=chance.choice(_TEXTS),
            big=chance.choice(_LENGTHS),
        )
        for _ in range(chance.randint(1, most))
    ]


class Ending(StrEnum):
    COMMIT = "commit"
    ROLLBACK = "rollback"
    PREPARED = "prepared"
    """PREPARE TRANSACTION, then COMMIT PREPARED."""


class Writer:
    """One session that performs operations and keeps a model of what it has done."""

    def __init__(self, connection: psycopg.Connection[Any], history: History) -> None:
        self._connection = connection
        self._history = history
        self._big = 0

    def transaction(
        self, operations: list[RowOperation], ending: Ending, shapes: tuple[TableShape, ...] = SHAPES
    ) -> None:
        """One transaction of these operations. It is added to the history if it commits."""
        run = self._connection.execute
        number = self._history.next_number()
        tables = {shape.name: dict(self._history.tables.get(shape.name, {})) for shape in shapes}
        saved: list[dict[str, Contents]] = []
        run("BEGIN")
        CommitLog.mark(self._connection, number)
        for operation in operations:
            match operation.act:
                case Act.SAVEPOINT:
                    run(f"SAVEPOINT s{len(saved)}".encode())
                    saved.append({name: dict(contents) for name, contents in tables.items()})
                case Act.ROLLBACK_TO if saved:
                    depth = operation.first % len(saved)
                    run(f"ROLLBACK TO SAVEPOINT s{depth}".encode())
                    tables = {name: dict(contents) for name, contents in saved[depth].items()}
                    del saved[depth + 1 :]
                case Act.RELEASE if saved:
                    run(f"RELEASE SAVEPOINT s{len(saved) - 1}".encode())
                    saved.pop()
                case Act.ROLLBACK_TO | Act.RELEASE:
                    pass
                case Act.TRUNCATE_TWO:
                    names = {shapes[place % len(shapes)].name for place in (operation.table, operation.first)}
                    run(f"TRUNCATE {', '.join(sorted(names))}".encode())
                    tables |= {name: {} for name in names}
                case _:
                    shape = shapes[operation.table % len(shapes)]
                    self._do(operation, shape, tables[shape.name])
        if ending is Ending.ROLLBACK:
            run("ROLLBACK")
            return
        if ending is Ending.PREPARED:
            run(f"PREPARE TRANSACTION 'g{number}'".encode())
            run(f"COMMIT PREPARED 'g{number}'".encode())
        else:
            run("COMMIT")
        self._history.committed(number, tables)

    def _do(self, operation: RowOperation, shape: TableShape, rows: Contents) -> None:
        first = shape.keys[operation.first % len(shape.keys)]
        second = shape.keys[operation.second % len(shape.keys)]
        values = (operation.n, operation.s, self._large(operation.big))
        match operation.act:
            case Act.PUT:
                self._put(shape, rows, first, values)
            case Act.TOUCH if first in rows:
                self._run(f"UPDATE {shape.name} SET n = %s WHERE {_where(shape)}", (operation.n, *first))
                rows[first] = (operation.n, *rows[first][1:])
            case Act.BIG if first in rows:
                self._run(f"UPDATE {shape.name} SET big = %s WHERE {_where(shape)}", (values[2], *first))
                rows[first] = (*rows[first][:2], values[2])
            case Act.DELETE:
                self._run(f"DELETE FROM {shape.name} WHERE {_where(shape)}", first)
                rows.pop(first, None)
            case Act.REINSERT:
                self._run(f"DELETE FROM {shape.name} WHERE {_where(shape)}", first)
                rows.pop(first, None)
                self._put(shape, rows, first, values)
            case Act.MOVE if first in rows and second not in rows:
                self._move(shape, rows, first, second)
            case Act.MOVE_TOUCH if first in rows and second not in rows:
                assignments = ", ".join(f"{column} = %s" for column in shape.key)
                self._run(
                    f"UPDATE {shape.name} SET {assignments}, n = %s WHERE {_where(shape)}",
                    (*second, operation.n, *first),
                )
                rows[second] = (operation.n, *rows.pop(first)[1:])
            case Act.SWAP if first in rows and second in rows and first != second:
                spare = next(key for key in shape.keys if key not in rows) if len(rows) < len(shape.keys) else None
                if spare is not None:
                    self._move(shape, rows, first, spare)
                    self._move(shape, rows, second, first)
                    self._move(shape, rows, spare, second)
            case Act.BUMP:
                self._run(f"UPDATE {shape.name} SET n = coalesce(n, 0) / 2 + 1", ())
                for key, (n, s, big) in rows.items():
                    rows[key] = (_half(n) + 1, s, big)
            case Act.FILL:
                self._connection.execute(
                    f"INSERT INTO {shape.name} SELECT {shape.filler}, g, 'filler', repeat('f', 200)"
                    f" FROM generate_series(1, {FILLERS}) g ON CONFLICT DO NOTHING".encode()
                )
                for key in self._filler_keys(shape):
                    rows.setdefault(key[:-1], (key[-1], "filler", "f" * 200))
            case Act.DELETE_SOME:
                self._run(f"DELETE FROM {shape.name} WHERE n %% 3 = 0", ())
                for key in [key for key, (n, _, _) in rows.items() if n is not None and n % 3 == 0]:
                    del rows[key]
            case Act.TRUNCATE:
                self._run(f"TRUNCATE {shape.name}", ())
                rows.clear()
            case _:
                pass

    def _put(self, shape: TableShape, rows: Contents, key: Row, values: Row) -> None:
        if key in rows:
            self._run(f"UPDATE {shape.name} SET n = %s, s = %s, big = %s WHERE {_where(shape)}", (*values, *key))
        else:
            places = ", ".join(["%s"] * (len(key) + 3))
            self._run(f"INSERT INTO {shape.name} VALUES ({places})", (*key, *values))
        rows[key] = values

    def _move(self, shape: TableShape, rows: Contents, first: Row, second: Row) -> None:
        assignments = ", ".join(f"{column} = %s" for column in shape.key)
        self._run(f"UPDATE {shape.name} SET {assignments} WHERE {_where(shape)}", (*second, *first))
        rows[second] = rows.pop(first)

    def _filler_keys(self, shape: TableShape) -> list[Row]:
        """Keys of all fillers, each with its g."""
        if not hasattr(self, "_fillers"):
            self._fillers: dict[str, list[Row]] = {}
        if shape.name not in self._fillers:
            rows = self._connection.execute(
                f"SELECT {shape.filler}, g FROM generate_series(1, {FILLERS}) g".encode()
            ).fetchall()
            self._fillers[shape.name] = [(*map(_key_value, row[:-1]), row[-1]) for row in rows]
        return self._fillers[shape.name]

    def _large(self, length: int | None) -> str | None:
        """A value of that length that differs from every other, so that a wrong one is noticed."""
        if length is None:
            return None
        self._big += 1
        return f"{self._big}:".ljust(length, "b")[: max(length, 8)] if length else ""

    def _run(self, query: str, parameters: Row) -> None:
        self._connection.execute(query.encode(), parameters)


def _where(shape: TableShape) -> str:
    return " AND ".join(f"{column} = %s" for column in shape.key)


def _half(n: int | None) -> int:
    """Halves as Postgres does: towards zero."""
    return 0 if n is None else int(n / 2)


def _key_value(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)
