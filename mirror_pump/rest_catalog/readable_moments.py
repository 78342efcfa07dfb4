"""Which frontier and snapshots a moment consists of, and what a client can attach in place of one that cannot be
shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mirror_pump.model import Lsn, SnapshotId, TableId, format_lsn
from mirror_pump.ops.reads.time_travel import (
    PastPoint,
    SnapshotHistory,
    not_after,
    readable_points,
    snapshot_at,
    time_text,
)
from mirror_pump.rest_catalog.attachment_names import Attachment, View
from mirror_pump.rest_catalog.protocol import bad_request
from mirror_pump.source.catalog.served_tables import ServedTable

ATTACH_ANEW = "attach {name}@latest, which shows the present"


def moments_instead(view: View, histories: Collection[SnapshotHistory], around: Lsn, current_frontier: Lsn) -> str:
    """What to attach: the moments nearest to `around` at which all tables of these histories can be read, each of which
    was there when this was asked, and the present. `current_frontier`: the mirror's frontier."""
    published = {
        snapshot.frontier for past in histories for snapshot in past.snapshots if snapshot.frontier <= current_frontier
    }
    names = [Attachment(view, point).warehouse for point in readable_points(histories, published, around)]
    instead = ATTACH_ANEW.format(name=view)
    return f"attach {' or '.join(names)}, which can be read; or {instead}" if names else instead


def newest_frontier(tables: Sequence[ServedTable]) -> Lsn | None:
    """The mirror's frontier; None if no table has one."""
    return max((table.frontier for table in tables if table.frontier is not None), default=None)


def why_unreadable(table: ServedTable, frontier: Lsn) -> str | None:
    """Why a table cannot be shown at the mirror's present frontier; None if it can."""
    name = f"{table.namespace}.{table.name}"
    if not table.readable:
        return f"{name} is still being copied into the lake; attach again when `mirror-pump status` shows it live"
    if table.frontier is not None and table.frontier < frontier:
        return (
            f"{name} is {table.state}: its lake ends at frontier {format_lsn(table.frontier)}, so it cannot be read at"
            f" {format_lsn(frontier)}; see `mirror-pump status`, or attach the warehouse `mirror`, in which each table"
            " is as of its own frontier"
        )
    return None


def without_metadata(table: ServedTable) -> str:
    """Why a table cannot be shown whose metadata cannot be read."""
    return f"the metadata of {table.namespace}.{table.name} is lost or damaged; see `mirror-pump status`"


def chosen_frontier(
    when: PastPoint,
    histories: Mapping[TableId, SnapshotHistory],
    tables: Sequence[ServedTable],
    current_frontier: Lsn,
    view: View,
) -> Lsn:
    """The newest published frontier that is not after `when`. Raises ProtocolError if there is none."""
    if when.frontier == current_frontier:
        return current_frontier
    promised = {table.table_id: table.frontier for table in tables}
    published = {
        snapshot.frontier
        for table_id, past in histories.items()
        for snapshot in past.snapshots
        if not_after(snapshot, when) and snapshot.frontier <= (promised[table_id] or 0)
    }
    if published:
        return max(published)
    firsts = [past.snapshots[0] for past in histories.values() if past.snapshots]
    if not firsts:
        raise bad_request("the mirrored tables have no history")
    oldest = min(firsts, key=lambda first: first.frontier)
    raise bad_request(
        "the history of the mirrored tables does not go back that far; the oldest moment that can be read is"
        f" {Attachment(view, oldest.frontier).warehouse} ({time_text(oldest.moment_ms)});"
        f" {moments_instead(view, histories.values(), oldest.frontier, current_frontier)}"
    )


def snapshot_or_reason(table: ServedTable, past: SnapshotHistory | None, frontier: Lsn) -> SnapshotId | str:
    """The snapshot that shows a table at a published frontier, or why none does."""
    name = f"{table.namespace}.{table.name}"
    if table.is_tiered:
        return (
            f"{name} is a tiered table, which has no frontier: it can be read as it is now only;"
            f" {ATTACH_ANEW.format(name='mirror')}"
        )
    reason = why_unreadable(table, frontier)
    if reason is not None:
        return reason
    if past is None:
        return without_metadata(table)
    snapshot = snapshot_at(past.snapshots, frontier)
    if snapshot is not None:
        return SnapshotId(snapshot.snapshot_id)
    if past.begins and past.snapshots and frontier < past.snapshots[0].frontier:
        first = past.snapshots[0]
        return (
            f"{name} has been live since frontier {format_lsn(first.frontier)} ({time_text(first.moment_ms)}): before"
            f" that it was being copied"
        )
    return f"the history of {name} is thinned out around frontier {format_lsn(frontier)}"
