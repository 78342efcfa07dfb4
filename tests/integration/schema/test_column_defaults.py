"""Columns with a constant default: existing rows get the value in the lake without a read of the heap."""

from __future__ import annotations

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, lake_rows
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.changed_tables import DEFAULTS, TABLES, published


@pytest.mark.further
def test_the_old_content_stays_at_its_old_frontier_until_every_row_has_the_value(
    database: Database, warehouse: str, merge_gate: GatedCopies
) -> None:
    database.execute(*TABLES)
    steps = Steps()
    mirror = Mirror.create(database, warehouse, merge_gate, copy_chunk_bytes=8192)
    with mirror.pumping(steps):
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        database.execute("UPDATE t SET v = 'before' WHERE id <= 20", "DELETE FROM t WHERE id = 21")
        mirror.await_frontier()
        before = mirror.heap("t")
        merge_gate.hold()
        frontier, snapshot, state, location = published(mirror, "t")
        assert state == "live"
        copied = steps.count(Step.CHUNK_COPIED)
        database.execute(
            "ALTER TABLE t ADD COLUMN d int DEFAULT 9",
            "UPDATE t SET v = 'after' WHERE id <= 30",
            "UPDATE other SET v = 'goes on'",
        )
        mirror.await_frontier()
        assert published(mirror, "t") == (frontier, snapshot, "filling", location)
        # Rows that are deleted, changed and added while their files are filled, and another new column.
        await_true(lambda: merge_gate.waiting, 20, "a file that waits to be filled")
        database.execute(
            "UPDATE t SET n = -n WHERE id % 2 = 0",
            "DELETE FROM t WHERE id % 10 = 1",
            "INSERT INTO t (id) VALUES (1000)",
            "ALTER TABLE t ADD COLUMN e text DEFAULT 'e'",
            "UPDATE t SET e = NULL, d = 0 WHERE id % 10 = 2",
        )
        mirror.await_frontier()
        merge_gate.let_go(1)
        database.execute("ALTER TABLE t RENAME COLUMN v TO w", "UPDATE t SET w = 'renamed' WHERE id > 290")
        mirror.await_frontier()
        assert published(mirror, "t") == (frontier, snapshot, "filling", location)
        assert lake_rows(location) == before == mirror.lake("public.t")
        assert published(mirror, "other")[0] > frontier
        mirror.assert_equal("public.other")
    # A later pump continues where this one stopped.
    with mirror.pumping(steps):
        database.execute("UPDATE t SET n = n - 1 WHERE id % 3 = 0", "INSERT INTO t (id) VALUES (1001)")
        mirror.await_frontier()
        assert published(mirror, "t") == (frontier, snapshot, "filling", location)
        merge_gate.let_go()
        mirror.await_live("public.t")
        assert published(mirror, "t")[3] == mirror.location("public.t")
        mirror.await_frontier()
        assert published(mirror, "t")[0] == published(mirror, "other")[0]
        mirror.assert_equal("public.t")
        assert lake_rows(location) == before, "a reader that pinned the snapshot still reads it"
        database.execute("UPDATE t SET big = 'short', e = NULL WHERE id < 100", "DELETE FROM t WHERE id > 250")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert steps.count(Step.CHUNK_COPIED) == copied, "the heap is not read"
    assert steps.count(Step.TABLE_COPIED_AGAIN) == 0
    mirror.assert_sound()
    assert_verified(database)


@pytest.mark.further
def test_a_truncation_and_a_copy_again_while_files_are_filled(
    database: Database, warehouse: str, merge_gate: GatedCopies
) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, merge_gate, copy_chunk_bytes=8192)
    with mirror.pumping():
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        merge_gate.hold()
        database.execute("ALTER TABLE t ADD COLUMN d int DEFAULT 9", "ALTER TABLE other ADD COLUMN d int DEFAULT 9")
        await_true(lambda: merge_gate.waiting, 20, "a file that waits to be filled")
        database.execute(
            "TRUNCATE t",
            "INSERT INTO t SELECT g, 'new', g FROM generate_series(1, 50) g",
            "ALTER TABLE other ALTER v TYPE text USING v || 'x'",
            "UPDATE other SET v = v || 'y'",
        )
        mirror.await_frontier()
        merge_gate.let_go()
        mirror.await_live("public.t", "public.other")
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()
    assert_verified(database)


