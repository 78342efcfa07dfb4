"""What maintenance deletes of change feeds, and what it leaves; and what `status` says of them."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import pytest

from mirror_pump.errors import SourceError
from mirror_pump.lake.commit.catalog import CATALOG, swap_pointer
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import metadata_number
from mirror_pump.model import FeedMode
from mirror_pump.ops.maintenance.feed_pass import FeedMaintenance
from mirror_pump.ops.maintenance.journal import Heartbeat
from mirror_pump.ops.maintenance.maintenance_pass import Maintenance
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.policy import Policy
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.foreign_writes import without_triggers
from tests.support.made_feeds import STORAGE
from tests.support.resyncs import drop_slot

_QUICK = Policy(snapshot_retention_hours=0, snapshot_min_retained=1, orphan_grace_hours=1, metadata_grace_hours=0.5)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """One whose feeds were merged."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made = Mirror.create(database, warehouse, tasks)
    made.register("t", feed=FeedOptions(FeedMode.KEYS))
    steps = Steps()
    with made.pumping(steps):
        made.await_live("public.t")

        def merged() -> bool:
            database.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1, 'v' FROM t")
            made.await_frontier()
            return {"public.t__changes", "modak.transactions"} <= set(steps.details(Step.MERGED, "table"))

        await_true(merged, 60, "merged")
    return made


def feed_id(mirror: Mirror, name: str) -> int:
    ((number,),) = mirror.database.rows(f"SELECT feed_id FROM modak.change_feeds WHERE name = '{name}'")
    return int(number)


def directory(mirror: Mirror, table: str) -> Path:
    metadata = LakeTable.load(mirror.location(table), STORAGE).metadata
    return Path(metadata.location.removeprefix("file://"))


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def age(root: Path) -> None:
    """All files become two days old."""
    before = time.time() - 2 * 86400
    for path in files(root):
        os.utime(path, (before, before))


@pytest.mark.further
@pytest.mark.parametrize("name", ["public.t__changes", "modak.transactions"])
def test_only_what_nothing_refers_to_goes(mirror: Mirror, name: str) -> None:
    rows = read_duckdb(mirror.location(name)).num_rows
    root = directory(mirror, name)
    age(root)
    stray, fresh = root / "data" / "stray.parquet", root / "data" / "fresh.parquet"
    for path in (stray, fresh):
        path.write_bytes(b"x")
    os.utime(stray, (0, 0))
    live = {file.path for file in LakeTable.load(mirror.location(name), STORAGE).live_data_files()}
    before = files(root)
    with connect(mirror.database.dsn, autocommit=True) as connection:
        maintenance = FeedMaintenance(connection, mirror.settings.slot, STORAGE, _QUICK)
        number = feed_id(mirror, name.partition(".")[2])
        assert maintenance.due(number) == (len(LakeTable.load(mirror.location(name), STORAGE).metadata.snapshots) > 10)
        planned = maintenance.dry_run(number)
        assert files(root) == before
        assert any(str(stray) in line for line in planned)
        done = maintenance.maintain(number, requested=True)
    assert any("expired snapshots" in line for line in done)
    left = files(root)
    assert stray not in left
    assert fresh in left
    assert {Path(path.removeprefix("file://")) for path in live} <= left
    assert len([path for path in left if path.suffix == ".parquet"]) == len(live) + 1, "those that were merged are gone"
    assert read_duckdb(mirror.location(name)).num_rows == rows
    mirror.catch_up()
    assert read_duckdb(mirror.location(name)).num_rows == rows


@pytest.mark.further
def test_a_pass_includes_feeds_and_needs_no_spark_for_them(mirror: Mirror) -> None:
    def refuse() -> None:
        raise AssertionError("Spark was started")

    dsn = mirror.settings.require_dsn()
    with connect(dsn, autocommit=True) as connection, Heartbeat(dsn) as heartbeat:
        maintenance = Maintenance(connection, mirror.settings.slot, STORAGE, refuse, heartbeat)  # type: ignore[arg-type]
        result = maintenance.maintain_transactions(requested=True)
        assert result.done == ["change feed: remove_orphan_files: 0 deleted files"]
        (backlog,) = maintenance.read_backlogs()
        assert not maintenance.is_due(backlog)
        assert maintenance.feed_dry_run(feed_id(mirror, "t__changes"), Policy()) == []


@pytest.mark.further
def test_a_restored_server_loses_no_file(mirror: Mirror) -> None:
    """Its catalog may not know what the original's does."""
    root = directory(mirror, "public.t__changes")
    age(root)
    drop_slot(mirror)
    before = files(root)
    with connect(mirror.database.dsn, autocommit=True) as connection:
        maintenance = FeedMaintenance(connection, mirror.settings.slot, STORAGE, _QUICK)
        with pytest.raises(SourceError, match=r"no file of public\.t__changes is deleted"):
            maintenance.sweep(feed_id(mirror, "t__changes"), dry_run=False)
    assert files(root) == before


def test_status_shows_feeds(mirror: Mirror) -> None:
    counted = "SELECT 1 FROM modak.change_feeds WHERE name = 't__changes' AND (stats ->> 'rows')::int > 8"
    with mirror.pumping():
        await_true(lambda: mirror.database.rows(counted), 60, "the pump has counted the feed's rows")
    with StatusReader(mirror.settings) as reader:
        status = reader.read()
        assert not [alert for alert in status.alerts if alert.table is not None]
        by_table = {feed.table: feed for feed in status.feeds}
        assert set(by_table) == {"public.t", "modak.transactions"}
        shown = by_table["public.t"].to_json()
        assert shown["rows"] > 8
        assert shown["files"] >= shown["small_files"] >= 1
        assert shown["error"] is None
        without_triggers(mirror.database, "DELETE FROM modak.iceberg_tables WHERE table_name = 't__changes'")
        (alert,) = [alert for alert in reader.read().alerts if alert.table is not None]
        assert alert.table == "public.t"
        assert "its change feed public.t__changes gets no changes" in alert.message


@pytest.mark.further
def test_files_beside_a_feed_that_was_given_another_location_stay(database: Database, warehouse: str) -> None:
    """By another engine, which may do so: the rows are the same."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", feed=FeedOptions(FeedMode.KEYS))
    mirror.catch_up()
    pointer = mirror.location("public.t__changes")
    root = directory(mirror, "public.t__changes")
    document = json.loads(Path(pointer.removeprefix("file://")).read_text())
    document["location"] = f"file://{root.parent}"
    moved = root / "metadata" / f"{(metadata_number(pointer) or 0) + 1:05}-{uuid.uuid4()}.metadata.json"
    moved.write_text(json.dumps(document))
    with database.connect() as connection:
        assert swap_pointer(connection, "public", "t__changes", pointer, f"file://{moved}", CATALOG)
    stray, other = root / "data" / "stray.parquet", root.parent / "other" / "data" / "file.parquet"
    for path in (stray, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    age(root.parent)
    with connect(database.dsn, autocommit=True) as connection:
        maintenance = FeedMaintenance(connection, mirror.settings.slot, STORAGE, _QUICK)
        maintenance.sweep(feed_id(mirror, "t__changes"), dry_run=False)
    assert other.exists()
    assert not stray.exists()
    assert read_duckdb(mirror.location("public.t__changes")).num_rows == 1
