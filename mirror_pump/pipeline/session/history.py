"""Follows the server to a new timeline, or refuses: whether what readers were shown is part of the server's history.

The catalog is in the database, so a promotion or a restore takes it back together with the heap: what it names as
applied is always part of the server's history. The lake's files are elsewhere, and may show commits that are not
(docs/design/failover.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.errors import ConnectionLost, HistoryDiverged, SourceError
from mirror_pump.lake.contents.newer_metadata import NewerMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId, format_lsn
from mirror_pump.pipeline.session.lost_publishes import (
    CatalogPosition,
    LostPublish,
    describe_going_back,
    describe_loss,
    is_lost,
    lost_publishes,
    read_position,
    was_published,
)
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.source.catalog.server_change import UpgradedServer
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.stream.slot import RECONCILE, system_identity
from mirror_pump.source.stream.timelines import TimelineHistory, read_timelines
from sql import queries

_SQL = queries("history")

RECONCILE_OR_LEAVE = f"if the server is a former primary, stop it. If it was restored, {RECONCILE}"
"""What to do where the lake shows more than the server has, and nothing tells why."""


@dataclass(frozen=True)
class FollowedTimeline:
    """The timeline of a session."""

    timeline: int
    former_timeline: int | None = None
    """The timeline on which the mirror was published so far, if that is another one."""
    left_at: Lsn | None = None
    """Where the server's history left the former timeline."""
    accepted: float = 0.0
    """See CatalogPosition. To be recorded with the timeline."""
    unpublished: tuple[LostPublish, ...] = ()
    """States that the catalog does not know, and of which nothing tells whether they were published."""
    lost: tuple[LostPublish, ...] = ()
    """States that were published, or count as published, and that the server does not have. Only a mirror without a
    stream continues all the same."""
    missing: tuple[tuple[TableId, str], ...] = ()
    """Files that tables need and that are gone, by URI: maintenance deleted them in what was lost."""
    upgraded: UpgradedServer | None = None
    """The server, if pg_upgrade made it from the one on which the mirror was published. To be recorded."""


def follow(
    connection: PgConnection, dsn: str, slot: str, storage: StorageOptions, run_state: RunState
) -> FollowedTimeline:
    """Compare the server's history with what the catalog records of the slot.

    Raises HistoryDiverged if readers may have seen commits that the server does not have. Raises ConnectionLost for a
    former primary: the next attempt may find the present one.
    """
    timeline = system_identity(connection).timeline
    recorded = read_position(connection, slot)
    refuse_former_primary(timeline, run_state)
    if timeline == recorded.timeline:
        if run_state.published is not None and run_state.published > recorded.applied:
            raise went_back(recorded.applied, run_state.published)
        if run_state.timeline is not None:
            # This process has looked, and remembers what it has published since.
            return FollowedTimeline(timeline)
        return FollowedTimeline(timeline, unpublished=_examined(connection, dsn, slot, recorded, storage))
    if timeline == run_state.timeline:
        raise HistoryDiverged(
            f"the database went back: this pump has followed the server to timeline {timeline}, and the catalog says"
            f" that the mirror was published on timeline {recorded.timeline}. It was restored, and readers may have"
            " seen commits that it no longer has",
            RECONCILE,
        )
    return _followed(connection, history_of(dsn, timeline), slot, recorded, storage)


def follow_upgrade(
    connection: PgConnection, slot: str, storage: StorageOptions, run_state: RunState, server: UpgradedServer
) -> FollowedTimeline:
    """Compare the lake with the catalog that pg_upgrade brought to another server.

    Raises HistoryDiverged if the lake has more than the catalog: the pump of the old server may have gone on.
    """
    recorded = read_position(connection, slot)
    if run_state.published is not None and run_state.published > recorded.applied:
        raise went_back(recorded.applied, run_state.published)

    def is_newer(state: NewerMetadata) -> bool:
        return state.frontier > recorded.applied

    # The frontier of a drained mirror is beyond all that was staged: what is newer was made by a pump that went on.
    newer = lost_publishes(connection, slot, storage, is_newer, accepted=recorded.accepted)
    if newer.tables:
        raise HistoryDiverged(
            describe_going_back(newer.tables, recorded.timeline, recorded.applied),
            f"if the old server's pump has published since pg_upgrade, stop that server. Then {RECONCILE}",
        )
    accepted = max(newer.modified, recorded.accepted)
    return FollowedTimeline(server.identity.timeline, recorded.timeline, accepted=accepted, upgraded=server)


