"""Cursors that send our statements with the names of one mirror's catalog (sql/mirror_names.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

import psycopg
from psycopg.abc import Params, Query
from psycopg.rows import Row
from psycopg.sql import Composable

from sql.mirror_names import SUFFIX, of_mirror


class CatalogCursor(psycopg.Cursor[Row]):
    """Of the mirror without a name. Statements that are not marked go as they are."""

    mirror: str | None = None

    def execute(
        self, query: Any, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        return super().execute(self._named(query), params, prepare=prepare, binary=binary)

    def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        super().executemany(self._named(query), params_seq, returning=returning)

    @contextmanager
    def copy(self, statement: Query, params: Params | None = None, *, writer: Any = None) -> Iterator[psycopg.Copy]:
        with super().copy(self._named(statement), params, writer=writer) as copy:
            yield copy

    def _named(self, query: Query) -> Any:
        text = query.as_bytes(self.connection) if isinstance(query, Composable) else query
        if isinstance(text, bytes):
            return of_mirror(text.decode(), self.mirror).encode() if SUFFIX.encode() in text else text
        return of_mirror(text, self.mirror) if isinstance(text, str) else text


@cache
def cursor_for(mirror: str | None) -> type[CatalogCursor[Any]]:
    """The cursors of a mirror's connections."""
    return CatalogCursor if mirror is None else type("NamedCatalogCursor", (CatalogCursor,), {"mirror": mirror})


def mirror_on(connection: psycopg.Connection[Any]) -> str | None:
    """The name of the mirror that a connection is for; None: of the one without a name."""
    return getattr(connection.cursor_factory, "mirror", None)
