"""What `make bench` tells of figures that got worse."""

from __future__ import annotations

from pathlib import Path

from benchmarks.comparison import all_figures, keep, kind_of_machine, last_figures, worse

MACHINE: dict[str, object] = {"machine.cpu": "AMD EPYC 9B14", "machine.cores": 2, "scale": 1.0}


def figures(**changed: float) -> dict[str, object]:
    named = {name.replace("__", "."): figure for name, figure in changed.items()}
    return {**MACHINE, **named}


def test_slower_and_larger_figures_are_told_worst_first() -> None:
    before = figures(
        cdc__ratio=1.5, cdc__changes_per_s=200_000, lag__p99_s=0.3, memory__cdc_total_mb=1000, read__duckdb_ratio=1.0
    )
    now = figures(
        cdc__ratio=1.2, cdc__changes_per_s=190_000, lag__p99_s=0.6, memory__cdc_total_mb=900, read__duckdb_ratio=1.2
    )
    found = worse(now, before)
    assert [one.name for one in found] == ["lag.p99_s", "cdc.ratio", "read.duckdb_ratio"]
    assert [round(one.factor, 2) for one in found] == [2.0, 1.25, 1.2]


def test_better_figures_limits_and_counts_are_not_told() -> None:
    before = figures(cdc__ratio=1.0, cdc__limit_changes_per_s=200_000, cdc__commits=20, lag__p50_s=0.2, copy__ratio=0)
    now = figures(cdc__ratio=1.5, cdc__limit_changes_per_s=100_000, cdc__commits=10, lag__p50_s=0.1, copy__ratio=0.5)
    assert worse(now, before) == ()


def test_runs_of_different_sizes_are_not_compared() -> None:
    before = figures(cdc__ratio=1.5)
    assert worse({**figures(cdc__ratio=0.5), "scale": 0.1}, before) == ()


def test_figures_are_kept_by_kind_of_machine_and_those_of_other_benchmarks_stay(tmp_path: Path) -> None:
    first = {
        **figures(cdc__ratio=1.5, lag__p50_s=0.2, lag__p99_s=0.4),
        "report": [["cdc", "1.5"], ["lag", "0.2 s"], ["lag: memory", "900 MB"]],
    }
    assert last_figures(first, tmp_path) is None
    path = keep(first, tmp_path)
    assert path.name == "amd-epyc-9b14-2-cores.json"
    keep({**figures(lag__p50_s=0.1), "report": [["lag, by default", "0.1 s"]]}, tmp_path)
    expected = {**figures(cdc__ratio=1.5, lag__p50_s=0.1), "report": [["cdc", "1.5"], ["lag, by default", "0.1 s"]]}
    assert last_figures(first, tmp_path) == expected
    other = {**first, "machine.cores": 4}
    assert last_figures(other, tmp_path) is None
    assert kind_of_machine(other) == "amd-epyc-9b14-4-cores"
    keep(other, tmp_path)
    assert all_figures(tmp_path) == [expected, other]
