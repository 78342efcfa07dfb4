"""`register --alter`: the layout of a plain mirrored table changes while it is mirrored, and its rows never do."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.errors import ConnectionLost, TableError
from mirror_pump.ops.register.lake_partitions import LayoutOptions
from mirror_pump.ops.resync.layout_change import LayoutAction, LayoutChange, alter_layout
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.partition_choices import parse_partition_by, parse_sort_by
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.ended_commands import ENDED
from tests.support.killed_pump import die
from tests.support.partitioned_orders import (
    ORDERS,
    OrderChanges,
    assert_divided,
    by,
    data_files,
    unsorted_files,
)
from tests.support.resyncs import resynced


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(*ORDERS)
    return Mirror.create(database, warehouse, tasks, copy_chunk_bytes=8192, convert_age=0.2)


def altered(
    mirror: Mirror, partition_by: str | None = None, sort_by: str | None = None, *, name: str = "orders"
) -> LayoutChange:
    """As `--alter` with `--partition-by` and `--sort-by`; empty: without."""
    return alter_layout(
        mirror.settings,
        name,
        LayoutOptions(
            None if partition_by is None else parse_partition_by(partition_by) if partition_by else (),
            None if sort_by is None else parse_sort_by(sort_by) if sort_by else (),
        ),
        wait=False,
        on_progress=lambda _: None,
    )


def fields_of(location: str) -> list[tuple[str, str]]:
    """Columns and transforms of the lake table's partition spec."""
    table = StaticTable.from_metadata(location)
    return [
        (table.schema().find_column_name(field.source_id) or "", str(field.transform)) for field in table.spec().fields
    ]


def order_of(location: str) -> list[str]:
    table = StaticTable.from_metadata(location)
    return [table.schema().find_column_name(field.source_id) or "" for field in table.sort_order().fields]


@pytest.mark.parametrize("index", [True, pytest.param(False, marks=pytest.mark.further)])
def test_partitions_change_while_the_pump_runs(mirror: Mirror, database: Database, index: bool) -> None:
    """From none to other columns, to the key, with another order, and back to what was there before. Readers have the
    rows of their frontier at every moment."""
    mirror = mirror if index else mirror.with_options(index_memory=0, index_disk=0)
    changes = OrderChanges(database, 5)
    mirror.register("orders")
    with mirror.pumping():
        mirror.await_live("public.orders")
        changes.some()
        for partition_by, sort_by, fields in (
            ("day(created), bucket(4, tenant)", None, [("created", "day"), ("tenant", "bucket[4]")]),
            ("bucket(3, id)", "code, id", [("id", "bucket[3]")]),
            ("bucket(4, tenant)", None, [("tenant", "bucket[4]")]),
            ("", "", []),
            ("day(created), bucket(4, tenant)", "code", [("created", "day"), ("tenant", "bucket[4]")]),
        ):
            change = altered(mirror, partition_by, sort_by)
            assert (change.action, change.partition_by) == (LayoutAction.COPY, partition_by)
            changes.some()
            mirror.await_live("public.orders")
            changes.some()
            mirror.await_frontier()
            mirror.assert_equal("public.orders")
            location = mirror.location("public.orders")
            assert fields_of(location) == fields
            if fields:
                assert assert_divided(location) > 1
        assert order_of(mirror.location("public.orders")) == ["code"]
        assert len(StaticTable.from_metadata(mirror.location("public.orders")).specs()) == 4
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    mirror.assert_sound()


def test_an_order_changes_at_once(mirror: Mirror, database: Database) -> None:
    """Without a copy: the metadata at once, new files from then on."""
    changes = OrderChanges(database, 6)
    mirror.register("orders", choices=by("bucket(2, tenant)"))
    with mirror.pumping():
        mirror.await_live("public.orders")
        files = data_files(mirror.location("public.orders"))
        assert altered(mirror, sort_by="code desc, id").action is LayoutAction.SORT
        location = mirror.location("public.orders")
        assert order_of(location) == ["code", "id"]
        assert data_files(location) >= files
        assert altered(mirror, sort_by="code desc, id").action is LayoutAction.NOTHING
        assert altered(mirror, sort_by="code, id").action is LayoutAction.SORT
        assert altered(mirror, partition_by="bucket(2, tenant)").action is LayoutAction.NOTHING
        changes.some()
        mirror.await_frontier()
        files = data_files(mirror.location("public.orders"))
        database.execute("UPDATE orders SET n = n + 1")
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        assert order_of(mirror.location("public.orders")) == ["code", "id"]
        assert data_files(mirror.location("public.orders")) - files
        assert unsorted_files(mirror.location("public.orders"), "code", files) == 0
        assert altered(mirror, sort_by="").action is LayoutAction.SORT
        assert order_of(mirror.location("public.orders")) == []
    mirror.assert_sound()


