"""modak.delta.pk joins the parts of a key in the order of the table's columns, whatever the order of the key is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from sql import reader_role
from tests.support.readers import ReaderRole, role_of
from tests.support.retention_table import RetentionTable, at_once

pytestmark = pytest.mark.further

ODD = "a\x1fb\\c"
"""Has both characters that are escaped."""
BUILT: LiteralString = "SELECT modak.delta_pk('public.events', %s::jsonb)"


@pytest.fixture
def of_any_age(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """public.events, whose primary key begins with the last column, with the retention of `mirror`. No pump has seen
    it."""
    made = Mirror.create(database, warehouse, tasks, fold_age=3600, retention_interval=0.1)
    RetentionTable(database, 3).create_tables(
        "name text, v text, born timestamptz, at bigint, PRIMARY KEY (at, born, name)"
    )
    database.execute(
        "INSERT INTO events SELECT 'n' || g, 'first', to_timestamp(g), g FROM generate_series(0, 290, 10) g"
    )
    made.register("public.events", retention=at_once("100"))
    return made


@pytest.fixture
def mirror(of_any_age: Mirror) -> Mirror:
    """The same once its rows below 100 are in the lake."""
    gone = "SELECT FROM pg_class WHERE relname = 'p0'"
    with of_any_age.pumping():
        await_true(lambda: not of_any_age.database.rows(gone), 60, "it has left")
    return of_any_age


@pytest.fixture
def reader(mirror: Mirror) -> Iterator[ReaderRole]:
    with role_of(mirror.database) as role:
        with mirror.database.session() as connection:
            connection.execute(reader_role(psycopg.sql.Identifier(role.name).as_string(connection)).encode())
        yield role


def test_the_parts_are_in_the_order_of_the_columns(mirror: Mirror, reader: ReaderRole) -> None:
    database = mirror.database
    row = {"name": ODD, "born": "2026-05-04 12:00:00+02", "at": 10, "v": "late"}
    database.rows("SELECT modak.upsert('events', %s::jsonb)", (json.dumps(row),))
    escaped = ODD.replace("\\", "\\\\").replace("\x1f", "\\\x1f")
    pk = f"{escaped}\x1f2026-05-04 10:00:00+00\x1f10"
    assert database.rows("SELECT pk FROM modak.delta") == [(pk,)]
    assert database.rows("SELECT primary_key_cols FROM modak.tables") == [(["name", "born", "at"],)]
    with psycopg.connect(reader.dsn) as connection:
        # The text is of no session's settings.
        connection.execute("SET timezone = 'America/Lima'; SET datestyle = 'German'")
        key: dict[str, Any] = {name: row[name] for name in ("at", "name", "born")}
        assert connection.execute(BUILT, (json.dumps(key),)).fetchone() == (pk,)
        assert connection.execute(BUILT, (json.dumps(row),)).fetchone() == (pk,), "of a whole row too"
        parts = "SELECT modak.canonical_pk(%s, %s, %s)"
        assert connection.execute(parts, (ODD, "2026-05-04 10:00:00+00", "10")).fetchone() == (pk,)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ('{"at": 10, "name": "n1"}', "no value of key column"),
        ('{"at": 10, "name": "n1", "born": null}', "no value of key column"),
        ("[1]", "JSON object"),
    ],
)
def test_a_key_without_all_its_parts_is_refused(of_any_age: Mirror, key: str, message: str) -> None:
    with pytest.raises(psycopg.Error, match=message):
        of_any_age.database.rows(BUILT, (key,))


def test_a_table_that_is_not_mirrored_has_no_such_key(of_any_age: Mirror) -> None:
    mirror = of_any_age
    mirror.database.execute("CREATE TABLE public.other (id int PRIMARY KEY)")
    with pytest.raises(psycopg.errors.UndefinedTable, match="other is not mirrored"):
        mirror.database.rows("""SELECT modak.delta_pk('public.other', '{"id": 1}')""")
