"""What another engine committed to a lake table of the mirror is settled before the mirror builds on it. Rewrites stay,
changes of rows are undone, and tags are put back.

Invariant: each commit of the mirror builds on a state that the mirror made, or one that was examined and holds the same
rows (mirror_pump.lake.commit.table_head). It holds because a pointer moves only from the metadata file that the commit
was staged on, and nothing is staged on another state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead, changed_rows, restored, tagged
from mirror_pump.model import SnapshotId, TableName
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles

LockedTransaction = Callable[[WrittenFiles, str], AbstractContextManager[SlotLock]]
"""A transaction that lands these files, and that holds the slot's lock. The text completes "while ..." in errors."""


@dataclass(frozen=True)
class ForeignCommit:
    """A lake table to which another engine has committed."""

    name: TableName
    """For people."""
    lake_name: TableName
    lake: LakeTable
    """As the catalog has it."""
    head: TableHead | None
    """The state that the mirror left or examined. None: it is not recorded."""
    pinned: Collection[int]
    """Snapshots that stay, those of other engines included."""
    record: Callable[[SlotLock, TableHead], bool]
    """Makes this the recorded state. Returns False if another one was recorded meanwhile."""
    lost_tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    """Tags that have to be put back, with the snapshots that they name."""

    @cached_property
    def change_of_rows(self) -> str | None:
        """What was done to the rows. None: they are those of the head."""
        return None if self.head is None else changed_rows(self.head, self.lake, self.pinned)

    def settle(self, locked: LockedTransaction) -> str | None:
        """Records a rewrite as the table's state, or undoes what was done to rows and tags. Returns what was undone;
        None if nothing was.

        Raises ForeignTable if it cannot be undone, CommitConflict if the pointer has moved again, LakeError and
        SourceError.
        """
        reason, tags = self.change_of_rows, self.lost_tags
        if self.head is None or (reason is None and not tags):
            files = WrittenFiles(self.lake.storage)
            with locked(files, f"recording another engine's rewrite of {self.name}") as lock:
                self.record(lock, TableHead.of(self.lake))
            return None
        now_ms, after = time.time_ns() // 1_000_000, self.lake
        with WrittenFiles(self.lake.storage) as files:
            if reason is not None:
                after = restored(self.head, self.lake, now_ms, self.pinned)
                files.add(after.metadata_location)
            if tags:
                after = tagged(after, tags, now_ms)
                files.add(after.metadata_location)
            with locked(files, f"undoing another engine's commit to {self.name}") as lock:
                lock.move(self.lake_name, self.lake.metadata_location, after.metadata_location)
                if not self.record(lock, TableHead.of(after)):
                    raise CommitConflict(f"another writer committed to {self.name} in the lake")
        return reason or f"took {', '.join(sorted(tags))} from the snapshots of moments"
