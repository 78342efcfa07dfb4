"""The catalog's side of changes of a mirrored table's metadata: how the lake table is partitioned and sorted, and its
format version.

What the catalog says about partitions is true of a live table's files at every moment: a publish fails a table of which
it is not. So they change together with the mark that has the table copied again, in one transaction, and the first
commit of the copy, which removes all files, gives the lake table its new partition spec. No reader
relies on the order of rows, which changes at once, in the catalog and in the lake's metadata.
"""

from __future__ import annotations

from psycopg.types.json import Jsonb

from mirror_pump.model import LakePartitioning, MirroredTable, PartitionedColumn, TableId
from mirror_pump.source.catalog.tables import partition_scheme
from mirror_pump.source.connect import PgConnection
from sql import queries

_SQL = queries("layout")


def store_layout(connection: PgConnection, table: MirroredTable, partitioning: LakePartitioning | None) -> None:
    """Records a table's layout. The caller's transaction has the lock of the slot's row, and marks the table if its
    partitions change. The next copy then keeps no file."""
    parameters = {"table_id": table.table_id, "partition_scheme": Jsonb(partition_scheme(partitioning))}
    connection.execute(_SQL["store"], parameters)
    if _fields(table.partitioning) != _fields(partitioning):
        connection.execute(_SQL["copies_all"], {"table_id": table.table_id})


def _fields(partitioning: LakePartitioning | None) -> tuple[PartitionedColumn, ...]:
    return () if partitioning is None else partitioning.fields


def is_copied_again(connection: PgConnection, table_id: TableId) -> bool:
    """Whether a copy builds on metadata that readers do not see."""
    row = connection.execute(_SQL["copied_again"], {"table_id": table_id}).fetchone()
    return row is not None and bool(row[0])


def move_head(connection: PgConnection, table_id: TableId, old: str, new: str, format_version: int) -> None:
    """Records that the lake table's state at `old` is that at `new`, if the mirror builds on `old`. In the transaction
    that moves the pointer."""
    connection.execute(_SQL["head"], {"table_id": table_id, "old": old, "new": new, "format_version": format_version})
