"""Readers of other programs, which only follow the published algorithm, during late writes, folds, cut-line moves,
drops and maintenance. They are exact while the writer pauses. While it does not, every row is exact as of some time
during the read."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.foreign_reader import HISTORY, ForeignReader, Judge
from tests.support.late_writes import STREAM, LateStream
from tests.support.maintenance import Maintained, maintaining

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ForeignReadLoad:
    """How hard the test is."""

    seconds: float
    """The least duration of the reads, in seconds."""
    width: int
    """Tier keys per partition of the stream."""
    inserts: int
    """Inserts per second."""
    late: int
    """Late writes per second."""
    pauses: tuple[float, float]
    """Longest pause in seconds between two queries of a read: drawn from this range."""
    readers: int
    """The number of readers at the same time."""


@dataclass
class Readers:
    """Several readers at work, and the results of their reads."""

    database: Database
    load: ForeignReadLoad
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    counting: threading.Lock = field(default_factory=threading.Lock)

    def read(self, *, paused: bool, seconds: float) -> None:
        """Each reader reads for so long, and at least once. `paused`: no writer is at work."""
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(self.load.readers) as pool:
            seeds = [self.chance.getrandbits(32) for _ in range(self.load.readers)]
            for reader in [pool.submit(self._read_on, random.Random(seed), paused, until) for seed in seeds]:
                reader.result(300)

    def _read_on(self, chance: random.Random, paused: bool, until: float) -> None:
        with duckdb_connection() as duckdb:
            reader, judge = ForeignReader(self.database, duckdb, chance), Judge(self.database, duckdb)
            while True:
                one_transaction = chance.random() < 0.3
                pause = chance.uniform(*self.load.pauses)
                kind = (
                    f"{'paused' if paused else 'running'} writer, {'one transaction' if one_transaction else 'several'}"
                )
                before = judge.before()
                read = reader.read(pause, one_transaction=one_transaction)
                touched = judge.judge(read, before, f"{kind}, with pauses of {pause:.1f} s")
                assert not read.cut_moved, "the cut-line moved under a pin"
                assert not (paused and touched), "the writer did not pause"
                with self.counting:
                    self.done[kind] += 1
                    self.done["of a snapshot that was replaced meanwhile"] += read.snapshot_moved
                    self.done["of keys that changed meanwhile"] += touched > 0
                # The cut-line, and the clearing of corrections, wait for a moment without a pin.
                threading.Event().wait(chance.uniform(0.1, 0.6))
                if time.monotonic() >= until:
                    return


def _run(database: Database, warehouse: str, load: ForeignReadLoad, spark: SparkSession | None) -> None:
    seed = int(os.environ.get("READS_SEED", random.SystemRandom().randrange(2**32)))
    print(f"READS_SEED={seed}")
    chance = random.Random(seed)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), fold_age=0.3, retention_interval=0.1)
    stream = LateStream.create(mirror, load.width)
    database.execute(HISTORY)
    steps = Steps()
    readers = Readers(database, load, chance)
    with mirror.pumping(steps), ExitStack() as maintenance:
        mirror.await_live(STREAM)
        if spark is not None:
            maintained = Maintained(mirror, spark)
            maintained.policy(STREAM, snapshot_retention_hours=0, snapshot_min_retained=1)
            passes = maintenance.enter_context(maintaining(maintained, [STREAM]))
        ends = time.monotonic() + load.seconds
        turn = max(load.seconds / 20, 3 * load.pauses[1])
        rounds = 0
        while time.monotonic() < ends or rounds < 2:
            rounds += 1
            dropped = stream.state_counts().get("dropped", 0)
            with stream.writing(chance.getrandbits(32), load.inserts, load.late):
                readers.read(paused=False, seconds=turn)
                await_true(lambda: stream.state_counts().get("dropped", 0) > dropped, 60, "a partition leaves")  # noqa: B023
            # Folds, cut-line moves and drops go on with what the writer has left.
            readers.read(paused=True, seconds=turn)
        if spark is not None:
            await_true(lambda: passes, 120, "a pass of maintenance")
            assert not [result.errors for result in passes if result.errors]
        # The last round may end before the fold of what it wrote.
        await_true(
            lambda: steps.count(Step.FOLDED) >= 2 and steps.count(Step.TIER_ADVANCED) >= 2, 60, "folds, advances"
        )
    done = readers.done
    print(
        f"{dict(done)}; {steps.count(Step.FOLDED)} folds; the cut-line moved {steps.count(Step.TIER_ADVANCED)} times;"
        f" {stream.state_counts()}"
    )
    assert sum(count for kind, count in done.items() if kind.startswith("paused")) >= 2
    assert done["of keys that changed meanwhile"], "no read met a writer"
    assert database.rows("SELECT * FROM modak.read_pins") == []
    assert database.rows("SELECT retention_stopped FROM modak.status") == [(None,)], "a proof failed"
    mirror.assert_sound()


@pytest.mark.slow
def test_readers_by_the_published_algorithm_are_exact(database: Database, tmp_path: Path) -> None:
    _run(database, tmp_path.as_uri(), ForeignReadLoad(4, 400, 300, 60, (0.2, 0.5), 2), None)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_readers_by_the_published_algorithm_are_exact_for_long(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Queries one to twenty seconds apart, during maintenance."""
    seconds = float(os.environ.get("READS_SECONDS", "600"))
    _run(database, tmp_path.as_uri(), ForeignReadLoad(seconds, 3000, 400, 60, (1.0, 20.0), 3), spark)
