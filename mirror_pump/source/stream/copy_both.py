"""The two ways to exchange CopyData messages with the server after START_REPLICATION.

libpq hands over one message at a time. Reading a million of them takes 1.0 s of CPU then, and 0.5 s in large
pieces. So on a connection without encryption `SocketCopy` reads the socket itself, in large pieces; libpq has connected
and authenticated before, and closes the connection afterwards. `LibpqCopy` serves all others.

Message formats: PostgreSQL documentation, sections 54.4 (Streaming Replication Protocol) and 54.7.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from mirror_pump.errors import one_line_of
from mirror_pump.source.stream.message_block import FRAME_BYTES, HEADER_BYTES, MessageBlock

_LOOK_BYTES = 8 << 20
"""One look takes at most this and one message more: rows may be of any size, and many may be waiting."""

_LEAST_BUFFER = 256 << 10
"""The buffer's size at first. At 35 MB/s, so much arrives within 7 ms."""

_XLOG_DATA, _KEEPALIVE = ord("w"), ord("k")
_FRAME = struct.Struct(">cI")
"""The kind of a message, and the length of the rest, in which these four bytes count."""
_SEEMS_BYTES = FRAME_BYTES + 2
"""Bytes that are looked at to find where XLogData messages may begin."""
_COPY_BOTH, _COPY_DATA, _ERROR = b"W", b"d", b"E"
_ASIDE = (_COPY_BOTH, b"N", b"S", b"A")
"""The CopyBothResponse at the beginning; NoticeResponse, ParameterStatus and NotificationResponse, which the server may
send at any time. libpq passes over them in COPY mode, too."""
_ENDS = (b"c", b"C", b"Z")
"""CopyDone, CommandComplete and ReadyForQuery: the server ends the stream, without an error."""
_KINDS = (_COPY_DATA, _ERROR, *_ASIDE, *_ENDS)
_NOT_DATA_LIMIT = 16 << 20
"""Longest message of a kind other than CopyData. What claims to be longer is none: the bytes are not where a message
begins."""


@dataclass(frozen=True)
class ErrorReport:
    """The server's reason for an error."""

    sqlstate: str | None
    primary: str
    context: str
    text: str
    """The whole message, on one line, without the severity."""

    @classmethod
    def of_result(cls, result: PGresult, connection: PGconn) -> Self:
        def of(diagnostic: pq.DiagnosticField) -> str:
            return (result.error_field(diagnostic) or b"").decode(errors="replace")

        return cls(
            of(pq.DiagnosticField.SQLSTATE) or None,
            of(pq.DiagnosticField.MESSAGE_PRIMARY),
            of(pq.DiagnosticField.CONTEXT),
            one_line_of(result.get_error_message() or connection.get_error_message()),
        )

    @classmethod
    def of_response(cls, content: bytes) -> Self:
        """From an ErrorResponse: fields of a letter and a text that ends with a zero byte."""
        fields = {part[:1]: part[1:].decode(errors="replace") for part in content.split(b"\0") if part}
        primary = fields.get(b"M", "")
        labelled = [(b"D", "DETAIL: "), (b"H", "HINT: "), (b"q", "QUERY: "), (b"W", "CONTEXT: ")]
        further = [label + fields[letter] for letter, label in labelled if letter in fields]
        text = one_line_of(" ".join([primary, *further]))
        return cls(fields.get(b"C"), primary, fields.get(b"W", ""), text)


@dataclass(frozen=True)
class OrderlyEnd:
    """The server ended the stream without an error."""


CopyEnd = ErrorReport | psycopg.Error | OrderlyEnd
"""Why there are no more messages."""


@dataclass
class Arrival:
    """What one look at the connection has found."""

    messages: MessageBlock = field(default_factory=MessageBlock.empty)
    keepalives: list[bytes] = field(default_factory=list)
    """Contents of the keepalive messages that came between them."""
    drained: bool = False
    """Nothing more has arrived yet."""
    end: CopyEnd | None = None
    """Set once everything that came before the end was returned."""


_NO_ENDS = np.zeros(0, np.int64)
_OUT_OF_STEP = psycopg.OperationalError("lost synchronization with server: what it sent is no message of the protocol")


class CopyBoth(Protocol):
    """A connection in COPY BOTH mode."""

    def take(self) -> Arrival:
        """What has arrived, without waiting: at most 8 MiB and one message. Raises no error."""

    def send(self, *contents: bytes) -> None:
        """Sends CopyData messages, together. Raises psycopg.Error if the connection is known to be lost."""


def start_copy(connection: PGconn, command: str) -> CopyBoth | ErrorReport:
    """Executes the START_REPLICATION `command`: the stream, or the server's reason not to begin it."""
    try:
        connection.send_query(command.encode())
        if _begins_in_clear(connection):
            return SocketCopy(connection)
        result = _next_result(connection)
        if result is not None and result.status == pq.ExecStatus.COPY_BOTH:
            return LibpqCopy(connection)
    except psycopg.Error as error:
        return ErrorReport(None, "", "", one_line_of(error))
    report = _NO_RESULT if result is None else ErrorReport.of_result(result, connection)
    # Another attempt may follow on the connection, unless the server has closed it.
    with suppress(psycopg.Error):
        while _next_result(connection) is not None:
            pass
    return report


