"""No file with a matching row is ever left out of a plan, and what is left out is not opened."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions.visitors import rewrite_not

from mirror_pump.lake.metadata import file_entries
from mirror_pump.lake.read_plan.plan import planned_files, read_plan
from mirror_pump.lake.storage import StorageOptions
from tests.support.random_lake import matches, random_predicate, random_table

STORAGE = StorageOptions(fsync=False)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**64))
def test_a_file_with_a_matching_row_is_planned(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    table = random_table(random, tmp_path)
    for _ in range(10):
        predicate = random_predicate(random)
        plan = read_plan(table.metadata, STORAGE, predicate)
        plain = rewrite_not(predicate)
        planned = {file.path: file for file in plan.files}
        for path, rows in table.rows.items():
            expected = [matches(plain, row) for row in rows]
            wider = [matches(plain, row, null_differs=True) for row in rows]
            assert path in planned or not any(expected + wider), (predicate, path, rows)
            if path in planned:
                residual = planned[path].residual
                assert [matches(residual, row) for row in rows] == expected, (predicate, residual, rows)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**64))
def test_plans_by_patterns_are_the_same(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    table = random_table(random, tmp_path)
    for _ in range(3):
        predicate = random_predicate(random)
        expected = list(map(repr, read_plan(table.metadata, STORAGE, predicate).files))
        with pytest.MonkeyPatch.context() as patch:
            for name, number in (("first_after", 1), ("next_after", 1), ("most", 16)):
                patch.setattr(file_entries.KnownPatterns, name, number)
            # The second time most entries are read by the patterns that were learnt from them.
            for _ in range(2):
                assert list(map(repr, read_plan(table.metadata, STORAGE, predicate).files)) == expected
        assert list(map(repr, planned_files(table.metadata, STORAGE, predicate))) == expected
