"""The ends of registrations and of change feeds: the catalog gives them up, and their files are a former location."""

from __future__ import annotations

from mirror_pump.model import MirroredTable, TableId, TableName
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.source.catalog.change_feeds import delete_feed
from mirror_pump.source.catalog.former_locations import EndedBy, record_former_location
from mirror_pump.source.catalog.lost_rows import delete_lost
from mirror_pump.source.catalog.tables import delete_table
from mirror_pump.source.connect import PgConnection
from sql import queries

_SHAPE_SQL = queries("shape")


def end_registration(
    lock: SlotLock, table: MirroredTable, ended_by: EndedBy, *, only_copy: bool, drop_lake: bool = False
) -> None:
    """Ends the registration of a table, and its change feed. `only_copy`: whether the lake has rows that the heap does
    not have. `drop_lake`: its lake table leaves the Iceberg catalog too."""
    record_former_location(lock.connection, table.table_id, ended_by, only_copy=only_copy)
    end_feed(lock, table.table_id)
    delete_table(lock.connection, table.table_id)
    if drop_lake:
        # An earlier publish may have renamed the lake table.
        lock.delete(TableName(table.name.schema, table.lake_table))


def end_lost_registration(connection: PgConnection, slot: str, table_id: TableId) -> None:
    """Ends what is left of a registration of which rows are lost, in a transaction of the caller. Its lake table
    stays."""
    connection.execute(_SHAPE_SQL["unwatch"], {"table_id": table_id})
    lock = SlotLock.take(connection, slot)
    end_feed(lock, table_id)
    delete_lost(connection, table_id)


def end_feed(lock: SlotLock, table_id: TableId) -> None:
    """Takes a table's change feed, if it has one, out of both catalogs."""
    feed_name = delete_feed(lock.connection, table_id)
    if feed_name is not None:
        lock.delete(feed_name)
