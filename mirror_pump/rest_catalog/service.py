"""Puts the catalog together from the settings, and from the lake catalogs that `serve --catalog-uri` names."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import UsageError
from mirror_pump.lake.commit.catalog import CATALOG
from mirror_pump.ops.clients.access_file import AccessRules
from mirror_pump.rest_catalog.endpoints import CatalogEndpoints
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.rest_catalog.mirror_catalog import MirrorCatalog
from mirror_pump.rest_catalog.moments import Moments
from mirror_pump.rest_catalog.served_changes import ServedChanges
from mirror_pump.rest_catalog.table_documents import TableDocuments
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.served_tables import ServedCatalog
from mirror_pump.tables.catalogs.catalog_uris import BadCatalogUri, CatalogKind, CatalogUri
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog


class CatalogService:
    """The catalog of a mirror, of lake catalogs or of both, to be served by an HTTP port. A context manager, which
    closes its connections."""

    def __init__(self, settings: Settings, rules: AccessRules | None = None) -> None:
        """Answers that it is not ready until it begins. `settings` need not be complete. `rules`: those of the port."""
        documents = TableDocuments(settings.limits.served_bytes)
        self.endpoints = CatalogEndpoints(documents, vends=settings.vend_credentials, rules=rules)
        self._closed = ExitStack()

    def begin(self, settings: Settings) -> None:
        """Serve the mirror. `settings` are complete. Connects to nothing yet."""
        storage = lake_storage(settings)
        catalog = ServedCatalog(settings.require_dsn(), settings.slot)
        self._closed.callback(catalog.close)
        moments = Moments(catalog, storage, settings.lease_timeout, settings.limits.served_moments)
        changes = ServedChanges(catalog, storage, settings.lease_timeout, settings.limits.served_moments)
        self.endpoints.sources = [*self.endpoints.sources, MirrorCatalog(catalog, moments, changes, storage)]

    def add(self, warehouse: str, catalog: StoredCatalog, *, read_write: bool) -> None:
        """Serve a lake catalog as well, as the warehouse of this name, and close it at the end. Raises UsageError if
        the name is taken."""
        self._closed.callback(catalog.close)
        if any(warehouse in source.warehouses for source in self.endpoints.sources):
            raise UsageError(f"there are two catalogs named {warehouse}", "give them names: --catalog-uri NAME=URI")
        source = LakeCatalogSource(warehouse, catalog, read_write=read_write)
        self.endpoints.sources = [*self.endpoints.sources, source]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.close()


_DEFAULT_NAME = "lake"
_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.*)", re.DOTALL)
_RESERVED = "mirror"


@dataclass(frozen=True)
class NamedCatalog:
    """A lake catalog to be served: `[NAME=]URI`."""

    warehouse: str
    """The name by which clients attach it."""
    uri: CatalogUri

    @classmethod
    def parse(cls, text: str) -> NamedCatalog:
        """Raises UsageError."""
        match = _NAMED.fullmatch(text)
        name, uri = (match[1], match[2]) if match else (_DEFAULT_NAME, text)
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
