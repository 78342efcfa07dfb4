"""A catalog that counts conflicts."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, PointerChange, TableMoved
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog


class CountingCatalog(SqliteCatalog):
    """Counts the attempts that found the pointer moved."""

    conflicts = 0

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        try:
            return super().commit(changes)
        except TableMoved:
            self.conflicts += 1
            raise
