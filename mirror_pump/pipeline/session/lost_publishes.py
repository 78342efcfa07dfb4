"""What the lake shows that the catalog does not know: publishes of a history that the server has left, or never had.

Two kinds of evidence count. Each snapshot names the timeline on which its frontier was published, so positions are
compared with the end of that very timeline, wherever the server is by now. On one and the same timeline, positions
alone say little: there a state counts only if it was built on another one that the catalog does not know, since a pump
stages nothing on top of what has not landed, or if it is beyond the end of the WAL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mirror_pump.errors import SourceError
from mirror_pump.lake.contents.newer_metadata import NewerMetadata, Promise, UnknownMetadata, unknown_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId, TableName, format_lsn
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from mirror_pump.source.stream.timelines import TimelineHistory
from sql import queries

_SQL = queries("history")

_PARALLEL_TABLES = 16
"""Tables whose files are looked through at a time: in an object store each takes some requests."""


@dataclass(frozen=True)
class LostPublish:
    """A state of a table that was published, or may have been, and that the catalog does not know."""

    table_id: TableId
    table: TableName
    metadata: NewerMetadata
    cut_line: int | None
    """The cut-line in the catalog, a tier value. None if no row is below it."""

    @property
    def moved_cut_line(self) -> int | None:
        """The table's cut-line in this state, if it is another one than the catalog's. It never moves back."""
        cut = _cut_line(self.metadata)
        return None if cut is None or cut == self.cut_line else cut


@dataclass(frozen=True)
class LostPublishes:
    """The newest of each table."""

    tables: tuple[LostPublish, ...]
    modified: float
    """When the last file that the catalog does not know was written, seconds since 1970 UTC by the storage's clock."""
    unsettled: Mapping[TableId, str] = field(default_factory=dict)
    """The metadata file that the catalog names, by table, of all tables with any file that it does not know."""


@dataclass(frozen=True)
class _LakePointerRow:
    """A row of the query `pointers`."""

    table_id: TableId
    schema_name: str
    table_name: str
    metadata_location: str
    cut_line: int | None


def lost_publishes(
    connection: PgConnection,
    slot: str,
    storage: StorageOptions,
    condition: Callable[[NewerMetadata], bool],
    *,
    accepted: float,
    only_live: bool = False,
    cut_lines: bool = False,
) -> LostPublishes:
    """By table, the newest state of those that the catalog does not know and that meet `condition`.

    Ignores files up to `accepted` (seconds since 1970 UTC). `only_live` leaves out tables under copy, whose chunks
    leave many such files. With `cut_lines`, states with a further cut-line are included too: their frontier may be the
    catalog's. Raises LakeError if the storage does not answer.
    """
    with source_errors("reading the lake's pointers"):
        pointers = fetch_rows(connection, _LakePointerRow, _SQL["pointers"], {"slot": slot, "only_live": only_live})

    def look(pointer: _LakePointerRow) -> UnknownMetadata:
        def matches(state: NewerMetadata) -> bool:
            cut = _cut_line(state) if cut_lines else None
            return condition(state) or (cut is not None and (pointer.cut_line is None or cut > pointer.cut_line))

        return unknown_metadata(pointer.metadata_location, storage, accepted=accepted, matches=matches)

    with ThreadPoolExecutor(_PARALLEL_TABLES, "lost-publishes") as pool:
        unknown_states = list(pool.map(look, pointers))
    lost = tuple(
        LostPublish(
            pointer.table_id,
            TableName(pointer.schema_name, pointer.table_name),
            unknown.newest,
            pointer.cut_line,
        )
        for pointer, unknown in zip(pointers, unknown_states, strict=True)
        if unknown.newest is not None
    )
    unsettled = {
        pointer.table_id: pointer.metadata_location
        for pointer, unknown in zip(pointers, unknown_states, strict=True)
        if unknown.modified
    }
    return LostPublishes(lost, max((unknown.modified for unknown in unknown_states), default=0.0), unsettled)


def _cut_line(state: NewerMetadata) -> int | None:
    return None if state.cut_line is None else int(state.cut_line)


def is_lost(promise: Promise, history: TimelineHistory, recorded: int) -> bool:
    """Whether the server's history, which left the `recorded` timeline, does not have what was promised.

    Before anything is staged on a timeline, the catalog records it. So what was published on the server's own one
    belongs to another history that had the same number.
    """
    timeline = promise.timeline or recorded
    return timeline == history.timeline or not history.contains(timeline, promise.frontier)


