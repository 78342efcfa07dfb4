"""Maintenance of change feeds: what expires from them, and the files that nothing refers to any more.

The pump merges a feed's files by itself (mirror_pump/pipeline/upkeep/feed_upkeep.py). What it leaves is deleted here:
files that were merged or have expired, snapshots without readers, metadata, and what publishes left behind that failed.
No Spark is needed: only the mirror writes feeds, so it knows all their files. The sweep is that of mirrored tables
(sweep.py), and is declared for all tables with a feed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import expiry_rewrite, feed_files
from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.merged_manifests import merge_manifests
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.referenced_files import referenced_files
from mirror_pump.lake.storage import StorageOptions, StoredFile
from mirror_pump.ops.maintenance.plan import ExpireSnapshots, expiry_of
from mirror_pump.ops.maintenance.sweep import CLOCK_SKEW, PIN_MARGIN, SweptState, SweptTable, pinned_snapshots, sweep
from mirror_pump.pipeline.publish.feed_landing import FeedLanding
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
        if requested and self._merge_manifests(feed):
            done.append("rewrite_manifests: bounds of removed files")
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
        snapshots = len(self._expirable(feed, state))
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
        if feed is None:
            return False
        return self._expiry(feed, LakeTable.load(feed.pointer, self.storage), requested=False) is not None

    def _merge_manifests(self, feed: ChangeFeed) -> bool:
        """As of mirrored tables (plan.manifests_of): bounds of removed files are values of changes that are gone. Not
        if the pump has merged some of them itself meanwhile."""
        landing = self._landing(feed)
        state = landing.load_current()
        if not self.policy.manifest_rewrite_enabled or not any(one.removed_files for one in state.manifests):
            return False
        merged = merge_manifests(state)
        if merged is None:
            return False
        try:
            landing.land_manifests(merged)
        except CommitConflict:
            return False
        return True

    def _expire_snapshots(self, feed_id: int, *, requested: bool) -> int:
        feed = self._feed(feed_id)
        if feed is None:
            return 0
        before = LakeTable.load(feed.pointer, self.storage)
        if self._expiry(feed, before, requested=requested) is None:
            return 0
        after = self._landing(feed).land_without_snapshots(self._expirable)
        return len(before.metadata.snapshots) - len(after.metadata.snapshots)

    def _expirable(self, feed: ChangeFeed, state: LakeTable) -> tuple[int, ...]:
        expiry = self._expiry(feed, state, requested=True)
        return () if expiry is None else expiry.snapshot_ids

    def _expiry(self, feed: ChangeFeed, state: LakeTable, *, requested: bool) -> ExpireSnapshots | None:
        now_ms = round(safe_time(self.connection) * 1000)
        return expiry_of(state.metadata, feed.pinned, self.policy, now_ms, requested=requested)

    def sweep(self, feed_id: int, *, dry_run: bool) -> Sequence[StoredFile]:
        """Deletes the files that nothing refers to; returns them. Raises LakeError if a pinned snapshot is not in the
        feed's history, and SourceError on a restored copy."""
        feed = self._feed(feed_id)
        if feed is None or not self.policy.orphan_sweep_enabled:
            return ()
        table = _SweptFeed(self.connection, self.slot, self.storage, feed.lake_name, feed)
        swept = sweep(table, self.policy, dry_run=dry_run, clock_skew=self.clock_skew, pin_margin=self.pin_margin)
        return () if swept is None else swept.files

    def _feed(self, feed_id: int) -> ChangeFeed | None:
        return _writable_feed(self.connection, self.slot, feed_id)

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


@dataclass(frozen=True)
class _SweptFeed(SweptTable):
    feed: ChangeFeed
    pins_hold_data = True

    def declare(self, before: float) -> bool:
        begin_feed_sweep(self.connection, self.slot, self.name, before)
        return True

    def current(self) -> SweptState | None:
        feed = _writable_feed(self.connection, self.slot, self.feed.feed_id)
        if feed is None or feed.location != self.feed.location:
            return None
        state = LakeTable.load(feed.pointer, self.storage)
        return SweptState(state, frozenset([feed.pointer]), pinned_snapshots(state, feed))

    def roots(self, _state: SweptState, /) -> Collection[str]:
        # As the catalog has it: that of the metadata may be another engine's choice, with files of other tables.
        return {self.feed.location}

    def unreferenced(self, candidates: Collection[str]) -> Collection[str]:
        state = self.current()
        if state is None:
            return ()
        return set(candidates) - state.named - set(referenced_files(state.table.metadata, self.storage))


def _writable_feed(connection: PgConnection, slot: str, feed_id: int) -> ChangeFeed | None:
    return next(iter(writable_feeds(connection, slot, feed_id)), None)
