"""Users may change the publication, too: changes that it left out meanwhile never count as mirrored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from mirror_pump.errors import PublicationChanged, SourceError, TableError
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import MirrorStatus, TableStatus
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.stream.publication import PublicationCheck
from mirror_pump.source.stream.slot import check_publication
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner


@pytest.fixture
def two(database: Database, warehouse: str) -> Mirror:
    """Two live tables."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 100) g",
        "INSERT INTO u SELECT g, g FROM generate_series(1, 100) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "u")
    mirror.catch_up()
    return mirror


def _alter(mirror: Mirror, *statements: str) -> None:
    """Runs statements in one transaction. {} stands for the publication."""
    with mirror.database.connect() as connection, connection.transaction():
        for statement in statements:
            connection.execute(sql.SQL(statement).format(sql.Identifier(mirror.settings.publication)))


def _promised(mirror: Mirror, table: str) -> int:
    """The frontier of a table."""
    rows = mirror.database.rows(
        "SELECT c.replicated_lsn FROM modak.cutline c JOIN modak.tables t USING (table_id)"
        " WHERE t.schema_name || '.' || t.table_name = %s",
        (table,),
    )
    return int(rows[0][0])


def _status(mirror: Mirror) -> MirrorStatus:
    with StatusReader(complete(mirror.settings)) as reader:
        return reader.read()


def _table(mirror: Mirror, name: str) -> TableStatus:
    return next(table for table in _status(mirror).tables if table.table == name)


_CHANGES = (
    "ALTER PUBLICATION {} DROP TABLE public.t",
    "ALTER PUBLICATION {} DROP TABLE public.t; ALTER PUBLICATION {} ADD TABLE public.t",
    "ALTER PUBLICATION {} SET TABLE public.t (id), public.u",
    "ALTER PUBLICATION {} SET TABLE public.t, public.u WHERE (id > 0)",
    (
        "ALTER PUBLICATION {} SET (publish = 'insert'); "
        "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')"
    ),
    "ALTER PUBLICATION {} RENAME TO other",
    "DROP PUBLICATION {}",
    "UPDATE modak.mirror_tables SET published = 'another' WHERE lake_table = 'u'",
    "UPDATE modak.mirror_tables SET row_filter_mark = 'another' WHERE lake_table = 'u'",
    "UPDATE modak.mirror_tables SET column_list = true WHERE lake_table = 'u'",
)


def test_a_check_that_passed_before_notices_every_change(two: Mirror) -> None:
    check = PublicationCheck(two.settings.slot)
    with two.database.connect() as connection:
        cursor = connection.cursor()
        # A session begins with this.
        assert check.altered_tables(connection) == []
        for change in _CHANGES:
            check.refuse_changed(cursor)
            with connection.transaction(force_rollback=True):
                for statement in change.split("; "):
                    connection.execute(sql.SQL(statement).format(sql.Identifier(two.settings.publication)))
                # What this finds is never taken for what is recorded.
                check.altered_tables(connection)
                with pytest.raises(PublicationChanged):
                    check.refuse_changed(cursor)
            # What was rolled back is no change; neither is what does not concern the publication.
            connection.execute("UPDATE modak.mirror_tables SET updated_at = now()")
            connection.execute("UPDATE u SET v = 'changed' WHERE id = 1")
        check.refuse_changed(cursor)


def test_a_publication_of_all_tables_with_exceptions(two: Mirror) -> None:
    """PostgreSQL 19 notes what it leaves out in pg_publication_rel, with a column more, beside what others publish."""
    name = two.settings.publication
    functions = (Path(__file__).parents[3] / "sql" / "functions" / "publication.sql").read_text(encoding="utf-8")
    (view,) = re.findall(r"CREATE OR REPLACE VIEW modak.mirror_publications AS.*?;", functions, re.DOTALL)
    check = PublicationCheck(two.settings.slot)
    shown = "SELECT table_id, present, whole FROM {}.mirror_publications ORDER BY table_id"
    with two.database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute(
            "CREATE SCHEMA later; CREATE TABLE later.pg_publication_rel AS"
            " SELECT oid, prpubid, prrelid, false AS prexcept, prqual, prattrs FROM pg_publication_rel"
        )
        view = view.replace("modak.mirror_publications", "later.mirror_publications")
        connection.execute(view.replace("JOIN pg_publication_rel", "JOIN later.pg_publication_rel").encode())
        now, later = (connection.execute(shown.format(schema).encode()).fetchall() for schema in ("modak", "later"))
        assert now == later
        assert [whole for _, _, whole in later] == [True, True]
        check.refuse_changed(connection.cursor())
        connection.execute("UPDATE later.pg_publication_rel SET prexcept = true")
        connection.execute("UPDATE pg_publication SET puballtables = true WHERE pubname = %s", (name,))
        later = connection.execute(shown.format("later").encode()).fetchall()
        assert [whole for _, _, whole in later] == [False, False]
        with pytest.raises(PublicationChanged):
            check.refuse_changed(connection.cursor())
        with pytest.raises(SourceError, match="publishes all tables"):
            check_publication(connection, name)


