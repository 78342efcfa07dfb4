"""Column lists and row filters that an administrator makes are taken over as if the table had been registered so."""

from __future__ import annotations

import random

import pytest

from mirror_pump.database.quoting import identifier
from mirror_pump.ops.register.preview import preview
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.table_wishes import parse_choices


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE t (region int, id int, v text, w text, PRIMARY KEY (region, id))",
        "CREATE TABLE k (region int, id int, v int, w int, PRIMARY KEY (region, id))",
        "INSERT INTO k SELECT g % 3, g, g, g FROM generate_series(1, 30) g",
        "CREATE TABLE f (id int PRIMARY KEY, region int, v text)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT g % 3, g, 'v', 'w' FROM generate_series(1, 30) g",
        "INSERT INTO f SELECT g, g % 3, 'v' FROM generate_series(1, 30) g",
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


def publish(mirror: Mirror, table: str, part: str = "") -> None:
    """Gives one table another part in the publication, as an administrator does, and leaves the others alone."""
    publication = identifier(mirror.settings.publication)
    mirror.database.execute(
        f"BEGIN; ALTER PUBLICATION {publication} DROP TABLE {table};"
        f" ALTER PUBLICATION {publication} ADD TABLE {table} {part}; COMMIT"
    )


def await_rows(mirror: Mirror, table: str, columns: str, condition: str) -> None:
    """Waits until the lake has what the heap has under these rules, no more and no less."""

    def is_same() -> bool:
        mirror.await_live(f"public.{table}")
        mirror.await_frontier()
        return normalised(heap_rows(mirror, table, columns, condition)) == normalised(mirror.lake(f"public.{table}"))

    await_true(is_same, 60, f"{table} has not taken over {columns} where {condition}")
    assert_same(heap_rows(mirror, table, columns, condition), mirror.lake(f"public.{table}"), table)


def heap_rows(mirror: Mirror, table: str, columns: str, condition: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in mirror.database.rows(f"SELECT {columns} FROM {table} WHERE {condition}")]


def rules(mirror: Mirror, table: str) -> tuple[object, ...]:
    ((column_list, row_filter, taken_over),) = mirror.database.rows(
        "SELECT m.column_list, m.row_filter, m.rules_taken_over FROM modak.mirror_tables m"
        " WHERE m.table_id = %s::regclass",
        (table,),
    )
    return column_list, row_filter, taken_over


def test_a_filter_comes_changes_and_goes(mirror: Mirror) -> None:
    database = mirror.database
    with mirror.pumping() as pump:
        mirror.register("f", "t")
        mirror.await_live("public.f", "public.t")
        publish(mirror, "f", "WHERE (region = 1)")
        database.execute("UPDATE f SET region = (region + 1) % 3 WHERE id < 12", "INSERT INTO f VALUES (50, 1, 'x')")
        await_rows(mirror, "f", "*", "region = 1")
        assert rules(mirror, "f") == (False, "(region = 1)", True)
        assert "--where '(region = 1)'" in str(pump.steps.details(Step.TABLE_COPIED_AGAIN, "reason"))
        # Rows enter and leave by UPDATE.
        database.execute("UPDATE f SET region = 1 - region WHERE id < 20 AND region < 2", "DELETE FROM f WHERE id = 50")
        await_rows(mirror, "f", "*", "region = 1")
        assert assert_verified(database) == 2
        publish(mirror, "f", "WHERE (region = 2)")
        database.execute("UPDATE f SET v = 'later'")
        await_rows(mirror, "f", "*", "region = 2")
    publish(mirror, "f")
    database.execute("UPDATE f SET region = 7 WHERE id = 3")
    with mirror.pumping():
        await_rows(mirror, "f", "*", "true")
        assert rules(mirror, "f")[:2] == (False, "")
    assert assert_verified(database) == 2


@pytest.mark.further
def test_a_list_comes_changes_and_goes(mirror: Mirror) -> None:
    database = mirror.database
    with mirror.pumping():
        mirror.register("k")
        mirror.await_live("public.k")
        publish(mirror, "k", "(id, region, v) WHERE (region > 0)")
        database.execute("UPDATE k SET w = 7, region = 1 - region WHERE region < 2")
        await_rows(mirror, "k", "region, id, v", "region > 0")
        database.execute(
            "ALTER TABLE k ADD COLUMN later int DEFAULT 3",
            "ALTER TABLE k RENAME COLUMN v TO renamed",
            "INSERT INTO k VALUES (2, 60, 1, 2, 4)",
        )
        await_rows(mirror, "k", "region, id, renamed", "region > 0")
        publish(mirror, "k", "(id, region, later)")
        # The filter of the administrator is gone with it.
        await_rows(mirror, "k", "region, id, later", "true")
        assert assert_verified(database) == 1
        publish(mirror, "k")
        await_rows(mirror, "k", "*", "true")
        database.execute("ALTER TABLE k ADD COLUMN last int DEFAULT 5", "UPDATE k SET later = 1 WHERE id < 5")
        await_rows(mirror, "k", "*", "true")
    assert assert_verified(database) == 1


def test_a_column_that_came_with_the_filter_is_mirrored(mirror: Mirror) -> None:
    """Even if the stream has not described it when the filter is taken over."""
    database = mirror.database
    with mirror.pumping():
        mirror.register("f")
        mirror.await_live("public.f")
    database.execute("ALTER TABLE f ADD COLUMN extra int DEFAULT 4", "UPDATE f SET extra = id")
    publish(mirror, "f", "WHERE (extra > 10)")
    with mirror.pumping():
        await_rows(mirror, "f", "*", "extra > 10")
    assert assert_verified(database) == 1


