"""The cut-line in a column's own unit, for every kind of tier key."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import TableError
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.model import EVERYTHING_IN_HEAP, Tier, TierKind
from tests.support.pgoutput import mirrored

_NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 1, datetime.UTC)
_NOON_US = (20_455 * 24 + 12) * 3_600_000_000 + 1
"""_NOON in microseconds since 1970: 2026-01-02 is day 20,455."""


@pytest.mark.parametrize(
    ("kind", "values", "cut", "below"),
    [
        (Kind.INT, [-5, 0, 7], 7, [True, True, False]),
        (Kind.LONG, [-(2**63), 0, 2**63 - 1], 2**63 - 1, [True, True, False]),
        (Kind.LONG, [-(2**63), 0], -(2**63) + 1, [True, False]),
        (Kind.TIMESTAMP, [_NOON, _NOON + datetime.timedelta(microseconds=1)], _NOON_US + 1, [True, False]),
        (Kind.TIMESTAMPTZ, [_NOON, _NOON + datetime.timedelta(microseconds=1)], _NOON_US + 1, [True, False]),
        (Kind.DATE, [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1)], 0, [True, False]),
        (Kind.DATE, [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)], 20_455, [True, False]),
        (Kind.DATE, [datetime.date.min, datetime.date.max], 2**63 - 1, [True, True]),
    ],
)
def test_values_below_the_cutline(kind: Kind, values: list[object], cut: int, below: list[bool]) -> None:
    line = CutLine("at", 1, ColumnType(kind), cut)
    column = pa.chunked_array([pa.array(values, line.type.arrow)])
    assert line.below(column).to_pylist() == below
    assert line.all_above(column) is (True not in below)


def test_a_tier_key_that_is_mirrored_as_text_is_refused() -> None:
    table = replace(mirrored(7), tier=Tier("id", TierKind.BIGINT, cut=5))
    line = CutLine.of(table)
    assert line is not None
    assert (line.name, line.field_id, line.cut) == ("id", 1, 5)
    assert CutLine.of(table, cut=EVERYTHING_IN_HEAP) is None
    assert CutLine.of(replace(table, tier=None)) is None
    with pytest.raises(TableError, match=r"the tier key v of public\.t7 is mirrored as string"):
        CutLine.of(replace(table, tier=Tier("v", TierKind.BIGINT)), cut=0)
