"""Nothing that maintenance, another engine's expiry or a copy does takes a row away from a moment."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession

from mirror_pump.ops.moments.cost import moment_costs
from mirror_pump.ops.moments.dropping import drop
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.resync.resync import resync
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Row
from tests.support.backdated import OLD, backdate_history
from tests.support.maintenance import Maintained, T, prepare, write_and_publish
from tests.support.moments import assert_moment, kept_moment
from tests.support.rest_catalog import served


@pytest.fixture
def maintained(database: Database, warehouse: str, spark: SparkSession) -> Maintained:
    return prepare(database, warehouse, spark)


@pytest.mark.further
def test_a_moment_survives_whatever_removes_files(maintained: Maintained) -> None:
    """Compaction, expiry and sweeps of files of any age, another engine that takes its tag away and expires snapshots
    by itself, TRUNCATE, a copy, and a change of a column's type. Without the moments the same removes their files."""
    mirror, database = maintained.mirror, maintained.mirror.database
    rows: dict[str, list[Row]] = {}

    def keep_now(name: str) -> None:
        keep(mirror.settings, MomentOptions(name))
        rows[name] = mirror.heap(T)

    def assert_moments() -> None:
        for name, expected in rows.items():
            assert_moment(mirror, name, {T: expected})

    maintained.policy(T, snapshot_min_retained=1, history_newest=1, history_minutes_hours=0, history_hours_hours=0)
    write_and_publish(mirror, range(3))
    keep_now("first")
    write_and_publish(mirror, range(3, 6))
    keep_now("second")
    write_and_publish(mirror, range(6, 9))
    # The catalog's row holds the snapshot without the tag, until a pump has put that back.
    maintained.session.sql("ALTER TABLE lake.public.t DROP TAG `moment.first`")
    write_and_publish(mirror, range(9, 12))
    for number in range(2):
        backdate_history(maintained, OLD)
        result = maintained.maintain(T)
        assert result.errors == []
        write_and_publish(mirror, range(12 + number, 13 + number))
        assert_moments()
    swept = [details for operation, _, details in maintained.journal(T) if operation == "remove_orphan_files"]
    assert sum(details["counts"]["deleted_files"] for details in swept) > 5

    # The tag holds it against engines that know nothing of the catalog. Now the first moment has none.
    maintained.session.sql("ALTER TABLE lake.public.t DROP TAG `moment.first`")
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 3600))
    maintained.session.sql(f"CALL lake.system.expire_snapshots(table => 'public.t', older_than => TIMESTAMP '{now}')")
    assert_moment(mirror, "second", {T: rows["second"]})
    by_tag = maintained.read(T, "VERSION AS OF 'moment.second'")
    assert by_tag == rows["second"]

    # One that took the tag away, and then expired what had no tag, is found.
    errors = {cost.moment.name: cost.tables[0].error for cost in moment_costs(mirror.settings)}
    assert errors["second"] is None
    assert errors["first"]
    rows.pop("first")
    drop(mirror.settings, "first")
    with mirror.pumping():
        database.execute("ALTER TABLE t ALTER n TYPE text USING 'n' || n", "UPDATE t SET v = NULL WHERE id % 2 = 0")
        mirror.await_frontier()
        mirror.await_live(T)
        keep_now("retyped")
        database.execute("TRUNCATE t", "INSERT INTO t VALUES (1, 'one', 'new')")
        mirror.await_frontier()
        resync(mirror.settings, [T], wait=True, say=lambda _: None, on_progress=lambda _: None)
    backdate_history(maintained, OLD)
    assert maintained.maintain(T).errors == []
    assert_moments()
    with served(mirror.settings) as catalog:
        read = catalog.duckdb("mirror@second").execute("SELECT count(*), sum(n) FROM lake.public.t").fetchall()
        assert read == [(len(rows["second"]), sum(row[1] for row in rows["second"]))]

    moments = {name: kept_moment(mirror, name) for name in rows}
    for name in rows:
        drop(mirror.settings, name)
    database.execute("DELETE FROM modak.read_pins")
    before = len(maintained.files(T))
    with mirror.pumping():
        database.execute("INSERT INTO t VALUES (2, 'two', 'new')")
        mirror.await_frontier()
    backdate_history(maintained, OLD)
    assert maintained.maintain(T).errors == []
    assert len(maintained.files(T)) < before
    for moment in moments.values():
        assert not maintained.lake_table(T).has_snapshot(moment.tables[0].snapshot_id)