@dataclass(frozen=True)
class CatalogPosition:
    """What the catalog and its server know of positions."""

    timeline: int
    """On which the mirror was published so far."""
    applied: Lsn
    """The frontier."""
    accepted: float
    """Files up to this time that the catalog does not know were dealt with: seconds since 1970 UTC by the storage's
    clock."""
    wal_end: Lsn
    acknowledged: Lsn
    """The position of the slot; 0 if there is none."""

    def is_behind(self, metadata: NewerMetadata) -> bool:
        """Whether the state was certainly published after the frontier, by a mirror on the same timeline. Only if the
        position was read after the metadata."""
        frontier = metadata.frontier
        built_upon = any(self.applied < promise.frontier < frontier for promise in metadata.earlier)
        return frontier > self.applied and (built_upon or frontier > self.wal_end or frontier <= self.acknowledged)


def read_position(connection: PgConnection, slot: str) -> CatalogPosition:
    """The present position. Raises SourceError if the slot is not in the catalog."""
    with source_errors("reading the mirror's position"):
        position = fetch_row(connection, CatalogPosition, _SQL["position"], {"slot": slot})
    if position is None:
        raise SourceError(f"slot {slot} is not in the catalog", "run `mirror-pump init` first")
    return position


def was_published(metadata: NewerMetadata, history: TimelineHistory, position: CatalogPosition) -> bool:
    """Whether the state was certainly published, and is not of the server's history or not known to its catalog, on a
    server that still writes the timeline which the catalog records."""
    timeline = metadata.promise.timeline or history.timeline
    if timeline != history.timeline:
        return not history.contains(timeline, metadata.frontier)
    return position.is_behind(metadata)


def refuse_restored_copy(
    connection: PgConnection, slot: str, table: TableName, location: str, storage: StorageOptions
) -> None:
    """Raise SourceError if the table has files of publishes that the catalog, which names `location`, does not know.
    May run beside a pump."""

    def published(state: NewerMetadata) -> bool:
        # Read for each file, after it: what has landed since `location` was read is no surprise.
        position = read_position(connection, slot)
        timeline = state.promise.timeline or position.timeline
        return timeline > position.timeline or (timeline == position.timeline and position.is_behind(state))

    accepted = read_position(connection, slot).accepted
    newer = unknown_metadata(location, storage, accepted=accepted, matches=published).newest
    if newer is not None:
        raise SourceError(
            f"no file of {table} is deleted: the lake was published up to {format_lsn(newer.frontier)}"
            f" ({newer.location}), which the catalog does not know. The database was restored, or it is a copy",
            "start a pump: it continues, or says what to do. A copy for other purposes needs its own warehouse",
        )


def describe_loss(lost: Sequence[LostPublish], timeline: int, history: TimelineHistory, applied: Lsn) -> str:
    """What was lost after the server left the timeline on which the mirror was published, and from where on."""
    return (
        f"the server lost commits that the lake has shown. It left timeline {timeline} at"
        f" {format_lsn(history.ends[timeline])} and writes timeline {history.timeline}, but the lake was published up"
        f" to {format_lsn(_newest(lost))}: readers may have seen commits between the two that never happened on the"
        f" present history. {_where(lost, applied)}"
    )


def describe_going_back(lost: Sequence[LostPublish], timeline: int, applied: Lsn) -> str:
    """The same for a server that writes the timeline that the catalog records."""
    promises = [publish.metadata.promise for publish in lost]
    foreign = sorted({promise.timeline for promise in promises if promise.timeline} - {timeline})
    on = "" if not foreign else f" on timeline {', '.join(map(str, foreign))}, while it writes timeline {timeline}"
    return (
        f"the database went back: the lake was published up to {format_lsn(_newest(lost))}{on}, and the catalog says"
        f" {format_lsn(applied)}. The database, or its schema modak, was restored, or this is a former primary."
        f" Readers may have seen commits that it does not have. {_where(lost, applied)}"
    )


def _newest(lost: Sequence[LostPublish]) -> Lsn:
    return max(publish.metadata.frontier for publish in lost)


def _where(lost: Sequence[LostPublish], applied: Lsn) -> str:
    named = ", ".join(f"{publish.table} ({publish.metadata.location})" for publish in lost[:3])
    more = "" if len(lost) <= 3 else f" and {len(lost) - 3} more"
    return (
        f"The catalog went back to frontier {format_lsn(applied)} with the database. The lost commits are still in"
        f" {named}{more}"
    )