def _copied_again(pump: RunningPump | Steps) -> list[Any]:
    steps = pump if isinstance(pump, Steps) else pump.steps
    return steps.details(Step.TABLE_COPIED_AGAIN, "table")


_LOST = "UPDATE t SET v = 'lost' WHERE id % 3 = 0"


@pytest.mark.parametrize(
    "change",
    [
        ("ALTER PUBLICATION {} DROP TABLE t", _LOST, "ALTER PUBLICATION {} ADD TABLE t"),
        pytest.param(
            ("ALTER PUBLICATION {} SET TABLE u, t WHERE (id < 0)", _LOST, "ALTER PUBLICATION {} SET TABLE u, t"),
            marks=pytest.mark.further,
        ),
    ],
    ids=["taken out and given back", "filtered for a while"],
)
def test_a_table_that_was_not_published_for_a_while_is_copied_again(two: Mirror, change: tuple[str, ...]) -> None:
    """In one transaction while the pump runs; then in separate transactions while it does not."""
    with two.pumping() as pump:
        _alter(two, *change)
        two.database.execute("UPDATE u SET v = 'kept'", "UPDATE t SET v = 'seen' WHERE id % 5 = 0")
        await_true(lambda: "public.t" in _copied_again(pump), 30, "t is copied again")
        two.await_live("public.t")
        two.await_frontier()
        two.assert_equal("public.t", "public.u")
        assert set(_copied_again(pump)) == {"public.t"}
        assert not _table(two, "public.t").error
    for statement in change:
        _alter(two, statement)
    steps = Steps()
    two.catch_up(steps)
    two.assert_equal("public.t", "public.u")
    assert set(_copied_again(steps)) == {"public.t"}
    # From now on it is known.
    steps = Steps()
    two.database.execute("DELETE FROM t WHERE id = 1")
    two.catch_up(steps)
    assert not _copied_again(steps)
    two.assert_equal("public.t")
    two.assert_sound()


_NOT_WHOLE = ("taken_out", "filtered")
"""Tables that the publication leaves out, or of which it leaves out rows in a way that the stream cannot follow."""


def test_a_table_that_is_not_published_whole_waits_at_its_last_frontier(two: Mirror) -> None:
    names = tuple(f"public.{name}" for name in _NOT_WHOLE)
    for name in _NOT_WHOLE:
        with two.database.session() as connection:
            connection.execute(f"CREATE TABLE {name} (LIKE t INCLUDING ALL)".encode())
            connection.execute(f"INSERT INTO {name} SELECT * FROM t".encode())
    two.register(*_NOT_WHOLE)
    two.catch_up()
    before, heap = two.database.lsn(), two.heap("t")
    with two.pumping() as pump:
        _alter(two, "ALTER PUBLICATION {} DROP TABLE taken_out")
        _alter(two, "ALTER PUBLICATION {} SET TABLE t, u, filtered WHERE (id < 0)")
        for name in _NOT_WHOLE:
            with two.database.session() as connection:
                connection.execute(f"UPDATE {name} SET v = 'lost' WHERE id % 3 = 0".encode())
        two.database.execute("UPDATE u SET v = 'kept'")
        two.await_frontier()
        assert _promised(two, "public.u") > before
        two.assert_equal("public.t", "public.u")
        assert _table(two, "public.u").error is None
        for name in names:
            assert _promised(two, name) <= before, f"the stream lacked changes of {name} from there on"
            assert two.lake(name) == heap, name
            error = _table(two, name).error
            assert error is not None, name
            assert f'ADD TABLE "public"."{name.removeprefix("public.")}"' in error
            with pytest.raises(TableError, match="not published whole"):
                two.register(name)
        reported = pump.steps.details
        await_true(lambda: sorted(reported(Step.TABLE_WAITING, "table")) == sorted(names), 30, "each is reported once")
        # Across a restart, and without a pump in between.
        pump.stop()
    two.catch_up()
    for name in names:
        assert (two.state(name), two.lake(name)) == ("waiting", heap), name
    assert sorted(reported(Step.TABLE_WAITING, "table")) == sorted(names)
    assert not _copied_again(pump)
    with two.pumping():
        _alter(two, "ALTER PUBLICATION {} DROP TABLE filtered")
        _alter(two, "ALTER PUBLICATION {} ADD TABLE taken_out, filtered")
        two.await_live(*names)
        two.await_frontier()
        two.assert_equal("public.t", "public.u", *names)
        assert {_table(two, name).error for name in names} == {None}


_SETTINGS = {
    "operations": (
        "ALTER PUBLICATION {} SET (publish = 'insert')",
        "other settings",
        "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
    ),
    "partition root": (
        "ALTER PUBLICATION {} SET (publish_via_partition_root = false)",
        "other settings",
        "ALTER PUBLICATION {} SET (publish_via_partition_root = true)",
    ),
    # An older server cannot decode what was written while the publication was missing.
    **(
        {
            "renamed": (
                "ALTER PUBLICATION {} RENAME TO elsewhere",
                "does not exist",
                "ALTER PUBLICATION elsewhere RENAME TO {}",
            )
        }
        if major_version() >= 18
        else {}
    ),
}
"""A change of the publication, the error's words, and what mends it."""


