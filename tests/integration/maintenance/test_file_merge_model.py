"""Merges among all other operations, compared with a dict: what matters lies between planning and landing a merge.

The result is read by DuckDB, and by pyiceberg if no equality delete is pending.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pump.engine.rewrite.merge_plan import MergeSizes
from mirror_pump.lake.commit.file_rewrite import FileRewrite, FileRewriteSuperseded
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import RowDelta
from mirror_pump.lake.document.snapshot_stats import live_rows
from mirror_pump.testing.lake import duckdb_connection
from tests.support.lake_tables import PendingRewrite, Rows, SmallTable, by_key

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class LakeAction(StrEnum):
    """The next operation."""

    WRITE = "write"
    """A commit of one segment that upserts some keys and deletes some."""
    TWICE = "twice"
    """The same with two segments, the first of which only deletes."""
    THEN_DELETE = "then delete"
    """With two segments, the first of which only inserts, and so keeps the other's deletes from being dropped."""
    INSERT = "insert"
    """A commit with new keys only: no delete."""
    HIDE = "hide"
    """A commit that deletes rows by position, like one that has a key index."""
    CONVERT = "convert"
    BEGIN_CONVERSION = "begin conversion"
    END_CONVERSION = "end conversion"
    BEGIN_MERGE = "begin merge"
    END_MERGE = "end merge"
    BEGIN_REWRITE = "begin rewrite"
    END_REWRITE = "end rewrite"
    TRUNCATE = "truncate"
    RELOAD = "reload"


WEIGHTS = {
    LakeAction.INSERT: 5,
    LakeAction.THEN_DELETE: 2,
    LakeAction.WRITE: 3,
    LakeAction.HIDE: 4,
    LakeAction.CONVERT: 3,
    LakeAction.BEGIN_MERGE: 4,
    LakeAction.END_MERGE: 3,
}
"""Each of the other operations occurs once."""
ACTS = st.lists(
    st.tuples(
        st.sampled_from([act for act in LakeAction for _ in range(WEIGHTS.get(act, 1))]),
        st.sets(st.integers(0, 9), min_size=1, max_size=3),
        st.sets(st.integers(0, 9), max_size=2),
    ),
    min_size=15,
    max_size=40,
)


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDBPyConnection]:
    """One connection for all examples: loading the extension takes longer than reading."""
    with duckdb_connection() as connection:
        yield connection


SIZES = MergeSizes(fanout=2, own_positions=2)
"""Two files of a class suffice for a merge, and two deleted rows for a separate file, as examples are short."""


class Player:
    """A table, its expected content, and what is under way."""

    def __init__(self, location: str) -> None:
        self.table = SmallTable(location, sizes=SIZES)
        self.rows: Rows = {}
        self.merge: FileRewrite | None = None
        self.convert: FileRewrite | None = None
        self.rewrite: PendingRewrite | None = None
        self.rewritten = False
        self._versions = itertools.count()

    def play(self, act: LakeAction, keys: set[int], gone: set[int]) -> None:
        table = self.table
        match act:
            case LakeAction.WRITE | LakeAction.TWICE:
                new: Rows = {key: f"v{next(self._versions)}" for key in sorted(keys)}
                segments = [table.segment(new, sorted(keys | gone))]
                if act is LakeAction.TWICE:
                    segments.insert(0, table.segment({}, sorted(gone | keys)))
                table.commit(RowDelta(tuple(segments)))
                self.rows = {key: row for key, row in self.rows.items() if key not in gone} | new
            case LakeAction.INSERT | LakeAction.THEN_DELETE:
                fresh: Rows = {key: f"v{next(self._versions)}" for key in sorted(keys - set(self.rows))}
                segments = [table.segment(fresh)] if fresh else []
                self.rows |= fresh
                if act is LakeAction.THEN_DELETE and gone:
                    segments.append(table.segment({}, sorted(gone)))
                    self.rows = {key: row for key, row in self.rows.items() if key not in gone}
                if segments:
                    table.commit(RowDelta(tuple(segments)))
            case LakeAction.HIDE:
                self._hide(keys)
            case LakeAction.CONVERT:
                table.convert()
                assert table.table.equality_deletes == 0
            case LakeAction.BEGIN_CONVERSION:
                self.convert = self.convert or table.compute()
            case LakeAction.BEGIN_MERGE:
                self.merge = self.merge or table.compute_merge()
            case LakeAction.END_CONVERSION:
                self._land(self.convert)
                self.convert = None
            case LakeAction.END_MERGE:
                self._land(self.merge)
                self.merge = None
            case LakeAction.BEGIN_REWRITE:
                self.rewrite = self.rewrite or table.begin_rewrite(dict(self.rows))
            case LakeAction.END_REWRITE:
                if self.rewrite is not None and table.end_rewrite(self.rewrite):
                    self.rewritten = True
                self.rewrite = None
            case LakeAction.TRUNCATE:
                table.commit(RowDelta((), replaces=EveryFile()))
                self.rows = {}
            case LakeAction.RELOAD:
                table.reload()

    def _land(self, file_rewrite: FileRewrite | None) -> None:
        if file_rewrite is not None:
            with contextlib.suppress(FileRewriteSuperseded):
                self.table.commit(RowDelta((), replaces=file_rewrite))

    def _hide(self, keys: set[int]) -> None:
        """Deletes the live rows of these keys by position. The positions come from a conversion that is discarded."""
        self.table.convert()
        before = self.table.table
        self.table.commit(RowDelta((self.table.segment({}, sorted(keys)),)))
        found = self.table.compute()
        self.table.table = before
        for key in keys:
            self.rows.pop(key, None)
        if found is not None and found.hidden:
            self.table.commit(RowDelta((), hidden=found.hidden))


def check(player: Player, duckdb: DuckDBPyConnection) -> None:
    location = player.table.table.metadata_location
    found = duckdb.execute(f"SELECT id, v FROM iceberg_scan('{location}')").fetchall()
    assert by_key(found) == player.rows
    if not player.table.table.equality_deletes:
        assert player.table.scanned() == player.rows
        if not player.rewritten:
            # A rewrite leaves position deletes of files that it has replaced.
            assert live_rows(player.table.table.metadata, player.table.table.summary) == len(player.rows)


@settings(max_examples=15)
@given(acts=ACTS)
def test_no_row_changes_whatever_comes_between(
    duckdb: DuckDBPyConnection, acts: list[tuple[LakeAction, set[int], set[int]]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        player = Player(f"{Path(directory).as_uri()}/t")
        for act, keys, gone in acts:
            player.play(act, keys, gone)
            if act in (LakeAction.END_MERGE, LakeAction.END_REWRITE):
                check(player, duckdb)
        check(player, duckdb)
        player.table.convert()
        while player.table.merge() is not None:
            check(player, duckdb)
        check(player, duckdb)
