"""Migrations run once, in order, and leave alone databases that they do not understand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import sql
from mirror_pump.errors import SourceError
from mirror_pump.source.catalog import catalog_schema
from mirror_pump.source.catalog.catalog_schema import (
    MigrationResult,
    installed_version,
    latest_version,
    migrate,
    require_current,
)
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true

# Everything that a schema consists of, one line each, without OIDs.
_CATALOG = """
SELECT 'relation ' || relname || ' ' || relkind::text || coalesce(' # ' || obj_description(oid, 'pg_class'), '')
       || coalesce(' ' || array_to_string(reloptions, ','), '')
  FROM pg_class WHERE relnamespace = 'modak'::regnamespace AND relkind <> 't'
UNION ALL
SELECT format('column %s.%s #%s %s%s%s%s default %s', c.relname, a.attname, a.attnum,
              format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN ' not null' END, a.attidentity,
              a.attgenerated, pg_get_expr(d.adbin, d.adrelid))
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relnamespace = 'modak'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'v', 'p')
UNION ALL
SELECT format('constraint %s.%s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
  FROM pg_constraint WHERE connamespace = 'modak'::regnamespace
UNION ALL
SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'modak'
UNION ALL
SELECT format('view %s %s', viewname, definition) FROM pg_views WHERE schemaname = 'modak'
UNION ALL
SELECT format('function %s %s', oid::regprocedure, pg_get_functiondef(oid))
  FROM pg_proc WHERE pronamespace = 'modak'::regnamespace
UNION ALL
SELECT format('trigger %s', pg_get_triggerdef(t.oid)) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
 WHERE c.relnamespace = 'modak'::regnamespace AND NOT t.tgisinternal
UNION ALL
SELECT format('sequence %s %s %s %s', sequencename, data_type, start_value, increment_by)
  FROM pg_sequences WHERE schemaname = 'modak'
ORDER BY 1
"""


def _migrate(database: Database) -> tuple[str, ...]:
    with database.connect() as connection:
        return migrate(connection).applied


_LATER = sql.Migration(len(sql.migrations()) + 1, "later", "CREATE TABLE modak.later (a int); DROP VIEW modak.status;")
_LATER_NAME = f"{_LATER.version:04d}_later"


def test_every_function_fits_the_tables_and_the_other_functions(database: Database) -> None:
    """They are applied unchecked, since files refer to each other in any order. Here the server checks each body."""
    _migrate(database)
    catalog = database.rows(_CATALOG)
    with database.connect() as connection:
        assert connection.execute("SHOW check_function_bodies").fetchone() == ("on",)
        for file in sql.functions():
            connection.execute(file.text.encode())
    assert database.rows(_CATALOG) == catalog


def test_a_second_run_does_nothing(database: Database) -> None:
    with database.connect() as connection:
        first = migrate(connection)
        assert (first.before, first.after) == (0, latest_version())
        assert first.applied == tuple(f"{step.version:04d}_{step.name}" for step in sql.migrations())
        assert first.functions == tuple(file.name for file in sql.functions())
        catalog = database.rows(_CATALOG)
        with connection.transaction():
            second = migrate(connection)
            locks = connection.execute(
                "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype IN ('relation', 'object')"
            ).fetchall()
        assert second == MigrationResult(latest_version(), latest_version(), (), ())
        assert locks == [("AccessShareLock",)]
        require_current(connection)
    assert database.rows(_CATALOG) == catalog


def test_a_later_program_goes_on_where_an_earlier_one_stopped(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _migrate(database)
    database.execute("UPDATE modak.storage_profiles SET warehouse = 'file:///kept'")
    former = database.rows(_CATALOG)
    steps = (*sql.migrations(), _LATER)
    monkeypatch.setattr(sql, "migrations", lambda: steps)
    with database.connect() as connection, pytest.raises(SourceError) as caught:
        require_current(connection)
    assert "mirror-pump init" in caught.value.remedy
    assert _migrate(database) == (_LATER_NAME,)
    assert database.rows("SELECT warehouse FROM modak.storage_profiles") == [("file:///kept",)]
    # The view that the migration dropped exists again, although its file has not changed.
    assert set(database.rows(_CATALOG)) - set(former) == {
        ("column later.a #1 integer default ",),
        ("relation later r",),
    }
    assert set(former) <= set(database.rows(_CATALOG))


def test_a_failing_migration_leaves_nothing_behind(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = sql.Migration(len(sql.migrations()) + 1, "broken", "CREATE TABLE modak.half (a int); SELECT 1/0;")
    steps = (*sql.migrations(), broken)
    monkeypatch.setattr(sql, "migrations", lambda: steps)
    with pytest.raises(psycopg.errors.DivisionByZero):
        _migrate(database)
    assert database.rows("SELECT to_regnamespace('modak')::text") == [(None,)]


@pytest.mark.parametrize(
    "newer",
    [
        "INSERT INTO modak.mirror_migrations (version, name) VALUES (9999, 'future')",
        "UPDATE modak.schema_meta SET version = 2",
    ],
)
def test_a_newer_database_is_refused(database: Database, newer: str) -> None:
    _migrate(database)
    with database.connect() as connection:
        connection.execute(newer.encode())
        for refuses in (migrate, require_current, installed_version):
            with pytest.raises(SourceError, match="this mirror-pump knows") as caught:
                refuses(connection)
            assert "later" in caught.value.remedy


def test_somebody_elses_catalog_is_refused(database: Database) -> None:
    database.execute("CREATE SCHEMA modak", "CREATE TABLE modak.schema_meta (version int)")
    with database.connect() as connection, pytest.raises(SourceError, match="another program"):
        migrate(connection)


def test_a_database_without_a_catalog_says_what_to_run(database: Database) -> None:
    with database.connect() as connection:
        assert installed_version(connection) is None
        with pytest.raises(SourceError, match="no mirror catalog") as caught:
            require_current(connection)
    assert caught.value.remedy == "run: mirror-pump init"


def test_two_programs_at_once_migrate_once(database: Database) -> None:
    applied: list[MigrationResult] = []
    start = threading.Barrier(4)

    def run() -> None:
        with database.connect() as connection:
            start.wait(60)
            applied.append(migrate(connection))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(len(result.applied) for result in applied) == [0, 0, 0, len(sql.migrations())]
    assert sorted(len(result.functions) for result in applied) == [0, 0, 0, len(sql.functions())]


_LOCKING = sql.Migration(len(sql.migrations()) + 1, "locking", "ALTER TABLE modak.cutline RENAME TO cut;")
_WAITS = (
    "SELECT FROM pg_locks WHERE relation = 'modak.cutline'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted"
)


@pytest.fixture
def locking(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A reader in an open transaction, which a migration waits for."""
    _migrate(database)
    steps = (*sql.migrations(), _LOCKING)
    monkeypatch.setattr(sql, "migrations", lambda: steps)
    # The functions are those of the tables before.
    monkeypatch.setattr(catalog_schema, "apply_functions", lambda *_, **__: ())
    with psycopg.connect(database.dsn, application_name="a report") as reader:
        reader.execute("SELECT FROM modak.cutline")
        yield reader


def test_nobody_waits_for_a_migration_that_waits_for_a_reader(database: Database, locking: psycopg.Connection) -> None:
    with ThreadPoolExecutor() as pool:
        migration = pool.submit(_migrate, database)
        try:
            await_true(lambda: database.rows(_WAITS), 60, "the migration waits for the reader")
            with psycopg.connect(database.dsn, options="-c lock_timeout=30s") as other:
                other.execute("SELECT FROM modak.cutline")
            assert not migration.done()
        finally:
            locking.rollback()
        assert migration.result(60) == (f"{_LOCKING.version:04d}_locking",)


def test_a_migration_that_waited_in_vain_names_who_it_waited_for(
    database: Database, locking: psycopg.Connection
) -> None:
    with database.connect() as connection:
        with pytest.raises(SourceError) as caught:
            migrate(connection, patience=0)
        assert f"modak.cutline is locked by process {locking.info.backend_pid} of role postgres (a report" in str(
            caught.value
        )
        assert f"SELECT pg_terminate_backend({locking.info.backend_pid})" in caught.value.remedy
        locking.rollback()
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '7s'")
            assert migrate(connection).applied == (f"{_LOCKING.version:04d}_locking",)
            assert connection.execute("SHOW lock_timeout").fetchone() == ("7s",)


def test_a_role_without_rights_learns_which_it_needs(database: Database) -> None:
    role = f"r_{database.name}"
    with database.connect() as connection:
        connection.execute(f'CREATE ROLE "{role}"'.encode())
        try:
            connection.execute(f'SET ROLE "{role}"'.encode())
            with pytest.raises(SourceError, match="may not use or create schema modak") as caught:
                migrate(connection)
            assert "CREATE SCHEMA modak AUTHORIZATION" in caught.value.remedy
            # With a schema of its own, the role needs no privilege on the database.
            connection.execute("RESET ROLE")
            connection.execute(f'CREATE SCHEMA modak AUTHORIZATION "{role}"'.encode())
            connection.execute(f'SET ROLE "{role}"'.encode())
            assert migrate(connection).after == latest_version()
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f'DROP OWNED BY "{role}"'.encode())
            connection.execute(f'DROP ROLE "{role}"'.encode())