@pytest.mark.further
def test_a_command_that_ends_in_the_middle_has_done_nothing(mirror: Mirror, database: Database) -> None:
    """At each of its writes the session is lost. No pump runs; the next one makes what a whole command asked for."""
    mirror.register("orders", choices=by("tenant", "n"))
    mirror.catch_up()
    before = mirror.location("public.orders")
    database.execute(ENDED)
    for relation in ("modak.tables", "modak.iceberg_tables", "modak.mirror_tables"):
        database.execute(
            f"CREATE TRIGGER ends AFTER UPDATE ON {relation} FOR EACH STATEMENT EXECUTE FUNCTION audit.end_session()"
        )
        with pytest.raises(ConnectionLost):
            altered(mirror, "day(created)", "code")
        database.execute(f"DROP TRIGGER ends ON {relation}")
        assert (mirror.location("public.orders"), mirror.state("public.orders")) == (before, "live")
        database.execute("UPDATE orders SET n = n + 1 WHERE id < 40")
        mirror.catch_up()
        mirror.assert_equal("public.orders")
        before = mirror.location("public.orders")
        assert (fields_of(before), order_of(before)) == ([("tenant", "identity")], ["n"])
    for _ in range(2):
        assert altered(mirror, "day(created)", "code").partition_by == "day(created)"
        assert mirror.state("public.orders") == "waiting"
        mirror.assert_equal("public.orders")
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    location = mirror.location("public.orders")
    assert (fields_of(location), order_of(location)) == ([("created", "day")], ["code"])
    assert_divided(location)
    assert altered(mirror, "day(created)", "code").action is LayoutAction.NOTHING
    mirror.assert_sound()


@pytest.mark.further
@pytest.mark.parametrize("step", [Step.CHUNK_COPIED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED])
def test_a_killed_pump(mirror: Mirror, database: Database, step: Step) -> None:
    """Each pump is killed at the step, and the layout changes again before the next one."""
    # So that a copy has several chunks, with a file for each partition. The changes' new keys never come to these.
    database.execute("INSERT INTO orders (id, n) SELECT g, 0 FROM generate_series(-4000, -1) g")
    mirror.register("orders")
    mirror.catch_up()
    changes = OrderChanges(database, 17)
    for nth, partition_by in enumerate(("day(created), code", "bucket(3, id)", "", "tenant"), 1):
        altered(mirror, partition_by, "code, id" if nth % 2 else "")
        die(mirror, step, 1 + nth % 2, meanwhile=lambda: changes.some(5), once="false", copy_chunk_bytes=8192)
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    location = mirror.location("public.orders")
    assert (fields_of(location), order_of(location)) == ([("tenant", "identity")], [])
    assert_divided(location)
    mirror.assert_sound()


@pytest.mark.further
@pytest.mark.parametrize("seed", range(3))
def test_any_changes_at_any_time(mirror: Mirror, database: Database, seed: int) -> None:
    """Layouts, columns, copies, TRUNCATE and pauses in any order, beside writers, a pump that restarts, and an engine
    that commits to the lake table."""
    draw = random.Random(seed)
    changes = OrderChanges(database, seed)
    mirror.register("orders", choices=by("tenant"))

    def once() -> None:
        match draw.randrange(12):
            case 0:
                resynced(mirror, "orders")
            case 1:
                database.execute("TRUNCATE orders", ORDERS[2])
            case 2:
                database.execute(
                    "ALTER TABLE orders ADD COLUMN code_identity int", "ALTER TABLE orders DROP code_identity"
                )
            case 3:
                pause(mirror.settings, "orders")
                altered(mirror, draw.choice(layouts))
                resume(mirror.settings, "orders")
            case _:
                altered(mirror, draw.choice([None, *layouts]), draw.choice([None, "", "code", "n desc, id"]))

    layouts = ["", "tenant", "bucket(3, id)", "day(created), code", "truncate(10, id), month(created)"]
    for _ in range(6):
        with mirror.pumping():
            for _ in range(draw.randrange(1, 4)):
                once()
                changes.some(draw.randrange(30))
                if draw.random() < 0.5:
                    mirror.await_live("public.orders")
                    mirror.await_frontier()
                    mirror.assert_equal("public.orders")
        once()
        changes.some(5)
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    if fields_of(mirror.location("public.orders")):
        assert_divided(mirror.location("public.orders"))
    mirror.assert_sound()


def test_a_paused_table_and_one_that_is_being_copied(mirror: Mirror, database: Database) -> None:
    """The copy that resumes it has the layout; a copy that is under way begins again."""
    mirror.register("orders", choices=by("tenant"))
    assert altered(mirror, "bucket(3, id)").action is LayoutAction.COPY, "before the first copy"
    mirror.catch_up()
    assert fields_of(mirror.location("public.orders")) == [("id", "bucket[3]")]
    pause(mirror.settings, "orders")
    database.execute("UPDATE orders SET n = 7")
    change = altered(mirror, "code", "n")
    assert (change.action, change.state, change.error) == (LayoutAction.LATER, "waiting", None)
    mirror.catch_up()
    assert fields_of(mirror.location("public.orders")) == [("id", "bucket[3]")]
    resume(mirror.settings, "orders")
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    assert fields_of(mirror.location("public.orders")) == [("code", "identity")]
    assert_divided(mirror.location("public.orders"))


