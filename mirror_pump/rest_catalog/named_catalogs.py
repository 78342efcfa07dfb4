"""The lake catalogs that `serve --catalog-uri` names: `[NAME=]URI`, NAME being the warehouse that clients attach."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mirror_pump.config import Settings
from mirror_pump.errors import UsageError
from mirror_pump.lake.catalogs.catalog_uris import BadCatalogUri, CatalogKind, CatalogUri
from mirror_pump.lake.catalogs.lake_catalog import StoredCatalog
from mirror_pump.lake.commit.catalog import CATALOG

_DEFAULT_NAME = "lake"
_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.*)", re.DOTALL)
_RESERVED = "mirror"


@dataclass(frozen=True)
class NamedCatalog:
    """A catalog to be served."""

    warehouse: str
    """The name by which clients attach it."""
    uri: CatalogUri

    @classmethod
    def parse(cls, text: str) -> NamedCatalog:
        """Raises UsageError."""
        found = _NAMED.fullmatch(text)
        name, uri = (found[1], found[2]) if found else (_DEFAULT_NAME, text)
        if name == _RESERVED:
            raise UsageError(f"the warehouse `{_RESERVED}` is the mirror's", "give the catalog another name")
        return cls(name, CatalogUri.parse(uri))

    def open(self, settings: Settings, stored: Callable[[Settings], Settings], *, read_write: bool) -> StoredCatalog:
        """As CatalogUri.open(). Raises UsageError also for what is not served like that."""
        if read_write and self.uri.kind is CatalogKind.POSTGRES and self.uri.name == CATALOG:
            raise UsageError(
                "the mirror's own catalog is not served for writing, since its tables are the pump's",
                "give another one's name: postgres:?name=NAME",
            )
        if not read_write and self.uri.kind is CatalogKind.MEMORY:
            raise BadCatalogUri("memory: has no tables before clients create them", "serve it with --read-write")
        return self.uri.open(settings, stored, create=read_write)
