"""Rows of partitions that their owner takes away above the cut-line stay in the lake, and what comes again in their
range replaces them by key: no key is in the lake twice, whatever transactions bring it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.errors import TableError
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.mirror import assert_same, await_true, lake_rows, normalised
from tests.support.error_bounds import printed_seed
from tests.support.events_table import EventsTable, RetentionTables
from tests.support.retention_sql import SqlTable
from tests.support.retention_table import at_once, run

Connection = psycopg.Connection[Any]


def _put(connection: Connection, at: int, number: int, text: str) -> None:
    """Inserts a row that the table does not have. The model, like the lake, may have one of its key."""
    run(connection, f"INSERT INTO events VALUES ({at}, {number}, 1, '{text}')")
    _model_row(connection, at, number, 1, text)


def _model_row(connection: Connection, at: int, number: int, n: int, text: str) -> None:
    run(
        connection,
        f"INSERT INTO model VALUES ({at}, {number}, {n}, '{text}')"
        " ON CONFLICT (at, id) DO UPDATE SET n = excluded.n, v = excluded.v",
    )


def _delete(connection: Connection, condition: str) -> None:
    """Deletes rows that the table has. What the lake alone has stays."""
    for at, number in run(connection, f"DELETE FROM events WHERE {condition} RETURNING at, id").fetchall():
        run(connection, f"DELETE FROM model WHERE (at, id) = ({at}, {number})")


def _move(connection: Connection, at: int, number: int, to: int) -> None:
    """Gives a row that the table has another tier key."""
    for n, text in run(
        connection, f"UPDATE events SET at = {to} WHERE (at, id) = ({at}, {number}) RETURNING n, v"
    ).fetchall():
        run(connection, f"DELETE FROM model WHERE (at, id) = ({at}, {number})")
        _model_row(connection, to, number, n, text)


def _assert_kept(events: EventsTable) -> None:
    """Fails unless the lake has the model's rows from the cut-line on, each once, and a read across the cut-line has
    all others. No session writes."""
    events.mirror.await_frontier()
    cut = events.cut
    found, wanted = events.seam()
    assert_same([row for row in wanted if row[0] < cut], [row for row in found if row[0] < cut], f"rows below {cut}")
    rows = [row for row in lake_rows(events.mirror.location("public.events")) if row[0] >= cut]
    with events.database.session() as connection:
        model = normalised(run(connection, f"SELECT * FROM model WHERE at >= {cut}").fetchall())
    assert_same(model, rows, f"the lake's rows from {cut} on")


def _ranges(events: EventsTable) -> str:
    return str(events.database.rows("SELECT kept_ranges::text FROM modak.mirror_tables")[0][0])


def _stopped(events: EventsTable) -> object:
    return events.database.rows("SELECT retention_stopped FROM modak.status")[0][0]


def test_rows_that_come_again_replace_those_that_the_lake_keeps(retention_tables: RetentionTables) -> None:
    """In other transactions than the drop. The proof before the new partition's drop does not stop at what the lake
    alone has. The cut-line passes a partition that went in its turn, so another one is before it, which is not due."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="200")
    mirror = events.mirror
    mirror.catch_up()
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        mirror.database.execute("DROP TABLE p3")
        mirror.await_frontier()
        assert _ranges(events) == "{[300,400)}"
        mirror.database.execute("CREATE TABLE again PARTITION OF events FOR VALUES FROM (300) TO (400)")
        with mirror.database.session(autocommit=False) as connection:
            _put(connection, 300, 0, "again")
            _put(connection, 305, 0, "new")
            _put(connection, 321, 2, "to be moved")
            _put(connection, 330, 3, "to be deleted at once")
            _delete(connection, "at = 330")
            _put(connection, 340, 4, "to be deleted")
        _assert_kept(events)
        with mirror.database.session(autocommit=False) as connection:
            _move(connection, 321, 2, 320)
            _delete(connection, "at = 340")
            _put(connection, 455, 1, "elsewhere")
        _assert_kept(events)
        events.grow()
        events.grow()
        events.await_state(again="dropped")
        assert (events.cut, events.states()["p3"], _stopped(events)) == (400, "dropped", None)
        events.assert_exact()


