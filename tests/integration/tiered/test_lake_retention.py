"""Tiered tables with lake retention: rows expire behind the cut-line, from every reader at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from pyiceberg.table import StaticTable

from mirror_pump.errors import TableError, UsageError
from mirror_pump.ops.retain.retention import change_retention, look, show_retention
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.expire_rows import ExpireRows
from mirror_pump.testing.lake import duckdb_connection, read_duckdb
from mirror_pump.testing.mirror import Steps, await_true, lake_rows
from tests.support.cli import RunCommand
from tests.support.events_table import EventsTable, delete, upsert
from tests.support.killed_pump import die
from tests.support.maintenance import Maintained, age
from tests.support.retention_sql import repeatable_read
from tests.support.tiered import TieredTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE: LiteralString = "SELECT retention_line FROM modak.cutline c JOIN modak.tables t USING (table_id)"


def line_of(events: EventsTable) -> int | None:
    """The retention line."""
    line: int | None = events.database.rows(LINE)[0][0]
    return line


def await_line(events: EventsTable, line: int) -> None:
    await_true(lambda: line_of(events) == line, 60, f"the retention line {line}: {events.explained()}")


def lowest(location: str) -> tuple[int, int]:
    """The lowest tier key in a metadata file's current snapshot, by DuckDB and by pyiceberg."""
    by_duckdb = min(row["at"] for row in read_duckdb(location).to_pylist())
    by_pyiceberg = min(StaticTable.from_metadata(location).scan().to_arrow()["at"].to_pylist())
    return int(by_duckdb), int(by_pyiceberg)


def published(events: EventsTable) -> str:
    """The metadata file of the published snapshot."""
    location: str = events.database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")[0][0]
    return location


def test_rows_expire_behind_the_cutline_for_every_reader_at_once(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=6, lake_retention="250", fold_age=0.1)
    mirror, database = events.mirror, events.mirror.database
    assert database.rows("SELECT lake_retention_lag FROM modak.tables") == [(250,)]
    chance = random.Random(7)
    steps = Steps()
    with mirror.pumping(steps), duckdb_connection() as duckdb:

        def moved() -> bool:
            events.assert_exact(duckdb)
            return line_of(events) == 150

        # Four partitions leave: the cut-line is 400.
        await_true(moved, 60, f"the line: {events.explained()}")
        for at in range(150, 400, 25):
            with database.session(autocommit=False) as connection:
                upsert(connection, at, chance.randrange(50), "corrected")
                delete(connection, at + 5, chance.randrange(50))
        events.assert_exact(duckdb)
        unfolded: LiteralString = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: database.rows(unfolded) == [(0,)], 30, "all is folded")
        events.assert_exact(duckdb)
        with database.session(autocommit=False) as connection:
            # Folded after the next advance, or never.
            upsert(connection, 240, 1, "expires")
            upsert(connection, 260, 1, "stays")
        events.grow()
        await_line(events, 250)
        events.assert_exact(duckdb)
        await_true(lambda: database.rows(unfolded) == [(0,)], 30, "all is folded")
    events.assert_exact()
    assert all(lowest(location) == (250, 250) for location in (published(events), mirror.location("public.events")))
    assert database.rows("SELECT count(*) FROM modak.delta WHERE tier_key < 250") == [(0,)]
    assert steps.details(Step.EXPIRED, "line")[-1] == 250
    journal = database.rows(
        "SELECT details - 'bytes' FROM modak.op_log WHERE op_kind = 'retention' AND details ->> 'kind' = 'expire'"
        " ORDER BY updated_at"
    )
    (last,) = journal[-1]
    assert (last["line"], last["former"]) == (250, 150)
    assert last["files"] > 0
    mirror.assert_sound()


