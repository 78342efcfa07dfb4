"""Maintenance of a table with heap retention keeps the published snapshot, its metadata file and pinned ones, and
removes old files."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.ops.verify.compare_spark import compare
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.retention import fold
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true, lake_rows
from tests.support.events_table import RetentionTables, upsert
from tests.support.maintenance import STORAGE, Maintained, age
from tests.support.retention_table import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = "public.events"


@pytest.mark.further
def test_compaction_expiry_and_sweep_leave_the_published_snapshot_readable(
    retention_tables: RetentionTables, database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    limits = InternalLimits(archive_check_interval=0.2, archive_refresh_age=0)
    events = retention_tables.manual(fold_age=0.05, merge_bytes=0, limits=limits)
    mirror = events.mirror
    maintained = Maintained(mirror, spark)
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        with database.connect() as connection:
            row = connection.execute("SELECT pin_id, metadata_location FROM modak.pin('events')").fetchone()
            assert row is not None
            pin, pinned = row
        before = lake_rows(pinned)
        for number in range(6):
            with database.connect(autocommit=False) as connection:
                upsert(connection, number, 1, f"{number}")
                upsert(connection, 150 + number, 1, f"{number}")
            mirror.await_frontier()
        await_true(
            lambda: database.rows("SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL") == [(0,)],
            20,
            "folds",
        )
        # Everything is old enough to be removed, except what somebody needs.
        maintained.policy(EVENTS, snapshot_retention_hours=0, snapshot_min_retained=1)
        age([path for path in tmp_path.rglob("*") if path.is_file()], 24 * 365)
        result = maintained.maintain(EVENTS)
        assert not result.errors
        assert any("rewrite" in line for line in result.done), result.done
        events.assert_exact()
        assert lake_rows(pinned) == before, "the snapshot of a pinned reader is gone"
        await_true(lambda: _fresh(mirror), 20, "the archive snapshot is rebuilt from the compacted files")
        events.assert_exact()
        with database.connect() as connection:
            run(connection, f"SELECT modak.release({pin})")
        seam = Path(pinned.removeprefix("file://")).parent
        orphan = seam / f"00001-{uuid.uuid4()}.metadata.json"
        orphan.write_text("{}")
        age([path for path in tmp_path.rglob("*") if path.is_file()], 24 * 365)
        assert not maintained.maintain(EVENTS).errors
        assert not orphan.exists(), "no publish that landed names it"
        events.assert_exact()
        events.advance(running)
        events.assert_exact()
        head = maintained.lake_table(EVENTS).metadata.archive_snapshot
        assert head is not None
        assert head.summary.archive_cut_line == str(events.cut)


@pytest.mark.slow
def test_verify_compares_rows_at_or_above_the_cutline(
    retention_tables: RetentionTables, database: Database, spark: SparkSession
) -> None:
    """Without those that the lake keeps of a partition that its owner took away."""
    events = retention_tables.manual(fold_age=0.05)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 5, 1, "below")
            upsert(connection, 150, 1, "above")
        database.execute("DROP TABLE p2")
        (verified,) = verify(
            mirror.settings, ["events"], ComparisonEngine(mirror.runner, partial(compare, spark))
        ).tables
        table = verified.to_json()
        assert table["equal"], table
        hot = database.rows("SELECT count(*) FROM events WHERE at >= 100")
        assert table["heap_rows"] == table["lake_rows"] == hot[0][0] > 0


def _fresh(mirror: Mirror) -> bool:
    return not fold.archive_is_outdated(LakeTable.load(mirror.location(EVENTS), STORAGE), STORAGE, 0.0)
