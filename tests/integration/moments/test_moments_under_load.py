"""Moments that are kept while applications write: exactly the rows of their frontiers, in all tables, or nothing."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from functools import partial

import pytest

from mirror_pump.model import format_lsn
from mirror_pump.ops.moments.dropping import drop
from mirror_pump.ops.moments.keeping import KeepStep, MomentOptions, keep
from mirror_pump.ops.reads.time_travel import PastPoint
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Row, assert_same, await_true, lake_rows
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.moments import kept_moment, two_tables
from tests.support.pipeline import in_thread

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["mirror_pump.ops.moments.keeping"])


class _Application:
    """Writes transactions to both tables, and copies both after each of them: what the heap had from the end of that
    transaction to the end of the next."""

    def __init__(self, mirror: Mirror, seed: int) -> None:
        self._mirror = mirror
        self._random = random.Random(seed)
        self.copies: list[tuple[int, int, dict[str, list[Row]]]] = []
        """Positions before and after the end of each transaction, and the tables after it."""
        self._write()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._write()

    def has_written(self, transactions: int) -> bool:
        return len(self.copies) > transactions

    def _write(self) -> None:
        number = len(self.copies) + 1
        with self._mirror.database.session(autocommit=False) as connection:
            for table in ("a", "b"):
                connection.execute(f"INSERT INTO {table} VALUES (%s)", (number,))
                least = self._random.randrange(number + 1)
                connection.execute(f"UPDATE {table} SET v = -v WHERE v BETWEEN %s AND %s", (least, least + 2))
                connection.execute(f"DELETE FROM {table} WHERE v < %s", (-self._random.randrange(1, number + 2),))
            before = self._mirror.database.lsn()
            connection.commit()
        after = self._mirror.database.lsn()
        rows = {table: self._mirror.heap(table) for table in ("public.a", "public.b")}
        self.copies.append((before, after, rows))

    def assert_moment(self, name: str) -> None:
        """Both tables have the rows of one transaction, which the frontier is not before and not far behind."""
        moment = kept_moment(self._mirror, name)
        read = {str(table.table): lake_rows(table.main_location) for table in moment.tables}
        number = max(place for place, (before, *_) in enumerate(self.copies) if before < moment.frontier)
        _, after, rows = self.copies[number]
        # Between the two positions nothing tells on which side of the end of its transaction the frontier is. But it is
        # on the same side in all tables.
        if moment.frontier < after and number and sorted(read["public.a"]) != sorted(rows["public.a"]):
            rows = self.copies[number - 1][2]
        for table, expected in rows.items():
            where = f"{table} at {name}, {format_lsn(moment.frontier)}, {len(self.copies)} transactions"
            assert_same(expected, read[table], where)


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.soak)])
def test_moments_that_are_kept_under_load_are_of_one_frontier(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, rounds: int
) -> None:
    """Compared with copies of the heap that were taken at the time, at the end, when the histories are gone."""
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"SEED={seed}")
    mirror = two_tables(database, warehouse, tasks)
    database.execute(
        'UPDATE modak.tables SET maintenance_policy = \'{"history_newest": 5, "history_minutes_hours": 0}\''
    )
    application = _Application(mirror, seed)
    kept: list[str] = []
    with mirror.pumping(), in_thread(application.run, "application"):
        mirror.await_frontier()
        for number in range(rounds):
            await_true(partial(application.has_written, len(application.copies) + 3), 30, "transactions")
            name = f"m{number}"
            if number % 3 == 2:
                frontier = kept_moment(mirror, kept[-1]).frontier
                keep(mirror.settings, MomentOptions(name, PastPoint(frontier, None)))
                assert kept_moment(mirror, name).frontier == frontier
            else:
                keep(mirror.settings, MomentOptions(name))
            kept.append(name)
            if number % 4 == 3:
                drop(mirror.settings, kept.pop(0))
        mirror.await_frontier()
    assert len(application.copies) > rounds * 3
    for name in kept:
        application.assert_moment(name)


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step is KeepStep.TAGGED else pytest.mark.further) for step in KeepStep]
)
def test_a_kill_leaves_a_whole_moment_or_none(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, step: KeepStep
) -> None:
    """And nothing that holds up the pump, or the next attempt."""
    mirror = two_tables(database, warehouse, tasks)
    rows = {table: mirror.heap(table) for table in ("public.a", "public.b")}
    process = _FORKS.Process(target=_keep_and_die, args=(mirror.settings.model_dump_json(), str(step)))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    there = database.rows("SELECT count(*) FROM modak.moment_tables")
    assert there == [(2 if step is KeepStep.COMMITTED else 0,)]
    with mirror.pumping():
        database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
        mirror.await_frontier()
        if step is not KeepStep.COMMITTED:
            rows = {table: mirror.heap(table) for table in ("public.a", "public.b")}
            keep(mirror.settings, MomentOptions("closing"))
        database.execute("INSERT INTO a VALUES (2)")
    for table in kept_moment(mirror, "closing").tables:
        assert_same(rows[str(table.table)], lake_rows(table.metadata_location), str(table.table))


def _keep_and_die(settings: str, step: str) -> None:
    """Keeps a moment, and kills its own process at the step."""

    def observe(taken: KeepStep) -> None:
        if taken == step:
            os.kill(os.getpid(), signal.SIGKILL)

    keep(Settings.model_validate_json(settings), MomentOptions("closing"), observe)
