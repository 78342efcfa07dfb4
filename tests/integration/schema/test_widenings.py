"""Types that only widen: followed without a copy, where the text of the command proves that no value was changed."""

from __future__ import annotations

import random

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.events_table import RetentionTables

_TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, s smallint, n int, r real, v varchar(20))",
    "INSERT INTO t SELECT g, g - 50, -g * 1000003, g / 8.0, 'v' || g FROM generate_series(1, 100) g",
    "UPDATE t SET n = 2147483647, s = 32767, r = 'Infinity' WHERE id = 1",
    "UPDATE t SET n = -2147483648, s = -32768, r = 'NaN' WHERE id = 2",
    "UPDATE t SET n = NULL, s = NULL, r = '-0' WHERE id = 3",
)

_BEFORE = """BEGIN
  IF current_setting('f.done', true) IS DISTINCT FROM 'yes' THEN
    PERFORM set_config('f.done', 'yes', false);
    ALTER TABLE t ALTER n TYPE bigint USING n / 2;
  END IF;
END"""
"""A trigger of somebody else's, before a command whose own text is innocent."""
_BEHIND = """BEGIN
  IF current_setting('f.done', true) IS DISTINCT FROM 'yes' THEN
    PERFORM set_config('f.done', 'yes', false);
    ALTER TABLE t ALTER id TYPE int USING id + 1000;
  END IF;
END"""
"""And one after it."""


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(*_TABLE)
    return Mirror.create(database, warehouse, tasks)


@pytest.mark.parametrize(
    ("text", "proven"),
    [
        ("ALTER TABLE t ALTER n TYPE bigint", True),
        ("ALTER TABLE t ALTER n TYPE bigint USING n::bigint", True),
        ('alter table "T" alter column "n" set data type bigint using "n"::bigint;', True),
        ("ALTER TABLE t ALTER n TYPE bigint USING n::bigint, ALTER m TYPE bigint USING m::bigint", True),
        ("ALTER TABLE t ALTER r TYPE double precision USING r::double precision", True),
        ("ALTER TABLE t ALTER n TYPE bigint USING n::bigint + 1", False),
        ("ALTER TABLE t ALTER n TYPE bigint USING n::bigint\n\t+ 1", False),
        ("ALTER TABLE t ALTER n TYPE bigint USING n::bigint -- \n + 1", False),
        ("ALTER TABLE t ALTER n TYPE bigint USING m::bigint", False),
        ('ALTER TABLE t ALTER "n" TYPE bigint USING "N"::bigint', False),
        ('ALTER TABLE t ALTER n TYPE bigint USING "n"::bigint', False),
        ("ALTER TABLE t ALTER n TYPE bigint USING n::int", False),
        ("ALTER TABLE t ALTER n TYPE bigint USING n", False),
        ("ALTER TABLE t ALTER n TYPE bigint USING(n::bigint)", False),
        ("ALTER TABLE t ALTER n TYPE bigint/**/uSiNg/**/n+1", False),
        ("ALTER TABLE t ALTER n TYPE my.bigint USING n::my.bigint", False),
        ("/* alter n type bigint using n::bigint, */ ALTER TABLE t ALTER n TYPE bigint USING n + 1", False),
        ("ALTER TABLE t ALTER using_it TYPE bigint", False),
        (None, False),
    ],
)
def test_what_a_text_proves(mirror: Mirror, database: Database, text: str | None, proven: bool) -> None:
    assert database.rows("SELECT modak.mirror_without_using(%s)", (text,)) == [(proven,)]


@pytest.mark.further
@pytest.mark.parametrize(
    "statements",
    [
        (
            "CREATE FUNCTION change() RETURNS void LANGUAGE sql AS 'ALTER TABLE t ALTER n TYPE bigint USING n / 2'",
            "SELECT change()",
        ),
        (
            "DO $$ BEGIN EXECUTE convert_from('\\x"
            + b"ALTER TABLE t ALTER n TYPE bigint USING n / 2".hex()
            + "', 'UTF8'); END $$",
        ),
        (
            f"CREATE FUNCTION f() RETURNS event_trigger LANGUAGE plpgsql AS $f$ {_BEFORE} $f$",
            "CREATE EVENT TRIGGER before ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION f()",
            "ALTER TABLE t ALTER n TYPE bigint",
            "DROP EVENT TRIGGER before",
        ),
        (
            f"CREATE FUNCTION f() RETURNS event_trigger LANGUAGE plpgsql AS $f$ {_BEHIND} $f$",
            "CREATE EVENT TRIGGER behind ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION f()",
            "ALTER TABLE t ALTER n TYPE bigint",
            "DROP EVENT TRIGGER behind",
        ),
        ("PREPARE p AS SELECT 'ALTER TABLE t ALTER n TYPE bigint'", "ALTER TABLE t ALTER n TYPE bigint USING (n / 2)"),
        ("BEGIN; ALTER TABLE t ALTER n TYPE real; ALTER TABLE t ALTER n TYPE bigint; COMMIT",),
        ("BEGIN; ALTER TABLE t ALTER n TYPE oid USING (n & 1023)::oid; COMMIT; ALTER TABLE t ALTER n TYPE bigint",),
        ("BEGIN; UPDATE t SET n = n & 1023; ALTER TABLE t ALTER v TYPE varchar(3) USING left(v, 3); COMMIT",),
    ],
)
def test_values_that_were_changed_are_copied(mirror: Mirror, database: Database, statements: tuple[str, ...]) -> None:
    mirror.register("t")
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        with database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode(), prepare=False)
        mirror.await_frontier()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert steps.count(Step.TABLE_COPIED_AGAIN)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.further) for seed in (1, 2))])
