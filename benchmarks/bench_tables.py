"""tables: a schema of 500 tables of 100 rows, all mirrored. What it takes to register them, to show their status, and
to do nothing; and how soon a transaction over three, a hundred and all of them can be read. 10,000: `--tables
10000`. CPU seconds are shown beside times: they say more on a machine that others use."""

from __future__ import annotations

import resource
import time
from statistics import median
from typing import Any

import psycopg

from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.sampling import Sampler, parent_of
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

_TABLES = 500
_IDLE_SECONDS = 30.0
_SETTLED_SECONDS = 75.0
"""Seconds after the start in which nothing is measured: a worker without work ends after a minute, and the server
vacuums what registering has written."""
_ROUNDS = 5
"""Transactions of each size; medians count."""
_SMALL_ROUNDS = 50
"""Transactions over three tables, whose CPU is measured."""
_DEADLINE = 300.0
_REGISTER_DEADLINE = 7200.0
_POLL = 0.005
_FRONTIER = "SELECT replicated_lsn FROM modak.cutline WHERE table_id = 'shop.t_0'::regclass"
_GOALS = {3: "≤ 0.25 s", 100: "≤ 0.5 s", _TABLES: "≤ 1.2 s"}

_SCHEMA = "CREATE SCHEMA shop"
_MAKE_TABLES = """
DO $do$ BEGIN FOR i IN 0..%d LOOP
    EXECUTE format('CREATE TABLE shop.t_%%s (id int PRIMARY KEY, name text, amount numeric(12,2), at timestamptz)', i);
    EXECUTE format('INSERT INTO shop.t_%%s SELECT g, md5(g::text), g / 7.0, now() FROM generate_series(1, 100) g', i);
    -- The locks of thousands of tables fit into no transaction by default settings.
    IF i %% 500 = 499 THEN COMMIT; END IF;
END LOOP; END $do$
"""
_CHANGE = """
CREATE FUNCTION shop.change(number int, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    FOR step IN 0..n - 1 LOOP
        EXECUTE format('UPDATE shop.t_%s SET amount = amount + 1 WHERE id = $1', step) USING 1 + number % 100;
    END LOOP;
END $$
"""


def tables_at(options: Options) -> int:
    return options.scaled(_TABLES, 10) if options.tables is None else options.tables


def fill(connection: psycopg.Connection[Any], options: Options) -> None:
    """Makes the tables."""
    for statement in (_SCHEMA, _MAKE_TABLES % (tables_at(options) - 1), _CHANGE):
        connection.execute(statement.encode())


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """Registers the tables, then follows them. None may be registered."""
    count = tables_at(options)
    figures: dict[str, float | int | str | bool] = {"tables.count": count}
    registered, cpu = _register(mirror, count)
    figures["tables.register_s"], figures["tables.register_cpu_s"] = registered, round(sum(cpu.values()), 1)
    lines = [
        Line(f"tables: register {count:,}, and copy", f"{registered} s", "", "", _goal(count, "≤ 20 s"), cpu_text(cpu))
    ]
    mirror.execute("VACUUM (ANALYZE)")
    begin = time.monotonic()
    with MeasuredProcess(mirror, "tables", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING, timeout=_DEADLINE)
        figures["tables.start_s"] = started = round(time.monotonic() - begin, 1)
        lines.append(Line("tables: from the start to streaming", f"{started} s"))
        begin, before = time.monotonic(), _children_cpu()
        mirror.program.run("status", timeout=300)
        figures["tables.status_s"] = shown = round(time.monotonic() - begin, 2)
        figures["tables.status_cpu_s"] = own = round(_children_cpu() - before, 2)
        lines.append(Line("tables: status", f"{shown} s", "", "", _goal(count, "≤ 0.6 s"), f"CPU s: its process {own}"))
        idle, roles = _idle_share(process)
        figures["tables.idle_share"] = idle
        lines.append(Line("tables: idle", f"{idle:.1%} of a core", "", "", _goal(count, "≤ 1 %"), roles))
        for size in sorted({3, min(100, count), count}):
            waits = [_readable_after(mirror, process, number, size) for number in range(_ROUNDS)]
            figures[f"tables.readable_{size}_s"] = readable = round(median(waits), 2)
            lines.append(Line(f"tables: a transaction over {size:,}", f"{readable} s", "", "", _GOALS.get(size, "")))
        figures["tables.commit_cpu_s"] = commit_cpu = _commit_cpu(mirror, process)
        lines.append(Line("tables: CPU of a commit of three", f"{commit_cpu * 1000:.0f} ms"))
        peak = process.sampler.peak()
        process.stop()
    return BenchmarkResult(figures | peak.figures("tables"), (*lines, Line("tables: memory", str(peak))))


def _register(mirror: BenchmarkMirror, count: int) -> tuple[float, dict[str, float]]:
    """Seconds until all tables are live, and the CPU seconds of `register`, which copies them itself, and of the
    server, by role."""
    names = (f"shop.t_{number}" for number in range(count))
    with mirror.connect() as connection:
        postmaster = parent_of(connection.info.backend_pid)
    begin = time.monotonic()
    process = mirror.program.start("register", *names, log="register.log")
    sampler = Sampler(process.pid, postmaster)
    sampler.start()
    try:
        code = process.wait(_REGISTER_DEADLINE)
    finally:
        sampler.stop()
        mirror.program.kill(process)
    if code != 0:
        raise BenchmarkFailed(f"register ended with {code}, see {mirror.directory / 'register.log'}")
    end = time.monotonic()
    return round(end - begin, 1), sampler.cpu(begin, end)


def _goal(count: int, goal: str) -> str:
    """The goals are for the usual number of tables."""
    return goal if count == _TABLES else ""


def _children_cpu() -> float:
    """CPU seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _idle_share(process: MeasuredProcess) -> tuple[float, str]:
    """Cores that the pump and its sessions in the server use while nothing changes, once what a start brings is
    over."""
    time.sleep(_SETTLED_SECONDS)
    begin = time.monotonic()
    time.sleep(_IDLE_SECONDS)
    end = time.monotonic()
    cpu = process.sampler.cpu(begin, end)
    return round(sum(cpu.values()) / (end - begin), 4), f"in {_IDLE_SECONDS:.0f} s: {cpu_text(cpu)}"


def _readable_after(mirror: BenchmarkMirror, process: MeasuredProcess, number: int, size: int) -> float:
    """Seconds from COMMIT of a transaction over so many tables to the frontier beyond it."""
    with mirror.connect() as connection:
        with connection.transaction():
            connection.execute("SELECT shop.change(%s, %s)", (number, size))
            # Before the commit record: after it, the position might be higher than the frontier will ever be.
            written = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        committed = time.monotonic()
        assert written is not None
        while True:
            row = connection.execute(_FRONTIER, prepare=True).fetchone()
            if row is not None and row[0] is not None and row[0] > written[0]:
                return time.monotonic() - committed
            process.check()
            if time.monotonic() > committed + _DEADLINE:
                raise BenchmarkFailed(f"a transaction over {size} tables was not readable within {_DEADLINE:.0f} s")
            time.sleep(_POLL)


def _commit_cpu(mirror: BenchmarkMirror, process: MeasuredProcess) -> float:
    """CPU seconds of the pump and the server for a commit of three tables."""
    begin = time.monotonic()
    for number in range(_SMALL_ROUNDS):
        _readable_after(mirror, process, number, 3)
    return round(sum(process.sampler.cpu(begin, time.monotonic()).values()) / _SMALL_ROUNDS, 4)
