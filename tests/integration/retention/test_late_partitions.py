"""Partitions that are made or attached below the cut-line: a read across it has their rows, or says that it has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest
from pydantic import ByteSize

from mirror_pump.errors import SourceError
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.retention.partition_sync import reconcile
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, Locks
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.retention.partitions import read_choices
from mirror_pump.testing.mirror import Steps, await_true
from sql import queries
from tests.support.events_table import EventsTable, RetentionTables
from tests.support.retention_sql import SqlTable, repeatable_read
from tests.support.retention_table import run

Connection = psycopg.Connection[Any]

AGAIN = "CREATE TABLE again PARTITION OF events FOR VALUES FROM (200) TO (300)"
_LATE: LiteralString = "SELECT modak.late_partition('ev'::regclass::oid::bigint)"
BACK = "ALTER TABLE events ATTACH PARTITION p2 FOR VALUES FROM (200) TO (300)"


def _shed(events: EventsTable, away: str) -> None:
    """Has the pump shed p0 and p1, takes p2 away, which is the next in turn, and returns once the cut-line has passed
    it. No pump runs then."""
    events.mirror.catch_up()
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="hot")
        _in_transaction(events, lambda connection: run(connection, away))
        await_true(lambda: events.cut == 300, 60, f"the cut-line passes it: {events.explained()}")


def _insert(connection: Connection) -> None:
    """A row of a key that the lake has, and new ones."""
    for at, number, text in ((200, 0, "again"), (205, 5, "new"), (206, 6, "to be deleted"), (207, 7, "to be moved")):
        run(connection, f"INSERT INTO events VALUES ({at}, {number}, 1, '{text}')")
        run(
            connection,
            f"INSERT INTO model VALUES ({at}, {number}, 1, '{text}')"
            " ON CONFLICT (at, id) DO UPDATE SET n = excluded.n, v = excluded.v",
        )


def _write(connection: Connection) -> None:
    """Changes of rows that the heap has."""
    for table in ("events", "model"):
        run(connection, f"DELETE FROM {table} WHERE at = 206")
        run(connection, f"UPDATE {table} SET at = 208 WHERE at = 207")
        run(connection, f"UPDATE {table} SET n = 9 WHERE at = 205")


def _in_transaction(events: EventsTable, *steps: Callable[[Connection], object]) -> None:
    with events.database.session(autocommit=False) as connection:
        for step in steps:
            step(connection)


def _open(events: EventsTable) -> None:
    """Begins a read across the cut-line, as all programs of the mirror do. Raises SourceError."""
    ConsistentSnapshot(events.database.dsn, [events.table_id], locks=Locks.WITH_RETENTION).close()


def _assert_refused(events: EventsTable, partition: str) -> None:
    with pytest.raises(SourceError, match=f"partition public.{partition} of public.events was attached below"):
        _open(events)


def _await_drop(events: EventsTable, partition: str) -> None:
    """Has the partition become due once the lake has its rows."""
    events.await_state(60, **{partition: "tiered"})
    events.grow()
    events.await_state(60, **{partition: "dropped"})


def _without_event_triggers(events: EventsTable) -> None:
    events.database.execute(*(f"DROP EVENT TRIGGER {name}" for name in queries("event_triggers")))


def _look(table: SqlTable, most_late_bytes: int = 100000) -> list[str]:
    """The pump's look at the partitions. Returns why it stops the table's retention."""
    problems: list[str] = []
    with table.database.session() as connection:
        (mirrored,) = load_tables(connection, "s")
        choices = read_choices(connection, mirrored.table_id)
        assert choices is not None
        reconcile(connection, mirrored, choices, problems.append, most_late_bytes)
    return problems


def test_the_next_in_turn_is_dropped_and_made_again(retention_tables: RetentionTables) -> None:
    """What comes in it is readable at once, even without a pump, and in the transaction that makes it."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="250")
    _shed(events, "DROP TABLE p2")
    _in_transaction(events, lambda connection: run(connection, AGAIN), _insert)
    events.assert_exact()
    _in_transaction(events, _write)
    events.assert_exact()
    _open(events)
    steps = Steps()
    with events.mirror.pumping(steps):
        _await_drop(events, "again")
        events.assert_exact()
    assert steps.count(Step.TABLE_FAILED) == steps.count(Step.RETENTION_STOPPED) == 0


