"""The choice of files to merge: size classes, what a pending equality delete forbids, how often a row is rewritten."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from mirror_pump.engine.rewrite.merge_plan import FANOUT, MOST_SOURCES, choose, choose_by_partition
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.contents.size_classes import size_class
from mirror_pump.lake.format.data_files import FileContent

TARGET = 1 << 20


def file(number: int, records: int = 1, size: int = 1000, name: str = "", partition: int | None = None) -> LiveFile:
    path = name or f"file:///{number:06}-{partition}"
    in_partition = () if partition is None else (partition,)
    return LiveFile(FileContent.DATA, path, number, "PARQUET", records, size, (), {}, {}, in_partition)


def chosen(files: list[LiveFile], pending: list[int] | None = None) -> list[int]:
    return [file.sequence_number for file in choose(files, pending or [], TARGET)]


def test_classes_end_at_eight_times_the_rows() -> None:
    assert [size_class(rows) for rows in (0, 1, 7, 8, 63, 64, 511, 512)] == [0, 0, 0, 1, 1, 2, 2, 3]


def test_a_class_is_merged_when_it_is_full() -> None:
    files = [file(number) for number in range(1, FANOUT + 1)]
    assert chosen(files[1:]) == []
    assert chosen(files[::-1]) == list(range(1, FANOUT + 1)), "oldest first"


def test_smaller_files_go_along_and_larger_ones_stay() -> None:
    files = [file(number, records=10) for number in range(10, 10 + FANOUT)]
    files += [file(5, records=0), file(30, records=1), file(1, records=64), file(2, records=1, size=TARGET)]
    assert chosen(files) == [5, *range(10, 10 + FANOUT), 30]


def test_the_largest_full_class_goes_first() -> None:
    files = [file(number, records=1) for number in range(100, 200)]
    files += [file(number, records=1000) for number in range(1, FANOUT + 1)]
    assert set(range(1, FANOUT + 1)) <= set(chosen(files))


@pytest.mark.parametrize("pending", [[], [4], [4, 4], [1], [9], [20], [4, 9, 13], list(range(1, 30))])
def test_no_pending_delete_is_among_the_numbers(pending: list[int]) -> None:
    files = [file(number) for number in range(1, 30)]
    numbers = chosen(files, pending)
    assert not any(numbers and numbers[0] <= number <= numbers[-1] for number in pending)
    runs = "".join("x" if number in pending else "." for number in range(1, 30)).split("x")
    assert len(numbers) == max((len(run) for run in runs if len(run) >= FANOUT), default=0)


def test_files_of_one_number_are_merged_unless_it_is_a_deletes() -> None:
    files = [file(7, name=f"file:///{number}") for number in range(FANOUT)]
    assert chosen(files) == [7] * FANOUT
    assert chosen(files, [6, 8]) == [7] * FANOUT
    assert chosen(files, [7]) == []


def test_a_merge_is_bounded() -> None:
    many = [file(number) for number in range(10 * MOST_SOURCES)]
    assert len(chosen(many)) == MOST_SOURCES
    large = [file(number, records=100, size=TARGET // 2) for number in range(20)]
    assert chosen(large) == [0, 1]
    rows = [file(number, records=3_000_000, size=10) for number in range(20)]
    assert chosen(rows) == [0, 1]


def test_files_of_different_lake_partitions_are_never_merged() -> None:
    files = [file(number, partition=day) for number in range(1, FANOUT + 1) for day in range(10)]
    files += [file(number, partition=20) for number in range(1, FANOUT)]
    files += [file(number, partition=30) for number in range(1, 3 * FANOUT)]
    groups = choose_by_partition(files, [], TARGET)
    assert [len(group) for group in groups] == [3 * FANOUT - 1, *[FANOUT] * 10], "most files first"
    assert all(len({file.partition for file in group}) == 1 for group in groups)
    assert choose_by_partition(files[: FANOUT * 10 : 10], [], TARGET) == [choose(files[: FANOUT * 10 : 10], [], TARGET)]


def test_the_merges_of_one_commit_are_bounded() -> None:
    files = [file(number, partition=day) for number in range(100) for day in range(10)]
    groups = choose_by_partition(files, [], TARGET)
    assert sum(map(len, groups)) == MOST_SOURCES
    rows = [file(number, records=3_000_000, size=10, partition=day) for number in range(9) for day in range(3)]
    assert len(choose_by_partition(rows, [], TARGET)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_row_is_rewritten_once_per_class(seed: int) -> None:
    """Files of any size arrive one by one: the number of waiting files is bounded, and so is the rewriting."""
    chance = random.Random(seed)
    numbers = itertools.count(1)
    files: list[LiveFile] = []
    rewrites: Counter[str] = Counter()
    """By file: how often its oldest row was rewritten."""
    largest = chance.choice([1, 10, 100])
    for _ in range(3000):
        files.append(file(next(numbers), records=chance.randint(1, largest)))
        rewrites[files[-1].path] = 0
        while sources := choose(files, [], TARGET):
            merged = sum(file.records for file in sources)
            kept = [file for file in files if file not in sources]
            times = max(rewrites.pop(file.path) for file in sources) + 1
            new = file(sources[-1].sequence_number, records=merged, name=f"file:///m{next(numbers)}")
            rewrites[new.path] = times
            assert times <= size_class(merged), "once per class"
            files = [*kept, new]
        assert len(files) <= (FANOUT - 1) * (1 + size_class(sum(file.records for file in files)))
