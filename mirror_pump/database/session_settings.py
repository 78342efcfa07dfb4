"""Settings that our sessions need and no startup packet may carry: a role may lack the right, a server the setting.

`ALTER ROLE`, `ALTER DATABASE` and the server's configuration can give them other values. Each session looks, and puts
right what its role may; otherwise it is refused, with the statement that takes the value away. docs/session-settings.md
says what each setting of PostgreSQL is to the mirror.

The same look finds out whether the startup packet has arrived: a pooler may leave its settings out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn

from mirror_pump.database.catalog_cursor import cursor_for
from mirror_pump.database.mirror_dsn import mirror_of
from mirror_pump.database.opening import open_connection
from mirror_pump.database.poolers import not_passed_on
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.database.startup_options import option_values

REQUIRED_SETTINGS: dict[str, str] = {
    # Foreign keys cascade, and guards of the catalog and notes of changes are triggers.
    "session_replication_role": "origin",
    "event_triggers": "on",
    # A damaged page is an error, not a page without rows or with other ones.
    "zero_damaged_pages": "off",
    "ignore_checksum_failure": "off",
    # Standbys see by it that the leader is alive.
    "track_activities": "on",
    # Queries read views of the catalog.
    "restrict_nonsystem_relation_kind": "",
    # A limit that a role or database may carry for interactive users. It also ends a walsender that takes longer to
    # decode a transaction, again on each attempt.
    "transaction_timeout": "0",
}
"""By name, the value that each session has. A server that lacks a setting has no session without it."""

SETTLE = (
    "SELECT pg_catalog.set_config(name, value, false) FROM (VALUES "
    + ", ".join(f"({literal(name)}, {literal(value)})" for name, value in REQUIRED_SETTINGS.items())
    + ") required (name, value) WHERE pg_catalog.current_setting(name, true) <> value"
)
"""SQL: does the same on a connection of another driver."""

_SENT = ("search_path", "row_security", "synchronous_commit")
"""Settings of startup packets that tell whether the others have arrived. The last two are told to no client, so no
pooler can keep them for it as PgBouncer does with others (track_extra_parameters)."""

_LOOK = "SELECT pg_catalog.pg_backend_pid(), " + ", ".join(
    f"pg_catalog.current_setting({literal(name)}, true)" for name in (*_SENT, *REQUIRED_SETTINGS)
)

_SOURCE = "SELECT source, session_user, pg_catalog.current_database() FROM pg_catalog.pg_settings WHERE name = {name}"

_TAKEN_AWAY = {
    "user": "ALTER ROLE {role} RESET {name}",
    "database": "ALTER DATABASE {database} RESET {name}",
    "database user": "ALTER ROLE {role} IN DATABASE {database} RESET {name}",
    "global": "ALTER ROLE ALL RESET {name}",
    "client": "leave {name} out of the options of the connection string",
}
"""By pg_settings.source, how a value is taken away."""


class SettingForced(psycopg.OperationalError):
    """The session has a value with which our statements would mean something else, and the role may not change it."""

    def __init__(self, name: str, value: str, remedy: str) -> None:
        super().__init__(f"sessions of this role have {name} = {value}, and it may not change that")
        self.sqlstate = "42501"
        self.remedy = remedy


def open_session(text: str, *, autocommit: bool) -> psycopg.Connection[tuple[Any, ...]]:
    """An ordinary connection, with the required settings, for the catalog of the mirror that `text` is for. Raises as
    `open_settled`."""
    cursors = cursor_for(mirror_of(text))
    settled_connection = open_settled(text)
    # As psycopg leaves it after connecting.
    settled_connection.nonblocking = 1
    connection = psycopg.Connection[tuple[Any, ...]](settled_connection)
    connection.autocommit = autocommit
    connection.cursor_factory = cursors
    return connection


def open_settled(text: str) -> PGconn:
    """A connection to a server of this connection string, with the required settings. Raises ConnectFailed,
    SettingForced and NotPassedOn."""
    connection = open_connection(text)
    try:
        settle(connection)
    except BaseException:
        connection.finish()
        raise
    return connection


def settle(connection: PGconn) -> None:
    """Give a new session the required settings. Below psycopg, which would begin a transaction.

    Raises SettingForced, NotPassedOn if it lacks those of its startup packet, and psycopg.Error if the connection is
    lost.
    """
    process_id, *values = _row(connection, _LOOK)
    _require_sent(connection, int(process_id or 0), values[: len(_SENT)])
    for (name, required), value in zip(REQUIRED_SETTINGS.items(), values[len(_SENT) :], strict=True):
        if value is not None and value != required:
            result = connection.exec_(f"SET {name} = {literal(required)}".encode())
            if result.status == pq.ExecStatus.FATAL_ERROR and connection.status == pq.ConnStatus.OK:
                raise _forced(connection, name, value, required)


def _require_sent(connection: PGconn, process_id: int, values: Sequence[str | None]) -> None:
    """Raises NotPassedOn if a setting of the startup packet is another one in the session."""
    options = next((option.val for option in connection.info if option.keyword == b"options"), None)
    for name, value in zip(_SENT, values, strict=True):
        sent = option_values((options or b"").decode(), name)
        if sent and value != sent[-1]:
            raise not_passed_on(connection, name, str(value), sent[-1], process_id)


def _forced(connection: PGconn, name: str, value: str, required: str) -> SettingForced:
    source, role, database = (text or "" for text in _row(connection, _SOURCE.format(name=literal(name))))
    in_configuration = f"ALTER SYSTEM SET {name} = {literal(required)}; SELECT pg_reload_conf()"
    statement = _TAKEN_AWAY.get(source, in_configuration).format(
        name=name, role=identifier(role), database=identifier(database)
    )
    return SettingForced(name, value, f"as a superuser: {statement}" if source != "client" else statement)


def _row(connection: PGconn, query: str) -> list[str | None]:
    result = connection.exec_(query.encode())
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise psycopg.OperationalError(connection.get_error_message())
    values = (result.get_value(0, column) for column in range(result.nfields))
    return [None if value is None else value.decode() for value in values]
