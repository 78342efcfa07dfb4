"""The replication stream at libpq's level: it reads raw pgoutput messages and sends status updates. It has no thread.

Message formats: PostgreSQL documentation, section 54.4 (Streaming Replication Protocol).
"""

from __future__ import annotations

import os
import re
import selectors
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from mirror_pump.errors import ConnectionLost, SourceError, UnsendableRow, one_line_of
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.quoting import identifier, literal
from mirror_pump.source.connect import CONNECTS_AGAIN, as_source_error, replication_connect
from mirror_pump.source.stream.timelines import read_timeline
from sql import queries

_SQL = queries("slot")

XLOG_HEADER_BYTES = 25
"""'w', and three 8-byte numbers: start of the data, end of the WAL, the server's clock. The payload follows."""

_XLOG_DATA = ord("w")
_KEEPALIVE = struct.Struct(">cQQB")
"""'k', the position up to which the server has decoded and sent, its clock, whether it wants a reply at once."""

_STATUS = struct.Struct(">cQQQQB")
"""'r', the written, flushed and applied positions, our clock, whether we want a reply."""

_EPOCH_2000_US = 946_684_800_000_000

_BURST_PAUSE_SECONDS = 0.0005
"""Under load every message would wake the reader separately. A pause of this length lets some hundred accumulate."""

_BURST_MEMORY_SECONDS = 0.02
"""How long after the last message the stream still counts as busy. Afterwards the reader sleeps on the socket."""

_LOOK_BYTES = 8 << 20
"""One read takes at most this and one message more: rows may be of any size, and many may be waiting."""

_SLOT_BUSY_SQLSTATE = "55006"

_APPLICATION = "mirror-pump-stream"
_LET_GO_SECONDS = 2.0
"""A walsender whose client has closed the connection holds the slot until it notices."""
_LET_GO_POLL_SECONDS = 0.02

_IN_A_MESSAGE = "in the message callback"
_IN_A_CHANGE = ("in the change callback", "in the truncate callback", _IN_A_MESSAGE)
"""Parts of the server's error context (output_plugin_error_callback) when it was printing a row, a name, or the prefix
of a message, which any role may emit."""

_ROW_SQLSTATES = ("22", "54", "XX000")
"""Errors that a row can cause: a character that UTF-8 does not have (22P05), a message of more than 1 GB (54000; XX000
for a single value with a longer text, since the server only reports that it cannot allocate so much)."""


_CANCELLED = "57014"
"""Somebody has cancelled the stream (pg_cancel_backend), which ends nothing but this stream."""


class _SlotInUse(ConnectionLost):
    """Another walsender streams from the slot."""


@dataclass(frozen=True)
class Keepalive:
    """The last keepalive message of the server."""

    wal_end: Lsn
    """Every transaction that committed before this has been sent."""
    server_time_us: int
    """Microseconds since 1970-01-01 UTC."""


