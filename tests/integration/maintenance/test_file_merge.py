"""Merges as every engine reads them: one file replaces many, and no row changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from py4j.protocol import Py4JJavaError

from mirror_pump.engine.rewrite.merge_plan import MergeSizes
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import BackdatedFile, RowDelta, SegmentFiles
from mirror_pump.lake.document.snapshot_stats import live_rows
from mirror_pump.lake.storage import write_bytes
from mirror_pump.testing.lake import read_duckdb
from tests.support.lake_tables import STORAGE, Rows, SmallTable, by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(table: SmallTable) -> Rows:
    """Ten small files with keys in several versions, all of whose deletes are converted to positions."""
    expected: Rows = {}
    for number in range(10):
        rows: Rows = {number * 10: f"a{number}", number * 10 + 1: f"b{number}", 7: f"c{number}"}
        gone = [(number - 1) * 10 + 1] if number % 2 else []
        table.commit(RowDelta((table.segment(rows, [7, *gone]),)))
        expected |= rows
        for key in gone:
            del expected[key]
    table.convert()
    return expected


def test_every_engine_reads_the_same_before_and_after(table: SmallTable, lake: SparkSession) -> None:
    expected = fill(table)
    before = table.table
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected
    assert (before.data_files, before.records) == (10, 30)

    assert table.merge() is not None

    assert table.duckdb() == table.spark(lake) == table.scanned() == expected
    after = table.table
    assert (after.data_files, after.records) == (1, len(expected)), "what was dead is not written again"
    counted = table.summary
    assert counted["operation"] == "replace"
    assert (counted["added-data-files"], counted["deleted-data-files"]) == ("1", "10")
    assert (counted["added-records"], counted["deleted-records"]) == (str(len(expected)), "30")
    assert counted["total-records"] == str(len(expected))
    assert after.sequence_number == before.sequence_number + 1
    (entry,) = [entry for entry in table.entries() if entry.data_file.content == 0]
    assert entry.sequence_number == before.sequence_number - 1, "its sources' highest number, not the snapshot's"
    assert table.merge() is None
    # Time travel to the snapshot before.
    assert table.spark(lake, f" VERSION AS OF {before.snapshot_id}") == expected
    assert table.duckdb(f", snapshot_from_id => {before.snapshot_id}::UBIGINT") == expected
    status = lake.sql("SELECT status, count(*) FROM lake.public.t.entries GROUP BY 1 ORDER BY 1").collect()
    assert dict(tuple(row) for row in status)[2] >= 10, "removed files are named as deleted"
    # The stream continues, and its deletes apply to the merged file.
    table.commit(RowDelta((table.segment({7: "later"}, [7, 20]),)))
    expected |= {7: "later"}
    del expected[20]
    assert table.duckdb() == table.spark(lake) == expected
    table.convert()
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected


def test_deletes_by_position_that_come_between_follow_their_rows(table: SmallTable, lake: SparkSession) -> None:
    """Some come from a conversion, some from a commit that knew the positions itself."""
    expected = fill(table)
    file_rewrite = table.compute_merge()
    assert file_rewrite is not None
    table.commit(RowDelta((table.segment({7: "new", 10: "new"}, [7, 10, 0, 90]),)))
    table.convert()
    table.commit(RowDelta((table.segment({}, [30]),)))
    table.convert()
    # An equality delete that is pending when the merge lands, and one that lands later.
    table.commit(RowDelta((table.segment({50: "x"}, [50]),)))
    staged = table.commit(RowDelta((), replaces=file_rewrite))
    table.commit(RowDelta((table.segment({60: "y"}, [60]),)))
    expected |= {7: "new", 10: "new", 50: "x", 60: "y"}
    for key in (0, 90, 30):
        del expected[key]
    assert table.duckdb() == table.spark(lake) == expected
    counted = dict(staged.table.summary.entries)
    assert counted["operation"] == "overwrite", "it adds a delete file, which other engines have to look at"
    assert counted["added-position-deletes"] == "5"
    merged = file_rewrite.merged[0]
    assert merged.path is not None
    (moved,) = [
        entry for entry in table.entries() if entry.snapshot_id == staged.snapshot_id and entry.data_file.content == 1
    ]
    assert moved.data_file.file_path in staged.files, "garbage, if the publish fails"
    table.convert()
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected


def test_a_merge_goes_alone(file_table: SmallTable) -> None:
    fill(file_table)
    file_rewrite = file_table.compute_merge()
    with pytest.raises(ValueError, match="alone"):
        file_table.table.stage(RowDelta((file_table.segment({1: "x"}),), replaces=file_rewrite), file_table.now_ms)


def test_a_truncate_between_throws_the_merge_away(file_table: SmallTable) -> None:
    fill(file_table)
    file_rewrite = file_table.compute_merge()
    file_table.commit(RowDelta((file_table.segment({1: "new"}),), replaces=EveryFile()))
    with pytest.raises(FileRewriteSuperseded, match="not part of the table any more"):
        file_table.table.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)
    assert file_table.duckdb() == {1: "new"}


def test_a_merge_is_published_once(file_table: SmallTable) -> None:
    expected = fill(file_table)
    file_rewrite = file_table.compute_merge()
    file_table.commit(RowDelta((), replaces=file_rewrite))
    with pytest.raises(FileRewriteSuperseded):
        file_table.table.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)
    assert file_table.scanned() == expected


def test_a_copied_file_that_lands_between_throws_the_merge_away(file_table: SmallTable) -> None:
    s0 = file_table.table.sequence_number
    fill(file_table)
    file_rewrite = file_table.compute_merge()
    file_table.commit(RowDelta((), backdated=(BackdatedFile(file_table.data({100: "copied"}), s0),)))
    with pytest.raises(FileRewriteSuperseded, match="has come since"):
        file_table.table.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)


def test_deletes_that_are_taken_back_throw_the_merge_away(file_table: SmallTable) -> None:
    """As when another engine rolls the table back to an older snapshot."""
    for number in range(8):
        file_table.commit(RowDelta((file_table.segment({number: "a"}),)))
    before = file_table.table
    file_table.commit(RowDelta((file_table.segment({}, [3]),)))
    file_table.convert()
    file_rewrite = file_table.compute_merge()
    with pytest.raises(FileRewriteSuperseded, match="are back"):
        before.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)


def test_a_foreign_rewrite_between_throws_the_merge_away(table: SmallTable, lake: SparkSession) -> None:
    expected = fill(table)
    file_rewrite = table.compute_merge()
    lake.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    table.reload()
    with pytest.raises(FileRewriteSuperseded):
        table.table.stage(RowDelta((), replaces=file_rewrite), table.now_ms)
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected


@pytest.mark.further
def test_files_that_spark_wrote_are_merged_too(table: SmallTable, lake: SparkSession) -> None:
    expected: Rows = {}
    for key in range(7):
        lake.sql(f"INSERT INTO lake.public.t VALUES ({key}, 'by Spark'), ({key + 10}, NULL)")
        expected |= {key: "by Spark", key + 10: None}
    table.reload()
    table.commit(RowDelta((table.segment({3: "later"}, [3, 14]),)))
    table.convert()
    table.merge()
    expected |= {3: "later"}
    del expected[14]
    assert (table.table.data_files, table.table.records) == (1, len(expected))
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected


def begin_rewrite(lake: SparkSession) -> tuple[Any, Any, Any, Any]:
    """Spark's rewrite of all data files, planned and written, but not committed: table, snapshot, replaced, added."""
    jvm = lake.sparkContext._jvm
    assert jvm is not None
    iceberg = jvm.org.apache.iceberg
    # Java calls look up their catalogs in the thread's active session.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(lake._jsparkSession)
    began = iceberg.spark.Spark3Util.loadIcebergTable(lake._jsparkSession, "lake.public.t")
    replaced, added = jvm.java.util.HashSet(), jvm.java.util.HashSet()
    for task in list(began.newScan().planFiles().iterator()):
        replaced.add(task.file())
        copy = iceberg.DataFiles.builder(began.spec()).copy(task.file())
        added.add(copy.withPath(f"{task.file().location()}-2").build())
    return began, began.currentSnapshot(), replaced, added


