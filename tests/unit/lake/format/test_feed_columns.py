"""Columns of a feed: what the program calls its own never meets a column of the table, whatever that is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from mirror_pump.column_names import folded
from mirror_pump.lake.format.feed_schema import FEED_COLUMNS, feed_schema_of, table_fields
from mirror_pump.lake.format.raw_text_columns import with_raw_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import FeedMode

_DATE = ColumnType(Kind.DATE)
_STEMS = st.sampled_from(["_lsn", "_Old", "n", "\u0130d", "\u017f"])
_TAILS = st.sampled_from(["", "__raw", "__column", "_", "__raw_", "__column__raw"])
_NAMES = st.tuples(_STEMS, _TAILS).map("".join)


def schema_of(*names: str) -> LakeSchema:
    fields = tuple(LakeField(number, name, _DATE, required=False) for number, name in enumerate(names, 1))
    return LakeSchema(0, fields, ())


def assert_apart(schema: LakeSchema) -> None:
    for fields in (schema.fields, *(field.children for field in schema.fields)):
        names = [folded(field.name) for field in fields]
        assert len(set(names)) == len(names), names


@given(st.lists(_NAMES, unique_by=folded, max_size=8))
def test_no_two_names_meet(names: list[str]) -> None:
    schema, ids = schema_of(*names), range(1, len(names) + 1)
    assert_apart(with_raw_text(schema, ids))
    feed = feed_schema_of(schema, FeedMode.ROWS, ids, ids)
    assert_apart(feed)
    called = {field.field_id: field.name for field in table_fields(feed)}
    for number, name in enumerate(names, 1):
        assert called[number] == name or folded(name) in FEED_COLUMNS


@pytest.mark.parametrize(
    ("names", "called"),
    [
        (["_lsn"], ["_lsn__column"]),
        (["_LSN", "_lsn__column"], ["_LSN__column_", "_lsn__column"]),
        (["a", "_xid"], ["a", "_xid__column"]),
    ],
)
def test_names(names: list[str], called: list[str]) -> None:
    feed = feed_schema_of(schema_of(*names), FeedMode.KEYS)
    assert [field.name for field in table_fields(feed)] == called