def test_a_table_goes_on_under_load_and_old_files_read_on(mirror: Mirror, database: Database, seed: int) -> None:
    """Old and new files, deletes, merges, and filters on values that only one width has."""
    chosen = random.Random(seed)
    mirror.register("t")
    steps = Steps()
    widenings = [
        "ALTER TABLE t ALTER s TYPE int",
        "ALTER TABLE t ALTER n TYPE bigint, ALTER r TYPE double precision",
        'ALTER TABLE "t" ALTER COLUMN "s" TYPE bigint USING "s"::bigint',
    ]
    with mirror.pumping(steps), duckdb_connection() as duckdb:
        mirror.await_live("public.t")
        for widening in [None, *widenings]:
            with database.connect(autocommit=False) as connection:
                if widening is not None:
                    connection.execute("UPDATE t SET v = 'before' WHERE id % 7 = 3")
                    connection.execute(widening.encode(), prepare=False)
                for number in range(30):
                    given = {"id": chosen.randrange(1, 120), "n": chosen.randrange(-(2**31), 2**31), "v": f"v{number}"}
                    connection.execute(
                        chosen.choice(
                            [
                                b"UPDATE t SET n = %(n)s, s = s - 1 WHERE id = %(id)s AND s > 0",
                                b"DELETE FROM t WHERE id = %(id)s",
                                b"INSERT INTO t VALUES (%(id)s, -1, %(n)s, 0.25, %(v)s) ON CONFLICT (id) DO NOTHING",
                                b"UPDATE t SET v = %(v)s WHERE id > %(id)s",
                            ]
                        ),
                        given,
                    )
                    if number % 5 == 0 and widening is None:
                        connection.commit()
            mirror.await_frontier()
            mirror.assert_equal("public.t")
        database.execute("UPDATE t SET n = n - 5000000000 WHERE id % 5 = 0", "UPDATE t SET r = 1e300 WHERE id % 9 = 0")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        location = mirror.location("public.t")
        for bound in (-3_000_000_000, -1, 0, 2_147_483_647):
            (expected,) = database.rows("SELECT count(*) FROM t WHERE n < %s", (bound,))
            assert duckdb.execute(f"SELECT count(*) FROM iceberg_scan('{location}') WHERE n < {bound}").fetchall() == [
                expected
            ]
    assert steps.count(Step.TABLE_COPIED_AGAIN) == 0
    assert steps.count(Step.TABLE_CHANGED) == 3
    mirror.assert_sound()


@pytest.mark.further
def test_while_it_is_being_copied(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """The command moves rows within the heap: chunks that were read before and those that are read after it agree."""
    database.execute(*_TABLE, "INSERT INTO t SELECT g, 1, g, 1, repeat('v', 20) FROM generate_series(101, 3000) g")
    gate = GatedCopies(tasks)
    gate.hold()
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    mirror.register("t")
    with mirror.pumping():
        await_true(lambda: gate.waiting, 30, "a chunk")
        gate.let_go(1)
        database.execute(
            "DELETE FROM t WHERE id % 3 = 0",
            "ALTER TABLE t ALTER n TYPE bigint",
            "UPDATE t SET n = n + 5000000000 WHERE id % 5 = 0",
        )
        gate.let_go()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_rows_below_the_cut_line_read_on_and_nothing_is_copied(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic()
    database = events.mirror.database
    steps = Steps()
    with events.mirror.pumping(steps):
        events.await_state(p0="dropped", p1="dropped")
        copied = steps.count(Step.CHUNK_COPIED)
        chance = random.Random(5)
        with database.connect() as connection:
            for _ in range(20):
                events.write(connection, chance)
            database.execute("ALTER TABLE public.events ALTER n TYPE bigint", "ALTER TABLE model ALTER n TYPE bigint")
            for _ in range(20):
                events.write(connection, chance)
        database.execute(
            "UPDATE public.events SET n = n + 5000000000 WHERE at > 300",
            "UPDATE model SET n = n + 5000000000 WHERE at > 300",
        )
        database.execute(
            """SELECT modak.upsert('public.events', '{"at": 20, "id": 20, "n": -6000000000}')""",
            "INSERT INTO model VALUES (20, 20, -6000000000) ON CONFLICT (at, id) DO UPDATE SET n = excluded.n",
        )
        events.mirror.await_frontier()
        await_true(lambda: steps.count(Step.TABLE_CHANGED), 30, "it is followed")
        events.assert_exact()
    assert steps.count(Step.CHUNK_COPIED) == copied
    assert steps.count(Step.TABLE_COPIED_AGAIN) == 0