@pytest.mark.further
def test_a_stream_of_appends_passes_over_merges(table: SmallTable, lake: SparkSession, tmp_path: Path) -> None:
    """Spark's structured streaming fails on a snapshot that overwrites. A merge of rows without deletes is no
    overwrite."""
    found = tmp_path / "found"

    def read() -> Rows:
        stream = lake.readStream.format("iceberg").load("lake.public.t").writeStream.format("parquet")
        options = stream.option("checkpointLocation", str(tmp_path / "progress")).option("path", str(found))
        options.trigger(availableNow=True).start().awaitTermination()
        return by_key([(row["id"], row["v"]) for row in lake.read.parquet(str(found)).collect()])

    expected: Rows = {}
    for key in range(10):
        table.commit(RowDelta((table.segment({key: "a"}),)))
        expected |= {key: "a"}
        if key == 4:
            assert read() == expected
    assert table.merge() is not None
    table.commit(RowDelta((table.segment({10: "b"}),)))
    assert read() == expected | {10: "b"}


@pytest.mark.parametrize("deletes_between", [False, True])
def test_a_rewrite_that_began_before_a_merge_cannot_land_after_it(
    table: SmallTable, lake: SparkSession, deletes_between: bool
) -> None:
    """Whatever the operation of the merge's snapshot: the files that the rewrite would replace no longer exist."""
    expected = fill(table)
    began, start, replaced, added = begin_rewrite(lake)
    file_rewrite = table.compute_merge()
    if deletes_between:
        table.commit(RowDelta((table.segment({}, [10]),)))
        del expected[10]
    table.commit(RowDelta((), replaces=file_rewrite))
    rewrite = began.newRewrite().validateFromSnapshot(start.snapshotId())
    rewrite.rewriteFiles(replaced, added, start.sequenceNumber())
    with pytest.raises(Py4JJavaError, match="Missing required files to delete"):
        rewrite.commit()
    table.reload()
    assert table.duckdb() == table.spark(lake) == expected