def test_of_two_that_went_from_the_same_place_the_cutline_passes_one(table: SqlTable) -> None:
    """Behind whatever was written to either of them: no partition has come or gone since the look."""
    noted = "UPDATE modak.mirror_shapes SET shape = '{}'"
    table.pass_by("ev0", 100)
    table.database.execute(
        "INSERT INTO modak.mirror_shapes (table_id, shape) VALUES ('ev'::regclass::oid::bigint, '{}')",
        "DROP TABLE ev1",
        "CREATE TABLE twin PARTITION OF ev FOR VALUES FROM (150) TO (200)",
        "INSERT INTO modak.partitions (table_id, partition_id, tier_key_lo, tier_key_hi, state, relation_id)"
        " VALUES ('ev'::regclass::oid::bigint, 'twin', 150, 200, 'hot', 'twin'::regclass::oid::bigint)",
    )
    assert table.gone("ev1")
    table.database.execute("DROP TABLE twin", noted)
    assert table.advance("ev1", 200) == "partition ev1 was altered meanwhile"
    assert (table.gone("ev1"), table.gone("twin")) == (True, True)
    assert table.advance("ev1", 200) is None
    with table.database.session() as connection:
        assert source.run(connection, "replaced", {"table_id": table.table_id, "partition_id": "twin"}) == 1
    assert (table.cut, table.states()["twin"]) == (200, "dropped")


def test_no_command_removes_what_only_the_lake_has_unasked(retention_tables: RetentionTables) -> None:
    """Nor does a copy that begins again. Partitions without rows leave nothing, wherever they end."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="1000")
    mirror = events.mirror
    mirror.catch_up()
    with mirror.pumping():
        for bounds in ("(500) TO (600)", "(600) TO (MAXVALUE)"):
            mirror.database.execute(f"CREATE TABLE ahead PARTITION OF events FOR VALUES FROM {bounds}")
            mirror.database.execute("DROP TABLE ahead")
        mirror.await_frontier()
        assert _ranges(events) == "{}"
        mirror.database.execute("ALTER TABLE events DETACH PARTITION p2")
        for restore_heap, reason in ((False, "the only copy"), (True, "does not bring them back")):
            with pytest.raises(TableError, match=reason):
                mirror.unregister("public.events", drop_lake=True, restore_heap=restore_heap)
        mirror.database.execute("TRUNCATE p2", "ALTER TABLE events ATTACH PARTITION p2 FOR VALUES FROM (200) TO (300)")
        mirror.await_frontier()
        assert _ranges(events) == "{[200,300)}"
        mirror.database.execute("TRUNCATE p4")
        await_true(lambda: mirror.state("public.events") == "failed", 60, "the table fails")
    ((error,),) = mirror.database.rows("SELECT error FROM modak.mirror_tables")
    assert "tier values in {[200,300)}" in str(error)
    assert len(lake_rows(mirror.location("public.events"))) == 50


@pytest.mark.further
def test_who_brings_rows_back_is_told_what_stays_in_the_lake(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=5, rows=10, lag="200")
    events.mirror.catch_up()
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        events.database.execute("ALTER TABLE events DETACH PARTITION p3")
        events.mirror.await_frontier()
        said = events.mirror.unregister("public.events", restore_heap=True)
    assert "2 partitions with 20 rows are back in its heap, and the lake alone has rows" in said
    assert "above the cut-line ({[300,400)})" in said


@pytest.mark.further
def test_rows_of_a_default_partition_come_again(retention_tables: RetentionTables) -> None:
    """Its owner's, which got a row before the mirror's trigger was on it, and gives it up as `status` says."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="1000")
    mirror = events.mirror
    mirror.catch_up()
    with mirror.database.session(autocommit=False) as connection:
        run(connection, "DROP TABLE events_old_rows")
        run(connection, "CREATE TABLE mine PARTITION OF events DEFAULT")
        _put(connection, 510, 1, "in the DEFAULT partition")
    with mirror.pumping():
        await_true(lambda: "holds rows" in str(_stopped(events)), 60, "retention stops")
        with mirror.database.session(autocommit=False) as connection:
            run(connection, "ALTER TABLE events DETACH PARTITION mine")
            run(connection, "CREATE TABLE p5 PARTITION OF events FOR VALUES FROM (500) TO (600)")
            run(connection, "INSERT INTO events SELECT * FROM mine")
        _assert_kept(events)
        assert _ranges(events) == "{[500,511)}"


