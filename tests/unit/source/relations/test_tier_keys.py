"""Lags and widths as users write them, and tier values as SQL and people read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.model import EVERYTHING_IN_HEAP, TierKind
from mirror_pump.source.relations.tier_keys import (
    END,
    duration_text,
    first_cut,
    literal,
    name_token,
    parse_span,
    shown,
    span_text,
)

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (TierKind.BIGINT, "1000000", 1_000_000),
        (TierKind.TIMESTAMPTZ, "90 days", 90 * 86400 * SECOND),
        (TierKind.TIMESTAMP, "1w 2d 3h 4min 5s", (9 * 86400 + 3 * 3600 + 4 * 60 + 5) * SECOND),
        (TierKind.TIMESTAMPTZ, "36h", 36 * 3600 * SECOND),
        (TierKind.DATE, "2 weeks", 14),
        (TierKind.DATE, "48 hours", 2),
        (TierKind.TIMESTAMP, "0 s", 0),
    ],
)
def test_spans_are_tier_values_and_come_back(kind: TierKind, text: str, value: int) -> None:
    assert parse_span(kind, text, "lag") == value
    assert parse_span(kind, span_text(kind, value), "lag") == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (TierKind.BIGINT, "90 days", "not a whole number"),
        (TierKind.BIGINT, "-1", "not a whole number"),
        (TierKind.TIMESTAMPTZ, "90", "not a duration"),
        (TierKind.TIMESTAMPTZ, "3 months", "no fixed length"),
        (TierKind.DATE, "1 year", "no fixed length"),
        (TierKind.DATE, "36 hours", "whole days"),
        (TierKind.TIMESTAMPTZ, "-1 day", "not a duration"),
        (TierKind.TIMESTAMPTZ, "9999999999 days", "out of range"),
        (TierKind.TIMESTAMPTZ, "", "not a duration"),
    ],
)
def test_other_spans_are_refused(kind: TierKind, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_span(kind, text, "lag")


def test_tier_values_in_sql_and_for_people() -> None:
    moment = 1_772_323_200 * SECOND + 1
    assert literal(TierKind.BIGINT, -5) == "'-5'::bigint"
    assert literal(TierKind.TIMESTAMPTZ, moment) == "timestamptz '2026-03-01 00:00:00.000001+00'"
    assert literal(TierKind.TIMESTAMP, -SECOND) == "timestamp '1969-12-31 23:59:59'"
    assert literal(TierKind.DATE, 20513) == "date '2026-03-01'"
    assert literal(TierKind.DATE, END) is None
    assert shown(TierKind.TIMESTAMP, EVERYTHING_IN_HEAP) == "-infinity"
    assert shown(TierKind.DATE, END) == "infinity"
    assert name_token(TierKind.DATE, 20513) == "20260301"
    assert name_token(TierKind.TIMESTAMPTZ, 1_772_323_200 * SECOND + 3600 * SECOND) == "20260301_0100"
    assert name_token(TierKind.BIGINT, -5) == "n5"


def test_the_first_cutline_is_a_value_that_every_client_can_write() -> None:
    year_one = -62_135_596_800 * SECOND
    assert first_cut(TierKind.TIMESTAMPTZ, 0) == year_one
    assert literal(TierKind.TIMESTAMPTZ, year_one) == "timestamptz '0001-01-01 00:00:00+00'"
    assert first_cut(TierKind.TIMESTAMPTZ, year_one - 1) == EVERYTHING_IN_HEAP, "the heap may hold an older row"
    assert first_cut(TierKind.DATE, 0) == -719_162
    assert first_cut(TierKind.BIGINT, 0) == EVERYTHING_IN_HEAP


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(days=90), "90 days"),
        (timedelta(hours=36, seconds=1), "1 day 12 hours 1 second"),
        (timedelta(0), "0 seconds"),
    ],
)
def test_durations_are_written_as_they_are_typed(duration: timedelta, text: str) -> None:
    assert duration_text(duration) == text
    assert timedelta(microseconds=parse_span(TierKind.TIMESTAMP, text, "duration")) == duration
