"""Maintenance of change feeds: what expires from them, and the files that nothing refers to any more.

The pump merges a feed's files by itself (mirror_pump/pipeline/upkeep/feed_upkeep.py). What it leaves is deleted here:
files that were merged or have expired, snapshots without readers, metadata, and what publishes left behind that failed.
No Spark is needed: only the mirror writes feeds, so it knows all their files. A file is deleted if

1. no snapshot in the feed's history names it, no log, and no pin: a pinned snapshot is in the history, or nothing is
   deleted;
2. it is older than the grace, and so is any publish that could still name it: the sweep is declared for all tables
   with a feed, as for mirrored tables (sweep.py);
3. it is older than the oldest pinned snapshot. The reader of a pin may open the metadata file again that it was given,
   and writes slices and metadata beside the feed, for as long as it pins it;
4. it is no metadata file with a higher number than the present one;
5. the catalog is not a restored copy, whose original may have the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import expiry_rewrite, feed_files
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.referenced_files import referenced_files
from mirror_pump.lake.contents.snapshot_history import expirable
from mirror_pump.lake.document.metadata_files import metadata_number
from mirror_pump.lake.storage import StorageOptions, StoredFile, list_files
from mirror_pump.ops.maintenance.sweep import CLOCK_SKEW, METADATA_SUFFIX, PIN_MARGIN, delete_all
from mirror_pump.pipeline.publish.feed_landing import FeedLanding
from mirror_pump.pipeline.session.lost_publishes import refuse_restored_copy
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.change_feeds import ChangeFeed, writable_feeds
from mirror_pump.source.catalog.maintenance import begin_feed_sweep, safe_time
from mirror_pump.source.connect import PgConnection


@dataclass(frozen=True)
class FeedMaintenance:
    """Maintains one feed. The caller holds the lock of its table."""

    connection: PgConnection
    slot: str
    storage: StorageOptions
    policy: Policy
    clock_skew: float = CLOCK_SKEW
    """Seconds by which the clocks of pump, maintainer and storage may differ."""
    pin_margin: float = PIN_MARGIN
    """Seconds by which a file that the reader of a pinned snapshot needs may be older than that."""

    def maintain(self, feed_id: int, *, requested: bool) -> list[str]:
        """Does what is due; with `requested`, all there is to do. Returns a line for each thing that was done. Raises
        LakeError and SourceError."""
        done: list[str] = []
        feed = self._feed(feed_id)
        if feed is None:
            return done
        if self._landing(feed).settle():
            done.append("settled another engine's commit")
        expired = self._expire_changes(feed_id)
        if expired is not None:
            done.append(f"expire_changes: {len(expired.removed)} files, {expired.removed_rows} changes")
        snapshots = self._expire_snapshots(feed_id, requested=requested)
        if snapshots:
            done.append(f"expire_snapshots: {snapshots} expired snapshots")
        if snapshots or expired is not None or requested:
            swept = self.sweep(feed_id, dry_run=False)
            done.append(f"remove_orphan_files: {len(swept)} deleted files")
        return done

    def dry_run(self, feed_id: int) -> list[str]:
        """What `maintain` would do on request, as lines of text. Raises LakeError."""
        feed = self._feed(feed_id)
        if feed is None:
            return []
        state = LakeTable.load(feed.pointer, self.storage)
        snapshots = len(self._expirable(feed, state)) if self.policy.snapshot_expiry_enabled else 0
        files = self.sweep(feed_id, dry_run=True)
        lines = [f"would expire {snapshots} snapshots of {feed.lake_name}"] if snapshots else []
        if files:
            size = sum(file.size_bytes for file in files)
            lines.append(f"would delete {len(files)} files of {feed.lake_name}, {size} bytes:")
            lines += [f"  {file.location}" for file in files]
        return lines

    def due(self, feed_id: int) -> bool:
        """Whether something is due by itself. Reads the feed's metadata."""
        feed = self._feed(feed_id)
        if feed is None or not self.policy.snapshot_expiry_enabled:
            return False
        state = LakeTable.load(feed.pointer, self.storage)
        return len(self._expirable(feed, state)) >= self.policy.snapshot_expiry_min_snapshots

    def _expire_snapshots(self, feed_id: int, *, requested: bool) -> int:
        feed = self._feed(feed_id)
        least = 1 if requested else self.policy.snapshot_expiry_min_snapshots
        if feed is None or not self.policy.snapshot_expiry_enabled:
            return 0
        before = LakeTable.load(feed.pointer, self.storage)
        if len(self._expirable(feed, before)) < least:
            return 0
        after = self._landing(feed).land_without_snapshots(self._expirable)
        return len(before.metadata.snapshots) - len(after.metadata.snapshots)

    def _expirable(self, feed: ChangeFeed, state: LakeTable) -> tuple[int, ...]:
        now_ms = round(safe_time(self.connection) * 1000)
        return expirable(
            state.metadata, now_ms, self.policy.retention_ms, self.policy.snapshot_min_retained, feed.pinned
        )

    def sweep(self, feed_id: int, *, dry_run: bool) -> Sequence[StoredFile]:
        """Deletes the files that nothing refers to; returns them. Raises LakeError if a pinned snapshot is not in the
        feed's history, and SourceError on a restored copy."""
        if not self.policy.orphan_sweep_enabled:
            return ()
        now = safe_time(self.connection)
        before = now - self.policy.orphan_grace_hours * 3600
        metadata_before = now - self.policy.metadata_grace_hours * 3600
        feed = self._feed(feed_id)
        if feed is None:
            return ()
        if not dry_run:
            begin_feed_sweep(self.connection, self.slot, feed.lake_name, before + self.clock_skew)
        # Files are listed before the metadata is read, so what a commit names meanwhile is seen.
        listed = tuple(list_files(feed.location, self.storage))
        feed = self._feed(feed_id)
        if feed is None:
            return ()
        if not dry_run:
            refuse_restored_copy(self.connection, self.slot, feed.lake_name, feed.pointer, self.storage)
        state = self._pinned_state(feed)
        pinned = [snapshot for snapshot in state.metadata.snapshots if snapshot.snapshot_id in feed.pinned]
        oldest_pin = min((snapshot.timestamp_ms / 1000 - self.pin_margin for snapshot in pinned), default=now)
        named = {feed.pointer, *referenced_files(state.metadata, self.storage)}
        number = metadata_number(feed.pointer) or 0
        orphans = [
            file
            for file in listed
            if file.location not in named
            and not (_is_metadata(file) and (metadata_number(file.location) or 0) > number)
            and file.modified < min(metadata_before if _is_metadata(file) else before, oldest_pin)
        ]
        if not dry_run:
            # A reader pins a snapshot, and then checks that it is in the history. So if it is not there any more, its
            # pin is to be seen by now.
            feed = self._feed(feed_id)
            if feed is None:
                return ()
            self._pinned_state(feed)
            delete_all(orphans, self.storage)
        return orphans

    def _pinned_state(self, feed: ChangeFeed) -> LakeTable:
        """The feed's state. Raises LakeError if it lacks a pinned snapshot."""
        state = LakeTable.load(feed.pointer, self.storage)
        missing = [snapshot_id for snapshot_id in feed.pinned if state.metadata.snapshot(snapshot_id) is None]
        if missing:
            raise LakeError(
                f"a reader has pinned snapshot {missing[0]} of {feed.lake_name}, which is not in its history",
                "wait for the pin to expire (modak.feed_pins), or delete it if its reader is gone",
            )
        return state

    def _feed(self, feed_id: int) -> ChangeFeed | None:
        return next(iter(writable_feeds(self.connection, self.slot, feed_id)), None)

    def _expire_changes(self, feed_id: int, tries: int = 3) -> FeedRewrite | None:
        """Takes files out whose changes were all committed before the feed's first day. Returns what it took, None if
        there are none."""
        feed = self._feed(feed_id)
        if feed is None or feed.first_day is None:
            return None
        state = LakeTable.load(feed.pointer, self.storage)
        listing = listing_for(state)
        files = feed_files(state, listing)
        expired = expiry_rewrite(files, feed.first_day, listing)
        if expired is not None:
            try:
                self._landing(feed).land_rewrite(expired)
            except FileRewriteSuperseded:
                # The pump has merged these files, or taken them out itself.
                if tries == 1:
                    raise
                return self._expire_changes(feed_id, tries - 1)
        return expired

    def _landing(self, feed: ChangeFeed) -> FeedLanding:
        return FeedLanding(self.connection, self.slot, feed, self.storage)


def _is_metadata(file: StoredFile) -> bool:
    return file.location.endswith(METADATA_SUFFIX)
