"""docs/schema-changes.md, row by row: each change between two parts of a workload, on a running mirror."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.documented_changes import DOCUMENT, DocumentedChange, documented_changes

_STEPS = {
    Step.TABLE_CHANGED: "followed",
    Step.TABLE_FILLING: "filled",
    Step.TABLE_COPIED_AGAIN: "copied again",
    Step.TABLE_WAITING: "waits",
    Step.TABLE_FAILED: "failed",
    Step.TABLE_DROPPED: "dropped",
}
_STRENGTH = ("nothing", "followed", "filled", "waits", "copied again", "failed", "dropped")
_ENDS = {
    "failed": ("failed", "register"),
    "dropped": ("dropped", "dropped in Postgres"),
    "waits": ("waiting", "key"),
}
"""Results after which no change is applied: the state, and a word of the reason."""


def _setup() -> str:
    found = re.search(r"```sql\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1]


def _examples() -> list[DocumentedChange]:
    changes = documented_changes()
    assert len(changes) > 90
    return [
        change
        for change in changes
        # Older servers publish no generated columns, and keep the type of what a stored one is computed from.
        if major_version() >= 18 or re.search("STORED|VIRTUAL|double|ALTER b TYPE", str(change.transactions)) is None
    ]


def _shares(mirrors: int, *, is_further: bool) -> list[list[DocumentedChange]]:
    changes = [change for change in _EXAMPLES if change.is_further is is_further]
    return [changes[share::mirrors] for share in range(mirrors)]


_EXAMPLES = _examples()
_MIRRORS, _FURTHER_MIRRORS = 4, 3
"""The examples are divided among that many mirrors: those of one mirror run at the same time."""
_SHARES = [
    *(pytest.param(examples, id=str(number)) for number, examples in enumerate(_shares(_MIRRORS, is_further=False))),
    *(
        pytest.param(examples, id=f"further{number}", marks=pytest.mark.further)
        for number, examples in enumerate(_shares(_FURTHER_MIRRORS, is_further=True))
    ),
]

_BEFORE = """
INSERT INTO t (id, a, b, n, v, code, m, c, big, stamp)
SELECT g, 'a' || g, g, g / 8.0, 'v' || g, 1000 - g, 'ok', ROW(g, g)::pair, repeat(md5(g::text), 400),
       '2026-01-01 00:00Z'
  FROM generate_series(1, 60) g;
INSERT INTO p SELECT g, g % 2 + 1, 'v' || g FROM generate_series(1, 40) g;
"""
_CHANGES = """
UPDATE t SET b = -b WHERE id % 3 = 0;
DELETE FROM t WHERE id % 10 = 4;
UPDATE t SET id = id + 100 WHERE id % 10 = 5;
UPDATE p SET v = 'w' WHERE id % 3 = 0;
UPDATE p SET part = 3 - part WHERE id % 10 = 1;
"""


@dataclass
class _Running:
    """An example in a schema of its own, whose tables are mirrored."""

    example: DocumentedChange
    database: Database
    connection: psycopg.Connection[Any]
    """Finds the example's tables by their plain names."""
    schema: str
    table_id: int = 0
    before: tuple[list[str], list[Any]] | None = None
    """The table's columns and rows before the change."""

    @classmethod
    def create(cls, example: DocumentedChange, database: Database, connection: psycopg.Connection[Any]) -> _Running:
        # A difference that is found at the end of the test is reported with the table's name.
        schema = f"c_{re.sub('[^a-z0-9]+', '_', example.change.lower())[:32]}_{os.urandom(3).hex()}"
        connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}".encode())
        connection.execute(_setup().encode())
        connection.execute(_BEFORE.encode())
        self = cls(example, database, connection, schema)
        row = connection.execute("SELECT %s::regclass::oid::bigint", (self.table,)).fetchone()
        assert row is not None
        self.table_id = row[0]
        return self

    @property
    def table(self) -> str:
        return "p" if re.search(r"\bp\d?\b", self.example.transactions[-1]) else "t"

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def ends(self) -> bool:
        """Whether no change is applied afterwards."""
        return self.example.result in _ENDS

    def write(self) -> None:
        self.connection.execute(_CHANGES.encode())
        self.before = _heap(self.database, self.table_id)

    def change(self) -> None:
        """Does what the document says."""
        if self.example.result == "refused by Postgres":
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                self.connection.execute(self.example.transactions[0].encode())
            return
        for statement in self.example.transactions:
            self.connection.execute(statement.replace("elsewhere", f"elsewhere_{self.schema}").encode())
        if not self.ends:
            _after(self.connection, self.table_id)

    def check(self, mirror: Mirror, steps: list[tuple[Step, dict[str, object]]]) -> None:
        """Fails unless the result is the document's, and the lake has what it says."""
        result = self.example.result
        if self.ends:
            assert _ENDS[result][1] in mirror.error(self.name)
            assert _lake(mirror, self.name) == self.before, "it stays readable as it was"
        else:
            present = _present(self.database, self.table_id)
            assert present is not None
            names, rows = _lake(mirror, present)
            wanted_names, wanted = _heap(self.database, self.table_id)
            assert names == wanted_names
            try:
                assert_same(wanted, rows, f"{present} after {self.example.transactions}")
            except AssertionError as error:
                error.add_note(_history(mirror, steps, self.table_id))
                raise
        reasons = [
            details
            for step, details in steps
            if step in _STEPS and str(details["table"]).split(".")[0] in (self.schema, f"elsewhere_{self.schema}")
        ]
        results = {_STEPS[step] for step, details in steps if step in _STEPS and details in reasons}
        if result != "refused by Postgres":
            strongest = max(results | {"nothing"}, key=_STRENGTH.index)
            assert strongest == result, reasons


