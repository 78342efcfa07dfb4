"""Spark compacts mirrored tables of format version 3, and shows the lineage of their rows: as a model has it."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_spark
from mirror_pump.testing.mirror import Mirror, Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.maintenance import MIB, Maintained, age
from tests.support.pending_deletes import await_index
from tests.support.row_lineage import COLUMNS, MirroredLineage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "public.t"


@pytest.mark.further
@pytest.mark.parametrize("rounds", [(False, True), (True, False, True, True, False)])
def test_rows_keep_their_ids_in_compactions(
    database: Database, warehouse: str, spark: SparkSession, rounds: tuple[bool, ...]
) -> None:
    """`rounds`: whether maintenance rewrites files, or expires snapshots."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 300) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), convert_age=0.5, merge_bytes=0)
    mirror.register("t", format_version=3)
    maintained = Maintained(mirror, spark)
    maintained.policy(TABLE, rewrite_target_bytes=MIB, snapshot_min_retained=1)
    model = MirroredLineage(mirror, TABLE, random.Random(seed))
    with mirror.pumping(Steps()) as pump:
        mirror.await_live(TABLE)
        await_index(mirror, pump.steps, TABLE, "UPDATE t SET v = v WHERE id = 1")
        model.take()
        for rewrites in rounds:
            for _ in range(5):
                changes = model.transaction()
                mirror.await_frontier()
                model.check(changes)
            assert maintained.lake_table(TABLE).position_deletes
            age(maintained.files(TABLE), 240)
            # The pump finds IDs in files that were rewritten as long as they are there.
            maintained.policy(
                TABLE,
                rewrite_enabled=rewrites,
                delete_compaction_enabled=rewrites,
                snapshot_retention_hours=24 if rewrites else 0,
            )
            result = maintained.maintain(TABLE)
            assert not result.errors
            # Of files of vectors some are needed yet, for some of their vectors.
            done = {line.split()[0] for line in result.done} - {"rewrite_manifests"}
            assert done == ({"rewrite_data_files"} if rewrites else {"expire_snapshots"}) | {"remove_orphan_files"}
            assert (maintained.lake_table(TABLE).position_deletes == 0) == rewrites
            model.check({})
            by_spark = read_spark(maintained.session, TABLE, ", ".join(COLUMNS))
            assert {row[0]: tuple(row[2:]) for row in by_spark} == model.lineage
    maintained.assert_equal(TABLE)
