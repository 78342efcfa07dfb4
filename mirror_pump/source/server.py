"""What the source server must offer, checked before anything is created in it."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.errors import SourceError
from mirror_pump.source.connect import PgConnection, source_errors

OLDEST_MAJOR = 14
"""TID range scans, which the copy's chunks need, and pgoutput's logical messages came with 14."""

NEWEST_MAJOR = 18
"""The newest version that the tests ran on: another one may change what pgoutput sends."""

_ADD_TABLE_FIXED = {13: 21, 14: 18, 15: 13, 16: 9, 17: 5}
"""The minor releases from which on adding a table to a publication loses no change of a concurrent transaction."""

_MANAGED_REPLICATION_ROLES = ("rds_replication", "cloudsqlsuperuser", "azure_pg_admin")
"""Managed services give the privilege by membership; rolreplication stays false there."""


@dataclass(frozen=True)
class ServerFacts:
    """What `check_server` saw."""

    version: int
    """server_version_num, such as 180001."""
    wal_level: str
    free_slots: int
    warnings: tuple[str, ...]
    """What works but deserves its operator's attention."""


def check_server(conn: PgConnection, *, slot_exists: bool) -> ServerFacts:
    """The server's facts, if a mirror can live on it; SourceError with what to do otherwise.

    `slot_exists`: our own slot is there already, so that no free one is needed.
    """
    with source_errors("checking the server's settings"):
        row = conn.execute(_FACTS, {"roles": list(_MANAGED_REPLICATION_ROLES)}).fetchone()
    assert row is not None
    wal_level, slots, used_slots, senders, in_recovery, may_replicate, may_create, keep_mb, schema_exists, encoding = (
        row
    )
    version = conn.info.server_version
    major, minor = divmod(version, 10000)
    if not OLDEST_MAJOR <= major <= NEWEST_MAJOR:
        raise SourceError(
            f"the server is PostgreSQL {major}; mirror-pump works with {OLDEST_MAJOR} to {NEWEST_MAJOR}",
            "upgrade the server" if major < OLDEST_MAJOR else "upgrade mirror-pump",
        )
    if in_recovery:
        raise SourceError("the server is a standby: the mirror keeps its catalog there", "connect to the primary")
    if encoding == "SQL_ASCII":
        raise SourceError(
            f"database {conn.info.dbname} has the encoding SQL_ASCII: nobody knows what characters its bytes stand for",
            "copy it into a database with ENCODING 'UTF8' (pg_dump with the --encoding that its bytes have), or another"
            " encoding that names its characters",
        )
    if wal_level != "logical":
        raise SourceError(
            f"wal_level is {wal_level}: the WAL does not carry row changes",
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
        )
    if not may_replicate:
        raise SourceError("the role that mirror-pump connects as may not stream changes", "ALTER ROLE ... REPLICATION")
    if not may_create and not schema_exists:
        raise SourceError(
            "the role that mirror-pump connects as may create neither schemas nor publications in this database",
            f"GRANT CREATE ON DATABASE {conn.info.dbname} TO the role",
        )
    if not slot_exists and used_slots >= slots:
        raise SourceError(
            f"all {slots} replication slots of the server are in use",
            "drop one that nobody needs (see pg_replication_slots), or raise max_replication_slots and restart",
        )
    if senders < 1:
        raise SourceError("max_wal_senders is 0: the server streams to nobody", "set it to 10 and restart the server")
    warnings = []
    if minor < _ADD_TABLE_FIXED.get(major, 0):
        warnings.append(
            f"PostgreSQL {major}.{minor} can lose changes of transactions that run while a table is added to a"
            f" publication; {major}.{_ADD_TABLE_FIXED[major]} does not"
        )
    if keep_mb < 0:
        warnings.append(
            "max_slot_wal_keep_size is unlimited: while the pump is down, WAL is kept until the disk is full"
        )
    return ServerFacts(version, wal_level, slots - used_slots, tuple(warnings))


_FACTS = """
SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_replication_slots)::int, current_setting('max_wal_senders')::int, pg_is_in_recovery(),
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
       OR EXISTS (SELECT FROM pg_roles r WHERE rolname = ANY (%(roles)s) AND pg_has_role(r.oid, 'MEMBER')),
       has_database_privilege(current_database(), 'CREATE'),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       to_regnamespace('modak') IS NOT NULL, current_setting('server_encoding')
"""
