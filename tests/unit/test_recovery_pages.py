"""docs/faults.md and docs/versions.md: a fault has what is lost and how long it takes; versions are the program's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from benchmarks.bench_faults import FAULTS
from mirror_pump.engine.spark_runtime.java import MINIMUM
from mirror_pump.engine.spark_runtime.session import ICEBERG_PACKAGE
from mirror_pump.source.server import NEWEST_MAJOR, OLDEST_MAJOR

_ROOT = Path(__file__).parents[2]
_FAULTS = (_ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
_VERSIONS = (_ROOT / "docs" / "versions.md").read_text(encoding="utf-8")


def _rows(page: str, first_column: str) -> list[list[str]]:
    """The rows of the table whose header begins so."""
    (table,) = re.findall(rf"^\| {first_column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in str(table).splitlines()]


def test_each_fault_says_what_is_lost_how_long_it_takes_and_how_it_was_tried() -> None:
    rows = _rows(_FAULTS, "fault")
    assert len(rows) > 15
    for fault, happens, lost, back, tried in rows:
        assert all((fault, happens, lost, back)), fault
        assert "tests/" in tried, fault


def test_times_are_those_that_the_benchmark_measures() -> None:
    measured = [name for row in _rows(_FAULTS, "measured") for name in re.findall(r"^\|? ?\*([^*]+)\*", row[0])]
    assert measured == list(FAULTS)
    assert all(re.fullmatch(r"\d+\.\d s", row[1].strip(" |")) for row in _rows(_FAULTS, "measured"))
    used = {name for row in _rows(_FAULTS, "fault") for name in re.findall(r"\*([^*]+)\*", row[3])}
    assert used == set(FAULTS)


def test_versions_are_those_of_the_program() -> None:
    listed = {int(major) for major in re.findall(r"^\| PostgreSQL (\d+) \|", _VERSIONS, re.MULTILINE)}
    assert set(range(OLDEST_MAJOR, NEWEST_MAJOR + 1)) == listed
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (spark,) = (wanted for wanted in project["dependencies"] if wanted.startswith("pyspark"))
    assert f"{spark.replace('pyspark', 'pyspark ')} with Iceberg {ICEBERG_PACKAGE.rpartition(':')[2]}" in _VERSIONS
    assert f"| Python | {project['requires-python']} |" in _VERSIONS
    assert f"| Java | {MINIMUM} and" in _VERSIONS
