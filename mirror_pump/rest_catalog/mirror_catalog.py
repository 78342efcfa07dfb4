"""What a client of the catalog finds in the mirror: namespaces, tables, and the metadata file of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mirror_pump.errors import UsageError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import format_lsn
from mirror_pump.rest_catalog.attachment_names import Attachment, View, parse_prefix, parse_warehouse
from mirror_pump.rest_catalog.moments import Moments, Name
from mirror_pump.rest_catalog.protocol import bad_request, no_such_table
from mirror_pump.source.catalog.served_tables import ServedCatalog, ServedTable

FRONTIER = "mirror-pump.frontier"
"""Key of a configuration: the frontier of a moment, as PostgreSQL writes positions."""
UNREADABLE = "mirror-pump.unreadable"
"""Key of a configuration: the mirrored tables that are not part of a moment, or the first of them."""
_NAMED = 20


@dataclass(frozen=True)
class FoundTable:
    """A table as a client is to see it."""

    location: str
    """Its metadata file."""
    config: dict[str, str]
    """What the answer says besides."""
    storage: StorageOptions
    """How its files are reached."""


@dataclass(frozen=True)
class AttachedWarehouse:
    """The answer to a client that attaches a warehouse."""

    prefix: str
    defaults: dict[str, str]


class CatalogView(Protocol):
    """The tables behind one prefix."""

    def names(self) -> Sequence[Name]:
        """Namespace and name of each table, in order."""
        ...

    def find(self, namespace: str, name: str) -> FoundTable:
        """The table of that name. Raises ProtocolError without one."""
        ...


class CatalogSource(Protocol):
    """What warehouses are served from. Threads share it. Everything raises ProtocolError, SourceError and LakeError."""

    def attach(self, warehouse: str) -> AttachedWarehouse | None:
        """Begins a client's reading of a warehouse; None if it is not of this source."""
        ...

    def view(self, prefix: str) -> CatalogView | None:
        """What is behind a prefix; None if it is not of this source."""
        ...


class MirrorCatalog:
    """The mirror as a CatalogSource."""

    def __init__(self, catalog: ServedCatalog, moments: Moments, storage: StorageOptions) -> None:
        self._catalog = catalog
        self._moments = moments
        self._storage = storage

    def attach(self, warehouse: str) -> AttachedWarehouse | None:
        try:
            asked = parse_warehouse(warehouse)
        except UsageError as error:
            raise bad_request(f"{error}: {error.remedy}") from None
        if asked is None:
            return None
        view, when = asked
        if when is None:
            return AttachedWarehouse(Attachment(view, None).prefix, {})
        moment = self._moments.attach(view, when)
        assert moment.attachment.frontier is not None
        defaults = {FRONTIER: format_lsn(moment.attachment.frontier)}
        if moment.missing:
            defaults[UNREADABLE] = ", ".join(sorted(".".join(name) for name in moment.missing)[:_NAMED])
        return AttachedWarehouse(moment.attachment.prefix, defaults)

    def view(self, prefix: str) -> CatalogView | None:
        attachment = parse_prefix(prefix)
        if attachment is None:
            return None
        if attachment.frontier is None:
            return PresentView(self._catalog, attachment.view, self._storage)
        return MomentView(self._moments, attachment, self._storage)


class PresentView:
    """The newest state of each table."""

    def __init__(self, catalog: ServedCatalog, view: View, storage: StorageOptions) -> None:
        self._catalog = catalog
        self._view = view
        self._storage = storage

    def names(self) -> Sequence[Name]:
        return sorted((table.namespace, table.name) for table in self._catalog.tables() if table.readable)

    def find(self, namespace: str, name: str) -> FoundTable:
        table = self._catalog.table(namespace, name)
        if table is None:
            raise no_such_table(namespace, name)
        if not table.readable:
            raise bad_request(
                f"{namespace}.{name} is still being copied into the lake; `mirror-pump status` shows its progress"
            )
        return FoundTable(self._location(table), {}, self._storage)

    def _location(self, table: ServedTable) -> str:
        shows_main = self._view is View.MAIN and table.has_cutline
        return table.main_location if shows_main else table.published_location


class MomentView:
    """All tables at one frontier."""

    def __init__(self, moments: Moments, attachment: Attachment, storage: StorageOptions) -> None:
        self._moments = moments
        self._attachment = attachment
        self._storage = storage

    def names(self) -> Sequence[Name]:
        return sorted(self._moments.find(self._attachment).tables)

    def find(self, namespace: str, name: str) -> FoundTable:
        moment = self._moments.find(self._attachment)
        if (namespace, name) not in moment.tables and (namespace, name) not in moment.missing:
            raise no_such_table(namespace, name)
        assert self._attachment.frontier is not None
        config = {FRONTIER: format_lsn(self._attachment.frontier)}
        return FoundTable(self._moments.location(moment, (namespace, name)), config, self._storage)
