"""read: how long independent engines take for a table under load, compared with the same table freshly compacted.

After the initial copy, 1,000,000 changes arrive in 500 commits; then maintenance compacts the table while the pump
runs. Snapshots never change, so all states are read at the end, in turns: the pump runs and commits meanwhile, and
other load on the machine affects every state. Each answer is compared with the heap at that frontier.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.reading import (
    ENGINES,
    Moment,
    ReaderProcess,
    Reading,
    current,
    current_snapshot,
    metadata,
    moment,
    without_equality_deletes,
)
from benchmarks.scene import BenchmarkMirror
from benchmarks.writing import steady_writer, write_one_by_one
from mirror_pump.pipeline.flow.steps import Step

COMMITS = 500
_MAINTAIN_SECONDS = 900.0
FRESH, LOAD, CONVERTED, MAINTAINED, HOUR = "fresh", "load", "converted", "maintained", "hour"
"""States. CONVERTED is the load's rows in the first snapshot without equality deletes, if there were any at its end."""
_SHOWN = {LOAD: "under load", CONVERTED: "deletes converted", HOUR: "after an hour"}

Figures = dict[str, float | int | str | bool]


class ReadBenchmark:
    """`run`, then other changes of the table, then `run_later`."""

    def __init__(self) -> None:
        self._keys: tuple[int, ...] = ()
        self._maintained: Moment | None = None

    def run(self, mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
        """The table must be live and unchanged since."""
        transactions = options.scaled(COMMITS, 20)
        tens = mirror.rows // 40 // transactions
        self._keys = _keys(mirror, transactions * tens)
        with MeasuredProcess(mirror, "read", "run", _settings(options), profiling=options.profiling) as process:
            process.wait_for(Step.STREAMING)
            fresh = moment(mirror, self._keys)
            began = time.monotonic()
            seconds = write_one_by_one(mirror, process, transactions, tens)
            commits = sum(taken.step is Step.RECEIVED and taken.at >= began for taken in process.steps())
            if commits < transactions:
                raise BenchmarkFailed(f"{commits} commits for {transactions} transactions")
            moments = {FRESH: fresh, LOAD: moment(mirror, self._keys)}
            gone = 0.0
            if moments[LOAD].equality_deletes:
                moments[CONVERTED], gone = without_equality_deletes(mirror, moments[LOAD])
            maintenance = _maintain(mirror)
            self._maintained = moments[MAINTAINED] = moment(mirror, self._keys)
            readings, versions = _read(mirror, process, moments)
        figures: Figures = {
            "read.rows": mirror.rows,
            "read.changes": transactions * tens * 10,
            "read.commits": commits,
            "read.load_seconds": round(seconds, 1),
            "read.maintain_seconds": round(maintenance, 1),
            "read.verified": not _wrong(readings),
            **{f"read.version_{engine}": version for engine, version in versions.items()},
            "read.equality_deletes_gone_s": round(gone, 1),
            **_state_figures(moments),
            **_figures(readings),
        }
        lines = [
            Line("read: after the load", moments[LOAD].files, "", "", "",
                 f"{transactions * tens * 10:,} changes in {commits} commits in {seconds:.0f} s"),
            Line("read: after maintenance", moments[MAINTAINED].files, "", "", "",
                 f"{maintenance:.0f} s while the pump ran"),
        ]  # fmt: skip
        for engine in ENGINES:
            if engine not in readings:
                lines.append(Line(f"read: {engine}", "not run", "", "", "", versions[engine]))
                continue
            for state in (LOAD, CONVERTED):
                if state in moments:
                    line, ratios = _compared(engine, versions[engine], state, readings[engine], moments[state])
                    figures |= ratios
                    lines.append(line)
        lines += [Line("read: WRONG", text) for text in _wrong(readings)]
        return BenchmarkResult(figures, tuple(lines))

    def run_later(self, mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
        """Runs after many small commits on top of the maintained table. No pump may run."""
        assert self._maintained is not None
        with MeasuredProcess(mirror, "read-later", "run", _settings(options), profiling=options.profiling) as process:
            process.wait_for(Step.STREAMING)
            # Equality deletes that the pump writes after its start, and converts, are not part of what an hour leaves.
            later, _ = without_equality_deletes(mirror, moment(mirror, self._keys))
            readings, versions = _read(mirror, process, {HOUR: later, MAINTAINED: self._maintained})
        figures: Figures = {
            "read.verified": not _wrong(readings),
            **_state_figures({HOUR: later}),
            **_figures({engine: {HOUR: states[HOUR]} for engine, states in readings.items()}),
        }
        lines = [Line("read: after an hour of small commits", later.files)]
        for engine in ENGINES:
            if engine in readings:
                line, ratios = _compared(engine, versions[engine], HOUR, readings[engine], later)
                figures |= ratios
                lines.append(line)
        lines += [Line("read: WRONG", text) for text in _wrong(readings)]
        return BenchmarkResult(figures, tuple(lines))


def of_format(version: int, result: BenchmarkResult) -> BenchmarkResult:
    """`formats`: figures and lines of `read` or `commits`, as those of a table of this format version."""
    figures: Figures = {}
    for name, figure in result.figures.items():
        kind, _, rest = name.partition(".")
        figures["formats.verified" if name == "read.verified" else f"formats.{version}_{kind}_{rest}"] = figure
    lines = [replace(line, what=f"format {version}, {line.what}") for line in result.lines]
    if "read.load_seconds" in result.figures:
        lines.insert(0, Line(f"format {version}, load", f"{result.figures['read.load_seconds']:.1f} s"))
    return BenchmarkResult(figures, tuple(lines))


def _settings(options: Options) -> dict[str, object]:
    """A batch closes after one transaction, so that each transaction is a commit."""
    return {"batch_bytes": 1, **options.settings}


def _keys(mirror: BenchmarkMirror, calls: int) -> tuple[int, ...]:
    """Keys of rows that the changes may have touched, of the first and last inserted row, of a deleted row and of
    none."""
    n = mirror.rows
    return (n // 3 // 40 * 40 + 7, n // 2 // 40 * 40 + 11, n - 1, n + 1, n + calls * 4, 40, 10**12)


def _maintain(mirror: BenchmarkMirror) -> float:
    """Seconds until no deletes are left. A second pass handles what interfered with the first."""
    began = time.monotonic()
    for _ in range(2):
        mirror.program.run("maintain", TABLE, timeout=_MAINTAIN_SECONDS)
        _, summary = current_snapshot(metadata(current(mirror)[0]))
        if summary.get("total-delete-files", "0") == "0":
            break
    return time.monotonic() - began


def _read(
    mirror: BenchmarkMirror, process: MeasuredProcess, moments: Mapping[str, Moment]
) -> tuple[dict[str, dict[str, Reading]], dict[str, str]]:
    """By engine: readings by state, and its version, or why it does not run. The pump commits meanwhile."""
    readings: dict[str, dict[str, Reading]] = {}
    versions: dict[str, str] = {}
    with steady_writer(mirror, 1, mirror.directory / "read.markers"):
        for engine in ENGINES:
            with ReaderProcess(engine, mirror) as reader:
                versions[engine] = reader.version or reader.error
                if not reader.error:
                    readings[engine] = reader.compare(moments)
            process.check()
    return readings, versions


def _state_figures(moments: Mapping[str, Moment]) -> Figures:
    figures: Figures = {}
    for state, one in moments.items():
        figures[f"read.{state}_rows"] = one.checks["rows"] or 0
        for name in ("data-files", "delete-files", "position-deletes", "equality-deletes"):
            figures[f"read.{state}_{name.replace('-', '_')}"] = int(one.summary.get(f"total-{name}", "0"))
    return figures


def _figures(readings: Mapping[str, Mapping[str, Reading]]) -> Figures:
    figures: Figures = {}
    for engine, states in readings.items():
        for state, one in states.items():
            if one.scan is not None and one.point is not None:
                figures[f"read.{engine}_{state}_scan_s"] = round(one.scan, 4)
                figures[f"read.{engine}_{state}_point_s"] = round(one.point, 4)
                figures[f"read.{engine}_{state}_scans_s"] = " ".join(f"{seconds:.3f}" for seconds in one.scans)
            else:
                figures[f"read.{engine}_{state}_error"] = one.error[:300]
    return figures


def _compared(
    engine: str, version: str, state: str, states: Mapping[str, Reading], one: Moment
) -> tuple[Line, Figures]:
    """A line for people, and the ratios to the maintained table."""
    what = f"read: {version}, {_SHOWN[state]}"
    ours, limit = states[state], states[MAINTAINED]
    if ours.scan is None or limit.scan is None or ours.point is None or limit.point is None:
        return Line(what, "no result", "", "", "≤ 1.5", (ours.error or limit.error)[:120]), {}
    prefix = "read." if state == LOAD else f"read.{state}_"
    scan, point = ours.scan / limit.scan, ours.point / limit.point
    count = one.checks["rows"]
    assert isinstance(count, int)
    fresh = states.get(FRESH)
    before = ""
    ratios: Figures = {}
    if fresh is not None and fresh.scan is not None and fresh.point is not None:
        ratios[f"{prefix}{engine}_fresh_ratio"] = round(ours.scan / fresh.scan, 3)
        before = f"; of the fresh copy: scan {fresh.scan:.2f} s, look-up {fresh.point * 1000:,.0f} ms"
    remark = f"look-up {ours.point * 1000:,.0f} and {limit.point * 1000:,.0f} ms ({point:.2f}){before}"
    return (
        Line(what, f"{ours.scan:.2f} s, {count / ours.scan / 1e6:.1f} M rows/s", f"{limit.scan:.2f} s", f"{scan:.2f}",
             "≤ 1.5", remark),
        ratios | {f"{prefix}{engine}_ratio": round(scan, 3), f"{prefix}{engine}_point_ratio": round(point, 3)},
    )  # fmt: skip


def _wrong(readings: Mapping[str, Mapping[str, Reading]]) -> list[str]:
    """The answers that differ from the heap."""
    return [
        f"{engine}, {state}: {one.error}" for engine, states in readings.items() for state, one in states.items()
        if one.wrong
    ]  # fmt: skip
