"""Registering tiered tables, their options, and how commands show them."""

from __future__ import annotations

import pytest

from mirror_pump.errors import TableError
from mirror_pump.model import TableMode
from mirror_pump.ops.register.preview import preview
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.retain.retention import change_retention, look, show_retention
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from tests.support.cli import RunCommand
from tests.support.tiered import TieredTables, tiered

pytestmark = pytest.mark.further


@pytest.mark.parametrize(
    "options",
    [
        ("--mode", "tiered", "--heap-retention", "100"),
        ("--lag", "100"),
        ("--tier-key", "at", "--heap-retention", "100"),
        ("--keep-heap",),
        ("--mode", "tiered", "--keep-heap", "--detach"),
        ("--mode", "tiered", "--keep-heap", "--drop-grace", "1h"),
        ("--mode", "elsewhere"),
    ],
)
def test_options_of_one_mode_are_refused_with_the_other(run: RunCommand, options: tuple[str, ...]) -> None:
    assert run("register", "events", *options, "--dsn", "host=/nowhere").exit_code == 2


def test_a_table_is_refused_for_what_tiering_needs_and_not_for_the_streams_needs(
    tiered_tables: TieredTables, database: Database
) -> None:
    events = tiered_tables.tiered(partitions=2, rows=2)
    mirror = events.mirror
    database.execute(
        "CREATE TABLE flat (id int PRIMARY KEY)",
        "CREATE TABLE parts (at bigint PRIMARY KEY, g bigint GENERATED ALWAYS AS (at + 1) STORED)"
        " PARTITION BY RANGE (at)",
        "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE parts REPLICA IDENTITY NOTHING",
        "ALTER TABLE parts_0 REPLICA IDENTITY NOTHING",
    )
    with pytest.raises(TableError, match="not partitioned"):
        mirror.register("flat", retention=tiered())
    wish = RetentionOptions(lag="0", mode=TableMode.TIERED, tier_key="id")
    with pytest.raises(TableError, match="partitioned by at, not by id"):
        mirror.register("parts", retention=wish)
    (shown,) = preview(mirror.settings, ["parts"], TableOptions(retention=tiered(keep_heap=True)))
    assert shown.error is None
    assert shown.retention is not None
    assert shown.retention.plan.keep_heap
    assert shown.checked is not None
    assert len(shown.checked.description.columns) == 2
    mirror.register("parts", retention=tiered())
    with pytest.raises(TableError, match="registered with --mode tiered"):
        mirror.register("parts")
    assert database.rows(
        "SELECT retention -> 'lag' FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)"
        " WHERE table_name = 'parts'"
    ) == [(100,)]


def test_the_lag_is_shown_and_changed_and_nothing_leaves_without_one(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=4, rows=5, lag="1000")
    settings = events.mirror.settings
    assert [entry.key for entry in show_retention(settings, "events")][:2] == ["lag", "premake"]
    with pytest.raises(TableError, match="has no heap_retention"):
        change_retention(settings, "events", "heap_retention", "5")
    (outlook,) = look(settings, [])
    assert (outlook.mode, outlook.lag, outlook.to_json()["heap_retention"]) == ("tiered", "1000", None)
    with events.mirror.pumping():
        change_retention(settings, "events", "lag", None)
        assert look(settings, [])[0].partitions[0].outlook == "stays: lag is not set"
        change_retention(settings, "events", "lag", "100")
        events.await_state(p0="dropped", p1="dropped")
        assert events.states()["p2"] == "hot"
        events.assert_exact()
