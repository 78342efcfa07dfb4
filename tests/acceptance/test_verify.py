"""verify: no false alarm during writes, and no changed byte that it misses."""

from __future__ import annotations

import os
import random
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from mirror_pump.cli.main import app
from mirror_pump.engine.ingest.chunk_copy import copy_chunk
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.model import TableId
from mirror_pump.ops.verify import compare_duckdb
from mirror_pump.ops.verify import verification as verifying
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.frontier_catch_up import await_copies
from mirror_pump.ops.verify.verification import verify
from mirror_pump.settings.config import Settings
from mirror_pump.source.heap.block_reader import Chunk
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, await_true, paced
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified, spark_report
from tests.support.pipeline import change_rows, writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 10 if os.environ.get("SOAK") else 1
"""The number of verifications during writes."""


def make_table(database: Database, name: str, rows: int) -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, n int, v text, big text)".encode())
        connection.execute(f"ALTER TABLE {name} ALTER COLUMN big SET STORAGE EXTERNAL".encode())
        connection.execute(
            f"INSERT INTO {name} SELECT g, g, 'value ' || g, CASE WHEN g % 50 = 0 THEN repeat(md5(g::text), 100) END"
            f" FROM generate_series(1, {rows}) g".encode()
        )


@pytest.mark.further
@pytest.mark.slow
def test_no_false_alarm_while_writes_go_on(
    database: Database, warehouse: str, spark: SparkSession, tasks: ThreadTaskRunner, tmp_path: Path
) -> None:
    make_table(database, "t", 5000)
    make_table(database, "u", 100)
    mirror = Mirror.create(database, warehouse, tasks, limits=paced(0.2))
    seed = random.SystemRandom().randrange(2**32)
    print(f"writer's seed: {seed}")
    with mirror.pumping():
        mirror.register("t", "u")
        mirror.await_live("public.t", "public.u")
        with writing(database, change_rows("t", 5000), seed) as written, writing(database, change_rows("u", 80), seed):
            for _ in range(RUNS):
                before = written()
                report = spark_report(mirror.settings, spark)
                assert written() > before + 10, "rows changed while they were compared"
                assert [table["equal"] for table in report["tables"]] == [True, True], report
                assert all(table["heap_rows"] == table["lake_rows"] > 0 for table in report["tables"])
                assert all(table["differences"] == [] for table in report["tables"])
    # Nothing of it is left: no slot that holds back WAL, no pin that holds snapshots, no files.
    assert database.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == [
        (mirror.settings.slot,)
    ]
    assert database.rows("SELECT * FROM modak.read_pins") == []
    assert not list(tmp_path.glob("warehouse/.verify*"))


@dataclass
class HookedRunner:
    """A runner that calls a function before a chunk of a heap is read."""

    runner: TaskRunner
    before: Callable[[Chunk], None]
    names: list[str] = field(default_factory=list)
    """The heaps that were read."""

    def submit(self, function: Callable[[Any], Any], task: Any) -> Future[Any]:
        if function is copy_chunk:
            self.names.append(task.chunk.name)
            self.before(task.chunk)
        return self.runner.submit(function, task)


@pytest.fixture
def partitioned(database: Database, warehouse: str) -> Mirror:
    """Tables p, with two partitions, and u, live."""
    make_table(database, "u", 10)
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p SELECT g, 'v' FROM generate_series(0, 199) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("p", "u")
    mirror.catch_up()
    return mirror


