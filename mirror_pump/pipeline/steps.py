"""The pump's steps as others may observe them: progress bars, metrics, logs, and whoever wants to interrupt one."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Step(StrEnum):
    """In the order in which a batch, then a copy, goes through them."""

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
    TABLE_FAILED = "table-failed"
    RETRYING = "retrying"
    """The connection or a task failed: the pump goes back to what is published, after a pause."""


class Observer(Protocol):
    """Called in the thread that took the step; it must return quickly."""

    def __call__(self, step: Step, /, **details: object) -> None: ...


def unobserved(step: Step, /, **details: object) -> None:
    """The observer of a pump that nobody watches."""
