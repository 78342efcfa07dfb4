"""The privileges that `mirror-pump reader` grants suffice for every reader, and permit nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import mirror_pump.spark
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.readers import ReaderRole, role_of
from tests.support.retention_table import RetentionTable, at_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.empty_database

_READABLE = {
    "change_feeds",
    "cutline",
    "delta",
    "feed_pin_rows",
    "feed_pins",
    "follower_tables",
    "followers",
    "former_locations",
    "iceberg_namespace_properties",
    "iceberg_tables",
    "lake_pointers",
    "mirror_functions",
    "mirror_migrations",
    "mirror_slots",
    "mirror_tables",
    "moment_tables",
    "moments",
    "read_pin_rows",
    "read_pins",
    "schema_meta",
    "status",
    "storage_profiles",
    "tables",
}


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    """public.orders, and public.events, whose rows below 100 are only in the lake; two of them are corrected."""
    made = Mirror.create(database, warehouse, ThreadTaskRunner(), fold_age=3600)
    RetentionTable(database, 2).create_tables("at bigint, id bigint, v text, PRIMARY KEY (at, id)")
    database.execute(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, v text)",
        "INSERT INTO public.orders VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO public.events SELECT g, g, 'first' FROM generate_series(0, 190, 10) g",
    )
    made.register("public.orders")
    made.register("public.events", retention=at_once("50"))
    with made.pumping():
        await_true(lambda: not database.rows("SELECT FROM pg_class WHERE relname = 'p0'"), 60, "it has left")
    database.execute("""SELECT modak.upsert('events', '{"at": 10, "id": 10, "v": "late"}')""")
    database.execute("""SELECT modak.delete('events', '{"at": 20, "id": 20}')""")
    return made


@pytest.fixture
def reader(mirror: Mirror, run: RunCommand) -> Iterator[ReaderRole]:
    """A role with the privileges that `mirror-pump reader` grants."""
    with role_of(mirror.database) as role:
        assert "there is no role" in run("reader", role.name.lower()).stderr
        for _ in range(2):
            result = run("reader", role.name, "public.orders", "events")
            assert result.exit_code == 0, result.output
        yield role


def test_a_reader_reads_and_does_nothing_else(
    mirror: Mirror, reader: ReaderRole, run: RunCommand, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    assert_connectors_by_others_read(mirror, reader)
    assert_spark_reads(reader, spark)
    monkeypatch.setenv("MIRROR_PUMP_DSN", reader.dsn)
    assert_the_command_line_reads(mirror, run)
    assert_nothing_else_of_the_catalog(mirror, reader)
    assert_no_rights_are_passed_on(mirror, run)


def assert_connectors_by_others_read(mirror: Mirror, reader: ReaderRole) -> None:
    """The statements of the public connectors for Spark and Trino, in READ COMMITTED."""
    ((oid,),) = mirror.database.rows("SELECT 'public.events'::regclass::oid::bigint")
    with psycopg.connect(reader.dsn) as connection:

        def rows(query: str, *parameters: Any) -> list[tuple[Any, ...]]:
            return connection.execute(query.encode(), parameters).fetchall()

        assert rows("SELECT version FROM modak.schema_meta") == [(1,)]
        assert rows("SELECT DISTINCT schema_name FROM modak.tables ORDER BY 1") == [("public",)]
        ((table_id, location, lag),) = rows(
            "SELECT t.table_id, c.lake_props ->> 'metadata_location', t.heap_retention_lag"
            "  FROM modak.tables t LEFT JOIN modak.cutline c USING (table_id)"
            "  LEFT JOIN modak.storage_profiles p ON p.profile_name = t.storage_profile"
            " WHERE t.schema_name = 'public' AND t.table_name = 'events'"
        )
        assert (table_id, lag) == (oid, 50)
        ((pin, cut),) = rows(
            "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
            " SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '15 minutes'"
            "   FROM modak.cutline c WHERE c.table_id = %s RETURNING pin_id, pinned_tier_key_hi",
            oid,
        )
        found = "SELECT lake_props ->> 'metadata_location', lake_props ->> 'snapshot_id' FROM modak.cutline"
        assert rows(found + " WHERE table_id = %s", oid)[0][0] == location
        connection.commit()
        assert cut == 100
        assert rows("SELECT op, pk FROM modak.delta WHERE table_id = %s ORDER BY 1", oid) == [
            (0, "10\x1f10"),
            (1, "20\x1f20"),
        ]
        assert rows("SELECT count(*) FROM public.events WHERE at >= %s", cut) == [(10,)]
        rows("DELETE FROM modak.read_pins WHERE pin_id = %s RETURNING 1", pin)
        assert rows("SELECT count(*) > 0 FROM modak.status") == [(True,)]
        assert rows("SELECT modak.wait_for('0/1')") == [(True,)]


def assert_the_command_line_reads(mirror: Mirror, run: RunCommand) -> None:
    for mode, events in (("seam", 19), ("lake", 20), ("heap", 10)):
        for table, count in (("events", events), ("orders", 2)):
            result = run("sql", f"SELECT count(*) FROM {table}", "--mode", mode, "--format", "csv")
            assert (result.exit_code, result.stdout.splitlines()[1:]) == (0, [str(count)]), (mode, result.output)
    assert run("wait", "--lsn", "0/1", "--timeout", "5").exit_code == 0
    corrected = json.loads(run("where", "events", "20", "20", "--json").stdout)
    assert {state["kind"] for state in corrected["states"]} == {"delta", "archive", "current", "history"}
    in_heap = json.loads(run("where", "events", "150", "150", "--json").stdout)
    assert {"heap", "current"} <= {state["kind"] for state in in_heap["states"]}
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []


def assert_spark_reads(reader: ReaderRole, spark: SparkSession) -> None:
    for mode, events in (("seam", 19), ("lake", 20), ("heap", 10)):
        with mirror_pump.spark.read(spark, "public.events", mode, dsn=reader.dsn) as frame:
            assert frame.count() == events, mode


def assert_nothing_else_of_the_catalog(mirror: Mirror, reader: ReaderRole) -> None:
    rights = mirror.database.rows(
        "SELECT c.relname, p.privilege FROM pg_class c"
        " CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,TRIGGER,REFERENCES}'::text[]) AS p(privilege)"
        " WHERE c.relnamespace = 'modak'::regnamespace AND c.relkind IN ('r', 'p', 'v')"
        "   AND has_table_privilege(%s, c.oid, p.privilege)",
        (reader.name,),
    )
    assert {table for table, privilege in rights if privilege == "SELECT"} == _READABLE
    assert {right for right in rights if right[1] != "SELECT"} == {
        (f"{kind}_{relation}", privilege)
        for kind in ("read", "feed")
        for relation, privileges in (("pins", ("INSERT", "UPDATE", "DELETE")), ("pin_rows", ("INSERT",)))
        for privilege in privileges
    }
    with psycopg.connect(reader.dsn, autocommit=True) as connection:
        for statement in (
            "SELECT * FROM modak.mirror_secret",
            "UPDATE modak.iceberg_tables SET metadata_location = 'file:///elsewhere'",
            "DELETE FROM modak.iceberg_namespace_properties",
            "UPDATE modak.cutline SET tier_key_hi = 0",
            "DELETE FROM modak.delta",
            "INSERT INTO modak.tables SELECT * FROM modak.tables",
            "UPDATE modak.mirror_slots SET leader_epoch = 0",
            "CREATE TABLE modak.mine (id int)",
            """SELECT modak.upsert('events', '{"at": 30, "id": 30, "v": "mine"}')""",
            """SELECT modak.delete('events', '{"at": 30, "id": 30}')""",
            "SELECT modak.mirror_message('{}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def assert_no_rights_are_passed_on(mirror: Mirror, run: RunCommand) -> None:
    with role_of(mirror.database) as other:
        refused = run("reader", other.name)
        assert (refused.exit_code, "may not grant" in refused.stderr) == (1, True), refused.output


def test_the_grants_can_be_printed(mirror: Mirror, run: RunCommand) -> None:
    with role_of(mirror.database) as role:
        printed = run("reader", role.name, "--print")
        assert printed.exit_code == 0, printed.output
        has_usage = "SELECT has_schema_privilege(%s, 'modak', 'USAGE')"
        assert mirror.database.rows(has_usage, (role.name,)) == [(False,)], "nothing was granted"
        warned = run("connect", "--engine", "trino", "--user", role.name)
        assert warned.exit_code == 0
        assert f"mirror-pump reader {role.name}" in warned.stderr
        with mirror.database.connect() as connection:
            connection.execute(printed.stdout.encode())
        assert mirror.database.rows(has_usage, (role.name,)) == [(True,)]
        assert run("connect", "--engine", "trino", "--user", role.name).stderr == ""
        assert run("connect", "--engine", "trino", "--user", "nobody such").exit_code == 2
