"""Connections to the source database: pinned session settings, and driver errors turned into ours.

Both sides of the mirror compare text that Postgres prints, so every setting that changes how a value is printed is
pinned on every connection, ordinary, replication and ADBC alike. They travel in the startup
packet, where they win over ALTER ROLE and ALTER DATABASE settings.
"""

from __future__ import annotations

import math
import re
import selectors
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo, pq
from psycopg.pq.abc import PGconn

from mirror_pump.errors import ConnectionLost, SourceError, UsageError

PgConnection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
"""An ordinary connection whose rows are plain tuples."""

LOCK_TIMEOUT = "200ms"
"""How long a step of the pump waits for a lock that somebody else may hold; then it is left for a later try. Less
than a usual deadlock_timeout: a user's command must never be the victim of a deadlock with us."""

PINNED_SETTINGS: dict[str, str] = {
    # How values are printed.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    # How literals are read: those of ours, and keys that go back as text.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    # The publish transaction takes its locks itself, and must write.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    # Policies that would hide rows raise instead: a copy without them would be wrong in silence.
    "row_security": "off",
    # Chunk reads are short; compiling their expressions costs more than it saves.
    "jit": "off",
    # An acknowledged publish must survive a crash, else the slot is ahead of the frontier afterwards.
    "synchronous_commit": "on",
    # Limits that a role or database may carry for interactive users.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # How long the server keeps a session, and its locks, of a host that crashed or was cut off: seconds, probes. With
    # the kernel's defaults no pump could lead for two hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

PINNED_FOR_VALUES: dict[str, str] = {
    # regclass and its like print a schema's name where the search path does not lead to it.
    "search_path": "pg_catalog",
}
"""Further settings of connections that do nothing but read values: others resolve names as the user does."""

_PINNED_FOR_ANSWERS: dict[str, str] = {
    # Milliseconds that an answer may be unread: the probes above wait for it. Not of connections that bring rows while
    # others work on them, since Linux ends one that is merely not read for so long as well (tcp(7), TCP_USER_TIMEOUT).
    "tcp_user_timeout": "60000",
}
"""Further settings of connections whose answers are read at once."""

_CONNECTION_DEFAULTS: dict[str, str] = {
    # Seconds. The kernel's default notices a dead peer after two hours.
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Milliseconds, in the place of the probes while something that we sent is not acknowledged.
    "tcp_user_timeout": "60000",
}

_LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""Shutdown, crash, starting up, and time-outs that end the session; with class 08 they mean: connect again."""

_OPERATOR_NEEDED = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied",
    "must be superuser or replication role",
    "not permitted to log in",
    "unsupported startup parameter",
    "certificate verify failed",
    "does not support SSL",
)
"""Parts of libpq's messages at connect (which carry no SQLSTATE) that no retry cures. Not those of names that do not
resolve: name services have their bad minutes, and containers get their names when they start."""

_MALFORMED = re.compile(r"(?:connection is bad: )?(?:invalid |could not match \d|definition of service|bad value for )")
"""How messages begin that are about the connection string, before anything is connected to."""


def connect(dsn: str, *, autocommit: bool = False, application_name: str = "mirror-pump") -> PgConnection:
    """An ordinary connection with the pinned settings.

    Raises ConnectionLost when the server cannot be reached or is starting or stopping (worth a retry), SourceError
    when it refuses us, UsageError when `dsn` is no connection string.
    """
    try:
        text = _conninfo(dsn, _PINNED_FOR_ANSWERS, application_name=application_name)
        return psycopg.connect(text, autocommit=autocommit)
    except psycopg.Error as error:
        raise _connect_error(str(error), dsn) from error


def session_time_zone(dsn: str) -> str:
    """The time zone of the role's own sessions, which ours do without. Raises as `connect` does."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute("SHOW TimeZone").fetchone()
    except psycopg.Error as error:
        raise _connect_error(str(error), dsn) from error
    assert row is not None
    return str(row[0])


def replication_connect(dsn: str, *, application_name: str = "mirror-pump-stream") -> PGconn:
    """A walsender connection bound to the DSN's database (`replication=database`), with the pinned settings.

    pgoutput prints values in this session, so the settings matter here as much as in a copy. psycopg has no
    replication cursor: the caller speaks libpq's COPY BOTH calls. Errors as in `connect`.
    """
    text = _conninfo(dsn, PINNED_FOR_VALUES, application_name=application_name, replication="database")
    # Not PQconnectdb: it keeps the interpreter's lock for as long as the server takes to answer.
    connection = pq.PGconn.connect_start(text.encode())
    seconds = float(conninfo.conninfo_to_dict(text).get("connect_timeout") or 0)
    failed = _await_connection(connection, time.monotonic() + seconds if seconds > 0 else math.inf)
    if failed:
        connection.finish()
        raise _connect_error(failed, dsn)
    return connection


def _await_connection(connection: PGconn, deadline: float) -> str:
    """Lets a connection that was begun come about; returns why it did not."""
    # connect_poll must not be called on a connection that was bad from the start (libpq docs, PQconnectPoll).
    polled = pq.PollingStatus.FAILED if connection.status == pq.ConnStatus.BAD else pq.PollingStatus.WRITING
    while polled not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
        event = selectors.EVENT_READ if polled == pq.PollingStatus.READING else selectors.EVENT_WRITE
        # The socket may be another one after each poll: another address of the host, or after TLS was refused.
        with selectors.DefaultSelector() as selector:
            selector.register(connection.socket, event)
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(None if math.isinf(left) else left):
                return "timeout expired"
        polled = pq.PollingStatus(connection.connect_poll())
    return "" if polled == pq.PollingStatus.OK else connection.get_error_message()


def adbc_uri(dsn: str, *, application_name: str = "mirror-pump-copy") -> str:
    """The connection string for ADBC's Postgres driver, which hands it to libpq; with the pinned settings."""
    return _conninfo(dsn, PINNED_FOR_VALUES, application_name=application_name)


@contextmanager
def source_errors(doing: str) -> Iterator[None]:
    """Turns psycopg errors inside the block into ConnectionLost or SourceError; `doing` completes "while ..."."""
    try:
        yield
    except psycopg.Error as error:
        raise as_source_error(error, doing) from error


def as_source_error(error: psycopg.Error, doing: str) -> SourceError:
    """ConnectionLost if a new connection may cure `error`, else SourceError; for a caller that decides itself."""
    detail = " ".join(str(error).split())
    if is_connection_loss(error):
        return ConnectionLost(
            f"the connection to Postgres was lost while {doing}: {detail}",
            "mirror-pump connects again by itself; if it does not succeed, see the server's log",
        )
    return SourceError(f"Postgres refused while {doing}: {detail}", _remedy_for(error.sqlstate))


def is_connection_loss(error: psycopg.Error) -> bool:
    """Whether `error` means that the session is gone, as opposed to a statement that was refused."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith("08") or error.sqlstate in _LOST_SQLSTATES
    return isinstance(error, psycopg.OperationalError)


def _remedy_for(sqlstate: str | None) -> str:
    if sqlstate == "42501":
        return "grant the role that mirror-pump connects as the permission that the message names"
    if sqlstate in ("3F000", "42P01"):
        return "if schema modak is missing, run `mirror-pump init` first"
    return ""


def _conninfo(dsn: str, also_pinned: Mapping[str, str] = MappingProxyType({}), **parameters: str) -> str:
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        raise UsageError(
            # libpq's message quotes the string, and with it a password.
            "the connection string cannot be read",
            "give a URI (postgresql://user@host/database) or libpq keywords (host=... dbname=...)",
        ) from None
    settings = {**PINNED_SETTINGS, **also_pinned}
    # libpq's options split at blanks that no backslash precedes.
    pinned = " ".join("-c {}={}".format(name, value.replace(" ", "\\ ")) for name, value in settings.items())
    # The user's own options come first: of two values for one setting the last wins.
    options = f"{given.pop('options', None) or ''} {pinned}".strip()
    merged: dict[str, Any] = {**_CONNECTION_DEFAULTS, **given, **parameters}
    merged |= {"options": options, "client_encoding": "UTF8"}
    return conninfo.make_conninfo("", **merged)


def _connect_error(message: str, dsn: str) -> SourceError | UsageError:
    detail = " ".join(message.split())
    if _MALFORMED.match(detail):
        return UsageError(
            f"the connection string cannot be used: {detail.removeprefix('connection is bad: ')}",
            "give a URI (postgresql://user@host/database) or libpq keywords (host=... dbname=...)",
        )
    where = describe_dsn(dsn)
    if "conversion between UTF8 and" in detail:
        return SourceError(
            f"cannot connect to {where}: {detail}",
            "copy the database into one whose encoding Postgres converts to UTF8",
        )
    if any(part in detail for part in _OPERATOR_NEEDED):
        return SourceError(
            f"cannot connect to {where}: {detail}",
            "check user, password, database and pg_hba.conf; the role needs LOGIN and REPLICATION",
        )
    return ConnectionLost(f"cannot connect to {where}: {detail}", "check that the server runs and can be reached")


def describe_dsn(dsn: str) -> str:
    """The DSN's host, port and database for messages: never its password."""
    given = conninfo.conninfo_to_dict(dsn)
    host, port, database = (given.get(name) for name in ("host", "port", "dbname"))
    return f"database {database or '(default)'} on {host or 'the local socket'}" + (f":{port}" if port else "")
