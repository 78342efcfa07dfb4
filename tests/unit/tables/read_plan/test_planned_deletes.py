"""Whoever applies the deletes of a plan's files, by Iceberg's specification and nothing else, has the table's rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import parser
from pyiceberg.expressions.visitors import rewrite_not

from mirror_pump.lake.format.data_files import write_data_file, write_equality_deletes
from mirror_pump.lake.storage import local_path
from mirror_pump.model import LakePartitioning
from mirror_pump.tables.read_plan.plan import planned_files, read_plan
from mirror_pump.tables.read_plan.planned_files import PlannedFile
from mirror_pump.testing.lake import duckdb_connection
from tests.support.growing_table import SCHEMA, STORAGE, GrowingTable, rows_of
from tests.support.position_delete_files import write_position_deletes
from tests.support.random_lake import matches

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_Row = tuple[int, str, float | None]
_WIDTH = 3


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDBPyConnection]:
    with duckdb_connection() as connection:
        yield connection


class _KnownRows:
    """A table, and what its rows are."""

    def __init__(self, directory: Path, *, partitioned: bool) -> None:
        self._partitioned = partitioned
        self.table = GrowingTable(directory, LakePartitioning.by(1, f"truncate[{_WIDTH}]") if partitioned else None)
        self.live: dict[str, list[_Row | None]] = {}
        self._partitions: dict[str, tuple[int, ...]] = {}

    def insert(self, rows: list[_Row]) -> None:
        location = self.table.metadata.location
        for partition in sorted({self._partition(row[0]) for row in rows}):
            own = [row for row in rows if self._partition(row[0]) == partition]
            file = write_data_file(rows_of(own), SCHEMA, location, STORAGE, partition)
            self.live[file.path], self._partitions[file.path] = list(own), partition
            self.table.add(file)

    def delete_keys(self, keys: list[tuple[int, str]]) -> None:
        for partition in sorted({self._partition(key[0]) for key in keys}):
            own = [key for key in keys if self._partition(key[0]) == partition]
            named = pa.table([list(column) for column in zip(*own, strict=True)], schema=SCHEMA.key.arrow)
            self.table.add(write_equality_deletes(named, SCHEMA, self.table.metadata.location, STORAGE, partition))
            for path, rows in self.live.items():
                self.live[path] = [None if row is None or row[:2] in own else row for row in rows]

    def delete_positions(self, random: Random) -> None:
        """Rows of some files, which one delete file names if they are of one partition."""
        chosen = random.sample(sorted(self.live), random.randint(1, len(self.live)))
        for partition in sorted({self._partitions[path] for path in chosen}):
            hidden = {}
            for path in sorted(path for path in chosen if self._partitions[path] == partition):
                places = sorted(random.sample(range(len(self.live[path])), random.randint(1, len(self.live[path]))))
                hidden[path] = np.array(places, np.int64)
                for place in places:
                    self.live[path][place] = None
            self.table.add(write_position_deletes(hidden, self.table.metadata.location, STORAGE, partition))

    def _partition(self, number: int) -> tuple[int, ...]:
        return (number // _WIDTH * _WIDTH,) if self._partitioned else ()

    @property
    def rows(self) -> list[_Row]:
        return [row for rows in self.live.values() for row in rows if row is not None]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**64))
def test_a_plan_and_its_deletes_are_the_table(tmp_path: Path, duckdb: DuckDBPyConnection, seed: int) -> None:
    random = Random(seed)
    history = _KnownRows(tmp_path / str(seed), partitioned=random.random() < 0.5)
    for _ in range(random.randint(2, 7)):
        keys = [(random.randint(-1, 6), random.choice("ab")) for _ in range(random.randint(1, 6))]
        step = random.choice(("insert", "insert", "keys", "positions")) if history.live else "insert"
        if step == "insert":
            history.insert([(number, part, random.choice((None, 1.5, math.nan))) for number, part in keys])
        elif step == "keys":
            history.delete_keys(keys)
        else:
            history.delete_positions(random)
    table = history.table
    for text in (None, random.choice(("id > 2", "id = 3", "part = 'a' and id < 4", "not (id in (1, 2, 3))"))):
        predicate = parser.parse("true" if text is None else text)
        expression = rewrite_not(predicate)
        expected = _texts(
            row for row in history.rows if matches(expression, dict(zip(("id", "part", "v"), row, strict=True)))
        )
        planned = list(planned_files(table.metadata, STORAGE, predicate))
        assert list(map(repr, planned)) == list(map(repr, read_plan(table.metadata, STORAGE, predicate).files))
        left = [row for file in planned for row in _left(file)]
        assert _texts(row for row in left if matches(expression, dict(zip(("id", "part", "v"), row, strict=True)))) == (
            expected
        )
        assert _texts(tuple(row.values()) for row in table.scan(text).to_arrow(1).to_pylist()) == expected
    query = f"SELECT id, part, v FROM iceberg_scan('{table.store()}')"
    assert _texts(duckdb.execute(query).fetchall()) == _texts(history.rows)


def _left(file: PlannedFile) -> list[_Row]:
    """A file's rows without those that its deletes name."""
    hidden = {
        row["pos"]
        for delete in file.position_deletes
        for row in pq.read_table(str(local_path(delete.path))).to_pylist()
        if row["file_path"] == file.path
    }
    names = {1: "id", 2: "part"}
    deleted: set[tuple[object, ...]] = set()
    for delete in file.equality_deletes:
        assert delete.equality_ids == (1, 2)
        keys = pq.read_table(str(local_path(delete.path)))
        deleted |= {tuple(row[names[field]] for field in delete.equality_ids) for row in keys.to_pylist()}
    rows = [(row["id"], row["part"], row["v"]) for row in pq.read_table(str(local_path(file.path))).to_pylist()]
    return [row for place, row in enumerate(rows) if place not in hidden and row[:2] not in deleted]


def _texts(rows: Iterable[tuple[object, ...]]) -> list[str]:
    return sorted(map(repr, rows))
