"""Options and results of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.pumping import Profiling


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    scale: float = 1.0
    """Factor to the numbers of rows, changes, seconds and commits."""
    repeat: int = 3
    """Runs of cdc and copy, whose median counts."""
    verify: bool = True
    tables: int | None = None
    """Number of tables of the benchmark of that name; None: its own."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the pump that override the benchmarks' own."""
    profiling: Profiling | None = None

    def scaled(self, number: int, least: int, multiple: int = 1) -> int:
        """`number` at this scale, at least `least`, a multiple of `multiple`."""
        return max(least, round(number * self.scale)) // multiple * multiple


@dataclass(frozen=True)
class Line:
    """A line of the printed table."""

    what: str
    ours: str
    limit: str = ""
    ratio: str = ""
    goal: str = ""
    remark: str = ""


@dataclass(frozen=True)
class BenchmarkResult:
    """A benchmark's figures: for latest.json, and for people."""

    figures: Mapping[str, float | int | str | bool]
    lines: tuple[Line, ...]


def cpu_text(seconds: Mapping[str, float]) -> str:
    """CPU seconds by role, for the roles that used any."""
    return "CPU s: " + ", ".join(f"{role} {used:.1f}" for role, used in seconds.items() if used >= 0.05)