@pytest.mark.further
def test_a_truncate_takes_what_the_lake_keeps(retention_tables: RetentionTables) -> None:
    """With the rows from the cut-line on. Then inserted rows are nowhere in the lake again."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="200")
    mirror = events.mirror
    mirror.catch_up()
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        mirror.database.execute("ALTER TABLE events DETACH PARTITION p3")
        with mirror.database.session(autocommit=False) as connection:
            run(connection, "TRUNCATE events")
            run(connection, "DELETE FROM model WHERE at >= 200")
            run(connection, "CREATE TABLE again PARTITION OF events FOR VALUES FROM (300) TO (400)")
            _put(connection, 300, 0, "again")
        _assert_kept(events)
        assert _ranges(events) == "{}"
        mirror.database.execute("TRUNCATE p4")
        mirror.await_frontier()
        mirror.await_live("public.events")


@pytest.mark.further
def test_an_empty_partition_that_was_away_for_a_moment(retention_tables: RetentionTables) -> None:
    """Its rows were truncated while it was detached, in the transaction that attaches it again."""
    events = retention_tables.automatic(partitions=5, rows=10, lag="1000")
    mirror = events.mirror
    mirror.catch_up()
    with mirror.pumping():
        with mirror.database.session(autocommit=False) as connection:
            run(connection, "ALTER TABLE events DETACH PARTITION p1")
            run(connection, "TRUNCATE p1")
            run(connection, "ALTER TABLE events ATTACH PARTITION p1 FOR VALUES FROM (100) TO (200)")
            _put(connection, 110, 1, "again")
        _assert_kept(events)
        assert (_ranges(events), mirror.state("public.events")) == ("{[100,200)}", "live")


@dataclass
class _PartitionOwner:
    """Takes partitions of width 50 or 100 away and makes others, at random, and writes to the table."""

    events: EventsTable
    chance: random.Random
    made: int = 0
    away: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bounds of partitions that were taken away, if that was committed."""
    done: list[str] = field(default_factory=list)

    def transaction(self) -> None:
        """Some steps in one transaction. What PostgreSQL refuses has not happened, in the model neither."""
        steps: tuple[Callable[[Connection], None], ...] = (
            self._insert, self._insert, self._insert, self._update, self._move_row, self._delete_rows,
            self._take_away, self._make, self._make, self._take_away_and_back,
        )  # fmt: skip
        with self.events.database.session(autocommit=False) as connection:
            for step in self.chance.choices(steps, k=self.chance.randint(1, 5)):
                self.done.append(step.__name__)
                with self._refusable(), connection.transaction():
                    step(connection)

    @contextmanager
    def _refusable(self) -> Iterator[None]:
        refusals = (
            psycopg.errors.CheckViolation,
            psycopg.errors.UniqueViolation,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.LockNotAvailable,
            psycopg.errors.UndefinedTable,
        )
        try:
            yield
        except refusals as refusal:
            self.done.append(type(refusal).__name__)

    def _insert(self, connection: Connection) -> None:
        text = f"{self.chance.random()}"
        for _ in range(self.chance.randint(1, 6)):
            with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                _put(connection, self._at(), self.chance.randrange(2), text)

    def _update(self, connection: Connection) -> None:
        at = self._at()
        for row in run(
            connection, f"UPDATE events SET n = n + 1 WHERE at BETWEEN {at} AND {at + 9} RETURNING at, id, n, v"
        ).fetchall():
            _model_row(connection, *row)

    def _move_row(self, connection: Connection) -> None:
        row = run(connection, f"SELECT at, id FROM events WHERE at >= {self._at()} ORDER BY at, id LIMIT 1").fetchone()
        if row is not None:
            at, number = row
            _move(connection, at, number, self._at())

    def _delete_rows(self, connection: Connection) -> None:
        at = self._at()
        _delete(connection, f"at BETWEEN {at} AND {at + 9}")

    def _at(self) -> int:
        return self.chance.randrange(0, self.events.partitions * 100, 5)

    def _take_away(self, connection: Connection) -> None:
        """One of those that are not made to grow."""
        top = (self.events.partitions - 1) * 100
        bounds = {name: (lower, upper) for name, lower, upper in self._attached(connection) if lower < top}
        if bounds:
            name = self.chance.choice(sorted(bounds))
            self.away[name] = bounds[name]
            command = (
                f"DROP TABLE {name}" if self.chance.random() < 0.5 else f"ALTER TABLE events DETACH PARTITION {name}"
            )
            run(connection, command)

    def _take_away_and_back(self, connection: Connection) -> None:
        """Nothing of it has happened."""
        with connection.transaction():
            self._take_away(connection)
            raise psycopg.Rollback

    def _make(self, connection: Connection) -> None:
        """A partition where there is none, on one side of the cut-line, which does not move meanwhile."""
        cut = self._held_cut(connection)
        lower = self.chance.randrange(0, self.events.partitions * 100, 50)
        upper = min(lower + self.chance.choice((50, 100)), self.events.partitions * 100)
        if lower < cut < upper:
            upper = cut
        if self._is_free(connection, lower, upper):
            self.made += 1
            run(connection, f"CREATE TABLE made{self.made} PARTITION OF events FOR VALUES FROM ({lower}) TO ({upper})")

    def bring_back(self) -> None:
        """Attaches a table that was detached, below the cut-line, and waits for the look."""
        with self.events.database.session(autocommit=False) as connection:
            cut = self._held_cut(connection)
            for (name,) in connection.execute(
                "SELECT relname::text FROM pg_class WHERE relname ~ '^(p|made)[0-9]+$' AND relkind = 'r'"
                " AND NOT relispartition ORDER BY 1"
            ).fetchall():
                lower, upper = self.away.get(name, (cut, cut))
                if upper <= cut and self._is_free(connection, lower, upper):
                    self.done.append(f"bring_back {name}")
                    bounds = f"FOR VALUES FROM ({lower}) TO ({upper})"
                    run(connection, f"ALTER TABLE events ATTACH PARTITION {name} {bounds}")
                    for row in run(connection, f"SELECT at, id, n, v FROM {name}").fetchall():
                        _model_row(connection, *row)
                    break
        late: LiteralString = "SELECT modak.late_partition(table_id) FROM modak.cutline"
        await_true(lambda: self.events.database.rows(late) == [(None,)], 60, "its rows are corrections")

    def _held_cut(self, connection: Connection) -> int:
        """The cut-line, which does not move until the transaction ends."""
        run(connection, "LOCK TABLE ONLY events_old_rows IN ACCESS EXCLUSIVE MODE")
        ((cut,),) = run(connection, "SELECT tier_key_hi FROM modak.cutline").fetchall()
        return int(cut)

    def _is_free(self, connection: Connection, lower: int, upper: int) -> bool:
        return lower < upper and all(hi <= lower or upper <= lo for _, lo, hi in self._attached(connection))

    def _attached(self, connection: Connection) -> list[tuple[str, int, int]]:
        return connection.execute(
            "SELECT relation::regclass::text, lo, hi FROM modak.tier_partitions(%s::regclass) WHERE NOT is_default",
            ("events",),
        ).fetchall()


