"""The server's timelines: whether a WAL position that was recorded earlier still lies on its history.

A promotion, and a recovery to a point in time, end a timeline and begin a new one. What was written to the former
timeline beyond its end is not part of the database any more, and the same positions now hold other records. The history
comes from the replication commands IDENTIFY_SYSTEM and TIMELINE_HISTORY (PostgreSQL documentation, section 54.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from mirror_pump.errors import ConnectionLost, SourceError, one_line_of
from mirror_pump.model import Lsn, parse_lsn
from mirror_pump.source.connect import RECONNECTS, replication_connect


@dataclass(frozen=True)
class TimelineHistory:
    """The timeline that a server writes, and those that lead to it."""

    timeline: int
    ends: Mapping[int, Lsn]
    """The former timelines: the position at which the next one left each of them."""

    def has_ended(self, timeline: int) -> bool:
        """Whether the timeline is a former one of this history."""
        return timeline in self.ends

    def contains(self, timeline: int, lsn: Lsn) -> bool:
        """Whether the position, which was written on `timeline`, is part of the history."""
        return timeline == self.timeline or lsn <= self.ends.get(timeline, Lsn(-1))


def read_timelines(dsn: str) -> TimelineHistory:
    """The history of the server. Raises ConnectionLost; SourceError if the server does not tell."""
    connection = replication_connect(dsn, application_name="mirror-pump-timeline")
    try:
        timeline = read_timeline(connection)
        # The first timeline has no history, and no history file.
        history = _value(connection, f"TIMELINE_HISTORY {timeline}".encode(), 1) if timeline > 1 else ""
    finally:
        connection.finish()
    return TimelineHistory(timeline, parse_history(history))


def read_timeline(connection: PGconn) -> int:
    """The timeline of the server that a walsender connection leads to. Raises ConnectionLost, SourceError."""
    return int(_value(connection, b"IDENTIFY_SYSTEM", 1))


def parse_history(text: str) -> dict[int, Lsn]:
    """The former timelines of a history file, and where each ended.

    A line is a timeline, the position at which the next one left it, and why, separated by tabs (timeline.c,
    readTimeLineHistory). Lines may be empty or comments.
    """
    ends = {}
    for line in text.splitlines():
        fields = line.split(None, 2)
        if fields and not fields[0].startswith("#"):
            ends[int(fields[0])] = parse_lsn(fields[1])
    return ends


def _value(connection: PGconn, command: bytes, column: int) -> str:
    result: PGresult = connection.exec_(command)
    value = result.get_value(0, column) if result.status == pq.ExecStatus.TUPLES_OK else None
    if value is not None:
        return value.decode()
    detail = one_line_of(result.get_error_message() or connection.get_error_message())
    if connection.status == pq.ConnStatus.BAD:
        raise ConnectionLost(
            f"the connection to Postgres was lost while reading its timelines: {detail}",
            RECONNECTS,
        )
    raise SourceError(f"the server does not tell its timelines: {detail}", "see the server's log")