def test_the_same_without_event_triggers(retention_tables: RetentionTables) -> None:
    """A pump has to look at it first. Until then reads across the cut-line are refused."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="250")
    _shed(events, "DROP TABLE p2")
    _without_event_triggers(events)
    _in_transaction(events, lambda connection: run(connection, AGAIN))
    _open(events)
    _in_transaction(events, _insert, _write)
    _assert_refused(events, "again")
    with events.mirror.pumping():
        _await_drop(events, "again")
        events.assert_exact()
        _open(events)


@pytest.mark.further
@pytest.mark.parametrize("announced", [True, False], ids=["event triggers", "no event triggers"])
def test_a_partition_comes_back_with_rows(retention_tables: RetentionTables, announced: bool) -> None:
    """They were changed while it was detached. Those that were deleted then are the lake's alone."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="250")
    _shed(events, "ALTER TABLE events DETACH PARTITION p2")
    if not announced:
        _without_event_triggers(events)

    def change(connection: Connection) -> None:
        run(connection, "DELETE FROM p2 WHERE at = 220")
        run(connection, "UPDATE p2 SET v = 'elsewhere' WHERE at < 250")
        run(connection, "UPDATE model SET v = 'elsewhere' WHERE at >= 200 AND at < 250 AND at <> 220")
        run(connection, BACK)

    _in_transaction(events, change, lambda connection: run(connection, "DELETE FROM p2 WHERE at = 230"))
    _in_transaction(
        events,
        lambda connection: run(connection, "INSERT INTO events VALUES (230, 3, 4, 'again')"),
        lambda connection: run(connection, "UPDATE model SET n = 4, v = 'again' WHERE at = 230"),
    )
    _assert_refused(events, "p2")
    # The catalog has another one of its name.
    ((entered,),) = events.database.rows("SELECT 'p2'::regclass::oid")
    with events.mirror.pumping():
        _await_drop(events, f"p2 #{entered}")
        events.assert_exact()
        _open(events)


@pytest.mark.further
def test_a_large_partition_is_compared_and_kept_out(retention_tables: RetentionTables) -> None:
    """It would be too many corrections. If the lake has its rows, it is like any other; else reads are refused until it
    is detached."""
    limits = InternalLimits(late_partition_bytes=ByteSize(4096))
    events = retention_tables.automatic(partitions=5, rows=10, lag="250", limits=limits)
    _shed(events, "ALTER TABLE events DETACH PARTITION p2")
    _in_transaction(
        events,
        lambda connection: run(connection, "DELETE FROM p2 WHERE at = 220"),
        lambda connection: run(connection, BACK),
    )
    # The catalog has another one of its name.
    ((entered,),) = events.database.rows("SELECT 'p2'::regclass::oid")
    with events.mirror.pumping():
        _await_drop(events, f"p2 #{entered}")
        events.assert_exact()
        events.database.execute(
            "CREATE TABLE late (LIKE events INCLUDING ALL)",
            "INSERT INTO late VALUES (210, 77, 1, 'never mirrored')",
            "ALTER TABLE events ATTACH PARTITION late FOR VALUES FROM (200) TO (300)",
        )
        await_true(lambda: "210, 77: not in the lake" in events.reason("late"), 60, f"compared: {events.explained()}")
        _assert_refused(events, "late")
        events.database.execute("ALTER TABLE events DETACH PARTITION late")
        _open(events)
        events.assert_exact()


@pytest.mark.further
def test_an_older_snapshot_makes_a_partition(table: SqlTable) -> None:
    """Its transaction does not see the cut-line that the partition is below. The look does."""
    table.pass_by("ev0", 100)
    table.database.execute("DROP TABLE ev1")
    assert table.gone("ev1")
    with repeatable_read(table) as connection:
        assert table.advance("ev1", 200) is None
        connection.execute("CREATE TABLE again PARTITION OF ev FOR VALUES FROM (100) TO (200)")
        connection.execute("INSERT INTO ev VALUES (7, 150, 'again')")
        connection.commit()
    assert table.value(_LATE) == "public.again"
    with table.database.session(autocommit=False) as connection:
        connection.execute("SELECT modak.take_late('ev'::regclass::oid::bigint, 'again'::regclass, 100, 200)")
        assert connection.execute(_LATE).fetchone() == ("public.again",)
        (done,) = connection.execute(
            "SELECT modak.correct_late('ev'::regclass::oid::bigint, 'public.again', 100000)"
        ).fetchone() or (None,)
    assert (done, table.value(_LATE)) == (True, None)
    assert table.delta()["7 150"][:2] == (0, 150)
    table.database.execute("UPDATE again SET v = 'later'")
    assert table.delta()["7 150"][2]["v"] == "later"