def _next_result(connection: PGconn) -> PGresult | None:
    """The next result of the command. libpq's own wait for it would hold Python's lock until the server answers."""
    while connection.is_busy():
        _await_bytes(connection)
        connection.consume_input()
    return connection.get_result()


_NO_RESULT = ErrorReport(None, "", "", "the server did not begin to stream")


def _begins_in_clear(connection: PGconn) -> bool:
    """Whether the next byte from the socket is that of a CopyBothResponse, so that libpq has read nothing beyond it.

    On a connection with GSSAPI encryption the first byte is the highest of a length below 2^14, thus zero. After an
    error or a notice, which libpq has to read, it may read more than that at once.
    """
    if connection.ssl_in_use:
        return False
    _await_bytes(connection)
    # A second descriptor, since a socket object closes its own.
    with socket.socket(fileno=os.dup(connection.socket)) as peeking:
        try:
            return peeking.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == _COPY_BOTH
        except OSError:
            return False


def _await_bytes(connection: PGconn) -> None:
    socket_poll = select.poll()
    socket_poll.register(connection.socket, select.POLLIN)
    socket_poll.poll()


class LibpqCopy:
    """Exchanges messages by libpq, whatever the connection is protected by."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        self._broken: psycopg.Error | None = None

    def take(self) -> Arrival:
        arrival = Arrival()
        contents: list[bytes] = []
        room = _LOOK_BYTES
        fresh = False
        try:
            while room > 0:
                size, data = self._connection.get_copy_data(1)
                if size > 0:
                    fresh = False
                    room -= size + FRAME_BYTES
                    if data[0] == _XLOG_DATA:
                        contents.append(data.tobytes())
                    elif data[0] == _KEEPALIVE:
                        arrival.keepalives.append(bytes(data))
                elif size < 0:
                    arrival.end = self._end(None)
                    break
                elif not fresh:
                    fresh = True
                    self._consume()
                elif self._broken is not None:
                    raise self._broken
                else:
                    arrival.drained = True
                    break
        except psycopg.Error as error:
            arrival.end = self._end(error)
        arrival.messages = MessageBlock.of(contents)
        return arrival

    def send(self, *contents: bytes) -> None:
        for content in contents:
            self._connection.put_copy_data(content)
        self._connection.flush()

    def _consume(self) -> None:
        """Moves the socket's data into libpq's buffer. If the connection is broken, the buffer may still contain
        messages and the server's reason, so the error is raised after they have been read."""
        try:
            self._connection.consume_input()
        except psycopg.Error as error:
            self._broken = error

    def _end(self, error: psycopg.Error | None) -> CopyEnd:
        """The server's error if it sent one, else libpq's `error`, else an orderly end."""
        result = self._connection.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return ErrorReport.of_result(result, self._connection)
        return OrderlyEnd() if error is None else error


class SocketCopy:
    """Exchanges messages on the socket of a connection without encryption.

    Nothing has read from the socket since the server's CopyBothResponse, and nothing else may. Large pieces spare more
    than our own time: the server sends each message by a call of its own, which is cheap as long as the kernel only
    has to add it to those that wait.
    """

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        self._descriptor = connection.socket
        self._buffer = bytearray(_LEAST_BUFFER)
        self._filled = 0
        self._unsent = b""
        self._broken: psycopg.Error | None = None
        self._end: CopyEnd | None = None

    def take(self) -> Arrival:
        arrival = Arrival(end=self._end)
        if self._end is None:
            arrival.drained = self._fill()
            self._divide(arrival)
            self._end = arrival.end
        return arrival

    def send(self, *contents: bytes) -> None:
        """What the kernel does not take at once follows with the next call: the server may be busy with sending.

        An error of the socket is not raised: the server's reason may still be unread, as in libpq.
        """
        if self._connection.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError("the connection is closed")
        for content in contents:
            self._unsent += _FRAME.pack(_COPY_DATA, len(content) + FRAME_BYTES - 1) + content
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._descriptor, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""

    def _fill(self) -> bool:
        """Reads what has arrived into the buffer. Returns whether that was all."""
        while self._broken is None:
            if self._filled == len(self._buffer) and not self._grow():
                return False
            with memoryview(self._buffer) as view:
                room = view[self._filled :]
                try:
                    count = os.readv(self._descriptor, [room])
                except BlockingIOError:
                    return True
                except OSError as error:
                    self._broken = psycopg.OperationalError(f"could not receive data from server: {error.strerror}")
                    return True
                finally:
                    room.release()
            if count == 0:
                self._broken = psycopg.OperationalError("server closed the connection unexpectedly")
            self._filled += count
            if self._filled < len(self._buffer):
                return True
        return True

    def _grow(self) -> bool:
        """Makes the full buffer larger; False if it has enough to return first."""
        size = len(self._buffer)
        _kind, length = _FRAME.unpack_from(self._buffer)
        if (size >= _LOOK_BYTES and length < size) or not _is_message(self._buffer, size):
            return False
        larger = bytearray(max(min(2 * size, _LOOK_BYTES), length + 1))
        larger[:size] = self._buffer
        self._buffer = larger
        return True

    def _divide(self, arrival: Arrival) -> None:
        """Moves the whole messages from the buffer into `arrival`, and finds the end of the stream."""
        # A message of many MiB arrives in pieces. Until it is whole, those are not looked at again.
        if self._filled >= FRAME_BYTES and self._filled > _FRAME.unpack_from(self._buffer)[1]:
            block = self._whole_messages()
            if _all_xlog_data(block):
                arrival.messages = block
            else:
                _sort_out(block, arrival)
        if arrival.end is None and self._filled and not _is_message(self._buffer, self._filled):
            arrival.end = _OUT_OF_STEP
        if arrival.end is None and self._broken is not None:
            arrival.end = self._broken

    def _whole_messages(self) -> MessageBlock:
        """Takes the whole messages out of the buffer."""
        ends = _frame_ends(self._buffer, self._filled)
        whole = int(ends[-1]) if len(ends) else 0
        with memoryview(self._buffer) as view:
            data = bytes(view[:whole])
            rest = bytes(view[whole : self._filled])
        self._filled = len(rest)
        if len(self._buffer) > _LOOK_BYTES and self._filled <= _LEAST_BUFFER:
            self._buffer = bytearray(_LEAST_BUFFER)
        self._buffer[: self._filled] = rest
        return MessageBlock(data, ends)


