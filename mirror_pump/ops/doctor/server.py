"""The server's version, its known bugs and settings, and the rights of the role: as `init` checks them."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, ok, warning
from mirror_pump.quoting import identifier
from mirror_pump.source.server import ServerProblem, ServerSubject, read_server, server_problems

_OF_THE_SERVER = frozenset(
    {
        ServerSubject.VERSION,
        ServerSubject.PRIMARY,
        ServerSubject.ENCODING,
        ServerSubject.WAL_LEVEL,
        ServerSubject.BUG,
    }
)


def finding(problem: ServerProblem) -> Finding:
    """A problem of the server as a finding."""
    return Finding(Outcome.FAILED if problem.fatal else Outcome.WARNING, problem.message, problem.remedy)


def _server(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        server = read_server(connection)
        problems = list(server_problems(connection, server, slot_exists=False))
        major, minor = divmod(connection.info.server_version, 10000)
    found = [finding(problem) for problem in problems if problem.subject in _OF_THE_SERVER]
    kind = "standby" if server.in_recovery else "primary"
    yield ok(f"PostgreSQL {major}.{minor}, {kind}, encoding {server.encoding}, wal_level {server.wal_level}")
    yield from found


def _rights(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        server = read_server(connection)
        problems = list(server_problems(connection, server, slot_exists=False))
        ((sees_sessions,),) = connection.execute("SELECT pg_has_role('pg_read_all_stats', 'USAGE')").fetchall()
    found = [finding(problem) for problem in problems if problem.subject is ServerSubject.RIGHTS]
    if server.superuser:
        yield ok(f"role {server.role} is a superuser, which helps `init`; the pump itself needs far fewer rights")
    elif not found:
        yield ok(f"role {server.role} may stream changes and create what the mirror needs")
    yield from found
    if not sees_sessions:
        yield warning(
            "other roles' sessions are hidden: `status` cannot name an open transaction that keeps WAL",
            f"GRANT pg_read_all_stats TO {identifier(server.role)}",
        )


SERVER = DoctorCheck("server", _server, needs=("database",))
RIGHTS = DoctorCheck("rights", _rights, needs=("database",))