def test_placeholder_files_go_when_their_deletes_are_converted(file_table: SmallTable) -> None:
    """Placeholder files keep a delete from being dropped while it is pending. So do data files of commits that
    delete."""
    file_table.commit(RowDelta((file_table.segment(dict.fromkeys(range(20), "a")),)))
    for key in range(9):
        file_table.commit(RowDelta((file_table.segment({}, [key]),)))
    table = file_table.table
    assert table.data_files == 10
    assert file_table.merge() is None, "a delete is pending between any two of them"
    file_table.convert()
    file_table.merge()
    assert file_table.table.data_files == 1
    # Younger files may be merged while an older delete is pending, and older files while a younger delete is.
    file_table.commit(RowDelta((file_table.segment({}, [15]),)))
    for key in range(100, 108):
        file_table.commit(RowDelta((file_table.segment({key: "b"}),)))
    file_table.commit(RowDelta((file_table.segment({}, [16]),)))
    assert file_table.merge() is not None
    assert file_table.table.equality_deletes == 2
    live = file_table.table.live_data_files()
    for delete in file_table.table.live_equality_deletes():
        assert any(file.sequence_number == delete.sequence_number for file in live), (
            "its placeholder file is still there"
        )
    expected: Rows = {**dict.fromkeys(range(9, 20), "a"), **dict.fromkeys(range(100, 108), "b")}
    del expected[15], expected[16]
    assert file_table.duckdb() == expected
    file_table.convert()
    assert file_table.duckdb() == file_table.scanned() == expected


def test_all_rows_dead_leaves_no_file(file_table: SmallTable) -> None:
    for key in range(8):
        file_table.commit(RowDelta((file_table.segment({key: "a"}),)))
    file_table.commit(RowDelta((file_table.segment({}, list(range(8))),)))
    file_table.convert()
    file_table.merge()
    assert file_table.table.data_files == 0
    assert file_table.duckdb() == file_table.scanned() == {}
    assert file_table.summary["operation"] == "replace"
    file_table.commit(RowDelta((file_table.segment({1: "b"}, [1]),)))
    assert file_table.duckdb() == {1: "b"}


def test_position_deletes_are_merged_without_any_equality_delete(table: SmallTable, lake: SparkSession) -> None:
    """They are merged as they accumulate, also if no equality delete is pending. Positions in removed files are
    dropped."""
    rows: Rows = dict.fromkeys(range(400), "old")
    first = table.data(rows)
    table.commit(RowDelta((SegmentFiles((first,), ()),)))
    for key in range(8):
        table.commit(RowDelta((table.segment({}, [key * 3]),)))
        table.convert()
        del rows[key * 3]
    assert table.table.delete_files == 8
    assert table.table.equality_deletes == 0
    table.merge(target_bytes=0)
    assert table.table.delete_files == 1
    assert table.summary["operation"] == "delete", "it adds a delete file, which other engines have to look at"
    assert table.duckdb() == table.spark(lake) == table.scanned() == rows
    # All of them refer to one data file, which a merge then replaces.
    table.merge()
    for key in range(500, 508):
        table.commit(RowDelta((table.segment({key: "new"}),)))
        rows |= {key: "new"}
    table.merge()
    assert table.duckdb() == table.spark(lake) == table.scanned() == rows


