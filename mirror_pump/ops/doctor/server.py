"""The server: whether it answers itself, its version, known bugs and settings as `init` checks them, and its clock."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from mirror_pump.database.poolers import PAGE
from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, failed, failure, ok, warning
from mirror_pump.settings.config import ENV_PREFIX
from mirror_pump.source.connect import PgConnection, describe_dsn
from mirror_pump.source.server import ServerSettings, ServerSubject, read_server, server_problems, server_time
from sql import queries

_SQL = queries("server")


def _database(site: Site) -> Iterator[Finding]:
    if not site.settings.dsn:
        site.has_no_database()
        remedy = f"export {ENV_PREFIX}DSN='postgresql://USER@HOST/DATABASE' PGPASSWORD='...'"
        yield failed("no database was given", remedy)
        return
    try:
        with site.connection() as connection:
            user = connection.info.user
    except MirrorPumpError as error:
        site.has_no_database()
        yield failure(error)
        return
    yield ok(f"{describe_dsn(site.settings.dsn)} answers, as role {user}")


DATABASE = DoctorCheck("database", _database)


def _pooler(site: Site) -> Iterator[Finding]:
    """Whether a pooler stands before the server, and gives its sessions to others between two transactions. One that
    leaves the session's settings out has been refused by then (mirror_pump/database/poolers.py)."""
    address = describe_dsn(site.settings.require_dsn())
    with site.connection() as connection:
        process_id = _process_id(connection)
        if process_id == connection.info.backend_pid:
            yield ok("no pooler: the connection leads to a process of the server's own")
            return
        with site.connection() as other, other.transaction():
            # What it shares, the other one has now.
            _process_id(other)
            moved = _process_id(connection) != process_id
    if moved:
        yield failed(
            f"a pooler answers for {address}, and gives each transaction another session of the server: settings,"
            " locks and LISTEN get lost",
            f"put the server's own address into the connection string ({PAGE})",
        )
    else:
        yield warning(
            f"a proxy answers for {address}: it tells its clients another process than the server's. It keeps the"
            " session for now; a pooler ends it when it likes",
            f"if it is a pooler, put the server's own address into the connection string ({PAGE})",
        )


def _process_id(connection: PgConnection) -> int:
    ((process_id,),) = connection.execute(_SQL["process"]).fetchall()
    return int(process_id)


POOLER = DoctorCheck("pooler", _pooler, needs=("database",))

_OF_THE_SERVER = frozenset(
    {
        ServerSubject.VERSION,
        ServerSubject.PRIMARY,
        ServerSubject.ENCODING,
        ServerSubject.WAL_LEVEL,
        ServerSubject.PLUGIN,
        ServerSubject.BUG,
    }
)


def server_findings(
    site: Site,
    connection: PgConnection,
    server: ServerSettings,
    subjects: Collection[ServerSubject],
    *,
    slot_exists: bool = False,
) -> list[Finding]:
    """The server's problems with these subjects, as findings.

    What only mirrored tables need is no problem of a mirror without a stream. Before there is a mirror, it is a failure
    if the server's WAL level suffices for them: then `init` wants to stream. Otherwise it is a warning.
    """
    findings = []
    for problem in server_problems(connection, server, slot_exists=slot_exists):
        if problem.subject not in subjects or (problem.of_stream and site.streams is False):
            continue
        if problem.of_stream and problem.fatal and site.streams is None and not server.decodes:
            findings.append(
                Finding(Outcome.WARNING, f"{problem.message}, which tiered tables do not need", problem.remedy)
            )
        else:
            findings.append(
                Finding(Outcome.FAILED if problem.fatal else Outcome.WARNING, problem.message, problem.remedy)
            )
    return findings


def _server(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        server = read_server(connection)
        findings = server_findings(site, connection, server, _OF_THE_SERVER)
        major, minor = divmod(connection.info.server_version, 10000)
    kind = "standby" if server.in_recovery else "primary"
    yield ok(f"PostgreSQL {major}.{minor}, {kind}, encoding {server.encoding}, {server.wal_level_text}")
    if site.streams is None:
        possible = "both mirrored and tiered tables are" if server.decodes else "only tiered tables are"
        yield ok(f"{possible} possible with this wal_level")
    yield from findings


SERVER = DoctorCheck("server", _server, needs=("database",))

_WORTH_KNOWING = 5.0
"""Seconds. `status` shows ages of pending deletes by the pump's clock."""
_TOO_MUCH = 900.0
"""Seconds. S3 refuses requests that are signed with a clock that is off by more (RequestTimeTooSkewed)."""
_CLOCK_REMEDY = (
    "timedatectl set-ntp true on both machines, or start chronyd; `timedatectl status` shows whether it works"
)


def _clock(site: Site) -> Iterator[Finding]:
    """The difference between the server's clock and this machine's."""
    with site.connection() as connection:
        sent = time.time()
        there = server_time(connection)
        received = time.time()
    yield difference_finding(
        (there - datetime.fromtimestamp((sent + received) / 2, UTC)).total_seconds(), (received - sent) / 2
    )


def difference_finding(seconds: float, uncertainty: float) -> Finding:
    """The finding for a server's clock that is ahead by `seconds`, give or take `uncertainty` seconds."""
    off = max(0.0, abs(seconds) - uncertainty)
    way = "ahead of" if seconds > 0 else "behind"
    message = f"the server's clock is {abs(seconds):.1f} s {way} this machine's"
    if off > _TOO_MUCH:
        return failed(f"{message}: S3 refuses requests from a clock that is off by 15 minutes", _CLOCK_REMEDY)
    if off > _WORTH_KNOWING:
        return warning(f"{message}: ages that `status` shows are wrong by that much", _CLOCK_REMEDY)
    return ok(message)


CLOCK = DoctorCheck("clock", _clock, needs=("database",))
