"""The order in which workers get tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.worker_shares import ItemNeeds, in_shares

A, B, C = Path("test_a.py"), Path("test_b.py"), Path("test_c.py")
TESTS = (
    *(ItemNeeds(A) for _ in range(17)),
    ItemNeeds(A, spark=True),
    *(ItemNeeds(A, slow=True) for _ in range(2)),
    *(ItemNeeds(B, spark=number > 0, shares_its_module=number > 0) for number in range(7)),
    *(ItemNeeds(C) for _ in range(8)),
    ItemNeeds(C, spark=True, slow=True),
)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 36, 50])
def test_each_test_is_in_one_share(workers: int) -> None:
    assert sorted(in_shares(TESTS, workers)) == list(range(len(TESTS)))


def test_slow_tests_begin_and_one_worker_in_four_has_spark() -> None:
    order = in_shares(TESTS, 4)
    shares = [order[begin : begin + 9] for begin in range(0, 36, 9)]
    assert len(TESTS) == 36
    with_spark, *others = shares
    assert TESTS[with_spark[0]] == ItemNeeds(C, spark=True, slow=True)
    for share in others[:2]:
        assert TESTS[share[0]] == ItemNeeds(A, slow=True)
    assert not any(TESTS[place].spark for share in others for place in share)
    begin = TESTS.index(ItemNeeds(B))
    where = with_spark.index(begin)
    assert with_spark[where : where + 7] == list(range(begin, begin + 7)), "a module with a shared fixture"


def test_more_spark_than_shares_have_room_for_spreads() -> None:
    tests = [ItemNeeds(Path(f"test_{number}.py"), spark=number < 6) for number in range(8)]
    order = in_shares(tests, 4)
    assert sorted(order) == list(range(8))
    assert [tests[place].spark for place in order] == [True] * 6 + [False] * 2
