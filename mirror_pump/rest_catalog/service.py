"""Puts the catalog together from the settings."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from mirror_pump.config import Settings
from mirror_pump.pipeline.lake_storage import lake_storage
from mirror_pump.rest_catalog.endpoints import CatalogEndpoints
from mirror_pump.rest_catalog.mirror_catalog import MirrorCatalog
from mirror_pump.rest_catalog.moments import Moments
from mirror_pump.rest_catalog.table_documents import TableDocuments
from mirror_pump.source.catalog.served_tables import ServedCatalog


class CatalogService:
    """The catalog of one mirror, to be served by an HTTP port. A context manager, which closes its connection."""

    def __init__(self, settings: Settings) -> None:
        """Answers that it is not ready until it begins. `settings` need not be complete."""
        documents = TableDocuments(settings.limits.served_bytes)
        self.endpoints = CatalogEndpoints(documents, vends=settings.vend_credentials)
        self._catalog: ServedCatalog | None = None

    def begin(self, settings: Settings) -> None:
        """Serve the mirror. `settings` are complete. Connects to nothing yet."""
        storage = lake_storage(settings)
        self._catalog = ServedCatalog(settings.require_dsn(), settings.slot)
        moments = Moments(self._catalog, storage, settings.lease_timeout, settings.limits.served_moments)
        self.endpoints.sources = [MirrorCatalog(self._catalog, moments, storage)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._catalog is not None:
            self._catalog.close()
