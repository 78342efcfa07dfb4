"""What `status` says of tables with heap retention: T, partitions, pins, and corrections that wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirror_pump.model import TableId, TierKind
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.tier_keys import NEVER, shown, span_text

_STATES = """
SELECT s.table_id, t.tier_key_type, s.cutline_t, s.heap_retention_lag, s.retention_line,
       coalesce(s.partition_states, '{}'),
       s.retention_stopped, m.retention ->> 'not_made',
       (SELECT p.reason FROM modak.partitions p
         WHERE p.table_id = s.table_id AND p.state <> 'dropped' AND p.reason IS NOT NULL
         ORDER BY p.tier_key_hi LIMIT 1),
       s.delta_backlog, s.delta_unfolded, extract(epoch FROM now() - s.delta_since)::float8,
       s.read_pins - s.expired_pins, s.expired_pins, extract(epoch FROM now() - s.oldest_pin)::float8
  FROM modak.status s JOIN modak.tables t USING (table_id) JOIN modak.mirror_tables m USING (table_id)
 WHERE m.slot_name = %s AND (m.retention IS NOT NULL OR s.read_pins > 0)
"""


@dataclass(frozen=True)
class RetentionState:
    """One table that has heap retention, or is pinned by readers."""

    cut: str
    """T, as SQL prints the tier key."""
    lag: str | None
    """heap_retention; None if nothing leaves."""
    retention_line: int | None
    partitions: Mapping[str, int]
    """How many are in each state."""
    stopped: str | None
    not_made: str | None
    """Why a partition could not be made ahead."""
    waits_for: str | None
    """Why the oldest partition that waits does not go on: for a reader's pin, say."""
    delta_rows: int
    delta_unfolded: int
    delta_age: float | None
    """Seconds since the oldest correction that is not folded."""
    pins: int
    expired_pins: int
    oldest_pin_age: float | None
    """Seconds, of those that have not expired."""

    def to_json(self) -> dict[str, Any]:
        return {
            "cut": self.cut,
            "heap_retention": self.lag,
            "retention_line": self.retention_line,
            "partitions": dict(self.partitions),
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
    """By table; only those of which there is something to say."""
    found = {}
    for table_id, kind_name, cut, lag, *rest in connection.execute(_STATES, (slot,)).fetchall():
        kind = TierKind(kind_name) if kind_name in list(TierKind) else TierKind.BIGINT
        found[TableId(table_id)] = RetentionState(
            shown(kind, cut), None if lag is None or lag == NEVER else span_text(kind, lag), *rest
        )
    return found