def _history(mirror: Mirror, steps: list[tuple[Step, dict[str, object]]], table_id: int) -> str:
    """What the pump did, and the fills of the table: which rows it removed, and when."""
    fills = mirror.database.rows(
        "SELECT at, dropped_rows FROM public.fills WHERE table_id = %s ORDER BY at", (table_id,)
    )
    return "\n".join(map(str, (*steps, *fills)))


def _after(connection: psycopg.Connection[Any], table_id: int) -> None:
    """Changes rows of the table in its present form, by its present name and the present names of its columns."""
    row = connection.execute("SELECT oid::regclass::text, relkind FROM pg_class WHERE oid = %s", (table_id,)).fetchone()
    if row is None:
        return
    table, kind = row
    columns = dict(
        connection.execute(
            "SELECT attnum, quote_ident(attname) FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
            " AND NOT attisdropped AND attgenerated = ''",
            (table_id,),
        ).fetchall()
    )
    ident = columns[1]
    if kind == "p":
        statements = [
            f"INSERT INTO {table} ({ident}, part, v) VALUES (500, 2, 'after'), (501, 2, NULL)",
            f"UPDATE {table} SET v = 'later' WHERE {ident} % 4 = 0",
            f"DELETE FROM {table} WHERE {ident} % 7 = 0",
        ]
    else:
        code = columns[7]
        statements = [
            f"INSERT INTO {table} ({ident}, {code}) VALUES (500, 5000), (501, 5001)",
            *(f"UPDATE {table} SET {columns[3]} = 77 WHERE {ident} % 6 = 0" for _ in columns if 3 in columns),
            # Large values that do not change; keys that do.
            f"UPDATE {table} SET {ident} = {ident} + 200 WHERE {ident} % 10 = 7",
            f"DELETE FROM {table} WHERE {ident} % 9 = 0",
        ]
    for statement in statements:
        connection.execute(statement.encode())


def _present(database: Database, table_id: int) -> str | None:
    rows = database.rows(
        "SELECT nspname || '.' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s",
        (table_id,),
    )
    return rows[0][0] if rows else None


def _heap(database: Database, table_id: int) -> tuple[list[str], list[Any]]:
    """Names and rows of the columns that the server publishes."""
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        names = [
            row[0]
            for row in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
                " AND attgenerated::text = ANY (%s) ORDER BY attnum",
                (table_id, [""] if major_version() < 18 else ["", "s"]),
            )
        ]
        typed = [f'"{name}"::text' if name == "c" else f'"{name}"' for name in names]
        table = connection.execute("SELECT %s::regclass::text", (table_id,)).fetchone()
        assert table is not None
        rows = connection.execute(f"SELECT {', '.join(typed)} FROM {table[0]}".encode()).fetchall()
    return names, _comparable(rows)


def _lake(mirror: Mirror, name: str) -> tuple[list[str], list[Any]]:
    table = read_duckdb(mirror.location(name))
    return table.column_names, _comparable(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def _comparable(rows: list[Any]) -> list[Any]:
    """A numeric without precision is text in the lake."""
    return normalised([tuple(str(cell) if isinstance(cell, Decimal) else cell for cell in row) for row in rows])


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    mirror = Mirror.create(database, warehouse, tasks, segment_bytes=20_000)
    database.execute(
        "CREATE TABLE public.fills (table_id bigint, dropped_rows jsonb, at timestamptz DEFAULT clock_timestamp())",
        "CREATE FUNCTION public.log_fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.fills VALUES (NEW.table_id, NEW.dropped_rows); RETURN NEW; END $$",
        "CREATE TRIGGER log_fill AFTER UPDATE ON modak.mirror_tables FOR EACH ROW"
        " WHEN (NEW.dropped_rows IS DISTINCT FROM OLD.dropped_rows) EXECUTE FUNCTION public.log_fill()",
    )
    return mirror


@pytest.mark.parametrize("examples", _SHARES)
def test_the_documented_changes(mirror: Mirror, examples: list[DocumentedChange]) -> None:
    """Those that end a table's mirroring come while the others' rows change. At the end of the test, all live tables
    are compared once more: side effects of a statement on other tables show there."""
    database = mirror.database
    with ExitStack() as connections, mirror.pumping() as pump:
        running = [
            _Running.create(example, database, connections.enter_context(database.connect())) for example in examples
        ]
        mirror.register(*(each.name for each in running))
        mirror.await_live(*(each.name for each in running))
        # A step is reported after its publish, and before the next one begins.
        mirror.await_frontier()
        seen = len(pump.steps.occurrences)
        for each in running:
            if each.ends:
                each.write()
        # Changes in the same batch as the table's end are above its last frontier.
        mirror.await_frontier()
        for each in running:
            if not each.ends:
                each.write()
            each.change()
        mirror.await_frontier()
        for each in running:
            if each.ends:
                _await_state(mirror, each.name, _ENDS[each.example.result][0])
            else:
                mirror.await_live(str(_present(database, each.table_id)))
        mirror.await_frontier()
        problems = []
        for each in running:
            try:
                each.check(mirror, pump.steps.occurrences[seen:])
            except AssertionError as error:
                problems.append("\n".join((f"{each.example.change}: {error}", *getattr(error, "__notes__", ()))))
        assert not problems, "\n".join(problems)
    mirror.assert_sound()


def _await_state(mirror: Mirror, name: str, state: str) -> None:
    await_true(lambda: mirror.state(name) == state, 90, f"{name} {state}")
