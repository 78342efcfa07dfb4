"""The figures in docs/readers.md: engine x state of the table, from the last run's flat figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.bench_read import CONVERTED, FRESH, HOUR, LOAD, MAINTAINED
from benchmarks.reading import ENGINES

Content = Mapping[str, Any]

_STATES = {
    FRESH: "fresh copy",
    LOAD: "under load",
    CONVERTED: "the same, its equality deletes converted",
    HOUR: "after an hour",
    MAINTAINED: "after maintenance",
}


def tables(content: Content) -> str:
    """Two tables in Markdown; `read` must have been part of the run."""
    lines = ["| state | rows | data files | delete files | position deletes | equality deletes |", "|" + " --- |" * 6]
    for state, name in _STATES.items():
        if f"read.{state}_rows" in content:
            counts = (content[f"read.{state}_{key}"] for key in
                      ("rows", "data_files", "delete_files", "position_deletes", "equality_deletes"))  # fmt: skip
            lines.append(_row(f"{name} {_remark(state, content)}".strip(), *(f"{count:,}" for count in counts)))
    states = {state: name for state, name in _STATES.items() if f"read.{state}_rows" in content}
    lines += ["", _row("engine", *states.values()), "|" + " --- |" * (len(states) + 1)]
    lines += [
        _row(content.get(f"read.version_{engine}", engine), *_times(engine, states, content)) for engine in ENGINES
    ]
    return "\n".join(lines)


def _times(engine: str, states: Mapping[str, str], content: Content) -> Iterator[str]:
    """Of each state, the seconds of a full scan and the milliseconds of a look-up by key, or the error."""
    if f"read.{engine}_{FRESH}_scan_s" not in content and f"read.{engine}_{FRESH}_error" not in content:
        yield from ["not run", *[""] * (len(states) - 1)]
        return
    for state in states:
        scan, point = content.get(f"read.{engine}_{state}_scan_s"), content.get(f"read.{engine}_{state}_point_s")
        if scan is None or point is None:
            yield " ".join(content.get(f"read.{engine}_{state}_error", "").replace("|", "/").split())[:160]
        else:
            yield f"{scan:.2f} s, {point * 1000:,.0f} ms"


def _remark(state: str, content: Content) -> str:
    if state == LOAD:
        return f"({content['read.changes']:,} changes in {content['read.commits']:,} commits)"
    if state == CONVERTED:
        return f"({content['read.equality_deletes_gone_s']:.0f} s after the last change)"
    if state == HOUR:
        return f"({content['commits.warm_up'] + content['commits.count']:,} small commits after the maintenance)"
    return ""


def _row(*cells: object) -> str:
    return " | ".join(("", *map(str, cells), "")).strip()
