"""Runs the chosen benchmarks and reports. Slow figures do not fail it; wrong or missing results do."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import psycopg
from rich.console import Console

from benchmarks import (
    bench_beside,
    bench_cdc,
    bench_cluster,
    bench_commits,
    bench_conversion,
    bench_copy,
    bench_faults,
    bench_feeds,
    bench_fold,
    bench_ingest,
    bench_lag,
    bench_lake,
    bench_layout,
    bench_load,
    bench_memory,
    bench_read,
    bench_repair,
    bench_retire,
    bench_schema,
    bench_seam,
    bench_serve,
    bench_tables,
    bench_tier,
    bench_updates,
    bench_whole_rows,
    big_table,
    comparison,
    copied_kinds,
    lake_plan,
    report,
)
from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed, Profiling
from benchmarks.scene import ROOT, BenchmarkMirror, BenchmarkScene
from mirror_pump.testing.program import ProgramFailed

USUAL = (
    *("copy", "cdc", "read", "commits", "lag", "memory", "seam", "retire", "tier", "fold", "schema", "ingest", "load"),
    *("lake", "lake-plan"),
)
BENCHMARKS = (
    *USUAL,
    *("feeds", "lag-s3", "lag-tables", "lag-copy", "lag-beside", "tables", "serve", "conversion", "repair", "layout"),
    *("whole-rows", "formats", "updates", "cluster", "faults"),
)
"""The last fifteen only when they are named: tables, serve, conversion, repair, layout, whole-rows, formats and
updates take minutes to make their tables, cluster is about machines that are not there, faults is for docs/faults.md,
and the kinds of lag are for the figures of docs/operations.md."""
RESULTS = ROOT / "build" / "bench"
DOCUMENT = ROOT / "docs" / "performance.md"
READERS_DOCUMENT = ROOT / "docs" / "readers.md"
SCALING_DOCUMENT = ROOT / "docs" / "scaling.md"


class Suite:
    """One run of the chosen benchmarks."""

    def __init__(self, chosen: frozenset[str], options: Options, scene: BenchmarkScene, console: Console) -> None:
        self._chosen = chosen
        self._options = options
        self._scene = scene
        self._console = console
        self.figures: dict[str, object] = {}
        self.lines: list[Line] = []
        self.failures: list[str] = []

    def run(self) -> None:
        """copy and cdc share a table of 4,000,000 rows, read and commits share another; the rest have one each."""
        if self._chosen & {"copy", "cdc"}:
            with self._guarded("copy and cdc"), self._mirror("bench_acct", bench_copy.rows_at(self._options)) as mirror:
                if "copy" in self._chosen:
                    self._measure("copy", bench_copy.run, mirror)
                else:
                    self._register(mirror)
                if "cdc" in self._chosen:
                    self._measure("cdc", bench_cdc.run, mirror)
        if "copy" in self._chosen:
            fill = partial(copied_kinds.fill, options=self._options)
            with self._guarded("copy of kinds"), self._mirror("bench_kinds", 0, fill) as mirror:
                self._measure("copy of kinds", bench_copy.run_kinds, mirror)
        if self._chosen & {"read", "commits"}:
            self._read_and_commits()
        for name, rows, benchmark in (
            ("lag", bench_lag.rows_at(self._options), bench_lag.run),
            ("schema", bench_schema.rows_at(self._options), bench_schema.run),
            ("repair", bench_repair.rows_at(self._options), bench_repair.run),
            ("faults", bench_faults.ROWS, bench_faults.run),
        ):
            if name in self._chosen:
                with self._guarded(name), self._mirror(f"bench_{name}", rows) as mirror:
                    self._register(mirror)
                    self._measure(name, benchmark, mirror)
        if "feeds" in self._chosen:
            rows = bench_copy.rows_at(self._options)
            with (
                self._guarded("feeds"),
                self._mirror("bench_unfed", rows) as plain,
                self._mirror("bench_feeds", rows) as fed,
            ):
                self._register(plain)
                self._register(fed)
                self._measure("feeds", lambda mirror, options: bench_feeds.run(plain, mirror, options), fed)
        if "formats" in self._chosen:
            for version in (2, 3):
                rows = bench_copy.rows_at(self._options)
                with self._guarded("formats"), self._mirror(f"bench_format_{version}", rows) as mirror:
                    self._register(mirror, "--format-version", str(version))
                    read = bench_read.ReadBenchmark()
                    for benchmark in (read.run, bench_commits.run, read.run_later):
                        self._measure_format(version, benchmark, mirror)
        if "updates" in self._chosen:
            for version in bench_updates.VERSIONS:
                fill = partial(big_table.fill, rows=big_table.rows_at(self._options))
                with self._guarded("updates"), self._mirror(f"bench_updates_{version}", 0, fill) as mirror:
                    self._measure("updates", partial(bench_updates.run, version), mirror)
        if "memory" in self._chosen:
            fill = partial(bench_memory.fill, options=self._options)
            with self._guarded("memory"), self._mirror("bench_memory", 0, fill) as mirror:
                self._register(mirror)
                self._measure("memory", bench_memory.run, mirror)
        for name, bench in (
            ("seam", bench_seam),
            ("retire", bench_retire),
            ("tier", bench_tier),
            ("fold", bench_fold),
            ("ingest", bench_ingest),
            ("load", bench_load),
            ("conversion", bench_conversion),
            ("layout", bench_layout),
            ("whole-rows", bench_whole_rows),
        ):
            if name in self._chosen:
                fill = partial(bench.fill, rows=bench.rows_at(self._options))
                with self._guarded(name), self._mirror(f"bench_{name.replace('-', '_')}", 0, fill) as mirror:
                    self._measure(name, bench.run, mirror)

        if "lake" in self._chosen:
            RESULTS.mkdir(parents=True, exist_ok=True)
            with self._guarded("lake"), TemporaryDirectory(dir=RESULTS) as directory:
                self._measured("lake", lambda: bench_lake.run(Path(directory), self._options))
        if "lake-plan" in self._chosen:
            with self._guarded("lake-plan"):
                self._measured("lake-plan", lambda: lake_plan.run(self._options))
        if "serve" in self._chosen:
            with self._guarded("serve"), self._mirror("bench_serve", 0) as mirror:
                self._measure("serve", bench_serve.run, mirror)
        if "lag-s3" in self._chosen:
            with self._guarded("lag-s3"), bench_lag.mirrored_in_s3(self._scene, self._options) as (mirror, storage):
                self._measure("lag-s3", lambda mirror, options: bench_lag.run_in_s3(mirror, storage, options), mirror)
        if "lag-tables" in self._chosen:
            with self._guarded("lag-tables"), bench_lag.mirrored_tables(self._scene) as mirror:
                self._measure("lag-tables", bench_lag.run_tables, mirror)
        if "lag-copy" in self._chosen:
            with self._guarded("lag-copy"), bench_lag.mirrored_beside_copies(self._scene, self._options) as mirror:
                self._measure("lag-copy", bench_lag.run_beside_copies, mirror)
        if "lag-beside" in self._chosen:
            with self._guarded("lag-beside"), bench_beside.mirrored(self._scene, self._options) as mirror:
                self._measure("lag-beside", bench_beside.run, mirror)
        if "tables" in self._chosen:
            fill = partial(bench_tables.fill, options=self._options)
            with self._guarded("tables"), self._mirror("bench_tables", 0, fill) as mirror:
                self._measure("tables", bench_tables.run, mirror)
        if "cluster" in self._chosen:
            with (
                self._guarded("cluster"),
                bench_cluster.mirrored(self._scene, self._options) as (mirror, storage),
            ):
                self._measure("cluster", lambda mirror, options: bench_cluster.run(mirror, storage, options), mirror)

    def _read_and_commits(self) -> None:
        """commits follows read on its table, and then makes the hour of small commits after which read looks again."""
        read = bench_read.ReadBenchmark() if "read" in self._chosen else None
        rows = bench_commits.ROWS if read is None else bench_copy.rows_at(self._options)
        with self._guarded("read and commits"), self._mirror("bench_read", rows) as mirror:
            self._register(mirror)
            if read is not None:
                self._measure("read", read.run, mirror)
            if "commits" in self._chosen:
                self._measure("commits", bench_commits.run, mirror)
                if read is not None:
                    self._measure("read", read.run_later, mirror)

    @contextmanager
    def _mirror(
        self, name: str, rows: int, fill: Callable[[psycopg.Connection[Any]], None] = lambda _: None
    ) -> Iterator[BenchmarkMirror]:
        with ExitStack() as stack:
            with self._shown(f"{name}: {rows:,} rows, init"):
                mirror = stack.enter_context(self._scene.mirror(name, rows, fill))
            yield mirror

    def _register(self, mirror: BenchmarkMirror, *options: str) -> None:
        with self._shown(f"{mirror.name}: register"):
            mirror.program.run("register", TABLE, *options, timeout=1800)

    def _measure(
        self, name: str, benchmark: Callable[[BenchmarkMirror, Options], BenchmarkResult], mirror: BenchmarkMirror
    ) -> None:
        self._measured(name, lambda: benchmark(mirror, self._options))

    def _measure_format(
        self,
        version: int,
        benchmark: Callable[[BenchmarkMirror, Options], BenchmarkResult],
        mirror: BenchmarkMirror,
    ) -> None:
        self._measured("formats", lambda: bench_read.of_format(version, benchmark(mirror, self._options)))

    def _measured(self, name: str, benchmark: Callable[[], BenchmarkResult]) -> None:
        with self._shown(name):
            outcome = benchmark()
        self.figures |= outcome.figures
        self.lines += outcome.lines
        if outcome.figures.get(f"{name}.verified") is False:
            self.failures.append(f"{name}: heap and lake differ, or could not be read")

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """A benchmark that fails does not stop the others."""
        try:
            yield
        except (BenchmarkFailed, ProgramFailed) as error:
            self.failures.append(f"{name}: {error}")
        except Exception:  # noqa: BLE001 - reported in full, and the suite ends with 1
            self.failures.append(f"{name}: {traceback.format_exc()}")

    @contextmanager
    def _shown(self, title: str) -> Iterator[None]:
        begin = time.monotonic()
        with self._console.status(title):
            yield
        self._console.print(f"{title} [dim]({time.monotonic() - begin:.1f} s)[/dim]")


def main() -> int:
    arguments = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    if arguments.document:
        latest = RESULTS / "latest.json"
        kept = comparison.keep(orjson.loads(latest.read_bytes()))
        report.write_document(DOCUMENT, comparison.all_figures())
        writers = {READERS_DOCUMENT: report.write_readers_document, SCALING_DOCUMENT: report.write_scaling_document}
        written = [DOCUMENT, *(path for path, write in writers.items() if write(path, latest))]
        console.print(f"written: {', '.join(str(path.relative_to(ROOT)) for path in (kept, *written))}")
        return 0
    options = Options(
        scale=arguments.scale,
        repeat=arguments.repeat,
        verify=not arguments.no_verify,
        tables=arguments.tables,
        settings=dict(arguments.set),
        profiling=Profiling(RESULTS) if arguments.profile else None,
    )
    facts: dict[str, str | float | int] = {"scale": options.scale, **report.machine()}
    with BenchmarkScene(arguments.work_dir.absolute() / "work", keep=arguments.keep) as scene:
        facts |= {f"server.{name}": value for name, value in scene.server_facts().items()}
        suite = Suite(arguments.only, options, scene, console)
        try:
            suite.run()
        except KeyboardInterrupt:
            suite.failures.append("interrupted: the figures are of what had ended by then")
    facts |= {f"setting.{name}": value for name, value in options.settings.items()}
    figures = {**suite.figures, **facts}
    report.print_report(console, facts, suite.lines)
    report.print_comparison(console, figures, comparison.last_figures(figures))
    report.write_json(RESULTS / "latest.json", figures, suite.lines)
    console.print(f"figures are in {(RESULTS / 'latest.json').relative_to(ROOT)}")
    for failure in suite.failures:
        console.print(f"[red]failed:[/red] {failure}", markup=True)
    return 1 if suite.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS='...'", description=__doc__)
    parser.add_argument(
        "--only", type=_names, default=frozenset(USUAL), metavar="NAMES", help="of " + ",".join(BENCHMARKS)
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor to all sizes, for a quick try [1]")
    parser.add_argument("--repeat", type=int, default=3, help="runs of cdc and copy; medians count [3]")
    parser.add_argument("--tables", type=int, metavar="NUMBER", help="tables of the benchmark of that name [500]")
    parser.add_argument("--no-verify", action="store_true", help="do not compare heap and lake after cdc")
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the pump; repeatable",
    )
    parser.add_argument("--profile", action="store_true", help="flame graphs by py-spy into build/bench/*.svg")
    parser.add_argument("--keep", action="store_true", help="leave database files, lake and logs in the work directory")
    parser.add_argument(
        "--work-dir", type=Path, default=RESULTS, help="where to make the directory `work` for all files [build/bench]"
    )
    parser.add_argument(
        "--document",
        action="store_true",
        help="only write the last run's figures into docs/performance.md, docs/readers.md and docs/scaling.md, and keep"
        " them for later runs on this kind of machine to be compared with",
    )
    return parser.parse_args()


def _names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(","))
    unknown = names - set(BENCHMARKS)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose among {', '.join(BENCHMARKS)}")
    return names


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
