"""The branch `cold`: every engine finds in the published snapshot, without a filter, exactly main's rows below the
cut-line."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table import StaticTable

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.archive_branch import ArchiveBranch, StagedArchive
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.replacement import FilesAbove
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.document.table_metadata import ARCHIVE_BRANCH
from mirror_pump.model import LakePartitioning
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_duckdb, read_spark
from tests.support.lake_tables import STORAGE, Rows, SmallTable, assert_divided, by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _line(cut: int) -> CutLine:
    return CutLine("id", 1, ColumnType(Kind.LONG), cut)


def _advance(small: SmallTable, branch: ArchiveBranch, line: CutLine | None, dsn: str = "") -> StagedArchive:
    """The published snapshot, staged and published again."""
    small.now_ms += 1000
    cold = branch.stage(small.table, line, small.now_ms)
    if dsn:
        with connect(dsn, autocommit=True) as connection:
            assert swap_pointer(connection, "public", "t", small.table.metadata_location, cold.new_location)
    small.table = cold.table
    return cold


def _seam(cold: StagedArchive) -> Rows:
    found = read_duckdb(cold.seam_location).to_pylist()
    return by_key([(row["id"], row["v"]) for row in found])


def _pyiceberg(location: str, snapshot_id: int | None = None) -> Rows:
    read = StaticTable.from_metadata(location).scan(snapshot_id=snapshot_id).to_arrow()
    return by_key(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))


@pytest.mark.parametrize(("seed", "transform"), [(1, None), (2, "truncate[25]")])
def test_the_archive_is_main_below_the_cutline_whatever_was_committed(
    tmp_path: Path, seed: int, transform: str | None
) -> None:
    chance = random.Random(seed)
    partitioning = None if transform is None else LakePartitioning.by(1, transform)
    small = SmallTable(tmp_path.as_uri(), partitioning=partitioning)
    branch = ArchiveBranch(STORAGE)
    model: Rows = {}
    cut = 0
    for number in range(30):
        match chance.randrange(6):
            case 0 | 1 | 2:
                keys = chance.sample(range(cut, cut + 100), 8)
                gone = keys[:4]
                rows: Rows = dict.fromkeys(keys[2:], f"{number}")
                small.commit(RowDelta((small.segment(rows, keys),)))
                model = {key: value for key, value in model.items() if key not in gone} | rows
            case 3:
                small.convert()
            case 4:
                small.merge()
            case 5:
                cut += chance.randrange(30)
                cold = _advance(small, branch, _line(cut))
                assert _seam(cold) == {key: value for key, value in model.items() if key < cut}, f"seed {seed}"
    small.convert()
    cold = _advance(small, branch, _line(cut))
    wanted = {key: value for key, value in model.items() if key < cut}
    assert wanted
    assert len(wanted) < len(model)
    assert _seam(cold) == _pyiceberg(cold.seam_location) == wanted
    assert _pyiceberg(cold.new_location, int(cold.snapshot_id)) == wanted
    assert small.duckdb() == small.scanned() == model
    assert_divided(small)
    small.commit(RowDelta((), replaces=FilesAbove(_line(cut))))
    assert small.duckdb() == small.scanned() == wanted
    assert_divided(small)


def test_spark_reads_the_archive_from_the_catalog_while_main_goes_on(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    with connect(database.dsn) as connection:
        migrate(connection)
    small = SmallTable(tmp_path.as_uri(), database.dsn)
    branch = ArchiveBranch(STORAGE)
    rows: Rows = dict.fromkeys(range(100), "a")
    small.commit(RowDelta((small.segment(rows),)))
    small.commit(RowDelta((small.segment(dict.fromkeys(range(30, 60), "b"), range(30, 60)),)))
    cold = _advance(small, branch, _line(50), database.dsn)
    small.commit(RowDelta((small.segment(dict.fromkeys(range(50, 120), "c"), range(50, 120)),)))
    session = lake_session(spark, database.dsn, tmp_path.as_uri())

    wanted: Rows = {key: "b" if key >= 30 else "a" for key in range(50)}
    assert by_key([(row[0], row[1]) for row in read_spark(session, f"public.t VERSION AS OF {cold.snapshot_id}")]) == (
        wanted
    )
    assert small.spark(session, ".branch_cold") == wanted
    assert small.spark(session) == small.duckdb() == {**wanted, **dict.fromkeys(range(50, 120), "c")}


def test_an_empty_archive_is_there_from_the_beginning(tmp_path: Path) -> None:
    small = SmallTable(tmp_path.as_uri())
    staged = LakeTable.create(small.table.schema, small.location + "/2", STORAGE, {}, small.now_ms, has_retention=True)
    start = staged.table.metadata.archive_snapshot
    assert start is not None
    assert start.snapshot_id == staged.snapshot_id
    small.table = staged.table
    for number in range(300):
        small.commit(RowDelta((small.segment({number: "x"}),)))
    held = small.table.metadata.archive_snapshot
    assert held is not None
    assert held.snapshot_id == staged.snapshot_id
    assert _pyiceberg(staged.new_location) == {}
    assert _seam(_advance(small, ArchiveBranch(STORAGE), None)) == {}


def test_history_keeps_snapshots_from_the_oldest_pinned_or_the_last_few_on(tmp_path: Path) -> None:
    small = SmallTable(tmp_path.as_uri())
    small.commit(RowDelta((small.segment(dict.fromkeys(range(50), "a")),)))
    branch = ArchiveBranch(STORAGE)
    made = [_advance(small, branch, _line(10)), _advance(small, branch, _line(11))]
    pinned = made[-1]
    keep = frozenset({int(pinned.snapshot_id)})

    def advance(cut: int, keep: frozenset[int]) -> None:
        small.now_ms += 1000
        made.append(branch.stage(small.table, _line(cut), small.now_ms, keep))
        small.table = made[-1].table
        small.commit(RowDelta((small.segment({1000 + cut: "b"}),)), keep)

    def kept() -> list[StagedArchive]:
        present = [snapshot.snapshot_id for snapshot in small.table.metadata.snapshots]
        # The same number of snapshots of main is still there: none was removed in their favour.
        assert len(present) - sum(commit.snapshot_id in present for commit in made) == len(made)
        assert small.table.metadata.refs[ARCHIVE_BRANCH].snapshot_id == made[-1].snapshot_id
        found = [commit for commit in made if commit.snapshot_id in present]
        assert small.table.metadata.seam_locations == {commit.seam_location for commit in found}
        return found

    for cut in range(12, 42):
        advance(cut, keep)
    assert kept() == made[1:]
    assert _seam(pinned) == dict.fromkeys(range(11), "a")
    advance(42, frozenset())
    assert kept() == made[-10:]
    for staged in made:
        directory, _, name = staged.seam_location.rpartition("/")
        assert directory == f"{small.table.location}/seam", "ClickHouse looks for a table's newest file below metadata/"
        assert re.fullmatch(r"\d{5,}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.metadata\.json", name)


def test_a_replacement_spares_the_rows_below_the_cutline(tmp_path: Path) -> None:
    small = SmallTable(tmp_path.as_uri())
    small.commit(RowDelta((small.segment(dict.fromkeys(range(100), "a")),)))
    small.commit(RowDelta((small.segment(dict.fromkeys(range(40, 60), "b"), range(40, 60)),)))
    small.commit(RowDelta((small.segment(dict.fromkeys(range(60, 100), "c"), range(60, 100)),)))
    branch = ArchiveBranch(STORAGE)
    before = _seam(_advance(small, branch, _line(50)))
    small.commit(RowDelta((small.segment({70: "d", 500: "d"}, [70, 500]),), replaces=FilesAbove(_line(50))))
    assert small.duckdb() == {**before, 70: "d", 500: "d"}
    assert _seam(_advance(small, branch, _line(50))) == before
    small.convert()
    assert small.scanned() == {**before, 70: "d", 500: "d"}
    assert _pyiceberg(_advance(small, branch, _line(50)).seam_location) == before


def test_deletes_from_the_cutline_on_are_not_in_the_archive(tmp_path: Path) -> None:
    """pyiceberg reads no table with equality deletes, so those that only concern rows of the heap must not be in the
    published snapshot."""
    small = SmallTable(tmp_path.as_uri())
    small.commit(RowDelta((small.segment(dict.fromkeys(range(100), "a")),)))
    small.commit(RowDelta((small.segment({60: "b"}, range(60, 70)),)))
    cold = _advance(small, ArchiveBranch(STORAGE), _line(50))
    assert _pyiceberg(cold.seam_location) == dict.fromkeys(range(50), "a")
    small.commit(RowDelta((small.segment({}, [49, 71]),)))
    assert _seam(_advance(small, ArchiveBranch(STORAGE), _line(50))) == dict.fromkeys(range(49), "a")


def test_deletes_of_rows_that_the_archive_lacks_are_not_in_it(tmp_path: Path) -> None:
    """Some queries of DuckDB fail on a table with more deletes than rows."""
    small = SmallTable(tmp_path.as_uri())
    small.commit(RowDelta((small.segment(dict.fromkeys(range(50), "a")),)))
    small.commit(RowDelta((small.segment(dict.fromkeys(range(100, 200), "a")),)))
    small.commit(RowDelta((small.segment({}, [7, 8]),)))
    small.convert()
    small.commit(RowDelta((small.segment({}, range(110, 200)),)))
    small.convert()
    cold = _advance(small, ArchiveBranch(STORAGE), _line(50))
    snapshot = cold.table.metadata.archive_snapshot
    assert snapshot is not None
    assert snapshot.summary.total(Total.RECORDS) == 50
    assert snapshot.summary.total(Total.POSITION_DELETES) == 2
    assert _seam(cold) == _pyiceberg(cold.seam_location) == {key: "a" for key in range(50) if key not in (7, 8)}
