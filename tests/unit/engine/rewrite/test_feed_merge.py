"""Which files of a change feed are merged: in order, by size classes, and at last all of a day."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest

from mirror_pump.engine.rewrite.feed_merge import FeedFile, choose_neighbours, expired_files
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.format.data_files import FileContent

_TARGET = 1 << 20


def _file(path: str, lsn: tuple[int, int], day: int, records: int, *, seq: int = 0) -> FeedFile:
    size = 1000 + 20 * records
    live = LiveFile(FileContent.DATA, path, 1, "PARQUET", records, size, (), {}, {}, (day,))
    return FeedFile(live, *lsn, seq)


@dataclass
class _Feed:
    """A feed of which each file's changes are listed."""

    files: list[FeedFile] = field(default_factory=list)
    changes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    lsn: int = 0
    seq: int = 0
    written: int = 0
    rewritten: int = 0

    def append(self, records: int, day: int, *, goes_on: bool = False) -> None:
        """`goes_on`: it begins with changes of the transaction with which the last file ended."""
        rows = []
        for number in range(records):
            if number or not goes_on:
                self.lsn, self.seq = self.lsn + 8, 0
            self.seq += 2
            rows.append((self.lsn, self.seq))
        self._add(rows, day)
        self.written += records

    def _add(self, rows: list[tuple[int, int]], day: int) -> None:
        path = f"f{len(self.changes)}"
        self.changes[path] = rows
        lowest_seq = min(seq for _, seq in rows)
        self.files.append(_file(path, (rows[0][0], rows[-1][0]), day, len(rows), seq=lowest_seq))
        self.files.sort(key=lambda file: file.place)

    def merge(self) -> bool:
        chosen = choose_neighbours(self.files, _TARGET)
        if not chosen:
            return False
        assert len(chosen) > 1
        rows = [row for file in chosen for row in self.changes[file.path]]
        paths = {file.path for file in chosen}
        self.files = [file for file in self.files if file.file.path not in paths]
        self._add(rows, chosen[0].partition[0])
        self.rewritten += len(rows)
        return True

    def check(self, before: list[tuple[int, int]]) -> None:
        """All changes, each once, in order from file to file and within each."""
        assert [row for file in self.files for row in self.changes[file.file.path]] == before
        for one, following in pairwise(self.files):
            assert one.highest_lsn <= following.lowest_lsn


@pytest.mark.parametrize("seed", range(20))
def test_merges_keep_all_changes_in_order_at_a_bounded_cost(seed: int) -> None:
    random = Random(seed)
    feed, day, most_small = _Feed(), 20_000, 0
    for _ in range(1500):
        if random.random() < 0.01:
            day += 1
        records = random.choice((1, 1, 3, 20, random.randrange(1, 3000)))
        feed.append(records, day, goes_on=random.random() < 0.2 and bool(feed.files) and day == _last_day(feed))
        before = [row for file in feed.files for row in feed.changes[file.file.path]]
        while feed.merge():
            feed.check(before)
        today = [file for file in feed.files if file.file.partition == (day,) and file.file.size_bytes < _TARGET]
        most_small = max(most_small, len(today))
    # At most seven files of each class that rows of a day can be in, and one more run before a day began.
    assert most_small < 60
    days = {file.file.partition for file in feed.files}
    small = [file for file in feed.files if file.file.size_bytes < _TARGET and file.file.partition != (day,)]
    assert len(small) <= 2 * len(days)
    assert feed.rewritten <= 7 * feed.written


def _last_day(feed: _Feed) -> int:
    day = feed.files[-1].file.partition[0]
    assert isinstance(day, int)
    return day


def test_large_files_are_left_alone_and_end_what_is_merged() -> None:
    files = [_file(f"f{number}", (number * 10, number * 10 + 5), 1, 10) for number in range(16)]
    files[8] = _file("large", (80, 85), 1, 100_000)
    chosen = choose_neighbours(files, _TARGET)
    assert [file.path for file in chosen] == [f"f{number}" for number in range(8)]
    assert choose_neighbours(files[9:], _TARGET) == ()


def test_files_that_make_up_the_target_are_merged_however_few() -> None:
    files = [_file(f"f{number}", (number * 10, number * 10 + 5), 1, 30_000) for number in range(3)]
    assert [file.path for file in choose_neighbours(files, _TARGET)] == ["f0", "f1"]
    assert choose_neighbours(files[:1], _TARGET) == ()


def test_a_day_that_is_over_is_merged_and_days_stay_apart() -> None:
    files = [_file("a", (10, 15), 1, 10), _file("b", (20, 25), 1, 10), _file("c", (30, 35), 2, 10)]
    assert [file.path for file in choose_neighbours(files, _TARGET)] == ["a", "b"]
    assert choose_neighbours(files[1:], _TARGET) == ()
    # Not with a file of another day between them: its changes would no longer follow each other by files.
    between = [replace(files[0]), _file("x", (16, 18), 2, 10), replace(files[1])]
    assert choose_neighbours(between, _TARGET) == ()


def test_files_that_overlap_are_not_joined() -> None:
    files = [_file("a", (10, 25), 1, 10), _file("b", (20, 30), 1, 10), _file("c", (40, 45), 2, 10)]
    assert choose_neighbours(files, _TARGET) == ()


def test_what_expires_is_the_beginning_of_a_feed() -> None:
    files = [_file("a", (1, 5), 1, 1), _file("b", (6, 9), 2, 1), _file("c", (10, 15), 4, 1), _file("d", (20, 25), 2, 1)]
    assert [file.file.path for file in expired_files(files, 3)] == ["a", "b"]
    assert [file.file.path for file in expired_files(files, 9)] == ["a", "b", "c", "d"]
    assert expired_files(files, 1) == []