@pytest.mark.further
def test_a_table_that_is_copied_again_meanwhile_is_compared_once_it_is_live(
    partitioned: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see it as of a former frontier, and the heap has changed since."""
    gate = GatedCopies(partitioned.runner)
    gate.hold()
    states = []

    def alter(chunk: Chunk) -> None:
        # With a different value in each row, which only a copy brings.
        partitioned.database.execute("ALTER TABLE p ADD COLUMN IF NOT EXISTS own uuid DEFAULT gen_random_uuid()")

    def await_them(settings: Settings, table_ids: Sequence[TableId]) -> None:
        await_true(lambda: gate.waiting, 30, "the copy begins")
        states.append(partitioned.state("public.p"))
        gate.let_go()
        await_copies(settings, table_ids)

    monkeypatch.setattr(verifying, "await_copies", await_them)
    runner = HookedRunner(ThreadTaskRunner(), alter)
    with Mirror(partitioned.database, partitioned.settings, gate).pumping(), duckdb_connection() as duckdb:
        report = verify(partitioned.settings, engine=ComparisonEngine(runner, partial(compare_duckdb.compare, duckdb)))
    assert states == ["copying"]
    assert {table.table: (table.equal, table.comparison and table.comparison.heap_rows) for table in report.tables} == {
        "public.p": (True, 200),
        "public.u": (True, 10),
    }


_DISTURBANCES = (
    ("CREATE TABLE top PARTITION OF p FOR VALUES FROM (200) TO (300)", "INSERT INTO p VALUES (250, 'new')"),
    ("VACUUM FULL high",),
    ("ALTER TABLE p ALTER v TYPE varchar USING v || '!'",),
    ("DROP TABLE low",),
    ("ALTER TABLE p DETACH PARTITION high",),
)


@pytest.mark.further
def test_a_table_whose_partitions_change_while_it_is_read_is_compared_again(partitioned: Mirror) -> None:
    database = partitioned.database
    threads = ThreadTaskRunner()
    with partitioned.pumping(), duckdb_connection() as duckdb:
        for statements in _DISTURBANCES:
            left = list(statements)

            def disturb(chunk: Chunk, left: list[str] = left) -> None:
                while left and chunk.name != "u":
                    database.execute(left.pop(0))

            runner = HookedRunner(threads, disturb)
            report = verify(
                partitioned.settings, engine=ComparisonEngine(runner, partial(compare_duckdb.compare, duckdb))
            )
            assert not left, f"not reached: {statements}"
            found = {table.table: table.comparison for table in report.tables}
            assert report.equal, (statements, report.to_json())
            (p, u) = found["public.p"], found["public.u"]
            assert p is not None
            assert u is not None
            assert p.heap_rows == p.lake_rows == database.rows("SELECT count(*) FROM p")[0][0], statements
            assert runner.names.count("u") == 1, "u was not disturbed"
            assert len(runner.names) > 2, "p was read twice"


@pytest.mark.further
def test_a_table_that_never_comes_to_rest_is_given_up(partitioned: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite(chunk: Chunk) -> None:
        if chunk.name == "low":
            partitioned.database.execute("VACUUM FULL low")

    runner = HookedRunner(ThreadTaskRunner(), rewrite)
    monkeypatch.setenv("MIRROR_PUMP_LIMITS__VERIFY_PAUSE", "0")
    with partitioned.pumping(), duckdb_connection() as duckdb:
        engine = ComparisonEngine(runner, partial(compare_duckdb.compare, duckdb))
        monkeypatch.setattr(verifying, "verify", partial(verify, engine=engine))
        settings = partitioned.settings
        slot = ("--slot", settings.slot, "--publication", settings.publication)
        done = CliRunner().invoke(app, ["verify", "--dsn", partitioned.database.dsn, *slot])
    assert done.exit_code == 1, done.output
    lines = {line.partition(":")[0]: line for line in done.stdout.splitlines()}
    assert lines["public.p"].startswith("public.p: NOT COMPARED (the table changed during each of 5 attempts")
    assert "was rewritten" in lines["public.p"]
    assert "Run verify again" in lines["public.p"]
    assert lines["public.u"].startswith("public.u: equal (heap 10 rows, lake 10 rows")
    assert (runner.names.count("low"), runner.names.count("u")) == (5, 1)


def write_in_place(rows: pa.Table, path: Path) -> None:
    """Writes a file of exactly the former size, which the manifest records: smaller because of better compression, then
    padded."""
    size = path.stat().st_size
    padding = 0
    for _ in range(10):
        with pq.ParquetWriter(
            path, rows.schema, compression="zstd", compression_level=19, write_statistics=False, store_schema=False
        ) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"padding": "x" * padding})
        if path.stat().st_size == size:
            return
        padding += size - path.stat().st_size
        assert padding >= 0, "the corrupted file is larger than what it replaces"
    raise AssertionError("the corrupted file does not get the size of what it replaces")


def rewrite(mirror: Mirror, table: str, key: int, change: str) -> None:
    """Plants a corruption: rewrites the data file that holds row `key`, in place, with only that row changed."""
    name = table.removeprefix("public.")
    root = Path(urllib.parse.urlparse(mirror.settings.require_warehouse()).path)
    for path in root.glob(f"public/{name}-*/data/*.parquet"):
        rows = pq.read_table(path)
        if "v" not in rows.column_names:
            continue
        here = pc.equal(rows["id"], key)
        if not pc.any(here).as_py():
            continue
        match change:
            case "byte":
                values = pc.if_else(here, pc.replace_substring(rows["v"], "value", "valuE"), rows["v"])
                assert pc.sum(pc.not_equal(values, rows["v"])).as_py() == 1
                rows = rows.set_column(rows.column_names.index("v"), rows.schema.field("v"), values)
            case "missing":
                rows = rows.filter(pc.invert(here))
            case "extra":
                extra = rows.filter(here).set_column(0, rows.schema.field("id"), pa.array([-1], pa.int64()))
                rows = pa.concat_tables([rows, extra])
            case "twice":
                rows = pa.concat_tables([rows, rows.filter(here)])
        write_in_place(rows, path)
        return
    raise AssertionError(f"no data file of {table} holds row {key}")


@pytest.mark.soak
@pytest.mark.unverified("rows are spoiled on purpose")
def test_a_single_changed_byte_is_found(
    database: Database, warehouse: str, spark: SparkSession, tasks: ThreadTaskRunner, tmp_path: Path
) -> None:
    tables = ("public.byte", "public.extra", "public.good", "public.missing", "public.twice")
    for table in tables:
        make_table(database, table, 1000)
    # Files are rewritten in place, so positions in them must not be looked up meanwhile.
    mirror = Mirror.create(database, warehouse, tasks, convert_age=3600)
    with mirror.pumping():
        mirror.register(*tables)
        mirror.await_live(*tables)
        for table in tables:
            with database.connect() as connection:
                connection.execute(f"UPDATE {table} SET n = -1 WHERE id % 10 = 0".encode())
        mirror.await_frontier()
        for table, key in (("public.byte", 777), ("public.extra", 12), ("public.missing", 501), ("public.twice", 3)):
            rewrite(mirror, table, key, table.removeprefix("public."))
        program = Program(database.dsn, tmp_path)
        report = orjson.loads(program.run("verify", "--json", code=1))
        of_spark = spark_report(mirror.settings, spark)
    # The program compared these small tables by DuckDB. Spark finds and shows the same differences.
    for table in (*report["tables"], *of_spark["tables"]):
        del table["frontier"]
    assert report["tables"] == of_spark["tables"]
    # The check at the end of every other test finds the same.
    with pytest.raises(AssertionError) as caught:
        assert_verified(database)
    named = {name for name in tables if f"'{name}'" in str(caught.value)}
    assert named == {*tables} - {"public.good"}
    found = {table["table"]: table for table in report["tables"]}
    assert set(found) == set(tables)
    assert {table: found[table]["equal"] for table in tables} == {table: table == "public.good" for table in tables}
    assert found["public.good"]["differences"] == []
    (byte,) = found["public.byte"]["differences"]
    assert byte["key"] == {"id": "777"}
    assert byte["columns"] == {"v": {"heap": "value 777", "lake": "valuE 777"}}
    (missing,) = found["public.missing"]["differences"]
    assert (missing["key"], missing["kind"]) == ({"id": "501"}, "missing")
    (extra,) = found["public.extra"]["differences"]
    assert (extra["key"], extra["kind"]) == ({"id": "-1"}, "extra")
    assert found["public.missing"]["lake_rows"] == 999
    assert found["public.twice"]["lake_rows"] == 1001
    assert found["public.twice"]["differences"]
