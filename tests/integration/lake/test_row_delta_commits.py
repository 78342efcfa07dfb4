"""Row-delta commits as other engines read them: Spark through the JDBC catalog, DuckDB and pyiceberg by location."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.lake.commit.catalog import delete_pointer, ensure_namespace, insert_pointer, load_pointer, swap_pointer
from mirror_pump.lake.commit.replacement import CopiedFiles, EveryFile
from mirror_pump.lake.commit.row_delta import BackdatedFile, RowDelta, SegmentFiles
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from tests.support.lake_tables import SCHEMA, Rows, SmallTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _agree(table: SmallTable, lake: SparkSession, expected: Rows) -> None:
    assert table.duckdb() == expected
    assert table.spark(lake) == expected


def test_a_new_table_is_empty_and_has_a_start_snapshot(table: SmallTable, lake: SparkSession) -> None:
    _agree(table, lake, {})
    assert table.pyiceberg().scan().to_arrow().num_rows == 0
    assert table.table.sequence_number == 1
    assert (table.table.data_files, table.table.records, table.table.delete_files) == (0, 0, 0)


def test_later_segments_of_one_snapshot_win(table: SmallTable, lake: SparkSession) -> None:
    table.commit(RowDelta((table.segment({1: "a1", 2: "a2", 3: "a3"}),)))
    before = len(table.pyiceberg().snapshots())
    staged = table.commit(
        RowDelta(
            (
                table.segment({1: "s1", 2: "gone"}, [1, 2]),
                table.segment({2: "s2"}, [1, 2]),
                table.segment({1: "s3", 4: "gone"}, [1]),
                table.segment({}, [4]),
            )
        )
    )
    assert len(table.pyiceberg().snapshots()) == before + 1
    assert staged.sequence_number == 2 + 4
    numbers = [entry.sequence_number or 0 for entry in table.entries() if entry.snapshot_id == staged.snapshot_id]
    assert sorted(numbers) == [3, 3, 4, 4, 5, 5, 6], "base+1 to base+K, and none beyond the snapshot's own"
    _agree(table, lake, {1: "s3", 2: "s2", 3: "a3"})
    table.commit(RowDelta((table.segment({4: "t4"}, [4]), table.segment({5: "t5"}), table.segment({}, [3, 5]))))
    _agree(table, lake, {1: "s3", 2: "s2", 4: "t4"})


def test_a_key_written_again_in_its_own_segment_survives_its_delete(table: SmallTable, lake: SparkSession) -> None:
    table.commit(RowDelta((table.segment({1: "old"}),)))
    table.commit(RowDelta((table.segment({1: "new"}, [1]),)))
    _agree(table, lake, {1: "new"})


def test_backdated_copies_lose_to_stream_changes_that_landed_before_them(table: SmallTable, lake: SparkSession) -> None:
    s0 = table.table.sequence_number
    table.commit(RowDelta((table.segment({1: "updated", 7: "inserted"}, [1, 2, 7]),)))
    table.commit(RowDelta((), backdated=(BackdatedFile(table.data({1: "copied", 2: "copied", 3: "copied"}), s0),)))
    _agree(table, lake, {1: "updated", 3: "copied", 7: "inserted"})
    table.commit(
        RowDelta(
            (table.segment({3: "later"}, [3]),), backdated=(BackdatedFile(table.data({4: "copied", 7: "copied"}), s0),)
        )
    )
    _agree(table, lake, {1: "updated", 3: "later", 4: "copied", 7: "inserted"})


def test_copies_keep_their_place_when_their_manifest_is_merged(table: SmallTable, lake: SparkSession) -> None:
    s0 = table.table.sequence_number
    expected: Rows = {}
    for key in range(25):
        table.commit(RowDelta((table.segment({key: "stream"}, [key]),)))
        table.commit(RowDelta((), backdated=(BackdatedFile(table.data({key: "copied", key + 100: "copied"}), s0),)))
        expected |= {key: "stream", key + 100: "copied"}
    _agree(table, lake, expected)


def test_replace_removes_everything_before_it_and_nothing_after(table: SmallTable, lake: SparkSession) -> None:
    table.commit(RowDelta((table.segment({1: "a", 2: "b"}),)))
    table.commit(RowDelta((table.segment({1: "c"}, [1]),)))
    before = table.table
    staged = table.commit(
        RowDelta((table.segment({2: "again", 3: "new"}), table.segment({}, [3])), replaces=EveryFile())
    )
    _agree(table, lake, {2: "again"})
    summary = table.table.summary.entries
    assert summary["operation"] == "overwrite"
    assert summary["deleted-data-files"] == "2"
    assert summary["deleted-records"] == "3"
    assert summary["removed-equality-deletes"] == "1"
    assert (summary["total-data-files"], summary["total-records"]) == ("1", "2")
    assert table.spark(lake, f" VERSION AS OF {before.snapshot_id}") == {1: "c", 2: "b"}
    assert table.spark(lake, f" VERSION AS OF {staged.snapshot_id}") == {2: "again"}
    files = lake.sql("SELECT count(*) FROM lake.public.t.entries WHERE status = 2").collect()
    assert files[0][0] == 3, "the removed files are named as deleted"
    table.commit(RowDelta((table.segment({4: "d"}),)))
    _agree(table, lake, {2: "again", 4: "d"})
    assert lake.sql("SELECT count(*) FROM lake.public.t.entries WHERE status = 2").collect()[0][0] == 0


def test_a_copy_that_begins_again_removes_its_former_chunks_only(table: SmallTable, lake: SparkSession) -> None:
    s0 = table.table.sequence_number
    for key in range(12):
        table.commit(
            RowDelta(
                (table.segment({key: "stream"}, [key]),), backdated=(BackdatedFile(table.data({key + 50: "1"}), s0),)
            )
        )
    table.commit(
        RowDelta(
            (table.segment({99: "s"}, [50]),),
            backdated=(BackdatedFile(table.data({50: "2", 51: "2"}), s0),),
            replaces=CopiedFiles(s0),
        )
    )
    expected: Rows = {**dict.fromkeys(range(12), "stream"), 99: "s", 51: "2"}
    _agree(table, lake, expected)
    summary = table.table.summary.entries
    assert (summary["deleted-data-files"], summary["deleted-records"]) == ("12", "12")
    assert summary["total-data-files"] == str(12 + 2)
    assert sorted({file.sequence_number for file in table.table.live_data_files()})[:2] == [s0, s0 + 1]
    table.reload()
    table.commit(RowDelta((table.segment({60: "x"}),)))
    _agree(table, lake, expected | {60: "x"})


def test_replace_with_nothing_is_a_truncate(table: SmallTable, lake: SparkSession) -> None:
    table.commit(RowDelta((table.segment({1: "a"}),)))
    table.commit(RowDelta((), replaces=EveryFile()))
    _agree(table, lake, {})
    assert table.table.summary.operation == "delete"
    assert table.table.data_files == table.table.records == 0


def test_insert_only_tables_have_no_deletes_and_pyiceberg_reads_them(table: SmallTable, lake: SparkSession) -> None:
    expected: Rows = {}
    for key in range(30):
        table.commit(RowDelta((table.segment({key: f"v{key}"}),)))
        expected[key] = f"v{key}"
    assert table.table.delete_files == 0
    read = table.pyiceberg().scan().to_arrow()
    assert dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)) == expected
    _agree(table, lake, expected)
    operations = {snapshot.summary.operation for snapshot in table.table.metadata.snapshots}
    assert operations == {"append"}


@pytest.mark.further
def test_merging_manifests_changes_no_entry(file_table: SmallTable) -> None:
    known: dict[str, tuple[int | None, int | None]] = {}
    for key in range(130):
        staged = file_table.commit(RowDelta((file_table.segment({key: "x"}, [key]), file_table.segment({}, [key]))))
        if key == 70:
            file_table.reload()
        # All other manifests are files of earlier snapshots.
        for entry in file_table.entries(written=True):
            path = entry.data_file.file_path
            known.setdefault(path, (entry.sequence_number, staged.snapshot_id))
            assert (entry.sequence_number, entry.snapshot_id) == known[path]
            assert entry.file_sequence_number is not None
        lists = file_table.table.manifests
        assert len(lists) <= 2 * 3 * 9 + 2, "logarithmic, not linear"
        assert sum(manifest.live_files for manifest in lists) == 3 * (key + 1)
        lowest = min(manifest.min_sequence_number for manifest in lists)
        assert lowest == 2
    last = {entry.data_file.file_path: (entry.sequence_number, entry.snapshot_id) for entry in file_table.entries()}
    assert last == known
    assert file_table.duckdb() == {}


def test_equality_ids_are_integers_in_the_manifest_itself(file_table: SmallTable) -> None:
    file_table.commit(RowDelta((file_table.segment({1: "a"}, [1]),)))
    table = file_table.pyiceberg()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    deletes = next(manifest for manifest in snapshot.manifests(table.io) if manifest.content == 1)
    with table.io.new_input(deletes.manifest_path).open() as stream:
        content = stream.read()
    assert b'"element-id": 136, "items": "int"' in content
    (entry,) = deletes.fetch_manifest_entry(table.io)
    assert entry.data_file.equality_ids == [1]


@pytest.mark.further
def test_retained_snapshots_can_be_read_and_pinned_ones_stay(table: SmallTable, lake: SparkSession) -> None:
    history: dict[int, Rows] = {}
    rows: Rows = {}
    pinned = 0
    for key in range(115):
        rows = rows | {key % 7: f"v{key}"}
        staged = table.commit(RowDelta((table.segment({key % 7: f"v{key}"}, [key % 7]),)), keep=frozenset({pinned}))
        history[staged.snapshot_id] = rows
        if key == 1:
            pinned = staged.snapshot_id
    assert table.table.has_snapshot(pinned)
    gone = [snapshot_id for snapshot_id in history if not table.table.has_snapshot(snapshot_id)]
    assert gone, "history is thinned"
    newest = list(history)[-100:]
    assert not set(gone) & set(newest)
    for snapshot_id in (pinned, newest[0], newest[50], newest[-1]):
        assert table.spark(lake, f" VERSION AS OF {snapshot_id}") == history[snapshot_id]
        assert table.duckdb(f", snapshot_from_id => {snapshot_id}::UBIGINT") == history[snapshot_id]
    assert lake.sql("SELECT count(*) FROM lake.public.t.history").collect()[0][0] <= 100


@pytest.mark.further
def test_another_engines_commits_are_built_upon(table: SmallTable, lake: SparkSession) -> None:
    table.commit(RowDelta((table.segment({key: f"v{key}" for key in range(10)}),)))
    table.commit(RowDelta((table.segment({1: "new"}, [1, 2]),)))
    tagged = table.table.snapshot_id
    lake.sql("ALTER TABLE lake.public.t CREATE TAG audit")
    lake.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('owner.note' = 'kept')")
    lake.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    stale = table.table.stage(RowDelta((table.segment({11: "lost"}),)), table.now_ms)
    assert stale.old_location is not None
    with psycopg.connect(table.dsn or "", cursor_factory=CatalogCursor) as connection:
        assert not swap_pointer(connection, "public", "t", stale.old_location, stale.new_location)
    table.reload()
    rewritten = table.table
    table.commit(RowDelta((table.segment({3: "after"}, [3, 4]),), summary={"mirror-pump.frontier": "0/1"}))
    expected: Rows = {**{key: f"v{key}" for key in range(10)}, 1: "new", 3: "after"}
    del expected[2], expected[4]
    _agree(table, lake, expected)
    assert table.spark(lake, " VERSION AS OF 'audit'") == {
        key: f"v{key}" if key != 1 else "new" for key in range(10) if key != 2
    }
    metadata = table.table.metadata.document
    assert metadata["refs"]["audit"]["snapshot-id"] == tagged
    assert metadata["properties"]["owner.note"] == "kept"
    assert table.table.has_snapshot(rewritten.snapshot_id)
    changed = {"snapshots", "last-sequence-number", "last-updated-ms", "current-snapshot-id"}
    changed |= {"refs", "snapshot-log", "metadata-log"}
    assert {key for key in metadata if metadata[key] != rewritten.metadata.document.get(key)} <= changed
    assert metadata["snapshots"][-1]["summary"]["mirror-pump.frontier"] == "0/1"
    assert len(lake.sql("CALL lake.system.rewrite_manifests('public.t')").collect()) == 1
    table.reload()
    for key in range(20, 45):
        table.commit(RowDelta((table.segment({key: "x"}, [key]),)))
        expected[key] = "x"
    _agree(table, lake, expected)
    lake.sql("CALL lake.system.expire_snapshots(table => 'public.t', retain_last => 1, older_than => now())")
    table.reload()
    table.commit(RowDelta((table.segment({50: "x"}),)))
    _agree(table, lake, expected | {50: "x"})


def test_spark_writes_after_our_commits(table: SmallTable, lake: SparkSession) -> None:
    table.commit(RowDelta((table.segment({1: "a"}), table.segment({2: "b"}, [2]))))
    lake.sql("INSERT INTO lake.public.t VALUES (9, 'spark')")
    table.reload()
    table.commit(RowDelta((table.segment({}, [1, 9]),)))
    _agree(table, lake, {2: "b"})
    table.commit(RowDelta((table.segment({5: "e"}),), replaces=EveryFile()))
    _agree(table, lake, {5: "e"})


def test_wrong_files_are_refused(file_table: SmallTable) -> None:
    data, deletes = file_table.data({1: "a"}), file_table.deletes([1])
    with pytest.raises(ValueError, match="holds data"):
        file_table.table.stage(RowDelta((SegmentFiles((), (data,)),)), 0)
    with pytest.raises(ValueError, match="holds equality_deletes"):
        file_table.table.stage(RowDelta((SegmentFiles((deletes,), ()),)), 0)
    with pytest.raises(ValueError, match="cannot have the data sequence number"):
        file_table.table.stage(RowDelta((), backdated=(BackdatedFile(data, 99),)), 0)


def test_pointers_move_only_from_where_they_are(database: Database) -> None:
    with database.connect() as connection:
        migrate(connection)
        ensure_namespace(connection, "public")
        ensure_namespace(connection, "public")
        assert load_pointer(connection, "public", "t") is None
        insert_pointer(connection, "public", "t", "file:///a")
        with pytest.raises(psycopg.errors.UniqueViolation):
            insert_pointer(connection, "public", "t", "file:///b")
        assert swap_pointer(connection, "public", "t", "file:///a", "file:///b")
        assert not swap_pointer(connection, "public", "t", "file:///a", "file:///c")
        assert load_pointer(connection, "public", "t") == "file:///b"
        row = connection.execute("SELECT previous_metadata_location FROM modak.iceberg_tables").fetchone()
        assert row == ("file:///a",)
        assert delete_pointer(connection, "public", "t")
        assert not delete_pointer(connection, "public", "t")


def test_the_key_schema_is_what_delete_files_have() -> None:
    assert SCHEMA.key.arrow.names == ["id"]
