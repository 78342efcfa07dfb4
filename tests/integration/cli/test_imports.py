"""Which large packages each command loads: to import them is most of what a short command costs, so each does without
those that it has no use for. An import at the top of a module that many commands share fails here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.program import Program
from tests.support.ingest_scene import IngestScene

pytestmark = pytest.mark.further

_LARGE = (
    *("duckdb", "numpy", "opentelemetry", "psycopg", "pyarrow", "pyarrow.parquet", "pyiceberg", "pyiceberg.table"),
    *("pyspark", "rich", "starlette", "structlog"),
)
"""Each takes 20 to 400 ms."""

_WATCHED = f"""
import atexit, os, sys
def report():
    with open(os.environ["LOADED"], "w") as file:
        file.write(" ".join(name for name in {_LARGE} if name in sys.modules))
atexit.register(report)
from mirror_pump.cli.__main__ import main
main()
"""

_LINES = ("structlog", "rich")
"""A log line needs these. So does each error."""
_ROWS = ("numpy", "pyarrow", "pyarrow.parquet")
"""What handles rows needs these."""

_NEEDED = {
    "--version": (),
    "config --example": (),
    "init": ("psycopg",),
    "status --json": ("psycopg",),
    "status": ("psycopg", "rich"),
    "wait --now --timeout 60": ("psycopg",),
    "policy get events": ("psycopg",),
    "retain events": ("psycopg",),
    "profile list": ("psycopg",),
    "reader postgres --print": ("psycopg",),
    "connect --engine spark": ("psycopg",),
    "load events load.csv --label one": ("psycopg", *_ROWS),
    "ingest events ingest.csv": ("psycopg", *_ROWS, "pyiceberg", *_LINES),
}
"""By command: the packages of _LARGE that it may load."""


@pytest.mark.further
def test_each_command_loads_what_it_needs(database: Database, warehouse: str, tmp_path: Path) -> None:
    scene = IngestScene.create(database, warehouse, tmp_path)
    scene.csv("load.csv", [(390, 900, 1, "loaded")])
    scene.csv("ingest.csv", [(10, 900, 1, "of the lake"), (390, 901, 1, "of the heap")])
    environment = {**scene.mirror.settings.environment(), "LOADED": str(tmp_path / "loaded")}
    program = Program(database.dsn, tmp_path, environment)
    with scene.mirror.pumping():
        for command, needed in _NEEDED.items():
            done = subprocess.run(
                [sys.executable, "-c", _WATCHED, *command.split()],
                env=program.environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)
            loaded = set((tmp_path / "loaded").read_text().split())
            assert loaded <= set(needed), f"mirror-pump {command} loads {sorted(loaded - set(needed))}"
            assert set(needed) <= loaded, f"mirror-pump {command} does without {sorted(set(needed) - loaded)} now"
