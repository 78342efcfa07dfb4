"""What other engines do to the rows of a mirrored table is noticed and undone; what they rewrite stays."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import LiteralString

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from mirror_pump.lake.document.next_metadata import with_main
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, PointerChange, TableMoved
from mirror_pump.tables.table.table import Table as LakeTable
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.foreign_writes import ForeignCatalog, owner_table, without_triggers
from tests.support.killed_pump import die


def mirror_of(database: Database, warehouse: str, *names: str, format_version: int | None = None) -> Mirror:
    """Tables with several snapshots each, mirrored by pumps without Spark."""
    for name in names:
        with database.session() as connection:
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)".encode())
            connection.execute(f"INSERT INTO {name} SELECT g, g FROM generate_series(1, 100) g".encode())
    limits = QUICK.model_copy(update={"lake_watch_interval": 0.2})
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), limits=limits)
    mirror.register(*names, format_version=format_version)
    with mirror.pumping():
        mirror.await_live(*map(public, names))
        execute(mirror, names, "UPDATE {} SET v = 'updated' WHERE id <= 5", "DELETE FROM {} WHERE id BETWEEN 6 AND 10")
        mirror.await_frontier()
    return mirror


@pytest.fixture
def two(database: Database, warehouse: str) -> Mirror:
    """Tables a and b."""
    return mirror_of(database, warehouse, "a", "b")


@pytest.fixture
def two_of_version_2(database: Database, warehouse: str) -> Mirror:
    """As `two`, of the version of which pyiceberg writes metadata."""
    return mirror_of(database, warehouse, "a", "b", format_version=2)


def public(name: str) -> str:
    """The table as the mirror names it."""
    return f"public.{name}"


def execute(mirror: Mirror, tables: Collection[str], *statements: LiteralString) -> None:
    """Runs the statements on each of the tables."""
    with mirror.database.session() as connection:
        for name in tables:
            for statement in statements:
                connection.execute(statement.format(name).encode())


def _rows(table: Table, *rows: tuple[int, str]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "v": text} for key, text in rows], schema=table.schema().as_arrow())


def _writer(table: Table) -> Table | LakeTable:
    """pyiceberg, or this project's library where pyiceberg does not write files of the version."""
    if table.metadata.format_version < 3:
        return table
    return LakeTable.open(ForeignCatalog(table.catalog.properties["dsn"]), ".".join(table.name()))


def _append(table: Table) -> None:
    _writer(table).append(_rows(table, (7000, "foreign")))
    table.refresh()


def _delete(table: Table) -> None:
    _writer(table).delete("id > 90")


def _overwrite(table: Table) -> None:
    rows, writer = _rows(table, (1, "foreign"), (2, "foreign")), _writer(table)
    if isinstance(writer, Table):
        writer.overwrite(rows)
    else:
        writer.delete("id >= 0")
        writer.append(rows)


def _set_snapshot(table: Table, snapshot_id: int) -> None:
    """Makes another snapshot the current one."""
    writer = _writer(table)
    if isinstance(writer, Table):
        writer.manage_snapshots().set_current_snapshot(snapshot_id).commit()
    else:
        location, metadata = writer.metadata_location, writer.metadata
        snapshot = metadata.snapshot(snapshot_id)
        assert snapshot is not None
        after = with_main(metadata, snapshot, (), location, metadata.last_updated_ms + 1)
        catalog = ForeignCatalog(table.catalog.properties["dsn"])
        catalog.commit([PointerChange(writer.identifier, MetadataPointer(location), after)])


def _roll_back(table: Table) -> None:
    former = table.metadata.snapshot_by_id(table.current_snapshot().snapshot_id).parent_snapshot_id  # type: ignore[union-attr]
    assert former is not None
    _set_snapshot(table, former)


def _append_and_take_back(table: Table) -> None:
    own = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    _append(table)
    # The pump may have undone it before.
    with suppress(CommitFailedException, TableMoved):
        _set_snapshot(table, own)


CHANGES: dict[str, Callable[[Table], None]] = {
    "appended": _append,
    "deleted": _delete,
    "overwritten": _overwrite,
    "rolled_back": _roll_back,
    "taken_back": _append_and_take_back,
}
"""What another engine does, by the name of the table that it does it to."""
TABLES = (*CHANGES, "b")


