"""What the role of a connection is to the mirror, and which rights it lacks for that (docs/roles.md, sql/roles)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from mirror_pump.source.server import ServerSettings
from sql import queries, role_script

_SQL = queries("roles")

_GRANT = re.compile(r'^GRANT ([\w, ]+) ON ([^;]+?) TO :"\w+";', re.MULTILINE)


class MirrorRole(StrEnum):
    """What a role is to the mirror. The names are those of sql/roles."""

    NOBODY_YET = "nobody yet"
    """The database has no mirror. Who runs `init` becomes the admin."""
    ADMIN = "admin"
    """The owner of schema modak, or a member of it. Superusers are that too."""
    PUMP = "pump"
    READER = "reader"
    STRANGER = "stranger"
    """It may not even use schema modak."""


@dataclass(frozen=True)
class RoleFacts:
    """The row of the query `facts`."""

    role: str
    superuser: bool
    admin: str | None
    """The owner of schema modak; None if the database has no mirror."""
    is_admin: bool
    uses: bool
    """Whether it may use schema modak."""
    reads_secret: bool
    streams: bool
    """Whether it has the right to stream changes."""
    sees_sessions: bool
    """Whether it sees what other roles' sessions do."""

    @property
    def part(self) -> MirrorRole:
        """Which of the mirror's roles it is. Only a pump reads the secret; one that may not does still stream."""
        if self.admin is None:
            return MirrorRole.NOBODY_YET
        if self.is_admin:
            return MirrorRole.ADMIN
        if self.reads_secret or (self.uses and self.streams):
            return MirrorRole.PUMP
        return MirrorRole.READER if self.uses else MirrorRole.STRANGER


@dataclass(frozen=True)
class RetainedTable:
    """The row of the query `retained`: a table whose partitions leave the heap, and the rights that this takes."""

    table_name: str
    owner: str
    owned: bool
    """Whether the connection's role has the rights of the owner."""
    schema_name: str
    creates: bool
    """Whether the owner may create partitions in the table's schema."""


def read_role(connection: PgConnection, server: ServerSettings) -> RoleFacts:
    """The role of a connection to `server`. Raises SourceError."""
    with source_errors("looking up the role of this connection"):
        facts = fetch_row(connection, RoleFacts, _SQL["facts"], {"streams": server.may_replicate})
    assert facts is not None
    return facts


def lacking(connection: PgConnection, part: MirrorRole) -> list[str]:
    """The privileges that sql/roles grants to a pump or a reader, and that the connection's role does not have.

    Each is such as `SELECT on modak.delta`. Raises SourceError.
    """
    relations, privileges = zip(*_granted(role_script(part.value)), strict=True)
    with source_errors("looking up the rights of this connection's role"):
        missing: list[tuple[str]] = connection.execute(
            _SQL["lacking"], {"relations": [*relations], "privileges": [*privileges]}
        ).fetchall()
        if part is MirrorRole.PUMP:
            missing += connection.execute(_SQL["lacking_everywhere"]).fetchall()
    return sorted({text for (text,) in missing})


def _granted(script: str) -> list[tuple[str, str]]:
    """Each relation of schema modak and privilege on it that a script grants by name."""
    return [
        (name.strip().removeprefix("modak."), privilege.strip())
        for privileges, names in _GRANT.findall(script)
        for name in names.split(",")
        for privilege in privileges.split(",")
        if name.strip().startswith("modak.")
    ]


def retained_tables_rights(connection: PgConnection) -> list[RetainedTable]:
    """The tables with heap retention, with the rights that it takes. Raises SourceError."""
    with source_errors("looking up the owners of tables with heap retention"):
        return fetch_rows(connection, RetainedTable, _SQL["retained"])


def table_owners(connection: PgConnection) -> list[str]:
    """The owners of mirrored tables that are neither superusers nor the owner of schema modak. Raises SourceError."""
    with source_errors("looking up the owners of mirrored tables"):
        return [owner for (owner,) in connection.execute(_SQL["owners"]).fetchall()]
