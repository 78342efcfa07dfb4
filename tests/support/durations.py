"""What each test costs: two pytest plugins that keep seconds of the clock and of CPU, and shows what has become dearer.

A run writes build/test-durations.json, which CI keeps. tests/durations.json has the figures of a former run on an idle
machine with two cores; `make durations` replaces it by those of the latest run. Growth fails nothing: it is printed.
CPU seconds are compared, since the clock also tells what else the machine did.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
LATEST = _ROOT / "build" / "test-durations.json"
KEPT = _ROOT / "tests" / "durations.json"

_SHORT = 1.0
"""CPU seconds. Functions that take less are not in KEPT: most do, and their figures are noise."""
_GROWTH = 1.5
"""A function that takes this many times as much CPU as before, and `_SHORT` more, is shown."""
_SHOWN = 20
_CPU = "cpu_seconds"
"""Property of a test's last report, on its way from the process that ran the test."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """What all cases of a test function took, with set-up and teardown. What tests share is part of the first one."""

    seconds: float = 0.0
    cpu: float = 0.0

    def to_json(self) -> list[float]:
        """Rounded seconds of the clock and of CPU."""
        return [round(self.seconds, 1), round(self.cpu, 1)]


class CpuClock:
    """CPU seconds of this process, of its Java and of all processes that it started and that have ended; and of a
    PostgreSQL with its sessions, which is no child of ours. Orphans of killed processes are missing."""

    def __init__(self) -> None:
        self.postmaster: Path | None = None
        """The lock file of that server, with the postmaster's process ID in the first line."""

    def read(self) -> float:
        """The seconds so far. May fall if a server was restarted."""
        return sum(os.times()[:4]) + self._server() + _java()

    def _server(self) -> float:
        try:
            if self.postmaster is None:
                return 0.0
            server = int(self.postmaster.read_text().split()[0])
            sessions = Path(f"/proc/{server}/task/{server}/children").read_text().split()
            return _process_seconds(server) + sum(_process_seconds(int(session)) for session in sessions)
        except (OSError, ValueError, IndexError):
            return 0.0


CLOCK = CpuClock()


def _java() -> float:
    """Those of the process that pyspark has started, if it runs."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    return _process_seconds(process.pid) if process is not None and process.poll() is None else 0.0


def _process_seconds(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    try:
        # The name of the program stands in parentheses, and may have any characters.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


class Measurement:
    """In the process that runs tests: adds the CPU of each to its last report."""

    def __init__(self) -> None:
        self._begin = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._begin = CLOCK.read()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_CPU, max(CLOCK.read() - self._begin, 0.0)))
        return report


class Record:
    """In the process that has all reports: writes LATEST, and shows growth."""

    def __init__(self) -> None:
        self._costs: dict[str, Cost] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self._costs.setdefault(function_of(report.nodeid), Cost())
        cost.seconds += report.duration
        cost.cpu += sum(value for name, value in report.user_properties if name == _CPU and isinstance(value, float))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._costs:
            return
        LATEST.parent.mkdir(exist_ok=True)
        write(LATEST, {name: cost.to_json() for name, cost in self._costs.items()})
        total = sum(cost.cpu for cost in self._costs.values())
        terminalreporter.section("what tests cost")
        terminalreporter.write_line(
            f"{total:.0f} s of CPU in {len(self._costs)} functions: {LATEST.relative_to(_ROOT)}"
        )
        kept = read(KEPT)
        for line in growth(kept, self._costs)[:_SHOWN] if kept else ():
            terminalreporter.write_line(line)


def function_of(node_id: str) -> str:
    """The test function of a case."""
    return node_id.partition("[")[0]


def growth(kept: Mapping[str, Cost], latest: Mapping[str, Cost]) -> list[str]:
    """A line for each function that takes much more CPU than before, largest growth first. A function that was not
    kept is taken for a short one."""
    grown = []
    for name, cost in latest.items():
        former = kept.get(name, Cost()).cpu
        if cost.cpu > max(former, _SHORT) * _GROWTH and cost.cpu > former + _SHORT:
            grown.append((cost.cpu - former, f"{former:.1f} -> {cost.cpu:.1f} s of CPU: {name}"))
    return [line for _, line in sorted(grown, reverse=True)]


def read(path: Path) -> dict[str, Cost]:
    """Costs by function; empty without the file."""
    if not path.exists():
        return {}
    return {name: Cost(*figures) for name, figures in json.loads(path.read_text()).items()}


def write(path: Path, costs: Mapping[str, list[float]]) -> None:
    """One function a line, in order, so that a diff can be read."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(figures)}" for name, figures in sorted(costs.items()))
    path.write_text(f"{{\n{lines}\n}}\n")


def register(config: pytest.Config) -> None:
    """Makes a run measure its tests, in whichever processes they run."""
    config.pluginmanager.register(Measurement(), "cpu-measurement")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(), "cpu-record")


def main() -> None:
    """Makes the figures of the latest run those to compare with. Tests that it left out keep theirs."""
    former = {name: cost for name, cost in read(KEPT).items() if (_ROOT / name.partition("::")[0]).exists()}
    costs = {**former, **read(LATEST)}
    write(KEPT, {name: cost.to_json() for name, cost in costs.items() if cost.cpu >= _SHORT})


if __name__ == "__main__":
    main()
