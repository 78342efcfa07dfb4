"""When batches close that are not full, by a clock of the test's own."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirror_pump.pipeline.stream.batch_pace import LONGEST_PAUSE, REMOTE_FILES_PER_HOUR, SHARE, BatchPace, FileCeiling

_PAUSE = 0.14
_HOUR = 3600.0
_REMOTE = "s3://bucket/data/file.parquet"
_LOCAL = "file:///lake/data/file.parquet"


class _BusyStream:
    """Changes are always waiting, and a batch closes as soon as it may: the pace alone holds it back."""

    def __init__(self, ceiling: FileCeiling, now: float = 0.0) -> None:
        self.now = now
        self.pace = BatchPace(ceiling, _PAUSE, now)
        self.closed: list[float] = []
        self.landed: deque[tuple[float, int]] = deque()
        """When each batch landed, and its number of files."""

    def commit(self, seconds: float, files: int, location: str = _REMOTE) -> None:
        self.now = max(self.now, self.pace.due_at)
        self.closed.append(self.now)
        self.pace.closed(self.now)
        assert self.pace.due_at == math.inf, "one at a time"
        self.now += seconds
        self.pace.landed([location] * files, self.now)
        self.landed.append((self.now, files))

    def full(self, seconds: float, files: int) -> None:
        """A batch that asks nobody."""
        self.pace.closed(self.now)
        self.now += seconds
        self.pace.landed([_REMOTE] * files, self.now)

    @property
    def wait(self) -> float:
        return self.pace.due_at - self.now


def _unlimited() -> _BusyStream:
    return _BusyStream(FileCeiling(0, 0.0))


def test_a_change_after_a_pause_is_due_at_once() -> None:
    stream = _unlimited()
    for _ in range(20):
        stream.commit(0.03, 6)
    assert 0 < stream.wait <= _PAUSE
    assert stream.pace.due_at <= stream.now + _PAUSE, "an hour later it is long over"


def test_the_pause_grows_with_what_commits_take() -> None:
    for seconds in (0.001, 0.03, 0.06, 0.4, 2.5, 30.0):
        stream = _unlimited()
        for _ in range(20):
            stream.commit(seconds, 6)
        intervals = [after - before for before, after in zip(stream.closed[10:], stream.closed[11:], strict=False)]
        rule = max(min(max(_PAUSE, seconds / SHARE), LONGEST_PAUSE), seconds)
        assert intervals == pytest.approx([rule] * len(intervals)), seconds


def test_one_commit_that_was_held_up_changes_nothing() -> None:
    stream = _unlimited()
    for _ in range(10):
        stream.commit(0.03, 6)
    stream.commit(5.0, 6)
    assert stream.wait <= 0, "what came meanwhile is published at once"
    stream.commit(0.03, 6)
    assert stream.wait == pytest.approx(_PAUSE - 0.03)


def test_a_batch_behind_others_counts_without_its_wait() -> None:
    stream = _unlimited()
    for _ in range(5):
        stream.pace.closed(stream.now)
    for number in range(5):
        assert stream.pace.under_way == 5 - number
        assert stream.pace.due_at == math.inf
        stream.now += 0.3
        stream.pace.landed([], stream.now)
    assert stream.pace.under_way == 0
    stream.now += 100
    stream.commit(0.3, 6)
    assert stream.wait == pytest.approx(0.3 / SHARE - 0.3), "not the 1.5 s that the last one was under way"


@given(
    ceiling=st.integers(1, 1_000_000),
    work=st.lists(
        st.tuples(st.floats(0.0, 20.0), st.floats(0.001, 5.0), st.integers(0, 700)), min_size=1, max_size=150
    ),
    restarts=st.sets(st.integers(0, 150), max_size=5),
)
@example(ceiling=36_000, work=[(0.0, 0.01, 10)] * 150, restarts=set())
@example(ceiling=600, work=[(1000.0, 0.01, 1), *[(0.0, 0.01, 1)] * 149], restarts={3, 9})
def test_no_hour_has_more_files_than_the_ceiling(
    ceiling: int, work: list[tuple[float, float, int]], restarts: set[int]
) -> None:
    """But for the last batch of the hour, whose files nobody knows before. Whatever the load, and over sessions."""
    limit = FileCeiling(ceiling, 0.0)
    stream = _BusyStream(limit)
    landed: list[tuple[float, int]] = []
    for number, (idle, seconds, files) in enumerate(work):
        if number in restarts:
            stream = _BusyStream(limit, stream.now)
        stream.now += idle
        before = stream.now
        stream.commit(seconds, files)
        waited = stream.closed[-1] - before
        last = landed[-1][1] if landed else 0
        assert waited <= max(LONGEST_PAUSE, last * _HOUR / (0.9 * ceiling)) + 1e-6, "a change waits no longer"
        landed.append((stream.now, files))
    first = total = 0
    for now, files in landed:
        total += files
        while landed[first][0] <= now - _HOUR:
            total -= landed[first][1]
            first += 1
        assert total - files <= ceiling * (1 + 1e-9), f"{total} files in the hour to {now}"


def test_a_busy_hour_uses_the_ceiling_and_begins_quickly() -> None:
    stream = _BusyStream(FileCeiling(3600, 0.0))
    stream.now = _HOUR
    while stream.now < 2 * _HOUR:
        stream.commit(0.01, 6)
    assert 3500 < sum(files for at, files in stream.landed if at < 2 * _HOUR) <= 3606
    intervals = [after - before for before, after in zip(stream.closed, stream.closed[1:], strict=False)]
    assert max(intervals[:50]) == pytest.approx(_PAUSE), "a tenth of the hour's files is saved up"
    assert intervals[-50:] == pytest.approx([6 / 0.9] * 50), "the rest comes in evenly"


def test_a_process_begins_with_nothing_saved() -> None:
    """Otherwise one that is restarted all the time would have the savings of each start."""
    stream = _BusyStream(FileCeiling(3600, 1000.0), 1000.0)
    stream.commit(0.01, 60)
    assert stream.wait == pytest.approx(60 / 0.9, abs=_PAUSE + 0.02)


def test_full_batches_leave_no_debt_but_their_own() -> None:
    stream = _BusyStream(FileCeiling(3600, 0.0))
    for _ in range(1000):
        stream.full(0.1, 14)
    assert stream.wait == pytest.approx(14 / 0.9)


def test_by_default_the_ceiling_is_about_object_stores() -> None:
    for location, wait in ((_REMOTE, 600 * _HOUR / (0.9 * REMOTE_FILES_PER_HOUR)), (_LOCAL, _PAUSE - 0.01)):
        stream = _BusyStream(FileCeiling(None, 0.0))
        stream.commit(0.01, 600, location)
        assert stream.wait == pytest.approx(wait, abs=_PAUSE + 0.02), location
    stream = _BusyStream(FileCeiling(REMOTE_FILES_PER_HOUR, 0.0))
    stream.commit(0.01, 600, _LOCAL)
    assert stream.wait > 10, "a ceiling that was given is for all files"
