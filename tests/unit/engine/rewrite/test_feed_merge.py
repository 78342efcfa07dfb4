"""Which files of a change feed are merged: in order, by size classes, and at last all of a day."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest

from mirror_pump.engine.rewrite.feed_merge import FeedFile, choose_neighbours, expiry_rewrite
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.storage import StorageOptions

_TARGET = 1 << 20
_FANOUT = 8


def _file(path: str, lsn: tuple[int, int], day: int, records: int, *, seq: int = 0) -> FeedFile:
    size = 1000 + 20 * records
    live = LiveFile(FileContent.DATA, path, 1, "PARQUET", records, size, (), {}, {}, (day,))
    return FeedFile(live, *lsn, seq)


@dataclass
class _Feed:
    """A feed of which each file's content is listed: by number, the files that were appended."""

    files: list[FeedFile] = field(default_factory=list)
    content: dict[str, list[int]] = field(default_factory=dict)
    appended: int = 0
    lsn: int = 0
    seq: int = 0
    written: int = 0
    rewritten: int = 0

    def append(self, records: int, day: int, *, goes_on: bool = False) -> None:
        """`goes_on`: all its changes are of the transaction with which the last file ended."""
        if not goes_on:
            self.lsn, self.seq = self.lsn + 8, 0
        lowest, self.lsn = self.lsn, self.lsn if goes_on else self.lsn + 8 * records
        self._add([self.appended], (lowest, self.lsn), day, records, self.seq)
        self.appended += 1
        self.seq += 2 * records
        self.written += records

    def _add(self, content: list[int], lsn: tuple[int, int], day: int, records: int, seq: int) -> None:
        path = f"f{len(self.content)}"
        self.content[path] = content
        self.files.append(_file(path, lsn, day, records, seq=seq))
        self.files.sort(key=lambda file: file.place)

    def merge(self) -> bool:
        chosen = choose_neighbours(self.files, _TARGET)
        if not chosen:
            return False
        assert len(chosen) > 1
        paths = {file.path for file in chosen}
        sources = [file for file in self.files if file.file.path in paths]
        self.files = [file for file in self.files if file.file.path not in paths]
        content = [number for file in chosen for number in self.content[file.path]]
        records = sum(file.records for file in chosen)
        lsn = sources[0].lowest_lsn, sources[-1].highest_lsn
        self._add(content, lsn, chosen[0].partition[0], records, min(file.lowest_seq for file in sources))
        self.rewritten += records
        return True

    def check(self) -> None:
        """All changes, each once, in order from file to file and within each."""
        assert [number for file in self.files for number in self.content[file.file.path]] == [*range(self.appended)]
        for one, following in pairwise(self.files):
            assert one.highest_lsn <= following.lowest_lsn


@pytest.mark.parametrize("seed", range(8))
def test_merges_keep_all_changes_in_order_at_a_bounded_cost(seed: int) -> None:
    random = Random(seed)
    feed, day, most_small = _Feed(), 20_000, 0
    for _ in range(1000):
        if random.random() < 0.01:
            day += 1
        records = random.choice((1, 1, 3, 20, random.randrange(1, 3000)))
        feed.append(records, day, goes_on=random.random() < 0.2 and feed.appended > 0 and day == _last_day(feed))
        while feed.merge():
            feed.check()
        feed.check()
        today = [file for file in feed.files if file.file.partition == (day,) and file.file.size_bytes < _TARGET]
        most_small = max(most_small, len(today))
    assert most_small < 80
    # Of a day that is over, a small file may be left before a large one, and one at its end.
    before = [file for file in feed.files if file.file.partition != (day,)]
    small = [file for file in before if file.file.size_bytes < _TARGET]
    assert len(small) <= len({file.file.partition for file in before}) + len(before) - len(small)
    assert feed.rewritten <= 6 * feed.written


def _last_day(feed: _Feed) -> int:
    day = feed.files[-1].file.partition[0]
    assert isinstance(day, int)
    return day


def test_large_files_are_left_alone_and_end_what_is_merged() -> None:
    files = [_file(f"f{number}", (number * 10, number * 10 + 5), 1, 10) for number in range(16)]
    files[8] = _file("large", (80, 85), 1, 100_000)
    chosen = choose_neighbours(files, _TARGET, _FANOUT)
    assert [file.path for file in chosen] == [f"f{number}" for number in range(8)]
    assert choose_neighbours(files[9:], _TARGET, _FANOUT) == ()


def test_files_that_make_up_the_target_are_merged_however_few() -> None:
    files = [_file(f"f{number}", (number * 10, number * 10 + 5), 1, 30_000) for number in range(3)]
    assert [file.path for file in choose_neighbours(files, _TARGET, _FANOUT)] == ["f0", "f1"]
    assert choose_neighbours(files[:1], _TARGET, _FANOUT) == ()


def test_a_day_that_is_over_is_merged_and_days_stay_apart() -> None:
    files = [_file("a", (10, 15), 1, 10), _file("b", (20, 25), 1, 10), _file("c", (30, 35), 2, 10)]
    assert [file.path for file in choose_neighbours(files, _TARGET, _FANOUT)] == ["a", "b"]
    assert choose_neighbours(files[1:], _TARGET, _FANOUT) == ()
    # Not with a file of another day between them: its changes would no longer follow each other by files.
    between = [replace(files[0]), _file("x", (16, 18), 2, 10), replace(files[1])]
    assert choose_neighbours(between, _TARGET, _FANOUT) == ()


def test_files_that_overlap_go_together() -> None:
    """Those of a publish: what tasks wrote, and what was looked up."""
    pairs = [
        file
        for number in range(4)
        for file in (
            _file(f"a{number}", (number * 100, number * 100 + 90), 1, 20),
            _file(f"b{number}", (number * 100 + 5, number * 100 + 50), 1, 2),
        )
    ]
    chosen = choose_neighbours(pairs, _TARGET, _FANOUT)
    assert [file.path for file in chosen] == [file.file.path for file in pairs]
    assert choose_neighbours(pairs[:7], _TARGET, _FANOUT) == ()
    # By their size the first three would do, but the third overlaps the fourth.
    large = [_file(file.file.path, (file.lowest_lsn, file.highest_lsn), 1, 20_000) for file in pairs[:4]]
    assert [file.path for file in choose_neighbours(large, _TARGET, _FANOUT)] == ["a0", "b0", "a1", "b1"]


def test_files_of_two_days_that_overlap_stay_apart() -> None:
    """At midnight commits are not quite in the order of their times."""
    midnight = [_file("a", (10, 25), 1, 10), _file("b", (20, 30), 2, 10), _file("c", (40, 45), 3, 10)]
    assert choose_neighbours(midnight, _TARGET, _FANOUT) == ()


def test_what_expires_is_the_beginning_of_a_feed() -> None:
    files = [_file("a", (1, 5), 1, 1), _file("b", (6, 9), 2, 1), _file("c", (10, 15), 4, 1), _file("d", (20, 25), 2, 1)]
    listing = Listing(StorageOptions())
    for first_day, removed, rows, below in ((3, "ab", 2, 10), (9, "abcd", 4, 26)):
        rewrite = expiry_rewrite(files, first_day, listing)
        assert rewrite is not None
        assert (rewrite.removed, rewrite.removed_rows, rewrite.expired_lsn) == (frozenset(removed), rows, below)
    assert expiry_rewrite(files, 1, listing) is None
