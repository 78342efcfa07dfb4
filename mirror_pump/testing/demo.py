"""`make demo`: mirrors a live pgbench load into Iceberg and proves, while it runs, that the lake is consistent.

In every transaction, TPC-B adds the same amount to an account, its teller, its branch and a new history row. So the
four sums are equal at any point in time. The demo reads them from the lake through Spark at successive frontiers while
the load continues. At the end it compares every column of every row.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console

from mirror_pump.model import format_lsn
from mirror_pump.testing.demo_report import Check, DemoFigures, print_queries, print_summary
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.program import Program, ProgramFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")

MARKER = ".mirror-pump-demo"
"""Marks a directory that a demo created, which the next demo may empty."""

SLOT_TIMEOUT = 90.0
"""Seconds for the pump to start. Spark's JVM takes 3 s, much more on a first run with a cold disk."""

_PUBLISHED = """
SELECT c.replicated_lsn, t.table_name, c.lake_snapshot_id
  FROM modak.cutline c JOIN modak.tables t USING (table_id)
"""

_SUMS = """
SELECT (SELECT sum(abalance) FROM lake.public.pgbench_accounts VERSION AS OF {pgbench_accounts}) AS accounts,
       (SELECT sum(tbalance) FROM lake.public.pgbench_tellers VERSION AS OF {pgbench_tellers}) AS tellers,
       (SELECT sum(bbalance) FROM lake.public.pgbench_branches VERSION AS OF {pgbench_branches}) AS branches,
       coalesce((SELECT sum(delta) FROM lake.public.pgbench_history VERSION AS OF {pgbench_history}), 0) AS history,
       (SELECT count(*) FROM lake.public.pgbench_history VERSION AS OF {pgbench_history}) AS transactions
"""

