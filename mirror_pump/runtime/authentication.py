"""Opens connections with the password that a program prints, and again with a new one when that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mirror_pump.database.opening import ConnectFailed
from mirror_pump.errors import UsageError
from mirror_pump.runtime.password_command import RotatingDsn

_Opened = TypeVar("_Opened")


def password_asked(error: Exception) -> bool:
    """Whether a connection attempt failed after the server had asked for the password."""
    return isinstance(error, ConnectFailed) and error.password_asked


def authenticated(
    dsn: str, attempt: Callable[[str], _Opened], refused: Callable[[Exception], bool] = password_asked
) -> _Opened:
    """What `attempt` opens with `dsn`. If a program prints the password, with that; and once more with a new one if
    `refused` says of its error that the password may be the reason.

    Raises the errors of `attempt`, and for such a program UsageError and ConnectionLost.
    """
    if not isinstance(dsn, RotatingDsn):
        return attempt(dsn)
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error:
        # It says what is wrong.
        return attempt(dsn)
    if given.get("password"):
        raise UsageError(
            "the connection string has a password, and password_command is to print it", "remove one of the two"
        )
    error: Exception | None = None
    for password in dsn.passwords():
        try:
            opened = attempt(make_conninfo(dsn, password=password))
        except Exception as failed:
            if not refused(failed):
                raise
            error = failed
        else:
            dsn.accepted(password)
            return opened
    assert error is not None
    raise error
