"""Checks the source server's version and settings, before anything is created in it.

Mirrored tables need a stream: WAL that carries row changes, a slot, a walsender, the right to stream. Tiered tables do
not. The WAL carries changes with wal_level = logical, and since PostgreSQL 19 also with wal_level = replica while there
is a logical slot: the setting effective_wal_level says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import SourceError
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.known_bugs import bugs_of
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.services import SIGNS, ManagedService, service_of
from sql import queries

_SQL = queries("server")

OUTPUT_PLUGIN = "pgoutput"
"""What decodes for the mirror's slot."""

OLDEST_MAJOR = 15
"""The oldest version that PostgreSQL's project maintains, and the first with row filters and security_invoker."""

NEWEST_MAJOR = 19
"""The newest version whose changes are known here (docs/servers.md). A later one may change what pgoutput sends."""


_WITHOUT_RESTART = frozenset(
    {
        "max_slot_wal_keep_size",
        "idle_replication_slot_timeout",
        "output_plugin_libraries",
        "synchronized_standby_slots",
        "synchronous_standby_names",
    }
)


@dataclass(frozen=True)
class ServerFacts:
    """The result of `check_server`."""

    version: int
    """server_version_num, such as 180001."""
    free_slots: int
    warnings: tuple[str, ...]
    """Things that work, but that the operator should know of."""


@dataclass(frozen=True)
class ServerSettings:
    """The row of the query `facts`: what the server and the role of the connection are like."""

    role: str
    """The role whose rights the connection has."""
    superuser: bool
    wal_level: str
    """The setting. `decodes` says what counts."""
    effective_wal_level: str | None
    """What the WAL has at present; None before PostgreSQL 19, where it is `wal_level`."""
    output_plugins: str | None
    """output_plugin_libraries: which libraries may decode for a slot. None for servers that do not restrict it (before
    the minor releases of August 2026)."""
    slots: int
    used_slots: int
    senders: int
    used_senders: int
    in_recovery: bool
    may_replicate: bool
    """By an attribute of the role. On Amazon RDS no role gets the attribute, but membership in rds_replication."""
    signs: list[str]
    """Those that the server has of SIGNS."""
    may_create: bool
    keep_mb: int
    """max_slot_wal_keep_size in MB; -1 for no limit."""
    idle_timeout: int
    """idle_replication_slot_timeout in seconds; 0 for none, and before PostgreSQL 18."""
    schema_exists: bool
    encoding: str

    @property
    def service(self) -> ManagedService | None:
        """The service that runs the server; None if it is not one that is known."""
        return service_of(self.signs)

    @property
    def decodes(self) -> bool:
        """Whether a slot can get row changes, without a restart: the first one raises the level where it can."""
        raises = self.wal_level == "replica" and self.effective_wal_level is not None
        return self.wal_level == "logical" or raises

    @property
    def wal_level_text(self) -> str:
        """For messages: `wal_level replica (logical in effect)`."""
        differs = self.effective_wal_level not in (None, self.wal_level)
        return f"wal_level {self.wal_level}" + (f" ({self.effective_wal_level} in effect)" if differs else "")


class ServerSubject(StrEnum):
    """What a problem of the server is about."""

    VERSION = "version"
    PRIMARY = "primary"
    ENCODING = "encoding"
    WAL_LEVEL = "wal_level"
    PLUGIN = "plugin"
    RIGHTS = "rights"
    SLOTS = "slots"
    SENDERS = "senders"
    WAL_LIMIT = "wal_limit"
    BUG = "bug"


@dataclass(frozen=True)
class ServerProblem:
    """Why a server cannot be mirrored, or what its operator should know."""

    subject: ServerSubject
    message: str
    remedy: str
    fatal: bool = True
    """False if the mirror works all the same."""
    of_stream: bool = False
    """Whether it concerns mirrored tables only: tiered ones need no stream."""


