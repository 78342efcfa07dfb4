"""Clients of the HTTP port, and the rights that grants give them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mirror_pump.model import TableName
from mirror_pump.source.relations.table_patterns import TablePattern

_SCOPE_KEY = "mirror-pump.client"
EVERY_CLIENT = "*"
"""In a grant: every client with a token of the issuer."""
ROLE = "role:"
"""Before the name of a role, in a grant."""


class Right(StrEnum):
    """What a grant allows with a table."""

    READ = "read"
    """To see it in the catalog, and to load its metadata, with credentials for its files if these are given out."""
    LOAD = "load"
    """To load rows into it by HTTP."""
    WRITE = "write"
    """To create, change and drop it in a catalog that is served for writing; and to read it."""


@dataclass(frozen=True)
class Grant:
    """Rights of clients on tables."""

    clients: frozenset[str]
    """Names, roles (`role:NAME`), or EVERY_CLIENT."""
    tables: tuple[TablePattern, ...]
    rights: frozenset[Right]

    def gives(self, right: Right) -> bool:
        """Whether the right is among its own."""
        return right in self.rights or (right is Right.READ and Right.WRITE in self.rights)


@dataclass(frozen=True)
class Client:
    """Who sent a request."""

    name: str | None = None
    """None: it did not have to say who it is."""
    roles: frozenset[str] = frozenset()
    grants: tuple[Grant, ...] | None = None
    """Those that concern it. None: it may do whatever the port does."""

    def with_grants(self, grants: Collection[Grant]) -> Client:
        """The client with those grants that name it, a role of it, or every client."""
        names = {EVERY_CLIENT, *(ROLE + role for role in self.roles)}
        if self.name is not None and not self.name.startswith(ROLE):
            names.add(self.name)
        return replace(self, grants=tuple(grant for grant in grants if not names.isdisjoint(grant.clients)))

    def may(self, right: Right, table: TableName) -> bool:
        """Whether it has the right on a table."""
        return self.grants is None or any(pattern.matches(table) for pattern in self._patterns(right))

    def may_at_all(self, right: Right) -> bool:
        """Whether it has the right on a table that could be."""
        return self.grants is None or any(True for _ in self._patterns(right))

    def may_in_part(self, right: Right, schema: str) -> bool:
        """Whether it has the right on a table that a schema could have."""
        return self.grants is None or any(pattern.matches_schema(schema) for pattern in self._patterns(right))

    def may_in_all(self, right: Right, schema: str) -> bool:
        """Whether it has the right on every table that a schema could have."""
        return self.grants is None or any(
            pattern.has_any_name and pattern.matches_schema(schema) for pattern in self._patterns(right)
        )

    def may_everywhere(self, right: Right) -> bool:
        """Whether it has the right on every table that could be."""
        return self.grants is None or any(pattern.matches_all for pattern in self._patterns(right))

    def _patterns(self, right: Right) -> Iterator[TablePattern]:
        for grant in self.grants or ():
            if grant.gives(right):
                yield from grant.tables


ANY_CLIENT = Client()
"""One that may do whatever the port does."""


def keep_client(scope: Any, client: Client) -> None:
    """Notes in an ASGI scope who sent the request."""
    scope[_SCOPE_KEY] = client


def client_of(scope: Mapping[str, Any]) -> Client:
    """Who sent the request of an ASGI scope."""
    client: Client = scope[_SCOPE_KEY]
    return client
