"""The publish: one leader, commits of other engines, and a COMMIT whose answer is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.errors import CommitConflict, ConnectionLost, MirrorPumpError, NotLeader
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.snapshot_summary import REPLACE
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.register import registration
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.catalog.tables import insert_table
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, lake_rows, normalised
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.foreign_writes import without_triggers
from tests.support.proxy import Loss, proxied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def table(database: Database) -> Database:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g",
    )
    return database


@pytest.fixture
def mirror(table: Database, warehouse: str) -> Mirror:
    return Mirror.create(table, warehouse, ThreadTaskRunner())


@pytest.mark.further
def test_a_second_pump_is_refused_with_the_reason(mirror: Mirror, tmp_path: Path) -> None:
    with mirror.pumping() as first:
        mirror.register("t")
        mirror.await_live("public.t")
        with pytest.raises(NotLeader) as refused:
            mirror.start().join()
        assert refused.value.exit_code == 1
        assert "process id" in str(refused.value)
        assert "stop" in refused.value.remedy
        # As a process: the same, within the time that it takes to start.
        program = Program(mirror.database.dsn, tmp_path)
        program.run("run", "--once", "--no-standby", timeout=60, code=1)
        output = (tmp_path / "run.log").read_text()
        assert "leads slot" in output
        assert "only one pump can lead" in output
        mirror.database.execute("UPDATE t SET v = 'w'")
        mirror.await_frontier()
        assert first.steps.count(Step.RETRYING) == 0, "the first one was not disturbed"
    mirror.assert_equal("public.t")


def test_a_pump_that_was_replaced_publishes_nothing_any_more(mirror: Mirror) -> None:
    running = mirror.start()
    mirror.register("t")
    mirror.await_live("public.t")
    with mirror.database.connect() as connection:
        # Like a new leader, if the old leader's connection, and with it the lock, is gone without its noticing.
        connection.execute("UPDATE modak.mirror_slots SET leader_epoch = leader_epoch + 1")
    frontier, location = mirror.frontier(), mirror.location("public.t")
    files = set(Path(urlsplit(location).path).parent.iterdir())
    mirror.database.execute("UPDATE t SET v = 'w'")
    with pytest.raises(NotLeader, match="taken over") as fenced:
        running.join(60)
    assert fenced.value.remedy
    assert (mirror.frontier(), mirror.location("public.t")) == (frontier, location)
    assert mirror.acknowledged() <= frontier
    assert set(Path(urlsplit(location).path).parent.iterdir()) == files, "what it had staged is removed"
    mirror.catch_up()
    mirror.assert_equal("public.t")
    mirror.assert_sound()


@pytest.mark.further
@pytest.mark.parametrize("refuser", ["publish", "copier"])
def test_a_connection_to_a_server_that_the_pump_does_not_lead_on_begins_a_new_session(
    mirror: Mirror, refuser: str
) -> None:
    """A connection that is made anew may lead to a former primary, which only has the epochs before the failover. That
    is no other pump's lead: the pump must not end."""
    mirror.database.execute("CREATE TABLE u AS TABLE t", "ALTER TABLE u ADD PRIMARY KEY (id)")
    with mirror.pumping() as running:
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.database.execute("UPDATE modak.mirror_slots SET leader_epoch = leader_epoch - 1")
        if refuser == "publish":
            mirror.database.execute("UPDATE t SET v = 'w'")
        else:
            mirror.register("u")
        await_true(lambda: running.steps.count(Step.RETRYING), 20, f"the {refuser} refuses")
        assert "the server was exchanged during the session" in str(running.steps.details(Step.RETRYING, "error"))
        mirror.register("u")
        mirror.await_live("public.u")
        mirror.await_frontier()
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()


def test_two_leaders_in_turn_lose_nothing(mirror: Mirror) -> None:
    """The first leader's connection is cut. The second one takes over while the first still streams."""
    first = mirror.start()
    mirror.register("t")
    mirror.await_live("public.t")
    with mirror.database.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
            " WHERE application_name = 'mirror-pump-leader' AND datname = current_database()"
        )
    second = mirror.start()
    await_true(lambda: second.error or second.steps.occurrences, 20, "the second one begins")
    mirror.database.execute("INSERT INTO t VALUES (1000, 'x')", "DELETE FROM t WHERE id < 10")
    with pytest.raises(NotLeader):
        first.join(60)
    mirror.await_frontier()
    second.stop()
    mirror.assert_equal("public.t")
    mirror.assert_sound()


