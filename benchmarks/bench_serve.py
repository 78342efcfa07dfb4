"""serve: 200 loads a second from the REST catalog of a mirror of 100 tables, on one core, while the tables are written.

Loads begin when they are due, whether earlier ones have ended or not, and their time counts from then on: so a pause of
the server shows in every load that it delays.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
import psutil

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

TABLES = 100
COMMITS = 40
"""Transactions on all tables before the loads: each adds a snapshot to each table's metadata."""
RATE = 200
SECONDS = 15.0
_CLIENTS = 24
"""Connections, more than loads that take their time at once."""
_START_SECONDS = 60.0


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """Loads of `mirror`, then of `mirror@latest`, and then as many as there can be by a client that waits for each."""
    tables = [f"t{number:03}" for number in range(options.scaled(TABLES, 5))]
    with mirror.connect() as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE public.{table} (id int PRIMARY KEY, v int, note text)".encode())
            connection.execute(
                f"INSERT INTO public.{table} SELECT g, 0, 'a note' FROM generate_series(1, 100) g".encode()
            )
    mirror.program.run("register", *(f"public.{table}" for table in tables), timeout=1800)
    seconds = max(3.0, SECONDS * options.scale)
    with MeasuredProcess(mirror, "serve_pump", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        for number in range(options.scaled(COMMITS, 3)):
            _change(mirror, tables, number)
            mirror.execute("SELECT modak.wait_for(NULL, interval '60 seconds')")
        with _server(mirror) as server, _writing(mirror, tables):
            phases = {
                "newest": _load(server, "mirror", tables, seconds, RATE),
                "moment": _load(server, "mirror@latest", tables, seconds, RATE),
                "most": _load(server, "mirror", tables, seconds, None),
            }
        process.stop()
    figures: dict[str, float | int | str | bool] = {"serve.tables": len(tables)}
    lines = []
    for name, phase in phases.items():
        figures |= phase.figures(f"serve.{name}_")
        goal = "p99 < 50 ms" if name != "most" else ""
        lines.append(Line(f"serve, {name}", str(phase), "", "", goal, f"{phase.mean_bytes / 1000:,.0f} kB each"))
    return BenchmarkResult(figures, tuple(lines))


def _change(mirror: BenchmarkMirror, tables: list[str], value: int) -> None:
    statements = "; ".join(f"UPDATE public.{table} SET v = {value} WHERE id = {value % 100 + 1}" for table in tables)
    with mirror.connect() as connection:
        connection.execute(f"BEGIN; {statements}; COMMIT".encode())


@contextmanager
def _writing(mirror: BenchmarkMirror, tables: list[str]) -> Iterator[None]:
    """A transaction on all tables each second."""
    ended = threading.Event()

    def write() -> None:
        value = 1000
        while not ended.wait(1.0):
            value += 1
            _change(mirror, tables, value)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True)
class _CatalogServer:
    port: int
    process: psutil.Process

    def ask(self, path: str) -> bytes:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("GET", f"/iceberg/v1/{path}")
            return connection.getresponse().read()


@contextmanager
def _server(mirror: BenchmarkMirror) -> Iterator[_CatalogServer]:
    """`mirror-pump serve`, kept to one core."""
    log = mirror.directory / "serve.log"
    process = mirror.program.start("serve", "--slot", mirror.name, "--listen", "127.0.0.1:0", log=log.name)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while "/iceberg (" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"the catalog was not served: {log.read_text()[-500:]}")
            time.sleep(0.05)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, cores[:1])
        for thread in psutil.Process(process.pid).threads():
            os.sched_setaffinity(thread.id, cores[:1])
        yield _CatalogServer(
            int(log.read_text().partition("/iceberg (")[0].rpartition(":")[2]), psutil.Process(process.pid)
        )
        mirror.program.stop(process)
    finally:
        mirror.program.kill(process)


@dataclass
class _Loads:
    """Loads that one client after the other made."""

    latencies: list[float] = field(default_factory=list)
    """Seconds, from when the load was due."""
    sizes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0
    """Share of one core that the server used."""

    @property
    def mean_bytes(self) -> float:
        return float(np.mean(self.sizes))

    def percentile(self, percent: float) -> float:
        """Milliseconds."""
        return float(np.percentile(self.latencies, percent)) * 1000

    def figures(self, prefix: str) -> dict[str, float | int | str | bool]:
        percentiles = {f"{prefix}p{percent}_ms": round(self.percentile(percent), 1) for percent in (50, 95, 99)}
        return {
            f"{prefix}loads_per_s": round(len(self.latencies) / self.seconds, 1),
            **percentiles,
            f"{prefix}max_ms": round(self.percentile(100), 1),
            f"{prefix}cpu": round(self.cpu, 2),
            f"{prefix}bytes": round(self.mean_bytes),
        }

    def __str__(self) -> str:
        return (
            f"{len(self.latencies) / self.seconds:,.0f} loads/s, p50 {self.percentile(50):.1f} ms,"
            f" p95 {self.percentile(95):.1f} ms, p99 {self.percentile(99):.1f} ms, {self.cpu:.0%} of a core"
        )


def _load(server: _CatalogServer, warehouse: str, tables: list[str], seconds: float, rate: int | None) -> _Loads:
    """Loads tables by chance, `rate` a second; by one client that waits for each if it is None."""
    prefix = json.loads(server.ask(f"config?warehouse={warehouse.replace('@', '%40')}"))["overrides"]["prefix"]
    phase = _Loads()
    lock = threading.Lock()
    begin = time.monotonic() + 0.2
    due = iter(range(round(seconds * rate))) if rate is not None else None
    errors: list[str] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
            while True:
                if due is not None and rate is not None:
                    with lock:
                        number = next(due, None)
                    if number is None:
                        return
                    at = begin + number / rate
                    time.sleep(max(at - time.monotonic(), 0))
                else:
                    at = time.monotonic()
                    if at > begin + seconds:
                        return
                path = f"/iceberg/v1/{prefix}/namespaces/public/tables/{chance.choice(tables)}"
                connection.request("GET", path)
                answer = connection.getresponse()
                body = answer.read()
                with lock:
                    phase.latencies.append(time.monotonic() - at)
                    phase.sizes.append(len(body))
                    if answer.status != 200:
                        errors.append(body[:300].decode(errors="replace"))

    before = sum(server.process.cpu_times()[:2])
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(_CLIENTS if rate is not None else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    phase.seconds = time.monotonic() - begin
    phase.cpu = (sum(server.process.cpu_times()[:2]) - before) / phase.seconds
    if errors:
        raise BenchmarkFailed(f"{len(errors)} loads failed: {errors[0]}")
    return phase
