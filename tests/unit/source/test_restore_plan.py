"""Which partitions a restore makes: together with the attached ones they cover all below the cut-line, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.model import EVERYTHING_IN_HEAP, TableName, TierKind
from mirror_pump.source.retention.restore_plan import RestoredRange, ShedPartition, own_name, plan_ranges

_TABLE = TableName("public", "events")


def _plan(
    shed: list[tuple[int, int]], attached: list[tuple[int, int]], cut: int, floor: int = EVERYTHING_IN_HEAP
) -> list[RestoredRange]:
    known = [ShedPartition(f"public.p{lo}", None, lo, hi, by_owner=False, still_there=None) for lo, hi in shed]
    return plan_ranges(_TABLE, TierKind.BIGINT, known, attached, cut, floor, gaps=True)


def test_partitions_get_their_bounds_and_gaps_a_partition_if_they_have_rows() -> None:
    assert _plan([(10, 20), (0, 10)], [(30, 40), (40, 50)], 40) == [
        RestoredRange(EVERYTHING_IN_HEAP, 0, "events_restored_oldest", if_filled=True),
        RestoredRange(0, 10, "p0", if_filled=False),
        RestoredRange(10, 20, "p10", if_filled=False),
        RestoredRange(20, 30, "events_restored_p20", if_filled=True),
    ]


def test_what_has_expired_does_not_come_back() -> None:
    assert _plan([(0, 10), (10, 20), (20, 30)], [], 30, floor=15) == [
        RestoredRange(10, 20, "p10", if_filled=False),
        RestoredRange(20, 30, "p20", if_filled=False),
    ]


_RANGES = st.lists(st.tuples(st.integers(0, 19), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(_RANGES, st.sets(st.integers(0, 9)), st.integers(10, 30), st.integers(0, 9))
def test_every_value_below_the_cutline_is_in_one_partition(
    shed: list[tuple[int, int]], tens: set[int], cut: int, floor: int
) -> None:
    attached = [(3 * number, 3 * number + 2) for number in tens]
    planned = _plan(shed, attached, cut, floor)
    for value in range(floor, cut):
        taken = sum(lo <= value < hi for lo, hi in attached) + sum(each.lo <= value < each.hi for each in planned)
        assert taken == 1, value
    assert len({each.lo for each in planned}) == len(planned)


def test_names_are_those_of_the_partitions() -> None:
    assert own_name(_TABLE, "public.p0") == "p0"
    assert own_name(_TABLE, "public.p0 #1234") == "p0"
    assert own_name(_TABLE, 'public."P ""0"""') == 'P "0"'
    assert own_name(_TABLE, "elsewhere.p0") == "p0"
    assert own_name(_TABLE, "p0") == "p0"
    assert own_name(TableName("My.Schema", "t"), '"My.Schema"."a.b"') == "a.b"