def test_a_publication_with_other_settings_stops_the_pump(two: Mirror) -> None:
    """Before anything is promised that the publication may have left out. Once it is repaired, all tables are copied
    again."""
    two.database.execute("CREATE TABLE w (id int PRIMARY KEY)")
    for what, (change, message, mend) in _SETTINGS.items():
        before = two.database.lsn()
        pump = two.start()
        _alter(two, change)
        two.database.execute("UPDATE t SET v = v || 'lost' WHERE id % 3 = 0")
        with pytest.raises(SourceError, match=message) as caught:
            pump.join()
        assert caught.value.remedy, what
        assert max(_promised(two, "public.t"), _promised(two, "public.u")) <= before, what
        error = _status(two).slot.publication_error
        assert error is not None, what
        assert message in error
        with pytest.raises(SourceError, match=message):
            two.register("w")
        _alter(two, mend)
        assert _status(two).slot.publication_error is None, what
        steps = Steps()
        two.catch_up(steps)
        assert set(_copied_again(steps)) == {"public.t", "public.u"}, what
        two.assert_equal("public.t", "public.u")


@pytest.mark.further
def test_settings_that_came_and_went_between_two_looks_are_known_too(two: Mirror) -> None:
    with two.pumping() as pump:
        _alter(
            two,
            "ALTER PUBLICATION {} SET (publish = 'insert')",
            _LOST,
            "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
        )
        await_true(lambda: set(_copied_again(pump)) == {"public.t", "public.u"}, 30, "both are copied again")
        two.await_live("public.t", "public.u")
        two.await_frontier()
        two.assert_equal("public.t", "public.u")


@pytest.mark.further
def test_settings_that_change_while_tables_are_made_to_wait_are_not_taken_for_known(two: Mirror) -> None:
    _alter(two, "ALTER PUBLICATION {} DROP TABLE t, u", "ALTER PUBLICATION {} ADD TABLE t, u")
    steps = Steps()

    def alter_once(step: Step, _: dict[str, object]) -> None:
        if step is Step.STAGED and steps.count(Step.STAGED) == 1:
            _alter(two, "ALTER PUBLICATION {} SET (publish = 'insert')")

    steps.on = alter_once
    with pytest.raises(SourceError, match="other settings"):
        two.catch_up(steps)
    _alter(two, "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')")
    two.catch_up()
    two.assert_equal("public.t", "public.u")


@pytest.mark.further
@pytest.mark.skipif(major_version() < 18, reason="the server cannot decode what was written meanwhile")
def test_a_publication_that_is_dropped_stops_the_pump_and_init_makes_it_again(two: Mirror) -> None:
    before = two.database.lsn()
    pump = two.start()
    _alter(two, "DROP PUBLICATION {}")
    two.database.execute(_LOST)
    with pytest.raises(SourceError, match="does not exist") as caught:
        pump.join()
    assert "mirror-pump init" in caught.value.remedy
    assert two.frontier() <= before or _promised(two, "public.t") <= before
    with pytest.raises(SourceError, match="does not exist"):
        two.catch_up()
    lines: list[str] = []
    initialise(two.settings, lines.append)
    assert any("2 tables" in line for line in lines), lines
    two.catch_up()
    two.assert_equal("public.t", "public.u")
    two.assert_sound()


@pytest.mark.further
def test_what_the_mirror_does_to_its_publication_is_no_surprise_to_it(two: Mirror) -> None:
    """Tables that are registered, unregistered, or fail; and changes that concern no table."""
    two.database.execute(
        "CREATE TABLE w (id int PRIMARY KEY)", "CREATE TABLE x (id int PRIMARY KEY)", "CREATE TABLE y (id int)"
    )
    with two.pumping() as pump:
        _alter(two, "ALTER PUBLICATION {} ADD TABLE y")
        _alter(two, "ALTER PUBLICATION {} ADD TABLES IN SCHEMA public")
        two.register("w")
        two.await_live("public.w")
        two.unregister("w")
        two.register("w", "x")
        two.await_live("public.w", "public.x")
        two.database.execute('ALTER TABLE x ADD COLUMN "ID" int', "INSERT INTO w VALUES (1)")
        await_true(lambda: two.state("public.x") == "failed", 30, "x fails")
        two.database.execute("DROP TABLE w", "UPDATE t SET v = 'later'")
        await_true(lambda: two.state("public.w") == "dropped", 30, "w is dropped")
        assert "dropped" in two.error("public.w")
        two.await_frontier()
        two.assert_equal("public.t", "public.u")
        assert pump.steps.count(Step.RETRYING) == 0, pump.steps.details(Step.RETRYING, "error")
        assert not _copied_again(pump)
