"""Nothing is deleted that may still be needed: each test tries to make maintenance delete it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import pytest

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.errors import CommitConflict, LakeError
from mirror_pump.lake.storage import local_path
from mirror_pump.model import TableName
from mirror_pump.ops.maintenance import sweep as sweeping
from mirror_pump.ops.maintenance.maintenance_pass import PassResult
from mirror_pump.ops.maintenance.sweep import Sweep, SweptMirror
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.maintenance import read_tables
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import Mirror, Row, Steps, assert_same, await_true, lake_rows
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.backdated import OLD, backdate_history
from tests.support.events_table import RetentionTables
from tests.support.maintenance import (
    NO_UPKEEP,
    STORAGE,
    CommitGate,
    Maintained,
    T,
    age,
    no_publishes,
    prepare,
    write,
    write_and_publish,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def maintained(database: Database, warehouse: str, spark: SparkSession) -> Maintained:
    return prepare(database, warehouse, spark)


def pin(maintained: Maintained, expires: str = "1 hour") -> tuple[int, str, list[Row]]:
    """A reader's pin on the published state: snapshot, metadata file, and the rows that it reads."""
    snapshot, location = maintained.published(T)
    pin_snapshot(maintained, snapshot, expires)
    return snapshot, location, lake_rows(location)


def pin_snapshot(maintained: Maintained, snapshot: int, expires: str = "1 hour", table: str = T) -> None:
    """A reader's pin on any snapshot, as for reads of the past."""
    maintained.mirror.database.rows(
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        " VALUES (%s, %s, 0, now() + %s::interval) RETURNING pin_id",
        (maintained.table_id(table), snapshot, expires),
    )


def sweep_now(
    maintained: Maintained, *, dry_run: bool = False, clock_skew: float = sweeping.CLOCK_SKEW
) -> Sweep | None:
    """A sweep without a grace period."""
    policy = Policy.model_construct(**{**dict(Policy()), "orphan_grace_hours": 0.0, "metadata_grace_hours": 0.0})
    mirror = maintained.mirror
    session = lake_session(maintained.spark, mirror.database.dsn, mirror.settings.require_warehouse())
    with connect(mirror.database.dsn, autocommit=True) as connection:
        (table,) = read_tables(connection, mirror.settings.slot, [maintained.table_id(T)])
        swept = SweptMirror(connection, mirror.settings.slot, STORAGE, table.name, table, Procedures(session))
        return sweeping.sweep(swept, policy, dry_run=dry_run, clock_skew=clock_skew)


