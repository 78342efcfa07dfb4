"""Rows of schema modak are lost, as after a partial restore: the program says which, and what to do, and that mends it.

docs/faults.md has a table of the same relations.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirror_pump.ops.doctor.catalog import CATALOG
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

FAULTS = Path(__file__).parents[3] / "docs" / "faults.md"

TOLD = frozenset(
    {
        "cutline", "iceberg_tables", "mirror_functions", "mirror_migrations", "mirror_secret", "mirror_shapes",
        "mirror_slots", "mirror_tables", "schema_meta", "storage_profiles", "tables",
    }
)  # fmt: skip
"""The relations without which something stops. The others are filled again, or nothing else knows what they held."""

NOT_TOLD = frozenset(
    {
        "change_feeds", "copy_chunks", "copy_progress", "delta", "feed_pin_rows", "follower_tables",
        "followers", "former_locations", "iceberg_namespace_properties", "lake_stats",
        "load_labels", "maintenance_requests", "mirror_captured", "mirror_damaged_files", "mirror_engine_commits",
        "mirror_followed", "mirror_load_rows", "mirror_not_joined", "moment_tables", "moments", "op_log",
        "partition_chunks", "partitions", "read_pin_rows",
    }
)  # fmt: skip


def lose(database: Database, relation: str) -> None:
    """The rows are gone, and no foreign key has removed others with them."""
    with database.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(f"DELETE FROM modak.{relation}".encode())


def mirrored(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 50) g"
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.t")
    mirror.catch_up()
    return mirror


def lost_relations(mirror: Mirror) -> list[str]:
    with StatusReader(mirror.settings) as reader:
        return [row.relation for row in reader.read().lost_rows]


def test_every_relation_is_tried_and_documented(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    Mirror.create(database, warehouse, tasks)
    kept = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'modak'::regnamespace"
    relations = {name for (name,) in database.rows(kept)}
    assert relations == TOLD | NOT_TOLD
    section = FAULTS.read_text(encoding="utf-8").partition("## Lost rows of schema modak")[2].partition("\n## ")[0]
    documented = [
        name for cell in re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(documented) == sorted(relations)


def test_lost_rows_are_told_and_mended(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    """One relation after the other, in one mirror."""
    mirror = mirrored(database, warehouse, tasks)
    for number, relation in enumerate(sorted(TOLD)):
        lose(database, relation)
        status = run("status")
        told = status.stdout + status.stderr
        named = "functions in schema modak are not those" if relation == "mirror_functions" else f"modak.{relation}"
        assert named in told
        assert "mirror-pump init" in told or relation == "iceberg_tables"
        (finding, *_) = examine(mirror.settings, (CATALOG,)).checks[0].findings
        assert named in finding.message
        database.execute(f"INSERT INTO t VALUES ({1000 + number}, 'while {relation} was lost')")
        refused = run("register", "t", "--no-wait")
        if refused.exit_code:
            assert named in refused.stderr
            assert "mirror-pump init" in refused.stderr

        if relation == "iceberg_tables":
            assert run("unregister", "t").exit_code == 0
        made = run("init", "--warehouse", warehouse)
        assert made.exit_code == 0, (relation, made.stderr)
        registered = run("register", "t", "--no-wait")
        assert registered.exit_code == 0, (relation, registered.stderr)

        mirror.catch_up()
        mirror.assert_equal("public.t")
        assert lost_relations(mirror) == [], relation
        assert f"modak.{relation}" not in run("status").stdout


@pytest.mark.further
def test_other_lost_rows_stop_nothing(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    mirror = mirrored(database, warehouse, tasks)
    for number, relation in enumerate(sorted(NOT_TOLD)):
        lose(database, relation)
        database.execute(f"INSERT INTO t VALUES ({1000 + number}, '{relation}')")
        mirror.catch_up()
        mirror.assert_equal("public.t")
        assert lost_relations(mirror) == [], relation
    assert run("init", "--warehouse", warehouse).exit_code == 0
    assert database.rows("SELECT count(*) > 0 FROM modak.iceberg_namespace_properties") == [(True,)]


@pytest.mark.further
@pytest.mark.parametrize("relation", ["tables", "mirror_tables", "cutline"])
def test_what_is_left_of_a_registration_can_be_given_up(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand, relation: str
) -> None:
    mirror = mirrored(database, warehouse, tasks)
    lose(database, relation)
    ended = run("unregister", "public.t")
    assert ended.exit_code == 0, ended.stderr
    assert f"modak.{relation} had no row of it" in ended.stdout
    assert lost_relations(mirror) == []
    mirror.register("public.t")
    mirror.catch_up()
    mirror.assert_equal("public.t")


@pytest.mark.further
def test_a_table_of_which_only_the_publication_knows_is_told(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    """All its rows went with the first one."""
    mirror = mirrored(database, warehouse, tasks)
    database.execute("DELETE FROM modak.tables")
    shown = run("status").stdout
    assert "public.t: modak.tables has no row of it" in shown
    assert "mirror-pump register public.t" in shown
    mirror.register("public.t")
    mirror.catch_up()
    mirror.assert_equal("public.t")
    assert lost_relations(mirror) == []


@pytest.mark.unverified("its registration is given up")
def test_rows_that_only_the_lake_has_are_not_given_up_by_themselves(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    database.execute(
        "CREATE TABLE e (id int, at int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
        "CREATE TABLE e0 PARTITION OF e FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE e1 PARTITION OF e FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE e9 PARTITION OF e FOR VALUES FROM (900) TO (1000)",
        "INSERT INTO e SELECT g, g FROM generate_series(0, 150) g",
        "INSERT INTO e VALUES (950, 950)",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.e", retention=RetentionOptions(lag="100", premake=0, width=None, drop_grace="1 hour"))
    tiered = "SELECT count(*) FROM modak.partitions WHERE state IN ('tiered', 'dropped')"
    with mirror.pumping():
        await_true(lambda: database.rows(tiered) == [(2,)], 60, "two partitions have left the heap")
    lose(database, "mirror_tables")
    made = run("init", "--warehouse", warehouse)
    assert made.exit_code == 0, made.stderr
    assert "restore its rows of schema modak from a backup" in made.stdout
    assert database.rows(tiered) == [(2,)]
    assert lost_relations(mirror) == ["modak.mirror_tables"]
    refused = run("unregister", "public.e")
    assert refused.exit_code == 1
    assert "--keep-lake" in refused.stderr
    assert run("unregister", "public.e", "--keep-lake").exit_code == 0
    assert lost_relations(mirror) == []
    assert database.rows("SELECT count(*) FROM modak.former_locations") == [(1,)]


@pytest.mark.further
def test_ddl_without_the_secret_warns_its_session(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    """A pump that runs has the secret in memory, and hears of nothing. `init` makes one and has all copied again."""
    mirror = mirrored(database, warehouse, tasks)
    with mirror.pumping():
        mirror.await_frontier()
        lose(database, "mirror_secret")
        with database.connect() as connection:
            warnings: list[str] = []
            connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
            connection.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'x'")
        assert warnings
        assert set(warnings) == {"the mirror is not told of this change: modak.mirror_secret is empty"}
        assert "modak.mirror_secret is empty" in run("status").stdout
        assert run("init", "--warehouse", warehouse).exit_code == 0
    mirror.catch_up()
    mirror.assert_equal("public.t")
    assert lost_relations(mirror) == []
