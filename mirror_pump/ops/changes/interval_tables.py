"""Which feeds show an interval of changes, and why others do not; and the metadata file that shows one.

Invariant: what is shown of a feed are all changes of its table in the interval. Feeds are only added to, merged and
expired, so any snapshot will do that has the changes up to the interval's end and from its beginning on, and the newest
one is taken: its table is at a frontier that is not before the end, and nothing has expired behind the beginning. A
snapshot is pinned before both are looked at again, and its files stay from then on.

A feed that begins in the interval is shown: its first row is the reset that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mirror_pump.errors import FileDamaged
from mirror_pump.lake.commit.table_interval import write_interval
from mirror_pump.lake.contents.file_slices import Interval
from mirror_pump.lake.document.metadata_files import pinned_location, read_metadata
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FRONTIER_PROPERTY
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.feed_schema import LSN_ID
from mirror_pump.lake.storage import StorageOptions, join
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.changes.points import ChangeInterval, PublishedFrontier
from mirror_pump.source.catalog.feed_reads import ReadFeed
from mirror_pump.source.catalog.pins import Pin

SINCE_PROPERTY = "mirror-pump.since"
"""Entry of a snapshot's summary, beside that of the frontier: where the interval begins, in PostgreSQL's notation."""
_PARALLEL_READS = 8


def why_left_out(feed: ReadFeed, interval: ChangeInterval) -> str | None:
    """Why a feed cannot show an interval; None if it can."""
    name = f"{feed.namespace}.{feed.name}"
    if feed.error is not None:
        return f"the change feed of {name} lacks changes: {feed.error}"
    if feed.metadata_location is None:
        return f"the Iceberg table of the changes of {name} is gone: unregister the table and register it again"
    if feed.begins_lsn is None:
        return f"{name} is not live yet, and so has no changes; see `mirror-pump status`"
    if feed.begins_lsn > interval.until:
        return (
            f"the changes of {name} begin at {format_lsn(feed.begins_lsn)}, after the end of the interval,"
            f" {format_lsn(interval.until)}"
        )
    if feed.expired_lsn > interval.since:
        return (
            f"changes of {name} before {format_lsn(feed.expired_lsn)} have expired, and the interval begins at"
            f" {format_lsn(interval.since)}: read the table itself as of a frontier, and its changes from there on"
        )
    if feed.frontier is None or feed.frontier < interval.until:
        state = feed.obstacle or "is behind"
        end = "nowhere yet" if feed.frontier is None else f"at {format_lsn(feed.frontier)}"
        return (
            f"{name} {state}: its changes end {end}, before the end of the interval, {format_lsn(interval.until)};"
            " see `mirror-pump status`"
        )
    return None


def published_frontiers(feeds: Sequence[ReadFeed], storage: StorageOptions) -> list[PublishedFrontier]:
    """The frontiers that the histories of feeds still have, with their times. None of a feed whose metadata is damaged:
    others have them too. Raises LakeError."""

    def read(location: str) -> list[PublishedFrontier]:
        try:
            snapshots = read_metadata(location, storage).snapshots
        except FileDamaged:
            return []
        return [
            PublishedFrontier(frontier, snapshot.timestamp_ms)
            for snapshot in snapshots
            if (frontier := snapshot.summary.frontier) is not None
        ]

    locations = [feed.metadata_location for feed in feeds if feed.metadata_location is not None]
    with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="feeds") as pool:
        return [point for points in pool.map(read, locations) for point in points]


def interval_location(metadata: TableMetadata, pin: Pin, interval: ChangeInterval) -> str:
    """Where the metadata file is that shows an interval of a pinned snapshot of a feed. The sweep of a feed
    (mirror_pump.ops.maintenance.feed_pass) leaves every file that is younger than the oldest pinned snapshot."""
    shown = f"pin {pin.pin_id} of snapshot {pin.snapshot_id}: {interval}"
    return pinned_location(metadata, shown, join(metadata.location, "intervals"))


def write_changes(
    metadata: TableMetadata, snapshot: Snapshot, interval: ChangeInterval, location: str, storage: StorageOptions
) -> TableMetadata:
    """Writes the metadata file in which a feed has the rows of the interval alone, and returns its content. Raises
    LakeError."""
    summary = {SINCE_PROPERTY: format_lsn(interval.since), FRONTIER_PROPERTY: format_lsn(interval.until)}
    rows = Interval(LSN_ID, Lsn(interval.since), Lsn(interval.until))
    return write_interval(metadata, snapshot, rows, location, summary, storage)
