"""Iceberg's Java client sends a commit again when the answer to it was lost. It must not conclude that it failed: it
would delete the files of the snapshot that has landed, or move the table back to it.

What the catalog answers is tested in tests/integration/lake/test_engine_commits.py, without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from mirror_pump.engine.iceberg_procedures.procedures import Procedures, procedure_errors
from mirror_pump.engine.iceberg_procedures.rewrite_request import RewriteRequest
from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.presence import require_all
from mirror_pump.model import TableName
from mirror_pump.testing.database import Database
from tests.support.maintenance import MIB, STORAGE, Maintained, T, prepare, write_and_publish
from tests.support.message_proxy import MessageProxy, cutting_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak

NAME = TableName("public", "t")
_ALL = RewriteRequest(MIB, MIB * 3 // 4, 2, 100 * MIB, deletes=True)

OPERATIONS: dict[str, Callable[[Procedures, Maintained], Any]] = {
    "rewrite_data_files": lambda procedures, _: procedures.rewrite_data_files(NAME, _ALL),
    "rewrite_manifests": lambda procedures, _: _sql(
        procedures, "CALL lake.system.rewrite_manifests(table => 'public.t', use_caching => false)"
    ),
    "expire_snapshots": lambda procedures, maintained: procedures.expire_snapshots(NAME, _oldest(maintained)),
    "set_properties": lambda procedures, _: _sql(procedures, "ALTER TABLE lake.public.t SET TBLPROPERTIES ('a' = 'b')"),
}
"""By Spark, on the table itself, as users' jobs do it."""


def _sql(procedures: Procedures, statement: str) -> None:
    with procedure_errors("running a statement on", T):
        procedures.spark.sql(statement).collect()


def _oldest(maintained: Maintained) -> list[int]:
    return [int(snapshot.snapshot_id) for snapshot in maintained.lake_table(T).metadata.snapshots][:2]


@pytest.fixture
def proxy(database: Database) -> Iterator[MessageProxy]:
    """Between Spark and the catalog. Its next cut is where the answer to Spark's next commit would arrive."""
    with cutting_messages(database.dsn, b"UPDATE iceberg_tables SET metadata_location") as proxy:
        # The statement, in one message, is the only one before its answer.
        proxy.cut_at(1)
        yield proxy


@pytest.fixture
def maintained(database: Database, warehouse: str, spark: SparkSession, proxy: MessageProxy) -> Maintained:
    maintained = replace(prepare(database, warehouse, spark), spark_dsn=proxy.proxied)
    write_and_publish(maintained.mirror, range(12))
    return maintained


def _publish_one_more(maintained: Maintained) -> None:
    write_and_publish(maintained.mirror, range(13, 14))


@pytest.mark.parametrize("on_top", [False, True], ids=["newest", "below another commit"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_procedure_deletes_no_file_of_a_snapshot_that_has_landed(
    maintained: Maintained, proxy: MessageProxy, operation: str, *, on_top: bool
) -> None:
    """The caller learns that it has to look at the table again."""
    before = maintained.mirror.location(T)
    if on_top:
        proxy.before_cut = lambda: _publish_one_more(maintained)
    with pytest.raises(CommitConflict, match="the catalog's answer was lost"):
        OPERATIONS[operation](Procedures(maintained.session), maintained)
    assert proxy.cuts == ["server C"]
    location = maintained.mirror.location(T)
    assert location != before
    require_all(location, STORAGE)
    maintained.assert_equal(T)


def test_a_pass_goes_on_with_what_has_landed(maintained: Maintained, proxy: MessageProxy) -> None:
    result = maintained.maintain(T)
    assert proxy.cuts == ["server C"]
    assert result.errors == []
    assert maintained.backlog(T).figures.data_files == 1
    require_all(maintained.mirror.location(T), STORAGE)
    maintained.assert_equal(T)


@pytest.mark.parametrize("on_top", [False, True], ids=["newest", "below another commit"])
def test_a_writer_of_another_program_neither_loses_its_rows_nor_those_of_others(
    maintained: Maintained, proxy: MessageProxy, *, on_top: bool
) -> None:
    if on_top:
        proxy.before_cut = lambda: _publish_one_more(maintained)
    with pytest.raises((PySparkException, Py4JError), match="UncheckedSQLException"):
        maintained.session.sql("DELETE FROM lake.public.t WHERE id % 7 = 3").collect()
    assert proxy.cuts == ["server C"]
    require_all(maintained.mirror.location(T), STORAGE)
    maintained.mirror.database.execute("DELETE FROM t WHERE id % 7 = 3")
    maintained.mirror.catch_up()
    maintained.assert_equal(T)
