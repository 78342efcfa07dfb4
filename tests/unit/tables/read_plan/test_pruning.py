"""No file with a matching row is ever left out of a plan, and what is left out is not opened."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions.visitors import rewrite_not

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.read_plan.plan import planned_files, read_plan
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
def test_files_one_after_the_other_are_those_of_the_plan(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    table = random_table(random, tmp_path)
    for _ in range(3):
        predicate = random_predicate(random)
        expected = list(map(repr, read_plan(table.metadata, STORAGE, predicate).files))
        assert list(map(repr, planned_files(table.metadata, STORAGE, predicate))) == expected
