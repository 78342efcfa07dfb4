"""A TCP proxy before Postgres that can stop passing data on, without ending a connection: a network that loses
everything, or a physical standby that falls behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

_WALRECEIVER = b"replication\0true\0"
"""In the start-up packet of a physical standby (PostgreSQL documentation, StartupMessage)."""


class Gate:
    """Forwards connections to a server. While it is shut, nothing passes in either direction and nobody is told."""

    def __init__(self, dsn: str, *, only_walreceivers: bool = False) -> None:
        """`only_walreceivers`: other connections pass even while it is shut."""
        parts = urlsplit(dsn)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._only_walreceivers = only_walreceivers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.dsn = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{self.port}"))
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def shut(self) -> None:
        """From now on nothing passes. What was read but not passed on waits."""
        self._open.clear()

    def open(self) -> None:
        """What waits passes, and everything after it."""
        self._open.set()

    def close(self) -> None:
        """Ends every connection. What waits is lost."""
        self._closed = True
        self._open.set()
        with suppress(OSError):
            # Closing alone does not end an accept in another thread.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                link = _Link()
                for source, sink, watch in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._forward, args=(source, sink, link, watch), name="gate", daemon=True
                    ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, link: _Link, watch: bool) -> None:
        with suppress(OSError):
            while True:
                data = source.recv(65536)
                if watch and _WALRECEIVER in data:
                    link.of_walreceiver = True
                if link.of_walreceiver or not self._only_walreceivers:
                    self._open.wait()
                if self._closed or not data:
                    break
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class _Link:
    """A connection."""

    of_walreceiver = False


@contextmanager
def gated(dsn: str, *, only_walreceivers: bool = False) -> Iterator[Gate]:
    """A gate for the time of the block."""
    gate = Gate(dsn, only_walreceivers=only_walreceivers)
    try:
        yield gate
    finally:
        gate.close()
