"""`--lake-partition`: what each text means for each tier key, and which texts are refused."""

from __future__ import annotations

import pytest

from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import TableName, TierKind
from mirror_pump.source.relations.lake_layout import is_present_layout, lake_transform
from mirror_pump.source.relations.widths import Width

EVENTS = TableName("public", "events")
HOUR = 3_600_000_000


@pytest.mark.parametrize(
    ("kind", "choice", "transform"),
    [
        (TierKind.TIMESTAMPTZ, "hour", "hour"),
        (TierKind.TIMESTAMPTZ, " Day", "day"),
        (TierKind.TIMESTAMP, "month", "month"),
        (TierKind.DATE, "year", "year"),
        (TierKind.BIGINT, "1000000", "truncate[1000000]"),
        (TierKind.BIGINT, "007", "truncate[7]"),
    ],
)
def test_units_and_widths(kind: TierKind, choice: str, transform: str) -> None:
    assert lake_transform(kind, choice, None, EVENTS) == transform


@pytest.mark.parametrize(
    ("kind", "width", "transform"),
    [
        (TierKind.BIGINT, Width(span=500), "truncate[500]"),
        (TierKind.TIMESTAMPTZ, Width(span=HOUR // 4), "hour"),
        (TierKind.TIMESTAMPTZ, Width(span=24 * HOUR - 1), "hour"),
        (TierKind.TIMESTAMPTZ, Width(span=24 * HOUR), "day"),
        (TierKind.TIMESTAMP, Width(span=7 * 24 * HOUR), "day"),
        (TierKind.TIMESTAMP, Width(span=31 * 24 * HOUR), "month"),
        (TierKind.DATE, Width(span=1), "day"),
        (TierKind.DATE, Width(span=30), "day"),
        (TierKind.DATE, Width(span=366), "year"),
        (TierKind.DATE, Width(months=1), "month"),
        (TierKind.DATE, Width(months=3), "month"),
        (TierKind.TIMESTAMPTZ, Width(months=12, zone="Europe/Berlin"), "year"),
    ],
)
def test_as_wide_as_the_heap_and_not_wider(kind: TierKind, width: Width, transform: str) -> None:
    assert lake_transform(kind, "width", width, EVENTS) == transform


@pytest.mark.parametrize(
    ("kind", "choice"),
    [
        (TierKind.BIGINT, "day"),
        (TierKind.BIGINT, "0"),
        (TierKind.BIGINT, "-5"),
        (TierKind.BIGINT, "1000000001"),
        (TierKind.BIGINT, "1e6"),
        (TierKind.DATE, "hour"),
        (TierKind.DATE, "7"),
        (TierKind.TIMESTAMPTZ, "week"),
        (TierKind.TIMESTAMPTZ, "truncate[7]"),
        (TierKind.TIMESTAMPTZ, ""),
    ],
)
def test_what_does_not_fit_the_tier_key_is_wrong_usage(kind: TierKind, choice: str) -> None:
    with pytest.raises(UsageError, match="--lake-partition") as refused:
        lake_transform(kind, choice, Width(span=1), EVENTS)
    assert refused.value.remedy.startswith("give ")


def test_a_table_without_partitions_has_no_width() -> None:
    with pytest.raises(TableError, match="no partition whose width") as refused:
        lake_transform(TierKind.DATE, "width", None, EVENTS)
    assert refused.value.remedy == "give --lake-partition day, month, year, or `width` for about that of the heap's"
    with pytest.raises(UsageError, match="would be 2000000000 wide"):
        lake_transform(TierKind.BIGINT, "width", Width(span=2_000_000_000), EVENTS)


def test_which_choices_a_registered_table_may_have() -> None:
    assert is_present_layout("day", "day")
    assert is_present_layout("width", "day")
    assert is_present_layout("10", "truncate[10]")
    assert not is_present_layout("month", "day")
    assert not is_present_layout("100", "truncate[10]")
    assert not is_present_layout("day", None)
    assert not is_present_layout("width", None)
