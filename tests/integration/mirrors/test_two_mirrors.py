"""Two mirrors of one database: each follows the same tables by its own rules, whatever becomes of the other one."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import Identifier

import mirror_pump.spark
import sql
from mirror_pump.database.catalog_cursor import mirror_on
from mirror_pump.errors import MirrorPumpError, SourceError, TableError, UsageError
from mirror_pump.model import TableMode
from mirror_pump.ops.setup import profiles
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.ops.setup.profiles import add_profile, described_profile
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.other_mirrors import profiles_of_others, refuse_used_stream
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Row, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.killed_pump import die
from tests.support.rest_catalog import served
from tests.support.retention_table import RetentionTable, at_once
from tests.support.roles import roles_of
from tests.support.table_wishes import parse_choices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RULES = parse_choices([], [], ["secret=null"], where="region = 1")
"""Of the mirror `light`: rows of one region, without what is secret."""
_TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, region int NOT NULL, secret text, v text)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "INSERT INTO t SELECT g, g % 3, 'secret', g FROM generate_series(1, 300) g",
    "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (100) TO (200)",
    "INSERT INTO p SELECT g, g FROM generate_series(0, 199) g",
)


class Both:
    """A mirror without a name, of all of both tables, and the mirror `light`, of one with rules."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.plain = Mirror.create(database, (directory / "plain").as_uri(), ThreadTaskRunner())
        named = replace(database, mirror="light")
        self.light = Mirror.create(named, (directory / "light").as_uri(), ThreadTaskRunner())

    def register(self) -> None:
        self.plain.register("t", "p")
        self.light.register("t", choices=_RULES)
        self.light.register("p")

    def catch_up(self) -> None:
        self.plain.catch_up()
        self.light.catch_up()

    def ruled(self) -> list[Row]:
        """What `light` has to have of the table with rules, which leave new columns out."""
        return normalised(self.database.rows("SELECT id, region, NULL, v FROM t WHERE region = 1"))

    def assert_exact(self) -> None:
        self.plain.assert_equal("public.t", "public.p")
        self.light.assert_equal("public.p")
        assert_same(self.ruled(), self.light.lake("public.t"), "the table with rules")


@pytest.fixture
def both(database: Database, tmp_path: Path) -> Both:
    database.execute(*_TABLES)
    return Both(database, tmp_path)


def _write(database: Database, number: int) -> None:
    """Changes of rows, of columns, of partitions, and a TRUNCATE of one."""
    database.execute(
        "INSERT INTO t (id, region, secret, v)"
        f" SELECT g, g % 3, 's', 'new' FROM generate_series({number}, {number + 30}) g",
        "UPDATE t SET v = v || '!', region = (region + 1) % 3 WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 11 = 0",
        f"ALTER TABLE t ADD COLUMN c{number} int DEFAULT {number}",
        f"UPDATE t SET c{number} = id WHERE id % 5 = 0",
        f"ALTER TABLE p ADD COLUMN c{number} int DEFAULT {number}",
        "TRUNCATE p0",
        "INSERT INTO p SELECT g, 'again' FROM generate_series(0, 40) g ON CONFLICT DO NOTHING",
        f"CREATE TABLE p{number} PARTITION OF p FOR VALUES FROM ({number}) TO ({number + 10})",
        f"INSERT INTO p VALUES ({number}, 'in a new partition')",
    )


def test_both_follow_the_same_tables_by_their_own_rules(both: Both) -> None:
    both.register()
    with both.plain.pumping(), both.light.pumping():
        both.plain.await_live("public.t", "public.p")
        both.light.await_live("public.t", "public.p")
        _write(both.database, 1000)
        for mirror in (both.plain, both.light):
            mirror.await_frontier()
            # The new column is filled.
            mirror.await_live("public.t", "public.p")
    both.assert_exact()
    both.plain.assert_sound()
    _write(both.database, 2000)
    both.light.catch_up()
    assert_same(both.ruled(), both.light.lake("public.t"), "while the other pump stands still")
    both.plain.catch_up()
    both.assert_exact()
    for mirror, name in ((both.plain, None), (both.light, "light")):
        with StatusReader(complete(mirror.settings)) as reader:
            status = reader.read()
        assert (status.mirror, status.slot.name, len(status.tables)) == (name, mirror.settings.slot, 2)
        assert status.to_json()["mirror"] == name