@pytest.mark.further
def test_the_policy_lets_more_expire_and_never_brings_the_line_back(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=5, rows=20)
    settings = events.mirror.settings
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
        assert line_of(events) is None
        change_retention(settings, "events", "lake_retention", "120")
        await_line(events, 180)
        events.assert_exact()
        (outlook,) = look(settings, [])
        assert (outlook.lake_retention, outlook.retention_line) == ("120", "180")
        assert "rows below 180 have expired; the lake keeps 120 behind the cut-line" in outlook.summary
        change_retention(settings, "events", "lake_retention", "290")
        change_retention(settings, "events", "lake_retention", None)
        events.grow()
        events.await_state(p3="dropped")
        assert line_of(events) == 180
        (entry,) = (entry for entry in show_retention(settings, "events") if entry.key == "lake_retention")
        assert (entry.shown, entry.is_set) == ("forever", False)
        events.assert_exact()
    with pytest.raises(UsageError, match="as soon as they are in the lake"):
        change_retention(settings, "events", "lake_retention", "0")


@pytest.mark.parametrize(
    "options",
    [
        ("--lake-retention", "100"),
        ("--heap-retention", "100", "--lake-retention", "100"),
        ("--mode", "tiered", "--keep-heap", "--lake-retention", "100"),
    ],
)
def test_lake_retention_is_for_tiered_tables_that_shed_their_rows(run: RunCommand, options: tuple[str, ...]) -> None:
    assert run("register", "events", *options, "--dsn", "host=/nowhere").exit_code == 2


