"""Constant defaults of new columns in the metadata of lake tables of format version 3, on request: no file is written
again, and each reader of this project's gives older rows the value."""

from __future__ import annotations

import pytest

from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import FeedMode
from mirror_pump.ops.maintenance.policies import change as change_policy
from mirror_pump.ops.reads.engine_remarks import engine_remarks
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.connect import connect
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.changed_tables import DEFAULTS, TABLES
from tests.support.resyncs import resynced

_STORAGE = StorageOptions(fsync=False)


def wants_defaults(mirror: Mirror, *tables: str) -> None:
    for table in tables:
        change_policy(mirror.settings, table, {"defaults_in_metadata": True})


def defaults(mirror: Mirror, table: str) -> dict[str, object]:
    """The defaults that the lake's schema names, by column."""
    document = read_any_version(mirror.location(table), _STORAGE)
    fields = document.schema_document(document.current_schema_id)["fields"]
    for field in fields:
        assert field.get("initial-default") == field.get("write-default")
    return {field["name"]: field["initial-default"] for field in fields if "initial-default" in field}


def data_files(mirror: Mirror, table: str) -> set[str]:
    return set(read_plan(read_any_version(mirror.location(table), _STORAGE), _STORAGE).paths)


def test_older_rows_have_the_value_and_no_file_is_written(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute(
        *TABLES,
        """CREATE TYPE mood AS ENUM ('ok', 'it''s, "bad"')""",
        "CREATE DOMAIN positive AS int",
        "CREATE TABLE keyless (a int, b text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless SELECT g % 7, 'row ' || g % 50 FROM generate_series(1, 300) g",
    )
    steps = Steps()
    mirror = Mirror.create(database, warehouse, tasks)
    with mirror.pumping(steps):
        mirror.register("t", "keyless", format_version=3)
        mirror.register("other")
        mirror.await_live("public.t", "public.keyless", "public.other")
        wants_defaults(mirror, "t", "keyless", "other")
        mirror.await_frontier()
        files = data_files(mirror, "public.t")
        scalars = {kind: text for kind, text in DEFAULTS.items() if not kind.endswith("]")}
        added = ", ".join(f"ADD COLUMN c{n} {kind} DEFAULT {text}" for n, (kind, text) in enumerate(scalars.items()))
        database.execute(
            "UPDATE t SET v = 'before' WHERE id <= 20",
            "ALTER TABLE t ADD COLUMN d int DEFAULT 9",
            "ALTER TABLE keyless ADD COLUMN d numeric(10,2) DEFAULT 9.5",
            "UPDATE t SET v = 'after' WHERE id <= 30",
            "UPDATE t SET d = NULL WHERE id BETWEEN 25 AND 35",
            "UPDATE keyless SET b = 'changed' WHERE a = 1",
            "DELETE FROM keyless WHERE ctid IN (SELECT min(ctid) FROM keyless WHERE a = 2 GROUP BY b)",
        )
        mirror.await_frontier()
        assert steps.count(Step.TABLE_FILLING) == 0
        assert defaults(mirror, "public.t") == {"d": 9}
        assert defaults(mirror, "public.keyless") == {"d": "9.50"}
        assert files <= data_files(mirror, "public.t"), "they stay as they are"
        mirror.assert_equal("public.t", "public.keyless")
        # The value is what the command left, whatever becomes of the column, and of PostgreSQL's default.
        database.execute(
            "ALTER TABLE t ALTER d SET DEFAULT 10",
            "INSERT INTO t (id) VALUES (2000)",
            "ALTER TABLE t RENAME d TO e",
            "ALTER TABLE t ALTER e TYPE bigint",
            "UPDATE t SET e = e + 3000000000 WHERE id % 5 = 0",
        )
        mirror.await_frontier()
        assert defaults(mirror, "public.t") == {"e": 9}
        mirror.assert_equal("public.t")
        # In a table of version 2 the policy changes nothing.
        database.execute("ALTER TABLE other ADD COLUMN d int DEFAULT 9", f"ALTER TABLE t {added}")
        mirror.await_frontier()
        mirror.await_live("public.t", "public.other")
        mirror.await_frontier()
        assert steps.count(Step.TABLE_FILLING), "a type that Iceberg has no default of, and version 2"
        assert defaults(mirror, "public.other") == {}
        # Of a year before 1 there is none.
        left_out = {f"c{place}" for place, kind in enumerate(scalars) if kind == "timestamp"}
        assert set(defaults(mirror, "public.t")) == {"e", *(f"c{place}" for place in range(len(scalars)))} - left_out
        mirror.assert_equal("public.keyless", "public.other")
    location = mirror.location("public.keyless")
    scan = Scan(read_plan(read_any_version(location, _STORAGE), _STORAGE, "d = 9.50"), location)
    assert scan.to_arrow(1).num_rows == len(mirror.heap("keyless"))
    with connect(database.dsn, autocommit=True) as connection:
        (keyless,) = [table for table in load_tables(connection, mirror.settings.slot) if table.name.name == "keyless"]
    for engine, wrong in (("clickhouse", True), ("trino", True), ("pyiceberg", True), ("spark", False)):
        remarks = "\n".join(engine_remarks(engine, keyless))
        assert ("defaults of columns" in remarks) is wrong, (engine, remarks)
    mirror.assert_sound()
    assert_verified(database)


@pytest.mark.parametrize("where_different", [pytest.param(False, marks=pytest.mark.further), True])
def test_merges_looked_up_values_and_copies_keep_them(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, where_different: bool
) -> None:
    """A large value that an UPDATE leaves as it is is not in the stream: it is looked up in the lake."""
    database.execute(*TABLES)
    steps = Steps()
    mirror = Mirror.create(database, warehouse, tasks, copy_chunk_bytes=8192)
    mirror.register("t", format_version=3, feed=FeedOptions(FeedMode.ROWS, None))
    mirror.catch_up()
    wants_defaults(mirror, "t")
    with mirror.pumping(steps):
        database.execute(
            f"ALTER TABLE t ADD COLUMN large text DEFAULT '{'y' * 5000}'",
            "ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
            "UPDATE t SET v = 'once' WHERE id < 100",
            "UPDATE t SET v = 'twice' WHERE id < 50",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")

        def merged() -> bool:
            database.execute(
                "UPDATE t SET n = n + 1 WHERE id % 20 = 0", "DELETE FROM t WHERE id = (SELECT max(id) FROM t)"
            )
            mirror.await_frontier()
            return steps.count(Step.MERGED) > 1

        await_true(merged, 60, "files that lack the column are merged")
        mirror.assert_equal("public.t")
    assert steps.count(Step.TABLE_FILLING) == 0
    assert steps.count(Step.TABLE_COPIED_AGAIN) == 0
    with mirror.pumping(steps):
        resynced(mirror, "t", where_different=where_different)
        mirror.await_live("public.t")
        database.execute("UPDATE t SET v = 'after the copy' WHERE id % 7 = 0", "ALTER TABLE t DROP COLUMN n")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert defaults(mirror, "public.t") == {"large": "y" * 5000}, "Iceberg has no way to take it back"
    # The feed is of version 2, and a change from before has no value.
    assert defaults(mirror, "public.t__changes") == {}
    mirror.assert_sound()
    assert_verified(database)
