"""Tables that come back, after a pause or a lost slot, have only the rows replaced that differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, normalised
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.resyncs import assert_one_swap, audit_promises, drop_slot, resynced

_LARGE = "(SELECT string_agg(md5((g.id * n)::text), '') FROM generate_series(1, 400) n)"
"""A value that a table keeps out of line, and that the stream does not send again."""


@pytest.fixture
def gate(tasks: ThreadTaskRunner) -> GatedCopies:
    return GatedCopies(tasks)


@pytest.fixture
def mirror(database: Database, warehouse: str, gate: GatedCopies) -> Mirror:
    """A live table with values of many kinds, without a pump."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(8, 2), large text)",
        f"INSERT INTO t SELECT id, 'v' || id, id, CASE WHEN id % 100 = 0 THEN {_LARGE} END"
        " FROM generate_series(1, 2000) g(id)",
    )
    mirror = Mirror.create(database, warehouse, gate)
    mirror.register("t")
    mirror.catch_up()
    return mirror


def _compared(steps: Steps) -> list[tuple[int, int]]:
    """Of each comparison the rows that were copied, and those that were deleted."""
    return list(
        zip(steps.details(Step.ROWS_COMPARED, "copied"), steps.details(Step.ROWS_COMPARED, "deleted"), strict=True)
    )


def test_a_resumed_table_has_only_the_rows_replaced_that_differ(
    mirror: Mirror, database: Database, gate: GatedCopies
) -> None:
    before = mirror.heap("t")
    pause(mirror.settings, "t")
    steps = Steps()
    with mirror.pumping(steps):
        database.execute(
            "UPDATE t SET v = 'other' WHERE id BETWEEN 11 AND 13",
            "UPDATE t SET large = reverse(large) WHERE id IN (100, 200, 300)",
            "UPDATE t SET n = NULL WHERE id = 20",
            "UPDATE t SET id = 5000 WHERE id = 30",
            "DELETE FROM t WHERE id IN (1, 2)",
            "INSERT INTO t VALUES (2, 'again'), (6000, 'new')",
        )
        gate.hold()
        resume(mirror.settings, "t")
        await_true(lambda: gate.waiting, 60, "the comparison")
        # Changes of rows that differ come before the rows are replaced: one leaves out a large value that the lake does
        # not have yet. Of others the stream brings what the comparison cannot see any more.
        database.execute(
            "UPDATE t SET v = 'later' WHERE id IN (100, 12)",
            "DELETE FROM t WHERE id = 200",
            "UPDATE t SET id = 5001 WHERE id = 300",
            "UPDATE t SET v = 'equal before' WHERE id = 400",
            "INSERT INTO t VALUES (1, 'back')",
        )
        mirror.await_frontier()
        assert mirror.lake("public.t") == before, "readers keep it until the comparison is complete"
        gate.let_go()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        ((copied, deleted),) = _compared(steps)
        assert 10 <= copied <= 12
        assert 10 <= deleted <= 12
        database.execute("UPDATE t SET n = n + 1 WHERE id % 3 = 0", "DELETE FROM t WHERE id = 6000")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert steps.count(Step.CHUNK_COPIED) == 0
    mirror.assert_sound()


def test_equal_tables_and_empty_ones(mirror: Mirror, database: Database) -> None:
    steps = Steps()
    pause(mirror.settings, "t")
    with mirror.pumping(steps):
        resume(mirror.settings, "t")
        mirror.await_live("public.t")
        pause(mirror.settings, "t")
        database.execute("DELETE FROM t WHERE id > 5")
        resume(mirror.settings, "t")
        mirror.await_live("public.t")
        mirror.assert_equal("public.t")
        pause(mirror.settings, "t")
        database.execute("TRUNCATE t")
        resume(mirror.settings, "t")
        mirror.await_live("public.t")
        mirror.assert_equal("public.t")
    assert _compared(steps) == [(0, 0), (0, 1995), (0, 5)]
    mirror.assert_sound()


def test_after_a_lost_slot_tables_are_compared_and_shown_at_one_frontier(
    mirror: Mirror, database: Database, gate: GatedCopies
) -> None:
    database.execute(
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "CREATE TABLE nokey (v text)",
        "CREATE TABLE p (id int PRIMARY KEY)",
        "ALTER TABLE nokey REPLICA IDENTITY FULL",
        "INSERT INTO u SELECT g, g FROM generate_series(1, 300) g",
        "INSERT INTO nokey SELECT g % 7 FROM generate_series(1, 50) g",
    )
    mirror.register("u", "nokey", "p")
    mirror.catch_up()
    pause(mirror.settings, "p")
    kept = mirror.frontier()
    audit_promises(database)
    drop_slot(mirror)
    # Nothing of this will ever come by a stream.
    database.execute(
        "UPDATE t SET v = 'in the gap' WHERE id < 4",
        "DELETE FROM u WHERE id = 1",
        "UPDATE u SET id = 1000 WHERE id = 2",
        "DELETE FROM nokey WHERE ctid IN (SELECT ctid FROM nokey LIMIT 3)",
        "INSERT INTO p VALUES (1)",
    )
    gate.hold()
    steps = Steps()
    resynced(mirror, where_different=True)
    with mirror.pumping(steps):
        await_true(lambda: gate.waiting, 60, "a comparison")
        database.execute("UPDATE t SET n = 0 WHERE id IN (3, 4)", "INSERT INTO u VALUES (1, 'back')")
        # Readers wait for all tables of the resync.
        gate.let_go()
        mirror.await_live("public.t", "public.u", "public.nokey")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.u", "public.nokey")
        resume(mirror.settings, "p")
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    assert_one_swap(database, ("t", "u", "nokey"), kept)
    compared = dict(zip(steps.details(Step.ROWS_COMPARED, "table"), _compared(steps), strict=True))
    assert compared["public.p"] == (1, 0)
    assert 3 <= compared["public.t"][0] <= 4
    assert compared["public.u"][1] in (1, 2)
    assert "public.nokey" not in compared, "nothing tells equal rows apart"
    mirror.assert_sound()


