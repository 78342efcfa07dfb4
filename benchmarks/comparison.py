"""Compares a run with the last figures of the same kind of machine, which are kept in benchmarks/figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

FIGURES = Path(__file__).parent / "figures"
NOTABLE = 1.1
"""A figure is told as worse from this factor on: runs of the same program on one machine differ by some percent."""

_NOT_OURS = re.compile(r"limit|pyiceberg|copy_seconds|merge_s$|^setting|^server|^version|^machine")
"""Figures of limits and of the scene."""
_HIGH = re.compile(r"_per_s$|^(copy|cdc|lake|lake_plan)\..*ratio$")
"""Figures that are better if they are higher."""
_LOW = re.compile(r"(seconds|_s|_ms|_us|_mb|_bytes|ratio|growth|per_million)$")
"""... of the others, those that are better if they are lower."""

_READABLE = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE

Figures = Mapping[str, object]


@dataclass(frozen=True)
class Worse:
    """A figure that is worse than the last one."""

    name: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        """How many times as bad, at least 1."""
        return max(self.before, self.now) / min(self.before, self.now)


def kind_of_machine(facts: Figures) -> str:
    """Processor and number of cores, as a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", f"{facts['machine.cpu']} {facts['machine.cores']} cores".lower()).strip("-")


def last_figures(facts: Figures, directory: Path = FIGURES) -> dict[str, Any] | None:
    """Those of the same kind of machine; None if there are none. `report` has the printed lines."""
    path = _path(facts, directory)
    return orjson.loads(path.read_bytes()) if path.exists() else None


def all_figures(directory: Path = FIGURES) -> list[dict[str, Any]]:
    """The last figures of each kind of machine."""
    return [orjson.loads(path.read_bytes()) for path in sorted(directory.glob("*.json"))]


def keep(content: Mapping[str, Any], directory: Path = FIGURES) -> Path:
    """Makes the figures of latest.json the last ones of its kind of machine. Those of benchmarks that it does not have
    stay."""
    path = _path(content, directory)
    path.parent.mkdir(exist_ok=True)
    before = last_figures(content, directory) or {"report": []}
    measured = {_benchmark(cells) for cells in content["report"]}
    names = {name.partition(".")[0] for name in content}
    figures = {name: figure for name, figure in before.items() if name.partition(".")[0] not in names}
    report = [cells for cells in before["report"] if _benchmark(cells) not in measured] + list(content["report"])
    path.write_bytes(orjson.dumps({**figures, **content, "report": sorted(report, key=_benchmark)}, option=_READABLE))
    return path


def _benchmark(cells: Sequence[str]) -> str:
    """The benchmark that a printed line belongs to."""
    return re.split(r"[:,]", cells[0])[0]


def worse(now: Figures, before: Figures) -> tuple[Worse, ...]:
    """The figures that are worse by `NOTABLE` or more, the worst first. Nothing if the runs' sizes differ."""
    if now.get("scale") != before.get("scale"):
        return ()
    found = [one for one in _both(now, before) if one.factor >= NOTABLE]
    return tuple(sorted(found, key=lambda one: -one.factor))


def _both(now: Figures, before: Figures) -> Iterator[Worse]:
    for name, figure in now.items():
        former = before.get(name)
        if not isinstance(figure, int | float) or not isinstance(former, int | float) or min(figure, former) <= 0:
            continue
        if _NOT_OURS.search(name):
            continue
        is_worse = figure < former if _HIGH.search(name) else figure > former if _LOW.search(name) else False
        if is_worse:
            yield Worse(name, float(former), float(figure))


def _path(facts: Figures, directory: Path) -> Path:
    return directory / f"{kind_of_machine(facts)}.json"