def test_whatever_is_pinned_tagged_branched_or_retained_is_read_as_before(maintained: Maintained) -> None:
    mirror, table_id = maintained.mirror, maintained.table_id(T)
    session = lake_session(maintained.spark, mirror.database.dsn, mirror.settings.require_warehouse())
    write_and_publish(mirror, range(3))
    pinned = [pin(maintained)]
    write_and_publish(mirror, range(3, 6))
    session.sql("ALTER TABLE lake.public.t CREATE TAG audit")
    session.sql("ALTER TABLE lake.public.t CREATE BRANCH study")
    kept = {name: maintained.read(T, f"VERSION AS OF '{name}'") for name in ("audit", "study")}
    write_and_publish(mirror, range(6, 9))
    pinned.append(pin(maintained))
    expired_pin = pin(maintained, expires="-1 minute")
    write_and_publish(mirror, range(9, 14))
    # A branch may diverge: its snapshot is not an ancestor of any other.
    session.sql("INSERT INTO lake.public.t.branch_study VALUES (-1, -1, 'study')")
    kept["study"] = maintained.read(T, "VERSION AS OF 'study'")
    write_and_publish(mirror, range(14, 16))
    backdate_history(maintained, OLD)

    maintained.policy(T, snapshot_min_retained=2)
    for _ in range(2):
        result = maintained.maintain(T)
        assert result.errors == []
        age(maintained.files(T), OLD)
    expired = [details for operation, _, details in maintained.journal(T) if operation == "expire_snapshots"]
    assert sum(details["counts"]["expired_snapshots"] for details in expired) > 5
    swept = [details for operation, _, details in maintained.journal(T) if operation == "remove_orphan_files"]
    assert len(swept) == 2

    maintained.assert_equal(T)
    for snapshot, location, rows in pinned:
        assert maintained.lake_table(T).has_snapshot(snapshot)
        assert_same(rows, lake_rows(location), f"pinned snapshot {snapshot} by DuckDB, through its own metadata file")
        assert_same(rows, maintained.read(T, f"VERSION AS OF {snapshot}"), f"pinned snapshot {snapshot} by Spark")
    for name, rows in kept.items():
        assert_same(rows, maintained.read(T, f"VERSION AS OF '{name}'"), name)
    assert not maintained.lake_table(T).has_snapshot(expired_pin[0]) or expired_pin[0] == pinned[1][0]
    for retained in maintained.lake_table(T).metadata.snapshots:
        maintained.read(T, f"VERSION AS OF {retained.snapshot_id}")
    snapshot, location = maintained.published(T)
    assert maintained.lake_table(T).has_snapshot(snapshot)
    assert_same(mirror.heap(T), lake_rows(location), "what is published")

    # Without pins, tag and branch, the same maintenance deletes what they held: so the test above could have failed.
    before = len(maintained.files(T))
    with mirror.database.connect() as connection:
        connection.execute("DELETE FROM modak.read_pins WHERE table_id = %s", (table_id,))
    session.sql("ALTER TABLE lake.public.t DROP TAG audit")
    session.sql("ALTER TABLE lake.public.t DROP BRANCH study")
    write_and_publish(mirror, range(16, 18))
    backdate_history(maintained, OLD)
    assert maintained.maintain(T).errors == []
    assert not maintained.lake_table(T).has_snapshot(pinned[0][0])
    assert len(maintained.files(T)) < before
    maintained.assert_equal(T)


def only_expire(maintained: Maintained, table: str = T) -> None:
    """Snapshots older than the newest one may expire; nothing else is done."""
    maintained.policy(
        table,
        rewrite_enabled=False,
        delete_compaction_enabled=False,
        manifest_rewrite_enabled=False,
        orphan_sweep_enabled=False,
        snapshot_min_retained=1,
        snapshot_retention_hours=0,
    )


@pytest.mark.further
def test_a_snapshot_that_is_pinned_while_it_expires_stays_readable(maintained: Maintained) -> None:
    """A reader pinned it and found it in the history: none of its files is deleted while the pin lasts."""
    mirror = maintained.mirror
    write_and_publish(mirror, range(3))
    snapshot, location = maintained.published(T)
    rows = lake_rows(location)
    needed = maintained.files(T)
    write_and_publish(mirror, range(3, 6))
    only_expire(maintained)
    results: list[PassResult] = []
    thread = threading.Thread(target=lambda: results.append(maintained.maintain(T)), name="maintain")
    with no_publishes(mirror) as await_commit:
        thread.start()
        await_commit()
        pin_snapshot(maintained, snapshot)
        assert maintained.lake_table(T).has_snapshot(snapshot)
    thread.join(60)
    assert results[0].errors == []
    assert not maintained.lake_table(T).has_snapshot(snapshot)
    assert_same(rows, lake_rows(location), "the snapshot that was pinned")
    ((_, _, details),) = [record for record in maintained.journal(T) if record[0] == "expire_snapshots"]
    assert "sweep" in details["left"]

    # It is no longer in the history. While it is pinned, its files cannot be determined.
    write_and_publish(mirror, range(6, 8))
    (error,) = maintained.maintain(T).errors
    assert f"{snapshot}" in error
    assert_same(rows, lake_rows(location), "the snapshot that was pinned")

    mirror.database.execute("DELETE FROM modak.read_pins")
    maintained.policy(T, orphan_sweep_enabled=True)
    age(maintained.files(T), OLD)
    assert maintained.maintain(T).errors == []
    assert not needed <= maintained.files(T), "what was left has gone since"
    maintained.assert_equal(T)


