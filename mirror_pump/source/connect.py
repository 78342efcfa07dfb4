"""Connections to the source database, with pinned session settings and with driver errors converted to ours.

Both sides of the mirror compare text that Postgres prints. So every connection (ordinary, replication and ADBC) pins
all settings that change how a value is printed, and search_path, by which others could have us run their code. They are
sent in the startup packet, where they override ALTER ROLE and ALTER DATABASE settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo
from psycopg.pq.abc import PGconn

from mirror_pump.database.errors import TRANSIENT_REMEDY, is_connection_loss, is_transient
from mirror_pump.database.opening import ConnectFailed
from mirror_pump.database.poolers import NotPassedOn, refusing_pooler
from mirror_pump.database.quoting import identifier
from mirror_pump.database.search_path import PINNED_PATH
from mirror_pump.database.session_settings import SettingForced, open_session, open_settled
from mirror_pump.errors import ConnectionLost, SourceError, TransientRefusal, UsageError, one_line_of
from mirror_pump.runtime.authentication import authenticated
from mirror_pump.runtime.password_command import RotatingDsn

PgConnection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
"""An ordinary connection whose rows are plain tuples."""

LOCK_TIMEOUT = "200ms"
"""How long a step of the pump waits for a lock that others may hold, before it is postponed. Shorter than a usual
deadlock_timeout, so that a user's command never becomes the victim of a deadlock with the pump."""

CATALOG_LOCK_TIMEOUT = "10s"
"""How long a read of the catalog waits that people and probes wait for."""

_LOCK_LIMIT = "2min"
"""How long other statements wait for a lock: longer than any program of the mirror's holds one in schema modak. What
waits longer fails, which is told and tried again, instead of hanging without a word."""

