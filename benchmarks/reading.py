"""States of the mirrored table, with the heap's content at their frontier, and the processes that read them with other
engines."""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import orjson
import psycopg

from benchmarks.engines import POSTGRES, Checks, Row, checks, row
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed
from benchmarks.scene import ROOT, BenchmarkMirror

ENGINES = ("spark", "duckdb", "pyiceberg", "chdb")
LONGEST = 90.0
"""Seconds after which a reader is abandoned."""
_START_SECONDS = 120.0
_CONVERTED_SECONDS = 120.0
_RUNS = 5
"""Rounds that count, after one to warm up."""
_LEAST_RUNS = 2
_BUDGET = 60.0
"""Seconds for an engine's rounds, after which rounds beyond _LEAST_RUNS are left out."""
_TIMED_KEYS = 3
"""Look-ups in a run; all keys are looked up in the first one, unless scans are slow."""
_SLOW = 30.0
"""Scans of at least this many seconds: a single round is enough, even the first one, and few keys are looked up."""

_POINTER = """
SELECT i.metadata_location, c.replicated_lsn
  FROM modak.iceberg_tables i, modak.cutline c
 WHERE i.catalog_name = 'lake' AND i.table_namespace = 'public' AND i.table_name = 'acct'
   AND c.table_id = 'public.acct'::regclass
"""
_PIN = """
INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)
VALUES ('public.acct'::regclass::oid::bigint, %s, -9223372036854775808, now() + interval '2 hours')
"""


@dataclass(frozen=True)
class Moment:
    """A snapshot of the lake at some frontier, and the heap's content at that frontier."""

    frontier: int
    location: str
    """The metadata file whose current snapshot it is."""
    snapshot: int
    summary: Mapping[str, str]
    checks: Checks
    rows: Mapping[int, Row | None]
    """By key: the row that a look-up has to find."""

    @property
    def equality_deletes(self) -> int:
        return int(self.summary.get("total-equality-deletes", "0"))

    @property
    def files(self) -> str:
        """The files that a reader has to open, for people."""
        total = {name: int(self.summary.get(f"total-{name}", "0")) for name in
                 ("data-files", "delete-files", "position-deletes", "equality-deletes")}  # fmt: skip
        return (
            f"{total['data-files']:,} data and {total['delete-files']:,} delete files, {total['position-deletes']:,}"
            f" position and {total['equality-deletes']:,} equality deletes"
        )


def metadata(location: str) -> dict[str, Any]:
    """A metadata file of the local lake."""
    content: dict[str, Any] = orjson.loads(Path(url2pathname(urlsplit(location).path)).read_bytes())
    return content


def current_snapshot(content: Mapping[str, Any]) -> tuple[int, Mapping[str, str]]:
    """The current snapshot and its summary."""
    number = content["current-snapshot-id"]
    one = next(one for one in content["snapshots"] if one["snapshot-id"] == number)
    return number, one["summary"]


def current(mirror: BenchmarkMirror) -> tuple[str, int]:
    """The location of the table's newest metadata, and the frontier."""
    with mirror.connect() as connection:
        found = connection.execute(_POINTER).fetchone()
    assert found is not None
    return str(found[0]), int(found[1])


def moment(mirror: BenchmarkMirror, keys: Sequence[int]) -> Moment:
    """The present state. Nobody else may write, so that the frontier passes everything, and the heap does not change.

    The snapshot is pinned, so that it stays in the table's history, where Spark looks for it.
    """
    mirror.program.run("wait", "--now", "--timeout", "120")
    location, frontier = current(mirror)
    snapshot, summary = current_snapshot(metadata(location))
    _pin(mirror, snapshot)
    with mirror.connect() as connection:
        scanned = connection.execute(POSTGRES.scan(TABLE).encode()).fetchone()
        assert scanned is not None
        rows = {key: _heap_row(connection, key) for key in keys}
    return Moment(frontier, location, snapshot, summary, checks(scanned), rows)


def without_equality_deletes(mirror: BenchmarkMirror, found: Moment) -> tuple[Moment, float]:
    """The same rows in the first snapshot without equality deletes, and the seconds until it existed.

    Nobody else may write meanwhile. BenchmarkFailed if there is none in time.
    """
    began = time.monotonic()
    while found.equality_deletes:
        if time.monotonic() - began > _CONVERTED_SECONDS:
            raise BenchmarkFailed(f"equality deletes were still there {_CONVERTED_SECONDS:.0f} s after the last change")
        time.sleep(0.1)
        location, _ = current(mirror)
        snapshot, summary = current_snapshot(metadata(location))
        found = replace(found, location=location, snapshot=snapshot, summary=summary)
    _pin(mirror, found.snapshot)
    return found, time.monotonic() - began


