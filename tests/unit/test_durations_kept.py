"""Growth of what tests cost, as it is shown after a run."""

from __future__ import annotations

from pathlib import Path

from tests.support.durations import KEPT, Cost, CpuClock, function_of, growth, read, write


def test_what_takes_much_more_cpu_than_before_is_shown_largest_first() -> None:
    kept = {"a": Cost(9.0, 2.0), "b": Cost(1.0, 10.0), "c": Cost(1.0, 4.0)}
    latest = {
        "a": Cost(1.0, 4.0),
        "b": Cost(90.0, 14.0),
        "c": Cost(1.0, 9.0),
        "short": Cost(5.0, 1.4),
        "new": Cost(0.0, 2.5),
    }
    assert growth(kept, latest) == [
        "4.0 -> 9.0 s of CPU: c",
        "0.0 -> 2.5 s of CPU: new",
        "2.0 -> 4.0 s of CPU: a",
    ]


def test_costs_of_all_cases_count_as_one_functions(tmp_path: Path) -> None:
    assert function_of("tests/unit/test_a.py::test_b[x::y[0]]") == "tests/unit/test_a.py::test_b"
    path = tmp_path / "costs.json"
    assert read(path) == {}
    write(path, {"b": [0.1, 0.2], "a": [3.0, 4.0]})
    assert read(path) == {"a": Cost(3.0, 4.0), "b": Cost(0.1, 0.2)}
    assert path.read_text().count("\n") == 4


def test_the_clock_counts_this_process() -> None:
    clock = CpuClock()
    before = clock.read()
    sum(range(3_000_000))
    assert clock.read() > before


def test_kept_functions_exist() -> None:
    missing = [name for name in read(KEPT) if not (KEPT.parents[1] / name.partition("::")[0]).exists()]
    assert not missing, "run `make test` and `make durations`"
