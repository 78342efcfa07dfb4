"""Tables without a key whose columns are masked or left out, whose rows are filtered, or that are partitioned, in
PostgreSQL or in the lake. The oracle is what PostgreSQL itself makes of the heap."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from mirror_pump.errors import TableError
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.register.lake_partitions import LayoutOptions
from mirror_pump.ops.resync.layout_change import alter_layout
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.source.relations.partition_choices import parse_partition_by
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, paced
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.integration.types.test_masks import MARKER, assert_hidden
from tests.support.crashing_pump import dying_pump
from tests.support.error_bounds import printed_seed
from tests.support.pipeline import writing
from tests.support.resyncs import resynced
from tests.support.table_wishes import parse_choices

SHA256 = "encode(sha256(convert_to({0}, 'UTF8')), 'hex')"


@dataclass(frozen=True)
class Bag:
    """A table `bag` without a key, with many equal rows, and how it is mirrored."""

    choices: ColumnChoices
    lake: str
    """A query of what the lake has."""
    partitioned: bool = False
    hidden: bool = field(default=False)
    """Whether no secret is in the lake."""

    def create(self, database: Database) -> None:
        columns = "n int, secret text, big text, at date, v float8"
        if self.partitioned:
            database.execute(
                f"CREATE TABLE bag ({columns}) PARTITION BY RANGE (n)",
                "CREATE TABLE bag_low PARTITION OF bag FOR VALUES FROM (MINVALUE) TO (3)",
                # Its columns are in another order, and one was dropped.
                "CREATE TABLE bag_high (v float8, gone int, at date, big text, n int, secret text)",
                "ALTER TABLE bag_high DROP COLUMN gone",
                "ALTER TABLE bag ATTACH PARTITION bag_high FOR VALUES FROM (3) TO (5)",
                "CREATE TABLE bag_rest PARTITION OF bag DEFAULT",
                *(f"ALTER TABLE bag_{leaf} REPLICA IDENTITY FULL" for leaf in ("low", "high", "rest")),
            )
        else:
            database.execute(f"CREATE TABLE bag ({columns})")
        database.execute(
            "ALTER TABLE bag REPLICA IDENTITY FULL",
            *(f"ALTER TABLE {heap} ALTER big SET STORAGE EXTERNAL" for heap in self.heaps),
            f"INSERT INTO bag SELECT g % 7, '00000001{MARKER}', CASE WHEN g % 50 = 0 THEN repeat('{MARKER}', 300) END,"
            " DATE '2026-01-01' + g % 40, 0 FROM generate_series(1, 3000) g",
        )

    @property
    def heaps(self) -> tuple[str, ...]:
        return ("bag_low", "bag_high", "bag_rest") if self.partitioned else ("bag",)


def change_rows(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """Inserts, updates and deletes of some among many equal rows. Rows move between partitions, and into the filter and
    out of it."""
    for _ in range(chance.randrange(1, 5)):
        secret = chance.choice(["NULL", f"'{chance.randrange(3):08}{MARKER}'"])
        big = chance.choice(["NULL", f"repeat('{MARKER}', {chance.choice([1, 400])})"])
        n = chance.choice(["NULL", *map(str, range(7))])
        rows = (
            f"(tableoid, ctid) IN (SELECT tableoid, ctid FROM bag WHERE n = {chance.randrange(7)}"
            f" LIMIT {chance.randrange(1, 4)})"
        )
        match chance.randrange(6):
            case 0 | 1:
                value = chance.choice(["'NaN'", "'-0'", "0", "1.5", "NULL"])
                connection.execute(
                    f"INSERT INTO bag SELECT {n}, {secret}, {big}, DATE '2026-01-01' + {chance.randrange(60)}, {value}"
                    f" FROM generate_series(1, {chance.randrange(1, 4)})".encode()
                )
            case 2:
                connection.execute(f"UPDATE bag SET n = {n} WHERE {rows}".encode())
            case 3:
                connection.execute(f"UPDATE bag SET secret = {secret}, at = at + 1 WHERE {rows}".encode())
            case 4:
                connection.execute(f"UPDATE bag SET v = v + 1 WHERE {rows}".encode())
            case _:
                connection.execute(f"DELETE FROM bag WHERE {rows}".encode())
    if chance.random() < 0.2:
        connection.rollback()


MASKED = Bag(
    parse_choices([], [], ["secret=sha256", "big=prefix(3)"]),
    f"SELECT n, {SHA256.format('secret')}, left(big, 3), at, v FROM bag",
    hidden=True,
)
BAGS = {
    "masks": MASKED,
    "left out": Bag(parse_choices([], ["secret", "big"]), "SELECT n, at, v FROM bag", hidden=True),
    "layout": Bag(parse_choices([], [], partition_by="month(at), bucket(2, n)", sort_by="v"), "SELECT * FROM bag"),
    "tree": Bag(parse_choices([], []), "SELECT * FROM bag", partitioned=True),
    "filter": Bag(parse_choices([], [], where="n < 4"), "SELECT * FROM bag WHERE n < 4"),
    "all": Bag(
        parse_choices([], ["big"], ["secret=sha256"], where="n < 4", partition_by="month(at)"),
        f"SELECT n, {SHA256.format('secret')}, at, v FROM bag WHERE n < 4",
        partitioned=True,
        hidden=True,
    ),
}
_USUAL = "all"
"""The bag that has each of the rules."""


def assert_bag(mirror: Mirror, bag: Bag) -> None:
    with mirror.database.session() as connection:
        rows = [tuple(row) for row in connection.execute(bag.lake.encode()).fetchall()]
    assert_same(rows, mirror.lake("public.bag"), mirror.error("public.bag"))
    (report,) = verify(mirror.settings, ["bag"]).tables
    assert report.comparison is not None, report
    assert report.comparison.different_rows == 0, report
    mirror.assert_sound()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == _USUAL else pytest.mark.further) for name in BAGS]
)
def test_the_lake_has_each_row_as_often_as_the_heap(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, name: str
) -> None:
    """While it is copied, streamed, killed and copied again, rows of it change all the time."""
    bag, seed = BAGS[name], printed_seed()
    bag.create(database)
    steps = Steps()
    limits = paced(0.05).model_copy(update={"rows_read_at_once": 0 if seed % 2 else 200_000})
    mirror = Mirror.create(database, warehouse, tasks, limits=limits, copy_chunk_bytes=1 << 16, copy_workers=2)
    with writing(database, change_rows, seed) as written:
        with mirror.pumping(steps):
            mirror.register("bag", choices=bag.choices)
            await_true(lambda: steps.count(Step.CHUNK_COPIED), 60, "a chunk is copied")
        with mirror.pumping(steps):
            mirror.await_live("public.bag", seconds=120)
            before = written()
            await_true(lambda: written() > before + 10, 60, "rows of the live table change")
        with dying_pump(mirror, seed, 0.05, 0.6):
            before = written()
            await_true(lambda: written() > before + 20, 60, "rows change while the pump is killed")
        with mirror.pumping(steps):
            resynced(mirror, "bag")
            before = written()
            await_true(lambda: written() > before + 10, 60, "rows change again")
    with mirror.pumping(steps):
        mirror.await_live("public.bag")
        mirror.await_frontier()
        assert_bag(mirror, bag)
    if bag.hidden:
        assert_hidden(mirror, warehouse, steps)


def test_a_new_column_of_a_masked_table_is_left_out(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """Old rows have it from then on, and are found without it."""
    MASKED.create(database)
    mirror, steps = Mirror.create(database, warehouse, tasks), Steps()
    some = "ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 5))"
    with mirror.pumping(steps):
        mirror.register("bag", choices=MASKED.choices)
        mirror.await_live("public.bag")
        database.execute(
            f"ALTER TABLE bag ADD COLUMN later text DEFAULT '{MARKER}'",
            f"UPDATE bag SET later = later || n WHERE {some}",
            f"DELETE FROM bag WHERE {some}",
        )
        mirror.await_frontier()
        # The stream may hear of the end of its copy after the ALTER: then it is copied again.
        mirror.await_live("public.bag")
        mirror.await_frontier()
        assert_bag(mirror, MASKED)
    assert_hidden(mirror, warehouse, steps)


@pytest.mark.further
def test_partitions_come_and_go(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Of a table without a key the rows of a partition that goes are not told by its bounds, so the rest is copied
    again. A partition whose rows can only be inserted is mirrored."""
    bag = BAGS["tree"]
    bag.create(database)
    mirror = Mirror.create(database, warehouse, tasks)
    some = "(tableoid, ctid) IN (SELECT tableoid, ctid FROM bag ORDER BY random() LIMIT 5)"

    def settle() -> None:
        mirror.await_frontier()
        mirror.await_live("public.bag")
        mirror.await_frontier()
        assert_bag(mirror, bag)

    with mirror.pumping():
        mirror.register("bag")
        mirror.await_live("public.bag")
        database.execute(
            "DELETE FROM bag WHERE n = 5",
            "CREATE TABLE bag_five PARTITION OF bag FOR VALUES FROM (5) TO (6)",
            "INSERT INTO bag (n) SELECT 5 FROM generate_series(1, 10)",
        )
        settle()
        with pytest.raises(psycopg.Error, match="does not have a replica identity"):
            database.execute("DELETE FROM bag WHERE n = 5")
        assert "bag_five" in repr(examine(mirror.settings))
        database.execute("ALTER TABLE bag_five REPLICA IDENTITY FULL", f"DELETE FROM bag WHERE n = 5 AND {some}")
        settle()
        for change in ("DETACH PARTITION bag_high", "ATTACH PARTITION bag_high FOR VALUES FROM (3) TO (5)"):
            database.execute(f"ALTER TABLE bag {change}", f"DELETE FROM bag WHERE {some}")
            settle()
        database.execute("TRUNCATE bag_low", f"UPDATE bag SET n = 1 WHERE {some}")
        settle()


