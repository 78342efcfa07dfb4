"""A server whose messages are in German, as with lc_messages = de_DE: this machine may have no locale but C."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.message_proxy import MessageProxy

_TRANSLATIONS = {
    b'COPY (.*), line (\\d+), column (.*): "(.*)"': "COPY {0}, Zeile {1}, Spalte {2}: »{3}«",
    b"COPY (.*), line (\\d+), column (.*)": "COPY {0}, Zeile {1}, Spalte {2}",
    b"COPY (.*), line (\\d+)": "COPY {0}, Zeile {1}",
    b'slot "(.*)", output plugin "(.*)", in the (.*) callback, associated LSN (.*)': (
        "Slot »{0}«, Ausgabe-Plugin »{1}«, im Callback {2}, zugehörige LSN {3}"
    ),
}
"""Of the server's own catalog of messages. Any other text becomes the same few words."""


@contextmanager
def german_server(dsn: str) -> Iterator[str]:
    """The connection string of the same database on a server that speaks German."""
    proxy = MessageProxy(dsn, b"", rewritten=in_german)
    try:
        yield proxy.proxied
    finally:
        proxy.close()


def in_german(message: bytes) -> bytes:
    """An ErrorResponse or NoticeResponse with other texts, and with the fields that no language changes. Anything else
    as it is."""
    if message[:1] not in (b"E", b"N"):
        return message
    fields = [_field(field) for field in message[5:].split(b"\0") if field]
    body = b"".join(field + b"\0" for field in fields) + b"\0"
    return message[:1] + (len(body) + 4).to_bytes(4, "big") + body


def _field(field: bytes) -> bytes:
    kind, text = field[:1], field[1:]
    if kind == b"S":
        return b"SFEHLER"
    if kind == b"W":
        return kind + b"\n".join(map(_context, text.split(b"\n")))
    return kind + b"der Server lehnt das ab" if kind in b"MDH" else field


def _context(line: bytes) -> bytes:
    for pattern, translation in _TRANSLATIONS.items():
        match = re.fullmatch(pattern, line)
        if match is not None:
            return translation.format(*(group.decode() for group in match.groups())).encode()
    return b"irgendwo"
