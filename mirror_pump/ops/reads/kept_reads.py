"""Reads tables as of a moment that is kept, from the metadata files that its row names.

Neither the registration nor the history of a table matters: it has the columns of that time, as every engine sees them
by the REST catalog, also if it was copied again or unregistered since. Of a table with heap retention it is `main`. No
pin is needed: a moment that is dropped meanwhile stays for the time of a lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from mirror_pump.errors import UsageError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId, format_lsn
from mirror_pump.ops.duckdb_connection import lake_relation
from mirror_pump.ops.reads.views import create_schema
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.kept_moments import KeptMoment, read_moments
from mirror_pump.source.connect import connect

if TYPE_CHECKING:
    import duckdb


def named_moments(settings: Settings, names: Collection[str]) -> Mapping[str, KeptMoment]:
    """The moments of these names. Raises UsageError if one is not kept."""
    if not names:
        return {}
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-sql") as connection:
        moments = {moment.name: moment for moment in read_moments(connection, settings.slot) if moment.name in names}
    for name in names:
        if name not in moments:
            raise UsageError(
                f"{name!r} is neither a WAL position nor a time, and no moment of that name is kept",
                "give it as 16/B374D848 or 2026-11-20T16:00:00Z; `mirror-pump moment list` shows the moments",
            )
    return moments


def create_kept_views(
    connection: duckdb.DuckDBPyConnection,
    moment: KeptMoment,
    names: Mapping[TableId, Collection[str]],
    storage: StorageOptions,
) -> Iterator[str]:
    """Create views of tables of the moment, under their SQL names by table. Yield what was read, in words."""
    for table in moment.tables:
        source = lake_relation(connection, table.main_location, storage) if table.table_id in names else ""
        for name in names.get(table.table_id, ()):
            create_schema(connection, name)
            connection.execute(f"CREATE VIEW {name} AS FROM {source}")
    tables = [str(table.table) for table in moment.tables if table.table_id in names]
    if tables:
        yield f"{', '.join(tables)}: read as of the moment {moment.name}, frontier {format_lsn(moment.frontier)}"