def test_a_shorter_lake_retention_wants_to_be_confirmed(
    tiered_tables: TieredTables, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that expire are nowhere else; a longer one, or none, loses nothing."""
    events = tiered_tables.tiered(partitions=2, rows=5, lake_retention="500")
    monkeypatch.setenv("MIRROR_PUMP_SLOT", events.mirror.settings.slot)
    stored = "SELECT lake_retention_lag FROM modak.tables"
    refused = run("policy", "set", "events", "lake_retention", "120")
    assert refused.exit_code == 1, refused.output
    assert "expire from the lake" in refused.stderr
    assert events.database.rows(stored) == [(500,)]
    for arguments, lag in (
        (("set", "events", "lake_retention", "600"), 600),
        (("set", "events", "lake_retention", "120", "--yes"), 120),
        (("unset", "events", "lake_retention"), None),
    ):
        assert run("policy", *arguments).exit_code == 0
        assert events.database.rows(stored) == [(lag,)]
    assert run("policy", "set", "events", "lake_retention", "9999").exit_code == 1, "until then rows stay forever"


def test_a_table_that_keeps_its_heap_has_no_lake_retention(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=2, rows=2, keep_heap=True)
    with pytest.raises(TableError, match="keeps its heap"):
        change_retention(events.mirror.settings, "events", "lake_retention", "5")


@pytest.mark.further
def test_the_line_waits_for_a_pin_that_may_read_the_delta_again(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=5, rows=20, fold_age=1000)
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
        with database.session(autocommit=False) as connection:
            upsert(connection, 50, 1, "corrected")
            delete(connection, 10, 2)
        pin, location = database.rows("SELECT pin_id, metadata_location FROM modak.pin('events')")[0]
        in_one, _ = database.rows("SELECT pin_id, t FROM modak.pin('events', in_one_snapshot => true)")[0]
        change_retention(mirror.settings, "events", "lake_retention", "200")
        await_true(lambda: look(mirror.settings, [])[0].not_expired is not None, 30, "the line waits")
        assert "of a reader" in str(look(mirror.settings, [])[0].not_expired)
        assert line_of(events) is None
        # All that its snapshot needs is there, however late it looks.
        assert database.rows("SELECT tier_key FROM modak.delta ORDER BY 1") == [(10,), (50,)]
        before = lake_rows(location)
        database.rows("SELECT modak.release(%s)", (pin,))
        await_line(events, 100)
        await_true(lambda: look(mirror.settings, [])[0].not_expired is None, 30, "nothing is in the way")
        assert database.rows("SELECT tier_key FROM modak.delta") == []
        assert lake_rows(location) == before, "what is pinned stays readable"
        events.assert_exact()
        database.rows("SELECT modak.release(%s)", (in_one,))


@pytest.mark.further
def test_a_correction_from_an_older_snapshot_is_read_by_nobody_and_dropped(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=5, rows=20, fold_age=0.05)
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
        pin: Any = None
        with repeatable_read(events) as old:
            change_retention(mirror.settings, "events", "lake_retention", "200")
            await_line(events, 100)
            # The folder waits for this pin.
            ((pin,),) = database.rows("SELECT pin_id FROM modak.pin('events')")
            old.execute("""SELECT modak.upsert('events', '{"at": 50, "id": 1, "v": "late"}')""")
            old.execute("""SELECT modak.upsert('events', '{"at": 250, "id": 1, "v": "late"}')""")
            old.commit()
        database.execute("INSERT INTO model VALUES (250, 1, NULL, 'late')")
        assert database.rows("SELECT tier_key FROM modak.delta WHERE tier_key < 100") == [(50,)]
        marked: LiteralString = "SELECT folded_sequence IS NOT NULL FROM modak.delta WHERE tier_key = 250"
        await_true(lambda: database.rows(marked) == [(True,)], 30, "the other one is folded")
        assert lowest(published(events))[0] >= 100
        events.assert_exact()
        database.rows("SELECT modak.release(%s)", (pin,))
        left: LiteralString = "SELECT count(*) FROM modak.delta WHERE tier_key < 100"
        await_true(lambda: database.rows(left) == [(0,)], 30, "the correction below the line is gone")
        assert database.rows("SELECT details FROM modak.op_log WHERE details ->> 'kind' = 'expired corrections'") == [
            ({"kind": "expired corrections", "corrections": 1},)
        ]
        assert lowest(published(events))[0] >= 100


@pytest.mark.further
def test_rows_expire_after_each_advance_while_further_partitions_are_due(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=8, rows=10, lake_retention="100")
    steps = Steps()
    with events.mirror.pumping(steps):
        await_line(events, 500)
        events.assert_exact()
    taken = [step for step, _ in steps.occurrences if step in (Step.TIER_ADVANCED, Step.EXPIRED)]
    # A partition leaves two looks after the cut-line has passed it, and holds the line until then.
    assert taken.index(Step.EXPIRED) < taken.index(Step.TIER_ADVANCED) + 5, taken
    assert len(steps.details(Step.EXPIRED, "line")) > 2


@pytest.mark.further
def test_a_reader_that_is_gone_is_not_named_any_more(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=5, rows=20, fold_age=1000)
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
        ((pin,),) = database.rows("SELECT pin_id FROM modak.pin('events')")
        events.grow()
        change_retention(mirror.settings, "events", "lake_retention", "200")
        waits: LiteralString = "SELECT count(*) FROM modak.partitions WHERE reason LIKE 'pin % of a reader%'"
        await_true(lambda: look(mirror.settings, [])[0].not_expired is not None, 30, "the line waits")
        await_true(lambda: database.rows(waits) == [(1,)], 30, f"the cut-line waits: {events.explained()}")

    def shown() -> tuple[str, ...]:
        (outlook,) = look(mirror.settings, [])
        with StatusReader(mirror.settings) as reader:
            (table,) = reader.read().tables
        state = table.retention
        assert state is not None
        return (str(outlook.to_json()), str(state.waits_for), str(state.not_expired))

    named = f"pin {pin} of a reader"
    assert all(named in text for text in shown())
    database.rows("UPDATE modak.read_pins SET expires_at = expires_at + interval '1 year 1 s' RETURNING 1")
    (year,) = database.rows("SELECT extract(year FROM expires_at)::int::text FROM modak.read_pins")[0]
    assert all(f"lasts until {year}-" in text for text in shown()), "until when the pin lasts now"
    # No pump looks again.
    database.rows("SELECT modak.release(%s)", (pin,))
    assert not any("of a reader" in text for text in shown())


class _Died(BaseException):
    """Stands for a kill: nothing in the product catches it."""


@pytest.mark.further
def test_killed_at_every_step_of_the_publish_it_expires_all_or_nothing(
    tiered_tables: TieredTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tiered_tables.tiered(partitions=5, rows=20, fold_age=1000)
    mirror, database = events.mirror, events.mirror.database
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
    with database.session(autocommit=False) as connection:
        upsert(connection, 50, 1, "expires")
        upsert(connection, 250, 1, "stays")
    state: LiteralString = (
        "SELECT retention_line, lake_snapshot_id, lake_props, (SELECT count(*) FROM modak.delta), (SELECT count(*) FROM"
        " modak.op_log WHERE details ->> 'kind' = 'expire'), metadata_location"
        " FROM modak.cutline CROSS JOIN modak.iceberg_tables"
    )
    before = database.rows(state)
    change_retention(mirror.settings, "events", "lake_retention", "200")

    def dying(function: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if after:
                function(*arguments)
            raise _Died

        return run

    for name in ("stage", "lock", "complete"):
        for after in (False, True):
            with monkeypatch.context() as patched:
                patched.setattr(ExpireRows, name, dying(getattr(ExpireRows, name), after))
                running = mirror.start()
                try:
                    with pytest.raises(_Died):
                        running.join()
                finally:
                    running.pump.request_stop()
            assert database.rows(state) == before, f"killed at {name}"
            events.assert_exact()
    # Before the COMMIT, and after it.
    die(mirror, "staged", 1, once="false", fold_age=1000, retention_interval=0.1, idle_publish_interval=1000)
    assert database.rows(state) == before
    events.assert_exact()
    die(mirror, "published", 1, once="false", fold_age=1000, retention_interval=0.1, idle_publish_interval=1000)
    assert line_of(events) == 100
    assert [row[3:5] for row in database.rows(state)] == [(1, 1)]
    events.assert_exact()
    with mirror.pumping():
        events.grow()
        await_line(events, 200)
        events.assert_exact()
    mirror.assert_sound()


def _bytes(maintained: Maintained) -> int:
    """Size of the table's data files on disk."""
    return sum(path.stat().st_size for path in maintained.files("public.events") if path.suffix == ".parquet")


@pytest.mark.soak
def test_maintenance_frees_the_storage_of_expired_rows(
    tiered_tables: TieredTables, spark: SparkSession, tmp_path: Path
) -> None:
    events = tiered_tables.tiered(partitions=6, rows=3000, merge_bytes=0)
    mirror, database = events.mirror, events.mirror.database
    maintained = Maintained(mirror, spark)
    maintained.policy("public.events", snapshot_retention_hours=0, snapshot_min_retained=1)
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="dropped", p3="dropped")
        ((pin, location),) = database.rows(
            "SELECT pin_id, metadata_location FROM modak.pin('events', in_one_snapshot => true)"
        )
        before = _bytes(maintained)
        change_retention(mirror.settings, "events", "lake_retention", "100")
        await_line(events, 300)
        assert _bytes(maintained) >= before
        age([path for path in tmp_path.rglob("*") if path.is_file()], 24 * 365)
        assert not maintained.maintain("public.events").errors
        assert len(lake_rows(location)) == 4 * 3000, "what is pinned stays"
        database.rows("SELECT modak.release(%s)", (pin,))
        age([path for path in tmp_path.rglob("*") if path.is_file()], 24 * 365)
        # One of the newest ten published snapshots is still the pinned one: readers that pin nothing have it.
        for number in range(12):
            with database.session(autocommit=False) as connection:
                upsert(connection, 350, number, "again")
            await_true(partial(_folded, events), 30, "the correction is folded")
        age([path for path in tmp_path.rglob("*") if path.is_file()], 24 * 365)
        assert not maintained.maintain("public.events").errors
        events.assert_exact()
    assert _bytes(maintained) < before / 2, (before, _bytes(maintained))
    print(f"{before} bytes of data files before the expiry, {_bytes(maintained)} after maintenance")


