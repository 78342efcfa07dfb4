"""The replication stream: it reads raw pgoutput messages and sends status updates. It has no thread.

Message formats: PostgreSQL documentation, section 54.4 (Streaming Replication Protocol).
"""

from __future__ import annotations

import os
import re
import select
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import ConnectionLost, SourceError, UnsendableRow
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.source.connect import CONNECTS_AGAIN, as_source_error, replication_connect
from mirror_pump.source.stream.copy_both import CopyBoth, CopyEnd, ErrorReport, start_copy
from mirror_pump.source.stream.message_block import MessageBlock
from mirror_pump.source.stream.timelines import read_timeline
from sql import queries

_SQL = queries("slot")

_KEEPALIVE = struct.Struct(">cQQB")
"""'k', the position up to which the server has decoded and sent, its clock, whether it wants a reply at once."""

_STATUS = struct.Struct(">cQQQQB")
"""'r', the written, flushed and applied positions, our clock, whether we want a reply."""

_EPOCH_2000_US = 946_684_800_000_000

_BURST_PAUSE_SECONDS = 0.01
"""Under load every message would wake the reader separately. A pause of this length lets some thousands accumulate.

Both sides profit: the longer the reader pauses, the more of its messages the server's kernel adds to those that wait.
For a million messages the walsender took 4.0 s of CPU with pauses of half a millisecond, and 3.0 s with these."""

_BURST_MEMORY_SECONDS = 0.05
"""How long after the last message the stream still counts as busy. Afterwards the reader sleeps on the socket."""

_SLOT_BUSY_SQLSTATE = "55006"

_APPLICATION = "mirror-pump-stream"
_LET_GO_SECONDS = 2.0
"""A walsender whose client has closed the connection holds the slot until it notices."""
_LET_GO_POLL_SECONDS = 0.02

_IN_A_CALLBACK = re.compile(
    r"\bpgoutput\W.*?\b(?P<callback>change|truncate|message)\b(?:.*?\b(?P<high>[0-9A-F]+)/(?P<low>[0-9A-F]+))?"
)
"""Part of the server's error context (output_plugin_error_callback) when it was printing a row, a name, or the prefix
of a message, which any role may emit. Names of plugin and callback and the position are the same in each language."""

_ROW_SQLSTATES = ("22", "54", "XX000")
"""Errors that a row can cause: a character that UTF-8 does not have (22P05), a message of more than 1 GB (54000; XX000
for a single value with a longer text, since the server only reports that it cannot allocate so much)."""


