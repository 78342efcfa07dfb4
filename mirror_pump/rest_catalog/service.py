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
        """Connects to nothing yet."""
        storage = lake_storage(settings)
        self._catalog = ServedCatalog(settings.require_dsn(), settings.slot)
        moments = Moments(self._catalog, storage, settings.lease, settings.limits.served_moments)
        mirror = MirrorCatalog(self._catalog, moments, storage)
        documents = TableDocuments(settings.limits.served_bytes)
        self.endpoints = CatalogEndpoints([mirror], documents, vends=settings.vend_credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._catalog.close()