def _folded(events: EventsTable) -> bool:
    return events.database.rows("SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL") == [(0,)]


@pytest.mark.soak
@pytest.mark.parametrize("seed", [random.getrandbits(32) for _ in range(2)])
def test_random_changes_and_expiries_against_a_model(tiered_tables: TieredTables, seed: int) -> None:
    """Writers also below the line, snapshots from before it moved, pins, a policy that changes, and pumps that end."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    events = tiered_tables.tiered(partitions=6, rows=40, lake_retention="200", fold_age=0.1)
    mirror, database = events.mirror, events.mirror.database
    refused = lines = 0
    line = -(2**63)

    def change(connection: psycopg.Connection[Any]) -> None:
        """One transaction of the writer; refused as a whole if it touches an expired row."""
        nonlocal refused
        try:
            for _ in range(chance.randrange(1, 4)):
                events.write(connection, chance)
            connection.commit()
        except psycopg.errors.SerializationFailure:
            connection.rollback()
        except psycopg.errors.CheckViolation as error:
            connection.rollback()
            refused += "has expired" in str(error)

    with duckdb_connection() as duckdb:
        for life in range(6):
            with (
                mirror.pumping(),
                database.session(autocommit=False) as writer,
                repeatable_read(events) as old,
                database.session() as reader,
            ):
                pin: Any = None
                for turn in range(40):
                    change(writer)
                    if chance.random() < 0.05:
                        change(old)
                        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                        old.execute("SELECT 1")
                    if chance.random() < 0.06:
                        events.grow()
                    if chance.random() < 0.1:
                        chosen = chance.choice([None, "60", "130", "200", "450"])
                        change_retention(mirror.settings, "events", "lake_retention", chosen)
                    if pin is None and chance.random() < 0.1:
                        ((pin, location),) = database.rows("SELECT pin_id, metadata_location FROM modak.pin('events')")
                        pinned = lake_rows(location, duckdb)
                    elif pin is not None and chance.random() < 0.3:
                        assert lake_rows(location, duckdb) == pinned, f"seed {seed}"
                        reader.execute("SELECT modak.release(%s)", (pin,))
                        pin = None
                    if turn % 4 == 0:
                        events.assert_exact(duckdb)
                    now = line_of(events)
                    assert now is None or now >= line, f"seed {seed}: the line went back"
                    if now is not None and now > line:
                        lines, line = lines + 1, now
                change(old)
                if pin is not None:
                    reader.execute("SELECT modak.release(%s)", (pin,))
            events.assert_exact(duckdb)
            for place in (published(events), mirror.location("public.events")):
                found = duckdb.execute(f"SELECT min(\"at\") FROM iceberg_scan('{place}')").fetchall()[0][0]
                assert found is None or found >= line, f"seed {seed}, life {life}"
        change_retention(mirror.settings, "events", "lake_retention", "60")
        with mirror.pumping(), database.session(autocommit=False) as writer:
            # However slow the pump was until now.
            for _ in range(2):
                events.grow()
                await_true(lambda: (line_of(events) or line) > line, 60, f"another line: {events.explained()}")  # noqa: B023 - called at once
                lines, line = lines + 1, line_of(events) or line
            for _ in range(40):
                change(writer)
            await_true(
                lambda: database.rows("SELECT modak.due_retention_line(%s)", (events.table_id,)) == [(None,)],
                60,
                f"the last line: {events.explained()}",
            )
            left: LiteralString = (
                "SELECT count(*) FROM modak.delta d JOIN modak.cutline c USING (table_id)"
                " WHERE d.tier_key < c.retention_line OR folded_sequence IS NULL"
            )
            await_true(lambda: database.rows(left) == [(0,)], 60, "all is folded or gone")
        events.assert_exact(duckdb)
        mirror.assert_sound()
    print(f"{lines} lines, {refused} transactions refused, {events.partitions} partitions")
    assert lines > 1
    assert refused
