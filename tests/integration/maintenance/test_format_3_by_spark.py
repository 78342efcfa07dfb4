"""Spark on mirrored tables of format version 3 with defaults in metadata: it compacts files that lack such a column,
and `verify` by Spark compares their rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from mirror_pump.ops.verify.compare_spark import compare
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_spark
from mirror_pump.testing.mirror import Mirror, Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.changed_tables import DEFAULTS
from tests.support.maintenance import MIB, Maintained, age
from tests.support.pending_deletes import await_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "public.t"
_LACKS = ("[]", "timestamp", "mood", "positive")
"""Types that Iceberg has no defaults of, or not this one, or that are not there."""


@pytest.mark.further
def test_files_that_lack_a_column_with_a_default(database: Database, warehouse: str, spark: SparkSession) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 300) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), convert_age=0.5, merge_bytes=0)
    mirror.register("t", format_version=3)
    maintained = Maintained(mirror, spark)
    maintained.policy(TABLE, rewrite_target_bytes=MIB, defaults_in_metadata=True)
    scalars = [(kind, text) for kind, text in DEFAULTS.items() if not kind.endswith(_LACKS)]
    engine = ComparisonEngine(mirror.runner, partial(compare, maintained.session))
    with mirror.pumping(Steps()) as pump:
        mirror.await_live(TABLE)
        await_index(mirror, pump.steps, TABLE, "UPDATE t SET v = v WHERE id = 1")
        added = ", ".join(f"ADD COLUMN c{place} {kind} DEFAULT {text}" for place, (kind, text) in enumerate(scalars))
        database.execute(
            f"ALTER TABLE t {added}",
            "ALTER TABLE t ALTER c1 SET DEFAULT 8",
            "INSERT INTO t (id) VALUES (400)",
            "UPDATE t SET c1 = NULL WHERE id % 10 = 0",
            "DELETE FROM t WHERE id % 10 = 1",
        )
        mirror.await_frontier()
        columns = maintained.lake_table(TABLE).schema.fields
        assert sum(field.initial_default is not None for field in columns) == len(scalars)
        before = maintained.lake_table(TABLE)
        assert before.position_deletes
        report = verify(mirror.settings, engine=engine)
        assert report.equal, report.to_json()
        rows = sorted(read_spark(maintained.session, TABLE), key=lambda row: row[0])
        age(maintained.files(TABLE), 240)
        result = maintained.maintain(TABLE)
        assert not result.errors
        assert "rewrite_data_files" in {line.split()[0] for line in result.done}
        after = maintained.lake_table(TABLE)
        assert after.position_deletes == 0
        assert {file.path for file in after.live_data_files()}.isdisjoint(
            {file.path for file in before.live_data_files()}
        )
        assert sorted(read_spark(maintained.session, TABLE), key=lambda row: row[0]) == rows
        # What is in files now stays what it is.
        database.execute("UPDATE t SET v = 'later' WHERE id % 3 = 0", "INSERT INTO t (id) VALUES (401)")
        mirror.await_frontier()
        report = verify(mirror.settings, engine=engine)
        assert report.equal, report.to_json()
    assert_verified(database)