@pytest.mark.parametrize(
    "partition",
    [
        ("FROM (100) TO (200) PARTITION BY LIST (id)", "CREATE TABLE late1 PARTITION OF late DEFAULT"),
        ("FROM (100) TO (300)",),
    ],
    ids=["partitioned itself", "across the cut-line"],
)
def test_a_partition_that_no_look_enters(table: SqlTable, partition: tuple[LiteralString, ...]) -> None:
    """Nothing makes its rows corrections, so reads are refused. The look enters others in spite of it."""
    table.pass_by("ev0", 100)
    table.pass_by("ev1", 200)
    bounds, *further = partition
    table.database.execute(
        "DROP TABLE ev0, ev1, ev2", f"CREATE TABLE late PARTITION OF ev FOR VALUES {bounds}", *further
    )
    table.database.execute("CREATE TABLE other PARTITION OF ev FOR VALUES FROM (0) TO (100)")
    assert table.value(_LATE) is None
    table.database.execute("INSERT INTO ev VALUES (7, 150, 'late')")
    assert table.value(_LATE) == "public.late"
    assert "public.late" in str(_look(table)[0])
    assert table.value("SELECT state FROM modak.partitions WHERE partition_id = 'public.other'") == "tiering"


@pytest.mark.parametrize("proven", [False, True], ids=["tiering", "tiered"])
@pytest.mark.parametrize(
    ("away", "back", "truncated"),
    [
        ("ALTER TABLE ev0 DISABLE TRIGGER ALL", "ALTER TABLE ev0 ENABLE TRIGGER ALL", False),
        ("ALTER TABLE ev0 DISABLE TRIGGER ALL", "ALTER TABLE ev0 ENABLE ALWAYS TRIGGER zz_modak_row", False),
        (
            "ALTER TABLE ev DETACH PARTITION ev0",
            "ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)",
            True,
        ),
    ],
    ids=["trigger off", "trigger off and on", "detached and attached"],
)
def test_changes_behind_the_trigger_become_corrections(
    table: SqlTable, away: LiteralString, back: LiteralString, truncated: bool, proven: bool
) -> None:
    """All in one transaction. What the partition's owner took from it meanwhile stays in the lake only if the partition
    was detached; else its proof fails."""
    table.pass_by("ev0", 100)
    if proven:
        table.prove()
    table.database.execute("UPDATE ev SET n = 8 WHERE id = 1", "ALTER TABLE ev ADD COLUMN later int", "VACUUM FULL ev0")
    assert table.value(_LATE) is None
    with table.database.session(autocommit=False) as owner:
        owner.execute(away)
        owner.execute("INSERT INTO ev0 (id, at, v, n) VALUES (9, 60, 'unseen', 1)")
        owner.execute(back)
    assert table.delta().keys() == {"1 50"}
    assert table.value(_LATE) == "public.ev0"
    assert _look(table) == []
    assert table.value(_LATE) == "public.ev0"
    assert _look(table) == []
    assert table.value(_LATE) is None
    assert table.delta()["9 60"][2]["v"] == "unseen"
    assert table.database.rows("SELECT state, truncated FROM modak.partitions WHERE partition_id = 'ev0'") == [
        ("tiering", truncated)
    ]


