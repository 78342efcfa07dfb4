"""A scan of a random table has the rows that match, one by one, through all four passes that leave something out."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions.visitors import rewrite_not

from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from tests.support.random_lake import matches, random_predicate, random_table

STORAGE = StorageOptions(fsync=False)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**64))
def test_a_scan_has_the_rows_that_match(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    table = random_table(random, tmp_path)
    for _ in range(4):
        predicate = random_predicate(random)
        expression = rewrite_not(predicate)
        expected = [row for rows in table.rows.values() for row in rows if matches(expression, row)]
        found = Scan(read_plan(table.metadata, STORAGE, predicate)).to_arrow(1)
        assert sorted(map(repr, _plain_rows(found))) == sorted(map(repr, expected)), predicate


def _plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """With dates and times as integers."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = plain(column.combine_chunks())
        if pa.types.is_temporal(values.type):
            values = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        columns[name] = values
    rows: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return rows
