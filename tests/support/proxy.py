"""A TCP proxy in front of Postgres that can lose a connection at its worst moment, during COMMIT, or without the
server's noticing, and hold an answer back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from urllib.parse import urlsplit, urlunsplit

_COMMIT = b"COMMIT\0"
"""The bytes with which a COMMIT of the simple query protocol ends (PostgreSQL documentation, message format Query)."""


_IDLE = b"Z\0\0\0\5I"
"""The message ReadyForQuery outside a transaction."""


class Loss(Enum):
    """What the server receives of the COMMIT."""

    BEFORE = "the COMMIT never arrives"
    AFTER = "the COMMIT arrives and is done, its answer is lost"


class Proxy:
    """Forwards connections to a server. `lose` schedules the loss of the next COMMIT's connection, `break_off` loses
    all."""

    def __init__(self, dsn: str, port: int = 0) -> None:
        """Listens on `port` of 127.0.0.1; 0 is any free port."""
        parts = urlsplit(dsn)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", port))
        port = self._listener.getsockname()[1]
        self.dsn = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))
        self._armed: tuple[Loss, Callable[[], object]] | None = None
        self._skip = 0
        self._losing = threading.Lock()
        """Held while a connection is lost: no other one begins meanwhile."""
        self._lock = threading.Lock()
        self._open: list[tuple[socket.socket, socket.socket]] = []
        """For each connection, the client's socket and the server's."""
        self._silent: set[socket.socket] = set()
        """Sockets that the server still believes to be connected."""
        self.lost = 0
        """Connections lost on purpose."""
        self._hold: bytes | None = None
        self._held: socket.socket | None = None
        self._connected = threading.Event()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def lose(self, loss: Loss, then: Callable[[], object] = lambda: None, skip: int = 0) -> None:
        """Makes the next COMMIT lose its connection, after `skip` others; `then` runs before anybody can connect
        again."""
        self._skip = skip
        self._armed = loss, then

    def hold_answer(self, text: bytes) -> None:
        """Holds the answer to the end of the transaction whose statements contain `text`, until another connection is
        made: an interrupted client makes one to cancel the statement."""
        self._hold = text

    def break_off(self) -> None:
        """Every client loses its connection, and the server does not notice before `tell`. New connections are
        possible."""
        with self._lock:
            self._silent |= {server for _, server in self._open}
            for client, _ in self._open:
                _cut(client)

    def tell(self) -> None:
        """Lets the server notice the connections that were broken off."""
        with self._lock:
            for server in self._silent:
                _cut(server)

    def close(self) -> None:
        """Closes the proxy and all of its connections."""
        self._listener.close()
        with self._lock:
            for pair in self._open:
                for side in pair:
                    _cut(side)
                    side.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._connected.set()
                with self._losing:
                    pass
                server = socket.create_connection(self._target)
                with self._lock:
                    self._open.append((client, server))
                threading.Thread(target=self._forward, args=(client, server), name="proxy", daemon=True).start()
                threading.Thread(target=self._back, args=(server, client), name="proxy", daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self._hold is not None and self._hold in data:
                    self._held = server
                    self._connected.clear()
                armed = self._armed
                if armed is not None and data.endswith(_COMMIT) and self._skip:
                    self._skip -= 1
                elif armed is not None and data.endswith(_COMMIT):
                    self._armed = None
                    with self._losing:
                        self._lose(*armed, client, server, data)
                    break
                server.sendall(data)
        _cut(client)
        with self._lock:
            if server not in self._silent:
                _cut(server)

    def _lose(
        self, loss: Loss, then: Callable[[], object], client: socket.socket, server: socket.socket, commit: bytes
    ) -> None:
        # The client is cut off first: it must not see the answer.
        _cut(client)
        if loss is Loss.AFTER:
            server.sendall(commit)
            # The server answers when it is done; our other thread may receive the answer, and drops it.
            with suppress(OSError):
                server.settimeout(0.2)
                server.recv(1)
        then()
        self.lost += 1

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if server is self._held and data.endswith(_IDLE):
                    self._held = self._hold = None
                    self._connected.wait()
                client.sendall(data)
        _cut(client)


def _cut(connection: socket.socket) -> None:
    """Ends the connection. The socket stays open: another thread may be using it, and its number must not be reused."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(dsn: str) -> Iterator[Proxy]:
    """A proxy that runs within the block."""
    proxy = Proxy(dsn)
    try:
        yield proxy
    finally:
        proxy.close()