def test_the_end_of_one_leaves_the_other_alone(both: Both) -> None:
    both.register()
    both.catch_up()
    both.light.unregister("t", drop_lake=True)
    both.light.unregister("p", drop_lake=True)
    _write(both.database, 1000)
    both.plain.catch_up()
    both.plain.assert_equal("public.t", "public.p")
    # As docs/operations.md has it.
    script = re.sub(r"\bmodak\b", "modak_light", (Path(sql.__file__).parent / "uninstall.sql").read_text())
    psql = [str(both.database.server.binary("psql")), "--no-psqlrc", "-f", "-", both.database.dsn]
    done = subprocess.run(psql, input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert both.database.rows(
        "SELECT (SELECT count(*) FROM pg_event_trigger),"
        " (SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s),"
        " (SELECT count(*) FROM pg_publication WHERE pubname = %s), to_regnamespace('modak_light')::text",
        (both.light.settings.slot, both.light.settings.publication),
    ) == [(3, 0, 0, None)]
    _write(both.database, 2000)
    both.plain.catch_up()
    both.plain.assert_equal("public.t", "public.p")


def test_what_no_two_mirrors_share_is_refused(both: Both) -> None:
    plain, light = both.plain.settings, both.light.settings
    other = light.model_copy(update={"mirror": "third", "slot": "third", "publication": "third"})
    for update, refused in (
        ({"warehouse": plain.warehouse}, "are one within the other"),
        ({"warehouse": f"{light.warehouse}/below"}, "are one within the other"),
        ({"slot": plain.slot}, 'slot .* is that of another mirror .* schema "modak"'),
        ({"publication": light.publication}, 'publication .* is that of another mirror .* schema "modak_light"'),
    ):
        wish = {"warehouse": f"{plain.warehouse}-third"} | update
        with pytest.raises(UsageError, match=refused):
            initialise(other.model_copy(update=wish), lambda _: None)
    assert both.database.rows("SELECT to_regnamespace('modak_third')::text") == [(None,)]
    profile = described_profile("archive", f"{plain.warehouse}/archive", (), None, None, None)
    with pytest.raises(UsageError, match="are one within the other"):
        add_profile(light, profile, default=False)
    for mirror in (both.plain, both.light):
        for schema in ("modak", "modak_light"):
            with pytest.raises(TableError, match="belongs to a mirror's catalog"):
                mirror.register(f"{schema}.delta")


def test_one_mirror_alone_moves_rows_from_the_heap(database: Database, tmp_path: Path) -> None:
    both, events = Both(database, tmp_path), RetentionTable(database, 3)
    events.create_tables("at int, id int, v text, PRIMARY KEY (at, id)", default=True)
    database.execute("INSERT INTO events SELECT g, g, 'old' FROM generate_series(0, 299) g")
    both.light.register("events", retention=at_once("100"))
    for wish in (at_once("50"), replace(at_once("50"), mode=TableMode.TIERED)):
        with pytest.raises(TableError, match=r'tiered, or has heap retention, .* schema "modak_light"'):
            both.plain.register("events", retention=wish)
    both.plain.register("events")
    gone = "SELECT count(*) FROM pg_class WHERE relname = 'p0'"
    with both.light.pumping(), ExitStack() as stack:
        stack.enter_context(both.plain.pumping())
        both.plain.await_live("public.events")
        await_true(lambda: database.rows(gone) == [(0,)], 60, "p0 has left the heap")
        for mirror in (both.plain, both.light):
            mirror.await_frontier()
            # Rows that left the heap may be deleted in a publish of their own.
            mirror.await_live("public.events")
            mirror.await_frontier()
    # The mirror without retention has what the heap has, the other one keeps what has left it.
    both.plain.assert_equal("public.events")
    assert len(both.light.lake("public.events")) == 300


def test_a_remedy_of_one_mirror_keeps_the_tables_of_the_other_writable(both: Both) -> None:
    """Under REPLICA IDENTITY FULL the column list of the other one's publication would end UPDATE and DELETE."""
    listed = ""
    for remedy in ("REPLICA IDENTITY FULL", "another --where: publication lists has a column list"):
        both.database.execute(
            "DROP TABLE IF EXISTS u, nokey",
            "CREATE TABLE u (id int PRIMARY KEY, region int, v text)",
            "CREATE TABLE nokey (id int)",
            *(listed,) if listed else (),
        )
        with pytest.raises(TableError, match="row filter is not part") as refused:
            both.plain.register("u", choices=parse_choices([], [], where="region = 1"))
        assert remedy in refused.value.remedy
        assert ("ALTER TABLE" in refused.value.remedy) == (not listed)
        with pytest.raises(TableError, match="no primary key") as refused:
            both.plain.register("nokey")
        assert (", or REPLICA IDENTITY FULL" in refused.value.remedy) == (not listed)
        listed = "CREATE PUBLICATION lists FOR TABLE u (id, v), nokey (id)"


def test_a_schema_of_a_users_is_no_mirrors(database: Database, tmp_path: Path) -> None:
    """To uninstall the mirror would drop what is in it. An empty one was made for the mirror's admin."""
    slot = f"events_{os.urandom(4).hex()}"
    settings = Settings(dsn=database.dsn, mirror="events", slot=slot, warehouse=tmp_path.as_uri(), storage_fsync=False)
    database.execute("CREATE SCHEMA modak_events", "CREATE TABLE modak_events.orders (id int PRIMARY KEY)")
    with pytest.raises(SourceError, match="has objects, and no catalog of a mirror"):
        initialise(settings, lambda _: None)
    database.execute(
        "DROP TABLE modak_events.orders",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA modak_events GRANT SELECT ON TABLES TO pg_monitor",
    )
    initialise(settings, lambda _: None)


def test_two_mirrors_cannot_add_one_warehouse_at_once(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """One looks at what the other has when that is over."""
    looks = {None: threading.Event(), "light": threading.Event()}
    waits = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory')"
    )
    shared = described_profile("archive", f"{both.plain.settings.warehouse}-archive", (), None, None, None)

    def looking(connection: PgConnection) -> tuple[StorageProfile, ...]:
        others = profiles_of_others(connection)
        looks[mirror_on(connection)].set()
        if mirror_on(connection) is None:
            await_true(lambda: looks["light"].is_set() or both.database.rows(waits) == [(1,)], 60, "the other waits")
        return others

    monkeypatch.setattr(profiles, "profiles_of_others", looking)
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(add_profile, both.plain.settings, shared, default=False)
        assert looks[None].wait(60)
        light = pool.submit(add_profile, both.light.settings, shared, default=False)
        assert plain.result(60)
        with pytest.raises(UsageError, match='archive of the mirror in schema "modak"'):
            light.result(60)


def test_a_role_that_may_not_read_the_other_catalog_shares_nothing(both: Both) -> None:
    """It does not know then what would be shared. The remedy is what it lacks."""
    with roles_of(both.database) as roles:
        settings = both.light.settings
        with connect(
            make_conninfo(roles.dsn(roles.app), options="-c mirror_pump.mirror=light"), autocommit=True
        ) as role:
            with pytest.raises(SourceError, match='catalog in schema "modak", which this role may not read') as refused:
                refuse_used_stream(role, settings)
            for statement in refused.value.remedy.partition(": ")[2].split("; "):
                both.database.execute(statement)
            refuse_used_stream(role, settings)
            assert [profile.warehouse for profile in profiles_of_others(role)] == [both.plain.settings.warehouse]


def test_code_of_another_role_does_not_run(both: Both) -> None:
    """Any role may have a schema that is named like a mirror's, and a statement about its relations would run its code.
    It is passed over, and keeps no mirror from being set up."""
    plain, light = both.plain.settings, both.light.settings
    with roles_of(both.database) as roles:
        app = Identifier(roles.app).as_string()
        columns = "SELECT 'mirror_pump_x' AS slot_name, '' AS publication_name, current_database() AS database_name"
        for schema, kind in (("modak_fake", "TABLE"), ("modak_view", "VIEW")):
            both.database.execute(
                f"CREATE SCHEMA {schema} AUTHORIZATION {app}",
                f"CREATE SEQUENCE {schema}.calls",
                f"GRANT ALL ON SEQUENCE {schema}.calls TO {app}",
                f"ALTER SEQUENCE {schema}.calls OWNER TO {app}",
            )
            roles.execute(
                roles.app,
                f"CREATE FUNCTION {schema}.bait(int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS"
                f" 'BEGIN PERFORM nextval(''{schema}.calls''); RETURN true; END'",
                f"CREATE TABLE {schema}.mirror_migrations (version int)",
                f"CREATE {kind} {schema}.mirror_slots AS {columns} WHERE {schema}.bait(0)",
                f"CREATE {kind} {schema}.mirror_tables AS SELECT 1::bigint AS table_id, 1 AS retention",
                f"CREATE {kind} {schema}.storage_profiles AS"
                f" SELECT 'a'::text AS profile_name, '{plain.warehouse}-third'::text AS warehouse",
            )
        roles.execute(roles.app, "CREATE INDEX ON modak_fake.mirror_slots (slot_name) WHERE modak_fake.bait(1)")
        calls = "SELECT a.last_value, b.is_called FROM modak_fake.calls a, modak_view.calls b"
        before = both.database.rows(calls)
        warehouse = f"{plain.warehouse}-third"
        third = light.model_copy(update={"mirror": "third", "slot": "third", "publication": "third"})
        # What would be adopted may be of a mirror that is not read.
        taken = f"{plain.slot}_taken"
        both.database.execute(f"CREATE PUBLICATION {taken}")
        both.database.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (taken,))
        for name in ("slot", "publication"):
            adopting = third.model_copy(update={name: taken, "warehouse": warehouse})
            with pytest.raises(UsageError, match=f'{name} .* exists, and may be that .* schema "modak_fake", "modak_v'):
                initialise(adopting, lambda _: None)
        both.database.rows("SELECT pg_drop_replication_slot(%s)", (taken,))
        profile = described_profile("archive", f"{plain.warehouse}-archive", (), None, None, None)
        add_profile(plain, profile, default=False)
        initialise(plain, lambda _: None)
        assert both.database.rows(calls) == before


