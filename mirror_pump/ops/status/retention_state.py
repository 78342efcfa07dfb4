"""Reports for `status` on tables with a cut-line: that, partitions, pins, and corrections not yet folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import TableId, TableMode, TierKind
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.tier_keys import NEVER, shown, span_text
from mirror_pump.source.rows import TypedRow, fetch_rows
from sql import queries

_SQL = queries("status")


@dataclass(frozen=True, kw_only=True)
class _RetentionColumns(TypedRow):
    """What the state of a table has of the row that it is read from."""

    partitions: Mapping[str, int]
    """The number of partitions in each state."""
    stopped: str | None
    """Why nothing leaves the heap until an operator has looked; None if it goes on."""
    not_made: str | None
    """Why a partition could not be made ahead, or none be looked at."""
    waits_for: str | None
    """Why the oldest partition that waits does not go on, for example because of a reader's pin."""
    delta_rows: int
    """Corrections of old rows."""
    delta_unfolded: int
    """Corrections that are not in the lake yet."""
    delta_age: float | None
    """Age in seconds of the oldest correction that is not in the lake yet."""
    pins: int
    """Of readers that the cut-line, drops or folds may have to wait for."""
    expired_pins: int
    """They protect nothing, and are swept after an hour."""
    oldest_pin_age: float | None
    """Age in seconds of the oldest of `pins`."""
    mode: TableMode = TableMode.MIRRORED
    keep_heap: bool = False
    """Partitions stay in the heap, although the lake holds them."""
    chunks_total: int = 0
    """Of a tiered table: the chunks in which sealed partitions are copied. 0 if none is being copied."""
    chunks_done: int = 0
    not_expired: str | None = None
    """Why the retention line does not move, although it is due."""
    lake_pins: int = 0
    """Pins that hold a snapshot of the lake alone, such as leases of the REST catalog: nothing else waits for them."""
    has_cutline: bool = True
    """False for a table that readers pin, and that has neither partitions nor corrections that could wait for them."""


@dataclass(frozen=True, kw_only=True)
class RetentionState(
    _RetentionColumns,
    JsonDocument,
    keys={"mode": None, "chunks_total": None, "chunks_done": None},
    also=("heap_retention", "copy"),
):
    """The state of one table that has a cut-line or is pinned by readers."""

    cut: str
    """The cut-line, as SQL prints the tier key."""
    lag: str | None
    """How far behind the newest key partitions leave the heap; None if none does."""
    retention_line: str | None
    """Rows below it have expired, as SQL prints the tier key; None if none has."""
    lake_retention: str | None = None
    """How far behind the cut-line rows expire from the lake; None if they stay."""

    @property
    def heap_retention(self) -> str | None:
        """`lag` of a mirrored table; None for a tiered one."""
        return self.lag if self.mode is TableMode.MIRRORED else None

    @property
    def copy(self) -> dict[str, int]:
        """Chunks of its partitions that are being copied."""
        return {"chunks_total": self.chunks_total, "chunks_done": self.chunks_done}


def retention_states(connection: PgConnection, slot: str) -> dict[TableId, RetentionState]:
    """Return the states by table, for the tables that have a cut-line or are pinned by readers."""
    return {row.table_id: row.state() for row in fetch_rows(connection, _RetentionRow, _SQL["retention"], (slot,))}


@dataclass(frozen=True, kw_only=True)
class _RetentionRow(_RetentionColumns):
    """A row of the query `retention`."""

    table_id: TableId
    tier_key_type: str
    cut: int
    lag: int | None
    """None if no partition leaves the heap."""
    retention_line: int | None
    lake_lag: int | None

    def state(self) -> RetentionState:
        kind = TierKind(self.tier_key_type) if self.tier_key_type in list(TierKind) else TierKind.BIGINT
        return RetentionState(
            **self.of_class(_RetentionColumns),
            cut=shown(kind, self.cut),
            lag=None if self.lag is None or self.lag == NEVER else span_text(kind, self.lag),
            retention_line=None if self.retention_line is None else shown(kind, self.retention_line),
            lake_retention=None if self.lake_lag is None else span_text(kind, self.lake_lag),
        )
