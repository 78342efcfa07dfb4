"""Settings of roles and databases that would change what our statements mean: set by each session, or refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from mirror_pump.database.session_settings import REQUIRED_SETTINGS, SettingForced, open_session
from mirror_pump.errors import SourceError
from mirror_pump.source.connect import PINNED_SETTINGS, connect, replication_connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified

_ROOT = Path(__file__).parents[3]
_PAGES = (_ROOT / "docs" / "session-settings.md", _ROOT / "tests" / "support" / "other_session_settings.md")
_SET, _REQUIRED, _LEFT = "Set by each session", "Set, or refused", "Left as they are"

_HOSTILE = {
    "search_path": "pg_temp, public",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kolkata",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "lc_monetary": "C.UTF-8",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "xmloption": "document",
    "gin_fuzzy_search_limit": "1",
    "exit_on_error": "on",
    "plpgsql.extra_errors": "all",
    "default_table_access_method": "no_such_method",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "row_security": "on",
    "jit": "on",
    "synchronous_commit": "off",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "1ms",
    "tcp_keepalives_idle": "1",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "1",
    "session_replication_role": "replica",
    "event_triggers": "off",
    "zero_damaged_pages": "on",
    "ignore_checksum_failure": "on",
    "track_activities": "off",
    "restrict_nonsystem_relation_kind": "view, foreign-table",
    # Not so short that the session is over before it can look.
    "transaction_timeout": "10s",
}


def _names(heading: str) -> list[str]:
    """The settings that the tables of this chapter name in their first column, on both pages."""
    chapters = [chapter for page in _PAGES for chapter in re.split("^## ", page.read_text(), flags=re.MULTILINE)]
    lines = [line for chapter in chapters if chapter.startswith(f"{heading}\n") for line in chapter.splitlines()]
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return [name for row in rows for name in re.findall("`([^`]+)`", row)]


def test_each_setting_is_in_one_list(database: Database) -> None:
    """If this fails with a new version of PostgreSQL: decide what the setting is to the mirror. If it changes what a
    statement means, it belongs into PINNED_SETTINGS or REQUIRED_SETTINGS; otherwise say why not."""
    of_session, required, left = (_names(heading) for heading in (_SET, _REQUIRED, _LEFT))
    assert set(of_session) == {*PINNED_SETTINGS, "client_encoding", "application_name", "tcp_user_timeout"}
    assert set(required) == set(REQUIRED_SETTINGS)
    with database.session() as connection:
        # It brings settings of its own.
        connection.execute("DO 'BEGIN END'")
        settable = connection.execute(
            "SELECT name FROM pg_settings WHERE context NOT IN ('internal', 'postmaster', 'sighup')"
            " AND (name !~ '[.]' OR name LIKE 'plpgsql.%')"
        ).fetchall()
    assert len(settable) > 100
    exact = {*of_session, *required}
    lists = {
        name: (name in exact) + (name not in exact and any(fnmatchcase(name, pattern) for pattern in left))
        for (name,) in settable
    }
    assert {name for name, count in lists.items() if count != 1} == set()
    assert exact.isdisjoint(left)


def test_hostile_values_cover_the_lists() -> None:
    assert set(_HOSTILE) == {*PINNED_SETTINGS, *REQUIRED_SETTINGS}


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role that may log in with a password and stream, and nothing else."""
    name = f"odd_{os.urandom(4).hex()}"
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD 'p'").format(sql.Identifier(name)))
        yield name
        connection.execute(
            sql.SQL("REASSIGN OWNED BY {0} TO CURRENT_USER; DROP OWNED BY {0}; DROP ROLE {0}").format(
                sql.Identifier(name)
            )
        )


def _alter(database: Database, statement: str, name: str, value: str) -> None:
    # search_path is a list; of others a value is one text.
    texts = value.split(", ") if name == "search_path" else [value]
    assignment = sql.SQL(" SET {} = ").format(sql.Identifier(*name.split(".")))
    with database.session() as connection:
        connection.execute(sql.SQL(statement) + assignment + sql.SQL(", ").join(map(sql.Literal, texts)))