def change_each(mirror: Mirror) -> None:
    for name, change in CHANGES.items():
        with owner_table(mirror, name) as table:
            change(table)


def undone(steps: Steps) -> list[str]:
    """The tables whose foreign commits were undone, in order of their names."""
    return sorted(steps.details(Step.FOREIGN_COMMIT_UNDONE, "table"))


def assert_undone(mirror: Mirror, steps: Steps, *tables: str) -> None:
    """Waits until each table's foreign commit is undone, and fails unless all tables are live and right."""
    everything = [*tables, "b"]
    await_true(lambda: undone(steps) == sorted(map(public, tables)), 20, f"foreign commits of {tables} are undone")
    mirror.assert_equal(*map(public, everything))
    assert {mirror.state(public(name)) for name in everything} == {"live"}


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.further), 3])
def test_a_change_of_an_idle_tables_rows_is_undone_within_seconds(
    database: Database, warehouse: str, format_version: int
) -> None:
    mirror = mirror_of(database, warehouse, *TABLES, format_version=format_version)
    with mirror.pumping() as pump:
        mirror.await_frontier()
        change_each(mirror)
        assert_undone(mirror, pump.steps, *CHANGES)
        for name in CHANGES:
            with owner_table(mirror, name) as table:
                # A snapshot that is gone is not chosen by readers that look for the newest one.
                newest = max(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
                assert newest == table.current_snapshot(), name
        execute(mirror, CHANGES, "UPDATE {} SET v = 'later' WHERE id % 3 = 0")
        database.execute("DELETE FROM b WHERE id % 3 = 0")
        mirror.await_frontier()
        mirror.assert_equal(*map(public, TABLES))
    mirror.assert_sound()


@pytest.mark.parametrize("format_version", [2, pytest.param(3, marks=pytest.mark.further)])
def test_the_pump_does_not_build_on_a_change_of_rows(database: Database, warehouse: str, format_version: int) -> None:
    """The next batch meets the foreign commit before the watch does."""
    mirror = mirror_of(database, warehouse, *TABLES, format_version=format_version)
    change_each(mirror)
    execute(mirror, CHANGES, "UPDATE {} SET v = v || '!' WHERE id > 50", "INSERT INTO {} VALUES (500, 'new')")
    steps = Steps()
    mirror.catch_up(steps)
    assert undone(steps) == sorted(map(public, CHANGES))
    mirror.assert_equal(*map(public, TABLES))
    mirror.assert_sound()


@pytest.mark.further
def test_a_change_while_no_pump_runs_is_shown_and_undone_by_the_next_one(database: Database, warehouse: str) -> None:
    names = ("appended", "rolled_back")
    mirror = mirror_of(database, warehouse, *names, "b")
    for name in names:
        with owner_table(mirror, name) as table:
            CHANGES[name](table)
    for name in names:
        (alert,) = _alerts(mirror, name)
        assert "another engine changed rows" in alert, name
    assert _alerts(mirror, "b") == []
    with mirror.pumping() as pump:
        assert_undone(mirror, pump.steps, *names)
        assert [alert for name in names for alert in _alerts(mirror, name)] == []


@pytest.mark.further
@pytest.mark.parametrize("step", [Step.FOREIGN_COMMIT_UNDONE, Step.STAGED])
def test_a_pump_that_is_killed_while_it_undoes_a_change(two: Mirror, step: Step) -> None:
    """Right after the pointer moved back, and before the batch that met the foreign commit is published."""
    with owner_table(two) as table:
        _append(table)
    two.database.execute("INSERT INTO a VALUES (500, 'new')", "DELETE FROM a WHERE id = 50")
    die(two, step, 1)
    two.catch_up()
    two.assert_equal("public.a", "public.b")
    two.assert_sound()


@pytest.mark.further
def test_what_keeps_rows_stays(two_of_version_2: Mirror) -> None:
    """A tag, a branch with other rows, and a property."""
    two = two_of_version_2
    with two.pumping() as pump, owner_table(two) as table:
        two.await_frontier()
        own = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
        table.manage_snapshots().create_tag(own, "kept").create_branch(own, "work").commit()
        table.append(_rows(table, (7000, "foreign")), branch="work")
        with table.transaction() as transaction:
            transaction.set_properties({"owner": "somebody"})
        await_true(lambda: not _moved(two), 20, "the pump has looked")
        two.database.execute("INSERT INTO a VALUES (500, 'new')")
        two.await_frontier()
        assert pump.steps.count(Step.FOREIGN_COMMIT_UNDONE) == 0
        _append(table.refresh())
        assert_undone(two, pump.steps, "a")
        assert {"kept", "work"} < set(table.refresh().metadata.refs)
        assert table.properties["owner"] == "somebody"
        work = table.snapshot_by_id(table.metadata.refs["work"].snapshot_id)
        assert work is not None
        assert work.parent_snapshot_id == own
    two.assert_sound()


@pytest.mark.further
def test_a_snapshot_of_ours_that_is_gone_fails_the_table_alone(two_of_version_2: Mirror) -> None:
    two = two_of_version_2
    with two.pumping() as pump, owner_table(two) as table:
        two.await_frontier()
        own = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
        pump.stop()
        _append(table)
        table.refresh().maintenance.expire_snapshots().by_id(own).commit()
        with two.pumping():
            await_true(lambda: two.state("public.a") == "failed", 20, "the table fails")
            assert "removed snapshot" in two.error("public.a")
            assert "unregister and register" in two.error("public.a")
            two.database.execute("INSERT INTO a VALUES (500, 'new')", "INSERT INTO b VALUES (500, 'new')")
            two.await_frontier()
            two.assert_equal("public.b")
            two.unregister("a")
            two.register("a")
            two.await_live("public.a")
            two.assert_equal("public.a", "public.b")


REFUSED: tuple[LiteralString, ...] = (
    "DELETE FROM iceberg_tables WHERE catalog_name = 'lake' AND table_name = 'a'",
    "UPDATE iceberg_tables SET table_name = 'other' WHERE catalog_name = 'lake' AND table_name = 'a'",
    "UPDATE iceberg_tables SET table_namespace = 'other' WHERE catalog_name = 'lake' AND table_name = 'a'",
)


def test_dropping_and_renaming_are_refused(two: Mirror) -> None:
    """By SQL, and by an engine, which is told."""
    refusal = r"lake table public\.a mirrors a table"
    for statement in REFUSED:
        with two.database.connect() as connection:
            connection.execute("SET search_path = modak")
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=refusal):
                connection.execute(statement)
    with owner_table(two) as table:
        catalog = table.catalog
        with pytest.raises(Exception, match="mirrors a table of Postgres: no engine may drop it"):
            catalog.drop_table(table.name())
        with pytest.raises(Exception, match="no engine may rename it"):
            catalog.rename_table(table.name(), ("public", "other"))
    two.catch_up()
    two.assert_equal("public.a", "public.b")


