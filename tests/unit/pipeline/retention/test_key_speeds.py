"""How many partitions are made ahead grows with the speed of the key."""

from __future__ import annotations

from datetime import timedelta

from mirror_pump.model import Lsn, TableId, TableName, Tier, TierKind
from mirror_pump.pipeline.retention.partition_premake import KeySpeeds
from mirror_pump.source.relations.widths import Width
from mirror_pump.source.retention.new_partitions import MOST_AHEAD, wanted_partitions
from mirror_pump.source.retention.partitions import Attached, RetentionChoices

_TABLE = TableId(1)


def _noted(*looks: tuple[float, int]) -> KeySpeeds:
    speeds = KeySpeeds()
    for now, front in looks:
        speeds.note(_TABLE, front, now)
    return speeds


def test_one_look_is_no_speed() -> None:
    assert KeySpeeds().reach(_TABLE) == 0
    assert _noted((5.0, 700)).reach(_TABLE) == 0
    assert _noted((5.0, 700), (200.0, 700)).reach(_TABLE) == 0


def test_partitions_are_made_for_a_minute() -> None:
    """14 new rows each 1.25 s, looked at twice a second."""
    speeds = _noted(*((look / 2, 14 * int(look / 2.5)) for look in range(400)))
    assert 600 < speeds.reach(_TABLE) < 750


def test_rare_looks_need_more_partitions() -> None:
    speeds = _noted(*((look * 100.0, look * 1000) for look in range(5)))
    assert speeds.reach(_TABLE) == 3000


def test_a_burst_is_measured_over_a_quarter_of_a_minute_at_least() -> None:
    assert _noted((0.0, 0), (0.1, 15)).reach(_TABLE) == 60


def test_deleted_rows_are_no_speed() -> None:
    speeds = _noted((0.0, 0), (30.0, 3000), (31.0, 100))
    assert speeds.reach(_TABLE) == 0
    speeds.note(_TABLE, 130, 61.0)
    assert speeds.reach(_TABLE) == 90, "of keys from then on"


def test_a_reach_is_covered_up_to_a_limit() -> None:
    attached = [Attached(1, TableName("public", "e"), 0, 10, is_default=False, is_table=True, routes=False)]
    choices = RetentionChoices(
        premake=2,
        width=Width(span=10),
        drop_grace=timedelta(0),
        detach=False,
        stopped=None,
        not_made=None,
        live=True,
        lag=0,
        cut=0,
        applied=Lsn(0),
    )

    def made(reach: int) -> list[tuple[int, int]]:
        return wanted_partitions(Tier("at", TierKind.BIGINT), 5, attached, choices, reach)

    assert made(0) == made(25) == [(10, 20), (20, 30)]
    assert made(26) == [(10, 20), (20, 30), (30, 40)]
    assert len(made(10_000)) == 2 + MOST_AHEAD
