"""The roles of sql/roles.sql suffice for the whole life of a mirror, and for nothing else. None is a superuser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import orjson
import psycopg
import pytest

from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.doctor.check import DoctorCheck, Finding
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.doctor.replication import REPLICATION
from mirror_pump.ops.doctor.rights import EVENT_TRIGGERS, RIGHTS
from mirror_pump.ops.register.table_follower import TableFollower
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.pipeline.flow.steps import unobserved
from mirror_pump.settings.config import Settings
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.source.stream.standby import Led, Standby
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.maintenance import Maintained
from tests.support.resyncs import drop_slot
from tests.support.retention_table import at_once
from tests.support.roles import Roles, roles_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.empty_database

TABLES = (
    "CREATE TABLE public.orders (id bigint PRIMARY KEY, v text)",
    "INSERT INTO public.orders SELECT g, 'v' || g FROM generate_series(1, 50) g",
    "CREATE TABLE public.broken (id bigint PRIMARY KEY)",
    "CREATE TABLE public.log (v text)",
    "INSERT INTO public.log SELECT 'v' || g % 3 FROM generate_series(1, 50) g",
)
EVENTS = (
    "CREATE TABLE public.events (at bigint, id bigint, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
    "CREATE TABLE public.p0 PARTITION OF public.events FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE public.p1 PARTITION OF public.events FOR VALUES FROM (100) TO (200)",
    "INSERT INTO public.events SELECT g, g, 'first' FROM generate_series(0, 190, 10) g",
)

FOLLOWED = (
    "SELECT t.table_name FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)"
    """ WHERE m.state = 'live' AND m.columns @> '[{"name": "w"}]' ORDER BY 1"""
)


@pytest.fixture
def roles(database: Database) -> Iterator[Roles]:
    with roles_of(database) as made:
        made.execute(made.master, "GRANT CREATE ON SCHEMA public TO {app}, {archive}")
        made.execute(made.app, *TABLES)
        made.execute(made.archive, *EVENTS)
        yield made


def findings(check: DoctorCheck, roles: Roles, role: str) -> tuple[Finding, ...]:
    """What a check of `doctor` finds as a role."""
    (examined,) = examine(Settings(dsn=roles.dsn(role)), (check,)).checks
    return examined.findings


AsRole = Callable[..., str]
"""Runs the program as a role. Fails unless it ends with `code`. Returns its output."""


@pytest.fixture
def command(roles: Roles, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> AsRole:
    def invoke(role: str, *arguments: str, code: int = 0) -> str:
        monkeypatch.setenv("MIRROR_PUMP_DSN", roles.dsn(role))
        result = run(*arguments)
        if result.exit_code != code:
            pytest.fail(f"{arguments} ended with {result.exit_code}:\n{result.output}")
        return result.stdout if code == 0 else result.output

    return invoke


def installed(roles: Roles, command: AsRole, warehouse: str, slot: str) -> Mirror:
    """A mirror whose pumps run as the role for that. The rights are those of the scripts, and of docs/roles.md."""
    roles.grant(roles.master)
    roles.execute(roles.master, "GRANT {app}, {archive} TO {admin}")
    command(roles.admin, "init", "--warehouse", warehouse, "--slot", slot, "--publication", slot)
    roles.grant(roles.admin)
    roles.execute(roles.app, "GRANT SELECT ON public.orders, public.broken, public.log TO {pump}")
    roles.execute(roles.master, "GRANT {archive} TO {pump}")
    settings = Settings(dsn=roles.dsn(roles.pump), storage_fsync=False, retention_interval=0.2)
    return Mirror(roles.database, complete(settings), ThreadTaskRunner())


def test_the_whole_path(
    roles: Roles, command: AsRole, warehouse: str, slot: str, spark: SparkSession, database: Database
) -> None:
    """From init to uninstall; at the end nothing of the mirror is left in the database."""
    mirror = installed(roles, command, warehouse, slot)
    assert database.rows("SELECT rolname FROM pg_roles WHERE rolsuper AND rolname = ANY (%s)", (roles.names,)) == []
    as_admin = replace(mirror, settings=mirror.settings.model_copy(update={"dsn": roles.dsn(roles.admin)}))
    as_admin.register("public.orders", "public.broken")
    as_admin.register("public.events", retention=at_once("50"))
    # Its copy takes a lock that the pump's role may not take by itself.
    as_admin.register("public.log", choices=ColumnChoices(append_only=True))
    with mirror.pumping():
        mirror.await_live("public.orders", "public.broken", "public.events", "public.log")
        roles.execute(roles.app, "INSERT INTO public.log VALUES ('v1'), ('v1')")
        # The stream, and schema changes, which nobody announces without event triggers.
        roles.execute(
            roles.app,
            "UPDATE public.orders SET v = 'changed' WHERE id <= 10",
            "DELETE FROM public.orders WHERE id = 11",
            "ALTER TABLE public.orders ADD COLUMN w int",
            "INSERT INTO public.orders VALUES (100, 'x', 1)",
            # A table that cannot be mirrored any further leaves the publication, which the pump does not own.
            'ALTER TABLE public.broken RENAME id TO "_file"',
        )
        published = "SELECT tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1"
        await_true(lambda: ("broken",) not in database.rows(published, (slot,)), 60, "unpublished")
        assert mirror.state("public.broken") == "failed"
        await_true(lambda: not database.rows("SELECT FROM pg_class WHERE relname = 'p0'"), 60, "p0 has left the heap")
        roles.execute(
            roles.archive,
            "INSERT INTO public.events VALUES (10, 11, 'late')",
            # Its owner owns what the mirror created, too.
            "ALTER TABLE public.events ADD COLUMN w int",
        )
        # Found by comparing catalogs.
        await_true(lambda: database.rows(FOLLOWED) == [("events",), ("orders",)], 60, "both have column w")
        mirror.await_live("public.orders", "public.events")
        mirror.await_frontier()
        mirror.assert_equal("public.orders", "public.log")
        # Beside the pump, as the role that it has.
        assert orjson.loads(command(roles.pump, "status", "--json"))["leader"]["alive"]
        command(roles.pump, "verify", "public.orders", "public.events")
        Maintained(mirror, spark).maintain("public.orders")
        command(roles.pump, "pause", "public.orders")
        roles.execute(roles.app, "INSERT INTO public.orders VALUES (102, 'while it is paused', 2)")
        command(roles.admin, "resume", "public.orders")
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        # It may not register tables, and tells which ones are to be.
        command(roles.admin, "register", "public.newcom*", "--follow-new", "--no-wait")
        with TableFollower(mirror.settings, unobserved):
            roles.execute(roles.app, "CREATE TABLE public.newcomer (id int PRIMARY KEY)")
            refusal = "SELECT error FROM modak.mirror_not_joined"
            await_true(lambda: database.rows(refusal), 60, "it is told")
            assert "may not read public.newcomer" in database.rows(refusal)[0][0]
        command(roles.admin, "register", "public.newcom*", "--no-follow-new")
    # The role of the pump makes a new slot in place of one that was lost, and has all tables copied again.
    drop_slot(mirror)
    roles.execute(roles.app, "INSERT INTO public.orders VALUES (101, 'not in the stream', 2)")
    assert "the stream begins at" in command(roles.pump, "resync", "--all", "--no-wait")
    with mirror.pumping():
        mirror.await_live("public.orders", "public.events")
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        # A reader, whose rights are the script's, and on the tables and their partitions the command's.
        command(roles.admin, "reader", roles.reader, "public.orders", "public.events")
        for table, rows in (("orders", 52), ("events", 21)):
            assert command(roles.reader, "sql", f"SELECT count(*) FROM {table}", "--format", "csv").split()[1] == str(
                rows
            )
        refused(roles)
    for table in ("public.orders", "public.broken", "public.log"):
        command(roles.admin, "unregister", table, "--drop-lake")
    # Nothing is removed while a table is registered.
    early = roles.psql(roles.admin, "uninstall.sql")
    assert (early.returncode, "still registered" in early.stderr) == (3, True), early.stderr
    assert database.rows("SELECT count(*) FROM pg_publication WHERE pubname = %s", (slot,)) == [(1,)]
    command(roles.admin, "unregister", "public.events", "--restore-heap", "--drop-lake")
    assert database.rows(
        "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relname IN (%s, %s) AND relispartition",
        ("p0", "p1"),
    ) == [(roles.archive,)]
    assert database.rows("SELECT count(*) FROM public.events") == [(21,)]
    done = roles.psql(roles.admin, "uninstall.sql")
    assert done.returncode == 0, done.stderr
    assert database.rows("SELECT to_regnamespace('modak')::text") == [(None,)]
    assert database.rows("SELECT FROM pg_replication_slots WHERE slot_name = %s", (slot,)) == []


def test_a_refusal_names_the_role_that_a_command_is_for(
    roles: Roles, command: AsRole, warehouse: str, slot: str
) -> None:
    """The roles of docs/roles.md: the pump registers nothing, and a reader sees no status."""
    installed(roles, command, warehouse, slot)
    command(roles.admin, "reader", roles.reader)
    for role, arguments, named in (
        (
            roles.pump,
            ("register", "public.orders", "--no-wait"),
            "as the admin",
        ),
        (roles.reader, ("status",), "others as the pump"),
        (roles.app, ("status",), "others as the pump"),
    ):
        output = command(role, *arguments, code=1)
        assert "permission denied" in output
        assert named in output, (arguments, output)
        assert "docs/roles.md" in output


def refused(roles: Roles) -> None:
    """What readers and the pump may not do."""
    everybody = {
        "UPDATE modak.mirror_secret SET secret = 'mine'",
        "UPDATE modak.storage_profiles SET warehouse = 'file:///elsewhere'",
        "INSERT INTO modak.tables SELECT * FROM modak.tables",
        "INSERT INTO modak.mirror_functions VALUES ('a', 'b', '{{}}', 'c')",
        "CREATE TABLE modak.mine (id int)",
        "CREATE OR REPLACE FUNCTION modak.mirror_events() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        "DROP SCHEMA modak CASCADE",
        "ALTER PUBLICATION {publication} DROP TABLE public.orders",
        "CREATE PUBLICATION mine",
        "CREATE SCHEMA mine",
        "UPDATE public.orders SET v = ''",
        "SELECT * FROM pg_authid",
    }
    readers = everybody | {
        "SELECT * FROM modak.mirror_secret",
        "SELECT modak.mirror_message('{{}}')",
        # The pump has the role of that owner.
        "SELECT {runs_as_owner}('SELECT 1', 0)",
        "SELECT modak.as_owner('public.events'::regclass, 'SELECT 1', 0)",
        "SELECT modak.mirror_unpublish({name}, 'public.orders'::regclass::oid::bigint)",
        "UPDATE modak.iceberg_tables SET metadata_location = 'file:///elsewhere'",
        "DELETE FROM modak.delta",
        "UPDATE modak.mirror_slots SET leader_epoch = 0",
        """SELECT modak.upsert('public.events', '{{"at": 30, "id": 30, "v": "mine"}}')""",
        "SELECT pg_drop_replication_slot({name})",
    }
    ((publication,),) = roles.database.rows("SELECT publication_name FROM modak.mirror_slots")
    ((runs_as_owner,),) = roles.database.rows(
        "SELECT 'owner_' || oid FROM pg_roles WHERE rolname = %s", (roles.archive,)
    )
    for role, statements in ((roles.pump, everybody), (roles.reader, readers)):
        with roles.connect(role) as connection:
            for statement in sorted(statements):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(
                        psycopg.sql.SQL(statement).format(
                            publication=psycopg.sql.Identifier(publication),
                            name=psycopg.sql.Literal(publication),
                            runs_as_owner=psycopg.sql.Identifier("modak", runs_as_owner),
                        )
                    )


@pytest.mark.further
def test_the_pump_continues_after_a_failover(
    roles: Roles, command: AsRole, warehouse: str, slot: str, database: Database
) -> None:
    """`mirror-pump reconcile` as the role of the pump, by which also another pump that hangs is deposed."""
    mirror = installed(roles, command, warehouse, slot)
    as_admin = replace(mirror, settings=mirror.settings.model_copy(update={"dsn": roles.dsn(roles.admin)}))
    as_admin.register("public.orders", "public.broken")
    mirror.catch_up()
    with mirror.pumping():
        mirror.await_frontier()
        assert "stop that one first" in command(roles.pump, "reconcile", code=1)
        with Standby(roles.dsn(roles.pump), slot) as standby:
            assert isinstance(standby.ask(), Led)
            assert standby.depose()
    kept = orjson.loads(command(roles.pump, "reconcile", "--json"))
    ((timeline,),) = database.rows("SELECT timeline FROM modak.mirror_slots")
    assert kept == {
        "timeline": timeline,
        "former_timeline": timeline,
        "lost": None,
        "slot": "kept",
        "frontier": format_lsn(Lsn(mirror.frontier())),
        "tables": [],
    }
    # The new primary has no slot, and the heap has changes that were in no stream.
    database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    roles.execute(roles.app, "DELETE FROM public.orders WHERE id = 7")
    lines = command(roles.pump, "reconcile").splitlines()
    assert any(f"slot {slot}: made again, because replication slot {slot} does not exist" in line for line in lines)
    assert "public.broken: equal" in lines
    assert any(line.startswith("public.orders: copied-again (1 rows differ at") for line in lines)
    assert lines[-1] == "start the pump: it replaces what differs"
    with mirror.pumping():
        mirror.await_live("public.orders", "public.broken")
        mirror.await_frontier()
    mirror.assert_equal("public.orders")
    assert "continues from frontier" in command(roles.pump, "reconcile")


@pytest.mark.further
def test_a_pump_without_statistics_sees_old_snapshots(
    roles: Roles, command: AsRole, warehouse: str, slot: str, database: Database
) -> None:
    """A partition stays in the heap while a transaction reads that began before the cut-line passed it, though the type
    and the age of other roles' sessions are hidden from the pump."""
    mirror = installed(roles, command, warehouse, slot)
    roles.execute(roles.master, "REVOKE pg_read_all_stats FROM {pump}")
    as_admin = replace(mirror, settings=mirror.settings.model_copy(update={"dsn": roles.dsn(roles.admin)}))
    as_admin.register("public.events", retention=at_once("50"))
    waits = (
        "SELECT reason FROM modak.partitions WHERE partition_id = 'public.p0' AND reason LIKE '%%reads a snapshot%%'"
    )
    with roles.connect(roles.app) as reading:
        reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reading.execute("SELECT 1")
        with mirror.pumping():
            await_true(partial(database.rows, waits), 60, "the partition waits for the reader")
            assert database.rows("SELECT count(*) FROM public.p0") == [(10,)]
            reading.rollback()
            await_true(lambda: not database.rows("SELECT FROM pg_class WHERE relname = 'p0'"), 60, "it has left")