@pytest.mark.further
def test_what_is_pinned_while_spark_starts_is_not_expired(maintained: Maintained) -> None:
    """Starting Spark may take minutes, and happens after the decision."""
    mirror = maintained.mirror
    write_and_publish(mirror, range(3))
    snapshot, location = maintained.published(T)
    rows = lake_rows(location)
    write_and_publish(mirror, range(3, 6))
    only_expire(maintained)
    maintained.request(T)
    with maintained.maintainer(lambda: pin_snapshot(maintained, snapshot)) as maintainer:
        result = maintainer.maintain(maintained.table_id(T))
    assert result is not None
    assert result.errors == []
    assert any("expire_snapshots" in line for line in result.done)
    assert maintained.lake_table(T).has_snapshot(snapshot)
    assert_same(rows, lake_rows(location), "the snapshot that was pinned")


@pytest.mark.further
def test_archive_snapshots_newer_than_what_is_pinned_while_spark_starts_stay(
    retention_tables: RetentionTables, spark: SparkSession
) -> None:
    limits = InternalLimits(archive_check_interval=0.2, archive_refresh_age=0)
    events = retention_tables.manual(fold_age=0.05, limits=limits, **NO_UPKEEP)
    maintained, table = Maintained(events.mirror, spark), "public.events"

    def archived() -> list[int]:
        history = maintained.lake_table(table).metadata.snapshots.oldest_first()
        return [snapshot.snapshot_id for snapshot in history if snapshot.is_archive]

    def archived_after(former: list[int]) -> bool:
        return archived()[-1:] != former

    with events.mirror.pumping() as running:
        events.mirror.await_live(table)
        events.advance(running)
        for number in range(4):
            newest = partial(archived_after, archived()[-1:])
            row = f'{{"at": {number}, "id": {4000 + number}, "n": 1, "v": "x"}}'
            events.database.execute(f"SELECT modak.upsert('events', '{row}')")
            await_true(newest, 30, "the row is in the archive")
    snapshots = archived()
    assert len(snapshots) > 3
    only_expire(maintained, table)
    maintained.request(table)
    with maintained.maintainer(lambda: pin_snapshot(maintained, snapshots[1], table=table)) as maintainer:
        result = maintainer.maintain(maintained.table_id(table))
    assert result is not None
    assert result.errors == []
    assert any("expire_snapshots" in line for line in result.done)
    assert archived() == snapshots[1:]


@pytest.mark.further
def test_no_rewrite_is_announced_before_there_is_a_spark(maintained: Maintained) -> None:
    """From the announcement on, the pump writes equality deletes, and merges nothing; 100 commits may land while Spark
    starts."""
    mirror, table_id = maintained.mirror, maintained.table_id(T)
    write_and_publish(mirror, range(3))
    announced: list[int | None] = []
    numbers: list[int] = []

    def starting() -> None:
        announced.append(maintained.rewrite_since(T))
        if len(announced) == 1:
            write_and_publish(mirror, range(3, 5))
            numbers.append(maintained.lake_table(T).sequence_number)

    maintained.request(T)
    with maintained.maintainer(starting) as maintainer:
        result = maintainer.maintain(table_id)
    assert result is not None
    assert result.errors == []
    assert announced[0] is None
    ((_, _, details),) = [record for record in maintained.journal(T) if record[0] == "rewrite_data_files"]
    assert details["since_sequence"] == numbers[0], "what Spark begins at"
    maintained.assert_equal(T)


