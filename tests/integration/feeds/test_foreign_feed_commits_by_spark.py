"""Spark, as the role that owns the mirror, on a change feed: what it rewrites is read in order, what it changes is
undone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.maintenance import Maintained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.further
def test_rewrites_stay_and_changes_are_undone(
    database: Database, warehouse: str, spark: SparkSession, run: RunCommand
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), merge_bytes=0)
    mirror.register("t", feed=FeedOptions(FeedMode.KEYS))
    keys: list[int] = []

    def printed() -> list[int]:
        result = run("changes", "t", "--slot", mirror.settings.slot, "--json", "--since", "0/0")
        assert result.exit_code == 0, result.output
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return [line["row"]["id"] for line in lines if line.get("op") == "insert"]

    with mirror.pumping() as pump:
        mirror.await_live("public.t")

        def insert(number: int) -> None:
            for _ in range(number):
                keys.append(len(keys))
                database.execute(f"INSERT INTO t VALUES ({keys[-1]})")
                mirror.await_frontier()

        insert(5)
        session = Maintained(mirror, spark).session
        for options in ("", ", strategy => 'sort', sort_order => '_lsn DESC'"):
            for feed in ("public.t__changes", "modak.transactions"):
                arguments = f"table => '{feed}', options => map('rewrite-all', 'true'){options}"
                session.sql(f"CALL lake.system.rewrite_data_files({arguments})").collect()
            assert printed() == keys
            insert(2)
            assert printed() == keys
        assert pump.steps.count(Step.FOREIGN_COMMIT_UNDONE) == 0
        session.sql("INSERT INTO lake.public.t__changes SELECT * FROM lake.public.t__changes").collect()
        await_true(lambda: pump.steps.count(Step.FOREIGN_COMMIT_UNDONE) == 1, 20, "the rows are gone again")
        assert printed() == keys
        insert(1)
        assert printed() == keys
        with pytest.raises(Exception, match="is a change feed of the mirror: no engine may drop it"):
            session.sql("DROP TABLE lake.public.t__changes PURGE").collect()
    mirror.assert_equal("public.t")
