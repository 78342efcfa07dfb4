"""Runs the snippets that `connect` prints as a user does."""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import duckdb

from mirror_pump.testing.database import Database
from tests.support.readers import ReaderRole


def execute(snippet: str, user: Database | ReaderRole, directory: Path, **environment: str) -> str:
    """Runs a Python snippet as a user would: pasted into a file, with the password in the environment."""
    password = user.password if isinstance(user, ReaderRole) else user.server.password
    script = directory / "pasted.py"
    script.write_text(snippet)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PGPASSWORD": password, **environment},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def duckdb_home(directory: Path) -> str:
    """A home directory in which DuckDB finds its extensions, so that INSTALL downloads nothing."""
    ((platform,),) = duckdb.sql("PRAGMA platform").fetchall()
    version = f"v{duckdb.__version__}"
    target = directory / "home" / ".duckdb" / "extensions" / version / platform
    target.mkdir(parents=True)
    for name in ("avro", "httpfs", "iceberg"):
        files = importlib.resources.files(f"duckdb_extension_{name}") / "extensions" / version
        (target / f"{name}.duckdb_extension").write_bytes((files / f"{name}.duckdb_extension").read_bytes())
    return str(directory / "home")