def test_a_partition_that_stops_sending_whole_rows_ends_the_mirroring(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """With a key of its own, its DELETE would look like that of a row that has nothing but NULLs besides. There is such
    a row in another partition."""
    bag = BAGS["tree"]
    bag.create(database)
    mirror = Mirror.create(database, warehouse, tasks)
    with mirror.pumping():
        mirror.register("bag")
        mirror.await_live("public.bag")
        database.execute("DELETE FROM bag_high", "INSERT INTO bag (n, secret) VALUES (3, 'one')")
        mirror.await_frontier()
        before = mirror.lake("public.bag")
        database.execute(
            "ALTER TABLE bag_high ADD PRIMARY KEY (n)",
            "ALTER TABLE bag_high REPLICA IDENTITY DEFAULT",
            "DELETE FROM bag WHERE n = 3",
        )
        mirror.await_frontier()
        assert mirror.state("public.bag") == "failed"
        assert "another replica identity" in mirror.error("public.bag")
        assert mirror.lake("public.bag") == before


def test_the_layout_changes_later(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    bag = BAGS["layout"]
    bag.create(database)
    mirror = Mirror.create(database, warehouse, tasks)
    some = "ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 50))"
    with mirror.pumping():
        mirror.register("bag")
        mirror.await_live("public.bag")
        database.execute(f"DELETE FROM bag WHERE {some}")
        wish = LayoutOptions(parse_partition_by("month(at)"), None)
        alter_layout(mirror.settings, "bag", wish, wait=False, on_progress=lambda _: None)
        database.execute(f"DELETE FROM bag WHERE {some}")
        mirror.await_frontier()
        mirror.await_live("public.bag")
        database.execute(f"UPDATE bag SET at = at + 20 WHERE {some}")
        mirror.await_frontier()
        assert_bag(mirror, bag)


def test_what_is_refused(database: Database, warehouse: str) -> None:
    BAGS["tree"].create(database)
    database.execute("CREATE TABLE single (n int, v text)", "ALTER TABLE single REPLICA IDENTITY FULL")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())

    def refusal(table: str, choices: ColumnChoices) -> str:
        with pytest.raises(TableError) as refused:
            mirror.register(table, choices=choices)
        return f"{refused.value} {refused.value.remedy}"

    assert "without --append-only" in refusal("single", ColumnChoices(append_only=True))
    assert "use --exclude-column" in refusal("single", parse_choices([], [], listed="n"))
    database.execute("CREATE TABLE bag_ten PARTITION OF bag FOR VALUES FROM (10) TO (11)")
    assert 'ALTER TABLE "public"."bag_ten" REPLICA IDENTITY FULL' in refusal("bag", ColumnChoices())
    database.execute("ALTER TABLE bag_ten ADD PRIMARY KEY (n)")
    assert "another replica identity" in refusal("bag", ColumnChoices())
