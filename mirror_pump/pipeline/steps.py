"""The pump's steps as others may observe them: progress bars, metrics, logs, and whoever wants to interrupt one."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Step(StrEnum):
    """In the order in which a batch, then a copy, a resolve, a merge, an index goes through them."""

    STREAMING = "streaming"
    RECEIVED = "received"
    """A batch is complete: its last commit was received."""
    WRITTEN = "written"
    """All files of the batch are in storage; nothing refers to them yet."""
    STAGED = "staged"
    """Manifests and metadata are in storage; the pointers are not moved yet."""
    PUBLISHED = "published"
    """The publish transaction landed."""
    ACKNOWLEDGED = "acknowledged"
    """The slot was told."""
    REGISTERED = "registered"
    """A table's registration was committed; nothing is copied yet."""
    COPY_PLANNED = "copy-planned"
    CHUNK_COPIED = "chunk-copied"
    """A chunk's file is in storage; nothing refers to it yet."""
    CHUNKS_PUBLISHED = "chunks-published"
    LIVE = "live"
    RESOLVING = "resolving"
    """Tasks are about to look up the rows that a table's equality deletes hide."""
    POSITIONS_WRITTEN = "positions-written"
    """The position deletes are in storage; nothing refers to them yet."""
    RESOLVED = "resolved"
    """They have taken the equality deletes' place, in a publish that landed."""
    RESOLVE_REFUSED = "resolve-refused"
    """The table has changed too much meanwhile: the resolve begins anew."""
    RESOLVE_FAILED = "resolve-failed"
    """A file could not be read, or a task broke: tried again after a pause, while the stream goes on."""
    MERGING = "merging"
    """Tasks are about to make one file of many small ones."""
    MERGE_WRITTEN = "merge-written"
    """The merged files are in storage; nothing refers to them yet."""
    MERGED = "merged"
    """They have taken the small files' place, in a publish that landed."""
    MERGE_REFUSED = "merge-refused"
    """The table has changed too much meanwhile: the merge begins anew."""
    MERGE_FAILED = "merge-failed"
    """A file could not be read, or a task broke: tried again after a pause, while the stream goes on."""
    INDEX_BUILDING = "index-building"
    """The keys of a table's rows are being read for its key index."""
    INDEX_READY = "index-ready"
    """From the next commit on the table's deletes are positions."""
    INDEX_FAILED = "index-failed"
    """There is no index for now: equality deletes go on."""
    TABLE_CHANGED = "table-changed"
    """Columns, key, name or partitions of a table are others, in the lake too; its rows were right under them."""
    TABLE_COPIED_AGAIN = "table-copied-again"
    """A table changed in a way that the stream does not carry: its old content stays readable until it is copied."""
    TABLE_FAILED = "table-failed"
    TABLE_NEGLECTED = "table-neglected"
    """No maintainer has looked at the table for a day, though it is committed to: told once a day."""
    NOTE_REFUSED = "note-refused"
    """Somebody else puts messages of our prefix into the stream: told of the first in each session."""
    RETENTION = "retention"
    """A partition is one step further on its way out of the heap: sealed, passed by T, proven, dropped."""
    RETENTION_REFUSED = "retention-refused"
    """Its next step could not be taken: tried again after a pause."""
    RETENTION_STOPPED = "retention-stopped"
    """Nothing more leaves the table's heap until somebody has looked: `reason` says at what."""
    TIER_ADVANCED = "tier-advanced"
    """T of a table with heap retention has moved; the pump begins again from F, which takes a moment."""
    FOLDED = "folded"
    """Corrections of rows below T are in the lake."""
    FOLD_FAILED = "fold-failed"
    """They could not be read, or not be written: tried again after a pause, while the stream goes on."""
    RETRYING = "retrying"
    """The connection or a task failed: the pump goes back to what is published, after a pause."""


class Observer(Protocol):
    """Called in the thread that took the step; it must return quickly."""

    def __call__(self, step: Step, /, **details: object) -> None: ...


def unobserved(step: Step, /, **details: object) -> None:
    """The observer of a pump that nobody watches."""