@pytest.mark.further
def test_a_table_whose_files_cannot_be_filled_is_copied_again(
    database: Database, warehouse: str, merge_gate: GatedCopies
) -> None:
    database.execute(*TABLES)
    steps = Steps()
    mirror = Mirror.create(database, warehouse, merge_gate)
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.await_frontier()
        merge_gate.fail(3)
        database.execute("ALTER TABLE t ADD COLUMN d int DEFAULT 9")
        await_true(lambda: steps.count(Step.TABLE_COPIED_AGAIN), 60, "copied again")
        database.execute("UPDATE t SET n = -n WHERE id < 100")
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert steps.count(Step.FILL_FAILED) == 3
    mirror.assert_sound()


def test_values_of_all_types_are_those_that_postgres_shows(database: Database, warehouse: str) -> None:
    """Whatever settings the session that adds the column uses for values."""
    database.execute(
        *TABLES,
        """CREATE TYPE mood AS ENUM ('ok', 'it''s, "bad"')""",
        "CREATE DOMAIN positive AS int",
    )
    steps = Steps()
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.await_frontier()
        added = ", ".join(f"ADD COLUMN c{n} {type_} DEFAULT {text}" for n, (type_, text) in enumerate(DEFAULTS.items()))
        with database.connect() as session:
            for setting in (
                "DateStyle = 'German'",
                "TimeZone = 'Asia/Tokyo'",
                "IntervalStyle = 'sql_standard'",
                "bytea_output = 'escape'",
                "extra_float_digits = -15",
            ):
                session.execute(f"SET {setting}".encode())
            session.execute(f"ALTER TABLE t {added}".encode())
            session.execute("UPDATE t SET n = -n WHERE id % 2 = 0")
        mirror.await_frontier()
        mirror.await_live("public.t")
        mirror.await_frontier()
    assert steps.count(Step.TABLE_FILLING) == 1
    assert steps.count(Step.TABLE_COPIED_AGAIN) == 0, steps.details(Step.TABLE_COPIED_AGAIN, "reason")
    assert_verified(database)


@pytest.mark.further
def test_a_default_that_its_iceberg_type_cannot_hold_has_the_table_copied_again(
    database: Database, warehouse: str
) -> None:
    database.execute(*TABLES)
    steps = Steps()
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping(steps):
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        mirror.await_frontier()
        database.execute(
            "ALTER TABLE t ADD COLUMN d numeric(10,2) DEFAULT 'NaN'",
            "ALTER TABLE other ADD COLUMN d date DEFAULT 'infinity'",
            "UPDATE t SET n = -n WHERE id < 100",
        )
        mirror.await_frontier()
        mirror.await_live("public.t", "public.other")
    assert set(steps.details(Step.TABLE_COPIED_AGAIN, "table")) == {"public.t", "public.other"}
    assert_verified(database)


_KEYS = {
    "r int": ("PARTITION BY RANGE (r)", "FROM (MINVALUE) TO (-3)", "FROM (-3) TO (5)", "g % 10 - 5", "-1"),
    "r bigint": ("PARTITION BY RANGE (r)", "FROM (4) TO (MAXVALUE)", "FROM (-9) TO (4)", "g % 10 - 2", "1"),
    "r date": (
        "PARTITION BY RANGE (r)",
        "FROM ('1999-12-01') TO ('2000-01-02')",
        "FROM ('2000-01-02') TO (MAXVALUE)",
        "date '1999-12-30' + g % 7",
        "'2000-01-04'",
    ),
    "r timestamptz": (
        "PARTITION BY RANGE (r)",
        "FROM ('1969-12-31 23:00Z') TO ('1970-01-01 01:30:00.000001Z')",
        "FROM ('1970-01-01 01:30:00.000001Z') TO ('1980-01-01')",
        "timestamptz '1970-01-01 00:00Z' + g % 6 * interval '30 min'",
        "'1970-01-01 02:00Z'",
    ),
    "r text": (
        "PARTITION BY LIST (r)",
        "IN ('', 'ü', 'it''s')",
        "IN ('b', 'NULL')",
        "(ARRAY['', 'ü', 'b'])[1 + g % 3]",
        "'b'",
    ),
    "r smallint": ("PARTITION BY LIST (r)", "IN (-1, 2)", "IN (0, 1)", "(g % 4 - 1)::smallint", "0"),
}


