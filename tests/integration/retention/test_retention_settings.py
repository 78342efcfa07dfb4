"""Settings of heap retention: what `register` shows and asks, the grace of partitions, and partitions created ahead."""

from __future__ import annotations

from typing import LiteralString

import pytest
from psycopg import sql

from mirror_pump.errors import UsageError
from mirror_pump.ops.register.preview import preview
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.retain.retention import change_retention, look, show_retention
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from tests.support.cli import RunCommand
from tests.support.events_table import RetentionTables

pytestmark = pytest.mark.further

BOUNDS: LiteralString = (
    "SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'events'::regclass AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT' ORDER BY 1"
)


def test_nothing_is_dropped_before_its_grace(retention_tables: RetentionTables) -> None:
    """The lag was wrong: nothing is lost if it is corrected within the grace."""
    events = retention_tables.automatic(partitions=5, rows=10, lag=None)
    mirror = events.mirror
    mirror.register("public.events", retention=RetentionOptions(lag="100"))
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered", p2="tiered")
        mirror.await_frontier()
        outlook = look(mirror.settings, ["events"])[0].partitions[0].outlook
        assert outlook.startswith("the lake holds it: it is dropped after "), outlook
        assert outlook.endswith("+00 (drop_grace)")
        shown = {entry.key: entry.shown for entry in show_retention(mirror.settings, "events")}
        assert (shown["drop_grace"], shown["detach"]) == ("1 hour", "false")
        change_retention(mirror.settings, "events", "heap_retention", "300")
        change_retention(mirror.settings, "events", "drop_grace", "0")
        events.await_state(p0="dropped")
        await_true(lambda: "it is not due any more" in events.reason("p1"), 30, "the others stay")
        change_retention(mirror.settings, "events", "drop_grace", None)
        change_retention(mirror.settings, "events", "heap_retention", "100")
        events.assert_exact()
        change_retention(mirror.settings, "events", "drop_grace", "0s")
        events.await_state(p1="dropped", p2="dropped")
        events.assert_exact()


def test_partitions_may_be_detached_instead(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=3, rows=10, lag=None)
    mirror = events.mirror
    mirror.register("public.events", retention=RetentionOptions(lag="100", drop_grace="0", detach=True))
    with mirror.pumping():
        events.await_state(p0="dropped")
        assert mirror.database.rows("SELECT count(*) FROM p0") == [(10,)]
        assert mirror.database.rows("SELECT count(*) FROM pg_inherits WHERE inhrelid = 'p0'::regclass") == [(0,)]
        assert mirror.database.rows("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'p0'::regclass") == [(0,)]
        assert "detached" in events.reason("p0")
        # The mirror has nothing to do with it any more.
        before = mirror.database.rows("SELECT count(*) FROM modak.delta")
        mirror.database.execute("UPDATE p0 SET v = 'its own'", "TRUNCATE p0", "DROP TABLE p0")
        assert mirror.database.rows("SELECT count(*) FROM modak.delta") == before
        mirror.await_frontier()
        events.assert_exact()
        assert mirror.database.rows("SELECT state FROM modak.mirror_tables") == [("live",)]


def _events(database: Database) -> None:
    database.execute(
        "CREATE TABLE events (at timestamptz, id int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
        "CREATE TABLE e1 PARTITION OF events FOR VALUES FROM ('2026-01-01 00:00+00') TO ('2026-02-01 00:00+00')",
        "CREATE TABLE e2 PARTITION OF events FOR VALUES FROM ('2026-02-01 00:00+00') TO ('2026-03-01 00:00+00')",
        "CREATE TABLE e3 PARTITION OF events FOR VALUES FROM ('2026-03-01 00:00+00') TO ('2026-04-01 00:00+00')",
        "INSERT INTO events SELECT '2026-01-01 00:00+00'::timestamptz + g * interval '1 hour', g"
        " FROM generate_series(0, 1500) g",
        "ANALYZE events",
    )


