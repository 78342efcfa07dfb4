"""`mirror-pump sql --changes`: tables that a statement names have the changes of an interval as rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from mirror_pump.database.quoting import literal
from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.errors import UsageError
from mirror_pump.model import TableId
from mirror_pump.ops.changes.pinned_feeds import BEGIN_FEED, PinnedChanges
from mirror_pump.ops.changes.points import ChangePoints
from mirror_pump.ops.duckdb_connection import open_duckdb, reach_storage
from mirror_pump.ops.reads.query import Query, explained_failures, mirrored_names, read_tables, used_tables
from mirror_pump.ops.reads.query_results import Opens
from mirror_pump.ops.reads.table_reads import Warn
from mirror_pump.ops.reads.views import create_schema
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    import duckdb


def changes_between(points: ChangePoints) -> Opens:
    """Opens DuckDB with the changes between two points, for one statement. As `open_query` otherwise."""

    @contextmanager
    def opened(settings: Settings, query: Query, warn: Warn) -> Iterator[duckdb.DuckDBPyConnection]:
        if query.past:
            raise UsageError("a table has no changes AT a moment", "leave out AT, or --changes")
        with open_duckdb() as connection:
            used = used_tables(connection, settings, query.statement)
            if not used:
                yield connection
                return
            storage = lake_storage(settings)
            with PinnedChanges(
                settings.require_dsn(), settings.slot, points, storage, time.time_ns() // 1_000_000
            ) as changes:
                _create_views(connection, settings, used, changes, warn)
                ids = [TableId(feed.feed_id) for feed in changes.feeds.values()]
                with explained_failures(settings, ids):
                    yield connection
                changes.check()

    return opened


def _create_views(
    connection: duckdb.DuckDBPyConnection,
    settings: Settings,
    used: frozenset[tuple[str, ...]],
    changes: PinnedChanges,
    warn: Warn,
) -> None:
    mirrored = mirrored_names(settings, used)
    names = {TableId(feed.feed_id): name for name, feed in changes.feeds.items()}
    without_feed = {table: name for table, name in mirrored.tables.items() if table not in names}
    for table in read_tables(used, replace(mirrored, tables=without_feed)):
        raise UsageError(
            f"{without_feed[table]} has no change feed",
            BEGIN_FEED.replace("TABLE", without_feed[table].shell),
        )
    read = read_tables(used, replace(mirrored, tables=names))
    if not read:
        return
    reach_storage(connection, reachable_warehouses(lake_storage(settings)))
    for table, views in read.items():
        location = changes.locate(changes.feeds[names[table]], changes.interval)
        for view in views:
            create_schema(connection, view)
            rows = f"FROM iceberg_scan({literal(location)}) WHERE {changes.interval.condition}"
            connection.execute(f"CREATE VIEW {view} AS {rows}")
    warn(f"{', '.join(sorted(str(names[table]) for table in read))}: changes of {changes.interval}")
