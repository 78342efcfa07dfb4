"""Decides when a batch closes that is not full: as soon as a commit is worth it, and as often as its files may cost.

A batch that holds at least one change closes, between two transactions, once all of these hold:

1. The batch before it has landed.
2. Since that one closed, a shortest pause is over (InternalLimits.batch_pause), and so much time that commits take no
   more than SHARE of it, if they go on to take as long as the last ones. No more than LONGEST_PAUSE is waited for this.
3. The files of the batches before it are paid for: the ceiling on files per hour.

So the lag grows by itself with the number of tables that change, with the storage's latency and with the load of the
machine. A change after a pause is published at once, and an idle mirror commits nothing. A full batch waits for none of
this: a stream of that many bytes needs its commits anyway.

No I/O and no clock: times are those of one monotonic clock, in seconds. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median_low

from mirror_pump.lake.storage import local_path

SHARE = 0.5
"""Largest share of the time for commits. The rest is for merges, copies and the readers of the same storage."""
LONGEST_PAUSE = 10.0
"""Longest time in seconds from the end of one batch to the end of the next, if no ceiling is in the way."""
_REMEMBERED = 5
"""Number of commits whose median is what a commit costs. One that was held up, by a rewrite of another engine for
example, changes nothing."""

REMOTE_FILES_PER_HOUR = 200_000
"""The ceiling by default for files in object stores: a dollar an hour at 5 $ for 1,000,000 PUT requests."""
_HOUR = 3600.0
_SAVED = 0.1
"""The share of an hour's files that quiet times save up for busy ones. The rest comes in evenly."""
_SAVED_SECONDS = _HOUR * _SAVED / (1 - _SAVED)


class FileCeiling:
    """The ceiling on files per hour. Belongs to a process, over all its sessions.

    Invariant: in any hour, the batches that waited for `paid_at` and landed bring no more files than the ceiling, and
    those of the last one. For `paid_at` moves on with each file, at nine tenths of the ceiling an hour; it lags behind
    the clock by no more than a tenth of the ceiling needs; and a process begins with nothing saved.

    A full batch, which waits for nothing, leaves no debt beyond its own files. So the next change waits for the files
    of one batch at most, whatever came before.
    """

    def __init__(self, per_hour: int | None, now: float) -> None:
        """`per_hour`: 0 for no ceiling, None for REMOTE_FILES_PER_HOUR on files in object stores alone."""
        self._remote_only = per_hour is None
        ceiling = REMOTE_FILES_PER_HOUR if per_hour is None else per_hour
        self._seconds_per_file = _HOUR / (ceiling * (1 - _SAVED)) if ceiling else 0.0
        self.paid_at = now
        """When all files so far are paid for, and another batch may close."""

    def spend(self, files: Sequence[str], now: float) -> None:
        """A batch has landed that wrote these files (URIs)."""
        count = sum(local_path(file) is None for file in files) if self._remote_only else len(files)
        self.paid_at = min(max(self.paid_at, now - _SAVED_SECONDS), now) + count * self._seconds_per_file


class BatchPace:
    """The pace of one session's batches."""

    def __init__(self, ceiling: FileCeiling, shortest_pause: float, now: float) -> None:
        self._ceiling = ceiling
        self._shortest_pause = shortest_pause
        self._closed_at = self._working_since = now
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        """Seconds that each of the last commits took, from the end of its batch, without the wait for others before
        it."""
        self.under_way = 0
        """Number of batches that have closed and not landed."""

    def closed(self, now: float) -> None:
        """A batch was handed on to be committed."""
        if not self.under_way:
            self._working_since = now
        self.under_way += 1
        self._closed_at = now

    def landed(self, files: Sequence[str], now: float) -> None:
        """The oldest batch under way is published, with these files (URIs)."""
        self.under_way -= 1
        self._costs.append(now - self._working_since)
        self._working_since = now
        self._ceiling.spend(files, now)

    @property
    def due_at(self) -> float:
        """When a batch that is not full may close. Infinite while another one is under way."""
        if self.under_way:
            return math.inf
        cost = median_low(self._costs) if self._costs else 0.0
        pause = min(max(cost / SHARE, self._shortest_pause), LONGEST_PAUSE)
        return max(self._closed_at + pause, self._ceiling.paid_at)
