"""Tables with heap retention: which ones may have it, how the lag changes, and how they leave the mirror."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from mirror_pump.errors import TableError, UsageError
from mirror_pump.ops.register.unregistration import unregister_former
from mirror_pump.ops.retain.retention import change_retention, look, show_retention
from mirror_pump.testing.mirror import Mirror, await_true, lake_rows
from tests.support.events_table import RetentionTables
from tests.support.local_files import path_of
from tests.support.retention_table import WIDTH, at_once


@pytest.mark.further
def test_the_lag_may_change_and_be_taken_away(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=4, rows=10, lag="1000")
    mirror = events.mirror
    mirror.catch_up()
    assert {choice.key: choice.shown for choice in show_retention(mirror.settings, "events")} == {
        "heap_retention": "1000",
        "premake": "0",
        "width": "100",
        "drop_grace": "0 seconds",
        "detach": "false",
    }
    with mirror.pumping():
        change_retention(mirror.settings, "events", "heap_retention", "200")
        events.await_state(p0="dropped", p1="hot")
        change_retention(mirror.settings, "events", "heap_retention", None)
        outlook = look(mirror.settings, ["events"])[0]
        assert outlook.partitions[0].outlook == "stays: heap_retention is not set"
        assert mirror.database.rows("SELECT heap_retention_lag IS NOT NULL FROM modak.tables") == [(True,)]
        change_retention(mirror.settings, "events", "heap_retention", "100")
        events.await_state(p1="dropped")
        with pytest.raises(UsageError, match="whole number"):
            change_retention(mirror.settings, "events", "heap_retention", "1 day")


_REFUSED: list[tuple[LiteralString, str]] = [
    ("CREATE TABLE t (id int PRIMARY KEY)", "is not partitioned"),
    ("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY LIST (id)", "by range of one column"),
    ("CREATE TABLE t (id int, b int, PRIMARY KEY (id, b)) PARTITION BY RANGE (id, b)", "by range of one column"),
    ("CREATE TABLE t (id text PRIMARY KEY) PARTITION BY RANGE (id)", "neither an integer nor a time"),
]


def test_tables_that_cannot_have_heap_retention_are_refused(mirror: Mirror) -> None:
    for made, message in _REFUSED:
        mirror.database.execute(made)
        with pytest.raises(TableError, match=message):
            mirror.register("t", retention=at_once("5"))
        mirror.database.execute("DROP TABLE t")


def test_partitions_of_partitions_and_filled_defaults_are_refused(mirror: Mirror) -> None:
    mirror.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE tn PARTITION OF t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
    )
    with pytest.raises(TableError, match="partitioned themselves"):
        mirror.register("t", retention=at_once("5"))
    mirror.database.execute("DROP TABLE tn", "CREATE TABLE td PARTITION OF t DEFAULT", "INSERT INTO t VALUES (1)")
    with pytest.raises(TableError, match=r"td of public\.t holds rows"):
        mirror.register("t", retention=at_once("5"))
    mirror.database.execute("TRUNCATE t")
    with pytest.raises(UsageError, match="not a whole number"):
        mirror.register("t", retention=at_once("5 days"))


def test_leaving_the_mirror_says_what_becomes_of_old_rows(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=3, rows=10)
    mirror = events.mirror
    with mirror.pumping():
        events.await_state(p0="dropped")
    with pytest.raises(TableError, match="only copy"):
        mirror.unregister("events")
    place, pointer = path_of(mirror.location("public.events")).parents[1], mirror.location("public.events")

    def old_rows() -> int:
        return sum(row[0] < WIDTH for row in lake_rows(pointer))

    mirror.unregister("events", keep_lake=True)
    # Nothing of ours is left that could make a statement fail.
    assert mirror.database.rows("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'zz_modak%'") == []
    mirror.database.execute("UPDATE events SET n = 5", "TRUNCATE p1")
    with pytest.raises(psycopg.errors.CheckViolation):
        mirror.database.execute("INSERT INTO events VALUES (5, 5, 5, 'x')")
    with pytest.raises(TableError, match="holds old rows, which the heap may have shed"):
        mirror.register("events")
    # Repeated with another option, the command wants the same confirmation.
    assert old_rows(), "the lake has them"
    with pytest.raises(TableError, match="would destroy the only copy") as refused:
        mirror.unregister("events", drop_lake=True)
    assert "mirror-pump unregister --former public.events --yes" in refused.value.remedy
    with pytest.raises(TableError, match="would destroy the only copy"):
        unregister_former(mirror.settings, "events")
    assert old_rows()
    mirror.unregister("events", drop_lake=True, yes=True)
    assert not place.exists()


def test_retention_by_timestamps_and_dates(mirror: Mirror) -> None:
    mirror.database.execute(
        "CREATE TABLE t (id int, at timestamptz, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE d (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    )
    with mirror.database.connect() as connection:
        for table in ("t", "d"):
            for month in (1, 2, 3):
                connection.execute(
                    f"CREATE TABLE {table}{month} PARTITION OF {table} FOR VALUES FROM ('2026-0{month}-01')"
                    f" TO ('2026-0{month + 1}-01')".encode()
                )
            connection.execute(
                f"INSERT INTO {table} SELECT g, date '2026-01-01' + g * 7 FROM generate_series(0, 12) g".encode()
            )
    mirror.register("t", "d", retention=at_once("3 weeks"))
    cuts: LiteralString = (
        "SELECT tier_key_hi FROM modak.cutline JOIN modak.tables USING (table_id) ORDER BY tier_key_type"
    )
    assert mirror.database.rows(cuts) == [(-719162,), (-62135596800000000,)]
    with mirror.pumping():
        await_true(
            lambda: mirror.database.rows("SELECT count(*) FROM modak.partitions WHERE state = 'dropped'") == [(4,)],
            60,
            str(mirror.database.rows("SELECT partition_id, state, reason FROM modak.partitions")),
        )
        mirror.database.execute("INSERT INTO t VALUES (99, '2026-01-05 00:00:00.5+02')")
    assert mirror.database.rows(cuts) == [(20513,), (1772323200000000,)]
    assert mirror.database.rows("SELECT replace(pk, chr(31), ' ') FROM modak.delta") == [
        ("99 2026-01-04 22:00:00.5+00",)
    ]
    (first, second) = look(mirror.settings, ())
    assert {first.cut, second.cut} == {"2026-03-01", "2026-03-01 00:00:00+00"}
