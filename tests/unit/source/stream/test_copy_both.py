"""Reading the socket of a stream: every message, whole and in order, however the bytes arrive."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import pq
from psycopg.pq.abc import PGconn

from mirror_pump.source.stream.copy_both import Arrival, ErrorReport, OrderlyEnd, SocketCopy

_LOOK_BYTES = 8 << 20


@dataclass
class _Connected:
    """What SocketCopy needs of libpq's connection."""

    socket: int
    status: pq.ConnStatus = pq.ConnStatus.OK


@contextmanager
def connected() -> Iterator[tuple[SocketCopy, socket.socket, _Connected]]:
    """A stream, and the server's end of its connection."""
    ours, servers = socket.socketpair()
    with ours, servers:
        ours.settimeout(0)
        connection = _Connected(ours.fileno())
        yield SocketCopy(cast("PGconn", connection)), servers, connection


def frame(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content) + 4) + content


def xlog_data(message: bytes, position: int = 0x16B3748) -> bytes:
    return frame(b"d", b"w" + struct.pack(">QQQ", position, position, 1) + message)


def keepalive(position: int) -> bytes:
    return frame(b"d", b"k" + struct.pack(">QQB", position, 1, 0))


# Bytes that look like the beginning of a message, inside of one, and of what follows it.
_PIECES = [b"d", b"w", b"k", b"\0", b"d\0\0\0\x20w\0\0\0", b"d\0\0\0\x1ew\0", xlog_data(b"I"), keepalive(7), b"text"]
_contents = st.lists(st.sampled_from(_PIECES) | st.binary(max_size=40), min_size=1, max_size=8).map(b"".join)
_positions = st.sampled_from([0, 0x16B3748, 0x64_00_00_00_1E_77_00_00, 2**64 - 1])
_messages = st.one_of(
    st.builds(lambda content, position: ("data", content, position), _contents.filter(bool), _positions),
    st.builds(lambda position: ("keepalive", b"", position), _positions),
    st.sampled_from([("aside", b"S", 0), ("aside", b"N", 0), ("aside", b"A", 0)]),
)


def _encoded(kind: str, content: bytes, position: int) -> bytes:
    if kind == "data":
        return xlog_data(content, position)
    return keepalive(position) if kind == "keepalive" else frame(content, b"client_encoding\0UTF8\0")