@pytest.mark.unverified("another engine adds a row on purpose")
def test_other_engines_commit_between_the_pumps_commits(mirror: Mirror, warehouse: str, spark: SparkSession) -> None:
    session = lake_session(spark, mirror.database.dsn, warehouse)
    database = mirror.database
    # A manual rewrite fails if files are rewritten meanwhile, so here the pump rewrites none.
    with mirror.with_options(convert_age=3600, merge_bytes=0).pumping() as pump:
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute("UPDATE t SET v = 'w' WHERE id <= 50")
        mirror.await_frontier()
        session.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('steward' = 'somebody')")
        database.execute("UPDATE t SET v = 'x' WHERE id <= 40", "INSERT INTO t VALUES (200, 'new')")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        properties = {row[0]: row[1] for row in session.sql("SHOW TBLPROPERTIES lake.public.t").collect()}
        assert properties["steward"] == "somebody", "the other engine's commit is kept"
        before = mirror.location("public.t")
        session.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
        assert mirror.location("public.t") != before, "the rewrite was committed"
        database.execute("UPDATE t SET v = 'y' WHERE id <= 30", "DELETE FROM t WHERE id = 200")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        session.sql("INSERT INTO lake.public.t VALUES (-1, 'by Spark')")
        database.execute("UPDATE t SET v = 'z' WHERE id <= 20")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        assert_same(mirror.heap("t"), normalised(read_spark(session, "public.t")), "the same by Spark")
        assert pump.steps.count(Step.FOREIGN_COMMIT_UNDONE) == 1, "Spark's row, and no other of its commits"
        assert pump.steps.count(Step.RETRYING) == 0, "a rebase is no error"
    mirror.assert_sound()


def test_a_commit_in_the_middle_of_a_publish_makes_it_rebase(
    mirror: Mirror, warehouse: str, spark: SparkSession
) -> None:
    """Another engine commits after the pump has staged and before it swaps the pointer, three times in a row."""
    session = lake_session(spark, mirror.database.dsn, warehouse)
    left = 0

    def interfere(step: Step, details: dict[str, object]) -> None:
        nonlocal left
        if step is Step.STAGED and left:
            left -= 1
            session.sql(f"ALTER TABLE lake.public.t SET TBLPROPERTIES ('try' = '{left}')")

    steps = Steps(interfere)
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.t")
        # A step is reported after its publish, and before the next one begins.
        mirror.await_frontier()
        published, left = steps.count(Step.PUBLISHED), 3
        staged = steps.count(Step.STAGED)
        mirror.database.execute("UPDATE t SET v = 'w'")
        mirror.await_frontier()
        assert steps.count(Step.STAGED) - staged >= 4
        assert steps.count(Step.PUBLISHED) - published <= 2
        assert steps.count(Step.RETRYING) == 0
    mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_a_pin_that_is_set_in_the_middle_of_a_publish_holds_its_snapshot(mirror: Mirror) -> None:
    """The commit looked for pins before this one was set, and keeps no other history."""
    coming: list[Step] = []
    pinned: list[int] = []

    def pin(step: Step, details: dict[str, object]) -> None:
        # A publish without a batch changes nothing, and would show the pin to the next one.
        if step is Step.STAGED and coming[-1] is Step.WRITTEN and not pinned:
            pinned.append(mirror.database.rows("SELECT lake_snapshot_id FROM modak.cutline")[0][0])
            mirror.database.execute(
                "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
                " SELECT table_id, lake_snapshot_id, 0, now() + interval '1 hour' FROM modak.cutline"
            )
        coming.append(step)

    mirror.register("t")
    mirror.catch_up()
    mirror.database.execute(
        "UPDATE modak.tables SET maintenance_policy ="
        """ '{"history_newest": 1, "history_minutes_hours": 0, "history_hours_hours": 0}'"""
    )
    with mirror.pumping(Steps(pin)):
        for turn in range(3):
            mirror.database.execute(f"UPDATE t SET v = '{turn}'")
            mirror.await_frontier()
        (snapshot_id,) = pinned
        assert LakeTable.load(mirror.location("public.t"), StorageOptions()).has_snapshot(snapshot_id)