def read_server(conn: PgConnection) -> ServerSettings:
    """Reads the server's settings and the rights of the connection's role. Raises SourceError."""
    with source_errors("checking the server's settings"):
        server = fetch_row(conn, ServerSettings, _SQL["facts"], {"signs": SIGNS})
    assert server is not None
    return server


def check_server(conn: PgConnection, *, slot_exists: bool, streams: bool = True) -> ServerFacts:
    """The server's facts. Raises SourceError, with what to do, if the server cannot be mirrored.

    `slot_exists`: the mirror's slot exists already, so that no free one is needed. Without `streams`, nothing counts
    that only mirrored tables need.
    """
    server = read_server(conn)
    warnings = []
    for problem in server_problems(conn, server, slot_exists=slot_exists):
        if problem.of_stream and not streams:
            continue
        if problem.fatal:
            raise SourceError(problem.message, problem.remedy)
        warnings.append(problem.message)
    return ServerFacts(conn.info.server_version, server.slots - server.used_slots, tuple(warnings))


def server_problems(conn: PgConnection, server: ServerSettings, *, slot_exists: bool) -> Iterator[ServerProblem]:
    """Everything that `check_server` refuses or warns of, fatal problems first. Asks the server nothing more."""
    yield from _kind_problems(conn, server)
    yield from _rights_problems(conn, server)
    yield from _room_problems(server, slot_exists=slot_exists)
    yield from _warnings(conn.info.server_version, server)


def stream_problems(conn: PgConnection, server: ServerSettings) -> list[ServerProblem]:
    """Why this server, with this role, cannot stream changes to a mirror that has no slot yet. Empty if it can."""
    return [
        problem for problem in server_problems(conn, server, slot_exists=False) if problem.of_stream and problem.fatal
    ]


def names_of_list(setting: str) -> list[str]:
    """The names in a setting that is a list, as the server shows it. A quoted one may have commas: `"a, b"`, which is
    what ALTER SYSTEM makes of 'a, b', is a single name."""
    names = [
        quoted.replace('""', '"') or plain.strip()
        for quoted, plain in re.findall(r'"((?:[^"]|"")*)"|([^",]+)', setting)
    ]
    return [name for name in names if name]


def require_version(conn: PgConnection) -> None:
    """Raises SourceError if mirror-pump does not work with this version of PostgreSQL."""
    error = _version_error(conn)
    if error is not None:
        raise error


def _version_error(conn: PgConnection) -> SourceError | None:
    major = conn.info.server_version // 10000
    if OLDEST_MAJOR <= major <= NEWEST_MAJOR:
        return None
    return SourceError(
        f"the server is PostgreSQL {major}; mirror-pump works with {OLDEST_MAJOR} to {NEWEST_MAJOR}",
        "upgrade the server" if major < OLDEST_MAJOR else "upgrade mirror-pump",
    )


def how_to_set(server: ServerSettings, name: str, value: str) -> str:
    """What to do so that a setting of the server has this value, which is as SQL has it."""
    restart = "" if name in _WITHOUT_RESTART else ", then restart the server"
    service = server.service
    if service is None:
        return f"ALTER SYSTEM SET {name} = {value}{restart or '; SELECT pg_reload_conf()'}"
    text = service.logical if name == "wal_level" else f"{name} = {value}"
    return f"set {text} {service.place}{restart}"


def _kind_problems(conn: PgConnection, server: ServerSettings) -> Iterator[ServerProblem]:
    error = _version_error(conn)
    if error is not None:
        yield ServerProblem(ServerSubject.VERSION, str(error), error.remedy)
    if server.in_recovery:
        yield ServerProblem(
            ServerSubject.PRIMARY,
            "the server is a standby, but the mirror must write its catalog to the database",
            "connect to the primary",
        )
    if server.encoding == "SQL_ASCII":
        yield ServerProblem(
            ServerSubject.ENCODING,
            f"database {conn.info.dbname} has the encoding SQL_ASCII, which does not define characters for its bytes",
            "copy it into a database with ENCODING 'UTF8' or another real encoding (pg_dump with --encoding set to the"
            " encoding that the bytes have)",
        )
    yield from _decoding_problems(server)


