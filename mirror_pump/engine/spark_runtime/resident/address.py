"""Where residents find the driver: a Unix socket on the same machine, or TCP with TLS from the nodes of a cluster."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mirror_pump.runtime.private_files import private_directory

_BACKLOG = 128
_PREFIX = "tasks-"
_PROBES = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_SILENCE = 30
"""Seconds after which a peer that acknowledges nothing is gone: a machine that vanished, a network that drops."""


class Address(Protocol):
    """Where the driver listens."""

    def connect(self, timeout: float) -> socket.socket:
        """A connection to the driver, not yet authenticated, with this timeout in seconds. Raises OSError."""


@dataclass(frozen=True)
class UnixAddress:
    """A socket that this user alone can connect to."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def listen(cls) -> tuple[socket.socket, UnixAddress]:
        """A listening socket in the user's private directory, and its address. Raises OSError."""
        directory = private_directory()
        for other in directory.glob(f"{_PREFIX}*"):
            _remove_if_abandoned(other)
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        address = cls(directory / f"{_PREFIX}{name}")
        listening = socket.socket(socket.AF_UNIX)
        with _short(directory / f"new-{name}") as path:
            listening.bind(path)
            listening.listen(_BACKLOG)
        # It gets its name once it listens: another process that found it earlier would take it for abandoned.
        (directory / f"new-{name}").rename(address.path)
        return listening, address

    def connect(self, timeout: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout)
            with _short(self.path) as path:
                connection.connect(path)
        except BaseException:
            connection.close()
            raise
        return connection


@dataclass(frozen=True)
class TcpAddress:
    """A port of the driver's machine, and the certificate by which it is known."""

    host: str
    port: int
    certificate: bytes = field(repr=False)
    """DER. It is the driver's own, made for this application."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self, timeout: float) -> socket.socket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # This certificate and no other, so its name does not matter.
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.certificate)
        plain = socket.create_connection((self.host, self.port), timeout)
        try:
            watch_peer(plain)
            return context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise


def listen_tcp(host: str, port: int) -> socket.socket:
    """A socket that listens there; with port 0, on any free one. Raises OSError."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


def watch_peer(connection: socket.socket) -> None:
    """Ends waiting for a peer whose machine is gone, and sends small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the path that fits into the address of a Unix socket, which has 108 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _remove_if_abandoned(path: Path) -> None:
    """Removes the socket of a driver that was killed."""
    try:
        UnixAddress(path).connect(1.0).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except OSError:
        # Its driver is ending, or busy.
        return
