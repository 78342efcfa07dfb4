"""Deletes that are written by position at once: every kind of key, other engines' rewrites, and a memory budget too
small for all indexes."""

from __future__ import annotations

import threading
from functools import partial

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyiceberg.table import StaticTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mirror_pump.engine.lake_reads.index_keys import read_keys
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import read_deletion_vectors
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import DeleteMode
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, normalised
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.pending_deletes import KEYS, assert_read, await_converted, await_index, pending

REWRITE = "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"


def rewrite(session: SparkSession) -> None:
    """A manual rewrite: it fails as a whole if the pump rewrites files meanwhile, and is retried."""
    for _ in range(10):
        try:
            session.sql(REWRITE).collect()
        except (PySparkException, Py4JError) as error:
            if "ValidationException" not in str(error):
                raise
        else:
            return
    pytest.fail("no rewrite came through")


def deletes_shown(mirror: Mirror) -> list[DeleteMode]:
    """The deletes and indexes of the tables as `status` shows them, by name."""
    with StatusReader(mirror.settings) as reader:
        return [table.deletes for table in reader.read().tables]


def live_positions(mirror: Mirror, table: str) -> tuple[int, list[tuple[str, int]]]:
    """Records in live data files, and the positions that live position-delete files or vectors name in them. Positions
    in files that a merge has removed stay until they are merged themselves, and have no effect."""
    lake = LakeTable.load(mirror.location(table), StorageOptions())
    files = [file for found in Listing(lake.storage, [PATH_ID]).files(lake.manifests).values() for file in found]
    data = {file.path: file.records for file in files if file.content is FileContent.DATA}
    named: list[tuple[str, int]] = []
    for file in files:
        if file.vector is not None and file.about is not None:
            (vector,) = read_deletion_vectors([file.vector], lake.storage)
            named += [(file.about, position) for position in vector.positions.tolist()]
        elif file.content is FileContent.POSITION_DELETES:
            rows = pq.read_table(file.path.removeprefix("file://"), columns=["file_path", "pos"])
            named += zip(rows["file_path"].to_pylist(), rows["pos"].to_pylist(), strict=True)
    return sum(data.values()), [(path, position) for path, position in named if path in data]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("pair", "ids", "plain_moments"), id="some"),
        pytest.param(tuple(KEYS), id="all", marks=pytest.mark.further),
    ],
)
def test_every_kind_of_key(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, spark: SparkSession, names: tuple[str, ...]
) -> None:
    kinds = {name: KEYS[name] for name in names}
    tables = [f"public.{name}" for name in kinds]
    for name, (columns, key, expression) in kinds.items():
        database.execute(
            f"CREATE TABLE {name} ({columns}, n int, PRIMARY KEY ({key}))",
            f"INSERT INTO {name} SELECT {expression}, 0 FROM generate_series(1, 300) g",
        )
    mirror = Mirror.create(database, warehouse, tasks, convert_age=0)
    mirror.register(*tables)
    steps = Steps()
    with mirror.pumping(steps) as running:
        mirror.await_live(*tables)
        for _ in range(50):
            for name in kinds:
                database.execute(f"UPDATE {name} SET n = n + 1 WHERE random() < 0.1")
            mirror.await_frontier()
            if {*tables} <= {*steps.details(Step.INDEX_READY, "table")}:
                break
        await_converted(mirror, *tables)
        # A step is reported after its publish, and before the next one begins.
        mirror.await_frontier()
        converted = steps.count(Step.CONVERTED)
        for turn in range(2):
            for name, (_, key, expression) in kinds.items():
                database.execute(
                    f"UPDATE {name} SET n = n + 1 WHERE random() < 0.3",
                    f"DELETE FROM {name} WHERE random() < 0.1",
                    f"INSERT INTO {name} SELECT {expression}, {turn} FROM generate_series(1, 300, 7) g"
                    f" ON CONFLICT ({key}) DO UPDATE SET n = -1",
                )
            mirror.await_frontier()
            assert not any(pending(mirror, table) for table in tables), "no equality delete is ever visible"
        assert_read(mirror, running, *tables)
        assert steps.count(Step.CONVERTED) == converted, "there was nothing to convert"
        modes = {row[0]: row[1]["mode"] for row in database.rows("SELECT table_id, key_index FROM modak.mirror_tables")}
        assert set(modes.values()) == {"position"}
    for table in tables:
        records, deleted = live_positions(mirror, table)
        assert len(deleted) == len(set(deleted)), f"{table}: no row is deleted twice"
        assert records - len(deleted) == len(mirror.heap(table)), f"{table}: no delete names a row that is not there"
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    for table in tables[:3]:
        assert_same(mirror.heap(table), normalised(read_spark(session, table)), f"{table} by Spark")


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
        "INSERT INTO t SELECT g, 0, 'v' FROM generate_series(1, 1000) g",
    )
    return Mirror.create(database, warehouse, GatedCopies(ThreadTaskRunner()), convert_age=0)


