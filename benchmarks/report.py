"""The machine, the printed table, latest.json, and the figures in docs/performance.md."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks import readers
from benchmarks.comparison import NOTABLE, Figures, worse
from benchmarks.outcome import Line

_PACKAGES = ("pyspark", "pyarrow", "numpy", "adbc-driver-postgresql", "psycopg")
_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"

Facts = Mapping[str, str | float | int]
_CLUSTER = "cluster: "
"""Beginning of the lines that belong to the document on scaling."""
_READ = "read: "
"""Beginning of the lines that belong to the document on readers."""
_LOCAL = "local[2]"
COLUMNS = ("what", "ours", "limit", "ratio", "goal", "remark")


def machine() -> dict[str, str | float | int]:
    """What the figures depend on most. The load average tells whether the machine did anything else."""
    cpu = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")]
    return {
        "machine.date": datetime.now(UTC).date().isoformat(),
        "machine.cpu": cpu[0] if cpu else platform.processor(),
        "machine.cores": os.cpu_count() or 0,
        "machine.memory_mb": round(int(memory[0]) * 1024 / 1e6) if memory else 0,
        # The version only: the rest names a build.
        "machine.system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "machine.load_average_before": round(os.getloadavg()[0], 2),
        "version.python": platform.python_version(),
        **{f"version.{package}": version(package) for package in _PACKAGES},
    }


def print_report(console: Console, facts: Facts, lines: Iterable[Line]) -> None:
    table = Table(title=_machine_text(facts), title_justify="left", title_style="")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("limit", "ratio") else "left")
    for line in lines:
        table.add_row(*_cells(line))
    console.print(table)
    console.print(_server_text(facts), style="dim")


def print_comparison(console: Console, figures: Figures, before: Figures | None) -> None:
    """What got slower or larger since the last figures of this kind of machine."""
    if before is None:
        console.print("no figures of this kind of machine are kept: `--document` keeps these")
        return
    found = worse(figures, before)
    than = "than the last figures of this kind of machine"
    if not found:
        console.print(f"nothing is worse by {NOTABLE - 1:.0%} or more {than}")
        return
    title = f"worse {than}"
    table = Table("figure", "before", "now", "times as bad", title=title, title_justify="left", title_style="")
    for one in found:
        table.add_row(one.name, f"{one.before:,g}", f"{one.now:,g}", f"{one.factor:.2f}")
    console.print(table)


def write_json(path: Path, figures: Mapping[str, object], lines: Iterable[Line]) -> None:
    """Flat keys; `report` has the lines as they were printed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**figures, "report": [_cells(line) for line in lines]}
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def write_document(path: Path, kinds: Sequence[Mapping[str, Any]]) -> None:
    """Put the last figures of each kind of machine between the markers of the document. CPU by process and the
    memory of runs that are not about it are left out."""
    sections = []
    for kind in kinds:
        rows = [
            (*cells[:-1], cells[-1].partition("CPU s:")[0].rstrip("; "))
            for cells in kind["report"]
            if not cells[0].startswith((_CLUSTER, _READ)) and not cells[0].endswith(": memory")
        ]
        sections.append(
            f"### {kind['machine.cpu']}\n\n{_machine_text(kind)}  \n{_server_text(kind)}\n\n{_table(COLUMNS, rows)}"
        )
    _replace_figures(path, "\n\n".join(sections))


def write_scaling_document(path: Path, results: Path) -> bool:
    """The same for the document on scaling. False, and nothing is written, if the last run was without `cluster`. Two
    and four executors share the cores of one: their rows are left out."""
    content = orjson.loads(results.read_bytes())
    rows = [[cells[0].removeprefix(_CLUSTER), *cells[1:4], cells[5]] for cells in content["report"]
            if cells[0].startswith(_CLUSTER) and not re.search("[24] executors", cells[0])]  # fmt: skip
    if not rows:
        return False
    head = ("what", "rate", _LOCAL, "ratio", "remark")
    sizes = (
        f"{content['cluster.rows']:,} rows of {content['cluster.heap_bytes_per_row']} bytes in the heap and"
        f" {content['cluster.lake_bytes_per_row']} in the lake; {content['cluster.changes']:,} changes with"
        f" {content['cluster.wal_bytes_per_change']} bytes of WAL each, of which"
        f" {content['cluster.full_page_bytes_per_change']} are images of full pages;"
        f" {content['cluster.objects_per_commit']} objects written for each commit."
    )
    _replace_figures(path, f"{_machine_text(content)}. {sizes}\n\n{_table(head, rows)}")
    return True


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(("", *cells, "")).strip() for cells in (head, *rows)]
    lines.insert(1, "|" + " --- |" * len(head))
    return "\n".join(lines)


def write_readers_document(path: Path, results: Path) -> bool:
    """The same for the document on readers. Returns False, and writes nothing, if the last run was without `read`."""
    content = orjson.loads(results.read_bytes())
    if "read.rows" not in content:
        return False
    _replace_figures(path, f"{_machine_text(content)}\n\n{readers.tables(content)}")
    return True


def _replace_figures(path: Path, figures: str) -> None:
    before, begin, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {_BEGIN} and {_END}")
    path.write_text(f"{before}{begin}\n{figures}\n{end}{after}", encoding="utf-8")


def _cells(line: Line) -> tuple[str, ...]:
    return (line.what, line.ours, line.limit, line.ratio, line.goal, line.remark)


def _machine_text(facts: Facts) -> str:
    scale = "" if facts["scale"] == 1 else f"; at SCALE {facts['scale']}, so these are no figures to quote"
    return (
        f"{facts['machine.cpu']}, {facts['machine.cores']} cores, {facts['machine.memory_mb']:,} MB, "
        f"{facts['machine.system']}; on {facts['machine.date']}, load average before: "
        f"{facts['machine.load_average_before']}{scale}"
    )


def _server_text(facts: Facts) -> str:
    settings = ", ".join(
        f"{key.removeprefix('server.')} {value}"
        for key, value in facts.items()
        if key.startswith("server.") and key != "server.server_version"
    )
    versions = ", ".join(
        f"{key.removeprefix('version.')} {value}" for key, value in facts.items() if key.startswith("version.")
    )
    return f"PostgreSQL {facts['server.server_version']} on the same machine ({settings}); {versions}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
