"""The key index compared with a dict, and the packing of keys of every kind compared with their values."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.key_index import NOWHERE, KeyIndex, files_of, place_of, positions_of
from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, codes_of, stable_order, unique_last

LONG, INT, TEXT, UUID = (ColumnType(kind) for kind in (Kind.LONG, Kind.INT, Kind.STRING, Kind.UUID))
DECIMAL = ColumnType(Kind.DECIMAL, 30, 2)

COLUMNS: dict[str, tuple[ColumnType, st.SearchStrategy[Any]]] = {
    "long": (LONG, st.integers(-(2**63), 2**63 - 1)),
    "int": (INT, st.integers(-(2**31), 2**31 - 1)),
    "text": (TEXT, st.text(max_size=12)),
    "bytes": (ColumnType(Kind.BINARY), st.binary(max_size=12)),
    "uuid": (UUID, st.uuids().map(lambda value: value.bytes)),
    "decimal": (DECIMAL, st.integers(-(10**20), 10**20).map(lambda value: Decimal(value).scaleb(-2))),
    "boolean": (ColumnType(Kind.BOOLEAN), st.booleans()),
    "date": (ColumnType(Kind.DATE), st.dates()),
    "timestamp": (ColumnType(Kind.TIMESTAMP), st.datetimes()),
}


def packing(*types: ColumnType) -> KeyPacking:
    fields = tuple(LakeField(number, f"c{number}", type_, required=True) for number, type_ in enumerate(types, 1))
    made = KeyPacking.of(LakeSchema(0, fields, tuple(field.field_id for field in fields)), b"secret")
    assert made is not None
    return made


def words(keys: PackedKeys) -> list[tuple[int, ...]]:
    second = [()] * len(keys) if keys.second is None else [(int(key),) for key in keys.second]
    return [(int(key), *more) for key, more in zip(keys.first, second, strict=True)]


@given(st.data(), st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
def test_packed_keys_are_equal_exactly_where_the_keys_are(data: st.DataObject, names: list[str]) -> None:
    types, values = zip(*(COLUMNS[name] for name in names), strict=True)
    # Few distinct values in each column, so that some whole keys are equal.
    pools = [data.draw(st.lists(strategy, min_size=1, max_size=3)) for strategy in values]
    rows = data.draw(st.lists(st.tuples(*map(st.sampled_from, pools)), min_size=1, max_size=20))
    how = packing(*types)
    columns = [pa.array([row[i] for row in rows], type_.arrow) for i, type_ in enumerate(types)]
    packed = how.pack(columns)
    assert packed.second is None or how.words == 2
    same = [[key == other for other in words(packed)] for key in words(packed)]
    assert same == [[row == other for other in rows] for row in rows]
    sliced = how.pack([pa.concat_arrays([column, column]).slice(len(rows)) for column in columns])
    assert words(sliced) == words(packed)
    codes, count = codes_of(packed)
    assert count == len(set(rows))
    assert [[a == b for b in codes] for a in codes] == same
    kept = unique_last(packed)
    assert {rows[place]: int(place) for place in kept} == {row: place for place, row in enumerate(rows)}


_WORD = st.integers(-(2**63), 2**63 - 1)


@given(
    st.one_of(
        st.lists(_WORD, max_size=50),
        st.builds(
            lambda low, steps: [min(low + step, 2**63 - 1) for step in steps], _WORD, st.lists(st.integers(0, 9))
        ),
        st.builds(
            lambda low, wide, steps: [min(low + step * wide, 2**63 - 1) for step in steps],
            _WORD,
            st.integers(2**55, 2**62),
            st.lists(st.integers(0, 3)),
        ),
    )
)
def test_the_order_of_words_is_stable(words: list[int]) -> None:
    order = stable_order(np.array(words, np.int64))
    assert order.tolist() == sorted(range(len(words)), key=words.__getitem__)


def test_columns_do_not_run_into_each_other() -> None:
    how = packing(TEXT, TEXT)
    packed = how.pack([pa.array(["a", "ab"]), pa.array(["bc", "c"])])
    assert len(set(words(packed))) == 2


def test_a_list_cannot_be_packed() -> None:
    field = LakeField(1, "c", ColumnType(Kind.LIST, element=LONG), required=True)
    assert KeyPacking.of(LakeSchema(0, (field,), (1,)), b"secret") is None


def test_null_is_no_key() -> None:
    with pytest.raises(ValueError, match="NULL"):
        packing(LONG).pack([pa.array([1, None])])


@pytest.mark.parametrize("disk", [None, 1 << 20, 3000], ids=["memory", "disk", "small disk"])
@pytest.mark.parametrize("two_words", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.further) for seed in (2, 3))])
def test_the_index_is_a_dict(two_words: bool, seed: int, disk: int | None) -> None:
    """Small leaves and runs, so that each is split and merged many times; also keys that share their first words, and
    leaves in files, all of them or as many as there is room for."""
    chance = random.Random(seed)
    store = None if disk is None else LeafStore(disk)
    index = KeyIndex(2 if two_words else 1, leaf_entries=40, recent_entries=25, store=store)
    model = dict[tuple[int, ...], int]()
    universe: list[tuple[int, ...]] = [(number,) for number in range(700)]
    if two_words:
        universe = sorted({(chance.randrange(120), chance.randrange(4)) for _ in range(700)})

    def keys_of(some: Sequence[tuple[int, ...]]) -> PackedKeys:
        table = np.array(some, np.int64).reshape(len(some), 2 if two_words else 1)
        return PackedKeys(table[:, 0].copy(), table[:, 1].copy() if two_words else None)

    moves = adoptions = 0
    for step in range(300):
        some = chance.sample(universe, chance.choice([1, 3, 30]))
        new = [place_of(step, np.array([at]))[0] if chance.random() < 0.7 else NOWHERE for at in range(len(some))]
        action = chance.choice(["put", "put", "move", "adopt"])
        places = np.array(new, np.int64)
        if action == "put":
            index.put(keys_of(some), places)
            model.update(zip(some, new, strict=True))
        elif action == "move":
            old = [model.get(key, NOWHERE) if chance.random() < 0.5 else 12345 for key in some]
            old = [value if value >= 0 else 12345 for value in old]
            index.move(keys_of(some), np.array(old, np.int64), np.maximum(places, 7))
            for key, was, now in zip(some, old, np.maximum(places, 7), strict=True):
                if model.get(key, NOWHERE) == was:
                    model[key] = int(now)
                    moves += 1
        else:
            gone = np.array([chance.random() < 0.3 for _ in range(400)])
            index.adopt(keys_of(some), np.maximum(places, 9), gone)
            for key, now in zip(some, np.maximum(places, 9), strict=True):
                if model.get(key, NOWHERE) >= 0 and gone[model[key] >> 32]:
                    model[key] = int(now)
                    adoptions += 1
        assert index.find(keys_of(universe)).tolist() == [model.get(key, NOWHERE) for key in universe]
        assert index.alive == sum(place >= 0 for place in model.values())
        files = np.array([chance.random() < 0.01 for _ in range(400)])
        assert index.any_in(files) == any(place >= 0 and files[place >> 32] for place in model.values())
    assert moves > 10
    assert adoptions > 10
    assert len(index._leaves) > 3
    if store is not None:
        assert 0 < index.disk_bytes == store.used <= store.limit
        in_files = [leaf.mapped is not None for leaf in index._leaves]
        assert all(in_files) == (disk != 3000)
        index = KeyIndex(1)
        assert store.used == 0


def test_an_index_moves_into_files() -> None:
    index, store = KeyIndex(1, leaf_entries=40, recent_entries=25), LeafStore(1 << 20)
    keys = PackedKeys(np.arange(1000), None)
    index.put(keys, np.arange(1000) + 5)
    size = index.nbytes
    index.spill(store)
    assert index.nbytes == 0
    assert index.disk_bytes == store.used == size
    index.move(keys.take(slice(0, 10)), np.arange(10) + 5, np.full(10, 3))
    assert index.find(keys).tolist() == [3] * 10 + list(range(15, 1005))


def test_leaves_beyond_the_most_files_stay_in_memory() -> None:
    index, store = KeyIndex(1, leaf_entries=40, recent_entries=25), LeafStore(1 << 20, most_files=3)
    index.put(PackedKeys(np.arange(1000), None), np.arange(1000))
    size = index.nbytes
    index.spill(store)
    assert [leaf.mapped is not None for leaf in index._leaves] == [number < 3 for number in range(len(index._leaves))]
    assert index.nbytes + index.disk_bytes == size
    assert index.find(PackedKeys(np.arange(1000), None)).tolist() == list(range(1000))


@pytest.mark.parametrize("every", [0, 20], ids=["all go", "some stay"])
def test_memory_follows_the_keys_that_are_there(every: int) -> None:
    """A key counts upward under a window of rows: new keys never use the leaves from which old ones are removed."""
    index, window = KeyIndex(1, leaf_entries=40, recent_entries=25), 200

    def put(numbers: Sequence[int], place: int) -> None:
        index.put(PackedKeys(np.array(numbers, np.int64), None), np.full(len(numbers), place, np.int64))

    for first in range(0, 20_000, 10):
        put(range(first, first + 10), 7)
        if first >= window:
            put(
                [number for number in range(first - window, first - window + 10) if not every or number % every],
                NOWHERE,
            )
        # A quarter more than there are, and room for the latest keys.
        assert len(index) <= 1.25 * index.alive + 25 + 10
        assert index.nbytes == 16 * len(index)
        assert len(index._leaves) <= len(index) // 40 + 2
    # No new key is necessary, either.
    put(range(20_000), NOWHERE)
    assert (index.alive, len(index)) == (0, 0)
    put([5], 7)
    assert index.find(PackedKeys(np.arange(4, 7), None)).tolist() == [NOWHERE, 7, NOWHERE]


def test_places() -> None:
    places = place_of(7, np.array([0, 2**32 - 1]))
    assert files_of(places).tolist() == [7, 7]
    assert positions_of(places).tolist() == [0, 2**32 - 1]


def test_uuids_of_one_moment_differ_in_the_word_that_is_searched() -> None:
    """Versions 6 and 7 begin with the time: 100,000 rows of one statement share most of their first 8 bytes."""
    values = [uuid.UUID(int=(0x018F00000000_7000 << 64) | (2 << 62) | number).bytes for number in range(1000)]
    packed = packing(UUID).pack([pa.array(values, pa.binary(16))])
    assert len(np.unique(packed.first)) == 1000