def delete_some(table: SmallTable, rows: Rows, *, per_commit: int) -> None:
    """A file of 400 rows, and eight commits that each delete some of its rows by position."""
    rows |= dict.fromkeys(range(400), "old")
    table.commit(RowDelta((table.segment(rows),)))
    for number in range(8):
        keys = [10 * number + place for place in range(per_commit)]
        table.commit(RowDelta((table.segment({}, keys),)))
        table.convert()
        for key in keys:
            del rows[key]


def test_a_file_with_many_deleted_rows_is_rewritten(table: SmallTable, lake: SparkSession) -> None:
    """It is rewritten by itself. Rows that are deleted meanwhile are deleted in the new file."""
    table.sizes = MergeSizes(own_positions=20)
    rows: Rows = {}
    delete_some(table, rows, per_commit=5)
    before = table.table
    (old,) = [file for file in before.live_data_files() if file.records]
    assert old.records == 400
    file_rewrite = table.compute_rewrite()
    assert file_rewrite is not None
    table.commit(RowDelta((table.segment({399: "new"}, [399, 200]),)))
    table.convert()
    rows |= {399: "new"}
    del rows[200]
    table.commit(RowDelta((), replaces=file_rewrite))
    new = max(table.table.live_data_files(), key=lambda file: file.records)
    assert (new.records, new.sequence_number) == (360, old.sequence_number)
    assert table.duckdb() == table.spark(lake) == table.scanned() == rows
    assert table.spark(lake, f" VERSION AS OF {before.snapshot_id}") == {**rows, 399: "old", 200: "old"}
    while table.merge() is not None:
        assert table.duckdb() == table.scanned() == rows
    assert live_rows(table.table.metadata, table.table.summary) == len(rows)


def test_a_file_with_few_dead_rows_is_left_alone(file_table: SmallTable) -> None:
    file_table.sizes = MergeSizes(own_positions=20)
    rows: Rows = {}
    delete_some(file_table, rows, per_commit=4)
    file_table.merge(target_bytes=1)
    assert file_table.table.delete_files == 1
    assert file_table.merge(target_bytes=1) is None
    assert file_table.merge(target_bytes=0) is None
    assert file_table.scanned() == rows


def test_a_file_with_many_deleted_rows_does_not_wait_for_small_ones(file_table: SmallTable) -> None:
    file_table.sizes = MergeSizes(own_positions=20)
    rows: Rows = {}
    delete_some(file_table, rows, per_commit=5)
    for key in range(500, 508):
        file_table.commit(RowDelta((file_table.segment({key: "small"}),)))
        rows |= {key: "small"}
    rewrite = file_table.compute_rewrite()
    small = file_table.compute_merge(file_table.table.live_data_files()[0].size_bytes + 500)
    assert rewrite is not None
    assert small is not None
    assert [len(merge.sources) for merge in rewrite.merged] == [1]
    assert [len(merge.sources) > 1 for merge in small.merged] == [True]
    assert not {*rewrite.merged[0].sources} & {*small.merged[0].sources}
    file_table.commit(RowDelta((), replaces=small))
    again = file_table.compute_rewrite()
    assert again is not None
    file_table.commit(RowDelta((), replaces=again))
    assert file_table.table.records == len(rows)
    assert file_table.duckdb() == file_table.scanned() == rows


def test_a_file_with_many_deleted_rows_stays_while_a_delete_of_its_number_is_pending(file_table: SmallTable) -> None:
    """The file keeps Iceberg from dropping that delete, and might disappear with its last live row."""
    file_table.sizes = MergeSizes(own_positions=1)
    file_table.commit(RowDelta((file_table.segment({1: "a", 2: "a"}),)))
    file_table.commit(RowDelta((file_table.segment({3: "b"}, [1]),)))
    number = file_table.table.sequence_number
    # The younger file's only row is deleted by position, while the delete with its sequence number is pending.
    (young,) = [file for file in file_table.table.live_data_files() if file.sequence_number == number]
    file_table.commit(RowDelta((), hidden={young.path: np.array([0])}))
    assert file_table.merge() is None
    assert file_table.duckdb() == {2: "a"}
    file_table.convert()
    while file_table.merge() is not None:
        assert file_table.duckdb() == file_table.scanned() == {2: "a"}
    assert [file.records for file in file_table.table.live_data_files()] == [1]


