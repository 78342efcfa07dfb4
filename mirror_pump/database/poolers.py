"""Poolers, which hand few sessions of a server to many clients: how each is recognised, and where the server is.

The mirror's sessions are of no use behind one: settings, advisory locks and LISTEN belong to a session, and no pooler
that is known passes a stream of changes on with its settings.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import conninfo, pq
from psycopg.pq.abc import PGconn

from mirror_pump.database.opening import ConnectFailed, open_connection

PAGE = "docs/operations.md#poolers"

_REFUSES = "08P01"
"""The SQLSTATE of most refusals by poolers. PostgreSQL has it only for a client that does not speak its protocol."""

_ADMINISTRATION = ("pgbouncer", "pgcat")
"""Databases that are not the server's: there PgBouncer and pgcat say what they are."""


@dataclass(frozen=True)
class Pooler:
    """A program that is known, or a service of it."""

    name: str
    refusals: str | None
    """A pattern of what only its refusals begin with."""
    hosts: str | None
    """A pattern of the hosts at which a service runs it."""
    address: str = "host and port of PostgreSQL, not of the pooler"
    """How to reach the server itself."""

    @property
    def remedy(self) -> str:
        """What to do about a connection that leads to it."""
        return f"put the server's own address into the connection string: {self.address} ({PAGE})"

    def refuses_so(self, text: str) -> bool:
        """Whether this is its refusal. Poolers speak English, whatever the server speaks."""
        return self.refusals is not None and re.search(rf"(FATAL|ERROR):\s+({self.refusals})", text) is not None

    def runs_at(self, host: str) -> bool:
        """Whether a service has it under this name."""
        return self.hosts is not None and re.search(f"({self.hosts})$", host) is not None


POOLERS = (
    Pooler(
        "RDS Proxy",
        "Feature not supported: RDS Proxy ",
        r"\.proxy-[a-z0-9]+\.[a-z0-9-]+\.rds\.amazonaws\.com(\.cn)?",
        "the endpoint of the instance or the cluster, not the proxy's",
    ),
    Pooler(
        "Supavisor",
        r"(\([A-Z]+\) )?(no tenant identifier |tenant/user |Tenant or user not found|MaxClientsInSessionMode)",
        r"\.pooler\.supabase\.com",
        "the direct connection, db.PROJECT.supabase.co and port 5432",
    ),
    Pooler(
        "Neon's PgBouncer",
        "unsupported startup parameter.*Please use unpooled connection",
        r"-pooler\.(.+\.)?neon\.(tech|build)",
        "the same host without -pooler",
    ),
    Pooler("pgcat", "No pool configured for database: ", None),
    Pooler(
        "PgBouncer",
        "unsupported (options )?startup parameter|no such (database|user): |bouncer config error"
        "|pgbouncer cannot connect to server|no more connections allowed|query_wait_timeout",
        None,
    ),
)
"""The more special first: some have PgBouncer inside, or say the same."""

_UNKNOWN = Pooler("a pooler", None, None)


def refusing_pooler(error: ConnectFailed, hosts: Collection[str]) -> Pooler | None:
    """The pooler that has refused a connection to one of these hosts; None if it was none."""
    if not error.states:
        return None
    for pooler in POOLERS:
        if pooler.refuses_so(str(error)):
            return pooler
    return _at(hosts) if _REFUSES in error.states else None


class NotPassedOn(psycopg.OperationalError):
    """What stands before the server has begun a session without the settings of its startup packet."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.sqlstate = "0A000"
        self.remedy = remedy


def not_passed_on(connection: PGconn, setting: str, value: str, sent: str, process_id: int) -> NotPassedOn:
    """The error of a session of process `process_id` that has `value` in place of the one that was sent."""
    address = f"{connection.host.decode()}:{connection.port.decode()}"
    lost = f"the session has {setting} = {value}, and not {sent} as the connection asks for"
    if connection.backend_pid == process_id:
        # No pooler that is known tells its clients the server's process.
        return NotPassedOn(
            f"{lost}: a login event trigger or a proxy at {address} changes it",
            "have the event trigger leave sessions of this role alone; or give the server's own address",
        )
    pooler = _at([connection.host.decode()])
    version = _version(connection) if pooler is _UNKNOWN else None
    name = pooler.name if version is None else f"the pooler {version}"
    return NotPassedOn(
        f"{name} answers at {address}, and gives no session of its own: {lost}. The mirror needs sessions that keep"
        " settings, locks and LISTEN, and a stream",
        pooler.remedy,
    )


def _at(hosts: Collection[str]) -> Pooler:
    for pooler in POOLERS:
        if any(pooler.runs_at(host) for host in hosts):
            return pooler
    return _UNKNOWN


def _version(connection: PGconn) -> str | None:
    """The name and version of the pooler that a connection leads to, if the role may ask for it."""
    options = {option.keyword.decode(): option.val.decode() for option in connection.info if option.val}
    for name in ("replication", "target_session_attrs"):
        options.pop(name, None)
    for database in _ADMINISTRATION:
        with suppress(psycopg.Error):
            administration = open_connection(conninfo.make_conninfo("", **options | {"dbname": database}))
            try:
                result = administration.exec_(b"SHOW VERSION")
            finally:
                administration.finish()
            if result.status == pq.ExecStatus.TUPLES_OK and result.ntuples == 1:
                return (result.get_value(0, 0) or b"").decode(errors="replace")
    return None