def _dsn(database: Database, role: str) -> str:
    return make_conninfo(database.dsn, user=role, password="p")


def test_hostile_settings_change_nothing(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, role: str
) -> None:
    """Of the role, and of the role in this database, which counts for more than the database's. `unregister` leaves
    nothing, as cascades of foreign keys take care of."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz, m money, f float8)",
        "INSERT INTO t VALUES (1, E'a\\\\b', '2020-03-04 05:06:07+02', 1.5, 1e-7)",
    )
    before = _rows_of_tables(database)
    with database.session() as connection:
        known = {name for (name,) in connection.execute("SELECT name FROM pg_settings").fetchall()}
        connection.execute(sql.SQL("ALTER ROLE {} SUPERUSER").format(sql.Identifier(role)))
    for number, (name, value) in enumerate(_HOSTILE.items()):
        if name in known or "." in name:
            place = f' IN DATABASE "{database.name}"' if number % 2 else ""
            _alter(database, f"ALTER ROLE {role}{place}", name, value)
    # Of the limits the test's own session is free: it may take its time between two statements.
    unlimited = "-c statement_timeout=0 -c idle_session_timeout=0 -c idle_in_transaction_session_timeout=0"
    with psycopg.connect(_dsn(database, role), options=unlimited, autocommit=True) as connection:
        assert connection.execute("SHOW session_replication_role").fetchone() == ("replica",)
    mirror = Mirror.create(database, warehouse, tasks, dsn=_dsn(database, role))
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute("INSERT INTO t SELECT id + 1, v, at, m, f FROM t", "UPDATE t SET v = 'c' WHERE id = 1")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert assert_verified(Database(database.server, database.name)) == 1
    mirror.unregister("t", drop_lake=True)
    assert _rows_of_tables(database) == before


def _rows_of_tables(database: Database) -> dict[str, int]:
    """The number of rows of each table of the catalog that has a row for each registered table."""
    tables = [
        name
        for (name,) in database.rows(
            "SELECT DISTINCT attrelid::regclass::text FROM pg_attribute JOIN pg_class c ON c.oid = attrelid"
            " WHERE attname = 'table_id' AND relkind = 'r' AND relnamespace = 'modak'::regnamespace"
            " AND relname <> 'former_locations'"
        )
    ]
    assert len(tables) > 10
    with database.session() as connection:
        return {
            name: connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.SQL(name))).fetchall()[0][0]
            for name in tables
        }


_PLACES = ("ALTER ROLE {role}", 'ALTER DATABASE "{database}"', 'ALTER ROLE {role} IN DATABASE "{database}"')


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("name", ["session_replication_role", "zero_damaged_pages"])
def test_a_role_that_may_not_change_it_is_refused(database: Database, role: str, place: str, name: str) -> None:
    """With the statement that takes the value away, which works when it is pasted."""
    statement = place.format(role=role, database=database.name)
    _alter(database, statement, name, _HOSTILE[name])
    for attempt in (connect, replication_connect):
        with pytest.raises(SourceError, match=f"{name} = {_HOSTILE[name]}") as failure:
            attempt(_dsn(database, role))
    assert failure.value.remedy.startswith("as a superuser: ALTER ")
    with database.session() as connection:
        connection.execute(failure.value.remedy.removeprefix("as a superuser: ").encode())
    connect(_dsn(database, role), autocommit=True).close()


def test_a_value_of_the_connection_string_is_named(database: Database) -> None:
    """A superuser may change it, so that it does not count."""
    dsn = make_conninfo(database.dsn, options="-c session_replication_role=replica")
    with connect(dsn, autocommit=True) as connection:
        assert connection.execute("SHOW session_replication_role").fetchone() == ("origin",)


def test_a_session_of_a_catalog_is_refused_too(database: Database, role: str) -> None:
    _alter(database, f"ALTER ROLE {role}", "session_replication_role", "replica")
    with pytest.raises(SettingForced, match="session_replication_role"):
        open_session(_dsn(database, role), autocommit=True)
