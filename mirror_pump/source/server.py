"""Checks the source server's version and settings, before anything is created in it."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.errors import SourceError
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("server")

OLDEST_MAJOR = 14
"""Version 14 introduced TID range scans, which the copy needs, and logical messages of pgoutput."""

NEWEST_MAJOR = 18
"""The newest version that the tests run on. A later one may change what pgoutput sends."""

_ADD_TABLE_FIXED = {13: 21, 14: 18, 15: 13, 16: 9, 17: 5}
"""The first minor releases in which adding a table to a publication loses no change of a concurrent transaction."""

_MANAGED_REPLICATION_ROLES = ("rds_replication", "cloudsqlsuperuser", "azure_pg_admin")
"""Managed services grant the replication privilege by membership in these roles; rolreplication stays false."""


@dataclass(frozen=True)
class ServerFacts:
    """The result of `check_server`."""

    version: int
    """server_version_num, such as 180001."""
    wal_level: str
    free_slots: int
    warnings: tuple[str, ...]
    """Things that work, but that the operator should know of."""


@dataclass(frozen=True)
class _ServerRow:
    """The row of the query `facts`."""

    wal_level: str
    slots: int
    used_slots: int
    senders: int
    in_recovery: bool
    may_replicate: bool
    may_create: bool
    keep_mb: int
    """max_slot_wal_keep_size in MB; -1 for no limit."""
    schema_exists: bool
    encoding: str


def check_server(conn: PgConnection, *, slot_exists: bool) -> ServerFacts:
    """The server's facts. Raises SourceError, with what to do, if the server cannot be mirrored.

    `slot_exists`: the mirror's slot exists already, so that no free one is needed.
    """
    with source_errors("checking the server's settings"):
        server = fetch_row(conn, _ServerRow, _SQL["facts"], {"roles": list(_MANAGED_REPLICATION_ROLES)})
    assert server is not None
    version = conn.info.server_version
    major, minor = divmod(version, 10000)
    if not OLDEST_MAJOR <= major <= NEWEST_MAJOR:
        raise SourceError(
            f"the server is PostgreSQL {major}; mirror-pump works with {OLDEST_MAJOR} to {NEWEST_MAJOR}",
            "upgrade the server" if major < OLDEST_MAJOR else "upgrade mirror-pump",
        )
    if server.in_recovery:
        raise SourceError(
            "the server is a standby, but the mirror must write its catalog to the database", "connect to the primary"
        )
    if server.encoding == "SQL_ASCII":
        raise SourceError(
            f"database {conn.info.dbname} has the encoding SQL_ASCII, which does not define characters for its bytes",
            "copy it into a database with ENCODING 'UTF8' or another real encoding (pg_dump with --encoding set to the"
            " encoding that the bytes have)",
        )
    if server.wal_level != "logical":
        raise SourceError(
            f"wal_level is {server.wal_level}: the WAL does not carry row changes",
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
        )
    if not server.may_replicate:
        raise SourceError("the role that mirror-pump connects as may not stream changes", "ALTER ROLE ... REPLICATION")
    if not server.may_create and not server.schema_exists:
        raise SourceError(
            "the role that mirror-pump connects as may create neither schemas nor publications in this database",
            f"GRANT CREATE ON DATABASE {conn.info.dbname} TO the role",
        )
    if not slot_exists and server.used_slots >= server.slots:
        raise SourceError(
            f"all {server.slots} replication slots of the server are in use",
            "drop one that nobody needs (see pg_replication_slots), or raise max_replication_slots and restart",
        )
    if server.senders < 1:
        raise SourceError(
            "max_wal_senders is 0: the server cannot stream changes", "set it to 10 and restart the server"
        )
    warnings = []
    if minor < _ADD_TABLE_FIXED.get(major, 0):
        warnings.append(
            f"PostgreSQL {major}.{minor} can lose changes of transactions that run while a table is added to a"
            f" publication; {major}.{_ADD_TABLE_FIXED[major]} does not"
        )
    if server.keep_mb < 0:
        warnings.append(
            "max_slot_wal_keep_size is unlimited: while the pump is down, WAL is kept until the disk is full"
        )
    return ServerFacts(version, server.wal_level, server.slots - server.used_slots, tuple(warnings))