@pytest.mark.further
def test_a_snapshots_time_runs_from_its_replacement(maintained: Maintained) -> None:
    """A table did not change for a day, and then did: yesterday's rows are still available."""
    write_and_publish(maintained.mirror, range(3))
    backdate_history(maintained, 48)
    snapshot, _ = maintained.published(T)
    write_and_publish(maintained.mirror, range(3, 4))
    maintained.policy(T, snapshot_min_retained=1)
    assert maintained.maintain(T).errors == []
    assert maintained.lake_table(T).has_snapshot(snapshot)
    maintained.read(T, f"VERSION AS OF {snapshot}")


@pytest.mark.further
def test_a_branch_with_an_age_of_its_own_stops_expiry(maintained: Maintained) -> None:
    """Iceberg follows the branch's setting and would expire a pinned snapshot on it."""
    mirror = maintained.mirror
    write_and_publish(mirror, range(3))
    snapshot, _, _ = pin(maintained)
    session = lake_session(maintained.spark, mirror.database.dsn, mirror.settings.require_warehouse())
    session.sql("ALTER TABLE lake.public.t CREATE OR REPLACE BRANCH main RETAIN 1 DAYS")
    session.sql("ALTER TABLE lake.public.t CREATE BRANCH short WITH SNAPSHOT RETENTION 1 MINUTES")
    write_and_publish(mirror, range(3, 6))
    backdate_history(maintained, OLD)
    maintained.policy(T, snapshot_min_retained=1)
    assert maintained.maintain(T).errors == []
    assert maintained.lake_table(T).has_snapshot(snapshot)
    assert any("branch" in warning for warning in maintained.backlog(T).warnings)


def test_the_sweep_takes_old_orphans_only(maintained: Maintained) -> None:
    mirror = maintained.mirror
    write_and_publish(mirror, range(4))
    root = Path(maintained.lake_table(T).location.removeprefix("file://"))
    old, young = root / "data" / "orphan.parquet", root / "data" / "young.parquet"
    stray, beside = root / "metadata" / "orphan-m0.avro", root / "elsewhere.txt"
    half = root / "data" / ".half.parquet.tmp"
    for path in (old, young, stray, beside, half):
        path.write_bytes(b"nobody knows me")
    kept = maintained.files(T) - {old, stray, half}
    age([old, stray, beside, half], 25)
    before = mirror.location(T)
    rehearsed = [file.location.rsplit("/", 1)[-1] for file in _dry(maintained).files]
    assert sorted(rehearsed) == sorted([old.name, stray.name, half.name])
    assert old.exists(), "a dry run deletes nothing"
    maintained.policy(T, rewrite_enabled=False, delete_compaction_enabled=False)
    assert maintained.maintain(T).errors == []
    assert mirror.location(T) == before
    assert maintained.files(T) == kept
    ((_, _, details),) = [record for record in maintained.journal(T) if record[0] == "remove_orphan_files"]
    assert details["counts"]["deleted_files"] == 3
    assert details["counts"]["deleted_bytes"] == 3 * len(b"nobody knows me")
    maintained.assert_equal(T)


def _dry(maintained: Maintained) -> Sweep:
    with maintained.maintainer() as maintainer:
        (backlog,) = maintainer.read_backlogs([maintained.table_id(T)])
        operations, swept = maintainer.dry_run(backlog)
    assert any(type(operation).__name__ == "SweepFiles" for operation in operations)
    assert swept is not None
    return swept


