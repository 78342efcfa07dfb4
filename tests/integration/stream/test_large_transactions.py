"""What a large transaction keeps until its end waits on disk, its deletes are worked out in parts, and the result is
exact. The limits are so small that a few thousand rows are a large transaction."""

from __future__ import annotations

import gc
import random
from functools import partial
from pathlib import Path

import pytest
from pydantic import ByteSize

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.lake.key_index.index_plan import IndexPlan, plan_commit
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.key_index import key_indexes
from mirror_pump.runtime.spill import Spill
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from tests.support.killed_pump import die

_LIMITS = InternalLimits(
    upkeep_interval=0.1, retry_pause_max=0.25, batch_memory=ByteSize(1), completion_part_bytes=ByteSize(1 << 20)
)


@pytest.fixture
def spilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the values that were put on disk."""
    sizes: list[int] = []
    stored = Spill.stored

    def counted(spill: Spill, value: object, nbytes: int) -> object:
        found = stored(spill, value, nbytes)
        if found is not value:
            sizes.append(nbytes)
        return found

    monkeypatch.setattr(Spill, "stored", counted)
    return sizes


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of parts in which the deletes of each commit were worked out."""
    numbers: list[int] = []

    def planned(*arguments: object, **options: object) -> IndexPlan:
        plan: IndexPlan = partial(plan_commit, part_keys=400)(*arguments, **options)  # type: ignore[arg-type]
        numbers.append(len(plan.touched))
        return plan

    monkeypatch.setattr(key_indexes, "plan_commit", planned)
    return numbers


def make_table(database: Database, rows: int) -> None:
    database.execute(
        "CREATE TABLE t (id text PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT 'k' || g, 0, CASE WHEN g % 3 = 0 THEN repeat(md5(g::text), 120) ELSE 'small' || g END"
        f" FROM generate_series(1, {rows}) g",
    )


def statements(seed: int, rows: int) -> list[str]:
    """The changes of a large transaction: every kind, and several of one row."""
    chance = random.Random(seed)
    first, second = chance.sample(range(2, 9), 2)
    return [
        f"UPDATE t SET n = n + 1 WHERE hashtext(id) % {first} = 0",
        f"INSERT INTO t SELECT 'new{seed}-' || g, g, repeat('x', g % 3000) FROM generate_series(1, {rows}) g",
        f"DELETE FROM t WHERE hashtext(id) % {second} = 1",
        f"UPDATE t SET id = id || '-moved{seed}' WHERE hashtext(id) % {first + second} = 2",
        f"UPDATE t SET n = -n WHERE hashtext(id) % {second} = 2",
        f"DELETE FROM t WHERE id LIKE 'new{seed}-%7'",
        f"INSERT INTO t SELECT id || '-again{seed}', n, big FROM t WHERE id LIKE 'k%5'",
    ]


def nameless_files() -> list[str]:
    """Mappings of files without a name."""
    gc.collect()
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "(deleted)" in line]


def test_large_transactions_are_exact(
    database: Database, warehouse: str, tasks: TaskRunner, spilled: list[int], parts: list[int]
) -> None:
    make_table(database, 4000)
    before = nameless_files()
    mirror = Mirror.create(database, warehouse, tasks, limits=_LIMITS, segment_bytes=16_384, index_memory=64 << 20)
    with mirror.pumping() as pump:
        mirror.register("t")
        mirror.await_live("public.t")
        for number in range(200):
            if pump.steps.count(Step.INDEX_READY):
                break
            database.execute(f"DELETE FROM t WHERE id = 'k{4000 - number}'")
            mirror.await_frontier()
        await_true(lambda: pump.steps.count(Step.INDEX_READY), 30, "the key index")
        for seed in range(2):
            database.execute("; ".join(["BEGIN", *statements(seed, 2000), "COMMIT"]))
            mirror.await_frontier()
            mirror.assert_equal("public.t")
    assert len(spilled) > 100
    assert max(parts) > 10
    mirror.assert_sound()
    assert nameless_files() == before


@pytest.mark.further
@pytest.mark.parametrize("step", ["received", "staged", "published"])
def test_a_kill_in_a_large_transaction_loses_nothing(
    database: Database, warehouse: str, tasks: TaskRunner, step: str
) -> None:
    make_table(database, 1500)
    mirror = Mirror.create(database, warehouse, tasks, limits=_LIMITS, segment_bytes=16_384, index_memory=64 << 20)
    mirror.register("t")
    mirror.catch_up()
    for seed in range(2):
        database.execute("; ".join(["BEGIN", *statements(seed, 500), "COMMIT"]))
    die(mirror, step, 1, segment_bytes=16_384, index_memory=64 << 20)
    mirror.catch_up()
    mirror.assert_equal("public.t")
    mirror.assert_sound()
