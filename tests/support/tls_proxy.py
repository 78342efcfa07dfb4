"""A proxy before Postgres that encrypts: the servers of the tests are built without TLS."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

_SSL_REQUEST = struct.pack(">II", 8, 80877103)
"""PostgreSQL documentation, message formats, SSLRequest."""


@contextmanager
def tls_proxy(dsn: str) -> Iterator[str]:
    """A DSN that leads to the same database by TLS, with a certificate that nobody has signed."""
    parts = urlsplit(dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
        key, certificate = Path(directory) / "key.pem", Path(directory) / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        target = (parts.hostname, parts.port)
        threading.Thread(target=_accept, args=(listener, context, target), daemon=True).start()
        place = f"{parts.username}:{parts.password}@127.0.0.1:{listener.getsockname()[1]}"
        yield urlunsplit(
            parts._replace(netloc=place, query="sslmode=require&gssencmode=disable&channel_binding=disable")
        )


def _accept(listener: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, context, target), daemon=True).start()


def _serve(client: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    with suppress(OSError), client, socket.create_connection(target) as server:
        assert client.recv(8, socket.MSG_WAITALL) == _SSL_REQUEST
        client.sendall(b"S")
        with context.wrap_socket(client, server_side=True) as encrypted:
            # One thread for both directions: an SSL socket is not for two at a time.
            encrypted.settimeout(0)
            server.settimeout(0)
            _forward(encrypted, server)


def _forward(encrypted: ssl.SSLSocket, server: socket.socket) -> None:
    while True:
        if not encrypted.pending():
            select.select([encrypted, server], [], [])
        for source, sink in ((encrypted, server), (server, encrypted)):
            try:
                data = source.recv(1 << 16)
            except (ssl.SSLWantReadError, BlockingIOError):
                continue
            if not data:
                return
            while data:
                try:
                    data = data[sink.send(data) :]
                except (ssl.SSLWantWriteError, BlockingIOError):
                    select.select([], [sink], [])