@pytest.mark.further
def test_a_table_that_differs_too_much_or_misses_a_file_is_copied(mirror: Mirror, database: Database) -> None:
    steps = Steps()
    for statement in ("ALTER TABLE t ALTER v TYPE varchar(99)", "ALTER TABLE t ALTER n TYPE int USING id"):
        pause(mirror.settings, "t")
        database.execute(statement, "UPDATE t SET v = 'x' WHERE id = 7")
        resume(mirror.settings, "t")
        mirror.catch_up(steps)
        mirror.assert_equal("public.t")
    assert _compared(steps) == [(1, 1)], "a column of another type is copied"
    few = mirror.with_options(limits=mirror.settings.limits.model_copy(update={"compared_rows": 10}))
    pause(mirror.settings, "t")
    database.execute("UPDATE t SET v = 'y' WHERE id < 50")
    resume(mirror.settings, "t")
    few.catch_up(steps)
    mirror.assert_equal("public.t")
    assert len(_compared(steps)) == 1, "too many rows differ"
    pause(mirror.settings, "t")
    lake = LakeTable.load(mirror.location("public.t"), lake_storage(mirror.settings))
    (largest,) = (file.path for file in lake.live_data_files() if file.records >= 2000)
    Path(largest.removeprefix("file://")).unlink()
    resume(mirror.settings, "t")
    mirror.catch_up(steps)
    mirror.assert_equal("public.t")
    assert any("not" in reason for reason in steps.details(Step.TABLE_COPIED_AGAIN, "reason"))
    mirror.assert_sound()


def _paused(mirror: Mirror, names: Sequence[str]) -> None:
    for name in names:
        pause(mirror.settings, name)


def test_rows_that_differ_in_as_little_as_rows_can(mirror: Mirror, database: Database) -> None:
    """Under keys that are computed and looked up, hashed and looked up, and hashed of a type of the user's."""
    defaults = "v text DEFAULT '', n numeric DEFAULT 1.0, f float8 DEFAULT 0, j jsonb DEFAULT '[1]'"
    values = f"{defaults}, r numeric(6, 2), place serial"
    database.execute(
        f"CREATE TABLE pairs (a int, b date, {values}, PRIMARY KEY (a, b))",
        "INSERT INTO pairs SELECT g, date '2024-01-01' + g FROM generate_series(1, 300) g",
        f"CREATE TABLE texts (k text PRIMARY KEY, {values})",
        r"""INSERT INTO texts SELECT unnest(ARRAY['', ' ', 'it''s', 'a\b', 'a\\b', '"', '{",}', 'NULL', 'ü', 'x'])""",
        "CREATE DOMAIN word AS text",
        f"CREATE TABLE words (k word PRIMARY KEY, {values})",
        "INSERT INTO words SELECT g::text FROM generate_series(1, 50) g",
        f"CREATE TABLE parts (k uuid PRIMARY KEY, {values}) PARTITION BY HASH (k)",
        *(f"CREATE TABLE part{n} PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER {n})" for n in (0, 1)),
        "INSERT INTO parts SELECT md5(g::text)::uuid FROM generate_series(1, 300) g",
    )
    names = ("pairs", "texts", "words", "parts")
    mirror.register(*names)
    mirror.catch_up()
    _paused(mirror, names)
    changes = ("v = NULL", "n = 1.00", "f = '-0'", "f = 'NaN'", "j = '[1.0]'", "r = 'NaN'")
    some = {"pairs": "place <= 12", "texts": "k <> 'x'", "words": "place <= 12", "parts": "place <= 12"}
    # Each row differs in one value. The last turn takes back what the first one brought.
    turns = (
        tuple(f"{change} WHERE place % 6 = {number}" for number, change in enumerate(changes)),
        ("r = NULL WHERE r = 'NaN'",),
    )
    for turn in turns:
        counts = dict.fromkeys((f"public.{name}" for name in names), 0)
        with database.session() as connection:
            for name, statement in product(names, turn):
                changed = connection.execute(f"UPDATE {name} SET {statement} AND {some[name]}".encode()).rowcount
                assert changed > 0, (name, statement)
                counts[f"public.{name}"] += changed
        for name in names:
            resume(mirror.settings, name)
        steps = Steps()
        mirror.catch_up(steps)
        compared = dict(zip(steps.details(Step.ROWS_COMPARED, "table"), _compared(steps), strict=True))
        assert compared == {name: (count, count) for name, count in counts.items()}, turn
        for name, key in (("pairs", "a, b"), ("texts", "k"), ("words", "k"), ("parts", "k")):
            heap = database.rows(f"SELECT {key}, v, n::text, f, j::text FROM {name}")
            lake = [row[: len(heap[0])] for row in mirror.lake(f"public.{name}")]
            assert repr(normalised(lake)) == repr(normalised(heap)), turn
        _paused(mirror, names)
    mirror.assert_sound()
