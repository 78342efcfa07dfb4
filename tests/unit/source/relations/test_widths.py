"""Partitions that follow the calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.errors import UsageError
from mirror_pump.model import Lsn, TableName, Tier, TierKind
from mirror_pump.source.relations.tier_keys import now_value, shown
from mirror_pump.source.relations.widths import Width, parse_width, usual_width
from mirror_pump.source.retention.new_partitions import wanted_partitions
from mirror_pump.source.retention.partitions import Attached, RetentionChoices

STAMP = TierKind.TIMESTAMPTZ


def at(text: str, kind: TierKind = STAMP) -> int:
    """The tier value of a time with an offset, or of a date."""
    moment = datetime.fromisoformat(text)
    value = now_value(kind, moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("text", "months"), [("1mon", 1), ("1 month", 1), ("3 months", 3), ("1y", 12), ("2 years", 24), ("12mon", 12)]
)
def test_months_and_years_are_parsed_and_printed(text: str, months: int) -> None:
    width = parse_width(STAMP, text, "--width", "UTC")
    assert width == Width(months=months)
    assert parse_width(STAMP, width.text(STAMP), "--width", "UTC") == width
    assert Width.from_json(width.to_json()) == width


def test_other_widths_stay_what_they_were() -> None:
    assert parse_width(STAMP, "1 day", "--width", "UTC") == Width(span=86_400_000_000)
    assert parse_width(TierKind.BIGINT, "100", "--width", "UTC") == Width(span=100)
    assert Width.from_json(100) == Width(span=100)
    assert Width.from_json(None) is None
    for kind, text in ((TierKind.BIGINT, "1mon"), (STAMP, "0 days"), (STAMP, "0mon"), (STAMP, "some")):
        with pytest.raises(UsageError):
            parse_width(kind, text, "--width", "UTC")


@pytest.mark.parametrize(
    ("bounds", "months"),
    [
        (["2026-01-01", "2026-02-01", "2026-03-01", "2026-04-01"], 1),
        (["2024-01-01", "2025-01-01", "2026-01-01"], 12),
        (["2026-01-01", "2026-04-01", "2026-07-01"], 3),
        (["2026-02-01", "2026-03-01"], 1),
        (["2026-01-15", "2026-02-15", "2026-03-15"], 1),
        (["2026-01-05", "2026-02-02", "2026-03-02", "2026-03-30"], 0),
        (["2026-01-01", "2026-01-31", "2026-03-02"], 0),
        (["2026-01-01", "2026-01-08"], 0),
    ],
)
@pytest.mark.parametrize("kind", [STAMP, TierKind.DATE, TierKind.TIMESTAMP])
def test_the_calendar_is_seen_in_what_is_there(bounds: list[str], months: int, kind: TierKind) -> None:
    values = [at(text, kind) for text in bounds]
    pairs = list(pairwise(values))
    width = usual_width(kind, pairs, "UTC")
    assert width is not None
    assert width.months == months
    assert width.months or width.span == values[-1] - values[-2]


def test_a_calendar_of_another_time_zone_goes_on_in_it() -> None:
    """Midnight of the first day of a month in Berlin, before and after the change of clocks."""
    bounds = ["2026-01-01T00:00+01:00", "2026-02-01T00:00+01:00", "2026-03-01T00:00+01:00", "2026-04-01T00:00+02:00"]
    values = [at(text) for text in bounds]
    width = usual_width(STAMP, list(pairwise(values)), "Europe/Berlin")
    assert width == Width(months=1, zone="Europe/Berlin")
    assert width.after(STAMP, values[-1]) == at("2026-05-01T00:00+02:00")
    assert width.after(STAMP, at("2026-10-01T00:00+02:00")) == at("2026-11-01T00:00+01:00")
    # In another time zone no calendar fits, so only a fixed width is left.
    assert usual_width(STAMP, [(values[2], values[3])], "UTC") == Width(span=values[3] - values[2])


def test_a_zone_that_only_the_server_knows_is_none() -> None:
    values = [at("2026-01-01"), at("2026-02-01")]
    assert usual_width(STAMP, [(values[0], values[1])], "Nowhere/Else") == Width(months=1, zone="Nowhere/Else")


def test_the_first_partition_begins_with_its_month_or_year() -> None:
    assert shown(STAMP, Width(months=1).floor(STAMP, at("2026-05-17")) or 0) == "2026-05-01 00:00:00+00"
    assert shown(STAMP, Width(months=3).floor(STAMP, at("2026-05-17")) or 0) == "2026-04-01 00:00:00+00"
    assert shown(STAMP, Width(months=12).floor(STAMP, at("2026-05-17")) or 0) == "2026-01-01 00:00:00+00"
    assert Width(span=100).floor(TierKind.BIGINT, 250) == 200


def test_no_partition_reaches_beyond_the_years_that_can_be_written() -> None:
    assert Width(months=1).after(STAMP, at("9999-12-01")) is None


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2080, 1, 1)),  # noqa: DTZ001 - hypothesis draws naive ones
    st.integers(1, 24),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"]),
)
def test_partitions_of_a_calendar_leave_no_gap(moment: datetime, months: int, zone: str) -> None:
    """Each begins where the one before ends, at the same local time of the same day of a month."""
    width = Width(months=months, zone=zone)
    value = at(moment.isoformat())
    lo = width.floor(STAMP, value)
    assert lo is not None
    assert lo <= value
    for _ in range(30):
        hi = width.after(STAMP, lo)
        assert hi is not None
        assert hi > lo
        assert usual_width(STAMP, [(lo, hi)], zone) == width
        lo = hi


def test_a_gap_of_very_many_partitions_is_bridged_by_one() -> None:
    """Nobody has created any for a long time: up to a hundred are created; a larger gap is covered by one that reaches
    up to the newest key."""

    def wanted(newest: int) -> list[tuple[int, int]]:
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
        return wanted_partitions(Tier("at", TierKind.BIGINT), newest, attached, choices)

    assert wanted(5) == [(10, 20), (20, 30)]
    assert wanted(35) == [(10, 20), (20, 30), (30, 40), (40, 50), (50, 60)]
    assert len(wanted(1015)) == 103
    bridged = wanted(100_005)
    assert bridged[0] == (10, 100_000)
    assert bridged[1:] == [(100_000, 100_010), (100_010, 100_020), (100_020, 100_030)]
