"""The dbt project of deploy/dbt/ follows a mirrored table by its change feed. `make dbt` fetches dbt and runs this."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import duckdb
import pytest

from mirror_pump.model import FeedMode, format_lsn
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pasted import duckdb_home
from tests.support.rest_catalog import ServedMirror, served

pytestmark = [pytest.mark.dbt, pytest.mark.timeout(600)]

_ROOT = Path(__file__).parents[2]
_PROJECT = _ROOT / "deploy" / "dbt"


class _Project:
    """The project, in a directory, of one mirror."""

    def __init__(self, directory: Path, mirror: Mirror, catalog: ServedMirror) -> None:
        self._directory = directory
        shutil.copytree(_PROJECT, directory, dirs_exist_ok=True)
        profile = directory / "profiles.yml"
        profile.write_text(profile.read_text().replace("http://127.0.0.1:8181/iceberg", catalog.uri))
        commands = directory / "bin"
        commands.mkdir()
        program = _ROOT / ".venv" / "bin" / "python"
        for name, module in (("mirror-pump", "mirror_pump.cli"), ("dbt", "dbt.cli.main")):
            # dbt brings packages of its own, which are not for our program.
            path = f"PYTHONPATH={_ROOT / 'build' / 'dbt'}" if name == "dbt" else ""
            (commands / name).write_text(f'#!/bin/sh\n{path} exec {program} -m {module} "$@"\n')
            (commands / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "HOME": duckdb_home(directory),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "MIRROR_PUMP_DSN": mirror.database.dsn,
            "MIRROR_PUMP_SLOT": mirror.settings.slot,
            "PGPASSWORD": mirror.database.server.password,
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        }

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "run.sh", *options],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def rows(self) -> list[tuple[object, ...]]:
        with duckdb.connect(str(self._directory / "own.duckdb"), read_only=True) as own:
            rows: list[tuple[object, ...]] = own.execute(
                "SELECT id, customer, total FROM current_orders ORDER BY id"
            ).fetchall()
            return rows

    def frontier(self) -> str:
        return (self._directory / "frontier").read_text().strip()


def test_a_project_follows_by_intervals(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10,2))",
        "INSERT INTO orders SELECT g, 'c' || g, g FROM generate_series(1, 20) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("orders", feed=FeedOptions(FeedMode.KEYS))
    mirror.catch_up()
    heap = "SELECT id, customer, total FROM orders ORDER BY id"
    with served(mirror.settings) as catalog:
        project = _Project(tmp_path, mirror, catalog)
        for number in range(4):
            done = project.run()
            assert done.returncode == 0, done.stdout + done.stderr
            assert project.rows() == database.rows(heap)
            assert project.frontier() == format_lsn(mirror.frontier())
            if number == 1:
                # Nothing has changed, and the same interval is taken once more.
                (tmp_path / "frontier").write_text(format_lsn(mirror.frontier() - 1))
                assert project.run().returncode == 0
                assert project.rows() == database.rows(heap)
            database.execute(
                f"UPDATE orders SET total = total + {number} WHERE id % 3 = 0",
                f"DELETE FROM orders WHERE id % 7 = {number}",
                f"INSERT INTO orders VALUES ({100 + number}, 'new', 1)",
                f"INSERT INTO orders VALUES ({7 + number}, 'again', 2) ON CONFLICT DO NOTHING",
                f"UPDATE orders SET id = id + 1000 WHERE id = {100 + number}",
            )
            mirror.catch_up()
        database.execute("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'afresh', 1)")
        mirror.catch_up()
        before = project.frontier()
        refused = project.run()
        assert (refused.returncode == 0, project.frontier()) == (False, before)
        assert "run dbt with --full-refresh" in refused.stdout
        assert project.run("--full-refresh").returncode == 0
        assert project.rows() == database.rows(heap)
