"""A mirror of two tables that change together, what clients read of them one after the other, and kept moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mirror_pump.ops.moments.dropping import one_moment
from mirror_pump.source.catalog.kept_moments import KeptMoment
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Row, assert_same, lake_rows
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.rest_catalog import ServedMirror


def two_tables(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror of `a` and `b`, which get the same rows in each transaction."""
    for name in ("a", "b"):
        database.execute(f"CREATE TABLE {name} (v int PRIMARY KEY)", f"INSERT INTO {name} VALUES (0)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", "b")
    mirror.catch_up()
    return mirror


def change(mirror: Mirror, value: int) -> int:
    """Gives both tables a row with this value. Returns a frontier at which they have it. (Without deletes: pyiceberg
    refuses equality deletes, and the pump may still be reading its key index.)"""
    mirror.database.execute(f"BEGIN; INSERT INTO a SELECT {value}; INSERT INTO b SELECT {value}; COMMIT")
    return mirror.await_frontier()


def by_duckdb(catalog: ServedMirror, warehouse: str) -> Callable[[str], int]:
    """Attaches, and returns what reads a table's value."""
    connection = catalog.duckdb(warehouse)
    return lambda table: int(connection.execute(f"SELECT max(v) FROM lake.public.{table}").fetchall()[0][0])


def by_pyiceberg(catalog: ServedMirror, warehouse: str) -> Callable[[str], int]:
    client = catalog.pyiceberg(warehouse)
    return lambda table: max(client.load_table(("public", table)).scan().to_arrow()["v"].to_pylist())


def kept_moment(mirror: Mirror, name: str) -> KeptMoment:
    """The moment that is kept under a name."""
    with mirror.database.session() as connection:
        return one_moment(connection, mirror.settings.slot, name)


def assert_moment(mirror: Mirror, name: str, rows: Mapping[str, Sequence[Row]]) -> None:
    """Fails unless the moment has these tables and rows, as DuckDB reads them from its own metadata files."""
    moment = kept_moment(mirror, name)
    assert {str(table.table) for table in moment.tables} == rows.keys()
    for table in moment.tables:
        assert_same(rows[str(table.table)], lake_rows(table.main_location), f"{table.table} at {name}")
