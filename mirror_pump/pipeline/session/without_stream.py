"""Follows the server of a mirror without a stream: to another timeline, and back in time with its database.

Why no position can be wrong here. A mirror without a stream has tiered tables alone. What such a table holds is its
lake, as the catalog names it, the corrections, and the heap at and above the cut-line. Pointer, published snapshot,
cut-line and corrections are rows of the database that holds the heap. A promotion that loses commits, or a restore,
takes all of them back to one moment. A partition whose advance was lost is in the heap again, the catalog names the
lake from before it, and the files of what was lost are named by nothing. So reads show exactly what the database shows,
and there is no slot that could be ahead or behind. The session continues, where one with a stream asks an operator.

What does not go back is the warehouse. So a session looks, when a process begins or the server has changed, for
metadata files that the catalog does not know (mirror_pump.pipeline.session.lost_publishes), and from them for this:

- Files that the catalog's state needs, and that maintenance has deleted in what was lost: after a compaction, say. Only
  tables with unknown metadata can lack any, since maintenance deletes what a newer metadata file does not need, and
  that one is still there. All their files are looked for; a table that lacks one fails.
- A heap that did not go back: schema modak alone was restored. Partitions that left the heap since are only in files
  that the catalog does not know. Refused, before anything is written or deleted.
- A timeline that is newer than the server's: a former primary, or a restore across a promotion. Refused, since the
  present primary may have a pump that publishes to the same warehouse.
- Anything else that was published: a promotion that lost commits, a restore, or a restored copy whose original still
  uses the warehouse. Nothing here tells these apart. It changes no read, so the pump goes on, but no file is deleted
  until an operator has reconciled (modak.mirror_slots.went_back_at, mirror_pump/ops/maintenance/sweep.py).

One session stays on one server, as with a stream: each publish compares the timeline in its transaction. A chunk that
was read on a former primary could otherwise be published where its rows were never committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from mirror_pump.errors import FileDamaged, FileMissing, HistoryDiverged, is_data_file
from mirror_pump.lake.commit.presence import require_all
from mirror_pump.lake.contents.newer_metadata import NewerMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId, format_lsn
from mirror_pump.pipeline.session.history import RECONCILE_OR_LEAVE, FollowedTimeline, refuse_former_primary
from mirror_pump.pipeline.session.lost_publishes import (
    CatalogPosition,
    LostPublish,
    LostPublishes,
    lost_publishes,
    read_position,
)
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.retention.partitions import read_partitions
from mirror_pump.source.stream.slot import system_identity
from sql import queries

_SQL = queries("history")

_PARALLEL_TABLES = 16
"""Tables whose files are looked for at a time: in an object store each takes some requests."""


def follow_without_stream(
    connection: PgConnection, slot: str, storage: StorageOptions, run_state: RunState
) -> FollowedTimeline:
    """Compare the lake with what the catalog records. Changes nothing.

    Raises HistoryDiverged for a heap that did not go back with the catalog, and for a lake of a newer timeline than the
    server's; ConnectionLost for a former primary if this process knows the present one; LakeError if the storage does
    not answer.
    """
    timeline = system_identity(connection).timeline
    recorded = read_position(connection, slot)
    refuse_former_primary(timeline, run_state)
    promoted = timeline != recorded.timeline
    seen_newer = run_state.published is not None and run_state.published > recorded.applied
    if run_state.timeline is not None and not promoted and not seen_newer:
        # This process has looked, and remembers what it has published since.
        return FollowedTimeline(timeline)
    publishes = unknown_publishes(connection, slot, storage, recorded, timeline)
    refuse_newer_timeline(publishes, timeline)
    lost = tuple(
        publish for publish in publishes.tables if promoted or seen_newer or recorded.is_behind(publish.metadata)
    )
    return FollowedTimeline(
        timeline,
        recorded.timeline if promoted else None,
        unpublished=() if lost else publishes.tables,
        lost=lost,
        missing=missing_files_of(publishes.unsettled, storage),
    )


def unknown_publishes(
    connection: PgConnection, slot: str, storage: StorageOptions, recorded: CatalogPosition, timeline: int
) -> LostPublishes:
    """What the lake has beyond the catalog: states of a newer frontier, timeline or cut-line. Raises HistoryDiverged if
    only such a state has rows that the heap no longer holds, and LakeError."""

    def is_newer(state: NewerMetadata) -> bool:
        return state.frontier > recorded.applied or (state.promise.timeline or timeline) > timeline

    publishes = lost_publishes(connection, slot, storage, is_newer, accepted=recorded.accepted, cut_lines=True)
    for publish in publishes.tables:
        _refuse_newer_heap(connection, publish, recorded)
    return publishes


def refuse_newer_timeline(publishes: LostPublishes, timeline: int) -> None:
    """Raises HistoryDiverged if the lake was published on a newer timeline than the server writes."""
    for publish in publishes.tables:
        newer = publish.metadata.promise.timeline or timeline
        if newer > timeline:
            raise HistoryDiverged(
                f"the lake was published on timeline {newer}, while the server writes timeline {timeline}: of"
                f" {publish.table} ({publish.metadata.location}). The server is a former primary, or was restored",
                RECONCILE_OR_LEAVE,
            )


def _refuse_newer_heap(connection: PgConnection, publish: LostPublish, recorded: CatalogPosition) -> None:
    """Partitions leave in the order of their keys. So of those that left since the catalog's moment, the first is one
    that the catalog still has in the heap."""
    cut = publish.moved_cut_line
    if cut is None or (publish.cut_line is not None and cut < publish.cut_line):
        return
    gone = [
        partition.partition_id
        for partition in read_partitions(connection, publish.table_id)
        if partition.name is None and partition.hi <= cut
    ]
    if gone:
        raise HistoryDiverged(
            f"the catalog of {publish.table} went back to frontier {format_lsn(recorded.applied)}, but its heap did"
            f" not: it lacks {', '.join(gone)}, and rows that have left the heap since may be only in"
            f" {publish.metadata.location}. Nothing was changed",
            "restore the database as a whole, or a newer copy of schema modak. If neither exists, save the rows from"
            " that file first (`iceberg_scan('...')` in DuckDB). Run no maintenance until then",
        )


def missing_files_of(tables: Mapping[TableId, str], storage: StorageOptions) -> tuple[tuple[TableId, str], ...]:
    """By table, a file that its readers need and that is lost; or metadata that is damaged. `tables`: their metadata
    files. Raises LakeError."""

    def look(table: tuple[TableId, str]) -> tuple[TableId, str] | None:
        table_id, location = table
        try:
            require_all(location, storage)
        except FileMissing as error:
            return table_id, error.location
        except FileDamaged as error:
            # Without rows of a data file the table goes on.
            return None if is_data_file(error.location) else (table_id, error.location)
        return None

    with ThreadPoolExecutor(_PARALLEL_TABLES, "missing-files") as pool:
        return tuple(missing_file for missing_file in pool.map(look, tables.items()) if missing_file is not None)


def note_going_back(connection: PgConnection, slot: str) -> None:
    """Record that the lake has more than the catalog: no file is deleted until `forget_going_back`."""
    with source_errors("recording that the database went back"):
        connection.execute(_SQL["note_going_back"], {"slot": slot})


def forget_going_back(connection: PgConnection, slot: str) -> None:
    """Record that an operator has looked at what the catalog does not know."""
    with source_errors("recording that the mirror is reconciled"):
        connection.execute(_SQL["forget_going_back"], {"slot": slot})
