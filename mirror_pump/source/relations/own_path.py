"""Names that a user writes without a schema: resolved along the search_path of the role's own sessions.

Our connections have another search_path (mirror_pump/database/search_path.py), so that no statement of ours finds what
others have created. The role's own path is that of a session without ours: of the connection string, the role, the
database or the server. It applies to single expressions, which name everything with its schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mirror_pump.database.search_path import PINNED_PATH
from mirror_pump.database.startup_options import option_values
from mirror_pump.source.connect import PgConnection, source_errors
from sql import queries

_SQL = queries("own_path")
_QUALIFIED = re.compile(r"[a-z_][a-z0-9_]*[.][a-z_][a-z0-9_]*")
"""A name with its schema, neither of which needs quotes."""
_DEFAULT = '"$user", public'
"""PostgreSQL's own."""


def find_relation(connection: PgConnection, text: str) -> int | None:
    """The OID of the relation that `text` names, as PostgreSQL reads names; None if there is none. Raises psycopg.Error
    if it is no name."""
    if _QUALIFIED.fullmatch(text):
        # No path has a say, and most names are such: registering hundreds takes less time.
        row = connection.execute(_SQL["relation"], {"name": text}).fetchone()
        return None if row is None else row[0]
    oid: int | None = _along_own_path(connection, _SQL["relation"], {"name": text})
    return oid


def on_path(connection: PgConnection, names: Iterable[str]) -> dict[str, str]:
    """The schema in which the role's own sessions find each name first. Names that they do not find are left out."""
    with source_errors("looking along the role's search_path"):
        schemas = _along_own_path(connection, _SQL["path_schemas"], {})
        rows = connection.execute(_SQL["found"], {"path_schemas": schemas, "names": list(names)}).fetchall()
    return {str(name): str(schema) for name, schema in rows}


def _along_own_path(connection: PgConnection, query: str, parameters: Mapping[str, Any]) -> Any:
    """The value of a query. It runs under a path in which others may create objects, so all of its names have a schema,
    and it has no operators."""
    with connection.transaction():
        ((path_before,),) = connection.execute(_SQL["present"]).fetchall()
        connection.execute(_SQL["use"], {"path": _own_path(connection)})
        row = connection.execute(query, parameters).fetchone()
        connection.execute(_SQL["use"], {"path": path_before})
    assert row is not None
    return row[0]


def _own_path(connection: PgConnection) -> str:
    given = _given_path(connection)
    ((path, reads_files),) = connection.execute(_SQL["path"], {"given": given}).fetchall()
    if path is None and reads_files:
        path = next((value for (value,) in connection.execute(_SQL["path_of_server"])), None)
    return _DEFAULT if path is None else str(path)


def _given_path(connection: PgConnection) -> str | None:
    """The search_path among the connection string's own options, behind which `connect` puts ours."""
    paths = option_values(connection.info.get_parameters().get("options", ""), "search_path")
    if paths and paths[-1] == PINNED_PATH:
        paths.pop()
    return paths[-1] if paths else None