@pytest.mark.further
def test_what_a_registration_keeps_out_stays_out(mirror: Mirror) -> None:
    """A rule of `register` is replaced by another one, but not lifted; nor are exclusions and masks."""
    database = mirror.database
    with mirror.pumping():
        mirror.register("f", choices=parse_choices([], [], [], "region = 1"))
        mirror.register("t", choices=parse_choices([], ["w"], ["v=sha256"]))
        mirror.await_live("public.f", "public.t")
        publish(mirror, "f")
        await_true(lambda: mirror.state("public.f") == "waiting", 60, "it does not wait")
        assert "rules that are gone" in mirror.error("public.f")
        publish(mirror, "f", "WHERE (region = 2)")
        await_rows(mirror, "f", "*", "region = 2")
        publish(mirror, "f")
        await_true(lambda: mirror.state("public.f") == "waiting", 60, "it does not wait")
        publish(mirror, "f", "WHERE (true)")
        await_rows(mirror, "f", "*", "true")
        for part, problem in (
            ("(id, region, v, w)", "w is published, and was left out"),
            ("(id, region)", "mask would be forgotten"),
        ):
            publish(mirror, "t", part)
            await_true(lambda problem=problem: problem in mirror.error("public.t"), 60, part)  # type: ignore[misc]
            assert mirror.state("public.t") == "waiting"
        publish(mirror, "t", "(id, region, v)")
        await_rows(mirror, "t", "region, id, encode(sha256(v::bytea), 'hex')", "true")
    assert assert_verified(database) == 2


@pytest.mark.further
def test_what_cannot_be_taken_over_waits_with_the_reason(mirror: Mirror) -> None:
    with mirror.pumping():
        mirror.register("f", "t")
        mirror.await_live("public.f", "public.t")
        for table, part, problem in (
            ("t", "(id, v)", "region is part of its key, and has to be listed"),
            ("t", "WHERE (id > 3)", "large values"),
            ("t", "WHERE (v > 'a')", "not part of the replica identity"),
            ("f", "(id, region)", "REPLICA IDENTITY FULL"),
        ):
            publish(mirror, table, part)
            await_true(lambda t=table, p=problem: p in mirror.error(f"public.{t}"), 60, part)  # type: ignore[misc]
            assert mirror.state(f"public.{table}") == "waiting"
            assert f'ADD TABLE "public"."{table}"' in mirror.error(f"public.{table}")
            with StatusReader(complete(mirror.settings)) as reader:
                (shown,) = [shown.error for shown in reader.read().tables if shown.table == f"public.{table}"]
            assert shown == mirror.error(f"public.{table}")
        publish(mirror, "t")
        publish(mirror, "f")
        await_rows(mirror, "t", "*", "true")
        await_rows(mirror, "f", "*", "true")
    assert assert_verified(mirror.database) == 2


def test_a_registration_takes_over_what_is_published(mirror: Mirror) -> None:
    publication = identifier(mirror.settings.publication)
    mirror.database.execute(f"ALTER PUBLICATION {publication} ADD TABLE f WHERE (region = 1), t (id, region, v)")
    (shown,) = preview(mirror.settings, ["f"], TableOptions())
    assert shown.checked is not None
    assert shown.checked.row_filter == "(region = 1)"
    with mirror.pumping():
        mirror.register("f", "t")
        await_rows(mirror, "f", "*", "region = 1")
        await_rows(mirror, "t", "region, id, v", "true")
        mirror.register("f", choices=parse_choices([], [], [], "region = 1"))
    assert assert_verified(mirror.database) == 2


@pytest.mark.further
@pytest.mark.parametrize("seed", range(3))
def test_random_rules_between_random_writes(mirror: Mirror, seed: int) -> None:
    """The administrator changes filter and list while rows enter and leave, with and without a pump."""
    database, chance = mirror.database, random.Random(seed)
    mirror.register("f", "t")
    conditions = ["true", "region = 1", "region = 2 OR id > 20", "region < 2"]
    lists = ["*", "region, id, v", "region, id, w", "region, id"]
    condition, columns = "true", "*"

    def act() -> None:
        nonlocal condition, columns
        for _ in range(chance.randrange(2, 5)):
            kind = chance.random()
            if kind < 0.25:
                condition = chance.choice(conditions)
                publish(mirror, "f", "" if condition == "true" else f"WHERE ({condition})")
            elif kind < 0.5:
                columns = chance.choice(lists)
                publish(mirror, "t", "" if columns == "*" else f"({columns})")
            else:
                low = chance.randrange(40)
                database.execute(
                    f"UPDATE f SET region = (region + 1) % 3, v = v || 'x' WHERE id BETWEEN {low} AND {low + 9}",
                    f"UPDATE t SET id = id + 100, w = w || 'x' WHERE id BETWEEN {low} AND {low + 4}",
                    f"DELETE FROM f WHERE id = {low}",
                    f"INSERT INTO f VALUES ({low}, 1, 'n') ON CONFLICT DO NOTHING",
                )

    for _ in range(3):
        act()
        with mirror.pumping(Steps()):
            act()
            await_rows(mirror, "f", "*", condition)
            await_rows(mirror, "t", columns, "true")
            assert assert_verified(database) == 2
