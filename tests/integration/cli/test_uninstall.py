"""Uninstalling as docs/operations.md says leaves no trace in the database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand, install_threaded
from tests.support.database_catalogs import catalogs
from tests.support.retention_table import RetentionTable, at_once

pytestmark = pytest.mark.empty_database

_ROOT = Path(__file__).parents[3]
_PAGE = _ROOT / "docs" / "operations.md"


def _commands() -> str:
    """The commands of the section."""
    section = _PAGE.read_text(encoding="utf-8").split("\n## Uninstalling\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return str(block)


def test_no_trace_is_left(database: Database, run: RunCommand, warehouse: str, slot: str, tmp_path: Path) -> None:
    """With event triggers, triggers on partitions, a DEFAULT partition of ours, and rights that were granted."""
    RetentionTable(database, 2, name="customers").create_tables("at bigint PRIMARY KEY, v text")
    database.execute(
        "CREATE TABLE public.orders (id int PRIMARY KEY, v text)", "INSERT INTO public.orders VALUES (1, 'a')"
    )
    before = catalogs(database)
    assert run("init", "--warehouse", warehouse, "--slot", slot, "--publication", f'{slot}"; --').exit_code == 0
    mirror = Mirror(database, complete(Settings(dsn=database.dsn, slot=slot, storage_fsync=False)), ThreadTaskRunner())
    mirror.register("public.orders")
    mirror.register("public.customers", retention=at_once("1000"))
    mirror.catch_up()
    during = catalogs(database)
    assert {"pg_event_trigger", "pg_trigger", "pg_publication", "pg_namespace", "slots"} <= _different(before, during)
    install_threaded(tmp_path)
    paths = (tmp_path, Path(sys.executable).parent, database.server.binary("psql").parent, os.environ["PATH"])
    done = subprocess.run(
        ["bash", "-eu", "-c", _commands()],
        env={
            **os.environ,
            "PATH": os.pathsep.join(map(str, paths)),
            "MIRROR_PUMP_DSN": database.dsn,
            "PYTHONPATH": str(_ROOT),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after = catalogs(database)
    assert {name: (set(before[name]) ^ set(after[name])) for name in _different(before, after)} == {}


def _different(one: dict[str, list[tuple[object, ...]]], other: dict[str, list[tuple[object, ...]]]) -> set[str]:
    return {name for name in one if one[name] != other[name]}
