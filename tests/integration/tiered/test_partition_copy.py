"""The copy of a tiered partition: what makes chunks worthless, and what becomes of their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, LiteralString, cast
from urllib.parse import urlparse

import pytest

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableName
from mirror_pump.ops.maintenance.sweep import SweptMirror, sweep
from mirror_pump.ops.retain.retention import change_retention, look
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline
from mirror_pump.pipeline.operations.operation import Cursor, Recording
from mirror_pump.pipeline.retention.partition_copy import CopyTurn, PartitionCopier
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.maintenance import read_tables
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.retention.partitions import Partition
from mirror_pump.testing.mirror import Steps, await_true
from mirror_pump.testing.tasks import GatedCopies
from tests.support.events_table import EventsTable
from tests.support.retention_table import run
from tests.support.tiered import TieredTables

ROWS = 1200
RECORDED: LiteralString = "SELECT f ->> 'path' FROM modak.partition_chunks, jsonb_array_elements(files) f"


@pytest.fixture
def runner(tiered_tables: TieredTables) -> GatedCopies:
    """Holds back copies."""
    found = tiered_tables.gated()
    found.hold()
    return found


def _events(tables: TieredTables, runner: GatedCopies) -> EventsTable:
    """p0 is due, and no other partition."""
    return tables.tiered(partitions=3, rows=ROWS, lag="150", runner=runner, copy_workers=1)


def _one_chunk(events: EventsTable, runner: GatedCopies, steps: Steps) -> None:
    """Returns once one chunk of p0 is copied, and the next one waits."""
    await_true(lambda: runner.waiting == 1, 30, "a chunk waits")
    copied = steps.count(Step.CHUNK_COPIED)
    runner.let_go(1)
    await_true(lambda: steps.count(Step.CHUNK_COPIED) == copied + 1 and runner.waiting == 1, 30, "a chunk is copied")


def _in_both(events: EventsTable, *changes: str) -> None:
    """The changes of `{}` in one transaction: of the table and its model."""
    with events.database.session(autocommit=False) as connection:
        for change in changes:
            for table in ("events", "model"):
                run(connection, change.format(table))


def _files(events: EventsTable) -> set[str]:
    """The table's data files in storage."""
    rows = events.database.rows("SELECT location FROM modak.mirror_tables")
    return {path.name for path in Path(urlparse(rows[0][0]).path, "data").glob("*.parquet")}


@pytest.mark.parametrize(
    "command",
    [
        "TRUNCATE p0",
        pytest.param("VACUUM FULL p0", marks=pytest.mark.soak),
        pytest.param("a column", marks=pytest.mark.further),
    ],
)
def test_what_was_copied_before_a_command_is_copied_again(
    tiered_tables: TieredTables, runner: GatedCopies, command: str
) -> None:
    events = _events(tiered_tables, runner)
    steps = Steps()
    with events.mirror.pumping(steps):
        _one_chunk(events, runner, steps)
        if command == "TRUNCATE p0":
            with events.database.session(autocommit=False) as connection:
                connection.execute("TRUNCATE p0")
                connection.execute("DELETE FROM model WHERE at < 100")
                for table in ("events", "model"):
                    run(connection, f"INSERT INTO {table} SELECT g % 100, g, 5, 'after' FROM generate_series(1, 700) g")
        elif command == "a column":
            # A chunk that was read before lacks the value, and no task would notice.
            _in_both(events, "ALTER TABLE {} ADD COLUMN source text NOT NULL DEFAULT 'web'")
            events.columns += ", source"
        else:
            events.database.execute("DELETE FROM events WHERE at < 40", "DELETE FROM model WHERE at < 40")
            with events.database.connect() as connection:
                connection.execute(command.encode())
        runner.let_go()
        events.await_state(p0="dropped")
        events.assert_exact()