@given(st.lists(_messages, max_size=30), st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_messages_are_those_that_were_sent(messages: list[tuple[str, bytes, int]], pieces: list[int]) -> None:
    stream = frame(b"W", b"\0\0\0") + b"".join(_encoded(*message) for message in messages)
    contents: list[bytes] = []
    keepalives: list[bytes] = []
    with connected() as (copy, server, _):
        begin = turn = 0
        while begin < len(stream):
            size = pieces[turn % len(pieces)]
            turn += 1
            server.sendall(stream[begin : begin + size])
            begin += size
            arrival = copy.take()
            assert (arrival.drained, arrival.end) == (True, None)
            assert len(arrival.messages.data) == sum(arrival.messages.lengths)
            contents += arrival.messages.contents()
            keepalives += arrival.keepalives
    assert contents == [content for kind, content, _ in messages if kind == "data"]
    assert keepalives == [keepalive(at)[5:] for kind, _, at in messages if kind == "keepalive"]


def taken(copy: SocketCopy) -> list[Arrival]:
    """All that arrives until the end of the stream."""
    arrivals = [copy.take()]
    while arrivals[-1].end is None:
        arrivals.append(copy.take())
    return arrivals


@pytest.mark.parametrize("size", [_LOOK_BYTES - 40, _LOOK_BYTES, 3 * _LOOK_BYTES + 1])
def test_a_message_of_any_size_arrives_and_takes_no_memory_afterwards(size: int) -> None:
    with connected() as (copy, server, _):
        large = bytes(size)
        sent = xlog_data(b"before") + xlog_data(large) + xlog_data(b"after") + frame(b"c", b"")
        sending = threading.Thread(target=server.sendall, args=(sent,))
        sending.start()
        arrivals = taken(copy)
        sending.join()
        assert [content for arrival in arrivals for content in arrival.messages.contents()] == [
            b"before", large, b"after"
        ]  # fmt: skip
        assert all(len(arrival.messages.data) <= max(_LOOK_BYTES, size + 30) + 100 for arrival in arrivals)
        assert len(copy._buffer) <= _LOOK_BYTES


def test_a_large_message_is_not_read_again_with_each_of_its_pieces() -> None:
    with connected() as (copy, server, _):
        message = xlog_data(bytes(48 << 20))
        begin = time.process_time()
        for start in range(0, len(message) - 1, 64 << 10):
            server.sendall(message[start : min(start + (64 << 10), len(message) - 1)])
            assert len(copy.take().messages) == 0
        server.sendall(message[-1:])
        assert copy.take().messages.data == message
        # Otherwise it takes some 10 s.
        assert time.process_time() - begin < 3


def test_bytes_that_claim_to_be_a_large_message_take_no_memory() -> None:
    with connected() as (copy, server, _):
        server.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        def send_more() -> None:
            with suppress(OSError):
                server.sendall(bytes(300_000))

        sending = threading.Thread(target=send_more)
        sending.start()
        while (arrival := copy.take()).end is None:
            assert len(copy._buffer) < 1 << 20
        assert "synchronization" in str(arrival.end)
        assert len(copy._buffer) < 1 << 20
        server.shutdown(socket.SHUT_RDWR)
        sending.join()


def test_what_came_before_the_end_is_returned_with_it() -> None:
    fields = b'SERROR\0VERROR\0C22021\0Mno such\n character\0DByte 0xff.\0Wslot "s", in the change callback\0\0'
    cases: list[tuple[bytes, object]] = [
        (
            frame(b"E", fields) + xlog_data(b"not part of the stream"),
            ErrorReport(
                "22021",
                "no such\n character",
                'slot "s", in the change callback',
                'no such character DETAIL: Byte 0xff. CONTEXT: slot "s", in the change callback',
            ),
        ),
        (frame(b"c", b"") + frame(b"C", b"COPY 0\0"), OrderlyEnd()),
        (frame(b"C", b"COPY 0\0"), OrderlyEnd()),
    ]
    for end, expected in cases:
        with connected() as (copy, server, _):
            server.sendall(xlog_data(b"I1") + xlog_data(b"C2") + end)
            arrival = copy.take()
            assert list(arrival.messages.contents()) == [b"I1", b"C2"]
            assert arrival.end == expected
            assert (copy.take().end, len(copy.take().messages)) == (expected, 0)


def test_a_connection_that_closes_ends_the_stream_after_its_messages() -> None:
    with connected() as (copy, server, _):
        server.sendall(xlog_data(b"I1") + xlog_data(b"I2")[:20])
        server.close()
        arrivals = taken(copy)
        assert [content for arrival in arrivals for content in arrival.messages.contents()] == [b"I1"]
        assert isinstance(arrivals[-1].end, psycopg.OperationalError)


@pytest.mark.parametrize(
    "stray",
    [
        b"HTTP/1.1 400",
        b"\x17\x03\x03\0\x20",
        b"d\0\0\0\x04",
        frame(b"d", b"x"),
        frame(b"d", b"w short"),
        b"N\xff\0\0\0",
    ],
)
def test_bytes_that_are_no_message_end_the_stream(stray: bytes) -> None:
    with connected() as (copy, server, _):
        server.sendall(xlog_data(b"I1") + stray)
        arrival = copy.take()
        assert list(arrival.messages.contents()) == [b"I1"]
        assert "synchronization" in str(arrival.end)


def test_what_the_kernel_does_not_take_at_once_is_sent_later_and_whole() -> None:
    with connected() as (copy, server, connection):
        server.settimeout(5)
        contents = [b"r%d" % number + bytes(5000) for number in range(200)]
        for content in contents:
            copy.send(content)
        expected = b"".join(frame(b"d", content) for content in contents)
        received = server.recv(1 << 20)
        assert len(received) < len(expected)
        while len(received) < len(expected):
            copy.send(b"")
            expected += frame(b"d", b"")
            received += server.recv(1 << 20)
        assert received == expected
        connection.status = pq.ConnStatus.BAD
        with pytest.raises(psycopg.OperationalError, match="closed"):
            copy.send(b"r")


def test_the_servers_reason_is_read_although_it_takes_no_more() -> None:
    with connected() as (copy, server, _):
        server.sendall(frame(b"E", b"SFATAL\0C57P01\0Mterminating connection\0\0"))
        server.close()
        for _ in range(3):
            copy.send(b"r")
        report = taken(copy)[-1].end
        assert report == ErrorReport("57P01", "terminating connection", "", "terminating connection")
