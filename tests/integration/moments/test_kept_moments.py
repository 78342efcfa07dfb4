"""A moment that is kept stays, whatever becomes of its tables."""

from __future__ import annotations

import psycopg
import pytest

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.moments.cost import moment_costs
from mirror_pump.ops.moments.dropping import drop
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.reads.time_travel import PastPoint
from mirror_pump.ops.register.unregistration import unregister_former
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.foreign_writes import owner_table
from tests.support.moments import assert_moment, change, kept_moment, two_tables

_THIN = '{"history_newest": 1, "history_minutes_hours": 0, "history_hours_hours": 0}'


def test_a_moment_outlives_its_history(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Thinning leaves its snapshots in the history, and nothing else that is older than the newest ones."""
    mirror = two_tables(database, warehouse, tasks)
    database.execute(f"UPDATE modak.tables SET maintenance_policy = '{_THIN}'")
    rows = {table: mirror.heap(table) for table in ("public.a", "public.b")}
    with mirror.pumping():
        outcome = keep(mirror.settings, MomentOptions("start"))
        assert [str(table.table) for table in outcome.tables] == ["public.a", "public.b"]
        for value in range(1, 6):
            change(mirror, value)
        database.execute("TRUNCATE a")
        for value in (10, 11):
            change(mirror, value)
    for table in kept_moment(mirror, "start").tables:
        metadata = read_metadata(mirror.location(str(table.table)), StorageOptions())
        assert metadata.snapshot(table.snapshot_id) is not None
        assert len(metadata.snapshots) <= 3
        assert metadata.refs["moment.start"].snapshot_id == table.snapshot_id
    assert_moment(mirror, "start", rows)
    (cost,) = moment_costs(mirror.settings)
    assert cost.own_bytes
    assert cost.own_bytes <= (cost.size_bytes or 0)
    with pytest.raises(TableError, match="there is a moment start already"):
        keep(mirror.settings, MomentOptions("start"))
    drop(mirror.settings, "start")
    with pytest.raises(TableError, match="there is no moment start"):
        drop(mirror.settings, "start")
    # Readers of it have the time of a lease.
    assert database.rows("SELECT count(*) FROM modak.read_pins WHERE expires_at > now()") == [(2,)]
    database.execute("DELETE FROM modak.read_pins")
    with mirror.pumping():
        change(mirror, 100)
        change(mirror, 101)
    metadata = read_metadata(mirror.location("public.b"), StorageOptions())
    assert metadata.refs.keys() == {"main"}
    assert metadata.snapshot(outcome.tables[1].snapshot_id) is None


def test_the_files_of_an_unregistered_table_stay(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """For as long as a moment needs them, also when a table of that name is registered again."""
    mirror = two_tables(database, warehouse, tasks)
    rows = {table: mirror.heap(table) for table in ("public.a", "public.b")}
    keep(mirror.settings, MomentOptions("audit", note="before b left"))
    with pytest.raises(TableError, match=r"need the files of public\.b: audit"):
        mirror.unregister("b", drop_lake=True, yes=True)
    assert mirror.state("public.b") == "live"
    mirror.unregister("b")
    with database.connect() as connection:
        connection.execute("SET search_path = modak")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="the moment audit needs the files"):
            connection.execute("DELETE FROM iceberg_tables WHERE table_name = 'b'")
    database.execute("UPDATE b SET v = 7")
    mirror.register("b")
    mirror.catch_up()
    with pytest.raises(TableError, match="are needed by moments that are kept: audit"):
        unregister_former(mirror.settings, "b", yes=True)
    assert_moment(mirror, "audit", rows)
    (cost,) = moment_costs(mirror.settings)
    assert [(str(table.table.table), bool(table.own_bytes)) for table in cost.tables] == [
        ("public.a", False),
        ("public.b", True),
    ]
    # The new registration has nothing to do with the moment.
    mirror.unregister("b", drop_lake=True)
    assert_moment(mirror, "audit", rows)
    drop(mirror.settings, "audit")
    unregister_former(mirror.settings, "b", yes=True)


def test_tags_that_another_engine_takes_are_put_back(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """Whether it changed rows as well or not."""
    mirror = two_tables(database, warehouse, tasks)
    keep(mirror.settings, MomentOptions("audit"))
    rows = {table: mirror.heap(table) for table in ("public.a", "public.b")}
    for name in ("a", "b"):
        with owner_table(mirror, name) as table:
            table.manage_snapshots().remove_tag("moment.audit").commit()
            if name == "b":
                table.append(table.scan().to_arrow())
    steps = Steps()
    database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    mirror.catch_up(steps)
    assert sorted(steps.details(Step.FOREIGN_COMMIT_UNDONE, "table")) == ["public.a", "public.b"]
    for entry in kept_moment(mirror, "audit").tables:
        metadata = read_metadata(mirror.location(str(entry.table)), StorageOptions())
        assert metadata.refs["moment.audit"].snapshot_id == entry.snapshot_id
    assert_moment(mirror, "audit", rows)
    mirror.assert_equal("public.a", "public.b")


def test_a_frontier_of_the_past_is_kept_if_all_tables_have_it(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    mirror = two_tables(database, warehouse, tasks)
    rows: dict[Lsn, dict[str, list[tuple[object, ...]]]] = {}
    with mirror.pumping():
        for value in range(1, 4):
            at = Lsn(change(mirror, value))
            rows[at] = {table: mirror.heap(table) for table in ("public.a", "public.b")}
        for number, at in enumerate(rows):
            outcome = keep(mirror.settings, MomentOptions(f"m{number}", PastPoint(at, None)))
            assert outcome.frontier <= at
        for number, expected in enumerate(rows.values()):
            assert_moment(mirror, f"m{number}", expected)
        with pytest.raises(UsageError, match="has not reached"):
            keep(mirror.settings, MomentOptions("ahead", PastPoint(Lsn(database.lsn() + (1 << 30)), None)))
        # The history of one table is thinned out, except for what the moments keep.
        database.execute(f"UPDATE modak.tables SET maintenance_policy = '{_THIN}' WHERE table_name = 'a'")
        gone = Lsn(change(mirror, 4))
        for value in range(5, 9):
            change(mirror, value)
        with pytest.raises(TableError, match="thinned out") as refusal:
            keep(mirror.settings, MomentOptions("gone", PastPoint(gone, None)))
        assert "readable, for example: --at " in refusal.value.remedy
        for number, expected in enumerate(rows.values()):
            assert_moment(mirror, f"m{number}", expected)
    for name in ("latest", "now", "a-1", "2026-11", "x.y", "", "9th"):
        with pytest.raises(UsageError, match="no name for a moment"):
            keep(mirror.settings, MomentOptions(name))
    assert format_lsn(outcome.frontier)
    mirror.database.execute("UPDATE modak.mirror_tables SET state = 'failed' WHERE table_id = 'a'::regclass::oid")
    with pytest.raises(TableError, match=r"not all tables can be kept at frontier .*: public\.a has failed"):
        keep(mirror.settings, MomentOptions("without"))
    left = keep(mirror.settings, MomentOptions("without", partial=True))
    assert [str(table.table) for table in left.tables] == ["public.b"]
    mirror.database.execute("UPDATE modak.mirror_tables SET state = 'live'")