def test_a_killed_pump_of_one_holds_nothing_up(both: Both) -> None:
    both.register()
    both.catch_up()
    with both.plain.pumping():
        die(both.light, "staged", 1, meanwhile=lambda: both.database.execute("UPDATE t SET v = v || '?'"))
        _write(both.database, 1000)
        both.plain.await_frontier()
        both.plain.await_live("public.t", "public.p")
        both.plain.assert_equal("public.t", "public.p")
        both.light.catch_up()
    both.assert_exact()


def test_what_users_wrote_is_no_name_of_ours(database: Database, tmp_path: Path) -> None:
    """Neither names, nor literals, nor conditions are changed in statements of a mirror with a name."""
    database.execute(
        'CREATE TABLE "modak" ("modak.x" text PRIMARY KEY, "zz_modak_row" text, "modak" text)',
        "ALTER TABLE modak REPLICA IDENTITY FULL",
        """INSERT INTO modak VALUES ('modak.delta', 'a', 'modak'), ('modak', 'a', NULL), ('other', 'a', 'b')""",
    )
    light = Both(database, tmp_path).light
    where = """"modak.x" IN ('modak.delta', 'modak') AND zz_modak_row <> 'modak.tables'"""
    light.register('"modak"', choices=parse_choices([], [], where=where))
    light.catch_up()
    database.execute("INSERT INTO modak VALUES ('MODAK', 'a', 'b')", "UPDATE modak SET modak = 'modak.mirror_slots'")
    light.catch_up()
    assert light.lake("public.modak") == [
        ("modak", "a", "modak.mirror_slots"),
        ("modak.delta", "a", "modak.mirror_slots"),
    ]


@pytest.mark.further
def test_one_program_reads_both(both: Both, spark: SparkSession) -> None:
    """By Spark, by statements and by REST catalogs at once: each reads what its own mirror has."""
    both.register()
    both.catch_up()
    both.database.execute("DELETE FROM p WHERE id > 10", "CREATE TABLE other (id int PRIMARY KEY)")
    both.plain.catch_up()

    def counted(mirror: str | None) -> int:
        with mirror_pump.spark.read(spark, "public.p", dsn=both.database.dsn, mirror=mirror) as frame:
            return int(frame.count())

    with pytest.raises(MirrorPumpError) as refused:
        mirror_pump.spark.read(spark, "public.other", dsn=both.database.dsn, mirror="light")
    assert "mirror-pump status --mirror light" in refused.value.remedy
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(counted, (None, "light", None, "light"))) == [11, 200, 11, 200]
    with served(both.plain.settings) as plain, served(both.light.settings) as light:
        rows = [
            running.duckdb("mirror@latest").execute("SELECT count(*) FROM lake.public.p").fetchall()
            for running in (plain, light)
        ]
    assert rows == [[(11,)], [(200,)]]
    # It is compared with the heap when the test ends.
    both.light.catch_up()