PINNED_SETTINGS: dict[str, str] = {
    # What names in statements refer to. Types and relations of users are also printed with their schema thereby.
    "search_path": PINNED_PATH,
    # How values are printed.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    # How literals are parsed: those in our statements, and keys that are sent back as text.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "xmloption": "content",
    # What a query returns: an index that leaves rows out, a refusal that ends the session, a warning that is an error.
    "gin_fuzzy_search_limit": "0",
    "exit_on_error": "off",
    "plpgsql.extra_errors": "none",
    # Tables of the catalog, and temporary ones, need row locks and updates.
    "default_table_access_method": "heap",
    # The publish transaction takes explicit locks, and must be able to write.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    # A policy that would hide rows raises an error instead: a copy without these rows would be silently wrong.
    "row_security": "off",
    # Chunk reads are short; compiling their expressions costs more than it saves.
    "jit": "off",
    # An acknowledged publish must survive a crash. Otherwise the slot would be ahead of the frontier afterwards. But it
    # does not wait for standbys: our own stream may count as one, and moves only once the publish is committed.
    "synchronous_commit": "local",
    # Limits that a role or database may carry for interactive users.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # How long the server keeps the session, and the locks, of a host that crashed or was cut off: seconds, probes. With
    # the kernel's defaults no other pump could lead for two hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

_PINNED_FOR_ANSWERS: dict[str, str] = {
    # Milliseconds that an answer may stay unread; the probes above do not run during that time. Not for connections
    # that deliver rows while others work on them: Linux also ends a connection that is merely not read for so long
    # (tcp(7), TCP_USER_TIMEOUT).
    "tcp_user_timeout": "60000",
}
"""Further settings for connections whose answers are read at once."""

_CONNECTION_DEFAULTS: dict[str, str] = {
    # Seconds. The kernel's default notices a dead peer after two hours.
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Milliseconds. Applies instead of the probes while data that we sent is not acknowledged.
    "tcp_user_timeout": "60000",
}

CONNECTS_AGAIN = "mirror-pump connects again by itself"
"""What to do about a connection that was lost while the server seems to be there."""
RECONNECTS = "mirror-pump reconnects by itself; if it does not succeed, see the server's log"
"""What to do about a lost connection of which nothing else is known."""

AS_ITS_ROLE = (
    "run the command as the role that it is for (docs/roles.md): `init`, `register`, `unregister`, `profile` and"
    " `reader` as the admin, `sql`, `wait` and `connect` as a reader, others as the pump"
)
"""What to do about a right that the role lacks."""

_READ_ONLY = "25006"
"""The server is a standby: our sessions are never read-only otherwise. It may be promoted, or the next attempt may find
the primary."""

_NO_CONVERSION = "0A000"
"""There is no conversion between the database's encoding and UTF8."""

_MALFORMED = re.compile(r"invalid |could not match \d|definition of service|bad value for ")
"""The beginnings of libpq's errors about the connection string itself, which come before any connection attempt."""


STREAM = "mirror-pump-stream"
"""application_name of the walsender, by which synchronous_standby_names can name it."""


def connect(
    dsn: str, *, autocommit: bool = False, application_name: str = "mirror-pump", lock_timeout: str = _LOCK_LIMIT
) -> PgConnection:
    """An ordinary connection with the pinned settings, whose statements wait for each lock for `lock_timeout` (0: as
    long as it takes).

    Raises ConnectionLost if the server cannot be reached, or is starting or stopping (worth a retry); SourceError if it
    refuses the connection; UsageError if `dsn` is not a connection string.
    """
    pinned = PINNED_SETTINGS | _PINNED_FOR_ANSWERS | {"lock_timeout": lock_timeout}
    try:
        return authenticated(
            dsn,
            lambda dsn: open_session(_conninfo(dsn, pinned, application_name=application_name), autocommit=autocommit),
        )
    except psycopg.Error as error:
        raise _connect_error(error, dsn) from error


def session_time_zone(dsn: str) -> str:
    """The time zone of the role's own sessions, which our connections override. Raises ConnectionLost,
    SourceError and UsageError, as `connect` does."""
    of_others = {name: value for name, value in PINNED_SETTINGS.items() if name != "TimeZone"}
    try:
        with authenticated(dsn, lambda dsn: open_session(_conninfo(dsn, of_others), autocommit=True)) as connection:
            row = connection.execute("SHOW TimeZone").fetchone()
    except psycopg.Error as error:
        raise _connect_error(error, dsn) from error
    assert row is not None
    return str(row[0])


def replication_connect(dsn: str, *, application_name: str = STREAM) -> PGconn:
    """A walsender connection to the DSN's database (`replication=database`), with the pinned settings.

    pgoutput prints values in this session, so the settings matter as much as in a copy. psycopg has no replication
    cursor: the caller uses libpq's COPY BOTH calls. Raises ConnectionLost, SourceError and UsageError,
    as `connect` does.
    """
    try:
        return authenticated(
            dsn, lambda dsn: open_settled(_conninfo(dsn, application_name=application_name, replication="database"))
        )
    except psycopg.Error as error:
        raise _connect_error(error, dsn) from error


def with_current_password(dsn: str) -> str:
    """A connection string for clients that take the password as text: if a program prints it, with the one that the
    server accepts now. Raises the errors of `connect`."""
    if not isinstance(dsn, RotatingDsn):
        return dsn
    with connect(dsn, autocommit=True) as connection:
        return conninfo.make_conninfo(dsn, password=connection.info.password)


def with_connect_timeout(dsn: str, seconds: int) -> str:
    """`dsn` with a limit for the time that connecting to a server takes."""
    text = conninfo.make_conninfo(dsn, connect_timeout=seconds)
    return RotatingDsn(text, dsn.command, dsn.password) if isinstance(dsn, RotatingDsn) else text


def adbc_uri(dsn: str) -> str:
    """The connection string for ADBC's Postgres driver, which passes it to libpq; with the pinned settings. Within
    `authenticated`, if a program prints the password."""
    return _conninfo(dsn, application_name="mirror-pump-copy")


_OWN_PARAMETERS = frozenset(
    {"application_name", "client_encoding", "options", "passfile", "replication", "service", "servicefile"}
)
"""Parameters that each connection sets for itself, and files of this machine whose content portable_dsn() puts in."""


def exported_snapshot(connection: PgConnection) -> str:
    """The name of the open transaction's snapshot, for others that read in it."""
    row = connection.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])


