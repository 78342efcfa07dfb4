"""Tasks run on a Spark cluster whose nodes have nothing of the program, and nodes that die lose nothing.

A cluster takes a minute, so `make soak` does this. `make test` runs tasks on bare nodes without Spark (test_nodes.py).
"""

from __future__ import annotations

import socket
import subprocess
from itertools import count

import orjson
import pytest

from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.program import Program
from tests.support.cluster_mirror import ClusterMirror
from tests.support.retention_table import at_once
from tests.support.spark_cluster import SparkCluster

_TABLE = "public.orders"


def _is_data(key: str) -> bool:
    return "orders" in key and "/data/" in key


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.unverified("in S3; verified here")
def test_nodes_that_die_in_a_copy_and_in_a_batch_lose_nothing(cluster: SparkCluster, mirror: ClusterMirror) -> None:
    cluster.keep(2)
    nothing = subprocess.run([cluster.python, "-c", "import mirror_pump"], capture_output=True, check=False, cwd="/")
    assert b"No module named 'mirror_pump'" in nothing.stderr
    database = mirror.database
    database.execute(
        "CREATE TABLE public.orders (id int PRIMARY KEY, v text)",
        "INSERT INTO public.orders SELECT g, md5(g::text) FROM generate_series(1, 8000) g",
    )
    mirror.start()
    mirror.await_executors(2)
    # For the second death, which is to leave a node.
    cluster.start_worker()

    mirror.s3.hold(_is_data)
    mirror.mirror.register(_TABLE)
    held = mirror.s3.await_held()
    mirror.kill_the_writer_of(held)
    mirror.mirror.await_live(_TABLE, seconds=180)
    orphans = [held.key]

    mirror.await_executors(2)
    mirror.s3.hold(_is_data)
    database.execute("UPDATE public.orders SET v = 'w' WHERE id % 2 = 0", "DELETE FROM public.orders WHERE id % 5 = 0")
    held = mirror.s3.await_held()
    mirror.kill_the_writer_of(held)
    mirror.mirror.await_frontier(seconds=180)
    orphans.append(held.key)

    await_true(lambda: mirror.log(Step.CONVERTED), 60, "deletes were converted")
    report = verify(mirror.mirror.settings, [_TABLE])
    assert report.equal, report.to_json()
    assert report.tables[0].comparison is not None
    assert report.tables[0].comparison.lake_rows == 8000 - 8000 // 5
    # What the dead have written is there, and nobody refers to it: the next sweep removes it.
    assert set(orphans) <= set(mirror.s3.objects)
    assert not set(orphans) & mirror.data_files(_TABLE)
    # The pump itself went on: only Spark had to run tasks again.
    assert not mirror.log(Step.RETRYING)
    assert mirror.leaks() == []
    mirror.stop()
    mirror.mirror.assert_sound()


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.unverified("in S3; verified here")
def test_a_port_for_workers_that_is_taken_is_told(cluster: SparkCluster, mirror: ClusterMirror) -> None:
    cluster.keep(2)
    mirror.database.execute("CREATE TABLE public.orders (id int PRIMARY KEY)", "INSERT INTO public.orders VALUES (1)")
    mirror.mirror.register(_TABLE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        environment = {**mirror.program.environment, **cluster.environment(spark_mirrorPump_port=port)}
        pump = Program(mirror.dsn, mirror.directory, environment).start("run", log="taken.log")
        numbers = count(2)

        def ended() -> bool:
            # The first tasks run in the driver, until Spark is there.
            mirror.database.execute(f"INSERT INTO public.orders VALUES ({next(numbers)})")
            return pump.poll() is not None

        await_true(ended, 200, "`run` ends")
        assert pump.wait(10) == 2
    log = (mirror.directory / "taken.log").read_text()
    assert f"the driver cannot listen for its workers at localhost, port {port}" in log
    assert "set spark.mirrorPump.port to a free port" in log
    mirror.start()
    mirror.database.execute("DELETE FROM public.orders WHERE id = 1")
    mirror.mirror.await_frontier(seconds=180)
    assert verify(mirror.mirror.settings, [_TABLE]).equal
    mirror.stop()
    mirror.mirror.assert_sound()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.unverified("in S3; verified here")
def test_maintenance_and_verify_run_there_too(cluster: SparkCluster, mirror: ClusterMirror) -> None:
    """Each is an application of its own beside the pump's. A node dies in the middle of a compaction. The pump also
    proves and drops a partition."""
    cluster.keep(2)
    database = mirror.database
    database.execute(
        "CREATE TABLE public.orders (id int PRIMARY KEY, v text)",
        "INSERT INTO public.orders SELECT g, md5(g::text) FROM generate_series(1, 8000) g",
        "CREATE TABLE public.events (at int PRIMARY KEY, v text) PARTITION BY RANGE (at)",
        "CREATE TABLE public.e0 PARTITION OF public.events FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE public.e1 PARTITION OF public.events FOR VALUES FROM (1000) TO (2000)",
        "INSERT INTO public.events SELECT g, md5(g::text) FROM generate_series(0, 1999) g",
    )
    mirror.start()
    mirror.await_executors(2)
    mirror.mirror.register(_TABLE)
    mirror.mirror.register("public.events", retention=at_once("999"))
    mirror.mirror.await_live(_TABLE, "public.events", seconds=180)
    dropped = "SELECT to_regclass('public.e0')::text"
    await_true(lambda: database.rows(dropped) == [(None,)], 180, "e0 is proven and dropped")
    proven = database.rows("SELECT details -> 'rows' FROM modak.op_log WHERE details ->> 'kind' = 'prove'")
    assert proven == [(1000,)]
    database.execute("UPDATE public.orders SET v = 'w' WHERE id % 2 = 0")
    mirror.mirror.await_frontier(seconds=180)
    await_true(lambda: mirror.log(Step.CONVERTED), 60, "deletes were converted")

    mirror.s3.hold(_is_data)
    maintain = mirror.with_files().start("maintain", _TABLE, log="maintain.log")
    held = mirror.s3.await_held()
    mirror.kill_the_writer_of(held)
    assert maintain.wait(240) == 0, (mirror.directory / "maintain.log").read_text()
    ((phase, errors),) = database.rows(
        "SELECT phase, details ->> 'error' FROM modak.op_log WHERE details ->> 'operation' = 'rewrite_data_files'"
    )
    assert (phase, errors) == ("done", None)
    # The sweep at the end of the same pass took what the dead had written.
    assert held.key not in mirror.s3.objects

    cluster.keep(2)
    by_spark = {"MIRROR_PUMP_LIMITS__VERIFY_SMALL_BYTES": "1", **mirror.program.environment}
    report = orjson.loads(Program(mirror.dsn, mirror.directory, by_spark).run("verify", "--json", _TABLE))
    assert [(table["equal"], table["lake_rows"]) for table in report["tables"]] == [(True, 8000)]
    for application in ("mirror-pump", "mirror-pump-maintain", "mirror-pump-verify"):
        assert f"Registered app {application} with ID" in cluster.log()
    assert mirror.leaks() == []
    mirror.stop()