def _frame_ends(buffer: bytearray, filled: int) -> npt.NDArray[np.int64]:
    """Where the whole messages end that are in the first `filled` bytes.

    Each message says where the next one begins. Instead of following that a million times, this looks for all places
    that seem to begin an XLogData message, and checks whether each is where the one before it ends. So a place inside a
    message that looks alike is never taken for a beginning, and other messages are not missed.
    """
    last = filled - _SEEMS_BYTES
    octets = np.frombuffer(buffer, np.uint8, filled)
    begins = np.flatnonzero(octets[FRAME_BYTES : max(FRAME_BYTES + last + 1, FRAME_BYTES)] == _XLOG_DATA)
    # The highest byte of a WAL position is zero. In the texts of rows, no zero byte follows a letter.
    begins = begins[(octets[begins] == ord(_COPY_DATA)) & (octets[begins + FRAME_BYTES + 1] == 0)]
    words = np.ndarray((max(filled - 3, 0),), ">u4", buffer, strides=(1,))
    ends = begins + words[begins + 1] + 1
    breaks = np.flatnonzero(ends[:-1] != begins[1:])
    runs, at = [_NO_ENDS], 0
    while at + FRAME_BYTES <= filled:
        place = int(begins.searchsorted(at))
        if place < len(begins) and begins[place] == at:
            follows = int(breaks.searchsorted(place))
            run = ends[place : breaks[follows] + 1 if follows < len(breaks) else len(ends)]
        else:
            run = np.array([at + int(words[at + 1]) + 1])
        runs.append(run)
        at = int(run[-1])
    whole = np.concatenate(runs)
    return whole[: len(whole) - (at > filled)]


def _is_message(buffer: bytearray, filled: int) -> bool:
    """Whether a message can begin with these bytes."""
    if filled < FRAME_BYTES:
        return buffer[:1] in _KINDS
    kind, length = _FRAME.unpack_from(buffer)
    return kind in _KINDS and (kind == _COPY_DATA or length <= _NOT_DATA_LIMIT)


def _all_xlog_data(block: MessageBlock) -> bool:
    if not len(block) or int(block.lengths.min()) <= HEADER_BYTES:
        return not len(block)
    octets, starts = np.frombuffer(block.data, np.uint8), block.ends - block.lengths
    return bool((octets[starts] == ord(_COPY_DATA)).all() and (octets[starts + FRAME_BYTES] == _XLOG_DATA).all())


def _sort_out(block: MessageBlock, arrival: Arrival) -> None:
    """Puts a block of messages of all kinds into `arrival`."""
    contents = []
    for begin, end in pairwise(block.bounds):
        message = block.data[begin:end]
        kind, content = message[:1], message[FRAME_BYTES:]
        if kind == _COPY_DATA and content[:1] == b"w" and len(message) > HEADER_BYTES:
            contents.append(content)
        elif kind == _COPY_DATA and content[:1] == b"k":
            arrival.keepalives.append(content)
        elif kind == _ERROR:
            arrival.end = ErrorReport.of_response(content)
        elif kind in _ENDS:
            arrival.end = OrderlyEnd()
        elif kind not in _ASIDE:
            arrival.end = _OUT_OF_STEP
        if arrival.end is not None:
            break
    arrival.messages = MessageBlock.of(contents)
