"""A TCP proxy before Postgres that takes the protocol apart: cuts one connection at a chosen message, or rewrites some.

PostgreSQL documentation, message formats: but for the first message of a client, each has a byte for its type and four
for the length of the rest.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit


@dataclass
class _Pair:
    """One connection."""

    client: socket.socket
    server: socket.socket
    watched: bool = False

    def cut(self) -> None:
        # The client first: it must not see what the server says to its end. The sockets stay open: threads are in them.
        for side in (self.client, self.server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@dataclass
class MessageProxy:
    """Forwards messages one at a time. Watches connections on which a client has sent `marker`."""

    dsn: str
    """Of the server; `proxied` gives that of the proxy."""
    marker: bytes
    cuts: list[str] = field(default_factory=list)
    """Of each cut, the message that did not arrive: whose it was, and its type."""
    passed: list[str] = field(default_factory=list)
    """The messages that have passed since `cut_at`, on watched connections, in order."""
    before_cut: Callable[[], object] = lambda: None
    """Runs before a client notices that its connection is cut."""
    rewritten: Callable[[bytes], bytes] = bytes
    """What a client gets in place of a message of the server's."""
    _left: int | None = None
    _pairs: list[_Pair] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        parts = urlsplit(self.dsn)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        place = f"{parts.username}:{parts.password}@127.0.0.1:{self._listener.getsockname()[1]}"
        # In the clear, so that there is nothing before the first message.
        self.proxied = urlunsplit(parts._replace(netloc=place, query="sslmode=disable&gssencmode=disable"))
        threading.Thread(target=self._accept, name="message-proxy", daemon=True).start()

    def cut_at(self, number: int | None) -> None:
        """The next `number` messages of watched connections pass, in both directions together; at the one after them
        its connection is cut. None: no connection is cut."""
        with self._lock:
            self.passed.clear()
            self._left = number

    def close(self) -> None:
        """Ends the proxy and everything that goes through it."""
        self._listener.close()
        with self._lock:
            for pair in self._pairs:
                pair.cut()
                pair.client.close()
                pair.server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                pair = _Pair(client, socket.create_connection(self._target))
                for side in (pair.client, pair.server):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._pairs.append(pair)
                for source, target in ((pair.client, pair.server), (pair.server, pair.client)):
                    threading.Thread(
                        target=self._forward, args=(pair, source, target), name="message-proxy", daemon=True
                    ).start()

    def _forward(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            for message in _messages(source, typed=source is pair.server):
                if not self._may_pass(pair, message, from_client=source is pair.client):
                    self.before_cut()
                    break
                target.sendall(self.rewritten(message) if source is pair.server else message)
        pair.cut()

    def _may_pass(self, pair: _Pair, message: bytes, *, from_client: bool) -> bool:
        with self._lock:
            if from_client and self.marker in message:
                pair.watched = True
            if not pair.watched or self._left is None:
                return True
            shown = f"{'client' if from_client else 'server'} {chr(message[0])}"
            if self._left:
                self._left -= 1
                self.passed.append(shown)
                return True
            self._left = None
            self.cuts.append(shown)
            return False


def _messages(source: socket.socket, *, typed: bool) -> Iterator[bytes]:
    """What arrives, one message at a time."""
    buffer = bytearray()
    while data := source.recv(65536):
        buffer += data
        while len(buffer) >= (head := 5 if typed else 4):
            size = int.from_bytes(buffer[head - 4 : head], "big") + head - 4
            if len(buffer) < size:
                break
            yield bytes(buffer[:size])
            del buffer[:size]
            typed = True


@contextmanager
def cutting_messages(dsn: str, marker: bytes) -> Iterator[MessageProxy]:
    """A proxy for the time of the block."""
    proxy = MessageProxy(dsn, marker)
    try:
        yield proxy
    finally:
        proxy.close()
