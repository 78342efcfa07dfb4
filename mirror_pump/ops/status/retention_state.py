"""Reports for `status` on tables with a cut-line: that, partitions, pins, and corrections not yet folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirror_pump.model import TableId, TableMode, TierKind
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.tier_keys import NEVER, shown, span_text
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("status")


@dataclass(frozen=True)
class RetentionState:
    """The state of one table that has a cut-line or is pinned by readers."""

    cut: str
    """The cut-line, as SQL prints the tier key."""
    lag: str | None
    """How far behind the newest key partitions leave the heap; None if none does."""
    retention_line: int | None
    partitions: Mapping[str, int]
    """The number of partitions in each state."""
    stopped: str | None
    not_made: str | None
    """Why a future partition could not be created in advance; None if there is no such problem."""
    waits_for: str | None
    """Why the oldest waiting partition cannot proceed, for example because of a reader's pin."""
    delta_rows: int
    delta_unfolded: int
    delta_age: float | None
    """Age in seconds of the oldest correction that is not folded."""
    pins: int
    expired_pins: int
    oldest_pin_age: float | None
    """Age in seconds of the oldest pin that has not expired."""
    mode: TableMode = TableMode.MIRRORED
    keep_heap: bool = False
    """Partitions stay in the heap, although the lake holds them."""
    chunks_total: int = 0
    """Of a tiered table: the chunks in which sealed partitions are copied. 0 if none is being copied."""
    chunks_done: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "cut": self.cut,
            "lag": self.lag,
            "heap_retention": self.lag if self.mode is TableMode.MIRRORED else None,
            "keep_heap": self.keep_heap,
            "retention_line": self.retention_line,
            "partitions": dict(self.partitions),
            "copy": {"chunks_total": self.chunks_total, "chunks_done": self.chunks_done},
            "stopped": self.stopped,
            "not_made": self.not_made,
            "waits_for": self.waits_for,
            "delta_rows": self.delta_rows,
            "delta_unfolded": self.delta_unfolded,
            "delta_age": self.delta_age,
            "pins": self.pins,
            "expired_pins": self.expired_pins,
            "oldest_pin_age": self.oldest_pin_age,
        }


def retention_states(connection: PgConnection, slot: str) -> dict[TableId, RetentionState]:
    """Return the states by table, for the tables that have a cut-line or are pinned by readers."""
    return {row.table_id: row.state() for row in fetch_rows(connection, _RetentionRow, _SQL["retention"], (slot,))}


@dataclass(frozen=True)
class _RetentionRow:
    """A row of the query `retention`. Fields with the name of one of `RetentionState` mean the same."""

    table_id: TableId
    mode: str
    keep_heap: bool
    tier_key_type: str
    cut: int
    lag: int | None
    """None if no partition leaves the heap."""
    retention_line: int | None
    partitions: dict[str, int]
    stopped: str | None
    not_made: str | None
    waits_for: str | None
    delta_rows: int
    delta_unfolded: int
    delta_age: float | None
    pins: int
    expired_pins: int
    oldest_pin_age: float | None
    chunks_total: int
    chunks_done: int

    def state(self) -> RetentionState:
        kind = TierKind(self.tier_key_type) if self.tier_key_type in list(TierKind) else TierKind.BIGINT
        return RetentionState(
            cut=shown(kind, self.cut),
            lag=None if self.lag is None or self.lag == NEVER else span_text(kind, self.lag),
            retention_line=self.retention_line,
            partitions=self.partitions,
            stopped=self.stopped,
            not_made=self.not_made,
            waits_for=self.waits_for,
            delta_rows=self.delta_rows,
            delta_unfolded=self.delta_unfolded,
            delta_age=self.delta_age,
            pins=self.pins,
            expired_pins=self.expired_pins,
            oldest_pin_age=self.oldest_pin_age,
            mode=TableMode(self.mode),
            keep_heap=self.keep_heap,
            chunks_total=self.chunks_total,
            chunks_done=self.chunks_done,
        )
