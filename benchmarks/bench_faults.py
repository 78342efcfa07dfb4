"""faults: how long a mirror takes after a fault until what is committed then can be read, with `mirror-pump run` as a
service runs it. The faults are those that docs/faults.md has a time for."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg

from benchmarks.bench_cdc import is_equal
from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed
from benchmarks.scene import BenchmarkMirror
from benchmarks.writing import FRONTIER, next_number

ROWS = 100_000
_LONGEST = 120.0
_POLL = 0.005
_ENDED = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE application_name LIKE 'mirror-pump%' AND pid <> pg_backend_pid()"
)


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must be live, and no pump may run."""
    figures: dict[str, float | int | str | bool] = {}
    lines = []
    for name, fault in FAULTS.items():
        seconds = [fault(mirror) for _ in range(options.repeat)]
        figures[f"faults.{name.replace(' ', '_')}_s"] = round(statistics.median(seconds), 1)
        every = ", ".join(f"{one:.1f}" for one in seconds)
        lines.append(Line(f"faults: {name}", f"{statistics.median(seconds):.1f} s", remark=every))
    if options.verify:
        figures["faults.verified"] = is_equal(mirror)
    return BenchmarkResult(figures, tuple(lines))


def _sessions_ended(mirror: BenchmarkMirror) -> float:
    with _pumps(mirror):
        began = time.monotonic()
        mirror.execute(_ENDED)
        return _readable_after(mirror, began)


def _workers_killed(mirror: BenchmarkMirror) -> float:
    with _pumps(mirror) as (pump,):
        began = time.monotonic()
        for process_id in _below(pump.pid):
            with suppress(OSError):
                if b"java" not in Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")[0]:
                    os.kill(process_id, signal.SIGKILL)
        return _readable_after(mirror, began)


def _pump_killed(mirror: BenchmarkMirror) -> float:
    with _pumps(mirror) as (pump,):
        began = time.monotonic()
        mirror.program.kill(pump)
        with _started(mirror):
            return _readable_after(mirror, began)


def _pump_killed_beside_a_standby(mirror: BenchmarkMirror) -> float:
    with _pumps(mirror, standby=True) as (pump, _):
        began = time.monotonic()
        mirror.program.kill(pump)
        return _readable_after(mirror, began)


def _pump_hangs_beside_a_standby(mirror: BenchmarkMirror) -> float:
    with _pumps(mirror, standby=True) as (pump, _):
        began = time.monotonic()
        os.killpg(pump.pid, signal.SIGSTOP)
        return _readable_after(mirror, began)


def _server_crashes(mirror: BenchmarkMirror) -> float:
    """Since the server accepts connections again."""
    with _pumps(mirror):
        mirror.server.stop("immediate")
        mirror.server.start()
        return _readable_after(mirror, time.monotonic())


FAULTS: Mapping[str, Callable[[BenchmarkMirror], float]] = {
    "sessions ended": _sessions_ended,
    "workers killed": _workers_killed,
    "pump killed": _pump_killed,
    "pump killed beside a standby": _pump_killed_beside_a_standby,
    "pump hangs beside a standby": _pump_hangs_beside_a_standby,
    "server crashes": _server_crashes,
}


@contextmanager
def _pumps(mirror: BenchmarkMirror, *, standby: bool = False) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A pump that publishes, and perhaps one that waits for the lead."""
    with ExitStack() as stack:
        pumps = [stack.enter_context(_started(mirror))]
        _readable_after(mirror, time.monotonic())
        if standby:
            pumps.append(stack.enter_context(_started(mirror)))
            waits = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'mirror-pump-standby%'"
            _await(lambda: bool(_rows(mirror, waits)), "a second pump stands by")
        yield pumps


@contextmanager
def _started(mirror: BenchmarkMirror) -> Iterator[subprocess.Popen[bytes]]:
    pump = mirror.program.start("run", log="faults.log")
    try:
        yield pump
    finally:
        mirror.program.kill(pump)


def _readable_after(mirror: BenchmarkMirror, began: float) -> float:
    """Seconds from `began` until a change that is committed now can be read."""
    number = next_number(mirror)
    with mirror.connect() as connection:
        connection.execute("SELECT public.bench_ten(%s, %s)", (number, mirror.rows))
        row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    _await(lambda: _rows(mirror, f"SELECT WHERE ({FRONTIER}) >= {row[0]}"), "the change is published")
    return time.monotonic() - began


def _rows(mirror: BenchmarkMirror, query: str) -> list[tuple[object, ...]]:
    with mirror.connect() as connection:
        return connection.execute(query.encode()).fetchall()


def _await(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _LONGEST
    while True:
        with suppress(psycopg.OperationalError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"not within {_LONGEST:.0f} s: {what}")
        time.sleep(_POLL)


def _below(process_id: int) -> list[int]:
    """The process's children, and theirs."""
    children = [int(one) for one in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]
    return [one for child in children for one in (child, *_below(child))]