def test_a_truncate_a_key_change_and_a_copy_again(mirror: Mirror) -> None:
    database = mirror.database
    steps = Steps()
    mirror.register("t")
    with mirror.pumping(steps) as running:
        mirror.await_live("public.t")
        await_index(mirror, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id % 10 = 0")
        database.execute(
            "UPDATE t SET id = id + 5000 WHERE id % 3 = 0",
            "BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 9, 'again'); COMMIT",
            "BEGIN; UPDATE t SET id = -id WHERE id < 100; UPDATE t SET id = -id WHERE id < 0; COMMIT",
        )
        mirror.await_frontier()
        assert_read(mirror, running, "public.t")
        database.execute(
            "BEGIN; INSERT INTO t VALUES (-1, 0, ''); TRUNCATE t; INSERT INTO t VALUES (-2, 0, ''); COMMIT"
        )
        mirror.await_frontier()
        assert pending(mirror, "public.t") == 0
        database.execute("UPDATE t SET n = 5", "INSERT INTO t SELECT g, 0, 'w' FROM generate_series(1, 50) g")
        database.execute("DELETE FROM t WHERE id % 2 = 0")
        mirror.await_frontier()
        assert pending(mirror, "public.t") == 0, "a truncated table's index is at hand at once"
        assert_read(mirror, running, "public.t")
        mirror.unregister("t")
        mirror.register("t")
        mirror.await_live("public.t")
        await_index(mirror, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id % 10 = 1")
        assert_read(mirror, running, "public.t")


@pytest.mark.further
def test_another_engine_rewrites_the_files(mirror: Mirror, spark: SparkSession) -> None:
    """The index follows: rows in removed files get the positions in the new files, while rows change."""
    database = mirror.database
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    steps = Steps()
    mirror.register("t")
    with mirror.with_options(merge_bytes=0).pumping(steps) as running:
        mirror.await_live("public.t")
        await_index(mirror, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id % 10 = 0")
        for turn in range(2):
            former = steps.count(Step.INDEX_READY)
            rewrite(session)
            await_index(mirror, steps, "public.t", f"UPDATE t SET n = {turn} WHERE id % 7 = {turn}", former)
            database.execute(f"DELETE FROM t WHERE id % 97 = {turn}", f"INSERT INTO t VALUES ({5000 + turn}, 0, '')")
            mirror.await_frontier()
            assert pending(mirror, "public.t") == 0
            assert_read(mirror, running, "public.t")
        assert steps.count(Step.INDEX_BUILDING) == 1, "it was not built anew"
    assert_same(mirror.heap("public.t"), normalised(read_spark(session, "public.t")), "by Spark")


@pytest.mark.further
def test_status_says_how_deletes_are_written_and_what_memory_holds(mirror: Mirror) -> None:
    database = mirror.database
    steps = Steps()
    mirror.register("t")

    def shown() -> DeleteMode:
        return deletes_shown(mirror)[0]

    with mirror.with_options(convert_age=3600).pumping(steps):
        mirror.await_live("public.t")
        for _ in range(50):
            database.execute("UPDATE t SET n = n + 1 WHERE id % 10 = 0")
            mirror.await_frontier()
            if steps.count(Step.INDEX_READY):
                break
        await_true(lambda: shown().phase == "ready", 20, "the index is shown without another commit")
        database.execute("UPDATE t SET n = n + 1 WHERE id < 10")
        mirror.await_frontier()
        assert shown().mode == "position"
        database.execute(
            "INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)"
            " VALUES (gen_random_uuid(), 't'::regclass::oid, 'compaction', 'rewriting', '{\"since_sequence\": 1}')"
        )
        known = pending(mirror, "public.t")
        database.execute("UPDATE t SET n = n + 1 WHERE id < 20")
        mirror.await_frontier()
        assert (pending(mirror, "public.t") - known, shown().mode) == (19, "equality")
        database.execute("INSERT INTO t VALUES (-1, 0, '')")
        mirror.await_frontier()
        assert (shown().mode, shown().phase) == ("equality", "ready"), "it deleted nothing"
        database.execute("UPDATE modak.op_log SET phase = 'done'", "UPDATE t SET n = n + 1 WHERE id < 30")
        mirror.await_frontier()
        assert shown() == DeleteMode("position", "ready", 1001, shown().bytes)
    assert shown() == DeleteMode("position"), "who stops has no memory"
    # As a killed one leaves it.
    database.execute("""UPDATE modak.mirror_tables SET key_index = key_index || '{"phase": "ready", "bytes": 9}'""")
    with mirror.pumping():
        database.execute("INSERT INTO t VALUES (-2, 0, '')")
        mirror.await_frontier()
        assert shown() == DeleteMode("position"), "nor has who begins"


@pytest.mark.further
def test_another_engine_rewrites_the_files_while_a_commit_is_staged(mirror: Mirror, spark: SparkSession) -> None:
    """The commit is retried on top of the rewrite with the same files: they were not removed with the first attempt's
    metadata."""
    database = mirror.database
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    due = threading.Event()

    def on_step(step: Step, _details: dict[str, object]) -> None:
        if step is Step.STAGED and due.is_set():
            due.clear()
            rewrite(session)

    steps = Steps(on_step)

    def followed(known: int) -> bool:
        return steps.count(Step.INDEX_READY) > known

    mirror.register("t")
    with mirror.with_options(merge_bytes=0).pumping(steps) as running:
        mirror.await_live("public.t")
        await_index(mirror, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id % 10 = 0")
        for turn in range(2):
            ready = steps.count(Step.INDEX_READY)
            due.set()
            database.execute(f"UPDATE t SET n = {turn} WHERE id % 7 = {turn}")
            mirror.await_frontier()
            assert not due.is_set()
            await_true(partial(followed, ready), 30, "the index has followed")
            database.execute(f"UPDATE t SET n = 10 + {turn} WHERE id % 7 = {turn}")
            # While the index followed, deletes were written by key.
            await_converted(mirror, "public.t")
            assert_read(mirror, running, "public.t")
        assert steps.count(Step.INDEX_BUILDING) == 1, "it was not built anew"


@pytest.mark.further
def test_another_engine_changes_rows(mirror: Mirror, spark: SparkSession) -> None:
    """The pump goes back to the rows that the index knows, so the index follows and is not built again."""
    session = lake_session(spark, mirror.database.dsn, mirror.settings.require_warehouse())
    steps = Steps()
    mirror.register("t")
    with mirror.with_options(merge_bytes=0).pumping(steps) as running:
        mirror.await_live("public.t")
        await_index(mirror, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id % 10 = 0")
        session.sql("DELETE FROM lake.public.t WHERE id = 17").collect()
        session.sql("INSERT INTO lake.public.t VALUES (17, 0, 'v')").collect()
        await_index(mirror, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id % 10 = 0 OR id = 17")
        assert steps.count(Step.INDEX_BUILDING) == 1
        assert steps.count(Step.FOREIGN_COMMIT_UNDONE) > 0
        assert_read(mirror, running, "public.t")


@pytest.mark.further
def test_pinned_and_older_snapshots_stay_as_they_were(mirror: Mirror, spark: SparkSession) -> None:
    session = lake_session(spark, mirror.database.dsn, mirror.settings.require_warehouse())
    steps = Steps()
    mirror.register("t")
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        await_index(mirror, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id % 10 = 0")
        seen = []
        for turn in range(4):
            heap = mirror.heap("public.t")
            seen.append((LakeTable.load(mirror.location("public.t"), StorageOptions()).snapshot_id, heap))
            mirror.database.execute(
                f"UPDATE t SET n = -{turn} WHERE id % 4 = {turn}", f"DELETE FROM t WHERE id = {turn}"
            )
            mirror.await_frontier()
    for snapshot, heap in seen:
        table = StaticTable.from_metadata(mirror.location("public.t"))
        found = table.scan(snapshot_id=snapshot).to_arrow()
        assert_same(heap, normalised(list(zip(*found.to_pydict().values(), strict=True))), "by pyiceberg, back then")
        rows = session.sql(f"SELECT * FROM lake.public.t VERSION AS OF {snapshot}").collect()
        assert_same(heap, normalised([tuple(row) for row in rows]), "by Spark, back then")


@pytest.mark.further
def test_an_index_that_is_built_while_rows_change(mirror: Mirror) -> None:
    """Deletes that are committed meanwhile are written by key, and are in the index once that is ready."""
    database = mirror.database
    gate = GatedCopies(ThreadTaskRunner(), gated=read_keys)
    gate.hold()
    steps = Steps()
    slow = Mirror(database, mirror.settings, gate)
    slow.register("t")
    with slow.pumping(steps) as running:
        slow.await_live("public.t")
        for turn in range(50):
            database.execute(f"UPDATE t SET n = {turn} WHERE id % 10 = 0")
            slow.await_frontier()
            if gate.waiting:
                break
        await_true(lambda: gate.waiting, 30, "the index is being built")
        for turn in range(4):
            database.execute(
                f"UPDATE t SET id = id + 10000, n = {turn} WHERE id % 7 = {turn}",
                f"DELETE FROM t WHERE id % 11 = {turn}",
                f"INSERT INTO t SELECT g, 0, '' FROM generate_series({20000 + turn * 10}, {20009 + turn * 10}) g",
            )
            slow.await_frontier()
        assert not steps.count(Step.INDEX_READY)
        gate.let_go()
        await_true(lambda: steps.count(Step.INDEX_READY), 30, "the index is ready")
        await_converted(slow, "public.t")
        database.execute("UPDATE t SET n = -1 WHERE id % 5 = 0")
        slow.await_frontier()
        assert pending(slow, "public.t") == 0
        assert_read(slow, running, "public.t")


@pytest.mark.further
def test_memory_for_one_index_goes_to_the_table_that_needs_it_most(mirror: Mirror) -> None:
    database = mirror.database
    database.execute(
        "CREATE TABLE u (id int PRIMARY KEY, n int)", "INSERT INTO u SELECT g, 0 FROM generate_series(1, 500) g"
    )
    small = mirror.with_options(index_memory=int(1.5 * 2**20), index_disk=0)

    def phases() -> list[str | None]:
        return [shown.phase for shown in deletes_shown(small)]

    steps = Steps()
    small.register("t", "u")
    with small.pumping(steps) as running:
        small.await_live("public.t", "public.u")
        await_index(small, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id < 10")
        database.execute("UPDATE u SET n = 1 WHERE id < 3")
        small.await_frontier()
        assert pending(small, "public.u") >= 0
        assert set(steps.details(Step.INDEX_READY, "table")) == {"public.t"}
        await_true(lambda: phases() == ["ready", None], 20, "the first table's index is shown")
        await_index(small, steps, "public.u", "UPDATE u SET n = n + 1")
        await_true(lambda: phases() == [None, "ready"], 20, "it has gone, and the table need not change for that")
        await_converted(small, "public.t", "public.u")
        assert_read(small, running, "public.t", "public.u")
        assert len(running.pump._indexes._tracked) == 1


def test_with_no_memory_there_is_no_index(mirror: Mirror) -> None:
    steps = Steps()
    mirror.register("t")
    with mirror.with_options(index_memory=0, convert_age=3600).pumping(steps):
        mirror.await_live("public.t")
        for turn in range(3):
            mirror.database.execute(f"UPDATE t SET n = {turn}")
            mirror.await_frontier()
        assert pending(mirror, "public.t") >= 1000
    assert not steps.count(Step.INDEX_BUILDING)
    mirror.assert_equal("public.t")


def test_an_index_without_room_in_memory_is_kept_in_files(mirror: Mirror) -> None:
    """From the first ready index on, no delete is written by key."""
    # Less than the least estimate of an index, so that none is in memory.
    small = mirror.with_options(index_memory=2**19)
    steps = Steps()
    small.register("t")
    with small.pumping(steps) as running:
        small.await_live("public.t")
        await_index(small, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id < 10")
        small.database.execute("UPDATE t SET n = n + 1 WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0")
        small.await_frontier()
        assert pending(small, "public.t") == 0
        [tracked] = running.pump._indexes._tracked.values()
        assert tracked.store is not None
        assert_read(small, running, "public.t")


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.parametrize(
    "disk",
    [pytest.param(2**26, id="room", marks=pytest.mark.further), pytest.param(3 * 2**20, id="too little room")],
)
def test_an_index_grows_out_of_memory_under_load(mirror: Mirror, disk: int) -> None:
    """It moves into files between two commits, and out of those that have no room for it: then deletes are by key."""
    small = mirror.with_options(index_memory=2**20, index_disk=disk)
    steps = Steps()
    small.register("t")
    with small.pumping(steps) as running:
        small.await_live("public.t")
        await_index(small, steps, "public.t", "UPDATE t SET n = n + 1 WHERE id < 10")
        for turn in range(1, 40):
            small.database.execute(
                f"INSERT INTO t SELECT {turn} * 10000 + g, 0, 'v' FROM generate_series(1, 8000) g",
                f"UPDATE t SET n = {turn} WHERE id % 37 = {turn} % 37",
                f"DELETE FROM t WHERE id % 101 = {turn}",
            )
        small.await_frontier()
        small.database.execute("UPDATE t SET n = -1 WHERE id % 11 = 0")
        small.await_frontier()
        fits = disk == 2**26
        tracked = list(running.pump._indexes._tracked.values())
        assert [found.store is not None for found in tracked] == [True] * fits
        assert (pending(small, "public.t") == 0) == fits
        [shown] = deletes_shown(small)
        assert (shown.phase == "ready", shown.disk_bytes > 2**20) == (fits, fits)
        assert_same(small.heap("public.t"), small.lake("public.t"), "t by DuckDB")
        if fits:
            assert_read(small, running, "public.t")
    assert_same(small.heap("public.t"), small.lake("public.t"), "t by DuckDB, afterwards")
