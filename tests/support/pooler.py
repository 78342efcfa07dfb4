"""A pooler between a client and a server, as PgBouncer is in its modes of sessions and of transactions.

It takes every client without a password, under a process number of its own. It refuses what the client's startup packet
asks for with PgBouncer's texts, or leaves it out, as PgBouncer does with `ignore_startup_parameters`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import urlsplit, urlunsplit

from psycopg import conninfo, pq
from psycopg.pq.abc import PGconn

_VERSION_3 = 196608
_TLS, _GSS = 80877103, 80877104
"""Requests for encryption (PostgreSQL documentation, message formats SSLRequest and GSSENCRequest)."""

_REPORTED = (b"server_version", b"client_encoding", b"integer_datetimes", b"standard_conforming_strings", b"DateStyle")


class Startup(Enum):
    """What becomes of `options` and `replication` in a startup packet."""

    REFUSED = auto()
    LEFT_OUT = auto()
    PASSED_ON = auto()
    """To each session of the server that the client gets. `replication` is refused."""


@dataclass
class TestPooler:
    """Listens on a free port of 127.0.0.1."""

    __test__ = False

    server: str
    """The server's DSN."""
    by_session: bool = False
    """A client keeps its session of the server until it leaves; else until the end of a transaction."""
    startup: Startup = Startup.REFUSED
    refusal: tuple[str, str] | None = None
    """SQLSTATE and text with which every client is refused."""
    _idle: list[PGconn] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        parts = urlsplit(self.server)
        self.dsn = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}"))
        threading.Thread(target=self._accept, name="pooler", daemon=True).start()

    def close(self) -> None:
        """Ends it and the idle sessions of the server."""
        self._listener.close()
        with self._lock:
            while self._idle:
                self._idle.pop().finish()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), name="pooled", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, ConnectionError):
            packet = _startup_packet(client)
            if packet is None:
                return
            refusal = self.refusal or self._refused(packet)
            if refusal is not None:
                client.sendall(_error(*refusal))
                return
            options = packet.get("options", "") if self.startup is Startup.PASSED_ON else ""
            self._welcome(client, options)
            self._forward(client, options)

    def _refused(self, packet: Mapping[str, str]) -> tuple[str, str] | None:
        if "replication" in packet:
            return "08P01", "unsupported startup parameter: replication"
        if self.startup is Startup.REFUSED and "options" in packet:
            return "08P01", "unsupported startup parameter: options"
        if packet.get("database") == "pgbouncer":
            return "3D000", "no such database: pgbouncer"
        return None

    def _welcome(self, client: socket.socket, options: str) -> None:
        session = self._take(options)
        parameters = {name: session.parameter_status(name) for name in _REPORTED}
        self._idle_again(session)
        statuses = (_message(b"S", name + b"\0" + value + b"\0") for name, value in parameters.items() if value)
        key = _message(b"K", struct.pack("!II", 1 << 30 | int.from_bytes(os.urandom(3)), 1))
        client.sendall(_message(b"R", struct.pack("!I", 0)) + b"".join(statuses) + key + _message(b"Z", b"I"))

    def _forward(self, client: socket.socket, options: str) -> None:
        """Forwards a transaction at a time; with `by_session`, all of them by one session."""
        session: PGconn | None = None
        try:
            while (first := _read_message(client)) is not None and first[0] != ord("X"):
                session = session or self._take(options)
                with socket.socket(fileno=os.dup(session.socket)) as server:
                    server.settimeout(None)
                    _forward_transaction(first, client, server)
                if not self.by_session:
                    self._idle_again(session)
                    session = None
        finally:
            if session is not None:
                # PgBouncer's server_reset_query.
                session.finish()

    def _take(self, options: str) -> PGconn:
        """The session that was used last, as in PgBouncer, or a new one."""
        with self._lock:
            if self._idle and not options:
                return self._idle.pop()
        plain = {"sslmode": "disable", "gssencmode": "disable", "options": options}
        session = pq.PGconn.connect(conninfo.make_conninfo(self.server, **plain).encode())
        assert session.status == pq.ConnStatus.OK, session.get_error_message()
        return session

    def _idle_again(self, session: PGconn) -> None:
        with self._lock:
            self._idle.append(session)


@contextmanager
def pooler_before(
    server: str,
    *,
    by_session: bool = False,
    startup: Startup = Startup.REFUSED,
    refusal: tuple[str, str] | None = None,
) -> Iterator[TestPooler]:
    """A pooler before this server, for the block."""
    pooler = TestPooler(server, by_session, startup, refusal)
    with contextlib.closing(pooler):
        yield pooler


def _forward_transaction(request: bytes, client: socket.socket, server: socket.socket) -> None:
    """Until the server says that no transaction is open."""
    while True:
        server.sendall(request)
        if request[:1] in (b"Q", b"S"):
            # A query, or Sync: the server answers what it has got so far.
            answer = b""
            while answer[:1] != b"Z":
                answer = _read_message(server) or _lost("server")
                client.sendall(answer)
            if answer[5:] == b"I":
                return
        request = _read_message(client) or _lost("client")


def _lost(side: str) -> bytes:
    raise ConnectionError(f"the {side} has left in a transaction")


def _startup_packet(client: socket.socket) -> dict[str, str] | None:
    while (head := _read(client, 8)) is not None:
        length, code = struct.unpack("!II", head)
        if code in (_TLS, _GSS):
            client.sendall(b"N")
            continue
        if code >> 16 != _VERSION_3 >> 16:
            # A request to cancel.
            return None
        words = (_read(client, length - 8) or b"").decode().split("\0")
        return dict(zip(words[::2], words[1::2], strict=False))
    return None


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _error(state: str, text: str) -> bytes:
    return _message(b"E", f"SFATAL\0C{state}\0M{text}\0\0".encode())


def _read_message(side: socket.socket) -> bytes | None:
    head = _read(side, 5)
    if head is None:
        return None
    body = _read(side, struct.unpack("!I", head[1:])[0] - 4)
    return None if body is None else head + body


def _read(side: socket.socket, count: int) -> bytes | None:
    parts = b""
    while len(parts) < count:
        part = side.recv(count - len(parts))
        if not part:
            return None
        parts += part
    return parts
