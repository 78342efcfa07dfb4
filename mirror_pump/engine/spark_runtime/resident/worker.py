"""What runs in a slot of Spark: a task that connects to the driver and does the pump's work until that hangs up."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mirror_pump.engine.spark_runtime.resident.address import Address
from mirror_pump.engine.spark_runtime.resident.frames import Hangup, Unreadable, receive, send, send_byte
from mirror_pump.engine.spark_runtime.resident.handshake import NotAuthenticated, greet_driver
from mirror_pump.errors import MirrorPumpError
from mirror_pump.runtime.table_work import is_of_one_table

_GREETED = 10.0
"""Seconds for connecting to the driver, and for the handshake."""
_PATIENCE = 30.0
"""Seconds for which a resident goes on trying: the driver may be busy."""
_PAUSE = 0.5


@dataclass(frozen=True)
class Invitation:
    """What a resident needs to know. Spark passes it on."""

    address: Address
    number: int
    """The resident's."""
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class Returned:
    """What a function returned."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """An error of this project. It keeps its type and its remedy."""

    error: MirrorPumpError


@dataclass(frozen=True)
class Failed:
    """Any other exception, as text, since the driver may not be able to unpickle it."""

    traceback: str
    unexpected: bool = False
    """Whether the function raised what no code expects, which is no trouble of the machine (`is_of_one_table`)."""


TaskOutcome = Returned | Raised | Failed


def serve(invitation: Invitation, _items: Iterable[object]) -> Iterator[int]:
    """The function of the Spark task. Ends when the driver hangs up, and so when there is none any more."""
    connection = _connect(invitation)
    with connection, contextlib.suppress(Hangup):
        while True:
            _serve_next(connection)
    yield os.getpid()


def _connect(invitation: Invitation) -> socket.socket:
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            connection = invitation.address.connect(_GREETED)
            try:
                greet_driver(connection, invitation.secret, invitation.number)
                connection.settimeout(None)
            except BaseException:
                connection.close()
                raise
        except (OSError, NotAuthenticated) as error:
            if time.monotonic() > give_up:
                raise ConnectionError(f"no way to the driver at {invitation.address}: {error}") from error
            time.sleep(_PAUSE)
        else:
            return connection


def _serve_next(connection: socket.socket) -> None:
    """Does one task. All that it took is free again when it has ended."""
    try:
        function, task = receive(connection)
    except Unreadable as error:
        send_byte(connection)
        send(connection, Failed(_text_of(error.__cause__)))
        return
    # From here on the task may have had effects.
    send_byte(connection)
    outcome = _outcome(function, task)
    try:
        send(connection, outcome)
    except Hangup:
        raise
    except Exception as error:  # noqa: BLE001 (the result cannot be pickled)
        send(connection, Failed(_text_of(error)))


def _outcome(function: Any, task: Any) -> TaskOutcome:
    try:
        return Returned(function(task))
    except MirrorPumpError as error:
        return Raised(error)
    except Exception as error:  # noqa: BLE001 (the driver decides)
        return Failed(_text_of(error), is_of_one_table(error))


def _text_of(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error))
