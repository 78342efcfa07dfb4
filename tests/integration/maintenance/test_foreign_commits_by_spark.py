"""Spark, as the role that owns the mirror: changes of rows are undone, Iceberg's procedures go on beside a pump."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.maintenance import Maintained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a SELECT g, g FROM generate_series(1, 100) g"
    )
    limits = QUICK.model_copy(update={"lake_watch_interval": 0.2})
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), limits=limits)
    mirror.register("a")
    mirror.catch_up()
    return mirror


@pytest.mark.further
def test_changes_of_rows_are_undone(mirror: Mirror, spark: SparkSession) -> None:
    maintained = Maintained(mirror, spark)
    run, first = maintained.session.sql, int(maintained.lake_table("public.a").snapshot_id)
    with mirror.pumping() as pump:
        for number, change in enumerate(
            (
                "INSERT INTO lake.public.a VALUES (7000, 'foreign')",
                "DELETE FROM lake.public.a WHERE id > 90",
                "UPDATE lake.public.a SET v = 'foreign' WHERE id = 5",
                "INSERT OVERWRITE lake.public.a VALUES (1, 'foreign')",
                f"CALL lake.system.rollback_to_snapshot('public.a', {first})",
                "TRUNCATE TABLE lake.public.a",
            ),
            1,
        ):
            # The next change of the source meets every second one, the watch the others.
            mirror.database.execute("INSERT INTO a SELECT max(id) + 1, 'before' FROM a")
            mirror.await_frontier()
            run(change).collect()
            if number % 2:
                mirror.database.execute("UPDATE a SET v = v || '!' WHERE id % 5 = 0")
                mirror.await_frontier()
            await_true(lambda: pump.steps.count(Step.FOREIGN_COMMIT_UNDONE) == number, 20, change)  # noqa: B023
            maintained.assert_equal("public.a")
        assert mirror.state("public.a") == "live"


def test_drops_and_renames_are_refused(mirror: Mirror, spark: SparkSession) -> None:
    session = Maintained(mirror, spark).session
    for statement in (
        "DROP TABLE lake.public.a",
        "DROP TABLE lake.public.a PURGE",
        "ALTER TABLE lake.public.a RENAME TO public.other",
    ):
        with pytest.raises(Exception, match="mirrors a table of Postgres"):
            session.sql(statement).collect()
    mirror.catch_up()
    mirror.assert_equal("public.a")


@pytest.mark.further
def test_procedures_beside_a_pump_go_on(mirror: Mirror, spark: SparkSession) -> None:
    """As do users' rewrites and the maintainer's, on a table with deletes of both kinds."""
    maintained = Maintained(mirror, spark)
    # A manual rewrite fails if files are rewritten meanwhile, so here the pump rewrites none.
    with mirror.with_options(convert_age=3600, merge_bytes=0).pumping() as pump:
        for number in range(4):
            mirror.database.execute("DELETE FROM a WHERE id % 17 = 3", "UPDATE a SET v = v || '?' WHERE id % 3 = 1")
            mirror.database.execute("INSERT INTO a SELECT max(id) + 3, 'new' FROM a")
            mirror.await_frontier()
            for procedure in (
                "rewrite_data_files(table => 'public.a', options => map('rewrite-all', 'true'))",
                "rewrite_position_delete_files(table => 'public.a', options => map('rewrite-all', 'true'))",
                "rewrite_manifests('public.a')",
                "compute_table_stats('public.a')",
            ):
                maintained.session.sql(f"CALL lake.system.{procedure}").collect()
            maintained.assert_equal("public.a")
            assert pump.steps.count(Step.FOREIGN_COMMIT_UNDONE) == 0, number
        head = "SELECT lake_head ->> 'location' FROM modak.mirror_tables"
        await_true(
            lambda: mirror.database.rows(head) == [(mirror.location("public.a"),)], 20, "the pump has looked at all"
        )
    maintained.maintain("public.a")
    mirror.catch_up()
    assert mirror.database.rows(head) == [(mirror.location("public.a"),)]
    maintained.assert_equal("public.a")