@pytest.mark.further
def test_metadata_files_go_once_they_fell_out_of_the_log(maintained: Maintained) -> None:
    mirror = maintained.mirror
    session = lake_session(maintained.spark, mirror.database.dsn, mirror.settings.require_warehouse())
    session.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('write.metadata.previous-versions-max' = '3')")
    write_and_publish(mirror, range(4))
    _, location, rows = pin(maintained)
    write_and_publish(mirror, range(4, 10))
    metadata = {path for path in maintained.files(T) if path.name.endswith(".metadata.json")}
    log = {entry["metadata-file"] for entry in maintained.lake_table(T).metadata.document["metadata-log"]}
    assert len(log) == 3 < len(metadata) - 3
    maintained.policy(
        T,
        rewrite_enabled=False,
        delete_compaction_enabled=False,
        manifest_rewrite_enabled=False,
        metadata_grace_hours=0.5,
    )
    assert maintained.maintain(T).errors == []
    assert metadata <= maintained.files(T), "within the grace"
    age(metadata, 0.75)
    assert maintained.maintain(T).errors == []
    assert local_path(location) in maintained.files(T), "the pinned snapshot's"
    assert_same(rows, lake_rows(location), "the pinned reader reads on")
    assert metadata <= maintained.files(T), "a pin keeps what is not clearly older than its snapshot"
    mirror.database.execute("DELETE FROM modak.read_pins")
    assert maintained.maintain(T).errors == []
    left = {path.as_uri() for path in maintained.files(T) if path.name.endswith(".metadata.json")}
    assert left == log | {mirror.location(T)}
    maintained.assert_equal(T)


def test_a_pin_that_the_history_lost_stops_the_sweep(maintained: Maintained) -> None:
    maintained.mirror.database.rows(
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        " VALUES (%s, 42, 0, now() + interval '1 hour') RETURNING pin_id",
        (maintained.table_id(T),),
    )
    with pytest.raises(LakeError, match="not in its history") as caught:
        sweep_now(maintained)
    assert "read_pins" in caught.value.remedy


