"""Sessions that use public.aging while one of its partitions leaves the heap, and how long their statements took."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks.pumping import BenchmarkFailed
from benchmarks.scene import BenchmarkMirror

PER_SECOND = 200
_WRITERS = 4
_READS_PER_SECOND = 20
_INSERT_EVERY = 4
_LOOK = 0.005
"""Seconds between checks of which session waits for a lock."""

_UPDATE = "UPDATE public.aging SET balance = balance + 1 WHERE id = %s"
_INSERT = "INSERT INTO public.aging VALUES (%s, 0, 0, 'late', now())"
_READ = "SELECT count(*) FROM public.aging WHERE id = ANY (%s)"
# waitstart is NULL for a moment after a wait has begun.
_WAITING = """
SELECT max(extract(epoch FROM clock_timestamp() - l.waitstart))::float8, count(*)
  FROM pg_locks l WHERE NOT l.granted AND l.pid = ANY (%s)
"""


@dataclass
class _Session:
    """One session's statements. Only its own thread writes here."""

    pid: int = 0
    statements: list[tuple[float, float]] = field(default_factory=list)
    """time.monotonic() at the beginning, and seconds."""
    updates: int = 0
    """The number of updated rows."""
    inserts: int = 0
    inserted_ids: int = 0
    """The sum of the updates."""


@dataclass(frozen=True)
class _Wait:
    at: float
    """time.monotonic() when it was seen."""
    seconds: float
    """How long it had lasted by then."""


class LateWrites:
    """Four writers, with PER_SECOND statements in all, three updates of random rows for each insert, each a
    transaction; a reader with look-ups by key; and a check every 5 ms of which of them waits for a lock. A context
    manager: its end stops them, and raises BenchmarkFailed if one of their statements failed."""

    def __init__(self, mirror: BenchmarkMirror, rows: int) -> None:
        """`rows`: those with the even keys 2 .. 2 * rows are updated; odd keys are inserted."""
        self._mirror = mirror
        self._rows = rows
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._waits: list[_Wait] = []
        self._writers = [_Session() for _ in range(_WRITERS)]
        self._reader = _Session()
        self._threads = [
            *(threading.Thread(target=self._guarded, args=(self._write, number)) for number in range(_WRITERS)),
            threading.Thread(target=self._guarded, args=(self._read, _WRITERS)),
            threading.Thread(target=self._guarded, args=(self._look, _WRITERS + 1)),
        ]

    def __enter__(self) -> LateWrites:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if kind is None:
            self.check()

    def check(self) -> None:
        """BenchmarkFailed if a statement has failed."""
        if self._failures:
            raise BenchmarkFailed(f"a session failed during the retention: {self._failures[0]}") from self._failures[0]

    @property
    def updates(self) -> int:
        return sum(one.updates for one in self._writers)

    @property
    def inserts(self) -> int:
        return sum(one.inserts for one in self._writers)

    @property
    def inserted_ids(self) -> int:
        return sum(one.inserted_ids for one in self._writers)

    def statements(self, begin: float, end: float) -> int:
        """Writers' statements that began between two times of time.monotonic()."""
        return sum(begin <= at < end for one in self._writers for at, _ in one.statements)

    def longest_statement(self, begin: float, end: float) -> float:
        """Seconds of the longest statement in that time, of writers and the reader, including its commit."""
        return max(
            (seconds for one in (*self._writers, self._reader) for at, seconds in one.statements
             if at < end and at + seconds >= begin),
            default=0.0,
        )  # fmt: skip

    def longest_wait(self, begin: float, end: float) -> float:
        """Seconds of the longest wait for a lock that was seen in that time; waits below 5 ms may be missed."""
        return max((one.seconds for one in self._waits if begin <= one.at <= end), default=0.0)

    def _guarded(self, work: Callable[[psycopg.Connection[Any], int], None], number: int) -> None:
        try:
            with self._mirror.connect() as connection:
                work(connection, number)
        except BaseException as error:  # noqa: BLE001 - raised by check(), in the thread that waits
            self._failures.append(error)

    def _write(self, connection: psycopg.Connection[Any], number: int) -> None:
        session = self._writers[number]
        session.pid = connection.info.backend_pid
        chance = random.Random(number)
        for count in self._paced(PER_SECOND / _WRITERS):
            began = time.monotonic()
            if count % _INSERT_EVERY:
                key = 2 * chance.randint(1, self._rows)
                done = connection.execute(_UPDATE, (key,)).rowcount
                session.statements.append((began, time.monotonic() - began))
                session.updates += done
            else:
                key = 2 * (count // _INSERT_EVERY * _WRITERS + number) + 1
                connection.execute(_INSERT, (key,))
                session.statements.append((began, time.monotonic() - began))
                session.inserts += 1
                session.inserted_ids += key

    def _read(self, connection: psycopg.Connection[Any], number: int) -> None:
        self._reader.pid = connection.info.backend_pid
        chance = random.Random(number)
        for _ in self._paced(_READS_PER_SECOND):
            keys = [2 * chance.randint(1, self._rows) for _ in range(10)]
            began = time.monotonic()
            connection.execute(_READ, (keys,))
            self._reader.statements.append((began, time.monotonic() - began))

    def _look(self, connection: psycopg.Connection[Any], _: int) -> None:
        while not self._stopping.wait(_LOOK):
            pids = [one.pid for one in (*self._writers, self._reader)]
            row = connection.execute(_WAITING, (pids,), prepare=True).fetchone()
            if row is not None and row[1]:
                self._waits.append(_Wait(time.monotonic(), float(row[0] or 0.0)))

    def _paced(self, per_second: float) -> Iterator[int]:
        """Yields numbers at that pace until it is stopped; a missed pace is caught up with."""
        due = time.monotonic()
        count = 0
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            yield count
            count += 1
            due += 1 / per_second
