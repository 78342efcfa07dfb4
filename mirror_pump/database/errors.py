"""What an error of Postgres's driver means: a session that ended, a refusal whose reason may pass, or another one."""

from __future__ import annotations

import psycopg

from mirror_pump.database.opening import ConnectFailed

_LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""Shutdown, crash, start-up, and time-outs that end the session. Like class 08, they call for a new connection."""

_TRANSIENT_SQLSTATES = (
    # Transaction rollback: a deadlock, a serialization failure.
    "40",
    # Insufficient resources.
    "53",
    # An object in use, a lock that was not granted in time.
    "55006",
    "55P03",
    # A cancelled statement, or one that took too long.
    "57014",
    # System errors: input and output, files.
    "58",
    # Internal errors. This is what catalog functions raise for an object that is dropped while they look at it.
    "XX000",
)
"""Beginnings of the SQLSTATEs of refusals whose reason may be gone at the next attempt."""

TRANSIENT_REMEDY = "the reason may have passed: try again, as a pump does by itself; otherwise see the server's log"


def is_connection_loss(error: psycopg.Error) -> bool:
    """Whether `error` means that the session has ended, or could not begin for the time being, as opposed to a refused
    statement."""
    if isinstance(error, ConnectFailed):
        return not error.needs_operator
    if error.sqlstate is not None:
        return error.sqlstate.startswith("08") or error.sqlstate in _LOST_SQLSTATES
    return isinstance(error, psycopg.OperationalError)


def is_transient(error: psycopg.Error) -> bool:
    """Whether another attempt may succeed where the server refused this one."""
    return (error.sqlstate or "").startswith(_TRANSIENT_SQLSTATES)
