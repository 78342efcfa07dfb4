"""The state of change feeds, as `status` shows it: from the catalog alone, where the pump records what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mirror_pump.model import FeedMode, Lsn, TableName, format_lsn
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("change_feeds")


@dataclass(frozen=True)
class FeedStatus:
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
        return {
            "table": self.table,
            "lake_table": self.lake_table,
            "mode": self.mode.value,
            "keep": None if self.keep is None else self.keep.total_seconds(),
            "begins": None if self.begins is None else format_lsn(self.begins),
            "expired": format_lsn(self.expired),
            "pins": self.pins,
            "metadata_location": self.metadata_location,
            "error": self.error,
            "problem": self.problem,
            "damaged_files": list(self.damaged_files),
            **{name: self.stats.get(name) for name in ("files", "small_files", "rows", "bytes", "days", "looked_at")},
        }


@dataclass(frozen=True)
class _FeedStatusRow:
    """A row of the query `figures`."""

    feed_id: int
    schema_name: str
    table_name: str
    lake_schema: str
    lake_name: str
    mode: str
    keep: timedelta | None
    begins_lsn: Lsn | None
    expired_lsn: Lsn
    metadata_location: str | None
    pins: int
    stats: dict[str, Any] | None
    error: str | None
    moved: bool | None
    damaged_files: list[str]


def feed_states(connection: PgConnection, slot: str) -> tuple[FeedStatus, ...]:
    """The feeds of a mirror, by the names of their tables. Raises psycopg.Error."""
    return tuple(
        FeedStatus(
            table=str(TableName(row.schema_name, row.table_name)),
            lake_table=str(TableName(row.lake_schema, row.lake_name)),
            mode=FeedMode(row.mode),
            keep=row.keep,
            begins=row.begins_lsn,
            expired=row.expired_lsn,
            pins=row.pins,
            metadata_location=row.metadata_location,
            stats=row.stats or {},
            moved=bool(row.moved),
            error=row.error,
            damaged_files=tuple(row.damaged_files),
        )
        for row in fetch_rows(connection, _FeedStatusRow, _SQL["figures"], {"slot": slot})
    )
