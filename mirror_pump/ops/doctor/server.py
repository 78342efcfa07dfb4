"""The server's version, its known bugs and settings: as `init` checks them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, ok
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.server import ServerSettings, ServerSubject, read_server, server_problems

_OF_THE_SERVER = frozenset(
    {
        ServerSubject.VERSION,
        ServerSubject.PRIMARY,
        ServerSubject.ENCODING,
        ServerSubject.WAL_LEVEL,
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
    if the server has wal_level = logical: then `init` wants to stream. Otherwise it is a warning.
    """
    found = []
    for problem in server_problems(connection, server, slot_exists=slot_exists):
        if problem.subject not in subjects or (problem.of_stream and site.streams is False):
            continue
        if problem.of_stream and problem.fatal and site.streams is None and server.wal_level != "logical":
            found.append(
                Finding(Outcome.WARNING, f"{problem.message}, which tiered tables do not need", problem.remedy)
            )
        else:
            found.append(Finding(Outcome.FAILED if problem.fatal else Outcome.WARNING, problem.message, problem.remedy))
    return found


def _server(site: Site) -> Iterator[Finding]:
    with site.connection() as connection:
        server = read_server(connection)
        found = server_findings(site, connection, server, _OF_THE_SERVER)
        major, minor = divmod(connection.info.server_version, 10000)
    kind = "standby" if server.in_recovery else "primary"
    yield ok(f"PostgreSQL {major}.{minor}, {kind}, encoding {server.encoding}, wal_level {server.wal_level}")
    if site.streams is None:
        possible = "both mirrored and tiered tables are" if server.wal_level == "logical" else "only tiered tables are"
        yield ok(f"{possible} possible with this wal_level")
    yield from found


SERVER = DoctorCheck("server", _server, needs=("database",))
