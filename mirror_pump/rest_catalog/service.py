"""Puts the catalog together from the settings."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from mirror_pump.config import Settings
from mirror_pump.errors import UsageError
from mirror_pump.lake.catalogs.lake_catalog import StoredCatalog
from mirror_pump.pipeline.lake_storage import lake_storage
from mirror_pump.rest_catalog.endpoints import CatalogEndpoints
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.rest_catalog.mirror_catalog import MirrorCatalog
from mirror_pump.rest_catalog.moments import Moments
from mirror_pump.rest_catalog.table_documents import TableDocuments
from mirror_pump.source.catalog.served_tables import ServedCatalog


class CatalogService:
    """The catalog of a mirror, of lake catalogs or of both, to be served by an HTTP port. A context manager, which
    closes its connections."""

    def __init__(self, settings: Settings) -> None:
        """Answers that it is not ready until it begins. `settings` need not be complete."""
        documents = TableDocuments(settings.limits.served_bytes)
        self.endpoints = CatalogEndpoints(documents, vends=settings.vend_credentials)
        self._closed = ExitStack()

    def begin(self, settings: Settings) -> None:
        """Serve the mirror. `settings` are complete. Connects to nothing yet."""
        storage = lake_storage(settings)
        catalog = ServedCatalog(settings.require_dsn(), settings.slot)
        self._closed.callback(catalog.close)
        moments = Moments(catalog, storage, settings.lease_timeout, settings.limits.served_moments)
        self.endpoints.sources = [*self.endpoints.sources, MirrorCatalog(catalog, moments, storage)]

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.close()
