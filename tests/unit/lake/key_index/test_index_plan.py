"""Commits of random segments: positions and index, compared with a table kept as a list of rows that are hidden or
not."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.index_plan import (
    FileNumbers,
    KeyedSegment,
    PlacedFile,
    SegmentKeys,
    apply_plan,
    plan_commit,
)
from mirror_pump.lake.key_index.key_index import KeyIndex, files_of, positions_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.model import LakePartitioning

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
PACKING = KeyPacking((ColumnType(Kind.LONG),), b"secret")


def packed(keys: list[int]) -> PackedKeys:
    return PackedKeys(np.array(keys, np.int64), None)


def place_of(numbers: FileNumbers, place: np.int64) -> tuple[str, int]:
    places = np.array([place])
    return numbers.path(int(files_of(places)[0])), int(positions_of(places)[0])


def partition_of(key: int, partitioning: LakePartitioning | None) -> int:
    return 0 if partitioning is None else key // 10 * 10


@pytest.mark.parametrize("seed", range(30))
def test_random_commits(seed: int) -> None:
    """Each segment deletes some keys and adds some rows, as the decoder produces them: a row whose key exists comes
    with a delete. From time to time a key without a row is deleted. Half of the tables are partitioned: a segment has
    a file for each lake partition. Every third commit is worked out in parts."""
    chance = random.Random(seed)
    partitioning = LakePartitioning.by(1, "truncate[10]") if seed % 2 else None
    index, numbers = KeyIndex(1), FileNumbers()
    live: dict[int, tuple[str, int]] = {}
    for commit in range(40):
        segments: list[KeyedSegment] = []
        hidden: set[tuple[str, int]] = set()
        unknown: list[list[int]] = []
        known = set(live)
        base = dict(live)
        for part in range(chance.choice([1, 1, 2, 5])):
            keys = chance.sample(range(40), chance.choice([0, 3, 12]))
            brought = [key for key in keys if chance.random() < 0.7]
            deleted = [key for key in keys if key in live or key not in brought]
            unknown.append([place for place, key in enumerate(deleted) if key not in known])
            hidden.update(live.pop(key) for key in deleted if key in live)
            known.update(brought)
            by_path: dict[str, list[int]] = {}
            for key in brought:
                by_path.setdefault(f"{commit}-{part}-{partition_of(key, partitioning)}", []).append(key)
            for path, in_file in by_path.items():
                live.update({key: (path, row) for row, key in enumerate(in_file)})
            table = pa.table({"id": pa.array(deleted, pa.int64())})
            rows = tuple(map(packed, by_path.values()))
            files = tuple(
                PlacedFile(path, () if partitioning is None else (int(path.rpartition("-")[2]),)) for path in by_path
            )
            segments.append(KeyedSegment(files, SegmentKeys(SCHEMA, table, packed(deleted), PACKING, rows)))
        part_keys = 1 << 20 if commit % 3 else 1 + commit // 3
        plan = plan_commit(index, numbers, segments, part_keys=part_keys, with_changed=True)
        wanted = {} if partitioning is None else {path: (int(path.rpartition("-")[2]),) for path, _ in hidden}
        positions = plan.positions(numbers)
        assert numbers.partitions(positions) == wanted
        found = [(path, int(row)) for path, rows in positions.items() for row in rows]
        assert found == sorted(found, key=lambda place: (numbers.number(place[0]), place[1]))
        assert set(found) == hidden
        assert len(found) == len(hidden)
        assert [places.tolist() for places in plan.unknown] == unknown
        changed = [
            (place_of(numbers, new), place_of(numbers, old))
            for places, base_places in plan.changed
            for new, old in zip(places, base_places, strict=True)
        ]
        assert sorted(changed) == sorted(
            (place, base[key]) for key, place in live.items() if key in base and base[key] != place
        ), "a key that had a row before the commit, and has another one after it"
        if chance.random() < 0.2:
            # A publish that failed, and is planned again.
            assert plan_commit(index, numbers, segments).positions(numbers).keys() == positions.keys()
        apply_plan(index, plan.touched)
        every = index.find(packed(list(range(40))))
        assert {key: place_of(numbers, place) for key, place in enumerate(every) if place >= 0} == live
        assert index.alive == len(live)


def test_a_plan_in_parts_is_the_plan_of_the_whole() -> None:
    chance = np.random.default_rng(5)
    index, numbers = KeyIndex(1), FileNumbers()
    index.put(packed(list(range(5000))), np.arange(5000) + (numbers.number("old") << 32))
    segments = []
    for number in range(4):
        keys = chance.permutation(8000)[:3000]
        table = pa.table({"id": pa.array(keys, pa.int64())})
        rows = (packed(keys[:1500].tolist()), packed(keys[1500:2500].tolist()))
        segments.append(
            KeyedSegment(
                (PlacedFile(f"{number}-a"), PlacedFile(f"{number}-b")),
                SegmentKeys(SCHEMA, table, packed(keys.tolist()), PACKING, rows),
            )
        )
    whole = plan_commit(index, numbers, segments)
    parts = plan_commit(index, numbers, segments, part_keys=1000)
    assert (len(whole.touched), len(parts.touched)) == (1, 22)
    assert whole.hidden.tolist() == parts.hidden.tolist()
    assert [absent.tolist() for absent in whole.unknown] == [absent.tolist() for absent in parts.unknown]
    every = packed(list(range(8000)))
    found = []
    for plan in (whole, parts):
        copy = KeyIndex(1)
        copy.put(packed(list(range(5000))), np.arange(5000))
        apply_plan(copy, plan.touched)
        found.append(copy.find(every).tolist())
    assert found[0] == found[1]


def test_numbers_are_used_again() -> None:
    numbers = FileNumbers()
    assert [numbers.number(path) for path in ("a", "b", "a")] == [0, 1, 0]
    assert numbers.mask(["b", "never heard of"]).tolist() == [False, True]
    numbers.forget(["a"])
    assert numbers.paths() == {"b"}
    assert numbers.number("c") == 0
    assert (numbers.path(0), numbers.path(1)) == ("c", "b")
    numbers.rename("b", "d")
    assert numbers.paths() == {"c", "d"}
    assert (numbers.path(1), numbers.number("d")) == ("d", 1)
