"""How driver and resident show each other that they know the application's secret, before either unpickles anything.

All messages have fixed lengths. The resident sends a nonce and its number; the driver answers with a nonce and a proof;
the resident answers with its proof. A proof is an HMAC over both nonces, the number and the role of its sender, so none
can be used again, or sent back.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct

SECRET_BYTES = 32
_NONCE = 32
_PROOF = 32
_NUMBER = struct.Struct("!Q")
_GREETING = b"mirror-pump-task"


class NotAuthenticated(Exception):
    """The peer does not know the secret, or did not say so in time."""


def greet_driver(connection: socket.socket, secret: bytes, number: int) -> None:
    """The resident's part. Raises NotAuthenticated and OSError."""
    mine, packed = secrets.token_bytes(_NONCE), _NUMBER.pack(number)
    connection.sendall(_GREETING + mine + packed)
    answer = _receive(connection, _NONCE + _PROOF)
    nonces = mine + answer[:_NONCE] + packed
    if not hmac.compare_digest(answer[_NONCE:], _proof(secret, b"driver", nonces)):
        raise NotAuthenticated("the driver does not know the application's secret")
    connection.sendall(_proof(secret, b"resident", nonces))


def admit_resident(connection: socket.socket, secret: bytes) -> int:
    """The driver's part: the resident's number. Raises NotAuthenticated and OSError."""
    hello = _receive(connection, len(_GREETING) + _NONCE + _NUMBER.size)
    if not hello.startswith(_GREETING):
        raise NotAuthenticated("not a resident")
    theirs, packed = hello[len(_GREETING) : -_NUMBER.size], hello[-_NUMBER.size :]
    mine = secrets.token_bytes(_NONCE)
    nonces = theirs + mine + packed
    connection.sendall(mine + _proof(secret, b"driver", nonces))
    if not hmac.compare_digest(_receive(connection, _PROOF), _proof(secret, b"resident", nonces)):
        raise NotAuthenticated("the resident does not know the application's secret")
    number: int = _NUMBER.unpack(packed)[0]
    return number


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + nonces, "sha256")


def _receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = connection.recv(length - len(received))
        if not part:
            raise NotAuthenticated("the connection was closed")
        received += part
    return received