@pytest.mark.further
def test_rows_of_partitions_that_are_gone_go_by_their_bounds(
    database: Database, warehouse: str, merge_gate: GatedCopies
) -> None:
    names = [f"q{n}" for n in range(len(_KEYS))]
    for name, (key, (by, first, second, value, _)) in zip(names, _KEYS.items(), strict=True):
        database.execute(
            f"CREATE TABLE {name} (id int, {key}, v text, PRIMARY KEY (id, r)) {by}",
            f"CREATE TABLE {name}a PARTITION OF {name} FOR VALUES {first}",
            f"CREATE TABLE {name}b PARTITION OF {name} FOR VALUES {second}",
            f"INSERT INTO {name} SELECT g, {value}, 'v' FROM generate_series(1, 300) g",
        )
    steps = Steps()
    mirror = Mirror.create(database, warehouse, merge_gate)
    tables = [f"public.{name}" for name in names]
    with mirror.pumping(steps):
        mirror.register(*names)
        mirror.await_live(*tables)
        for name in names:
            # Files with rows of both partitions, and deleted positions.
            database.execute(f"UPDATE {name} SET v = 'w' WHERE id % 3 = 0", f"DELETE FROM {name} WHERE id % 7 = 0")
        mirror.await_frontier()
        copied = steps.count(Step.CHUNK_COPIED)
        merge_gate.hold()
        before = {}
        for name, (_, first, _, _, kept) in zip(names, _KEYS.values(), strict=True):
            database.execute(
                f"UPDATE {name} SET v = 'x' WHERE id % 5 = 0",
                f"UPDATE {name} SET r = {kept} WHERE id % 11 = 0",
            )
            mirror.await_frontier()
            before[name] = mirror.heap(name)
            database.execute(
                f"DROP TABLE {name}a",
                f"UPDATE {name} SET v = 'y' WHERE id % 4 = 0",
                f"CREATE TABLE {name}a PARTITION OF {name} FOR VALUES {first}",
                f"INSERT INTO {name} SELECT g, {_KEYS[_key(name)][3]}, 'new' FROM generate_series(1, 300) g"
                " ON CONFLICT DO NOTHING",
                f"DELETE FROM {name} WHERE id % 13 = 0",
                f"UPDATE {name} SET v = 'z' WHERE id % 6 = 0",
            )
        mirror.await_frontier()
        await_true(lambda: merge_gate.waiting, 20, "a file that waits")
        for name in names:
            assert mirror.lake(f"public.{name}") == before[name]
            database.execute(f"DELETE FROM {name} WHERE id % 17 = 0", f"UPDATE {name} SET v = 'late' WHERE id % 9 = 0")
        mirror.await_frontier()
        merge_gate.let_go()
        mirror.await_live(*tables)
        mirror.await_frontier()
        mirror.assert_equal(*tables)
        for name in names:
            database.execute(f"TRUNCATE {name}b", f"INSERT INTO {name} SELECT * FROM {name}a ON CONFLICT DO NOTHING")
        mirror.await_frontier()
        mirror.await_live(*tables)
        mirror.await_frontier()
        mirror.assert_equal(*tables)
    assert steps.count(Step.TABLE_COPIED_AGAIN) == 0, steps.details(Step.TABLE_COPIED_AGAIN, "reason")
    assert steps.count(Step.CHUNK_COPIED) == copied, "the heap is not read"
    mirror.assert_sound()
    assert_verified(database)


def _key(name: str) -> str:
    return list(_KEYS)[int(name[1:])]


_OTHERS = (
    ("h", "PARTITION BY HASH (id)", ("WITH (modulus 2, remainder 0)", "WITH (modulus 2, remainder 1)")),
    ("m", "PARTITION BY RANGE (id, r)", ("FROM (0, 0) TO (100, 5)", "FROM (100, 5) TO (999, 0)")),
    ("e", "PARTITION BY RANGE (r)", ("FROM ('') TO ('5')", "FROM ('5') TO (MAXVALUE)")),
)


@pytest.mark.further
def test_rows_that_partition_bounds_do_not_identify_are_copied_again(database: Database, warehouse: str) -> None:
    for name, by, bounds in _OTHERS:
        kind = "text" if name == "e" else "int"
        database.execute(f"CREATE TABLE {name} (id int, r {kind}, PRIMARY KEY (id, r)) {by}")
        for number, bound in enumerate(bounds):
            database.execute(f"CREATE TABLE {name}{number} PARTITION OF {name} FOR VALUES {bound}")
        database.execute(f"INSERT INTO {name} SELECT g, g % 10 FROM generate_series(1, 200) g")
    steps = Steps()
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    names = [name for name, *_ in _OTHERS]
    tables = [f"public.{name}" for name in names]
    with mirror.pumping(steps):
        mirror.register(*names)
        mirror.await_live(*tables)
        mirror.await_frontier()
        for name in names:
            database.execute(f"ALTER TABLE {name} DETACH PARTITION {name}0", f"DELETE FROM {name} WHERE id % 7 = 0")
        mirror.await_frontier()
        mirror.await_live(*tables)
        mirror.await_frontier()
        mirror.assert_equal(*tables)
    assert set(steps.details(Step.TABLE_COPIED_AGAIN, "table")) == set(tables)
    assert steps.count(Step.TABLE_FILLING) == 0