def refuse_former_primary(timeline: int, run_state: RunState) -> None:
    """Raises ConnectionLost if the server writes an older timeline than this process has seen: the next attempt may
    find the present primary."""
    if run_state.timeline is not None and timeline < run_state.timeline:
        raise ConnectionLost(
            f"the server writes timeline {timeline}, but this pump has followed another one to timeline"
            f" {run_state.timeline}: it is a former primary",
            "stop the former primary; mirror-pump tries again by itself",
        )


def history_of(dsn: str, timeline: int) -> TimelineHistory:
    """The history of the server that writes `timeline`. Raises ConnectionLost if the DSN leads to another one now."""
    if timeline == 1:
        # The first timeline has no history: nothing to connect for.
        return TimelineHistory(timeline, {})
    history = read_timelines(dsn)
    if history.timeline != timeline:
        raise ConnectionLost(
            f"two connections lead to servers with timelines {timeline} and {history.timeline}",
            "mirror-pump tries again by itself; stop the former primary",
        )
    return history


def _followed(
    connection: PgConnection, history: TimelineHistory, slot: str, recorded: CatalogPosition, storage: StorageOptions
) -> FollowedTimeline:
    if not history.contains(recorded.timeline, recorded.applied):
        raise HistoryDiverged(
            f"the frontier {format_lsn(recorded.applied)} was published on timeline {recorded.timeline}, which is not"
            f" part of the server's history: it writes timeline {history.timeline}",
            RECONCILE,
        )

    def was_lost(state: NewerMetadata) -> bool:
        return is_lost(state.promise, history, recorded.timeline)

    lost = lost_publishes(connection, slot, storage, was_lost, accepted=recorded.accepted)
    if lost.tables:
        raise HistoryDiverged(describe_loss(lost.tables, recorded.timeline, history, recorded.applied), RECONCILE)
    accepted = max(lost.modified, recorded.accepted)
    return FollowedTimeline(history.timeline, recorded.timeline, history.ends[recorded.timeline], accepted)


def _examined(
    connection: PgConnection, dsn: str, slot: str, recorded: CatalogPosition, storage: StorageOptions
) -> tuple[LostPublish, ...]:
    """Look whether the database went back before this process began. Raises HistoryDiverged if it certainly did.
    Returns what tells nothing for certain."""
    history = history_of(dsn, recorded.timeline)

    def may_be_lost(state: NewerMetadata) -> bool:
        return state.frontier > recorded.applied or was_published(state, history, recorded)

    publishes = lost_publishes(
        connection, slot, storage, may_be_lost, accepted=recorded.accepted, only_live=True, cut_lines=True
    )
    certain = [publish for publish in publishes.tables if was_published(publish.metadata, history, recorded)]
    if certain:
        raise HistoryDiverged(describe_going_back(certain, recorded.timeline, recorded.applied), RECONCILE_OR_LEAVE)
    return publishes.tables


def went_back(applied: Lsn, published: Lsn) -> HistoryDiverged:
    """The error for a catalog that was restored on the same timeline."""
    return HistoryDiverged(
        f"the database went back: this pump has seen frontier {format_lsn(published)}, and the catalog says"
        f" {format_lsn(applied)}. It was restored, and readers may have seen commits that it no longer has",
        RECONCILE,
    )


def record_timeline(connection: PgConnection, slot: str, timeline: int, accepted: float) -> None:
    """Record that the mirror continues on this timeline, and what was dealt with (CatalogPosition.accepted)."""
    with source_errors("recording the server's timeline"):
        connection.execute(_SQL["record_timeline"], {"slot": slot, "timeline": timeline, "accepted": accepted})


def unusable_slot(error: SourceError, followed: FollowedTimeline) -> SourceError:
    """The error for a slot that cannot continue from the frontier: HistoryDiverged on a server that was promoted or
    restored, or may have been."""
    if followed.left_at is not None:
        return HistoryDiverged(
            f"the server was promoted or restored: it left timeline {followed.former_timeline} at"
            f" {format_lsn(followed.left_at)} and writes timeline {followed.timeline}. Since then {error}",
            RECONCILE,
        )
    if followed.unpublished:
        publish = followed.unpublished[0]
        return HistoryDiverged(
            f"the database went back, or a pump was killed: the lake has metadata up to"
            f" {format_lsn(publish.metadata.frontier)} that the catalog does not know, of {publish.table}"
            f" ({publish.metadata.location}). And {error}",
            RECONCILE,
        )
    return error
