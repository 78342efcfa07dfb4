"""The state of change feeds, as `status` shows it: from the catalog alone, where the pump records what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import FeedMode, Lsn
from mirror_pump.source.catalog.change_feeds import load_feeds
from mirror_pump.source.connect import PgConnection


@dataclass(frozen=True)
class FeedStatus(JsonDocument, keys={"stats": None, "moved": None}, also=("problem",)):
    """The state of one change feed (docs/changes.md)."""

    table: str
    """The mirrored table; `modak.transactions` for the mirror's transactions."""
    lake_table: str
    """The feed in the lake."""
    mode: FeedMode
    """`keys`, `rows`, or `transactions`."""
    keep: timedelta | None
    """How long changes stay. None: for ever; that of transactions follows from the tables."""
    begins: Lsn | None
    """The frontier at which it begins. None: the table has not been live since it has a feed."""
    expired: Lsn
    """Changes below may be gone."""
    pins: int
    """Readers of it."""
    metadata_location: str | None
    """Its Iceberg metadata file. None if the catalog does not have it any more, which is an alert."""
    stats: Mapping[str, Any]
    """What the pump counted last; empty before."""
    moved: bool = False
    """Another engine has committed to it, and no pump has examined that yet, which is an alert."""
    error: str | None = None
    """Why it gets no changes, which is an alert. None: all is well."""
    damaged_files: tuple[str, ...] = ()
    """URIs of its files that are lost or damaged, which is an alert."""

    @property
    def problem(self) -> str | None:
        """Why its files cannot be merged or taken out, which is an alert. None: they can."""
        return self.stats.get("problem")

    def to_json(self) -> dict[str, Any]:
        counted = ("files", "small_files", "rows", "bytes", "days", "looked_at")
        return super().to_json() | {name: self.stats.get(name) for name in counted}


def feed_states(connection: PgConnection, slot: str) -> tuple[FeedStatus, ...]:
    """The feeds of a mirror, by the names of their tables. Raises SourceError."""
    states = (
        FeedStatus(
            table=str(feed.table_name),
            lake_table=str(feed.lake_name),
            mode=feed.mode,
            keep=feed.keep,
            begins=feed.begins_lsn,
            expired=feed.expired_lsn,
            pins=len(feed.pinned),
            metadata_location=feed.metadata_location,
            stats=feed.stats or {},
            moved=feed.moved_by_others and feed.head is not None,
            error=feed.error,
            damaged_files=tuple(feed.damaged_files),
        )
        for feed in load_feeds(connection, slot)
    )
    return tuple(sorted(states, key=lambda state: state.table))
