"""Rows of mirrored tables of format version 3 keep their IDs: random transactions, merges and fills against a model."""

from __future__ import annotations

import os
import random

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pending_deletes import await_index
from tests.support.row_lineage import LineageModel


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 300) g",
    )
    return Mirror.create(database, warehouse, tasks, convert_age=0.5)


def test_random_transactions(mirror: Mirror) -> None:
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    model = LineageModel(mirror, "public.t", random.Random(seed))
    mirror.register("t", format_version=3)
    with mirror.pumping(Steps()) as pump:
        mirror.await_live("public.t")
        await_index(mirror, pump.steps, "public.t", "UPDATE t SET v = v WHERE id = 1")
        model.take()
        for number in range(200):
            changes = model.transaction()
            mirror.await_frontier()
            model.check(changes)
            if number > 40 and pump.steps.count(Step.MERGED):
                break
        assert pump.steps.count(Step.MERGED)
    assert model.updated
    mirror.assert_equal("public.t")
