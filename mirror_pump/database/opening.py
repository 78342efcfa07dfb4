"""Opens connections by libpq, and keeps what a server's protocol says of a refused attempt, in whatever language.

libpq returns a refusal as text alone, in the language of the server (lc_messages). In its verbose form the text has two
fields of the protocol that are the same in each language: the SQLSTATE, and the routine of the server that reported the
error. So an attempt is verbose, and the session after it is not.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import selectors
import sys
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from psycopg import conninfo, pq
from psycopg.pq.abc import PGconn

_DEFAULT_VERBOSITY, _VERBOSE = 1, 2
"""Values of libpq's PGVerbosity."""

_STATE = re.compile(r":  ([0-9A-Z]{5}): ")
_PLACE = re.compile(r"\n[^\n:]+:\s+(?:(?P<routine>\w+), )?[^\s:]+:\d+\s*\Z")
"""Where the verbose form has the SQLSTATE, behind the severity, and the place in the server's source (libpq,
pqBuildErrorMessage3). Words and severities are translated, this punctuation is not."""

_NEEDS_OPERATOR = ("08P01", "0A", "22", "28", "3D", "3F", "42")
"""Beginnings of the SQLSTATEs with which a server refuses a connection until it, or the connection string, is changed.
08P01 is a pooler's. Others pass: a server that starts or stops, or has no connection left."""

_TLS_NEEDED = ("certificate verify failed", "does not support SSL")
"""Parts of the texts of OpenSSL and libpq themselves, which are in English as long as a program chooses no locale for
messages. Unresolved host names are not among them: name services fail for minutes, and containers get their names when
they start."""

_LONGEST_LOOK = 0.1
"""Seconds after which the wait looks around: another thread may have got the signal that is to end it."""


@dataclass(frozen=True)
class _Refusal:
    """Why one server did not take the connection."""

    text: str
    """For people, in the server's language."""
    state: str | None
    """The SQLSTATE. None if no server has answered: the reason is libpq's, or the network's."""
    routine: str | None
    """The routine of the server that reported the error. Poolers tell none."""


class ConnectFailed(psycopg.OperationalError):
    """No server took the connection."""

    def __init__(self, refusals: list[_Refusal], *, password_asked: bool, password_missing: bool) -> None:
        """`password_missing`: a server has asked for a password, and there is none."""
        super().__init__("; ".join(refusal.text for refusal in refusals))
        self.states = tuple(refusal.state for refusal in refusals if refusal.state is not None)
        """The SQLSTATEs of the servers that answered."""
        self.sqlstate = self.states[-1] if self.states else None
        self.password_asked = password_asked
        """A server has asked for the password, and got one."""
        self.password_refused = any(
            refusal.state == "28P01" or refusal.routine == "auth_failed" for refusal in refusals
        )
        """A server has refused the password, or what stands for one."""
        self.needs_operator = (
            password_missing
            or any(state.startswith(_NEEDS_OPERATOR) for state in self.states)
            or any(part in str(self) for part in _TLS_NEEDED)
        )
        """Another attempt fails as well until the server or the connection string is changed."""


def open_connection(text: str) -> PGconn:
    """A connection to the first server of the connection string that takes it. Raises ConnectFailed, and
    psycopg.ProgrammingError if the string cannot be read."""
    refusals = []
    asked = missing = False
    for server in _servers(text):
        # The default's too: a server that does not answer at all must not hold the program up for ever.
        seconds = conninfo.timeout_from_conninfo(conninfo.conninfo_to_dict(server))
        # Not PQconnectdb: it holds Python's global interpreter lock until the server answers.
        connection = pq.PGconn.connect_start(server.encode())
        _set_verbosity(connection, _VERBOSE)
        failure = _await_connection(connection, time.monotonic() + seconds)
        if not failure:
            _set_verbosity(connection, _DEFAULT_VERBOSITY)
            return connection
        refusals.append(_refusal(failure))
        asked = asked or connection.used_password
        missing = missing or connection.needs_password
        connection.finish()
    raise ConnectFailed(refusals, password_asked=asked, password_missing=missing)


def _refusal(failure: str) -> _Refusal:
    place = _PLACE.search(failure)
    text = failure if place is None else failure[: place.start()]
    states = _STATE.findall(text)
    return _Refusal(
        _STATE.sub(":  ", text), states[-1] if states else None, place["routine"] if place is not None else None
    )


def _servers(text: str) -> list[str]:
    """One connection string for each server that `text` names, in its order, or by chance if it says so.

    libpq would try them in one attempt, and PQconnectPoll knows no time-out: a server that does not answer at all would
    use up the time of those behind it.
    """
    given = conninfo.conninfo_to_dict(text)
    from_environment = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}
    named = {name: given.get(name) or os.environ.get(variable) for name, variable in from_environment.items()}
    lists = {name: str(value).split(",") for name, value in named.items() if value}
    count = max((len(values) for values in lists.values()), default=1)
    if count == 1 or any(len(values) != count for name, values in lists.items() if name != "port" or len(values) > 1):
        # libpq reports lists of different lengths.
        return [text]
    servers = [
        conninfo.make_conninfo(
            "",
            **{**given, **{name: values[place if len(values) > 1 else 0] for name, values in lists.items()}},
        )
        for place in range(count)
    ]
    if given.get("load_balance_hosts") == "random":
        random.shuffle(servers)
    return servers


def _await_connection(connection: PGconn, deadline: float) -> str:
    """Waits until a connection attempt has succeeded. Returns the reason if it fails, else an empty string."""
    # connect_poll must not be called on a connection that is bad from the start (libpq docs, PQconnectPoll).
    polled = pq.PollingStatus.FAILED if connection.status == pq.ConnStatus.BAD else pq.PollingStatus.WRITING
    while polled not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
        event = selectors.EVENT_READ if polled == pq.PollingStatus.READING else selectors.EVENT_WRITE
        # Each poll may change the socket: for another address of the host, or after a refusal of TLS.
        with selectors.DefaultSelector() as selector:
            selector.register(connection.socket, event)
            while (left := deadline - time.monotonic()) > 0 and not selector.select(min(left, _LONGEST_LOOK)):
                pass
            if left <= 0:
                return "timeout expired"
        polled = pq.PollingStatus(connection.connect_poll())
    return "" if polled == pq.PollingStatus.OK else connection.get_error_message()


def _set_verbosity(connection: PGconn, verbosity: int) -> None:
    # psycopg's protocol for all its implementations lacks the pointer that each has.
    pointer: int = connection.pgconn_ptr  # type: ignore[attr-defined]
    _libpq().PQsetErrorVerbosity(pointer, verbosity)


@cache
def _libpq() -> Any:
    """The libpq that psycopg uses, which lacks this one function. A name that is looked up in psycopg's own library is
    found in those that it is linked to."""
    module: Any = sys.modules[pq.PGconn.__module__]
    library = module.pq if pq.__impl__ == "python" else ctypes.CDLL(module.__file__)
    library.PQsetErrorVerbosity.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.PQsetErrorVerbosity.restype = ctypes.c_int
    return library