def test_register_says_what_will_leave_and_asks(mirror: Mirror, run: RunCommand) -> None:
    database = mirror.database
    _events(database)
    database.execute("CREATE TABLE unfit (id int)")
    settings = mirror.settings
    arguments = ("--slot", settings.slot)
    state: LiteralString = (
        "SELECT (SELECT count(*) FROM modak.tables), (SELECT count(*) FROM pg_publication_tables),"
        " (SELECT count(*) FROM pg_inherits)"
    )
    before = database.rows(state)
    shown = run("register", "events", "--heap-retention", "3 hours", "--dry-run", *arguments)
    assert shown.exit_code == 0, shown.stderr
    assert "public.events: 2 columns; key at, id" in shown.stdout
    assert "lie 3 hours behind the newest key, 2026-03-04 12:00:00+00" in shown.stdout
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line.startswith("    ")}
    assert "[2026-01-01 00:00:00+00, 2026-02-01 00:00:00+00)" in lines["public.e1"]
    assert "about 744 rows: leaves once the table is copied" in lines["public.e1"]
    assert "leaves when the newest key reaches 2026-04-01 03:00:00+00" in lines["public.e3"] or (
        "leaves when a row of 2026-04-01 03:00:00+00 or later arrives" in lines["public.e3"]
    )
    assert "2 of 3 partitions leave at once: each is dropped 1 hour (--drop-grace) after" in shown.stdout
    refused = run("register", "events", "unfit", "--dry-run", *arguments)
    assert refused.exit_code == 1
    assert "would not be registered: public.unfit has no primary key" in refused.stderr
    # There is nobody to ask.
    silent = run("register", "events", "--heap-retention", "3 hours", "--no-wait", *arguments)
    assert silent.exit_code == 2
    assert "--yes" in silent.stderr
    assert "2 of 3 partitions leave at once" in silent.stdout
    assert database.rows(state) == before, "nothing was done"
    agreed = run("register", "events", "--heap-retention", "3 weeks", "--no-wait", "--yes", *arguments)
    assert agreed.exit_code == 0, agreed.stderr
    again = run("register", "events", "--heap-retention", "3 weeks", "--no-wait", *arguments)
    assert again.exit_code == 0, "it is registered already: there is nothing to ask"
    plain = run("register", "events", "--drop-grace", "1h", *arguments)
    assert plain.exit_code == 2


def test_a_wish_that_is_none_is_a_wrong_use(mirror: Mirror) -> None:
    _events(mirror.database)
    for wish in (
        RetentionOptions(lag="3 weeks", drop_grace="soon"),
        RetentionOptions(lag="3 weeks", premake=1, width="0mon"),
    ):
        (table,) = preview(mirror.settings, ["events"], TableOptions(retention=wish))
        assert isinstance(table.error, UsageError)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_partitions_that_are_made_ahead_follow_the_calendar(mirror: Mirror, zone: str) -> None:
    """In the time zone in which bounds are written, from the highest partition up to the present and beyond, without a
    gap."""
    database = mirror.database
    with database.connect() as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET TimeZone = {}").format(sql.Identifier(database.name), sql.Literal(zone))
        )
    database.reconnect()
    with database.connect() as connection:
        connection.execute(sql.SQL("SET TimeZone = {}").format(sql.Literal(zone)))
        connection.execute("CREATE TABLE events (at timestamptz PRIMARY KEY) PARTITION BY RANGE (at)")
        connection.execute(
            "DO $$ DECLARE first timestamptz := date_trunc('month', now()) - interval '14 months'; BEGIN"
            " FOR number IN 0..1 LOOP"
            " EXECUTE format('CREATE TABLE e%s PARTITION OF events FOR VALUES FROM (%L) TO (%L)', number,"
            " first + number * interval '1 month', first + (number + 1) * interval '1 month'); END LOOP; END $$"
        )
    mirror.register("public.events", retention=RetentionOptions(lag="5000 days", premake=2))
    assert {entry.key: entry.shown for entry in show_retention(mirror.settings, "events")}["width"] == "1 month"
    with mirror.pumping():
        mirror.await_live("public.events")
        # Twelve months up to now, the current one, and two ahead.
        await_true(lambda: len(database.rows(BOUNDS)) == 17, 60, "partitions up to two beyond the present")
    with database.connect() as connection:
        connection.execute(sql.SQL("SET TimeZone = {}").format(sql.Literal(zone)))
        found = connection.execute(
            "SELECT a.lo, a.hi, lag(a.hi) OVER (ORDER BY a.lo) FROM modak.tier_partitions('events'::regclass) a"
            " WHERE NOT a.is_default ORDER BY a.lo"
        ).fetchall()
        assert all(before in (None, lo) for lo, _, before in found), "a gap"
        months = connection.execute(
            "SELECT bool_and(to_timestamp(lo / 1000000) = date_trunc('month', to_timestamp(lo / 1000000)))"
            " FROM modak.tier_partitions('events'::regclass) WHERE NOT is_default"
        ).fetchone()
        assert months == (True,)
