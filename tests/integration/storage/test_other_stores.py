"""Mirrors and tables in Google's and Azure's object stores, emulated (tests/support/other_stores.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.lake.storage import (
    delete,
    delete_tree,
    directory_answers,
    exists,
    list_files,
    open_output,
    read_bytes,
    storage_of,
    write_bytes,
)
from mirror_pump.ops.duckdb_connection import open_duckdb, reach_storage
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog
from mirror_pump.tables.catalogs.transaction_log import path_catalog
from mirror_pump.tables.put_if_absent import put_if_absent, require_put_if_absent
from mirror_pump.tables.table.orphan_files import remove_orphans
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.mirror import Steps, await_true
from mirror_pump.testing.program import Program
from tests.support.catalog_kinds import ROWS, rows
from tests.support.cli import RunCommand, ThreadedProgram
from tests.support.events_table import EventsTable
from tests.support.remote_lake import RemoteLake, assert_equal
from tests.support.s3_faults import StorageFault

pytestmark = pytest.mark.unverified("each test verifies by itself: the fixture has no access to the object store")

_PASSING = (
    (StorageFault.SLOW_DOWN, "PUT"),
    (StorageFault.SLOW_DOWN, "GET"),
    (StorageFault.RESET, "PUT"),
    (StorageFault.LOST_ANSWER, "PUT"),
    (StorageFault.CUT_OFF, "GET"),
    (StorageFault.SLOW, "GET"),
)
"""Faults, and the requests that meet them."""


def test_a_mirror_through_faults_merges_and_proven_drops(other: RemoteLake) -> None:
    """From `init` to `verify`: copies, the stream, a store that is away, merges, and partitions that leave the heap."""
    mirror = other.mirror(retention_interval=0.1)
    database, faulty, steps = mirror.database, other.faulty, Steps()
    events = EventsTable.automatic(mirror)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'copied' FROM generate_series(1, 500) g"
    )
    mirror.register("public.t")
    met = []
    with mirror.pumping(steps), closing(open_duckdb()) as duckdb:
        reach_storage(duckdb, reachable_warehouses(lake_storage(mirror.settings)))
        mirror.await_live("public.t", "public.events")
        for number, (fault, method) in enumerate(_PASSING):
            met.append(faulty.arm(fault, method, times=1))
            database.execute(
                f"INSERT INTO t SELECT g, 'new' FROM generate_series({1000 + number * 10}, {1009 + number * 10}) g;"
                f" UPDATE t SET v = 'changed' WHERE id % 50 = {number}; DELETE FROM t WHERE id = {number}"
            )
            mirror.await_frontier()
        # A batch need not read anything.
        location, storage = mirror.location("public.t"), lake_storage(mirror.settings)
        await_true(lambda: read_bytes(location, storage) and all(armed.met for armed in met), 60, "each fault is met")
        tried = steps.count(Step.RETRYING)
        faulty.arm(StorageFault.SLOW_DOWN, "PUT")
        database.execute("UPDATE t SET v = 'away' WHERE id < 9")
        ((committed,),) = database.rows("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
        await_true(lambda: steps.count(Step.RETRYING) > tried, 120, "the pump tries again")
        assert (mirror.frontier() < committed, mirror.state("public.t")) == (True, "live")
        faulty.disarm()
        mirror.await_frontier()
        await_true(lambda: events.states()["p1"] == "dropped", 60, f"p1 dropped: {events.explained()}")
        events.assert_exact(duckdb)

        def merged() -> int:
            database.execute("INSERT INTO t SELECT max(id) + 1, 'more' FROM t")
            mirror.await_frontier()
            return steps.count(Step.MERGED)

        await_true(merged, 60, "a merge")
    assert_equal(mirror, "public.t", "public.events")


def test_commands_reach_the_store_and_say_what_is_wrong(
    other: RemoteLake, slot: str, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init`, `doctor`, profiles with credentials by reference, `connect`; credentials that are refused."""
    for name, value in other.environment.items():
        monkeypatch.setenv(name, value)
    # What is given wins over what the environment has.
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "AAAA")

    def command(*arguments: str, code: int = 0) -> str:
        result = run(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        return result.output

    command("init", "--warehouse", other.warehouse, "--slot", slot)
    checks = {check["check"]: check["outcome"] for check in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert checks["storage"] == "ok"
    secret = "storage_secret_key" if "storage_secret_key" in other.settings else "storage_session_token"
    file = tmp_path / "credentials"
    monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE_FILE", str(file))
    add = ("profile", "add", "archive", "--credentials", "archive", "--endpoint", other.settings["storage_endpoint"])
    file.write_text(f"{secret.removeprefix('storage_')}={other.settings[secret]}\n")
    command(*add, "--warehouse", f"{other.bucket}/{other.database.name}/archive")
    command("profile", "test")
    assert "has no region" in command(
        *add, "--warehouse", f"{other.bucket}/{other.database.name}/x", "--region", "eu", code=2
    )
    other.faulty.arm(StorageFault.REFUSED)
    refused = command("profile", "test", "archive", code=1)
    assert f"renew the credentials in {file}" in refused
    assert other.settings[secret] not in refused
    other.faulty.disarm()
    for engine in ("spark", "duckdb", "pyiceberg", "trino"):
        shown = command("connect", "--engine", engine)
        assert other.settings[secret] not in shown
    listed = list_files(other.warehouse, storage_of(Settings.model_validate(other.settings), other.warehouse))
    assert [file.location for file in listed] == []


@pytest.mark.parametrize("kind", ["path", "log"])
def test_tables_without_a_server(other: RemoteLake, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Commits create a file only if there is none of its name, which the store sees to; what nothing refers to goes."""
    root = f"{other.bucket}/{other.database.name}/{kind}"
    storage = storage_of(Settings.model_validate(other.settings), root)
    require_put_if_absent(root, storage)
    assert put_if_absent(f"{root}/once", b"first", storage)
    assert not put_if_absent(f"{root}/once", b"second", storage)
    other.faulty.arm(StorageFault.LOST_ANSWER, "PUT", times=1)
    assert put_if_absent(f"{root}/lost", b"there", storage), "the repetition finds what the first request wrote"
    with suppress(RuntimeError), open_output(f"{root}/part", storage) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert not exists(f"{root}/part", storage)
    odd = f"{root}/ü a%2Fb/[1]=?#*~'{{}}.bin"
    write_bytes(odd, b"odd", storage)
    assert read_bytes(odd, storage) == b"odd"
    assert {file.location for file in list_files(root, storage)} == {f"{root}/once", f"{root}/lost", odd}
    assert directory_answers(root, storage)
    delete(f"{root}/once", storage)
    delete(f"{root}/once", storage)
    delete_tree(root, storage)
    assert [*list_files(root, storage)] == []

    def catalog() -> StoredCatalog:
        return path_catalog(root, storage, transactions=kind == "log")

    table = Table.create(catalog(), "sales.orders", ROWS)
    table.append(rows(1))
    late = Table.open(catalog(), "sales.orders")
    table.append(rows(2))
    late.append(rows(3))
    orphan = f"{table.location}/data/orphan.parquet"
    write_bytes(orphan, b"x", storage)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 7200)
    removed = remove_orphans(catalog(), "sales.orders", grace=3600)
    assert [file.location for file in removed] == [orphan]
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


_SPARK = """
from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.lake.storage import write_bytes
from mirror_pump.ops.maintenance import sweep as sweeping
from mirror_pump.ops.maintenance.maintainer import maintain_tables, own_spark
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.ops.verify.verification import verify
from mirror_pump.settings.config import load_settings
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.maintenance import read_tables
from mirror_pump.source.connect import connect

settings = complete(load_settings())
for outcome in maintain_tables(settings, [], wait=True):
    print(outcome.table, outcome.lines, outcome.errors)
    assert not outcome.errors
storage = lake_storage(settings)
policy = Policy.model_construct(**{**dict(Policy()), "orphan_grace_hours": 0.0, "metadata_grace_hours": 0.0})
with connect(settings.require_dsn(), autocommit=True) as connection:
    ((location,),) = connection.execute("SELECT location FROM modak.mirror_tables").fetchall()
    ((table_id,),) = connection.execute("SELECT table_id FROM modak.mirror_tables").fetchall()
    orphan = f"{location}/data/orphan.parquet"
    write_bytes(orphan, b"x", storage)
    (table,) = read_tables(connection, settings.slot, [table_id])
    procedures = own_spark(settings)().at(location)
    swept = sweeping.SweptMirror(connection, settings.slot, storage, table.name, table, procedures)
    sweep = sweeping.sweep(swept, policy, dry_run=False, clock_skew=0)
print(sweep)
assert orphan in [file.location for file in sweep.files]
report = verify(settings)
assert report.equal, report.to_json()
"""


@pytest.mark.further
@pytest.mark.timeout(900)
def test_a_pump_on_spark_copies_and_follows(
    other: RemoteLake, slot: str, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks run in Spark's workers, not in threads as in the other tests."""
    for name, value in other.environment.items():
        monkeypatch.setenv(name, value)
    assert run("init", "--warehouse", other.warehouse, "--slot", slot).exit_code == 0
    other.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'copied' FROM generate_series(1, 500) g"
    )
    program = Program(other.database.dsn, tmp_path, other.environment)
    pump = program.start("run", log="pump.log")
    try:
        program.run("register", "t")
        for statement in ("UPDATE t SET v = 'new' WHERE id < 99", "DELETE FROM t WHERE id > 400"):
            other.database.execute(statement)
            program.run("wait", "--now", "--timeout", "300", timeout=400)
        program.run("verify")
    finally:
        program.kill(pump)


@pytest.mark.further
@pytest.mark.timeout(900)
def test_spark_maintains_and_compares(
    other: RemoteLake, slot: str, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg's Java library in Spark, an engine that is not ours: it rewrites and expires, and reads all rows."""
    for name, value in other.environment.items():
        monkeypatch.setenv(name, value)
    assert run("init", "--warehouse", other.warehouse, "--slot", slot).exit_code == 0
    other.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'copied' FROM generate_series(1, 500) g"
    )
    program = ThreadedProgram(other.database.dsn, tmp_path, other.environment)
    pump = program.start("run", log="pump.log")
    try:
        program.run("register", "t")
        for number in range(3):
            other.database.execute(f"UPDATE t SET v = 'new {number}' WHERE id < 99")
            program.run("wait", "--now", "--timeout", "60")
        done = subprocess.run(
            [sys.executable, "-c", _SPARK],
            env={**program.environment, "MIRROR_PUMP_LIMITS__VERIFY_SMALL_BYTES": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        program.kill(pump)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
