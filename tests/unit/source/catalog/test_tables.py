"""The JSON in which columns are stored."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from mirror_pump.model import Column
from mirror_pump.source.catalog.tables import columns_from_json, columns_to_json

_scalars = st.one_of(
    st.sampled_from([ColumnType(kind) for kind in Kind if kind not in (Kind.DECIMAL, Kind.LIST)]),
    st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).map(lambda scale: ColumnType(Kind.DECIMAL, precision, scale))
    ),
)
_columns = st.builds(
    Column,
    attnum=st.integers(1, 1600),
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=63),
    type_oid=st.integers(1, 2**32 - 1),
    type_modifier=st.integers(-1, 2**31 - 1),
    type_sql=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    type=_scalars | _scalars.map(lambda element: ColumnType(Kind.LIST, element=element)),
    field_id=st.integers(1, 2**31 - 1),
    not_null=st.booleans(),
)


@given(st.lists(_columns, max_size=4).map(tuple))
def test_columns_survive_json(columns: tuple[Column, ...]) -> None:
    assert columns_from_json(json.loads(json.dumps(columns_to_json(columns)))) == columns
