"""What changes quickly about a mirror, sampled over the last hour, and what follows from it: rates and times left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mirror_pump.model import TableState
from mirror_pump.ops.status.status_report import MirrorStatus

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
    wal_position: int
    retained_bytes: int | None
    safe_wal_bytes: int | None
    changes: int
    """Row changes that this process had published."""

    @classmethod
    def of(cls, status: MirrorStatus, at: float, changes: int) -> StatusSample:
        return cls(
            at=at,
            lag_seconds=status.lag_seconds,
            lag_bytes=status.lag_bytes,
            frontier=status.frontier,
            wal_position=status.wal_position,
            retained_bytes=status.slot.retained_bytes,
            safe_wal_bytes=status.slot.safe_wal_bytes,
            changes=changes,
        )


@dataclass(frozen=True)
class CopyEstimate:
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

        A sample from before the last one begins the history anew: somebody has set the clock back."""
        if self._samples and sample.at < self._samples[-1].at:
            self._samples.clear()
            self._copies.clear()
        if not self._samples or sample.at - self._samples[-1].at >= INTERVAL * 0.9:
            self._samples.append(sample)
        copying = {table.table: table for table in status.tables if table.state is TableState.COPYING}
        self._copies = {name: seen for name, seen in self._copies.items() if name in copying}
        for name, table in copying.items():
            seen = self._copies.setdefault(name, deque())
            if seen and table.chunks_done < seen[-1][1]:
                # The copy began again.
                seen.clear()
            seen.append((sample.at, table.chunks_done))
            while sample.at - seen[0][0] > _COPY_SPAN:
                seen.popleft()

    @property
    def changes_per_second(self) -> float | None:
        """Row changes published by this process, over the last minute."""
        return self._rate(lambda sample: sample.changes)

    @property
    def wal_bytes_per_second(self) -> float | None:
        """WAL that the server wrote, over the last minute."""
        return self._rate(lambda sample: sample.wal_position)

    @property
    def seconds_to_invalidation(self) -> float | None:
        """When the slot may be invalidated if its reserve keeps shrinking as in the last minute. None if it does not
        shrink, or has no limit."""
        last = self._samples[-1].safe_wal_bytes if self._samples else None
        if last is None:
            return None
        rate = self._rate(lambda sample: sample.safe_wal_bytes)
        return None if rate is None or rate >= 0 else max(0.0, last / -rate)

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
            "wal_bytes_per_second": self.wal_bytes_per_second,
            "seconds_to_invalidation": self.seconds_to_invalidation,
            "copies": [_copy_json(progress) for progress in self.copies(status)],
            "samples": {
                "at": [round(sample.at, 1) for sample in samples],
                "lag_seconds": [_rounded(sample.lag_seconds) for sample in samples],
                "lag_bytes": [sample.lag_bytes for sample in samples],
                "retained_bytes": [sample.retained_bytes for sample in samples],
                "changes_per_second": _changes_per_second(samples),
            },
        }

    def _rate(self, value: Callable[[StatusSample], int | None]) -> float | None:
        """How `value` of a sample grows, per second, over the last minute."""
        if not self._samples:
            return None
        last_at = self._samples[-1].at
        recent = [(sample.at, value(sample)) for sample in self._samples if last_at - sample.at <= _RATE_SPAN]
        known = [(at, number) for at, number in recent if number is not None]
        if len(known) < 2 or known[-1][0] != last_at:
            return None
        (first_at, first), (_, last) = known[0], known[-1]
        return (last - first) / (last_at - first_at)

    def _seconds_left(self, table: str, total: int) -> float | None:
        seen = self._copies.get(table)
        if not seen:
            return None
        (first_at, first), (last_at, last) = seen[0], seen[-1]
        return (total - last) * (last_at - first_at) / (last - first) if last > first else None


def _changes_per_second(samples: Sequence[StatusSample]) -> list[float | None]:
    rates: list[float | None] = [None] if samples else []
    for former, sample in pairwise(samples):
        rates.append(_rounded(max(0, sample.changes - former.changes) / (sample.at - former.at)))
    return rates


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _copy_json(progress: CopyEstimate) -> Mapping[str, Any]:
    return {
        "table": progress.table,
        "chunks_done": progress.chunks_done,
        "chunks_total": progress.chunks_total,
        "rows": progress.rows,
        "seconds_left": progress.seconds_left,
    }
