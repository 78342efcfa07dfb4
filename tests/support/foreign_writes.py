"""What other engines, or people, do to lake tables of a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import LiteralString

import psycopg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.database.search_path import PINNED_PATH
from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.lake.commit.catalog import CATALOG, swap_pointer
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, PointerChange, TableMoved, staged_metadata
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror


class ForeignCatalog(PostgresCatalog):
    """The mirror's catalog as the library of tables without a server has it, which commits to mirrored tables as well:
    another engine, of any format version."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, "file:///nowhere")
        self._server = dsn

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        with (
            staged_metadata(changes, self.storage) as pointers,
            psycopg.connect(
                self._server, options=f"-c search_path={PINNED_PATH}", cursor_factory=CatalogCursor
            ) as connection,
        ):
            for change, pointer in zip(changes, pointers, strict=True):
                assert change.base is not None
                assert pointer is not None
                old, new = change.base.metadata_location, pointer.metadata_location
                if not swap_pointer(connection, change.table.namespace, change.table.name, old, new, CATALOG):
                    raise TableMoved([change.table])
        return pointers


@contextmanager
def owner_table(mirror: Mirror, name: str = "a", namespace: str = "public") -> Iterator[Table]:
    """The lake table in pyiceberg, by the SQL catalog, as the role that owns the mirror."""
    url = libpq_access(mirror.database.dsn).sqlalchemy_url()
    properties = {"uri": url, "warehouse": mirror.settings.require_warehouse(), "init_catalog_tables": "false"}
    catalog = SqlCatalog("lake", **properties, dsn=mirror.database.dsn)
    try:
        yield catalog.load_table((namespace, name))
    finally:
        catalog.engine.dispose()


def without_triggers(database: Database, *statements: LiteralString) -> None:
    """Runs statements on the catalog that its triggers refuse, as a superuser can, or a restore."""
    database.execute("SET session_replication_role = replica", *statements, "RESET session_replication_role")