@pytest.mark.parametrize("announced", [True, False], ids=["event triggers", "no event triggers"])
def test_partitions_that_are_attached_elsewhere(table: SqlTable, announced: bool) -> None:
    """One goes above the cut-line, and takes rows there that are no corrections; another goes below it with a row."""
    if announced:
        table.database.execute(
            "INSERT INTO modak.mirror_shapes (table_id, shape) VALUES ('ev'::regclass::oid::bigint, '{}')"
        )
        table.database.execute(*queries("event_triggers").values())
    table.pass_by("ev0", 100)
    with table.database.session(autocommit=False) as owner:
        run(owner, "ALTER TABLE ev DETACH PARTITION ev0")
        run(owner, "ALTER TABLE ev DETACH PARTITION ev2")
        run(owner, "UPDATE ev0 SET at = at + 500")
        run(owner, "UPDATE ev2 SET at = at - 200")
        run(owner, "ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (500) TO (600)")
        run(owner, "ALTER TABLE ev ATTACH PARTITION ev2 FOR VALUES FROM (0) TO (100)")
    assert table.value("SELECT modak.retained_by('ev0'::regclass, 'cold')") is not announced
    table.database.execute("INSERT INTO ev VALUES (9, 570, 'above')", "UPDATE ev0 SET n = 1")
    assert table.delta() == {}
    assert table.value(_LATE) == "public.ev2"
    for _ in range(4):
        assert _look(table) == []
    assert table.delta().keys() == {"3 50"}
    assert table.value(_LATE) is None
    assert table.database.rows(
        "SELECT relation_id::oid::regclass::text, state, tier_key_lo FROM modak.partitions"
        " WHERE tier_key_lo <> 100 ORDER BY 1, 3"
    ) == [("ev0", "hot", 500), ("ev2", "tiering", 0), (None, "dropped", 0), (None, "hot", 200)]
    assert table.value("SELECT modak.retained_by('ev0'::regclass, 'cold')") is False
    table.database.execute("INSERT INTO ev VALUES (8, 70, 'below')")
    assert table.delta().keys() == {"3 50", "8 70"}


def test_the_corrections_of_several_partitions_are_bounded(table: SqlTable) -> None:
    """Readers have all of them in memory, so a partition waits for the fold of those of others."""
    table.pass_by("ev0", 100)
    table.database.execute(
        "ALTER TABLE ev0 DISABLE TRIGGER ALL",
        "INSERT INTO modak.delta (table_id, pk, op, tier_key, version, payload)"
        " SELECT 'ev'::regclass::oid::bigint, g::text, 0, 1, 1,"
        " to_jsonb((SELECT string_agg(md5(g::text || n), '') FROM generate_series(1, 400) n))"
        " FROM generate_series(1, 20) g",
    )
    for _ in range(3):
        _look(table)
    assert table.value(_LATE) == "public.ev0"
    table.database.execute("UPDATE modak.delta SET folded_sequence = 1")
    _look(table)
    assert table.value(_LATE) is None


def test_a_command_reads_the_bounds_once(table: SqlTable) -> None:
    """However many partitions it adds: users wait meanwhile."""
    table.pass_by("ev0", 100)
    table.database.execute("DROP TABLE ev0")
    with table.database.session(autocommit=False) as owner:
        for number in range(5):
            run(owner, f"CREATE TABLE late{number} PARTITION OF ev FOR VALUES FROM ({number}) TO ({number + 1})")
        run(owner, "SET LOCAL track_functions = 'pl'")
        run(owner, "SELECT modak.take_touched('ev'::regclass::oid::bigint, ARRAY['ev'::regclass::oid])")
        calls = run(
            owner, "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'tier_partitions'"
        ).fetchall()
    assert calls == [(1,)]
    assert table.value("SELECT count(*) FROM modak.partitions WHERE state = 'tiering'") == 6


def test_the_cutline_waits_for_who_makes_a_partition(table: SqlTable) -> None:
    """Each of them sees what the other one did. Nothing keeps a partition out where there is no DEFAULT partition."""
    table.pass_by("ev0", 100)
    table.database.execute("DROP TABLE ev1")
    assert table.gone("ev1")
    with table.database.session(autocommit=False) as maker, table.database.session() as connection:
        maker.execute("CREATE TABLE again PARTITION OF ev FOR VALUES FROM (100) TO (200)")
        connection.execute("SET lock_timeout = '50ms'")
        advance = "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev1', 200, %s)"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(advance, (table.database.lsn(),))
        maker.commit()
        # It went by the same look that found the other partition.
        table.database.execute("UPDATE modak.partitions SET sealed_lsn = 0 WHERE partition_id = 'ev1'")
    assert table.advance("ev1", 200) == "partition public.again comes first"
    table.database.execute("DROP TABLE again", "ALTER TABLE ev DETACH PARTITION ev_default")
    assert "no DEFAULT partition" in str(table.advance("ev1", 200))