@pytest.mark.further
def test_an_idle_table_whose_entry_goes_all_the_same_fails(database: Database, warehouse: str) -> None:
    two = mirror_of(database, warehouse, "dropped", "renamed")
    tables = ("public.dropped", "public.renamed")
    with two.pumping():
        two.await_frontier()
        without_triggers(
            database,
            "DELETE FROM modak.iceberg_tables WHERE table_name = 'dropped'",
            "UPDATE modak.iceberg_tables SET table_name = 'other' WHERE table_name = 'renamed'",
        )
        await_true(lambda: {two.state(table) for table in tables} == {"failed"}, 20, "both tables fail")
        for table in tables:
            assert "another engine dropped or renamed it" in two.error(table)
    for name in ("dropped", "renamed"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="no engine may create it"):
            database.rows(
                "INSERT INTO modak.iceberg_tables (catalog_name, table_namespace, table_name)"
                " VALUES ('lake', 'public', %s)",
                (name,),
            )
        two.unregister(name)
        two.register(name)
    two.catch_up()
    two.assert_equal(*tables)


def _moved(mirror: Mirror) -> bool:
    query = (
        "SELECT FROM modak.mirror_tables m JOIN modak.lake_pointers i USING (table_id)"
        " WHERE i.metadata_location <> m.lake_head ->> 'location'"
    )
    return bool(mirror.database.rows(query))


def _alerts(mirror: Mirror, name: str) -> list[str]:
    """The texts of alerts of a table."""
    with StatusReader(mirror.settings) as reader:
        return [alert.message for alert in reader.read().alerts if alert.table == public(name)]