def _pin(mirror: BenchmarkMirror, snapshot: int) -> None:
    mirror.execute(_PIN, snapshot)


def _heap_row(connection: psycopg.Connection[Any], key: int) -> Row | None:
    found = connection.execute(POSTGRES.point(TABLE, key).encode()).fetchone()
    return None if found is None else row(found)


@dataclass(frozen=True)
class Reading:
    """How long one engine took for one state, in seconds; medians. None: it gave no answer."""

    scan: float | None
    point: float | None
    scans: tuple[float, ...]
    """All times that count."""
    error: str = ""
    """Its error, or that its answer was wrong."""
    wrong: bool = False


class ReaderProcess:
    """One engine in a separate process, as a context manager that ends it."""

    module = "benchmarks.reader_process"
    """The process's command line."""

    def __init__(self, engine: str, mirror: BenchmarkMirror) -> None:
        self.engine = engine
        self._mirror = mirror
        self._log = mirror.directory / f"reader-{engine}.log"

    def __enter__(self) -> ReaderProcess:
        answer = self._start()
        self.version: str = answer.get("version", "")
        self.error: str = answer.get("error", "")
        """Why the engine did not start; empty if it did."""
        return self

    def _start(self) -> dict[str, Any]:
        """Starts a new process; returns its first answer."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=self._environment(),
                start_new_session=True,
            )
        try:
            return self.ask(
                {
                    "engine": self.engine,
                    "dsn": self._mirror.dsn,
                    "warehouse": (self._mirror.directory / "lake").as_uri(),
                    "log": str(self._log),
                },
                _START_SECONDS,
            )
        except BaseException:
            self.__exit__()
            raise

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def compare(self, moments: Mapping[str, Moment]) -> dict[str, Reading]:
        """Scans and look-ups of each state, in rounds, so that other load on the machine affects all of them."""
        scans: dict[str, list[float]] = {name: [] for name in moments}
        points: dict[str, list[float]] = {name: [] for name in moments}
        failed: dict[str, Reading] = {}
        # An engine's very first query includes its start, so it counts for none of the states.
        first, *_ = moments.values()
        self._checked(first, None, first.checks)
        began = time.monotonic()
        for number in range(1 + _RUNS):
            if number > _LEAST_RUNS and time.monotonic() - began > _BUDGET:
                break
            for name, one in moments.items():
                if name in failed or max(scans[name], default=0.0) >= _SLOW:
                    continue
                answer = self._checked(one, None, one.checks)
                if isinstance(answer, Reading):
                    failed[name] = answer
                    continue
                scans[name].append(answer)
                seconds = []
                few = bool(points[name]) or answer >= _SLOW
                for key, expected in list(one.rows.items())[: _TIMED_KEYS if few else None]:
                    answer = self._checked(one, key, expected)
                    if isinstance(answer, Reading):
                        failed[name] = answer
                        break
                    seconds.append(answer)
                points[name].append(statistics.median(seconds) if seconds else 0.0)
        return {
            name: failed[name] if name in failed else
            Reading(_median(scans[name]), _median(points[name]), tuple(scans[name][1:] or scans[name]))
            for name in moments
        }  # fmt: skip

    def _checked(self, one: Moment, key: int | None, expected: object) -> float | Reading:
        """Seconds of one request, or the error in its answer."""
        if self._process.poll() is not None:
            # It was abandoned, or crashed, during the request before.
            self._start()
        answer = self.ask({"location": one.location, "snapshot": one.snapshot, "key": key}, LONGEST)
        if "error" in answer:
            return Reading(None, None, (), answer["error"])
        if answer["result"] != expected:
            what = "the scan" if key is None else f"key {key}"
            return Reading(None, None, (), f"{what}: {answer['result']}, but the heap has {expected}", wrong=True)
        return float(answer["seconds"])

    def ask(self, request: Mapping[str, object], timeout: float) -> dict[str, Any]:
        """Sends a request and returns its answer; an answer with `error` if there is none in time, or none at all."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(orjson.dumps(request) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return {"error": "the reader has ended"}
        ready, _, _ = select.select([stdout], [], [], timeout)
        if not ready:
            # It cannot be interrupted, and a later answer would be mistaken for that of another request.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            return {"error": f"no answer within {timeout:.0f} s"}
        line = stdout.readline()
        if not line:
            return {"error": f"the reader ended: {self._log.read_text(errors='replace')[-500:]}"}
        answer: dict[str, Any] = orjson.loads(line)
        return answer


def _median(seconds: Iterable[float]) -> float:
    """The median without the first value, unless it is the only one."""
    first, *rest = seconds
    return statistics.median(rest or [first])
