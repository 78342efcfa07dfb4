"""Conversions as every engine reads them: position deletes replace equality deletes, and no row changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import BackdatedFile, RowDelta
from tests.support.lake_tables import Rows, SmallTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(table: SmallTable) -> Rows:
    """Six keys in versions of different ages, some deleted, with three equality-delete files pending."""
    table.commit(RowDelta((table.segment({1: "a1", 2: "a2", 3: "a3", 4: "a4"}),)))
    table.commit(
        RowDelta((table.segment({1: "b1", 5: "b5"}, [1]), table.segment({1: "c1", 2: "c2", 6: "c6"}, [1, 2, 5])))
    )
    table.commit(RowDelta((table.segment({3: "d3"}, [3, 6]),)))
    return {1: "c1", 2: "c2", 3: "d3", 4: "a4"}


def test_every_engine_reads_the_same_before_and_after(table: SmallTable, lake: SparkSession) -> None:
    expected = fill(table)
    before = table.table
    assert table.duckdb() == table.spark(lake) == expected
    with pytest.raises(ValueError, match=r"[Ee]quality"):
        table.scanned()

    converted = table.convert()

    assert converted is not None
    assert table.table.equality_deletes == 0
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected
    counted = table.summary
    assert counted["operation"] == "delete", "Iceberg looks for conflicting deletes in these, not in `replace`"
    assert (counted["removed-equality-deletes"], counted["removed-equality-delete-files"]) == ("6", "3")
    # Keys 1 and 2 of the first file, 1 and 5 of the second, 3 of the first, 6 of the third.
    assert (counted["added-position-deletes"], counted["total-position-deletes"]) == ("6", "6")
    assert (counted["total-equality-deletes"], counted["total-delete-files"]) == ("0", "1")
    assert table.table.records - int(counted["total-position-deletes"]) == len(expected)
    assert table.table.sequence_number == before.sequence_number + 1
    assert table.convert() is None
    # Time travel to the snapshot before.
    assert table.spark(lake, f" VERSION AS OF {before.snapshot_id}") == expected
    assert table.duckdb(f", snapshot_from_id => {before.snapshot_id}::UBIGINT") == expected
    status = lake.sql("SELECT status, count(*) FROM lake.public.t.entries GROUP BY 1 ORDER BY 1").collect()
    assert [tuple(row) for row in status] == [(1, 5), (2, 3)], "removed files are named as deleted, others as they were"
    table.commit(RowDelta((table.segment({4: "e4", 7: "e7"}, [4]),)))
    table.convert()
    expected |= {4: "e4", 7: "e7"}
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected
    table.reload()
    table.commit(RowDelta((table.segment({}, [1, 7]),)))
    table.convert()
    del expected[1], expected[7]
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected
    assert table.summary["added-position-deletes"] == "2", "older versions of 1 are deleted already"


def test_a_conversion_takes_no_more_deletes_than_it_may(file_table: SmallTable) -> None:
    expected = fill(file_table)
    file_table.most_deletes = 4
    taken = []
    since = file_table.table.equality_deletes_since
    while (file_rewrite := file_table.compute()) is not None:
        assert file_rewrite.hidden.rows <= 4
        file_table.commit(RowDelta((), replaces=file_rewrite))
        taken.append((file_rewrite.hidden.rows, file_rewrite.complete, file_table.table.equality_deletes))
        assert file_table.duckdb() == expected
        assert file_table.table.equality_deletes_since == (since if taken[-1][2] else None)
    assert taken == [(4, False, 2), (2, True, 0)], "the oldest files first: of 1 and 3 keys, then of 2"
    assert file_table.scanned() == expected


def test_changes_of_the_stream_may_come_between(file_table: SmallTable) -> None:
    expected = fill(file_table)
    file_rewrite = file_table.compute()
    file_table.commit(RowDelta((file_table.segment({1: "x", 9: "x"}, [1]), file_table.segment({}, [4]))))
    pending_from = file_table.now_ms
    file_table.commit(RowDelta((file_table.segment({8: "x"}),)))
    file_table.commit(RowDelta((), replaces=file_rewrite))
    expected |= {1: "x", 8: "x", 9: "x"}
    del expected[4]
    assert file_table.duckdb() == expected
    assert file_table.table.equality_deletes == 2
    assert file_table.table.equality_deletes_since == pending_from
    file_table.convert()
    assert file_table.duckdb() == file_table.scanned() == expected
    assert file_table.table.equality_deletes_since is None


def test_a_truncate_between_discards_the_file_rewrite(file_table: SmallTable) -> None:
    fill(file_table)
    file_rewrite = file_table.compute()
    file_table.commit(RowDelta((file_table.segment({1: "new"}),), replaces=EveryFile()))
    with pytest.raises(FileRewriteSuperseded, match="not part of the table any more"):
        file_table.table.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)
    assert file_table.duckdb() == {1: "new"}


def test_a_foreign_rewrite_between_discards_the_file_rewrite(table: SmallTable, lake: SparkSession) -> None:
    expected = fill(table)
    file_rewrite = table.compute()
    lake.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    table.reload()
    with pytest.raises(FileRewriteSuperseded):
        table.table.stage(RowDelta((), replaces=file_rewrite), table.now_ms)
    table.commit(RowDelta((table.segment({2: "after"}, [2]),)))
    table.convert()
    expected |= {2: "after"}
    assert table.duckdb() == table.spark(lake) == table.scanned() == expected


def test_a_rewrite_that_began_before_a_conversion_cannot_land_after_it(table: SmallTable, lake: SparkSession) -> None:
    """The rewrite's files take the sequence number at which it began, so equality deletes that landed since would apply
    to them. Once these are position deletes of files that the rewrite replaces, it has to fail, else deleted rows would
    return."""
    table.commit(RowDelta((table.segment({1: "a", 2: "b"}),)))
    jvm = lake.sparkContext._jvm
    assert jvm is not None
    iceberg = jvm.org.apache.iceberg
    # Java calls look up their catalogs in the thread's active session.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(lake._jsparkSession)
    began = iceberg.spark.Spark3Util.loadIcebergTable(lake._jsparkSession, "lake.public.t")
    start = began.currentSnapshot()
    (task,) = list(began.newScan().planFiles().iterator())
    replaced, added = jvm.java.util.HashSet(), jvm.java.util.HashSet()
    replaced.add(task.file())
    added.add(iceberg.DataFiles.builder(began.spec()).copy(task.file()).withPath(f"{task.file().location()}-2").build())

    table.commit(RowDelta((table.segment({2: "c"}, [2]),)))
    table.convert()

    rewrite = began.newRewrite().validateFromSnapshot(start.snapshotId())
    rewrite.rewriteFiles(replaced, added, start.sequenceNumber())
    with pytest.raises(Py4JJavaError, match="found new position delete for replaced data file"):
        rewrite.commit()
    table.reload()
    assert table.duckdb() == table.spark(lake) == table.scanned() == {1: "a", 2: "c"}


def test_a_copied_file_that_lands_between_discards_the_file_rewrite(file_table: SmallTable) -> None:
    """The copied file is older than the deletes, and was not searched for their keys."""
    s0 = file_table.table.sequence_number
    expected = fill(file_table)
    file_rewrite = file_table.compute()
    file_table.commit(RowDelta((), backdated=(BackdatedFile(file_table.data({1: "copied", 10: "copied"}), s0),)))
    with pytest.raises(FileRewriteSuperseded, match="has come since"):
        file_table.table.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)
    file_table.convert()
    assert file_table.duckdb() == file_table.scanned() == expected | {10: "copied"}


def test_a_conversion_is_published_once(file_table: SmallTable) -> None:
    expected = fill(file_table)
    file_rewrite = file_table.compute()
    file_table.commit(RowDelta((), replaces=file_rewrite))
    with pytest.raises(FileRewriteSuperseded):
        file_table.table.stage(RowDelta((), replaces=file_rewrite), file_table.now_ms)
    assert file_table.scanned() == expected