@pytest.mark.further
@pytest.mark.parametrize("version", [2, 3])
def test_whatever_owners_do_with_partitions(retention_tables: RetentionTables, version: int) -> None:
    """In whatever transactions, on both sides of the cut-line, while others leave the heap: the newest row of a key
    wins, and what was taken away stays."""
    events = retention_tables.automatic(partitions=6, rows=10, lag=None, batch_bytes=20_000)
    mirror, owner = events.mirror, _PartitionOwner(events, random.Random(printed_seed()))
    mirror.register("public.events", retention=at_once("300"), format_version=version)
    try:
        for _ in range(4):
            with mirror.pumping():
                mirror.await_live("public.events")
                for _ in range(2):
                    for _ in range(15):
                        owner.transaction()
                    owner.bring_back()
                    _assert_kept(events)
                    events.grow()
            for _ in range(5):
                owner.transaction()
        with mirror.pumping():
            _assert_kept(events)
            for _ in range(4):
                events.grow()
            top = (events.partitions - 4) * 100
            await_true(lambda: events.cut >= top, 60, f"the cut-line is at {top}")
            await_true(lambda: _unproven(events) == 0, 60, "each partition is proven")
            mirror.await_frontier()
            _assert_kept(events)
        assert (mirror.state("public.events"), _stopped(events)) == ("live", None)
    except BaseException as error:
        error.add_note(f"{events.explained()} {' '.join(owner.done)}")
        raise


def _unproven(events: EventsTable) -> int:
    return int(events.database.rows("SELECT count(*) FROM modak.partitions WHERE state = 'tiering'")[0][0])
