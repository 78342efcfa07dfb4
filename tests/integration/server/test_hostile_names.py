"""Who may create objects in a schema of the search_path gets nothing by it: no statement of ours ever finds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from mirror_pump.model import TableMode
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import Settings
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, audit, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.hostile_names import HostileNames
from tests.support.maintenance import Maintained
from tests.support.retention_table import at_once
from tests.support.roles import roles_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.empty_database

_SUPPORT = Path(__file__).parents[2] / "support"
_PASSWORD = "a role's password"
_TABLES = (_SUPPORT / "hostile_tables.sql").read_text()
_EVENT_TRIGGER = """
CREATE FUNCTION app.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM format('%s %s', tg_tag, tg_event), count(*) FROM pg_event_trigger_ddl_commands(); END $$;
CREATE EVENT TRIGGER users_own ON ddl_command_end EXECUTE FUNCTION app.on_ddl();
"""

AsRole = Callable[..., str]


@pytest.fixture
def mallory(database: Database) -> Iterator[str]:
    """A role that may create objects in the schemas of others' paths, and nothing else."""
    name = f"mallory_{os.urandom(4).hex()}"
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        connection.execute(
            sql.SQL("ALTER ROLE {0} NOSUPERUSER; DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(sql.Identifier(name))
        )


@pytest.fixture
def boss(database: Database) -> Iterator[str]:
    """A superuser."""
    name = f"boss_{os.urandom(4).hex()}"
    with database.connect() as connection:
        role = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(role, sql.Literal(_PASSWORD)))
        yield name
        connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (name,))
        connection.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(role))


