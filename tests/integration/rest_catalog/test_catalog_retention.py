"""Tables with heap retention: the rows below the cut-line, or branch `main`, by the warehouse's name."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.testing.mirror import Row, normalised
from tests.support.events_table import EventsTable, RetentionTables
from tests.support.rest_catalog import ServedMirror, served
from tests.support.retention_table import WIDTH

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@pytest.fixture
def events(retention_tables: RetentionTables) -> EventsTable:
    return retention_tables.manual()


@functools.cache
def duckdb() -> DuckDBPyConnection:
    """One for all tests: it takes longer to start than to attach."""
    return open_duckdb("httpfs")


def rows(catalog: ServedMirror, warehouse: str) -> list[Row]:
    """What DuckDB reads of the table, once it has attached the warehouse."""
    connection = duckdb()
    catalog.attach_in(connection, warehouse, "lake")
    found = connection.execute('SELECT "at", id, n, v FROM lake.public.events').fetchall()
    connection.execute("DETACH lake")
    return normalised(found)


def below(events: EventsTable, cut: int) -> list[Row]:
    return [row for row in model(events) if row[0] < cut]


def model(events: EventsTable) -> list[Row]:
    found: Sequence[Row] = events.database.rows("SELECT at, id, n, v FROM model")
    return normalised(found)


def test_the_warehouse_says_which_rows(events: EventsTable) -> None:
    """Each is as of its moment, also after the cut-line has moved and old rows have changed."""
    mirror = events.mirror
    mirror.catch_up()
    with served(mirror.settings) as catalog, mirror.pumping() as running:
        assert rows(catalog, "mirror") == []
        events.advance(running)
        mirror.await_frontier()
        cut, first = events.cut, below(events, WIDTH)
        whole = model(events)
        assert cut == WIDTH
        assert rows(catalog, "mirror") == first
        assert rows(catalog, "mirror.main") == whole
        assert len(first) < len(whole)
        published = catalog.attach("mirror@latest")
        assert catalog.attach("mirror.main@latest").startswith("mirror.main.at=")
        path = f"/v1/{published}/namespaces/public/tables/events"
        loaded = catalog.ask(path).document
        assert loaded["metadata"]["properties"]["mirror-pump.cut-line"] == str(cut)
        assert loaded["metadata"]["properties"]["mirror-pump.frontier"]

        events.database.execute(
            f"INSERT INTO events (at, id, n, v) VALUES ({2 * WIDTH}, 1000, 0, 'young')",
            f"INSERT INTO model (at, id, n, v) VALUES ({2 * WIDTH}, 1000, 0, 'young')",
        )
        events.advance(running)
        mirror.await_frontier()
        assert rows(catalog, "mirror") == below(events, 2 * WIDTH)
        assert rows(catalog, "mirror.main") == model(events)
        at = published.partition("=")[2]
        assert rows(catalog, f"mirror@{at}") == first
        assert rows(catalog, f"mirror.main@{at}") == whole
        assert (
            catalog.ask(path).document["metadata"]["current-snapshot-id"] == loaded["metadata"]["current-snapshot-id"]
        )
        # A server that knows neither moment nor lease finds the same in the histories.
        events.database.execute("DELETE FROM modak.read_pins")
        with served(mirror.settings) as other:
            assert rows(other, f"mirror@{at}") == first
            assert rows(other, f"mirror.main@{at}") == whole
        partition = "SELECT modak.pin_below(table_id, 9223372036854775806, true) FROM modak.cutline"
        assert {found for (found,) in events.database.rows(partition)} == {None}


@pytest.mark.further
def test_corrections_do_not_wait_for_a_moment(events: EventsTable) -> None:
    """A lease names a snapshot without them, and promises not to look for them."""
    from mirror_pump.testing.mirror import await_true

    mirror = events.mirror.with_options(fold_age=0.05)
    mirror.catch_up()
    with served(mirror.settings) as catalog, mirror.pumping() as running:
        events.advance(running)
        catalog.attach("mirror@latest")
        with events.database.session() as connection:
            connection.execute('SELECT modak.upsert(\'events\', \'{"at": 1, "id": 1000, "n": 7, "v": "late"}\')')
            connection.execute("INSERT INTO model VALUES (1, 1000, 7, 'late')")
        left = "SELECT count(*) FROM modak.delta"
        await_true(lambda: events.database.rows(left) == [(0,)], 60, "the correction is folded and cleared")
        assert rows(catalog, "mirror") == below(events, WIDTH)