_CANCELLED = "57014"
"""An operator has cancelled the stream (pg_cancel_backend), which ends nothing but this stream."""


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

    def __init__(self, connection: PGconn, copy: CopyBoth, slot: str) -> None:
        """Takes over a connection that is in COPY BOTH mode: use `start`."""
        self._connection = connection
        self._copy = copy
        self._slot = slot
        self._keepalive: Keepalive | None = None
        self._reply_requested = False
        self._acknowledged = Lsn(0)
        self._last_message = time.monotonic()
        self._drained = False
        """The last read emptied the connection."""
        self._woken = False
        self._end: SourceError | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waking = threading.Lock()
        """Held around each use of the pipe's write end: after a close, its number may belong to another file."""
        self._wakes = select.poll()
        self._wakes.register(self._wake_read, select.POLLIN)
        self._events = select.poll()
        self._events.register(self._wake_read, select.POLLIN)
        self._events.register(connection.socket, select.POLLIN)

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
        while isinstance(copy := start_copy(connection, command), ErrorReport):
            error = _reported_error(copy, slot)
            if not isinstance(error, _SlotInUse) or time.monotonic() >= deadline:
                raise error
            time.sleep(_LET_GO_POLL_SECONDS)
        return cls(connection, copy, slot)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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

    def read(self, wait_seconds: float) -> MessageBlock:
        """The messages that have arrived: at most 8 MiB and one message.

        Returns as soon as something was there; or nothing when `wait_seconds` have passed, when the server wants a
        reply, or on `wake`. While the stream is busy it looks every ten milliseconds, so that messages come in large
        pieces; otherwise it sleeps on the socket.

        Raises ConnectionLost or SourceError when the server ended the stream; messages that came before are returned
        first.
        """
        if self._end is not None:
            raise self._end
        deadline = time.monotonic() + wait_seconds
        messages = MessageBlock.empty()
        while True:
            # Take what has arrived; wait only after a read, in this call or the last, that found nothing more.
            if not self._drained or self._wait(deadline):
                messages = self._take()
            if len(messages):
                self._last_message = time.monotonic()
            elif self._end is not None:
                raise self._end
            elif not self._reply_requested and time.monotonic() < deadline and not self._woken:
                continue
            self._woken = False
            return messages

    def send_status(self, written: Lsn, flushed: Lsn, applied: Lsn, *, reply: bool = False) -> None:
        """Reports our positions to the server; `flushed` acknowledges the slot. Raises ConnectionLost if it is gone.

        `reply` asks for a keepalive in return, which says how far the server has come.

        A walsender whose client reports no flushed position is no synchronous standby, whatever
        synchronous_standby_names is (syncrep.c, SyncRepGetCandidateStandbys), and acknowledges nothing. So a new
        acknowledgement is followed by a message without one, which the server reads along with it.
        """
        if self._end is not None:
            raise self._end
        now = time.time_ns() // 1000 - _EPOCH_2000_US
        messages = [_STATUS.pack(b"r", written, 0, applied, now, reply)]
        if flushed > self._acknowledged:
            messages.insert(0, _STATUS.pack(b"r", written, flushed, applied, now, 0))
        try:
            self._copy.send(*messages)
            self._acknowledged = flushed
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
        self._connection.finish()
        for end in pipe:
            os.close(end)

    def _take(self) -> MessageBlock:
        arrival = self._copy.take()
        self._drained = arrival.drained
        for content in arrival.keepalives:
            self._take_keepalive(content)
        if arrival.end is not None:
            self._end = self._reason(arrival.end)
        return arrival.messages

    def _wait(self, deadline: float) -> bool:
        """Waits until the socket may have something; False when nothing came before the deadline or `wake`."""
        now = time.monotonic()
        left = max(0.0, deadline - now)
        if now - self._last_message < _BURST_MEMORY_SECONDS:
            self._wakes.poll(1000 * min(left, _BURST_PAUSE_SECONDS))
            left = 0.0
        events = self._events.poll(1000 * left)
        for descriptor, _ in events:
            if descriptor == self._wake_read:
                os.read(self._wake_read, 4096)
                self._woken = True
        return any(descriptor != self._wake_read for descriptor, _ in events)

    def _take_keepalive(self, data: bytes) -> None:
        _tag, wal_end, clock, reply = _KEEPALIVE.unpack(data)
        self._keepalive = Keepalive(Lsn(wal_end), clock + _EPOCH_2000_US)
        self._reply_requested = self._reply_requested or bool(reply)

    def _reason(self, end: CopyEnd) -> SourceError:
        if isinstance(end, ErrorReport):
            return _reported_error(end, self._slot)
        if isinstance(end, psycopg.Error):
            return as_source_error(end, f"streaming from slot {self._slot}")
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
    server_timeline = read_timeline(connection)
    if server_timeline != timeline:
        raise ConnectionLost(
            f"the stream leads to a server with timeline {server_timeline}, and the session to one with timeline"
            f" {timeline}",
            "mirror-pump tries again by itself; stop the former primary",
        )


def _reported_error(report: ErrorReport, slot: str) -> SourceError:
    """The server's error. One without SQLSTATE comes from libpq: the connection is gone."""
    state, detail, context = report.sqlstate, report.text, report.context
    if state == _SLOT_BUSY_SQLSTATE:
        return _SlotInUse(
            f"slot {slot} is in use: {detail}",
            "stop whatever else streams from it; the walsender of a killed pump lets go by itself",
        )
    place = _IN_A_CALLBACK.search(context)
    if state is not None and state.startswith(_ROW_SQLSTATES) and place is not None:
        refused = UnsendableRow(
            f"the server cannot send a change: {report.primary}",
            "mirror-pump skips the transaction and copies the tables again by itself; a table that still contains the"
            " row fails",
        )
        if place["callback"] == "message" and place["high"] is not None:
            refused.message_end = int(place["high"], 16) << 32 | int(place["low"], 16)
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