def portable_dsn(dsn: str, connection: PgConnection) -> str:
    """A DSN that means the same in a process elsewhere, such as an executor of a cluster: it has what libpq has taken
    from this process's environment (PGPASSWORD and so on), password file or service file to open `connection` from
    `dsn`. It contains the password. Files of certificates are still named by their path, and so is a program that
    prints the password, which is run there once this one is refused."""
    given = conninfo.conninfo_to_dict(dsn)
    parameters = connection.info.get_parameters()
    merged = {key: value for key, value in parameters.items() if key not in _OWN_PARAMETERS}
    if given.get("options"):
        merged["options"] = str(given["options"])
    if isinstance(dsn, RotatingDsn):
        merged.pop("password", None)
        return RotatingDsn(conninfo.make_conninfo("", **merged), dsn.command, connection.info.password)
    if connection.info.password:
        merged["password"] = connection.info.password
    return conninfo.make_conninfo("", **merged)


@contextmanager
def limited(connection: PgConnection, lock_timeout: str = LOCK_TIMEOUT) -> Iterator[None]:
    """A transaction, or a part of one, that waits for a lock at most `lock_timeout`."""
    with connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))
        yield


@contextmanager
def acting_as(connection: psycopg.Connection[Any], role: str | None) -> Iterator[None]:
    """The open transaction has the rights of `role` for the block; with None, those that it has anyway. An error in the
    block ends the transaction, and the role with it."""
    if role is None:
        yield
        return
    connection.execute(f"SET LOCAL ROLE {identifier(role)}".encode())
    yield
    # Not NONE: a role may have another one by itself (ALTER ROLE ... SET role).
    connection.execute("RESET ROLE")


@contextmanager
def source_errors(doing: str) -> Iterator[None]:
    """Converts psycopg errors of the block as `as_source_error` does. `doing` completes "while ..."."""
    try:
        yield
    except psycopg.Error as error:
        raise as_source_error(error, doing) from error


def as_source_error(error: psycopg.Error, doing: str) -> SourceError:
    """ConnectionLost if a new connection may cure `error`, TransientRefusal if another attempt may, else SourceError,
    for the caller to raise."""
    detail = one_line_of(error)
    if error.sqlstate == _READ_ONLY:
        return ConnectionLost(
            f"the server is a standby, seen while {doing}: {detail}",
            "mirror-pump tries again by itself; name all servers in the connection string, with"
            " target_session_attrs=read-write",
        )
    if is_connection_loss(error):
        return ConnectionLost(
            f"the connection to Postgres was lost while {doing}: {detail}",
            RECONNECTS,
        )
    if is_transient(error):
        return TransientRefusal(f"Postgres refused while {doing}: {detail}", TRANSIENT_REMEDY)
    return SourceError(f"Postgres refused while {doing}: {detail}", _remedy_for(error.sqlstate))


def _remedy_for(sqlstate: str | None) -> str:
    if sqlstate == "42501":
        return f"{AS_ITS_ROLE}. If it was, grant the permission in the message; `mirror-pump doctor` says how"
    if sqlstate in ("3F000", "42P01", "42883"):
        return (
            "if schema modak is missing, run `mirror-pump init` first; if a function of a table, such as a trigger,"
            " names it without its schema, give that function a search_path (docs/roles.md)"
        )
    return ""


