"""Python objects on a stream socket: each a frame of its pickle's length and the pickle.

Large byte strings go from the object to the socket, and from there into the new object, without a copy in between. Only
what comes from an authenticated peer may be received: a pickle can run code.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("!Q")
_BUFFER = 1 << 16


class Hangup(Exception):
    """The peer is gone, or does not answer any more."""


class Unreadable(Exception):
    """The frame was received to its end, but its content cannot be unpickled, for the reason that is the cause. The
    next frame can be received."""


def send(connection: socket.socket, value: object, pickler: Callable[..., Any] = pickle.Pickler) -> None:
    """Raises Hangup; and whatever the pickler raises, before anything is sent."""
    parts = _Parts()
    pickler(parts, protocol=5).dump(value)
    try:
        # Most frames are small, and need one packet only.
        first = bytes(parts.pop(0)) if len(parts[0]) <= _BUFFER else b""
        connection.sendall(_LENGTH.pack(len(first) + sum(map(len, parts))) + first)
        for part in parts:
            connection.sendall(part)
    except OSError as error:
        raise Hangup(str(error)) from error


def receive(connection: socket.socket) -> Any:
    """The next object. Raises Hangup and Unreadable."""
    header = _Body(connection, _LENGTH.size)
    (length,) = _LENGTH.unpack(header.rest())
    body = _Body(connection, length)
    try:
        return pickle.Unpickler(io.BufferedReader(body, _BUFFER)).load()  # noqa: S301 - the peer is authenticated
    except Hangup:
        raise
    except Exception as error:
        # It may be for want of memory, so the rest is not kept.
        body.skip()
        raise Unreadable from error


def send_byte(connection: socket.socket) -> None:
    """Sends a sign without content. Raises Hangup."""
    try:
        connection.sendall(b"\0")
    except OSError as error:
        raise Hangup(str(error)) from error


def receive_byte(connection: socket.socket) -> None:
    """Waits for a sign. Raises Hangup."""
    _Body(connection, 1).rest()


class _Parts(list[Any]):
    """A file for a pickler. It keeps what is written: large byte strings are the object's own."""

    def write(self, part: Any) -> None:
        self.append(part if isinstance(part, bytes) else memoryview(part).cast("B"))


class _Body(io.RawIOBase):
    """The next `remaining` bytes of a connection, as a file for an unpickler."""

    def __init__(self, connection: socket.socket, remaining: int) -> None:
        self._connection = connection
        self._remaining = remaining

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer)[: self._remaining]
        if not target:
            return 0
        try:
            count = self._connection.recv_into(target)
        except OSError as error:
            raise Hangup(str(error)) from error
        if not count:
            raise Hangup("the connection was closed")
        self._remaining -= count
        return count

    def rest(self) -> bytes:
        """All that remains, of a few bytes."""
        return io.BufferedReader(self, _BUFFER).read()

    def skip(self) -> None:
        scrap = bytearray(_BUFFER)
        while self.readinto(scrap):
            pass
