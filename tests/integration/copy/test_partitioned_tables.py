"""`register --partition-by`: files of a plain mirrored table are divided by any columns, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.errors import TableError
from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.killed_pump import die
from tests.support.partitioned_orders import (
    ORDERS,
    WITHOUT_INDEX,
    OrderChanges,
    assert_divided,
    by,
    unsorted_files,
)
from tests.support.resyncs import resynced
from tests.support.table_wishes import parse_choices

OPTIONS = [
    pytest.param({}, id="index"),
    pytest.param(WITHOUT_INDEX, id="no index", marks=pytest.mark.further),
]
SPECS = (
    "day(created), bucket(4, tenant)",
    "tenant",
    "truncate(10, id), month(created)",
    "bucket(3, id)",
    "code, n",
    "bucket(5, code), year(created), truncate(2, tenant), hour(created)",
)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(*ORDERS)
    return Mirror.create(database, warehouse, tasks, copy_chunk_bytes=8192, convert_age=0.2)


@pytest.mark.parametrize("spec", [*SPECS[:1], *(pytest.param(spec, marks=pytest.mark.further) for spec in SPECS[1:])])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_row_is_in_its_partition_once(mirror: Mirror, database: Database, spec: str, options: Any) -> None:
    """Copies, stream, large values that are looked up, rows that move to other partitions and keys, TRUNCATE, with
    deletes by position and by key, conversions and merges."""
    mirror = mirror.with_options(**options)
    changes = OrderChanges(database, len(spec))
    mirror.register("orders", choices=by(spec))
    with mirror.pumping():
        changes.some()
        mirror.await_live("public.orders")
        for _ in range(4):
            changes.some()
            mirror.await_frontier()
            mirror.assert_equal("public.orders")
            assert assert_divided(mirror.location("public.orders")) > 1
        database.execute("TRUNCATE orders", "INSERT INTO orders VALUES (1, now(), 't1', 1, 0, 'x')")
        changes.some()
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    assert_divided(mirror.location("public.orders"))
    mirror.assert_sound()


def test_deletes_by_key_apply_to_every_partition(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Nothing tells in which partition the former row is: neither the key nor an index."""
    database.execute(*ORDERS)
    gate = GatedCopies(tasks, convert_deletes)
    mirror = Mirror.create(database, warehouse, gate, **WITHOUT_INDEX, convert_age=3600)
    mirror.register("orders", choices=by("day(created), tenant"))
    gate.hold()
    with mirror.pumping():
        mirror.await_live("public.orders")
        database.execute(
            "UPDATE orders SET tenant = 'moved', created = created + interval '1 year' WHERE id % 3 = 0",
            "DELETE FROM orders WHERE id % 5 = 0",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        location = mirror.location("public.orders")
        summary = StaticTable.from_metadata(location).current_snapshot()
        assert summary is not None
        assert summary.summary is not None
        assert int(summary.summary["total-equality-deletes"] or 0) > 0
        assert_divided(location)
        gate.let_go()


@pytest.mark.further
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("partitions", [None, "bucket(2, tenant)"])
def test_rows_of_each_file_are_sorted(
    mirror: Mirror, database: Database, partitions: str | None, options: dict[str, Any]
) -> None:
    """Copies, batches and merges; positions of deletes follow the rows."""
    mirror = mirror.with_options(**options)
    changes = OrderChanges(database, 21)
    mirror.register("orders", choices=by(partitions, "code, created desc, id"))
    with mirror.pumping():
        changes.some()
        mirror.await_live("public.orders")
        for _ in range(5):
            changes.some()
            mirror.await_frontier()
            mirror.assert_equal("public.orders")
            assert unsorted_files(mirror.location("public.orders"), "code") == 0
        table = StaticTable.from_metadata(mirror.location("public.orders"))
        names = {field.field_id: field.name for field in table.schema().fields}
        assert [
            (names[field.source_id], field.direction.name, field.null_order.value)
            for field in table.sort_order().fields
        ] == [("code", "ASC", "nulls-last"), ("created", "DESC", "nulls-first"), ("id", "ASC", "nulls-last")]
        database.execute("ALTER TABLE orders RENAME code TO number", "ALTER TABLE orders DROP COLUMN created")
        database.execute("UPDATE orders SET n = n + 1 WHERE id % 2 = 0")
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        table = StaticTable.from_metadata(mirror.location("public.orders"))
        left = [table.schema().find_column_name(field.source_id) for field in table.sort_order().fields]
        assert left == ["number", "id"]
        with StatusReader(mirror.settings) as reader:
            assert reader.read().tables[0].sort_by == "number, id"
    mirror.assert_sound()


@pytest.mark.further
def test_what_changes_about_the_table(mirror: Mirror, database: Database) -> None:
    """Columns by which it is divided may be renamed; without one of them, or with another type, it is copied again."""
    mirror.register("orders", choices=by("bucket(4, tenant), code"))
    changes = OrderChanges(database, 3)
    with mirror.pumping():
        mirror.await_live("public.orders")
        database.execute("ALTER TABLE orders ADD COLUMN code_identity int DEFAULT 5")
        changes.some()
        database.execute(
            "ALTER TABLE orders RENAME tenant TO customer", "UPDATE orders SET customer = 'c' WHERE id % 7 = 0"
        )
        mirror.await_frontier()
        mirror.await_live("public.orders")
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        with StatusReader(mirror.settings) as reader:
            assert reader.read().tables[0].partition_by == "bucket(4, customer), code"
        resynced(mirror, "orders")
        database.execute("UPDATE orders SET customer = 'd' WHERE id % 9 = 0")
        mirror.await_live("public.orders")
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        assert_divided(mirror.location("public.orders"))
        for change, partition_by in (
            ("DROP COLUMN code", "bucket(4, customer)"),
            ("ALTER customer TYPE bytea USING customer::bytea", "bucket(4, customer)"),
            ("ALTER customer TYPE boolean USING id % 2 = 0", ""),
        ):
            database.execute(f"ALTER TABLE orders {change}", "DELETE FROM orders WHERE id % 11 = 0")
            mirror.await_frontier()
            mirror.await_live("public.orders")
            mirror.await_frontier()
            mirror.assert_equal("public.orders")
            with StatusReader(mirror.settings) as reader:
                assert reader.read().tables[0].partition_by == partition_by
            if partition_by:
                assert_divided(mirror.location("public.orders"))
        assert not StaticTable.from_metadata(mirror.location("public.orders")).spec().fields


@pytest.mark.further
@pytest.mark.parametrize("step", [Step.WRITTEN, Step.STAGED, Step.PUBLISHED, Step.CHUNK_COPIED])
def test_a_killed_pump(mirror: Mirror, database: Database, step: Step) -> None:
    mirror.register("orders", choices=by("day(created), bucket(2, tenant)"))
    changes = OrderChanges(database, 11)
    for nth in (1, 2):
        if step is Step.CHUNK_COPIED and nth == 2:
            resynced(mirror, "orders")
        changes.some()
        die(mirror, step, 1, meanwhile=lambda: changes.some(5), once="false", copy_chunk_bytes=8192)
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    assert_divided(mirror.location("public.orders"))
    mirror.assert_sound()


def test_ingested_rows_are_divided_and_found_again(mirror: Mirror, database: Database, tmp_path: Path) -> None:
    """Their places are noted as they are written: later changes delete them there."""
    mirror.register("orders", choices=by("day(created), tenant", "n desc, id"))
    file = tmp_path / "rows.csv"
    file.write_text(
        "id,created,tenant,code,n,big\n"
        + "".join(f"{5000 + n},2026-04-0{n % 3 + 1},t{n % 2},1.25,{n * 7 % 40},x\n" for n in range(40)),
        encoding="utf-8",
    )
    with mirror.pumping():
        mirror.await_live("public.orders")
        database.execute("UPDATE orders SET n = n + 1")
        mirror.await_frontier()
        ingest(mirror.settings, IngestRequest("orders", (str(file),)))
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        database.execute(
            "UPDATE orders SET n = -n, tenant = 'moved' WHERE id >= 5000 AND id % 3 = 0",
            "DELETE FROM orders WHERE id >= 5000 AND id % 5 = 0",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        assert_divided(mirror.location("public.orders"))


def test_a_table_whose_rows_are_only_inserted(mirror: Mirror, database: Database) -> None:
    database.execute(
        "CREATE TABLE log (moment timestamptz, tenant text)",
        "INSERT INTO log SELECT timestamptz '2026-03-01 00:00Z' + g % 5 * interval '1 day', 't' || g % 3"
        " FROM generate_series(1, 90) g",
    )
    choices = parse_choices([], [], append_only=True, partition_by="day(moment)", sort_by="tenant")
    mirror.register("log", choices=choices)
    with mirror.pumping():
        mirror.await_live("public.log")
        for _ in range(3):
            database.execute("INSERT INTO log SELECT * FROM log LIMIT 20", "INSERT INTO log VALUES (NULL, NULL)")
            mirror.await_frontier()
            mirror.assert_equal("public.log")
        assert_divided(mirror.location("public.log"))
        assert unsorted_files(mirror.location("public.log"), "tenant") == 0


def test_engines_skip_files(mirror: Mirror) -> None:
    mirror.register("orders", choices=by("day(created), bucket(4, tenant)"))
    mirror.catch_up()
    table = StaticTable.from_metadata(mirror.location("public.orders"))
    everything = len(list(table.scan().plan_files()))
    day = len(
        list(
            table.scan("created >= '2026-03-05T00:00:00+00:00' and created < '2026-03-06T00:00:00+00:00'").plan_files()
        )
    )
    tenant = len(list(table.scan("tenant == 't2'").plan_files()))
    assert 0 < day < everything / 5
    assert 0 < tenant < everything / 2


def test_the_commands(mirror: Mirror, database: Database, run: RunCommand, tmp_path: Path) -> None:
    slot = ("--slot", mirror.settings.slot)
    layout = ("--partition-by", "Day( created ) , bucket(4,tenant)", "--sort-by", "tenant ASC, id DESC NULLS LAST")
    registered = run("register", "orders", *layout, *slot)
    assert registered.exit_code == 0, registered.stderr
    assert run("register", "orders", *layout, *slot).exit_code == 0, "once more"
    assert run("register", "orders", *slot).exit_code == 0, "whatever it is"
    refused = run("register", "orders", "--partition-by", "tenant", *slot)
    assert (refused.exit_code, "--partition-by 'day(created), bucket(4, tenant)'" in refused.stderr) == (1, True)
    exported = run("export", *slot)
    assert 'partition_by = "day(created), bucket(4, tenant)"' in exported.stdout
    assert 'sort_by = "tenant, id desc nulls last"' in exported.stdout
    file = tmp_path / "tables.toml"
    file.write_text(exported.stdout, encoding="utf-8")
    assert run("apply", str(file), *slot).stdout == "nothing differs\n"
    assert_divided(mirror.location("public.orders"))
    assert run("verify", "orders", *slot).exit_code == 0


_UNFIT_COLUMNS: list[tuple[str, str]] = [
    ("day(missing)", "has no mirrored column missing"),
    ("day(tenant)", "column tenant is string in the lake: use tenant, bucket(16, tenant), truncate(10, tenant)"),
    ("hour(code)", "use code, bucket(16, code)"),
    ("year(f)", "column f is double in the lake: choose another column"),
]


def test_columns_that_do_not_do(mirror: Mirror, database: Database, run: RunCommand) -> None:
    database.execute("ALTER TABLE orders ADD COLUMN f float8")
    for spec, message in _UNFIT_COLUMNS:
        refused = run("register", "orders", "--partition-by", spec, "--slot", mirror.settings.slot)
        assert refused.exit_code == 1
        assert message.split(":", maxsplit=1)[0] in " ".join(refused.stderr.split())
        assert message.rsplit(": ", maxsplit=1)[-1] in " ".join(refused.stderr.split())
        assert mirror.state("public.orders") == ""
        with pytest.raises(TableError):
            mirror.register("orders", choices=by(spec))


_WRONG_OPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("orders", "--partition-by", ""), "names no column"),
    (("orders", "--partition-by", "day(created) tenant"), "is not understood"),
    (("orders", "--partition-by", "day(created),"), "is not understood"),
    (("orders", "--partition-by", "week(created)"), "week(created) is no partition field"),
    (("orders", "--partition-by", "bucket(tenant)"), "bucket(tenant) is no partition field"),
    (("orders", "--partition-by", "bucket(0, tenant)"), "is no partition field"),
    (("orders", "--partition-by", "day(4, created)"), "is no partition field"),
    (("orders", "--partition-by", "tenant, identity(tenant)"), "names a field twice"),
    (("orders", "--partition-by", "tenant", "--heap-retention", "10"), "use --lake-partition"),
    (("public.*", "--partition-by", "tenant"), "which has to be named"),
    (("public.*", "--sort-by", "tenant"), "which has to be named"),
    (("orders", "--sort-by", ""), "names no column"),
    (("orders", "--sort-by", "tenant down"), "is not understood"),
    (("orders", "--sort-by", "tenant, tenant desc"), "names a column twice"),
    (("orders", "--sort-by", "tenant", "--mode", "tiered"), "use --lake-partition"),
]


def test_wrong_options(mirror: Mirror, run: RunCommand) -> None:
    for options, message in _WRONG_OPTIONS:
        refused = run("register", *options, "--slot", mirror.settings.slot)
        assert (refused.exit_code, message in " ".join(refused.stderr.split())) == (2, True), (options, refused.stderr)