@pytest.fixture
def command(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> AsRole:
    """Runs the program with a DSN. Fails unless it ends with one of `codes`. Returns its output."""

    def invoke(dsn: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        monkeypatch.setenv("MIRROR_PUMP_DSN", dsn)
        result = run(*arguments)
        assert result.exit_code in codes, f"{arguments} ended with {result.exit_code}:\n{result.output}"
        return result.stdout

    return invoke


def test_a_function_in_public_gives_nobody_a_superusers_rights(
    database: Database, mallory: str, boss: str, command: AsRole, warehouse: str, slot: str
) -> None:
    """An exact match of the parameters is found although pg_catalog comes first."""
    dsn = make_conninfo(database.dsn, user=boss, password=_PASSWORD)
    with database.connect() as connection:
        connection.execute(
            sql.SQL("GRANT CREATE ON SCHEMA public TO {0}; SET ROLE {0}").format(sql.Identifier(mallory))
        )
        for view in ("pg_replication_slots", "pg_stat_replication", "pg_class"):
            connection.execute(
                sql.SQL(
                    "CREATE FUNCTION public.to_jsonb(pg_catalog.{}) RETURNS jsonb LANGUAGE plpgsql AS"
                    " $$ BEGIN EXECUTE 'ALTER ROLE {} SUPERUSER'; RETURN pg_catalog.to_jsonb($1::record); END $$"
                ).format(sql.Identifier(view), sql.Identifier(mallory))
            )
    command(dsn, "init", "--warehouse", warehouse, "--slot", slot, "--publication", slot)
    command(dsn, "status")
    assert database.rows("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (mallory,)) == [(False,)]


@pytest.mark.further
def test_nothing_of_others_is_called_as_a_superuser(
    database: Database,
    mallory: str,
    boss: str,
    command: AsRole,
    warehouse: str,
    slot: str,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    with database.connect() as connection:
        connection.execute(_TABLES.encode())
        connection.execute(
            sql.SQL('ALTER ROLE {} IN DATABASE {} SET search_path = "$user", public, pg_catalog, app').format(
                sql.Identifier(boss), sql.Identifier(database.name)
            )
        )
    hostile = HostileNames(database, mallory, [boss, "public"])
    database.reconnect()
    with database.connect() as connection:
        connection.execute(_EVENT_TRIGGER.encode())
    hostile.await_sessions_of(boss)
    assert _bait(make_conninfo(database.dsn, user=boss, password=_PASSWORD), hostile)
    dsn = make_conninfo(database.dsn, user=boss, password=_PASSWORD)
    command(dsn, "init", "--warehouse", warehouse, "--slot", slot, "--publication", slot)
    mirror = Mirror(database, complete(_settings(dsn)), ThreadTaskRunner())
    audit(database)
    _life(mirror, dsn, dsn, command, tmp_path, spark)
    assert hostile.calls() == []
    assert not hostile.is_superuser()


def test_nothing_of_others_is_called_by_the_pump(
    database: Database, mallory: str, command: AsRole, warehouse: str, slot: str, tmp_path: Path
) -> None:
    """With the roles of sql/roles.sql, and a path from the connection string."""
    with roles_of(database) as roles:
        with database.connect() as connection:
            connection.execute(_TABLES.encode())
        roles.grant(roles.master)
        roles.as_superuser("GRANT USAGE ON SCHEMA app TO {app}, {admin}, {pump}; GRANT {app} TO {admin}, {pump}")
        roles.as_superuser("GRANT CREATE ON SCHEMA app TO {app}")
        for table in ("notes", "events", "p0", "p1", "tiered", "t0", "t1"):
            roles.as_superuser(f"ALTER TABLE app.{table} OWNER TO {{app}}")
        path = "options='-c search_path=\"$user\",public,pg_catalog,app'"
        admin, pump = (f"{roles.dsn(role)} {path}" for role in (roles.admin, roles.pump))
        command(admin, "init", "--warehouse", warehouse, "--slot", slot, "--publication", slot)
        roles.grant(roles.admin)
        hostile = HostileNames(database, mallory, [roles.pump, "public"])
        database.reconnect()
        hostile.await_sessions_of(roles.admin, roles.pump)
        assert _bait(pump, hostile)
        # The scripts, in a session of psql that has the path.
        roles.as_superuser(
            f'ALTER ROLE {{admin}} IN DATABASE "{database.name}" SET search_path = "$user", public, pg_catalog'
        )
        roles.grant(roles.admin)
        command(admin, "init")
        mirror = Mirror(database, complete(_settings(pump)), ThreadTaskRunner())
        _life(mirror, admin, pump, command, tmp_path, None)
        done = roles.psql(roles.admin, "uninstall.sql")
        assert done.returncode == 0, done.stderr
        assert hostile.calls() == []
        roles.as_superuser("DROP SCHEMA app CASCADE")


def _bait(dsn: str, hostile: HostileNames) -> bool:
    """Whether a session with the role's own path falls for it. Forgets that."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT relname::text FROM pg_class LIMIT 1")
    counts = hostile.counts()
    assert min(counts.values()) > 20, counts
    calls = hostile.calls()
    hostile.forget()
    return any(call.startswith("relation pg_class") for call in calls)


def _call_functions(dsn: str) -> None:
    """What users call in sessions of their own, whose path is theirs."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for call in (
            'modak.upsert(\'app.events\', \'{"at": 150, "id": 22, "v": "new"}\')',
            'modak.upsert(\'app.tiered\', \'{"at": 20, "id": 22, "v": "late"}\')',
            "modak.delete('app.events', '{\"at\": 150, \"id\": 22}')",
            "modak.delete('app.tiered', '{\"at\": 40, \"id\": 40}')",
            "modak.wait_for(NULL, '10 s')",
        ):
            connection.execute(f"SELECT {call}")
        ((pin,),) = connection.execute("SELECT p.pin_id FROM modak.pin('app.events') p").fetchall()
        connection.execute("SELECT modak.release(%s)", (pin,))


def _settings(dsn: str) -> Settings:
    return Settings(dsn=dsn, storage_fsync=False, retention_interval=0.2)


def _life(mirror: Mirror, admin: str, pump: str, command: AsRole, directory: Path, spark: SparkSession | None) -> None:
    """All commands, and a pump under load."""
    database = mirror.database
    as_admin = replace(mirror, settings=mirror.settings.model_copy(update={"dsn": admin}))
    # Without their schema: the role's own path has app.
    as_admin.register("notes")
    as_admin.register("app.events", retention=at_once("50"))
    as_admin.register(
        "app.tiered",
        retention=RetentionOptions(lag="50", premake=1, width="100", drop_grace="0", mode=TableMode.TIERED),
    )
    file = directory / "rows.csv"
    with mirror.pumping():
        mirror.await_live("app.notes", "app.events")
        with database.connect() as connection:
            for number in range(20):
                connection.execute("INSERT INTO app.notes (id, v) VALUES (%s, 'Loaded')", (100 + number,))
                connection.execute("UPDATE app.notes SET v = 'changed' WHERE id = %s", (number,))
            connection.execute("DELETE FROM app.notes WHERE id = 40")
            connection.execute("ALTER TABLE app.notes ADD COLUMN n int DEFAULT 7")
        gone = "SELECT count(*) FROM pg_class WHERE relname IN ('p0', 't0')"
        await_true(lambda: database.rows(gone) == [(0,)], 60, "partitions have left the heap")
        with database.connect() as connection:
            # Late rows, by our triggers and functions.
            connection.execute("INSERT INTO app.events VALUES (10, 11, 'late')")
            connection.execute("""SELECT modak.upsert('app.events', '{"at": 20, "id": 21, "v": "late"}')""")
            connection.execute("""SELECT modak.upsert('app.tiered', '{"at": 20, "id": 21, "v": "late"}')""")
            connection.execute("""SELECT modak.delete('app.tiered', '{"at": 30, "id": 30}')""")
        _call_functions(pump)
        file.write_text("id,v\n1000,Bulk\n1001,Bulk\n")
        command(pump, "load", "notes", str(file), "--label", "one")
        file.write_text("at,id,v\n10,1000,bulk\n150,1001,bulk\n")
        command(pump, "load", "app.tiered", str(file), "--label", "two")
        command(pump, "ingest", "app.tiered", str(file))
        command(pump, "wait", "--now", "--timeout", "60")
        command(pump, "status")
        command(pump, "status", "--json")
        # It may find that the machine, or the role, lacks something.
        assert "checks: " in command(pump, "doctor", codes=(0, 1))
        assert "notes" in command(pump, "doctor", "--plan", "--measure", "0")
        command(pump, "verify")
        command(pump, "retain")
        command(pump, "policy", "get", "notes")
        command(pump, "sql", "SELECT count(*) FROM notes")
        for mode in ("seam", "lake", "heap", "hybrid"):
            command(pump, "sql", "SELECT count(*), min(v) FROM app.events", "--mode", mode)
        for engine in ("spark", "duckdb", "pyiceberg", "trino"):
            command(pump, "connect", "--engine", engine)
        command(pump, "profile", "list")
        command(admin, "reader", "pg_monitor", "notes")
        command(pump, "resync", "notes", "--no-wait")
        mirror.await_live("app.notes")
        command(pump, "unregister", "--list")
        if spark is not None:
            Maintained(mirror, spark).maintain("app.notes")
            Maintained(mirror, spark).assert_equal_by_spark("app.notes")
        mirror.await_frontier()
    command(pump, "reconcile")
    command(admin, "unregister", "notes", "--drop-lake")
    for table in ("app.events", "app.tiered"):
        command(admin, "unregister", table, "--restore-heap", "--drop-lake")
