"""Which rows of a side are counted, and which are returned."""

from __future__ import annotations

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.comparison.partition_digests import Comparing, _Digester
from mirror_pump.engine.comparison.row_hashes import BUCKETS, HashSecret, buckets_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.model import Column

LONG = ColumnType(Kind.LONG)
PACKING = KeyPacking((LONG,), b"secret")
EVERY = frozenset(range(BUCKETS))


def keys(*numbers: int) -> PackedKeys:
    return PACKING.pack([pa.array(numbers, pa.int64())])


BUCKET = int(buckets_of(keys(6).first)[0])


@pytest.mark.parametrize(
    ("wanted", "among", "given"),
    [
        (None, None, None),
        (EVERY, None, {*range(100)} - {5}),
        (EVERY, keys(5, 6, 7, 100), {6, 7}),
        (frozenset({BUCKET}), keys(5, 6, 7), {6}),
        (EVERY, keys(), set()),
    ],
)
def test_rows_of_wanted_buckets_and_keys(
    wanted: frozenset[int] | None, among: PackedKeys | None, given: set[int] | None
) -> None:
    column = Column(1, "id", 20, -1, "bigint", LONG, 1, not_null=True)
    comparing = Comparing((column,), ("id",), PACKING, HashSecret.draw(), keys(5), wanted, among)
    tally = _Digester(comparing)
    tally.add({1: pa.array(range(100), pa.int64())}, 100)
    digest = tally.digest()
    assert digest.sums[:, 0].sum() == 99, "left out is what is compared elsewhere"
    assert (None if digest.rows is None else {*map(int, digest.rows.texts)}) == given