@pytest.mark.parametrize("loss", Loss)
def test_the_answer_to_commit_is_lost(table: Database, warehouse: str, loss: Loss) -> None:
    """If it landed although nobody said so, the pump finds out and does not repeat it. If it did not land, it is
    repeated."""
    steps = Steps()
    with proxied(table.dsn) as proxy:
        mirror = Mirror.create(table, warehouse, ThreadTaskRunner(), dsn=proxy.dsn, reconnect_backoff_max=0.2)

        def lost(number: int) -> bool:
            return proxy.lost == number

        with mirror.pumping(steps):
            mirror.register("t")
            mirror.await_live("public.t")
            for number in range(1, 4):
                before = added_rows(mirror)
                moved = table.rows("SELECT count(*) FROM t WHERE id < 900 AND id % 10 = 0")[0][0]
                proxy.lose(loss)
                table.execute("UPDATE t SET id = id + 1000 WHERE id < 900 AND id % 10 = 0", "INSERT INTO t VALUES (10)")
                await_true(partial(lost, number), 20, "a COMMIT was lost")
                mirror.await_frontier()
                if loss is Loss.AFTER:
                    assert steps.count(Step.RETRYING) == 0, "the outcome was read back: it had landed"
                else:
                    assert steps.count(Step.RETRYING) == number
                assert added_rows(mirror) == before + moved + 1, "and was not done twice"
                table.execute("UPDATE t SET id = -id WHERE id >= 1000")
                mirror.await_frontier()
            mirror.assert_equal("public.t")
        mirror.assert_sound()


def test_another_pump_leads_before_the_outcome_of_a_commit_is_read(table: Database, warehouse: str) -> None:
    """The random number that would tell is the other pump's by now. So everything that this pump wrote may be in the
    lake."""
    steps = Steps()
    with proxied(table.dsn) as proxy:
        mirror = Mirror.create(table, warehouse, ThreadTaskRunner(), dsn=proxy.dsn, reconnect_backoff_max=0.2)
        running = mirror.start(steps)
        mirror.register("t")
        mirror.await_live("public.t")
        proxy.lose(
            Loss.AFTER,
            lambda: table.execute("UPDATE modak.mirror_slots SET leader_epoch = leader_epoch + 1, publish_id = 1"),
        )
        table.execute("INSERT INTO t VALUES (1000, 'x')")
        await_true(lambda: proxy.lost, 20, "a COMMIT was lost")
        await_true(lambda: steps.count(Step.RETRYING) or running.error, 20, "it was noticed")
        running.pump.request_stop()
        running.thread.join(60)
        direct = Mirror(table, mirror.settings.model_copy(update={"dsn": table.dsn}), mirror.runner)
        direct.catch_up()
        direct.assert_equal("public.t")
        direct.assert_sound()


