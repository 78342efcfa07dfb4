"""Random row deltas against a dict: segments, late copies, truncates and restarts, read back by DuckDB."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pump.lake.commit import BornFile, RowDelta
from mirror_pump.testing.lake import duckdb_connection
from tests.integration.lake_support import Rows, SmallTable, by_key

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KEYS = st.integers(0, 5)
"""Few keys, so that segments collide."""


@dataclass(frozen=True)
class Commit:
    """One commit to draw: per segment the keys written and the keys deleted without a new row; then copied keys."""

    segments: list[tuple[set[int], set[int]]]
    copied: set[int] = field(default_factory=set)
    replace: bool = False
    reload: bool = False


COMMITS = st.builds(
    Commit,
    segments=st.lists(st.tuples(st.sets(KEYS, max_size=3), st.sets(KEYS, max_size=2)), max_size=4),
    copied=st.sets(KEYS, max_size=3),
    replace=st.integers(0, 4).map(lambda drawn: drawn == 4),
    reload=st.booleans(),
)


class Model:
    """The rows that must be there. A copied row is as old as the table: any later change of its key hides it."""

    def __init__(self) -> None:
        self.streamed: Rows = {}
        self.copied: Rows = {}
        self.touched: set[int] = set()
        """Keys that the stream has deleted or overwritten since the table was empty: copies of them are too old."""

    @property
    def rows(self) -> Rows:
        return {**{key: value for key, value in self.copied.items() if key not in self.touched}, **self.streamed}


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDBPyConnection]:
    """One connection for all examples: loading the extension takes longer than reading."""
    with duckdb_connection() as connection:
        yield connection


@settings(max_examples=60)
@given(commits=st.lists(COMMITS, min_size=1, max_size=14))
def test_any_sequence_of_row_deltas_reads_as_the_dict_says(duckdb: DuckDBPyConnection, commits: list[Commit]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table = SmallTable(f"{Path(directory).as_uri()}/t")
        born_at = table.table.sequence_number
        model = Model()
        versions = itertools.count()
        for commit in commits:
            if commit.reload:
                table.reload()
            if commit.replace:
                model = Model()
                # As after a restarted copy: what is born is born before this commit's segments.
                born_at = table.table.sequence_number
            segments = []
            for written, deleted in commit.segments:
                rows: Rows = {key: f"v{next(versions)}" for key in sorted(written)}
                keys = written | deleted
                segments.append(table.segment(rows, sorted(keys)))
                model.touched |= keys
                for key in keys:
                    model.streamed.pop(key, None)
                model.streamed |= rows
            # A table's rows are copied once each, whenever that lands.
            fresh: Rows = {key: f"c{next(versions)}" for key in sorted(commit.copied - set(model.copied))}
            born = (BornFile(table.data(fresh), born_at),) if fresh else ()
            model.copied |= fresh
            table.commit(RowDelta(tuple(segments), born, commit.replace))
        location = table.table.metadata_location
        found = duckdb.execute(f"SELECT id, v FROM iceberg_scan('{location}')").fetchall()
        assert by_key(found) == model.rows
        assert table.table.data_files == sum(one.live_files for one in table.table.manifests if one.content == 0)
        assert table.table.delete_files == sum(one.live_files for one in table.table.manifests if one.content == 1)
