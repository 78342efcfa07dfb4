"""What a client of the catalog finds in the mirror: namespaces, tables, and the metadata file of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mirror_pump.errors import UsageError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableName, format_lsn
from mirror_pump.ops.changes.interval_tables import SINCE_PROPERTY
from mirror_pump.ops.changes.points import ChangePoints
from mirror_pump.ops.reads.state_choice import LeftOutTable, Reason
from mirror_pump.rest_catalog.attachment_names import (
    Attachment,
    ChangesAttachment,
    View,
    parse_prefix,
    parse_warehouse,
)
from mirror_pump.rest_catalog.catalog_source import AttachedWarehouse, CatalogView, FoundTable, TableWriter
from mirror_pump.rest_catalog.moments import Moments
from mirror_pump.rest_catalog.protocol import bad_request, forbidden, no_such_table
from mirror_pump.rest_catalog.served_changes import ServedChanges
from mirror_pump.source.catalog.served_tables import ServedCatalog

FRONTIER = "mirror-pump.frontier"
"""Key of a configuration: the frontier of a moment, as PostgreSQL writes positions."""
SINCE = SINCE_PROPERTY
"""Key of a configuration: the frontier after which the changes of an interval begin."""


class MirrorCatalog:
    """The mirror as a CatalogSource."""

    warehouses = ("mirror", "mirror@latest")

    def __init__(
        self, catalog: ServedCatalog, moments: Moments, changes: ServedChanges, storage: StorageOptions
    ) -> None:
        self._catalog = catalog
        self._moments = moments
        self._changes = changes
        self._storage = storage

    def attach(self, warehouse: str) -> AttachedWarehouse | None:
        try:
            parsed = parse_warehouse(warehouse)
        except UsageError as error:
            raise bad_request(f"{error}: {error.remedy}") from None
        if parsed is None:
            return None
        view, when = parsed
        if when is None:
            return AttachedWarehouse(Attachment(view, None).prefix, {})
        if isinstance(when, ChangePoints):
            return self._attached_changes(when)
        moment = self._moments.attach(view, when)
        assert moment.attachment.frontier is not None
        defaults = {FRONTIER: format_lsn(moment.attachment.frontier)}
        return AttachedWarehouse(moment.attachment.prefix, defaults, tuple(sorted(moment.missing)))

    def _attached_changes(self, points: ChangePoints) -> AttachedWarehouse:
        attachment, missing = self._changes.attach(points)
        ends = {SINCE: format_lsn(attachment.interval.since), FRONTIER: format_lsn(attachment.interval.until)}
        return AttachedWarehouse(attachment.prefix, ends, tuple(sorted(missing)))

    def view(self, prefix: str) -> CatalogView | None:
        attachment = parse_prefix(prefix)
        if attachment is None:
            return None
        if isinstance(attachment, ChangesAttachment):
            return ChangesView(self._changes, attachment, self._storage)
        if attachment.frontier is None:
            return PresentView(self._catalog, self._changes, attachment.view, self._storage)
        return MomentView(self._moments, attachment, self._storage)


class _MirrorView(ABC):
    """What all views of the mirror have in common."""

    @abstractmethod
    def names(self) -> Sequence[TableName]:
        """All tables, in order."""

    def namespaces(self) -> Sequence[str]:
        return sorted({name.schema for name in self.names()})

    def tables(self, namespace: str) -> Sequence[str]:
        return [name.name for name in self.names() if name.schema == namespace]

    def properties(self, _namespace: str) -> None:
        return None

    def writer(self) -> TableWriter:
        raise forbidden(
            "the mirror is read-only: its tables are copies of PostgreSQL's, so write to these; nothing else can be"
            " created here"
        )


class PresentView(_MirrorView):
    """The newest state of each table, and of each change feed."""

    def __init__(self, catalog: ServedCatalog, changes: ServedChanges, view: View, storage: StorageOptions) -> None:
        self._catalog = catalog
        self._changes = changes
        self._view = view
        self._storage = storage

    def names(self) -> Sequence[TableName]:
        tables = [state.lake_name for state in self._catalog.tables() if state.is_readable]
        return sorted([*tables, *self._changes.whole_feeds()])

    def find(self, namespace: str, name: str) -> FoundTable:
        table = TableName(namespace, name)
        state = self._catalog.table(table)
        if state is None:
            location = self._changes.whole_feeds().get(table)
            if location is None:
                raise no_such_table(namespace, name)
            return FoundTable(location, {}, self._storage)
        if not state.is_readable:
            raise bad_request(str(LeftOutTable(table, Reason.COPYING)))
        shows_main = self._view is View.MAIN and state.has_cutline
        return FoundTable(state.pointer if shows_main else state.published_location, {}, self._storage)


class MomentView(_MirrorView):
    """All tables at one frontier."""

    def __init__(self, moments: Moments, attachment: Attachment, storage: StorageOptions) -> None:
        self._moments = moments
        self._attachment = attachment
        self._storage = storage

    def names(self) -> Sequence[TableName]:
        return sorted(self._moments.find(self._attachment).tables)

    def find(self, namespace: str, name: str) -> FoundTable:
        moment = self._moments.find(self._attachment)
        table = TableName(namespace, name)
        if table not in moment.tables and table not in moment.missing:
            raise no_such_table(namespace, name)
        assert self._attachment.frontier is not None
        config = {FRONTIER: format_lsn(self._attachment.frontier)}
        return FoundTable(self._moments.location(moment, table), config, self._storage)


class ChangesView(_MirrorView):
    """The changes of an interval, of each table that has a change feed, and of the transactions."""

    def __init__(self, changes: ServedChanges, attachment: ChangesAttachment, storage: StorageOptions) -> None:
        self._changes = changes
        self._attachment = attachment
        self._storage = storage

    def names(self) -> Sequence[TableName]:
        return self._changes.names(self._attachment)

    def find(self, namespace: str, name: str) -> FoundTable:
        interval = self._attachment.interval
        config = {SINCE: format_lsn(interval.since), FRONTIER: format_lsn(interval.until)}
        location = self._changes.location(self._attachment, TableName(namespace, name))
        return FoundTable(location, config, self._storage)