@pytest.mark.parametrize("service", ["rds_replication", "cloudsqlsuperuser", "azure_pg_admin"])
def test_the_master_user_of_a_managed_service(
    database: Database, run: RunCommand, monkeypatch: pytest.MonkeyPatch, warehouse: str, slot: str, service: str
) -> None:
    """It runs roles.sql without being a superuser; then init creates everything but event triggers, and says so."""
    with roles_of(database, service=service) as roles:
        with database.connect() as connection:
            if service == "rds_replication":
                # There, the membership is the right. Here, only a superuser can give the attribute that stands for it.
                connection.execute(
                    psycopg.sql.SQL("ALTER ROLE {} NOREPLICATION").format(psycopg.sql.Identifier(roles.master))
                )
        streaming = "GRANT rds_replication TO" if service == "rds_replication" else "ALTER ROLE"
        (refused_right, *_) = findings(RIGHTS, roles, roles.admin)
        assert "may not stream changes" in refused_right.message
        assert refused_right.remedy.startswith(streaming)
        # A setting is made where the service has it, and not by ALTER SYSTEM.
        (limit,) = (found for found in findings(REPLICATION, roles, roles.master) if "unlimited" in found.message)
        assert re.match(
            r"set max_slot_wal_keep_size = .* in the (DB parameter group|database flags|server parameters) of",
            limit.remedy,
        )
        roles.grant(roles.master)
        member = "SELECT pg_has_role(r.oid, %s, 'USAGE'), r.rolreplication FROM pg_roles r WHERE r.rolname = %s"
        replicates = database.rows(member, (service, roles.admin))[0]
        assert replicates == (service == "rds_replication", service != "rds_replication")
        monkeypatch.setenv("MIRROR_PUMP_DSN", roles.dsn(roles.admin))
        arguments = ("init", "--warehouse", warehouse, "--slot", slot, "--publication", slot)
        if service == "rds_replication":
            # The membership passes our own check; the refusal is that of a server which does not know the role.
            refused = run(*arguments)
            assert (refused.exit_code, "may not stream changes" in refused.output) == (1, False), refused.output
            assert "permission denied to use replication slots" in refused.output
            with database.connect() as connection:
                connection.execute(
                    psycopg.sql.SQL("ALTER ROLE {} REPLICATION").format(psycopg.sql.Identifier(roles.admin))
                )
        done = run(*arguments)
        assert done.exit_code == 0, done.output
        assert "this role may not create event triggers" in done.output
        (lost,) = findings(EVENT_TRIGGERS, roles, roles.admin)
        assert "found within seconds instead of at its place in the stream" in lost.message
        creator = f"a member of {'rds_superuser' if service == 'rds_replication' else service}"
        assert f'mirror-pump init --dsn "$MASTER_DSN", once, as {creator}' in lost.remedy
        roles.grant(roles.admin)
