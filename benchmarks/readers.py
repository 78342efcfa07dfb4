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
    lines += ["", "| engine | state | full scan | rows/s | ratio | look-up by key | ratio |", "|" + " --- |" * 7]
    for engine in ENGINES:
        lines += _engine(engine, content)
    return "\n".join(lines)


def _engine(engine: str, content: Content) -> Iterator[str]:
    version = content.get(f"read.version_{engine}", engine)
    if f"read.{engine}_{FRESH}_scan_s" not in content and f"read.{engine}_{FRESH}_error" not in content:
        yield _row(engine, "", f"not run: {version}", "", "", "", "")
        return
    base = f"read.{engine}_{MAINTAINED}"
    for state, name in _STATES.items():
        scan, point = content.get(f"read.{engine}_{state}_scan_s"), content.get(f"read.{engine}_{state}_point_s")
        if scan is None or point is None:
            if error := content.get(f"read.{engine}_{state}_error"):
                yield _row(version, name, " ".join(error.replace("|", "/").split())[:160], "", "", "", "")
            continue
        scan_base, point_base = content.get(f"{base}_scan_s"), content.get(f"{base}_point_s")
        yield _row(
            version,
            name,
            f"{scan:.2f} s",
            f"{content[f'read.{state}_rows'] / scan / 1e6:.1f} M",
            f"{scan / scan_base:.2f}" if scan_base else "",
            f"{point * 1000:,.0f} ms",
            f"{point / point_base:.2f}" if point_base else "",
        )


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
