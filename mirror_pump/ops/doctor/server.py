"""The server's version, its known bugs and settings: as `init` checks them."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, ok
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


SERVER = DoctorCheck("server", _server, needs=("database",))