def parsed_dsn(dsn: str) -> dict[str, Any]:
    """The parameters of a connection string. Raises UsageError, without any part of the string, if it is none, or if a
    part of its password would be taken for a host, a port or a database, which messages name."""
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # libpq's message quotes the string, and with it the password.
        given = None
    if given is None:
        raise UsageError(
            "the connection string cannot be read",
            "give a URI (postgresql://user@host/database) or libpq keywords (host=... dbname=...), and quote special"
            " characters of the password, in a URI by %2F for / and so on, in a keyword's value by '...'",
        )
    is_uri = dsn.startswith(("postgresql://", "postgres://"))
    database = dsn.partition("://")[2].partition("/")[2].partition("?")[0] if is_uri else ""
    # A host that begins with it is an abstract Unix socket.
    in_hosts = any("@" in host[1:] for host in str(given.get("host") or "").split(","))
    if in_hosts or "@" in database or not re.fullmatch("[0-9,]*", str(given.get("port") or "")):
        raise UsageError(
            "the connection string cannot be read: it has more than one @, or a port that is no number",
            "if the password of a URI has one of the characters @ : / ? # %, write %40 %3A %2F %3F %23 %25",
        )
    return given


def _conninfo(dsn: str, pinned_settings: Mapping[str, str] = PINNED_SETTINGS, **parameters: str) -> str:
    given = parsed_dsn(dsn)
    # The server splits `options` at blanks, except after a backslash.
    pinned = " ".join("-c {}={}".format(name, value.replace(" ", "\\ ")) for name, value in pinned_settings.items())
    # The user's own options come first: the last value of a setting wins.
    options = f"{given.pop('options', None) or ''} {pinned}".strip()
    merged: dict[str, Any] = {**_CONNECTION_DEFAULTS, **given, **parameters}
    merged |= {"options": options, "client_encoding": "UTF8"}
    return conninfo.make_conninfo("", **merged)


def _connect_error(error: psycopg.Error, dsn: str) -> SourceError | UsageError:
    detail = one_line_of(error)
    failed = f"cannot connect to {describe_dsn(dsn)}: {detail}"
    if isinstance(error, (SettingForced, NotPassedOn)):
        return SourceError(failed, error.remedy)
    unsent = isinstance(error, ConnectFailed) and not error.states
    if isinstance(error, psycopg.ProgrammingError) or (unsent and _MALFORMED.match(detail)):
        return UsageError(
            f"the connection string cannot be used: {detail}",
            "give a URI (postgresql://user@host/database) or libpq keywords (host=... dbname=...)",
        )
    if not isinstance(error, ConnectFailed):
        return ConnectionLost(failed, RECONNECTS)
    pooler = refusing_pooler(error, str(conninfo.conninfo_to_dict(dsn).get("host") or "").split(","))
    if pooler is not None:
        return SourceError(
            f"{failed}. {pooler.name} answers there, and gives no session of its own: the mirror needs sessions that"
            " keep settings, locks and LISTEN, and a stream",
            pooler.remedy,
        )
    if _NO_CONVERSION in error.states:
        return SourceError(failed, "copy the database into one with an encoding that Postgres can convert to UTF8")
    if isinstance(dsn, RotatingDsn) and error.password_refused:
        return ConnectionLost(
            failed,
            "the password that password_command printed is refused; mirror-pump tries again by itself. If that does not"
            " help, run the program by hand and compare",
        )
    if error.needs_operator:
        return SourceError(
            failed, "check user, password, database and pg_hba.conf; the role needs LOGIN and REPLICATION"
        )
    return ConnectionLost(failed, "check that the server is running and reachable")


def describe_dsn(dsn: str) -> str:
    """The DSN's host, port and database, for messages. Never contains its password."""
    given = conninfo.conninfo_to_dict(dsn)
    host, port, database = (given.get(name) for name in ("host", "port", "dbname"))
    return f"database {database or '(default)'} on {host or 'the local socket'}" + (f":{port}" if port else "")
