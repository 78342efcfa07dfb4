"""Positions, numbers and durations that people type: what is none is refused, whatever `int` makes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.model import TierKind, format_lsn, parse_count, parse_lsn
from mirror_pump.ops.reads.time_travel import parse_when
from mirror_pump.rest_catalog.attachment_names import parse_prefix, parse_warehouse
from mirror_pump.runtime.durations import seconds_of
from mirror_pump.source.relations.lake_layout import is_present_layout
from mirror_pump.source.relations.tier_keys import parse_span
from mirror_pump.source.relations.widths import parse_width

_ARABIC = "\u0661"


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "1", "1/", "/1", "-1/1", "1/-1", "+1/1", "0x1/1", "1_0/1", "1 /1", " 1/1", "1/1 ", "1/1\n", "\n1/1"),
        *(f"{_ARABIC}/1", f"1/{_ARABIC}", "1/1/1", "123456789/1", "1/123456789", "g/1", "1/1\0", "\uff11/1"),
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a WAL position"):
        parse_lsn(text)
    with pytest.raises(UsageError):
        parse_when(text)
    with pytest.raises(UsageError):
        parse_warehouse(f"mirror@{text}..latest" if text else "mirror@x y")
    assert parse_prefix(f"mirror.at={text.replace('/', '-')}") is None


@pytest.mark.parametrize("text", ["0/0", "16/B374D848", "ffffffff/ffffffff", "0/00000001"])
def test_positions_are_read_in_both_cases(text: str) -> None:
    high, low = (int(part, 16) for part in text.split("/"))
    assert format_lsn(parse_lsn(text)) == f"{high:X}/{low:X}"


@pytest.mark.parametrize("text", ["", "-1", "+1", "1_0", " 1", "1\n", _ARABIC, "\u00b2", "1.0", "1e3", "1" * 19])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_count(text)


@pytest.mark.parametrize(
    "parse",
    [
        lambda number: seconds_of(f"{number}s", "--keep"),
        lambda number: seconds_of(number, "--keep"),
        lambda number: parse_span(TierKind.BIGINT, number, "--lag"),
        lambda number: parse_span(TierKind.DATE, f"{number} days", "--lag"),
        lambda number: parse_width(TierKind.DATE, f"{number} months", "--width", "UTC"),
    ],
)
@pytest.mark.parametrize("digits", [_ARABIC, "\u00b2", "\uff11"])
def test_digits_of_other_scripts_are_no_digits(parse: Callable[[str], object], digits: str) -> None:
    parse("3")
    with pytest.raises(UsageError):
        parse(digits)


def test_a_superscript_is_no_width() -> None:
    assert not is_present_layout("\u00b2", "truncate[2]")
