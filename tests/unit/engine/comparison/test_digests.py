"""Which rows of a side are counted, and which are returned."""

from __future__ import annotations

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.comparison.digests import ComparisonParameters, Digester
from mirror_pump.engine.comparison.row_hashes import BUCKETS, HashSecret, buckets_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.model import Column

LONG = ColumnType(Kind.LONG)
PACKING = KeyPacking((LONG,), b"secret")
SECRET = HashSecret.draw()
EVERY = frozenset(range(BUCKETS))


def keys(*numbers: int) -> PackedKeys:
    return PACKING.pack([pa.array(numbers, pa.int64())])


BUCKET = int(buckets_of(keys(6).first)[0])


def _sums(*rows: tuple[int, str]) -> list[list[int]]:
    text = Column(2, "text", 25, -1, "text", ColumnType(Kind.STRING), 2, not_null=False)
    id_ = Column(1, "id", 20, -1, "bigint", LONG, 1, not_null=True)
    digester = Digester(ComparisonParameters((id_, text), ("id",), PACKING, SECRET, keys()))
    # In batches of two, as rows of one side come in others than those of the other.
    for begin in range(0, len(rows), 2):
        batch = rows[begin : begin + 2]
        columns = {1: pa.array([key for key, _ in batch], pa.int64()), 2: pa.array([value for _, value in batch])}
        digester.add(columns, len(batch))
    found: list[list[int]] = digester.digest().sums.tolist()
    return found


def test_sums_depend_on_what_rows_there_are_and_not_on_their_order() -> None:
    rows = ((1, "a"), (2, "b"), (3, "c"), (4, "a"))
    assert _sums(*rows) == _sums(*reversed(rows))
    for wrong in (
        ((1, "b"), (2, "a"), *rows[2:]),  # values swapped between rows
        ((1, "a"), (1, "a"), *rows[2:]),  # a row lost, another twice
        ((1, "a"), (2, "b"), (3, "c"), (3, "c")),
        (*rows[:3], (5, "a")),  # under another key
        rows[:3],
        (*rows, rows[0]),
    ):
        assert _sums(*wrong) != _sums(*rows), wrong


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
    comparing = ComparisonParameters((column,), ("id",), PACKING, HashSecret.draw(), keys(5), wanted, among)
    digester = Digester(comparing)
    digester.add({1: pa.array(range(100), pa.int64())}, 100)
    digest = digester.digest()
    counted = 99 if given is None else len(given)
    assert digest.sums[:, 0].sum() == counted, "left out is what is compared elsewhere, and what is not returned"
    assert (None if digest.rows is None else {*digest.rows.key_columns[0].to_pylist()}) == given


def test_rows_that_wait_are_in_the_sums_once() -> None:
    """Some are added on the way, the others at the end."""
    column = Column(1, "id", 20, -1, "bigint", LONG, 1, not_null=True)
    comparing = ComparisonParameters((column,), ("id",), PACKING, SECRET, keys(7), sums_keys=True)
    numbers = pa.array(range(300_000), pa.int64())
    digests = []
    for step in (300_000, 50_000, 70_001):
        digester = Digester(comparing)
        for begin in range(0, 300_000, step):
            batch = numbers.slice(begin, step)
            digester.add({1: batch}, len(batch))
        digests.append(digester.digest())
    assert digests[0].count == 299_999
    for digest in digests:
        sums, first = digest.key_sums, digests[0].key_sums
        assert sums is not None
        assert first is not None
        assert (digest.sums == digests[0].sums).all()
        assert (sums.by_key == first.by_key).all()
        assert (sums.by_hash == first.by_hash).all()
        assert (sums.marks - first.marks) % (1 << 64) == 0
        assert int(sums.by_hash[:, 0].sum()) == 299_999