_HEAP_SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
       (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
       (SELECT count(*) FROM pgbench_history)
"""


class DemoFailed(Exception):
    """A check of the demo failed; the message tells which."""


class Demo:
    """One run of the demo in one directory."""

    def __init__(self, directory: Path, seconds: int, scale: int, console: Console) -> None:
        self.directory = directory
        self.seconds = seconds
        self.scale = scale
        self.console = console
        self.figures = DemoFigures()
        self.warehouse = f"file://{directory / 'lake'}"

    def run(self) -> None:
        """Runs the whole demo. Raises DemoFailed, ProgramFailed or PostgresFailed."""
        prepare_directory(self.directory)
        self.console.print(f"all files of this demo are in [bold]{self.directory}[/bold]")
        with EmbeddedPostgres(self.directory / "postgres") as server:
            dsn = server.create_database("demo")
            program = Program(dsn, self.directory)
            with self._step(f"PostgreSQL 18 on port {server.port}, pgbench at scale {self.scale}"):
                self._load(server, dsn)
            with self._step("mirror-pump init"):
                program.run("init", "--warehouse", self.warehouse)
            with self._step("mirror-pump register: the initial copy"):
                self._register(program)
            with self._step("mirror-pump run: the pump", "Spark: an independent reader"):
                pump = program.start("run", "--log-format", "json", log="pump.log")
                try:
                    spark = self._reader(dsn)
                    self._await_pump(dsn, pump)
                    # Spark's first query spends seconds on loading and compiling, which is not counted as reading.
                    self._read_sums(dsn, spark)
                except BaseException:
                    program.kill(pump)
                    raise
            try:
                self._follow_load(server, dsn, spark, program, pump)
                self._prove(dsn, spark, program)
                self.figures.status = orjson.loads(program.run("status", "--json"))
            except BaseException:
                program.kill(pump)
                raise
            finally:
                spark.stop()
            with self._step("SIGTERM: the pump stops and reports its frontier"):
                self._stop(program, pump)
            print_summary(self.console, self.figures, self.seconds)
            print_queries(self.console, dsn)

    @contextmanager
    def _step(self, title: str, second: str = "") -> Iterator[None]:
        """Shows that a step is running, then how long it took."""
        begin = time.monotonic()
        shown = f"{title}; {second}" if second else title
        with self.console.status(shown):
            yield
        self.console.print(f"[green]✓[/green] {shown} [dim]({time.monotonic() - begin:.1f} s)[/dim]")

    def _load(self, server: EmbeddedPostgres, dsn: str) -> None:
        command = [str(server.binary("pgbench")), "-i", "-q", "-s", str(self.scale), dsn]
        with (self.directory / "pgbench-init.log").open("wb") as log:
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=600, check=False).returncode:
                raise DemoFailed(f"pgbench -i failed, see {log.name}")
        # Without a key, it is unknown which history row an UPDATE or DELETE refers to. pgbench's INSERT names
        # columns.
        execute(dsn, "ALTER TABLE pgbench_history ADD COLUMN hid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")

    def _register(self, program: Program) -> None:
        begin = time.monotonic()
        program.run("register", *TABLES)
        self.figures.copy_seconds = time.monotonic() - begin
        # An account each, and a branch with ten tellers per 100,000 accounts. The history is still empty.
        self.figures.copied_rows = self.scale * (100_000 + 11)

    def _reader(self, dsn: str) -> SparkSession:
        from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session

        spark = spark_session(
            SparkSettings(
                app_name="mirror-pump-demo",
                log=self.directory / "spark.log",
                conf={
                    "spark.sql.warehouse.dir": str(self.directory / "spark" / "warehouse"),
                    "spark.local.dir": str(self.directory / "spark"),
                },
            )
        )
        return lake_session(spark, dsn, self.warehouse)

    def _await_pump(self, dsn: str, pump: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + SLOT_TIMEOUT
        while not query(dsn, "SELECT bool_or(active) FROM pg_replication_slots")[0][0]:
            if pump.poll() is not None or time.monotonic() > deadline:
                raise DemoFailed(f"the pump did not start, see {self.directory / 'pump.log'}")
            time.sleep(0.1)

    def _follow_load(
        self, server: EmbeddedPostgres, dsn: str, spark: SparkSession, program: Program, pump: subprocess.Popen[bytes]
    ) -> None:
        """Runs the load, and meanwhile reads the sums from the lake and samples the lag."""
        command = [str(server.binary("pgbench")), "-n", "-T", str(self.seconds), "-c", "4", "-j", "1", dsn]
        over = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(dsn, over), name="sampler")
        with (self.directory / "pgbench.log").open("wb+") as log:
            begin = time.monotonic()
            load = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                sampler.start()
                with self.console.status(f"pgbench: {self.seconds} s of TPC-B by 4 clients, the pump following"):
                    while load.poll() is None:
                        if self._moved(dsn):
                            self._check(dsn, spark)
                        else:
                            time.sleep(0.05)
                        if pump.poll() is not None:
                            raise DemoFailed(f"the pump ended by itself, see {self.directory / 'pump.log'}")
                        if time.monotonic() - begin > self.seconds + 60:
                            raise DemoFailed(f"pgbench does not end, see {log.name}")
            finally:
                load.terminate()
                load.wait(20)
                over.set()
                sampler.join()
            log.seek(0)
            report = log.read().decode(errors="replace")
        tps = re.search(r"tps = ([\d.]+)", report)
        if load.returncode != 0 or tps is None:
            raise DemoFailed(f"pgbench failed, see {self.directory / 'pgbench.log'}")
        self.figures.tps = float(tps[1])
        with self._step("mirror-pump wait --now: the frontier passes the end of the load"):
            drain = time.monotonic()
            program.run("wait", "--now", "--timeout", "120")
            self.figures.drain_seconds = time.monotonic() - drain
            self.figures.load_seconds = time.monotonic() - begin

    def _sample(self, dsn: str, over: threading.Event) -> None:
        """Records the age of the newest commit that a reader of the lake can see."""
        import psycopg

        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.wait(0.1):
                row = connection.execute(
                    "SELECT extract(epoch FROM clock_timestamp() - applied_commit_time)::float8"
                    " FROM modak.mirror_slots WHERE applied_commit_time IS NOT NULL"
                ).fetchone()
                if row is not None:
                    self.figures.lags.append(row[0])

    def _moved(self, dsn: str) -> bool:
        """Whether the frontier has moved since the last check."""
        last_frontier = self.figures.checks[-1].frontier if self.figures.checks else 0
        return bool(query(dsn, "SELECT max(replicated_lsn) FROM modak.cutline")[0][0] > last_frontier)

    def _read_sums(self, dsn: str, spark: SparkSession) -> Check:
        """Takes all four snapshots of one frontier in one statement, then reads their sums from the lake."""
        published = query(dsn, _PUBLISHED)
        frontiers = {row[0] for row in published}
        if len(published) != len(TABLES) or len(frontiers) != 1 or None in frontiers:
            raise DemoFailed(f"the tables do not share one frontier: {published}")
        begin = time.monotonic()
        row = spark.sql(_SUMS.format(**{name: snapshot for _, name, snapshot in published})).collect()[0]
        accounts, tellers, branches, history, transactions = (int(value) for value in row)
        seconds = time.monotonic() - begin
        return Check(frontiers.pop(), accounts, tellers, branches, history, transactions, seconds)

    def _check(self, dsn: str, spark: SparkSession) -> Check:
        """Reads, records and shows the sums. Raises DemoFailed if they differ."""
        check = self._read_sums(dsn, spark)
        self.figures.checks.append(check)
        sums = (
            f"{check.accounts:,}"
            if check.equal
            else f"{check.accounts} {check.tellers} {check.branches} {check.history}"
        )
        mark = "[green]✓[/green]" if check.equal else "[red]✗[/red]"
        self.console.print(
            f"  {mark} frontier {format_lsn(check.frontier)}: accounts = tellers = branches = history = {sums} "
            f"[dim]({check.transactions:,} transactions, Spark read them in {check.seconds:.1f} s)[/dim]"
        )
        if not check.equal:
            raise DemoFailed(f"the sums in the lake differ at frontier {format_lsn(check.frontier)}")
        return check

    def _prove(self, dsn: str, spark: SparkSession, program: Program) -> None:
        last = self._check(dsn, spark)
        heap = tuple(int(value) for value in query(dsn, _HEAP_SUMS)[0])
        if heap != (last.accounts, last.tellers, last.branches, last.history, last.transactions):
            raise DemoFailed(f"heap {heap} and lake {last} differ after the load")
        moving = {check.frontier for check in self.figures.checks if check.transactions}
        if len(moving) < 2:
            raise DemoFailed("the load ended before the lake could be read at two frontiers: increase --seconds")
        with self._step("mirror-pump verify: every column of every row"):
            begin = time.monotonic()
            self.figures.verify = orjson.loads(program.run("verify", "--json", *TABLES, timeout=600))
            self.figures.verify_seconds = time.monotonic() - begin
        unequal = [table["table"] for table in self.figures.verify["tables"] if not table["equal"]]
        if unequal or len(self.figures.verify["tables"]) != len(TABLES):
            raise DemoFailed(f"verify: not equal: {unequal or self.figures.verify}")

    def _stop(self, program: Program, pump: subprocess.Popen[bytes]) -> None:
        program.stop(pump)
        words = re.search(r"stopped at frontier \S+ .*after ([\d,]+) commits, ([\d,]+) changes", self._pump_log())
        if words is None:
            raise DemoFailed(f"the pump did not report where it stopped, see {self.directory / 'pump.log'}")
        self.figures.commits, self.figures.changes = (int(word.replace(",", "")) for word in words.groups())

    def _pump_log(self) -> str:
        return (self.directory / "pump.log").read_text(errors="replace")


def prepare_directory(directory: Path) -> None:
    """Makes `directory` an empty directory if it is new, empty, or from an earlier demo; else raises DemoFailed."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER).exists():
            raise DemoFailed(f"{directory} is not empty and not from an earlier demo: give another --work-dir")
        for entry in directory.iterdir():
            if entry.name == MARKER:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).touch()


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    """All rows that a statement returns, in its own transaction."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(text.encode()).fetchall()


def execute(dsn: str, text: str) -> None:
    """Runs a statement that returns nothing."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(text.encode())


def main(
    seconds: Annotated[int, typer.Option(min=5, help="Seconds for which pgbench runs")] = 20,
    scale: Annotated[int, typer.Option(min=1, help="pgbench's scale, in units of 100,000 accounts")] = 10,
    work_dir: Annotated[
        Path, typer.Option(help="Directory for all files; emptied if it is from an earlier demo")
    ] = Path("build/demo"),
) -> None:
    """Mirror a live pgbench load into Iceberg, and prove the result."""
    from mirror_pump.testing.installation import PostgresFailed

    # Without a terminal, wide enough for the summary's tables.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    # Raises an exception, so that the pump and the server end together with the demo.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    begin = time.monotonic()
    try:
        Demo(work_dir.absolute(), seconds, scale, console).run()
    except (DemoFailed, ProgramFailed, PostgresFailed) as error:
        console.print("[red bold]the demo failed[/red bold]")
        console.out(str(error))
        console.out(f"logs are in {work_dir.absolute()}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("interrupted")
        raise typer.Exit(1) from None
    console.print(f"\n[green bold]all checks passed[/green bold] [dim]({time.monotonic() - begin:.0f} s in all)[/dim]")


if __name__ == "__main__":
    typer.run(main)
