"""Objects that lie in wait for SQL that names things without their schema: functions, operators, types, tables, casts.

What is planted follows from the program's own texts: every word of its SQL that names a function, a type or a relation
of PostgreSQL, and every operator, gets a twin in each schema of the path, with the same parameters. So do common types
that PostgreSQL itself has no function or operator for, as an exact match is found wherever it is. A twin that is called
writes a line to the server's log, which survives a rollback and works in a read-only transaction, and returns NULL. It
notes sessions of the given roles only: tests have theirs.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Sequence
from pathlib import Path

from psycopg import sql

from mirror_pump.testing.database import Database

_ROOT = Path(__file__).parents[2]
_MARK = "hostile call of"

_SET_UP, _PLANT = (Path(__file__).with_name(name).read_text() for name in ("hostile_set_up.sql", "hostile_names.sql"))


@functools.cache
def words() -> list[str]:
    """All words of the program's SQL, in lower case: of the files of sql/, and of texts in the Python code."""
    texts = [file.read_text() for file in sorted((_ROOT / "sql").rglob("*.sql"))]
    for package in ("mirror_pump", "decoders"):
        for file in sorted((_ROOT / package).rglob("*.py")):
            constants = (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
            texts += [value for value in constants if isinstance(value, str)]
    # Drivers and engines name these.
    more = {"iceberg_tables", "iceberg_namespace_properties", "version", "current_database", "current_schema"}
    return sorted(more | {word for text in texts for word in re.findall(r"[a-z_][a-z0-9_]*", text.lower())})


class HostileNames:
    """What lies in wait in a database, in the schemas of a path."""

    def __init__(self, database: Database, owner: str, schemas: Sequence[str]) -> None:
        """`owner` is the role that plants, and that asks for a superuser's rights with each call."""
        self._database = database
        self._owner = owner
        self._log_begins = database.server.log.stat().st_size
        as_owner = sql.SQL("SET ROLE {}").format(sql.Identifier(owner))
        with database.connect() as connection:
            # Sessions of the tests find nothing of it.
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET search_path = pg_catalog").format(sql.Identifier(database.name))
            )
            connection.execute("SET search_path = pg_catalog")
            connection.execute(_SET_UP.encode())
            connection.execute(sql.SQL("ALTER SCHEMA trap OWNER TO {}").format(sql.Identifier(owner)))
            connection.execute(sql.SQL("ALTER FUNCTION trap.called(text) OWNER TO {}").format(sql.Identifier(owner)))
            names = "{" + ",".join(words()) + "}"
            for schema in schemas:
                connection.execute(
                    sql.SQL("CREATE SCHEMA IF NOT EXISTS {0}; GRANT USAGE ON SCHEMA {0} TO PUBLIC").format(
                        sql.Identifier(schema)
                    )
                )
                connection.execute(
                    sql.SQL("GRANT CREATE, USAGE ON SCHEMA {} TO {}").format(
                        sql.Identifier(schema), sql.Identifier(owner)
                    )
                )
                connection.execute(as_owner)
                connection.execute(_PLANT.replace("{words}", names).replace("{schema}", schema).encode())
                connection.execute("RESET ROLE")

    def await_sessions_of(self, *roles: str) -> None:
        """Lies in wait for sessions of these roles."""
        with self._database.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO trap.victims VALUES (%s) ON CONFLICT DO NOTHING", [(role,) for role in roles]
            )

    def counts(self) -> dict[str, int]:
        """How many functions, operators, relations and types lie in wait."""
        with self._database.connect() as connection:
            return dict(
                connection.execute(
                    "SELECT 'functions', count(*) FROM pg_proc WHERE proowner = %(o)s::regrole"
                    " UNION ALL SELECT 'operators', count(*) FROM pg_operator WHERE oprowner = %(o)s::regrole"
                    " UNION ALL SELECT 'relations', count(*) FROM pg_class WHERE relowner = %(o)s::regrole"
                    " UNION ALL SELECT 'types', count(*) FROM pg_type WHERE typowner = %(o)s::regrole AND typtype = 'd'"
                    " UNION ALL SELECT 'casts', count(*) FROM pg_cast WHERE oid >= 16384",
                    {"o": f'"{self._owner}"'},
                ).fetchall()
            )

    def calls(self) -> list[str]:
        """The different calls since the beginning, as the server has logged them."""
        with self._database.server.log.open("rb") as log:
            log.seek(self._log_begins)
            text = log.read().decode(errors="replace")
        return sorted(set(re.findall(rf"LOG:  {_MARK} (.*)", text)))

    def forget(self) -> None:
        """Forgets the calls so far, and what they have given the owner."""
        self._log_begins = self._database.server.log.stat().st_size
        with self._database.connect() as connection:
            connection.execute(sql.SQL("ALTER ROLE {} NOSUPERUSER").format(sql.Identifier(self._owner)))

    def is_superuser(self) -> bool:
        """Whether the owner has become a superuser."""
        with self._database.connect() as connection:
            row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (self._owner,)).fetchone()
        return row == (True,)
