"""Fixtures that all folders share, such as the program, run on the test's database."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mirror_pump.cli.main import app
from mirror_pump.engine.rewrite.file_merge import merge_files
from mirror_pump.errors import speak_of
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.lake_tables import SmallTable


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment holds no settings of the program, and the current directory is empty."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MIRROR_PUMP_{name.upper()}", raising=False)
    # The width of the terminal in which the tests run.
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def slot() -> str:
    """The name of a replication slot. Slots belong to the server and databases to tests, so each test needs its own."""
    return f"s_{os.urandom(4).hex()}"


@pytest.fixture
def run(database: Database, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Runs the program on the test's database, in this process."""
    monkeypatch.setenv("MIRROR_PUMP_DSN", database.dsn)
    priority = os.getpriority(os.PRIO_PROCESS, 0)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        # `maintain` lowers that of its process, which is this one: later tests would wait for everything else that the
        # machine does. Only root may raise it again.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, priority)
        # The command's mirror is that of its process.
        speak_of(None)
        return result

    return invoke


@pytest.fixture
def gate(tasks: ThreadTaskRunner) -> GatedCopies:
    """Tasks run in threads. Those of copies wait until the test releases them."""
    return GatedCopies(tasks)


@pytest.fixture
def merge_gate(tasks: ThreadTaskRunner) -> GatedCopies:
    """Tasks run in threads. Those that merge or fill files wait until the test releases them."""
    return GatedCopies(tasks, merge_files)


@pytest.fixture
def table(database: Database, warehouse: str) -> SmallTable:
    """A small lake table in the catalog, for tests of commits and of engines that read them."""
    with database.connect() as connection:
        migrate(connection)
    return SmallTable(f"{warehouse}/public/t", database.dsn)


@pytest.fixture
def file_table(warehouse: str) -> SmallTable:
    """A small lake table that is not in the catalog."""
    return SmallTable(f"{warehouse}/public/t")
