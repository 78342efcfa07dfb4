"""`register --where`: the lake has the rows that meet the condition, as PostgreSQL says; others never reach it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import MirrorPumpError, TableError
from mirror_pump.ops.register.preview import preview
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.integration.types.test_masks import lake_bytes
from tests.support.table_wishes import parse_choices

MARKER = "Elsewhere"
"""In every value of a row that the filter leaves out."""


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, region text, amount int, note text)",
        "ALTER TABLE t ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
        "CREATE TABLE k (region int, id int, amount int, PRIMARY KEY (region, id))",
        "CREATE TABLE p (region text, id int, note text, PRIMARY KEY (region, id)) PARTITION BY LIST (region)",
        "CREATE TABLE p_eu PARTITION OF p FOR VALUES IN ('EU')",
        "CREATE TABLE p_other PARTITION OF p DEFAULT",
        "ALTER TABLE p REPLICA IDENTITY FULL",
        "ALTER TABLE p_eu REPLICA IDENTITY FULL",
        "ALTER TABLE p_other REPLICA IDENTITY FULL",
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


def write(database: Database, chance: random.Random, count: int) -> None:
    """Rows come, enter and leave the filter, keep large values as they are, change keys, and go."""
    with database.connect(autocommit=False) as connection:
        for _ in range(count):
            key, kind = chance.randrange(40), chance.random()
            region = chance.choice(["EU", "EU", "US", None])
            note = ("inside" if region == "EU" else MARKER) + "ü" * chance.choice([0, 3000])
            if kind < 0.35:
                connection.execute(
                    "INSERT INTO t VALUES (%s, %s, 1, %s) ON CONFLICT (id) DO UPDATE"
                    " SET (region, note) = (excluded.region, excluded.note)",
                    (key, region, note),
                )
                connection.execute(
                    "INSERT INTO k SELECT %s, %s, 1 WHERE NOT EXISTS (SELECT FROM k WHERE id = %s)", (key % 3, key, key)
                )
            elif kind < 0.55:
                # The large value stays: what enters must be looked for in the old row.
                connection.execute("UPDATE t SET region = %s WHERE id = %s AND note LIKE 'inside%%'", (region, key))
                connection.execute("UPDATE k SET region = 3 - region WHERE id = %s", (key,))
            elif kind < 0.75:
                connection.execute("UPDATE t SET amount = amount + 1 WHERE id = %s", (key,))
            elif kind < 0.85:
                connection.execute(
                    "UPDATE t SET id = id + 100, region = %s WHERE id = %s AND note LIKE 'inside%%'"
                    " AND id NOT IN (SELECT id - 100 FROM t)",
                    (region, key),
                )
            else:
                connection.execute("DELETE FROM t WHERE id IN (%s, %s + 100)", (key, key))
                connection.execute("DELETE FROM k WHERE id = %s", (key,))


def assert_filtered(mirror: Mirror, table: str, condition: str) -> None:
    with mirror.database.session() as connection:
        heap = normalised(connection.execute(f"SELECT * FROM {table} WHERE {condition}".encode()).fetchall())
    assert_same(heap, mirror.lake(f"public.{table}"), table)


def test_rows_enter_and_leave_and_nothing_else_reaches_the_lake(mirror: Mirror, warehouse: str) -> None:
    database, chance = mirror.database, random.Random(11)
    write(database, chance, 200)
    with mirror.pumping():
        mirror.register("t", choices=parse_choices([], [], [], "region = 'EU'"))
        mirror.register("k", choices=parse_choices([], [], [], "region > 1"))
        for _ in range(8):
            write(database, chance, 40)
        mirror.await_live("public.t", "public.k")
        mirror.await_frontier()
        assert_filtered(mirror, "t", "region = 'EU'")
        assert_filtered(mirror, "k", "region > 1")
    for _ in range(3):
        write(database, chance, 60)
        with mirror.pumping():
            write(database, chance, 60)
            mirror.await_frontier()
    assert_filtered(mirror, "t", "region = 'EU'")
    assert_filtered(mirror, "k", "region > 1")
    assert assert_verified(database) == 2
    # Entering rows were written with notes of rows inside; all others have the marker.
    database.execute("UPDATE t SET note = 'x' WHERE region IS DISTINCT FROM 'EU'", "TRUNCATE k")
    with mirror.pumping():
        mirror.await_frontier()
    assert mirror.lake("public.k") == []
    assert assert_verified(database) == 2
    assert all(MARKER.encode() not in content for _, content in lake_bytes(warehouse))


def test_partitions_and_masks_with_a_filter(mirror: Mirror) -> None:
    database = mirror.database
    database.execute("INSERT INTO p VALUES ('EU', 1, 'a'), ('US', 2, 'b'), ('UK', 3, 'c')")
    with mirror.pumping():
        mirror.register("p", choices=parse_choices([], [], ["note=prefix(1)"], "region IN ('EU', 'UK')"))
        mirror.await_live("public.p")
        database.execute(
            "UPDATE p SET region = 'EU' WHERE id = 2",
            "UPDATE p SET region = 'US' WHERE id = 1",
            "INSERT INTO p VALUES ('FR', 4, 'd'), ('UK', 5, 'efg')",
        )
        mirror.await_frontier()
        assert sorted(mirror.lake("public.p")) == [("EU", 2, "b"), ("UK", 3, "c"), ("UK", 5, "e")]
    assert assert_verified(database) == 1


@pytest.mark.further
def test_a_renamed_column_and_a_restored_filter(mirror: Mirror) -> None:
    database = mirror.database
    database.execute("INSERT INTO t VALUES (1, 'EU', 1, 'a'), (2, 'US', 1, 'b')")
    publication = identifier(mirror.settings.publication)
    with mirror.pumping():
        mirror.register("t", choices=parse_choices([], [], [], "region = 'EU'"))
        mirror.await_live("public.t")
        database.execute(
            "ALTER TABLE t RENAME COLUMN region TO area",
            "INSERT INTO t VALUES (3, 'EU', 1, 'c'), (4, 'US', 1, 'd')",
        )
        mirror.await_frontier()
        assert mirror.state("public.t") == "live"
        assert_filtered(mirror, "t", "area = 'EU'")
        assert database.rows("SELECT row_filter FROM modak.mirror_tables") == [("(area = 'EU'::text)",)]
        mirror.register("t", choices=parse_choices([], [], [], "area='EU'"))
        with pytest.raises(TableError, match=r"registered with --where '\(area = '"):
            mirror.register("t", choices=parse_choices([], [], [], "area='US'"))
        # Others change what is published: the table waits, and readers keep what they have.
        database.execute(f"ALTER PUBLICATION {publication} SET TABLE t", "UPDATE t SET amount = 9")
        await_true(lambda: mirror.state("public.t") == "waiting", 60, "the table does not wait")
        assert "WHERE ((area = 'EU'::text))" in mirror.error("public.t")
        database.execute(f"ALTER PUBLICATION {publication} SET TABLE t WHERE (   area = 'EU')")
        mirror.await_live("public.t")
        mirror.await_frontier()
        assert_filtered(mirror, "t", "area = 'EU'")
    assert assert_verified(database) == 1


def refused(mirror: Mirror, table: str, where: str, **options: Any) -> MirrorPumpError:
    choices = parse_choices([], options.pop("excluded", []), [], where)
    with pytest.raises(TableError) as error:
        mirror.register(table, choices=choices, **options)
    assert error.value.remedy
    (shown,) = preview(mirror.settings, [table], TableOptions(choices, options.get("retention")))
    assert str(shown.error) == str(error.value)
    assert mirror.state(f"public.{table}") == ""
    assert mirror.database.rows("SELECT * FROM pg_publication_tables") == []
    return error.value


def test_what_filters_are_refused_for(mirror: Mirror) -> None:
    database = mirror.database
    assert "PostgreSQL refuses" in str(refused(mirror, "t", "region ="))
    assert "PostgreSQL refuses" in str(refused(mirror, "t", "nothing = 1"))
    assert "PostgreSQL refuses" in str(refused(mirror, "t", "amount > random()"))
    assert "PostgreSQL refuses" in str(refused(mirror, "t", "true); CREATE TABLE injected (id int"))
    assert "PostgreSQL refuses" in str(refused(mirror, "t", "true); CREATE TABLE injected (id int); SELECT (1"))
    assert database.rows("SELECT to_regclass('injected')") == [(None,)]
    # Each is a part of a statement, and not one expression.
    for text in (
        "id > 0), TABLE k WHERE (true",
        "id > 0), TABLE k WHERE ((true)",
        "id > 0), TABLES IN SCHEMA pg_catalog, TABLE k WHERE (true",
        "id > 0], TABLE k WHERE [true",
        "id > 0, true",
        "[true]",
        "true) --",
        "true) /*",
        "id > 0 FROM t",
        "$1",
    ):
        assert "PostgreSQL refuses" in str(refused(mirror, "t", text)), text
    assert "not mirrored" in str(refused(mirror, "t", "region = 'EU'", excluded=["region"]))
    assert "not part of the replica identity" in str(refused(mirror, "k", "amount > 1"))
    assert "rows leave the heap" in str(refused(mirror, "t", "amount > 1", retention=RetentionOptions(lag="10")))
    database.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    assert "large values" in str(refused(mirror, "t", "id > 1"))


@pytest.mark.further
def test_the_publication_is_made_again_with_its_filters(mirror: Mirror) -> None:
    from mirror_pump.ops.setup.initialisation import initialise

    database, steps = mirror.database, Steps()
    database.execute("INSERT INTO k VALUES (1, 1, 1), (2, 2, 2)")
    with mirror.pumping():
        mirror.register("k", choices=parse_choices([], [], [], "region > 1"))
        mirror.await_live("public.k")
    database.execute(
        f"DROP PUBLICATION {identifier(mirror.settings.publication)}", "INSERT INTO k VALUES (1, 3, 1), (2, 4, 2)"
    )
    initialise(mirror.settings, lambda _: None)
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.TABLE_COPIED_AGAIN), 60, "the table is not copied again")
        database.execute("INSERT INTO k VALUES (0, 5, 1), (5, 6, 2)")
        mirror.await_live("public.k")
        mirror.await_frontier()
        assert_filtered(mirror, "k", "region > 1")
    assert assert_verified(database) == 1
