"""Follows the server to a new timeline, or refuses: whether what readers were shown is part of the server's history.

The catalog is in the database, so a promotion or a restore takes it back together with the heap: what it names as
applied is always part of the server's history. The lake's files are elsewhere, and may show commits that are not
(docs/design/failover.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.errors import ConnectionLost, HistoryDiverged, SourceError
from mirror_pump.lake.contents.newer_metadata import NewerMetadata, newest_unknown
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableName, format_lsn
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.slot import SystemIdentity, system_identity
from mirror_pump.source.stream.timelines import TimelineHistory, read_timelines
from sql import queries

_SQL = queries("history")

RECONCILE = (
    "`mirror-pump reconcile` says what was lost, continues on the present history, and copies again what differs."
    " Readers keep the present content meanwhile"
)


@dataclass(frozen=True)
class LostPublish:
    """The newest state of a table that was published and that the catalog no longer knows."""

    table: TableName
    metadata: NewerMetadata


@dataclass(frozen=True)
class _LakePointerRow:
    """A row of the query `pointers`."""

    schema_name: str
    table_name: str
    metadata_location: str


@dataclass(frozen=True)
class FollowedTimeline:
    """The timeline of a session."""

    timeline: int
    former: int | None = None
    """The timeline on which the mirror was published so far, if that is another one."""
    left_at: Lsn | None = None
    """Where the server's history left the former timeline."""


def follow(
    connection: PgConnection,
    dsn: str,
    slot: str,
    recorded: SystemIdentity,
    applied: Lsn,
    storage: StorageOptions,
    *,
    followed: int | None,
    published: Lsn | None,
) -> FollowedTimeline:
    """Compare the server's history with the position that the catalog records.

    `followed` is the newest timeline that this process has seen, `published` the newest frontier that it has published
    itself. Raises HistoryDiverged if readers may have seen commits that the server no longer has. Raises ConnectionLost
    for a former primary: the next attempt may find the present one.
    """
    timeline = system_identity(connection).timeline
    if followed is not None and timeline < followed:
        raise ConnectionLost(
            f"the server writes timeline {timeline}, but this pump has followed another one to timeline {followed}: it"
            " is a former primary",
            "stop the former primary; mirror-pump tries again by itself",
        )
    if timeline == recorded.timeline:
        if published is not None and published > applied:
            raise went_back(applied, published)
        return FollowedTimeline(timeline)
    history = read_timelines(dsn)
    if history.timeline != timeline:
        raise ConnectionLost(
            f"two connections lead to servers with timelines {timeline} and {history.timeline}",
            "mirror-pump tries again by itself; stop the former primary",
        )
    if not history.contains(recorded.timeline, applied):
        raise HistoryDiverged(
            f"the frontier {format_lsn(applied)} was published on timeline {recorded.timeline}, which is not part of"
            f" the server's history: it writes timeline {history.timeline}",
            RECONCILE,
        )
    left_at = history.ends[recorded.timeline]
    lost = lost_publishes(connection, slot, storage, left_at)
    if lost:
        raise HistoryDiverged(describe_loss(lost, recorded.timeline, history, applied), RECONCILE)
    return FollowedTimeline(timeline, recorded.timeline, left_at)


def went_back(applied: Lsn, published: Lsn) -> HistoryDiverged:
    """The error for a catalog that was restored on the same timeline."""
    return HistoryDiverged(
        f"the database went back: this pump has published frontier {format_lsn(published)}, and the catalog says"
        f" {format_lsn(applied)}. It was restored, and readers may have seen commits that it no longer has",
        RECONCILE,
    )


def lost_publishes(connection: PgConnection, slot: str, storage: StorageOptions, after: Lsn) -> list[LostPublish]:
    """By table, what the lake shows of commits behind the position `after` that the catalog does not know. Raises
    LakeError if the storage does not answer."""
    with source_errors("reading the lake's pointers"):
        pointers = fetch_rows(connection, _LakePointerRow, _SQL["pointers"], {"slot": slot})
    lost = []
    for pointer in pointers:
        newer = newest_unknown(pointer.metadata_location, storage)
        if newer is not None and newer.frontier > after:
            lost.append(LostPublish(TableName(pointer.schema_name, pointer.table_name), newer))
    return lost


def describe_loss(lost: Sequence[LostPublish], timeline: int, history: TimelineHistory, applied: Lsn) -> str:
    """What was lost, and from where on, in one sentence or two."""
    left_at = history.ends[timeline]
    newest = max(publish.metadata.frontier for publish in lost)
    named = ", ".join(f"{publish.table} ({publish.metadata.location})" for publish in lost[:3])
    more = "" if len(lost) <= 3 else f" and {len(lost) - 3} more"
    return (
        f"the server lost commits that the lake has shown. It left timeline {timeline} at {format_lsn(left_at)} and"
        f" writes timeline {history.timeline}, but the lake was published up to {format_lsn(newest)}: readers may have"
        f" seen commits between the two that never happened on the present history. The catalog went back to frontier"
        f" {format_lsn(applied)} with the database. The lost commits are still in {named}{more}"
    )


def record_timeline(connection: PgConnection, slot: str, timeline: int) -> None:
    """Record that the mirror continues on this timeline."""
    with source_errors("recording the server's timeline"):
        connection.execute(_SQL["record_timeline"], {"slot": slot, "timeline": timeline})


def unusable_after_failover(error: SourceError, followed: FollowedTimeline) -> HistoryDiverged:
    """The error for a slot that cannot continue from the frontier, on a server that was promoted or restored."""
    assert followed.left_at is not None
    return HistoryDiverged(
        f"the server was promoted or restored: it left timeline {followed.former} at {format_lsn(followed.left_at)} and"
        f" writes timeline {followed.timeline}. Since then {error}",
        RECONCILE,
    )
