"""Tasks need nothing of a node but Python: packages and credentials come with the archives and the tasks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mirror_pump.ops.verify import compare_duckdb
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, await_true
from tests.support.node_tasks import node_tasks, unpack_archives
from tests.support.retention_table import at_once


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with what executors get, 300 MB."""
    directory = tmp_path_factory.mktemp("node")
    unpack_archives(directory)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(params=["environment", pytest.param("files", marks=pytest.mark.soak)])
def dsn(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[str, str]:
    """A DSN that this process alone can connect with, and the password that is not in it."""
    given = {name: str(value) for name, value in conninfo_to_dict(database.dsn).items()}
    password = given.pop("password")
    if request.param == "environment":
        monkeypatch.setenv("PGPASSWORD", password)
        return make_conninfo("", **given), password
    passwords, services = tmp_path / "pgpass", tmp_path / "services"
    passwords.write_text(f"*:*:*:*:{password}\n")
    passwords.chmod(0o600)
    services.write_text("[shop]\n" + "".join(f"{name}={value}\n" for name, value in given.items()))
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    return "service=shop", password


def test_tasks_connect_with_what_only_the_driver_has(
    database: Database, warehouse: str, dsn: tuple[str, str], unpacked: Path
) -> None:
    """Copy, stream, conversion of deletes, proof and verify."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders SELECT g, 'v' FROM generate_series(1, 100) g",
        "CREATE TABLE events (at int PRIMARY KEY, v text) PARTITION BY RANGE (at)",
        "CREATE TABLE e0 PARTITION OF events FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE e1 PARTITION OF events FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE e2 PARTITION OF events FOR VALUES FROM (20) TO (30)",
        "INSERT INTO events SELECT g, 'v' FROM generate_series(0, 29) g",
    )
    with node_tasks(unpacked) as nodes, duckdb_connection() as duckdb:
        mirror = Mirror.create(
            database, warehouse, nodes, dsn=dsn[0], index_memory=0, convert_age=0.1, retention_interval=0.1
        )
        mirror.register("public.orders")
        mirror.register("public.events", retention=at_once("10"))
        with mirror.pumping():
            mirror.await_live("public.orders", "public.events")
            database.execute("UPDATE orders SET v = 'w' WHERE id <= 10", "DELETE FROM orders WHERE id > 90")
            await_true(lambda: database.rows("SELECT to_regclass('e0')::text") == [(None,)], 60, "e0 is dropped")
            await_true(lambda: "convert_deletes" in nodes.functions, 60, "deletes are converted")
            report = verify(mirror.settings, engine=ComparisonEngine(nodes, partial(compare_duckdb.compare, duckdb)))
        assert report.equal, report.to_json()
        assert nodes.functions >= {"copy_chunk", "apply_segment", "convert_deletes", "digest_heap", "digest_files"}
        assert not [text for text in nodes.shown if dsn[1] in text]