def test_deletes_about_files_that_others_have_rewritten_go(table: SmallTable, lake: SparkSession) -> None:
    table.sizes = MergeSizes(own_positions=20)
    rows: Rows = {}
    delete_some(table, rows, per_commit=4)
    table.merge(target_bytes=1)
    lake.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    table.reload()
    for key in range(500, 508):
        table.commit(RowDelta((table.segment({key: "new"}),)))
        rows |= {key: "new"}
    table.merge()
    assert table.table.delete_files == 0
    assert table.duckdb() == table.spark(lake) == table.scanned() == rows


def crossed(table: SmallTable) -> int:
    """A query on which DuckDB fails if it computes a negative number of rows."""
    location = table.table.metadata_location
    query = f"SELECT count(*) FROM iceberg_scan('{location}') a, (SELECT max(id) FROM iceberg_scan('{location}')) b"
    return int(read_duckdb(location, query).column(0)[0].as_py())


@pytest.mark.further
def test_no_more_rows_stay_deleted_than_there_are(file_table: SmallTable) -> None:
    """A small table, all of whose rows change repeatedly."""
    chance = random.Random(4)
    rows: Rows = dict.fromkeys(range(40), "old")
    file_table.commit(RowDelta((file_table.segment(rows),)))
    merges = 0
    for number in range(100):
        keys = chance.sample(sorted(rows), 12)
        rows |= dict.fromkeys(keys, f"v{number}")
        file_table.commit(RowDelta((file_table.segment(dict.fromkeys(keys, f"v{number}"), keys),)))
        file_table.convert()
        if file_table.merge() is not None:
            merges += 1
            assert file_table.table.position_deletes <= file_table.table.records
    assert merges > 10
    assert crossed(file_table) == len(rows)
    assert file_table.duckdb() == file_table.scanned() == rows


def test_deletes_that_others_leave_behind_go_at_once(table: SmallTable, lake: SparkSession) -> None:
    rows: Rows = dict.fromkeys(range(400), "old")
    table.commit(RowDelta((table.segment(rows),)))
    table.commit(RowDelta((table.segment({}, range(300)),)))
    table.convert()
    for key in range(300):
        del rows[key]
    lake.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    table.reload()
    assert table.table.position_deletes > table.table.records
    table.merge()
    assert table.table.position_deletes == 0
    assert crossed(table) == len(rows)
    assert table.duckdb() == table.spark(lake) == table.scanned() == rows
    assert table.compute_merge() is None


def test_delete_and_data_files_stay_few_however_many_commits_come(file_table: SmallTable) -> None:
    rows: Rows = dict.fromkeys(range(400), "old")
    file_table.commit(RowDelta((file_table.segment(rows),)))
    most = (0, 0)
    for number in range(150):
        if number % 17 == 0:
            file_table.reload()
        key = number * 7 % 400
        rows |= {key: f"v{number}"}
        file_table.commit(RowDelta((file_table.segment({key: f"v{number}"}, [key]),)))
        file_table.convert()
        file_table.merge()
        most = max(most[0], file_table.table.data_files), max(most[1], file_table.table.delete_files)
    assert most[0] <= 7 * 3
    assert most[1] <= 7 * 3
    assert file_table.duckdb() == file_table.scanned() == rows


def test_position_deletes_that_cannot_be_read_throw_the_merge_away(file_table: SmallTable) -> None:
    """The stream continues, although the table has a damaged file."""
    fill(file_table)
    known = {entry.data_file.file_path for entry in file_table.entries()}
    file_rewrite = file_table.compute_merge()
    file_table.commit(RowDelta((file_table.segment({}, [10]),)))
    file_table.convert()
    new = [entry.data_file for entry in file_table.entries() if entry.data_file.file_path not in known]
    (damaged,) = [file.file_path for file in new if file.content == 1]
    write_bytes(damaged, b"no Parquet", STORAGE)
    with pytest.raises(FileRewriteSuperseded, match="cannot be carried over"):
        file_table.table.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)
