"""The tables behind one prefix as a client with grants sees them.

Invariant: no answer depends on a table that the client may not read, but for a name that is taken: such a table is in
no list, and to load, change or drop it gives what a name without a table gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from mirror_pump.model import TableName
from mirror_pump.ops.clients.client import Client, Right
from mirror_pump.rest_catalog.catalog_source import (
    LEVELS,
    CatalogView,
    FoundTable,
    PreparedTable,
    SentChange,
    TableWriter,
)
from mirror_pump.rest_catalog.protocol import (
    NamespaceChange,
    ProtocolError,
    RenameTableRequest,
    forbidden,
    no_such_namespace,
    no_such_table,
)
from mirror_pump.tables.catalogs.table_directories import LOCATION


def table_name(namespace: str, name: str) -> TableName:
    """The name that patterns are compared with: levels of a namespace are joined by dots."""
    return TableName(namespace.replace(LEVELS, "."), name)


class RestrictedView:
    """A CatalogView, of what a client may read."""

    def __init__(self, view: CatalogView, client: Client) -> None:
        self._view = view
        self._client = client

    def namespaces(self) -> Sequence[str]:
        names = [name for name in self._view.namespaces() if self._reads_in(name)]
        levels = [name.split(LEVELS) for name in names]
        return sorted({LEVELS.join(parts[:count]) for parts in levels for count in range(1, len(parts) + 1)})

    def _reads_in(self, namespace: str) -> bool:
        """Whether the client may read every table of a namespace, or one that is there."""
        return self._client.may_in_all(Right.READ, table_name(namespace, "").schema) or bool(self.tables(namespace))

    def tables(self, namespace: str) -> Sequence[str]:
        if not self._client.may_in_part(Right.READ, table_name(namespace, "").schema):
            return []
        return [
            name for name in self._view.tables(namespace) if self._client.may(Right.READ, table_name(namespace, name))
        ]

    def properties(self, namespace: str) -> Mapping[str, str] | None:
        return self._view.properties(namespace)

    def find(self, namespace: str, name: str) -> FoundTable:
        if not self._client.may(Right.READ, table_name(namespace, name)):
            raise no_such_table(namespace, name)
        return self._view.find(namespace, name)

    def writer(self) -> TableWriter:
        return RestrictedWriter(self._view.writer(), self._client)


class RestrictedWriter:
    """A TableWriter, of what a client may write."""

    def __init__(self, writer: TableWriter, client: Client) -> None:
        self._writer = writer
        self._client = client

    def create_namespace(self, namespace: str, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        self._require_namespace(namespace, self._forbidden(namespace))
        self._require_no_location(properties)
        return self._writer.create_namespace(namespace, properties)

    def change_namespace(self, namespace: str, change: NamespaceChange) -> Sequence[str]:
        self._require_namespace(namespace, no_such_namespace(namespace))
        self._require_no_location(change.updates)
        return self._writer.change_namespace(namespace, change)

    def drop_namespace(self, namespace: str) -> None:
        self._require_namespace(namespace, no_such_namespace(namespace))
        self._writer.drop_namespace(namespace)

    def create(self, namespace: str, body: JsonValue) -> FoundTable | PreparedTable:
        name = body.get("name") if isinstance(body, dict) else None
        # Without a name the writer refuses the request.
        if isinstance(name, str) and not self._client.may(Right.WRITE, table_name(namespace, name)):
            raise self._forbidden(namespace, name)
        self._require_no_location(body if isinstance(body, dict) else {})
        return self._writer.create(namespace, body)

    def commit(self, changes: Sequence[SentChange]) -> Sequence[FoundTable]:
        for change in changes:
            self._require(change.namespace, change.name)
        by_name = not self._client.may_everywhere(Right.WRITE)
        return self._writer.commit([replace(change, by_name=by_name) for change in changes])

    def drop(self, namespace: str, name: str, *, purge: bool) -> None:
        self._require(namespace, name)
        self._writer.drop(namespace, name, purge=purge)

    def rename(self, request: RenameTableRequest) -> None:
        source, destination = (
            (LEVELS.join(name.namespace), name.name) for name in (request.source, request.destination)
        )
        self._require(*source)
        if not self._client.may(Right.WRITE, table_name(*destination)):
            raise self._forbidden(*destination)
        self._writer.rename(request)

    def register(self, namespace: str, body: JsonValue) -> FoundTable:
        if not self._client.may_everywhere(Right.WRITE):
            # The files may be those of any table that was dropped.
            raise forbidden(f"{self._client.name} may not register tables: only who may write all tables may")
        return self._writer.register(namespace, body)

    def _require_no_location(self, properties: Mapping[str, JsonValue]) -> None:
        """Raises ProtocolError for a location of a client that may not write all tables: the answer says whether a
        table is there."""
        if properties.get(LOCATION) and not self._client.may_everywhere(Right.WRITE):
            raise forbidden(f"{self._client.name} may not choose a location: only who may write all tables may")

    def _require(self, namespace: str, name: str) -> None:
        table = table_name(namespace, name)
        if self._client.may(Right.WRITE, table):
            return
        if self._client.may(Right.READ, table):
            raise self._forbidden(namespace, name)
        raise no_such_table(namespace, name)

    def _require_namespace(self, namespace: str, refusal: ProtocolError) -> None:
        if not self._client.may_in_all(Right.WRITE, table_name(namespace, "").schema):
            raise refusal

    def _forbidden(self, *names: str) -> ProtocolError:
        name = ".".join(names).replace(LEVELS, ".")
        return forbidden(f"{self._client.name} may not write {name}: the access file grants no such right")
