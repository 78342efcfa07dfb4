"""docs/schema-changes.md, row by row: each change between two parts of a workload, on a running mirror."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, RunningPump, assert_same, await_true, normalised
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified

_DOCUMENT = (Path(__file__).parents[3] / "docs" / "schema-changes.md").read_text(encoding="utf-8")
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
    found = re.search(r"```sql\n(.*?)```", _DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1]


def _examples() -> list[Any]:
    """The document's rows: what is done, its transactions, and the result."""
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+`) \| ([a-zA-Z ]+) \|$", _DOCUMENT, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\|[^|]+\| *`", _DOCUMENT, re.MULTILINE)), "a row that is not understood"
    assert len(rows) > 50
    return [
        pytest.param(
            re.findall(r"`([^`]+)`", sql),
            result,
            id=change,
            marks=pytest.mark.skipif(
                major_version() < 18 and re.search("STORED|VIRTUAL|double", sql) is not None,
                reason="the server publishes no generated columns",
            ),
        )
        for change, sql, result in rows
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


@dataclass(frozen=True)
class _ExampleScene:
    """A running mirror, in whose database every example has a schema of its own."""

    mirror: Mirror
    pump: RunningPump


@pytest.fixture(scope="module")
def scene(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_ExampleScene]:
    name = f"t_schema_changes_{os.urandom(3).hex()}"
    postgres.create_database(name)
    database = Database(postgres, name)
    warehouse = tmp_path_factory.mktemp("warehouse").as_uri()
    runner = ThreadTaskRunner()
    mirror = Mirror.create(database, warehouse, runner, segment_bytes=20_000)
    database.execute(
        "CREATE TABLE public.fills (table_id bigint, dropped_rows jsonb, at timestamptz DEFAULT clock_timestamp())",
        "CREATE FUNCTION public.log_fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.fills VALUES (NEW.table_id, NEW.dropped_rows); RETURN NEW; END $$",
        "CREATE TRIGGER log_fill AFTER UPDATE ON modak.mirror_tables FOR EACH ROW"
        " WHEN (NEW.dropped_rows IS DISTINCT FROM OLD.dropped_rows) EXECUTE FUNCTION public.log_fill()",
    )
    with mirror.pumping() as pump:
        yield _ExampleScene(mirror, pump)
        # Tables that were changed earlier stay equal while others change: side effects of a statement show here.
        assert_verified(database)
    mirror.assert_sound()
    runner.close()
    postgres.drop_database(name)


def _history(scene: _ExampleScene, table_id: int, seen: int) -> str:
    """What the pump did since step number `seen`, and the fills of the table: which rows it removed, and when."""
    fills = scene.mirror.database.rows(
        "SELECT at, dropped_rows FROM public.fills WHERE table_id = %s ORDER BY at", (table_id,)
    )
    return "\n".join(map(str, (*scene.pump.steps.seen[seen:], *fills)))


def _after(connection: psycopg.Connection[Any], table_id: int, names: dict[int, str]) -> None:
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


@pytest.mark.parametrize(("transactions", "result"), _examples())
def test_a_documented_change(
    scene: _ExampleScene, transactions: list[str], result: str, request: pytest.FixtureRequest
) -> None:
    mirror, database = scene.mirror, scene.mirror.database
    # A difference at the end, after all examples, is reported with the table's name.
    schema = f"c_{re.sub('[^a-z0-9]+', '_', request.node.callspec.id.lower())[:32]}_{os.urandom(3).hex()}"
    partitioned = bool(re.search(r"\bp\d?\b", transactions[-1]))
    table = "p" if partitioned else "t"
    with database.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}".encode())
        connection.execute(_setup().encode())
        connection.execute(_BEFORE.encode())
        mirror.register(f"{schema}.{table}")
        mirror.await_live(f"{schema}.{table}")
        row = connection.execute("SELECT %s::regclass::oid::bigint", (table,)).fetchone()
        assert row is not None
        table_id = row[0]
        seen = len(scene.pump.steps.seen)
        connection.execute(_CHANGES.encode())
        before = _heap(database, table_id)
        if result in _ENDS:
            # Changes in the same batch as the table's end are above its last frontier.
            mirror.await_frontier()
        if result == "refused by Postgres":
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                connection.execute(transactions[0].encode())
            return
        for statement in transactions:
            connection.execute(statement.replace("elsewhere", f"elsewhere_{schema}").encode())
        if result not in _ENDS:
            _after(connection, table_id, {})
    mirror.await_frontier()
    present = _present(database, table_id)
    if result in _ENDS:
        name = f"{schema}.{table}"
        state, output = _ENDS[result]
        await_true(lambda: mirror.state(name) == state, 90, f"{name} {state}")
        # A step is reported after its publish, and before the next one begins.
        mirror.await_frontier()
        assert output in mirror.error(name)
        assert _lake(mirror, name) == before, "it stays readable as it was"
    else:
        assert present is not None
        mirror.await_live(present, seconds=90)
        mirror.await_frontier()
        names, rows = _lake(mirror, present)
        wanted_names, wanted = _heap(database, table_id)
        assert names == wanted_names
        try:
            assert_same(wanted, rows, f"{present} after {transactions}")
        except AssertionError as error:
            error.add_note(_history(scene, table_id, seen))
            raise
    results = {
        _STEPS[step]
        for step, details in scene.pump.steps.seen[seen:]
        if step in _STEPS and str(details["table"]).split(".")[0] in (schema, f"elsewhere_{schema}")
    }
    strongest = max(results | {"nothing"}, key=_STRENGTH.index)
    reasons = [details for step, details in scene.pump.steps.seen[seen:] if step in _STEPS]
    assert strongest == result, reasons