@pytest.mark.further
def test_a_snapshot_that_is_pinned_and_thinned_out_during_the_sweep_keeps_its_files(
    maintained: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader found it in the history, the pump's next publish removed it, and then Spark listed the referenced
    files."""
    mirror = maintained.mirror
    write_and_publish(mirror, range(2))
    snapshot, location = maintained.published(T)
    rows = lake_rows(location)
    write_and_publish(mirror, range(2, 5))
    orphan = Path(maintained.lake_table(T).location.removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_bytes(b"")
    age(maintained.files(T), OLD)
    unreferenced = Procedures.unreferenced

    def late(self: Procedures, table: TableName, locations: Sequence[str]) -> list[str]:
        maintained.policy(T, history_newest=1, history_minutes_hours=0.0, history_hours_hours=0.0)
        write_and_publish(mirror, range(5, 6))
        pin_snapshot(maintained, snapshot)
        return unreferenced(self, table, locations)

    monkeypatch.setattr(Procedures, "unreferenced", late)
    with pytest.raises(LakeError, match="not in its history"):
        sweep_now(maintained, clock_skew=0)
    assert not maintained.lake_table(T).has_snapshot(snapshot)
    assert_same(rows, lake_rows(location), "the snapshot that was pinned")
    assert orphan.exists()


@pytest.mark.further
@pytest.mark.parametrize("held_at", [Step.RECEIVED, Step.WRITTEN, Step.STAGED])
def test_a_batch_in_flight_survives_a_sweep_that_takes_its_files(maintained: Maintained, held_at: Step) -> None:
    """A pump was suspended between writing and publishing for longer than the grace period, which is zero here."""
    mirror = maintained.mirror
    held, go = threading.Event(), threading.Event()

    def hold(step: Step, _details: dict[str, object]) -> None:
        if step is held_at and not held.is_set():
            held.set()
            assert go.wait(120)

    steps = Steps(hold)
    with mirror.pumping(steps):
        write(mirror, 1)
        assert held.wait(60)
        if held_at is Step.RECEIVED:
            root = Path(maintained.lake_table(T).location.removeprefix("file://"))
            await_true(lambda: any(root.glob("data/*-deletes.parquet")), 30, "the segment's files are written")
        files = maintained.files(T)
        swept = sweep_now(maintained, clock_skew=0)
        assert swept is not None
        assert swept.files, "the batch's files were nobody's"
        assert maintained.files(T) < files
        go.set()
        mirror.await_frontier()
        write(mirror, 2)
        mirror.await_frontier()
    assert steps.count(Step.RETRYING) >= (held_at is not Step.STAGED)
    maintained.assert_equal(T)
    assert mirror.state(T) == "live"


@pytest.mark.further
def test_a_publish_that_landed_before_the_sweep_looked_is_safe(maintained: Maintained) -> None:
    """The sweep waits for a publish that holds the slot's row, as one of unknown outcome does until that is decided."""
    mirror = maintained.mirror
    held, go = threading.Event(), threading.Event()
    found: list[Any] = []
    with mirror.database.connect(autocommit=False) as connection:
        connection.execute("SELECT FROM modak.mirror_slots FOR UPDATE")
        thread = threading.Thread(target=lambda: found.append(sweep_now(maintained)))
        thread.start()
        await_true(
            lambda: mirror.database.rows(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ),
            30,
            "the sweep waits",
        )
        assert not found
        connection.rollback()
    thread.join(60)
    assert found
    assert not held.is_set()
    assert not go.is_set()


@pytest.mark.further
def test_a_table_under_copy_is_left_alone(database: Database, warehouse: str, spark: SparkSession) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, v text)",
        "INSERT INTO t SELECT g, 0, repeat('v', 500) FROM generate_series(1, 4000) g",
    )
    copies = GatedCopies(ThreadTaskRunner())
    mirror = Mirror.create(database, warehouse, copies, copy_chunk_bytes=65536)
    maintained = Maintained(mirror, spark)
    copies.hold()
    with mirror.pumping():
        mirror.register("t")
        await_true(lambda: copies.waiting >= 2, 30, "chunks are to be copied")
        copies.let_go(2)
        # Each chunk may have a commit of its own. The table's metadata does not change until both are published.
        done: LiteralString = "SELECT FROM modak.copy_chunks WHERE done_at IS NOT NULL"
        await_true(lambda: len(database.rows(done)) == 2, 30, "both chunks are published")
        write(mirror, 1)
        mirror.await_frontier()
        orphan = Path(maintained.lake_table(T).location.removeprefix("file://")) / "data" / "orphan.parquet"
        orphan.write_bytes(b"")
        age(maintained.files(T), OLD)
        location = mirror.location(T)
        result = maintained.maintain(T)
        assert "copy" in result.skipped
        assert result.done == []
        assert mirror.location(T) == location
        assert orphan.exists()
        assert sweep_now(maintained) is None
        copies.let_go()
        mirror.await_live(T)
        assert maintained.maintain(T).errors == []
        assert not orphan.exists()
        write(mirror, 2)
        mirror.await_frontier()
    maintained.assert_equal(T)


@pytest.mark.further
def test_what_spark_reports_as_a_conflict_is_one(maintained: Maintained) -> None:
    """A position delete on a file that is being rewritten: the rewrite fails as a whole, and nothing is lost."""
    mirror = maintained.mirror
    write_and_publish(mirror, range(3))
    gate = CommitGate(mirror.database)
    session = lake_session(maintained.spark, mirror.database.dsn, mirror.settings.require_warehouse())
    other = lake_session(maintained.spark, mirror.database.dsn, mirror.settings.require_warehouse())
    backlog = maintained.backlog(T)
    (rewrite,) = [
        operation for operation in backlog.due(requested=True) if type(operation).__name__ == "RewriteDataFiles"
    ]
    errors: list[Exception] = []

    def run() -> None:
        try:
            Procedures(session).rewrite_data_files(backlog.lake_name, rewrite.rewrite)  # type: ignore[union-attr]
        except CommitConflict as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    with gate.closed():
        thread.start()
        gate.await_commit()
        mirror.database.execute("DELETE FROM t WHERE id = 7")
        other.sql("DELETE FROM lake.public.t WHERE id = 7")
    thread.join(60)
    assert len(errors) == 1
    mirror.catch_up()
    maintained.assert_equal(T)