@pytest.mark.further
def test_a_chunk_that_is_read_with_outdated_columns_does_not_count(
    tiered_tables: TieredTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier knows the table from before a publish that brings a column and forgets all chunks, and plans them anew
    after it. Nothing that it reads has the column, and no fill would add it."""
    events = tiered_tables.tiered(partitions=3, rows=40, lag="150")
    known = 'SELECT state FROM modak.mirror_tables WHERE columns @> \'[{"name": "source"}]\''
    copy = PartitionCopier.copy
    outdated: list[str] = []

    def late(copier: PartitionCopier, connection: PgConnection, table: MirroredTable, partition: Partition) -> CopyTurn:
        if not outdated:
            _in_both(events, "ALTER TABLE {} ADD COLUMN source text NOT NULL DEFAULT 'web'")
            await_true(lambda: events.database.rows(known) == [("live",)], 30, "the mirror has the column")
            outdated.append(partition.partition_id)
        return copy(copier, connection, table, partition)

    monkeypatch.setattr(PartitionCopier, "copy", late)
    with events.mirror.pumping():
        events.await_state(p0="dropped")
    events.columns += ", source"
    events.assert_exact()
    assert outdated == ["public.p0"]


@pytest.mark.soak
def test_a_partition_that_is_no_longer_due_leaves_no_file(tiered_tables: TieredTables, runner: GatedCopies) -> None:
    events = _events(tiered_tables, runner)
    settings = events.mirror.settings
    mirror = events.mirror.with_options(limits=settings.limits.model_copy(update={"unseal_after": 0.1}))
    steps = Steps()
    with mirror.pumping(steps):
        _one_chunk(events, runner, steps)
        assert len(_files(events)) == 1
        assert "it is copied (1 of " in look(settings, [])[0].partitions[0].outlook
        change_retention(settings, "events", "lag", "1000")
        runner.let_go()
        events.await_state(p0="hot")
        await_true(lambda: not _files(events), 30, "the files of worthless chunks are removed")
        assert events.database.rows(RECORDED) == []
        _in_both(events, "UPDATE {} SET n = 17 WHERE at < 100 AND id < 500")
        change_retention(settings, "events", "lag", "150")
        events.await_state(p0="dropped")
        events.assert_exact()


def test_only_changes_after_the_files_were_written_become_corrections(
    tiered_tables: TieredTables, runner: GatedCopies
) -> None:
    """Writers wait while corrections are written, so changes during the copy come with its files."""
    events = tiered_tables.tiered(partitions=3, rows=ROWS, lag="150", runner=runner, copy_workers=1, fold_age=1000)
    late = [
        "UPDATE {} SET n = 8 WHERE at < 100 AND id = 2",  # again
        "UPDATE {} SET n = 8 WHERE at < 100 AND id = 600",
        "DELETE FROM {} WHERE at < 100 AND id = 3",  # again
        "INSERT INTO {} VALUES (1, 4, 8, 'again')",
        "INSERT INTO {} VALUES (7, 70000, 8, 'new')",
    ]

    def write(step: Step, details: dict[str, object]) -> None:
        if step is Step.STAGED and details["frontier"] is None and steps.count(Step.CHUNK_COPIED) > 1 and late:
            _in_both(events, *late)
            late.clear()

    steps = Steps(write)
    with events.mirror.pumping(steps):
        _one_chunk(events, runner, steps)
        _in_both(
            events,
            "UPDATE {} SET n = 7 WHERE at < 100 AND id < 500",
            "UPDATE {} SET at = at + 1 WHERE at < 50 AND id % 50 = 20",
            "DELETE FROM {} WHERE at < 100 AND id BETWEEN 4 AND 9",
            "INSERT INTO {} VALUES (0, 5, 7, NULL), (90, 60000, 7, 'new')",
        )
        runner.let_go()
        events.await_state(p0="dropped")
        events.assert_exact()
    assert not late
    corrected = events.database.rows("SELECT (payload ->> 'id')::int, op FROM modak.delta ORDER BY 1")
    assert corrected == [(2, 0), (3, 1), (4, 0), (600, 0), (70000, 0)]
    assert events.database.rows("SELECT count(*) FROM modak.mirror_captured") == [(0,)]


def test_the_cutline_waits_for_readers_by_the_protocol(tiered_tables: TieredTables, runner: GatedCopies) -> None:
    """The partition is copied meanwhile, and changes until the cut-line passes it are not lost."""
    events = _events(tiered_tables, runner)
    pin = events.database.rows("SELECT pin_id FROM modak.pin('events')")[0][0]
    runner.let_go()
    with events.mirror.pumping():
        await_true(lambda: ") lasts until" in events.reason("p0"), 60, "the cut-line waits")
        assert events.states()["p0"] == "sealing"
        assert events.cut < 0
        _in_both(events, "UPDATE {} SET n = n + 1 WHERE at < 100 AND id % 3 = 0", "DELETE FROM {} WHERE at = 50")
        # All of it is copied. In the rewritten heap rows are in other blocks.
        events.database.execute("VACUUM FULL p0")
        events.assert_exact()
        events.database.rows("SELECT modak.release(%s)", (pin,))
        events.await_state(p0="dropped")
        events.assert_exact()


@pytest.mark.further
def test_rows_that_are_rewritten_just_before_the_cutline_moves(
    tiered_tables: TieredTables, runner: GatedCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pump has found all chunks as they should be; the catalog looks again, under the partition's lock."""
    events = _events(tiered_tables, runner)
    lock = AdvanceCutline.lock
    rewritten: list[str] = []

    def rewrite(operation: AdvanceCutline, cursor: Cursor, recording: Recording) -> None:
        if not rewritten:
            rewritten.append(operation.partition_id)
            # No trigger sees it, and no column looks different.
            _in_both(events, "SET LOCAL lock_timeout = '10s'", "ALTER TABLE {} ALTER n TYPE int USING n + 1")
        lock(operation, cursor, recording)

    monkeypatch.setattr(AdvanceCutline, "lock", rewrite)
    runner.let_go()
    with events.mirror.pumping():
        events.await_state(p0="dropped")
    assert rewritten == ["public.p0"]
    events.assert_exact()


class _NothingIsReferredTo:
    """Stands for a table whose metadata names no data file."""

    @staticmethod
    def unreferenced(_table: TableName, locations: Sequence[str]) -> list[str]:
        return [location for location in locations if "/data/" in location]


@pytest.mark.further
def test_a_sweep_spares_files_that_wait_for_their_publish(tiered_tables: TieredTables, runner: GatedCopies) -> None:
    """And a chunk whose file it may have taken for nobody's is copied again."""
    events = _events(tiered_tables, runner)
    steps, slot = Steps(), events.mirror.settings.slot
    with events.mirror.pumping(steps):
        _one_chunk(events, runner, steps)
        with connect(events.database.dsn, autocommit=True) as connection:
            (table,) = read_tables(connection, slot)
            policy = Policy().model_copy(update={"orphan_grace_hours": 0.0})
            procedures = cast("Procedures", _NothingIsReferredTo())
            swept_table = SweptMirror(connection, slot, StorageOptions(fsync=False), table.name, table, procedures)
            swept = sweep(swept_table, policy, dry_run=False, clock_skew=0.0)
        assert swept is not None
        recorded = {str(path).rpartition("/")[2] for (path,) in events.database.rows(RECORDED)}
        assert recorded == _files(events) != set()
        # The chunk that waits began before the sweep was declared.
        runner.let_go(1)
        await_true(lambda: "a sweep may have removed" in events.reason("p0"), 30, "the chunk is refused")
        assert recorded == _files(events)
        runner.let_go()
        events.await_state(p0="dropped")
        events.assert_exact()


@pytest.mark.soak
def test_a_partition_dropped_by_its_owner_is_passed_and_an_empty_one_too(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=4, rows=30, lag="100000")
    events.database.execute("DELETE FROM p1", "DELETE FROM model WHERE at >= 100 AND at < 200")
    events.database.execute("DROP TABLE p0", "DELETE FROM model WHERE at < 100")
    change_retention(events.mirror.settings, "events", "lag", "100")
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        assert events.cut == 200
        events.assert_exact()


@pytest.mark.soak
def test_many_changes_during_the_copy_do_not_copy_it_again(tiered_tables: TieredTables, runner: GatedCopies) -> None:
    """The limit that seals a mirrored table's partition again is raised."""
    events = _events(tiered_tables, runner)
    steps = Steps()
    with events.mirror.pumping(steps):
        _one_chunk(events, runner, steps)
        events.database.execute("UPDATE modak.partitions SET capture_limit = 3")
        _in_both(events, "UPDATE {} SET n = n + 1 WHERE at < 30")
        runner.let_go()
        events.await_state(p0="dropped")
        events.assert_exact()
    copied: list[Any] = steps.details(Step.CHUNK_COPIED, "chunk")
    assert len(copied) == len(set(copied))