@pytest.mark.further
@pytest.mark.parametrize("loss", Loss)
def test_the_answer_to_a_registrations_commit_is_lost(
    table: Database, warehouse: str, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not it was registered: its files exist if they are needed."""
    with proxied(table.dsn) as proxy:
        mirror = Mirror.create(table, warehouse, ThreadTaskRunner())
        lossy = Mirror(table, mirror.settings.model_copy(update={"dsn": proxy.dsn}), mirror.runner)

        def entering(*arguments: Any, **options: Any) -> None:
            proxy.lose(loss)
            insert_table(*arguments, **options)

        monkeypatch.setattr(registration, "insert_table", entering)
        with pytest.raises(ConnectionLost):
            lossy.register("t")
        await_true(lambda: proxy.lost, 20, "a COMMIT was lost")
        monkeypatch.undo()
        registered = table.rows("SELECT count(*) FROM modak.mirror_tables")[0][0]
        assert registered == (loss is Loss.AFTER)
        mirror.register("t")
        mirror.catch_up()
        mirror.assert_equal("public.t")
        mirror.assert_sound()


def test_changes_of_a_table_that_another_engine_renamed_are_not_lost_in_silence(
    mirror: Mirror,
) -> None:
    """Nor are they promised: the table fails and says why. The other tables continue."""
    mirror.database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    with mirror.pumping():
        mirror.register("t", "u")
        mirror.await_live("public.t", "public.u")
        rename = "UPDATE modak.iceberg_tables SET table_name = 't_old' WHERE table_name = 't'"
        without_triggers(mirror.database, rename)
        promised = mirror.database.lsn()
        mirror.database.execute("INSERT INTO t VALUES (1000, 'x')", "INSERT INTO u VALUES (1)")
        mirror.await_frontier()
        mirror.assert_equal("public.u")
        assert mirror.state("public.t") == "failed"
        assert "dropped or renamed" in mirror.error("public.t")
        (reached,) = mirror.database.rows("SELECT replicated_lsn FROM modak.cutline WHERE table_id = 't'::regclass")[0]
        assert reached <= promised
        mirror.unregister("t")
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.u")


def added_rows(mirror: Mirror) -> int:
    """The number of rows that commits have added to the table so far, without rows that were only moved to other
    files."""
    added = 0
    for snapshot in StaticTable.from_metadata(mirror.location("public.t")).snapshots():
        assert snapshot.summary is not None
        if snapshot.summary["operation"] != REPLACE:
            added += int(snapshot.summary["added-records"] or 0)
    return added


def test_lake_and_frontier_move_together(mirror: Mirror) -> None:
    """Each publish is checked: one statement on the catalog never shows a table at another frontier."""
    points: list[tuple[int, list[tuple[int, bool]]]] = []

    def look(step: Step, details: dict[str, object]) -> None:
        if step is Step.PUBLISHED:
            rows = mirror.database.rows(
                "SELECT c.replicated_lsn, i.metadata_location = c.lake_props ->> 'metadata_location'"
                " FROM modak.cutline c JOIN modak.tables t USING (table_id) JOIN modak.iceberg_tables i"
                " ON i.table_namespace = t.schema_name AND i.table_name = t.table_name"
            )
            points.append((int(str(details["frontier"])), rows))

    mirror.database.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    mirror.register("t", "u")
    mirror.catch_up()

    def seen(number: int) -> bool:
        return len(points) > number

    with mirror.pumping(Steps(look)):
        for number in range(10):
            mirror.database.execute("UPDATE t SET v = v || '.'", "INSERT INTO u SELECT coalesce(max(id), 0) + 1 FROM u")
            mirror.await_frontier()
            await_true(partial(seen, number), 20, "a publish was seen")
    for frontier, rows in points:
        assert rows == [(frontier, True), (frontier, True)], "every table, idle or not, has the same frontier"
    assert lake_rows(mirror.location("public.u")) == mirror.heap("u")


@pytest.mark.further
@pytest.mark.parametrize("error", [CommitConflict, ConnectionLost])
def test_what_fails_after_the_commit_publishes_nothing_again(
    database: Database, warehouse: str, error: type[MirrorPumpError]
) -> None:
    """An error after the COMMIT, of whatever kind, does not make the publish fail: the batch is not published again,
    and its files are not removed."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT g, 0 FROM generate_series(1, 99) g"
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), convert_age=3600, merge_bytes=0)
    mirror.register("t")
    failed: list[Step] = []

    def fail(step: Step, _: dict[str, object]) -> None:
        # It is reported while the commit that made the pump want the index is processed.
        if step is Step.INDEX_BUILDING and not failed:
            failed.append(step)
            raise error("behind the COMMIT")

    with mirror.pumping(Steps(on=fail)):
        mirror.await_live("public.t")
        for turn in range(60):
            with database.connect(autocommit=False) as connection:
                connection.execute("INSERT INTO t VALUES (%s, 1)", (1000 + turn,))
                connection.execute("DELETE FROM t WHERE id = %s", (turn + 1,))
                connection.execute("UPDATE t SET n = n + 1 WHERE id > 990")
            mirror.await_frontier()
            if failed:
                break
        assert failed, "the index is never built"
        database.execute("DELETE FROM t WHERE id >= 1000 AND id % 2 = 0")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