@pytest.mark.further
def test_the_commands(mirror: Mirror, database: Database, run: RunCommand, tmp_path: Path) -> None:
    slot = ("--slot", mirror.settings.slot)
    assert run("register", "orders", *slot).exit_code == 0
    layout = ("--partition-by", "bucket(4, tenant)", "--sort-by", "code")
    dry = run("register", "orders", "--alter", *layout, "--dry-run", *slot)
    assert "would be partitioned by bucket(4, tenant), sorted by code; copied again" in dry.stdout
    assert fields_of(mirror.location("public.orders")) == []
    done = run("register", "orders", "--alter", *layout, *slot)
    assert done.stdout == "public.orders: partitioned by bucket(4, tenant), sorted by code; copied again, 120 rows\n"
    again = run("register", "orders", "--alter", *layout, "--json", *slot)
    assert json.loads(again.stdout) == [
        {
            "table": "public.orders",
            "action": "nothing",
            "partition_by": "bucket(4, tenant)",
            "sort_by": "code",
            "state": "live",
            "rows": 120,
            "error": None,
            "remedy": None,
        }
    ]
    refused = run("register", "orders", "--sort-by", "n", *slot)
    assert (refused.exit_code, "--alter` with --partition-by" in refused.stderr) == (1, True)
    file = tmp_path / "tables.toml"
    text = run("export", *slot).stdout
    file.write_text(text.replace("bucket(4, tenant)", "day(created)").replace('"code"', '"n, id"'), encoding="utf-8")
    assert run("apply", str(file), "--dry-run", *slot).stdout == "alter public.orders\n"
    applied = run("apply", str(file), *slot)
    assert (applied.exit_code, "partitioned by day(created), sorted by n, id" in applied.stdout) == (0, True)
    assert run("apply", str(file), *slot).stdout == "nothing differs\n"
    file.write_text("\n".join(line for line in text.splitlines() if "_by" not in line), encoding="utf-8")
    assert "not partitioned, not sorted" in run("apply", str(file), *slot).stdout
    location = mirror.location("public.orders")
    assert (fields_of(location), order_of(location)) == ([], [])
    assert run("verify", "orders", *slot).exit_code == 0


def test_tables_that_cannot(mirror: Mirror, database: Database) -> None:
    database.execute("CREATE TABLE other (a int)")
    mirror.register("orders")
    mirror.catch_up()
    for name, partition_by, message in (
        ("other", "a", "is not registered"),
        ("orders", "missing", "has no mirrored column missing"),
        ("orders", "day(tenant)", "column tenant is string in the lake"),
    ):
        with pytest.raises(TableError, match=message):
            altered(mirror, partition_by, name=name)
    database.execute("UPDATE modak.mirror_tables SET state = 'failed', error = 'x' WHERE lake_table = 'orders'")
    with pytest.raises(TableError, match="has failed: nothing more is written"):
        altered(mirror, "tenant")
    database.execute("UPDATE modak.mirror_tables SET state = 'live', error = NULL WHERE lake_table = 'orders'")


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (("--snapshot-only",), ["--changes=keys"]),
        (("--heap-retention", "5000"), ["--changes=keys", "--sort-by=id"]),
    ],
)
def test_what_cannot_be_altered_is_not_advised(
    mirror: Mirror, database: Database, run: RunCommand, options: tuple[str, ...], given: list[str]
) -> None:
    """A table is told what does not go together, by the option that was given, and not to be altered to that."""
    database.execute(
        "CREATE TABLE events (id bigint, at bigint, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (1000)",
    )
    slot = ("--slot", mirror.settings.slot)
    assert run("register", "events", *options, "--yes", "--no-wait", *slot).exit_code == 0
    for option in given:
        for alter in ((), ("--alter",)):
            refused = run("register", "events", option, *alter, "--no-wait", *slot)
            assert refused.exit_code == 1
            assert f"{option.partition('=')[0]} does not go with {options[0]}" in refused.stderr
            assert "--alter" not in refused.stderr


_WRONG_OPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("orders", "--alter"), "--alter requires"),
    (("--all", "--alter", "--no-sort-by"), "about tables that are named"),
    (("orders", "--alter", "--no-sort-by", "--sort-by", "n"), "exclude each other"),
    (("orders", "--alter", "--sort-by", "n", "--where", "n > 1"), "alone"),
    (("orders", "--alter", "--sort-by", "n", "--yes"), "alone"),
    (("orders", "--no-sort-by"), "require --alter"),
    (("orders", "--json"), "require --alter"),
    (("orders", "--alter", "--partition-by", "week(created)"), "is no partition field"),
]


def test_wrong_options(mirror: Mirror, run: RunCommand) -> None:
    for options, message in _WRONG_OPTIONS:
        refused = run("register", *options, "--slot", mirror.settings.slot)
        assert (refused.exit_code, message in " ".join(refused.stderr.split())) == (2, True), (options, refused.stderr)