class ReplicationStream:
    """One START_REPLICATION. For a single thread; only `wake` may be called from others.

    The owner must send status updates (`send_status`) at least every third of wal_sender_timeout (60 s by default),
    even while it does not read: the server's time-out counts from the last message that it received.
    """

    def __init__(self, connection: PGconn, slot: str) -> None:
        """Takes over a connection that is in COPY BOTH mode: use `start`."""
        self._connection = connection
        self._slot = slot
        self._keepalive: Keepalive | None = None
        self._reply_requested = False
        self._last_message = time.monotonic()
        self._drained = False
        """The last read emptied both libpq's buffer and the socket."""
        self._woken = False
        self._broken: psycopg.Error | None = None
        self._end: SourceError | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waking = threading.Lock()
        """Held around each use of the pipe's write end: after a close, its number may belong to another file."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection.socket, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    @classmethod
    def start(cls, dsn: str, slot: str, publication: str, start_lsn: Lsn, *, timeline: int | None = None) -> Self:
        """Connects and starts streaming transactions that end after `start_lsn`.

        The caller leads the mirror: a former leader's stream that does not let go is ended. The server begins at the
        later of `start_lsn` and the slot's confirmed position. ConnectionLost (worth a retry) when the server cannot be
        reached or something else streams from the slot; SourceError when the slot or the publication cannot be used.
        ConnectionLost also if the server does not write `timeline`: with several servers in the DSN, it may be a former
        primary.
        """
        connection = replication_connect(dsn, application_name=_APPLICATION)
        try:
            if timeline is not None:
                _require_timeline(connection, timeline)
            try:
                return cls.on(connection, slot, publication, start_lsn)
            except _SlotInUse:
                if not _end_former_stream(connection, slot):
                    raise
                return cls.on(connection, slot, publication, start_lsn)
        except BaseException:
            connection.finish()
            raise

    @classmethod
    def on(cls, connection: PGconn, slot: str, publication: str, start_lsn: Lsn) -> Self:
        """Like `start`, with a walsender connection that the stream takes over. The caller closes it on an error."""
        # Commands of the replication protocol have literals without escapes by backslashes: not psycopg's.
        command = (
            f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {format_lsn(start_lsn)} (proto_version '1',"
            f" publication_names {literal(identifier(publication))}, messages 'true')"
        )
        deadline = time.monotonic() + _LET_GO_SECONDS
        while (result := connection.exec_(command.encode())).status != pq.ExecStatus.COPY_BOTH:
            error = _result_error(result, connection, slot)
            if not isinstance(error, _SlotInUse) or time.monotonic() >= deadline:
                raise error
            time.sleep(_LET_GO_POLL_SECONDS)
        return cls(connection, slot)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def keepalive(self) -> Keepalive | None:
        """The newest keepalive that `read` has processed.

        All transactions that committed before its `wal_end` are among the messages that `read` has returned so far.
        When those are applied, the slot may be acknowledged up to there.
        """
        return self._keepalive

    @property
    def reply_requested(self) -> bool:
        """Whether the server wants a status update at once. `send_status` clears it."""
        return self._reply_requested

    def read(self, into: list[bytes], max_messages: int, wait_seconds: float) -> int:
        """Appends up to `max_messages` messages to `into` and returns their number.

        Each is the content of one CopyData message: 25 bytes of header (XLOG_HEADER_BYTES), then one pgoutput message,
        whose tag is byte 25. Returns as soon as something was there and nothing more is; or with 0 when `wait_seconds`
        have passed, when the server wants a reply, or on `wake`. While the stream is busy it waits in steps of half a
        millisecond, so that messages come in bursts; otherwise it sleeps on the socket.

        Raises ConnectionLost or SourceError when the server ended the stream; messages that came before are returned
        first.
        """
        if self._end is not None:
            raise self._end
        deadline = time.monotonic() + wait_seconds
        taken = 0
        while True:
            # Take what has arrived; wait only after a read, in this call or the last, that found nothing more.
            if not self._drained or self._wait(deadline):
                taken = self._take(into, max_messages)
            if taken:
                self._last_message = time.monotonic()
            elif self._end is not None:
                raise self._end
            elif not self._reply_requested and time.monotonic() < deadline and not self._woken:
                continue
            self._woken = False
            return taken

    def send_status(self, written: Lsn, flushed: Lsn, applied: Lsn, *, reply: bool = False) -> None:
        """Reports our positions to the server; `flushed` acknowledges the slot. Raises ConnectionLost if it is gone.

        `reply` asks for a keepalive in return, which says how far the server has come.
        """
        now = time.time_ns() // 1000 - _EPOCH_2000_US
        try:
            self._connection.put_copy_data(_STATUS.pack(b"r", written, flushed, applied, now, reply))
            self._connection.flush()
        except psycopg.Error as error:
            raise as_source_error(error, f"reporting the position of slot {self._slot}") from error
        self._reply_requested = False

    def wake(self) -> None:
        """Makes the present or the next `read` return at once. Does nothing after `close`. The only method for other
        threads."""
        # A full pipe already holds a wake-up.
        with self._waking, suppress(BlockingIOError):
            if self._wake_write >= 0:
                os.write(self._wake_write, b"w")

    def close(self) -> None:
        """Closes the connection; the server notices and releases the slot. Does nothing the second time."""
        with self._waking:
            pipe, self._wake_read, self._wake_write = (self._wake_read, self._wake_write), -1, -1
        if pipe[0] < 0:
            return
        self._selector.close()
        self._connection.finish()
        for end in pipe:
            os.close(end)

    def _take(self, into: list[bytes], max_messages: int) -> int:
        """Appends the messages in libpq's buffer and in the socket, without waiting. Sets `_drained` if that was
        all."""
        get = self._connection.get_copy_data
        append = into.append
        left = max_messages
        room = _LOOK_BYTES
        fresh = False
        self._drained = False
        try:
            while left and room > 0:
                size, data = get(1)
                if size > 0:
                    fresh = False
                    if data[0] == _XLOG_DATA:
                        # A view of libpq's buffer keeps 518 bytes for a message of 133 (measured, resident memory).
                        append(data.tobytes())
                        left -= 1
                        room -= size
                    else:
                        self._take_keepalive(bytes(data))
                elif size < 0:
                    self._end = self._reason(None)
                    break
                elif not fresh:
                    fresh = True
                    self._consume()
                elif self._broken is not None:
                    raise self._broken
                else:
                    self._drained = True
                    break
        except psycopg.Error as error:
            self._end = self._reason(error)
        return max_messages - left

    def _consume(self) -> None:
        """Moves the socket's data into libpq's buffer. If the connection is broken, the buffer may still contain
        messages and the server's reason, so the error is raised after they have been read."""
        try:
            self._connection.consume_input()
        except psycopg.Error as error:
            self._broken = error

    def _wait(self, deadline: float) -> bool:
        """Waits until the socket may have something; False when nothing came before the deadline or `wake`."""
        now = time.monotonic()
        if now < deadline and now - self._last_message < _BURST_MEMORY_SECONDS:
            time.sleep(_BURST_PAUSE_SECONDS)
        timeout = max(0.0, deadline - now) if now - self._last_message >= _BURST_MEMORY_SECONDS else 0.0
        events = self._selector.select(timeout)
        for key, _ in events:
            if key.fd == self._wake_read:
                os.read(self._wake_read, 4096)
                self._woken = True
        return any(key.fd != self._wake_read for key, _ in events)

    def _take_keepalive(self, data: bytes) -> None:
        _tag, wal_end, clock, reply = _KEEPALIVE.unpack(data)
        self._keepalive = Keepalive(Lsn(wal_end), clock + _EPOCH_2000_US)
        self._reply_requested = self._reply_requested or bool(reply)

    def _reason(self, error: psycopg.Error | None) -> SourceError:
        """Why the stream ended: the server's error if it sent one, else libpq's `error`, else an orderly end."""
        result = self._connection.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return _result_error(result, self._connection, self._slot)
        if error is not None:
            return as_source_error(error, f"streaming from slot {self._slot}")
        return ConnectionLost(
            f"the server ended the stream from slot {self._slot}, as it does when it shuts down",
            CONNECTS_AGAIN,
        )


