"""The roles of a mirror, none of which is a superuser, made as on a managed service."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import sql as scripts
from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version

SCRIPTS = Path(scripts.__file__).parent
_PASSWORD = "a role's password"
_NAMES = ("master", "admin", "pump", "reader", "app", "archive")


@dataclass(frozen=True)
class Roles:
    """Names of roles that may log in, beginning with what each is for.

    `master` creates the others and owns the database, as the first user of a managed service does. `app` and `archive`
    own tables.
    """

    database: Database
    master: str
    admin: str
    pump: str
    reader: str
    app: str
    archive: str

    @property
    def names(self) -> list[str]:
        """The names of all roles."""
        return [getattr(self, name) for name in _NAMES]

    def dsn(self, role: str) -> str:
        """A connection string that has the role's password."""
        return make_conninfo(self.database.dsn, user=role, password=_PASSWORD)

    def execute(self, role: str, *statements: str) -> None:
        """Runs statements as this role, each in its own transaction. `{admin}` and so on stand for the roles."""
        names = {name: sql.Identifier(getattr(self, name)) for name in _NAMES}
        with self.connect(role) as connection:
            for statement in statements:
                connection.execute(sql.SQL(statement).format(**names))

    def as_superuser(self, statement: str) -> None:
        """Runs a statement as the superuser of the tests, with roles' names as in `execute`."""
        names = {name: sql.Identifier(getattr(self, name)) for name in _NAMES}
        with self.database.connect() as connection:
            connection.execute(sql.SQL(statement).format(**names))

    def connect(self, role: str) -> psycopg.Connection[Any]:
        """A connection of this role, in autocommit mode, which the caller closes."""
        return psycopg.connect(self.dsn(role), autocommit=True, cursor_factory=CatalogCursor)

    def psql(self, role: str, script: str, *variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a script of the directory `sql`, with the variables `admin`, `pump` and `reader`."""
        named = [f"{name}={getattr(self, name)}" for name in ("admin", "pump", "reader")]
        return subprocess.run(
            [
                str(self.database.server.binary("psql")),
                "--no-psqlrc",
                *(word for variable in (*named, *variables) for word in ("-v", variable)),
                "-f",
                str(SCRIPTS / script),
                self.dsn(role),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def grant(self, role: str) -> None:
        """Runs roles.sql as this role."""
        # Before PostgreSQL 16 only a superuser gives the attribute REPLICATION. Managed services have servers that let
        # their master user do it, and nothing else.
        lacks_right = role == self.master and major_version() < 16
        name = sql.Identifier(role)
        with self.database.connect() as connection:
            if lacks_right:
                connection.execute(sql.SQL("ALTER ROLE {} SUPERUSER").format(name))
            try:
                done = self.psql(role, "roles.sql")
            finally:
                if lacks_right:
                    connection.execute(sql.SQL("ALTER ROLE {} NOSUPERUSER").format(name))
        assert done.returncode == 0, done.stderr


@contextmanager
def roles_of(database: Database, *, service: str | None = None) -> Iterator[Roles]:
    """Roles that are gone after the block, as are their rights. Their names need quotes.

    `service`: the role that a managed service gives to its master user. Of the rights that such a role carries, a
    membership in it brings only those that PostgreSQL itself knows, except that rds_replication does not stand for
    REPLICATION here.
    """
    names = {name: f"{name}-{os.urandom(4).hex()}" for name in _NAMES}
    roles = Roles(database, **names)
    master = sql.Identifier(roles.master)
    with database.connect() as connection:
        created = []

        def run(text: str, **parts: sql.Composable) -> None:
            connection.execute(sql.SQL(text).format(master=master, **parts))

        run("CREATE ROLE {master} LOGIN CREATEROLE CREATEDB REPLICATION PASSWORD {p}", p=sql.Literal(_PASSWORD))
        try:
            run("GRANT pg_read_all_stats TO {master} WITH ADMIN OPTION")
            run("ALTER DATABASE {d} OWNER TO {master}", d=sql.Identifier(database.name))
            if service is not None:
                run("CREATE ROLE {s}", s=sql.Identifier(service))
                created.append(service)
                run("GRANT {s} TO {master} WITH ADMIN OPTION", s=sql.Identifier(service))
            for name in _NAMES[1:]:
                text = "CREATE ROLE {} LOGIN PASSWORD {}"
                with roles.connect(roles.master) as creating:
                    creating.execute(sql.SQL(text).format(sql.Identifier(names[name]), sql.Literal(_PASSWORD)))
                created.append(names[name])
            yield roles
        finally:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = ANY (%s)",
                (list(names.values()),),
            )
            for name in reversed(created):
                if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (name,)).fetchone() is not None:
                    run("DROP OWNED BY {r} CASCADE; DROP ROLE {r}", r=sql.Identifier(name))
            run("ALTER DATABASE {d} OWNER TO postgres", d=sql.Identifier(database.name))
            run("DROP OWNED BY {master} CASCADE; DROP ROLE {master}")