def _decoding_problems(server: ServerSettings) -> Iterator[ServerProblem]:
    if not server.decodes:
        yield ServerProblem(
            ServerSubject.WAL_LEVEL,
            f"wal_level is {server.wal_level}: the WAL does not carry row changes",
            # Where the first slot raises the level, only `minimal` is too low.
            how_to_set(server, "wal_level", "'logical'" if server.effective_wal_level is None else "'replica'"),
            of_stream=True,
        )
    libraries = [OUTPUT_PLUGIN] if server.output_plugins is None else names_of_list(server.output_plugins)
    if OUTPUT_PLUGIN not in libraries:
        yield ServerProblem(
            ServerSubject.PLUGIN,
            f"output_plugin_libraries does not name {OUTPUT_PLUGIN}: the server lets no slot decode for the mirror",
            how_to_set(server, "output_plugin_libraries", ", ".join(map(literal, (*libraries, OUTPUT_PLUGIN)))),
            of_stream=True,
        )


def _rights_problems(conn: PgConnection, server: ServerSettings) -> Iterator[ServerProblem]:
    stream_role = server.service.stream_role if server.service is not None else None
    if not server.may_replicate:
        yield ServerProblem(
            ServerSubject.RIGHTS,
            "the role that mirror-pump connects as may not stream changes",
            f"GRANT {stream_role} TO {identifier(server.role)}"
            if stream_role is not None
            else f"ALTER ROLE {identifier(server.role)} REPLICATION",
            of_stream=True,
        )
    if not server.may_create and not server.schema_exists:
        yield ServerProblem(
            ServerSubject.RIGHTS,
            "the role that mirror-pump connects as may create neither schemas nor publications in this database",
            f"GRANT CREATE ON DATABASE {identifier(conn.info.dbname)} TO {identifier(server.role)}",
        )


def _room_problems(server: ServerSettings, *, slot_exists: bool) -> Iterator[ServerProblem]:
    if not slot_exists and server.used_slots >= server.slots:
        yield ServerProblem(
            ServerSubject.SLOTS,
            f"all {server.slots} replication slots of the server are in use"
            if server.slots
            else "max_replication_slots is 0: the server cannot keep changes for the mirror",
            "drop one without a use (see pg_replication_slots), or raise max_replication_slots and restart"
            if server.slots
            else how_to_set(server, "max_replication_slots", "10"),
            of_stream=True,
        )
    if server.senders < 1:
        yield ServerProblem(
            ServerSubject.SENDERS,
            "max_wal_senders is 0: the server cannot stream changes",
            how_to_set(server, "max_wal_senders", "10"),
            of_stream=True,
        )


def _warnings(version: int, server: ServerSettings) -> Iterator[ServerProblem]:
    major, minor = divmod(version, 10000)
    for bug in bugs_of(version):
        fixed = f"{major}.{bug.fixed[major]}"
        yield ServerProblem(
            ServerSubject.BUG,
            f"PostgreSQL {major}.{minor} {bug.effect}; {fixed} does not",
            f"install PostgreSQL {fixed} or later, a restart ({bug.release_notes(major)})",
            fatal=False,
        )
    if server.keep_mb < 0:
        yield ServerProblem(
            ServerSubject.WAL_LIMIT,
            "max_slot_wal_keep_size is unlimited: while the pump is down, WAL is kept until the disk is full",
            how_to_set(server, "max_slot_wal_keep_size", "'100GB'") + "; with as much as the disk has to spare",
            fatal=False,
            of_stream=True,
        )


def server_time(connection: PgConnection) -> datetime:
    """The present by the server's clock, also within a transaction. Raises SourceError."""
    with source_errors("reading the server's clock"):
        ((now,),) = connection.execute(_SQL["clock"]).fetchall()
    assert isinstance(now, datetime)
    return now
