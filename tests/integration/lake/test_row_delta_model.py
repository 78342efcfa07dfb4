"""Random row deltas compared with a dict: segments, late copies, truncates, restarts, conversions, merges, rewrites by
others; in a table that is partitioned or not.

The result is read by DuckDB, and by pyiceberg if no equality delete is pending.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pump.engine.rewrite.conversion_plan import MOST_DELETES
from mirror_pump.engine.rewrite.merge_plan import MergeSizes
from mirror_pump.lake.commit.file_rewrite import FileRewrite, FileRewriteSuperseded
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import BackdatedFile, RowDelta
from mirror_pump.lake.document.snapshot_stats import live_rows, rows_are_exact
from mirror_pump.model import LakePartitioning
from mirror_pump.testing.lake import duckdb_connection
from tests.support.lake_tables import PendingRewrite, Rows, SmallTable, assert_divided, by_key

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KEYS = st.integers(0, 5)
"""Few keys, so that segments collide."""


class RewriteTiming(StrEnum):
    """Whether equality deletes that are pending before a commit are converted, and whether files are merged."""

    NO = "no"
    AT_ONCE = "at once"
    ACROSS = "across"
    """Computed before the commit, and landed after it. Refused if the commit removed files that it is based on."""
    SLOWLY = "slowly"
    """As `across`, but more commits and other rewrites land before."""


@dataclass(frozen=True)
class Commit:
    """A random commit: for each segment the keys written and the keys deleted without a new row; then the copied
    keys."""

    segments: list[tuple[set[int], set[int]]]
    copied: set[int] = field(default_factory=set)
    replace: bool = False
    reload: bool = False
    convert: RewriteTiming = RewriteTiming.NO
    merge: RewriteTiming = RewriteTiming.NO
    begin_rewrite: bool = False
    end_rewrite: bool = False


COMMITS = st.builds(
    Commit,
    segments=st.lists(st.tuples(st.sets(KEYS, max_size=3), st.sets(KEYS, max_size=2)), max_size=4),
    copied=st.sets(KEYS, max_size=3),
    replace=st.integers(0, 4).map(lambda drawn: drawn == 4),
    reload=st.booleans(),
    convert=st.sampled_from(RewriteTiming),
    merge=st.sampled_from(RewriteTiming),
    begin_rewrite=st.integers(0, 7).map(lambda drawn: drawn == 7),
    end_rewrite=st.booleans(),
)


class Model:
    """The expected rows. A copied row is as old as the table: any later change of its key hides it."""

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


SIZES = MergeSizes(fanout=2, own_positions=2)
"""Two files of a class suffice for a merge, and two deleted rows for a separate file, as examples are short."""


PARTITIONED = LakePartitioning.by(1, "truncate[2]")
"""Three partitions of the keys."""


@settings(max_examples=15)
@given(
    commits=st.lists(COMMITS, min_size=1, max_size=14),
    copying=st.booleans(),
    partitioning=st.sampled_from([None, PARTITIONED]),
    most_deletes=st.sampled_from([MOST_DELETES, 1]),
)
def test_any_sequence_of_row_deltas_reads_as_the_dict_says(
    duckdb: DuckDBPyConnection,
    commits: list[Commit],
    partitioning: LakePartitioning | None,
    most_deletes: int,
    *,
    copying: bool,
) -> None:
    """Nothing is converted while a table is copied. Once something was converted, no chunk of a copy lands any more."""
    with tempfile.TemporaryDirectory() as directory:
        table = SmallTable(
            f"{Path(directory).as_uri()}/t", sizes=SIZES, partitioning=partitioning, most_deletes=most_deletes
        )
        born_at = table.table.sequence_number
        model = Model()
        versions = itertools.count()
        waiting: dict[str, FileRewrite | None] = {"convert": None, "merge": None}
        rewrite: PendingRewrite | None = None
        for commit in commits:
            if commit.reload:
                table.reload()
            if not copying and commit.begin_rewrite and rewrite is None:
                rewrite = table.begin_rewrite(model.rows)
            if not copying and commit.convert is RewriteTiming.AT_ONCE:
                table.convert()
                assert table.table.equality_deletes == 0
            if not copying and commit.merge is RewriteTiming.AT_ONCE:
                table.merge()
            for job, when, compute in (
                ("convert", commit.convert, table.compute),
                ("merge", commit.merge, table.compute_merge),
            ):
                if not copying and when in (RewriteTiming.ACROSS, RewriteTiming.SLOWLY) and waiting[job] is None:
                    waiting[job] = compute()
            if commit.replace:
                model = Model()
                # As after a restarted copy: the start sequence number is below that of this commit's segments.
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
            # Each row of a table is copied once, whenever the copy lands.
            fresh: Rows = {key: f"c{next(versions)}" for key in sorted(commit.copied - set(model.copied)) if copying}
            backdated = tuple(BackdatedFile(file, born_at) for file in table.data_files(fresh))
            model.copied |= fresh
            table.commit(RowDelta(tuple(segments), backdated, EveryFile() if commit.replace else None))
            if rewrite is not None and commit.end_rewrite:
                table.end_rewrite(rewrite)
                rewrite = None
            for job, when in (("merge", commit.merge), ("convert", commit.convert)):
                if waiting[job] is not None and when is not RewriteTiming.SLOWLY:
                    with contextlib.suppress(FileRewriteSuperseded):
                        table.commit(RowDelta((), replaces=waiting[job]))
                    waiting[job] = None
        _check(table, model.rows, duckdb)
        if not copying:
            table.convert()
            _check(table, model.rows, duckdb)
            while table.merge() is not None:
                _check(table, model.rows, duckdb)
            assert table.table.equality_deletes == 0
            # Another engine's rewrite leaves position deletes of files that it has replaced, or removes such.
            rewritten = any(commit.begin_rewrite for commit in commits)
            assert rewritten or rows_are_exact(table.table.metadata, table.table.summary)


def _check(table: SmallTable, expected: Rows, duckdb: DuckDBPyConnection) -> None:
    location = table.table.metadata_location
    found = duckdb.execute(f"SELECT id, v FROM iceberg_scan('{location}')").fetchall()
    assert by_key(found) == expected
    if rows_are_exact(table.table.metadata, table.table.summary):
        assert live_rows(table.table.metadata, table.table.summary) == len(expected)
    if not table.table.equality_deletes:
        assert table.scanned() == expected
    assert_divided(table)
    assert table.table.data_files == sum(
        manifest.live_files for manifest in table.table.manifests if manifest.content == 0
    )
    assert table.table.delete_files == sum(
        manifest.live_files for manifest in table.table.manifests if manifest.content == 1
    )
