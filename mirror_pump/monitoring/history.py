"""What changes quickly about a mirror, sampled over the last hour, and what follows from it: rates and times left."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import TableState
from mirror_pump.ops.status.status_report import MirrorStatus
from mirror_pump.source.stream.wal_room import WalRate, WalRoom, seconds_to_invalidation, write_rate

INTERVAL = 5.0
"""Seconds between two samples, or more while the database is slow to answer."""
SPAN = 3600.0
"""Seconds that samples are kept."""
_RATE_SPAN = 60.0
"""Seconds over which changes and WAL are averaged for the present rate."""
_COPY_SPAN = 600.0
"""Seconds over which a copy's speed is averaged: chunks take seconds to minutes each."""


@dataclass(frozen=True)
class StatusSample:
    """The mirror at one time. Sizes are bytes of WAL."""

    at: float
    """time.time(), seconds."""
    lag_seconds: float | None
    lag_bytes: int
    frontier: int
    wal: WalRoom | None
    """None while there is no slot."""
    safe_wal_bytes: int | None
    """WAL that may be written before the slot is lost; None if there is no limit."""
    changes: int
    """Row changes that this process had published."""

    @classmethod
    def of(cls, status: MirrorStatus, at: float, changes: int) -> StatusSample:
        return cls(
            at=at,
            lag_seconds=status.lag_seconds,
            lag_bytes=status.lag_bytes,
            frontier=status.frontier,
            wal=status.slot.wal,
            safe_wal_bytes=status.slot.safe_wal_bytes,
            changes=changes,
        )


@dataclass(frozen=True)
class CopyEstimate(JsonDocument):
    """The initial copy of one table."""

    table: str
    chunks_done: int
    chunks_total: int
    rows: int
    seconds_left: float | None
    """At the speed of the last minutes. None before a chunk was seen to be published."""


class StatusHistory:
    """Samples of the last hour. Belongs to one thread; `to_json` and the properties return values for others."""

    def __init__(self) -> None:
        self._samples: deque[StatusSample] = deque(maxlen=round(SPAN / INTERVAL))
        self._copies: dict[str, deque[tuple[float, int]]] = {}
        """By table: when (time.time()) how many chunks were published."""

    def add(self, sample: StatusSample, status: MirrorStatus) -> None:
        """Add the sample, made of `status`, unless the last one is too recent. Copies are followed in any case.

        A sample from before the last one begins the history anew: the clock was set back."""
        if self._samples and sample.at < self._samples[-1].at:
            self._samples.clear()
            self._copies.clear()
        if not self._samples or sample.at - self._samples[-1].at >= INTERVAL * 0.9:
            self._samples.append(sample)
        copying = {table.table: table for table in status.tables if table.state is TableState.COPYING}
        self._copies = {name: points for name, points in self._copies.items() if name in copying}
        for name, table in copying.items():
            points = self._copies.setdefault(name, deque())
            if points and table.chunks_done < points[-1][1]:
                # The copy began again.
                points.clear()
            points.append((sample.at, table.chunks_done))
            while sample.at - points[0][0] > _COPY_SPAN:
                points.popleft()

    @property
    def changes_per_second(self) -> float | None:
        """Row changes published by this process, over the last minute."""
        recent = self._last_minute()
        if len(recent) < 2:
            return None
        return (recent[-1].changes - recent[0].changes) / (recent[-1].at - recent[0].at)

    @property
    def wal_rate(self) -> WalRate | None:
        """How fast the server wrote WAL over the last minute."""
        first, last = self._wal_of_last_minute()
        return None if first is None or last is None else write_rate(first, last)

    @property
    def seconds_to_invalidation(self) -> float | None:
        """Seconds until the slot may be lost if the WAL that it keeps goes on growing as in the last minute. None if it
        does not grow, or has no limit."""
        first, last = self._wal_of_last_minute()
        if first is None or last is None:
            return None
        return seconds_to_invalidation(first, last, self._samples[-1].safe_wal_bytes)

    def copies(self, status: MirrorStatus) -> tuple[CopyEstimate, ...]:
        """The tables of `status` that are being copied."""
        return tuple(
            CopyEstimate(
                table.table,
                table.chunks_done,
                table.chunks_total,
                table.rows_copied,
                self._seconds_left(table.table, table.chunks_total),
            )
            for table in status.tables
            if table.state is TableState.COPYING
        )

    def to_json(self, status: MirrorStatus) -> dict[str, Any]:
        """The document that docs/monitoring.md describes."""
        samples = list(self._samples)
        return {
            "interval_seconds": INTERVAL,
            "changes_per_second": self.changes_per_second,
            "wal_bytes_per_second": None if self.wal_rate is None else self.wal_rate.bytes_per_second,
            "seconds_to_invalidation": self.seconds_to_invalidation,
            "copies": [progress.to_json() for progress in self.copies(status)],
            "samples": {
                "at": [round(sample.at, 1) for sample in samples],
                "lag_seconds": [_rounded(sample.lag_seconds) for sample in samples],
                "lag_bytes": [sample.lag_bytes for sample in samples],
                "retained_bytes": [None if sample.wal is None else sample.wal.retained_bytes for sample in samples],
                "changes_per_second": _changes_per_second(samples),
            },
        }

    def _last_minute(self) -> list[StatusSample]:
        """Samples of the last minute, the oldest first."""
        return [sample for sample in self._samples if self._samples[-1].at - sample.at <= _RATE_SPAN]

    def _wal_of_last_minute(self) -> tuple[WalRoom | None, WalRoom | None]:
        """The first known values of the last minute, and the present ones."""
        recent = self._last_minute()
        first = next((sample.wal for sample in recent if sample.wal is not None), None)
        return first, recent[-1].wal if recent else None

    def _seconds_left(self, table: str, total: int) -> float | None:
        points = self._copies.get(table)
        if not points:
            return None
        (first_at, first), (last_at, last) = points[0], points[-1]
        return (total - last) * (last_at - first_at) / (last - first) if last > first else None


def _changes_per_second(samples: Sequence[StatusSample]) -> list[float | None]:
    rates: list[float | None] = [None] if samples else []
    for previous_sample, sample in pairwise(samples):
        rates.append(_rounded(max(0, sample.changes - previous_sample.changes) / (sample.at - previous_sample.at)))
    return rates


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
