"""Which snapshots a commit leaves in the history: the newest, and of older ones one a minute, then one an hour."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirror_pump.lake.document.snapshot import is_archive_entry, sequence_number_of

ARCHIVE_SNAPSHOTS_KEPT = 10
"""Newest archive snapshots that are kept even if neither published nor pinned, so that readers who have been given one
and did not pin it still find it after a few folds."""

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


@dataclass(frozen=True)
class HistoryRetention:
    """Which snapshots a commit keeps in the metadata. Pinned and referenced ones are always kept.

    Every commit writes the whole document, so its length determines the commit's cost: by default at most 330
    snapshots, some 200 kB.
    """

    newest: int = 100
    minutes_for_ms: int = _HOUR_MS
    """Of older snapshots up to this age, one a minute is kept."""
    hours_for_ms: int = 7 * 24 * _HOUR_MS
    """Of older snapshots up to this age, one an hour is kept; beyond it none."""
    moments: frozenset[int] = frozenset()
    """Snapshots of moments, which stay until these are dropped. Unlike pins they hold no other snapshot."""


DEFAULT_RETENTION = HistoryRetention()
FEED_RETENTION = HistoryRetention(newest=20)
"""Of change feeds. Who reads one pins its newest snapshot, and takes an interval of that; older ones only tell which
frontier was published when."""


def thin_history(
    snapshots: Sequence[Mapping[str, Any]],
    retained_ids: Collection[int],
    now_ms: int,
    retention: HistoryRetention,
    tagged_ids: Collection[int] = (),
) -> list[Mapping[str, Any]]:
    """The snapshots to keep, oldest first, as entries of the metadata document. Those in `retained_ids`, those in
    `tagged_ids` and those of moments always stay.

    Of a minute or an hour, the oldest snapshot stays, so that all later commits make the same choice. Archive snapshots
    do not take part, since no time travel leads to them. They stay from the oldest one in `retained_ids` on. A tag or a
    moment may last for years, so it holds its own snapshot alone.
    """
    alone = retention.moments.union(tagged_ids)
    ordered = sorted(snapshots, key=sequence_number_of)
    archive = [snapshot for snapshot in ordered if is_archive_entry(snapshot)]
    if archive:
        # The seam protocol promises that nothing at or above the oldest pinned one expires.
        newest = max(len(archive) - ARCHIVE_SNAPSHOTS_KEPT, 0)
        retained_places = (place for place, snapshot in enumerate(archive) if snapshot["snapshot-id"] in retained_ids)
        first = min(next(retained_places, newest), newest)
        kept_archive = [snapshot for snapshot in archive[:first] if snapshot["snapshot-id"] in alone]
        kept_archive += archive[first:]
        ordered = [snapshot for snapshot in ordered if not is_archive_entry(snapshot)]
        kept_main = _thinned(ordered, alone.union(retained_ids), now_ms, retention)
        return sorted([*kept_main, *kept_archive], key=sequence_number_of)
    return _thinned(ordered, alone.union(retained_ids), now_ms, retention)


def _thinned(
    ordered: Sequence[Mapping[str, Any]], retained_ids: Collection[int], now_ms: int, retention: HistoryRetention
) -> list[Mapping[str, Any]]:
    split = max(len(ordered) - retention.newest, 0)
    retained: list[Mapping[str, Any]] = []
    taken: set[tuple[int, int]] = set()
    for snapshot in ordered[:split]:
        age = now_ms - snapshot["timestamp-ms"]
        if age < retention.minutes_for_ms:
            unit = _MINUTE_MS
        elif age < retention.hours_for_ms:
            unit = _HOUR_MS
        else:
            unit = 0
        slot = (unit, snapshot["timestamp-ms"] // unit) if unit else None
        if snapshot["snapshot-id"] in retained_ids or (slot is not None and slot not in taken):
            retained.append(snapshot)
            if slot is not None:
                taken.add(slot)
    return [*retained, *ordered[split:]]