def _end_former_stream(connection: PGconn, slot: str) -> bool:
    """Ends the walsender of a former leader that is stopped or cut off. False if there is none, or no right to.

    It may have been told to end before, and hang in sending that message to a client that reads nothing. Told again, it
    ends without (postgres.c, ProcessClientWriteInterrupt). A role without the right to leaves it to wal_sender_timeout.
    """
    # These connections know the simple protocol only, without parameters.
    query = _SQL["end_stream"] % {"slot": literal(slot), "application": literal(_APPLICATION)}
    result = connection.exec_(query.encode())
    return result.status == pq.ExecStatus.TUPLES_OK and result.ntuples > 0


def _require_timeline(connection: PGconn, timeline: int) -> None:
    present = read_timeline(connection)
    if present != timeline:
        raise ConnectionLost(
            f"the stream leads to a server with timeline {present}, and the session to one with timeline {timeline}",
            "mirror-pump tries again by itself; stop the former primary",
        )


def _result_error(result: PGresult, connection: PGconn, slot: str) -> SourceError:
    """The error of a failed command. An error without SQLSTATE comes from libpq: the connection is gone."""
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
    context = (result.error_field(pq.DiagnosticField.CONTEXT) or b"").decode(errors="replace")
    message = result.get_error_message() or connection.get_error_message()
    detail = one_line_of(message)
    state = sqlstate.decode() if sqlstate else None
    if state == _SLOT_BUSY_SQLSTATE:
        return _SlotInUse(
            f"slot {slot} is in use: {detail}",
            "stop whatever else streams from it; the walsender of a killed pump lets go by itself",
        )
    if state is not None and state.startswith(_ROW_SQLSTATES) and any(callback in context for callback in _IN_A_CHANGE):
        primary = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        refused = UnsendableRow(
            f"the server cannot send a change: {primary}",
            "mirror-pump skips the transaction and copies the tables again by itself; a table that still contains the"
            " row fails",
        )
        place = re.search(r"LSN ([0-9A-F]+)/([0-9A-F]+)", context) if _IN_A_MESSAGE in context else None
        if place is not None:
            refused.message_end = int(place[1], 16) << 32 | int(place[2], 16)
        return refused
    if state is not None and state.startswith("53"):
        return ConnectionLost(
            f"the server lacks what it needs to stream from slot {slot}: {detail}",
            "free disk space, memory or connections there, as the message says; mirror-pump tries again by itself, and"
            " the slot keeps what was not received",
        )
    if state is None or state.startswith(("08", "57P", _CANCELLED)):
        return ConnectionLost(f"the stream from slot {slot} broke: {detail}", CONNECTS_AGAIN)
    if state == "42704":
        remedy = (
            "if the publication is gone, `mirror-pump init` makes it again; if the slot is, `mirror-pump resync --all`"
            " does. If the publication is there again (before version 18, what was written without one cannot be"
            f" decoded): SELECT pg_drop_replication_slot('{slot}'), then `mirror-pump resync --all`"
        )
    elif state == "55000":
        remedy = "if the slot was invalidated, `mirror-pump resync --all` makes a new one and copies the tables again"
    else:
        remedy = "see the server's log"
    return SourceError(f"Postgres refused to stream from slot {slot}: {detail}", remedy)
