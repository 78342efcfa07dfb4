"""Schema changes that no event trigger announces: the pump finds them by their traces, and copies the table again if
necessary."""

from __future__ import annotations

import os

import psycopg
import pytest

from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import connect
from mirror_pump.source.relations.change_notes import CatalogLook, note_changes
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from sql import queries
from tests.support.changed_tables import PARTITIONED, TABLES

_UNTOLD = (
    "ALTER TABLE t RENAME COLUMN v TO w",
    "ALTER TABLE t RENAME COLUMN v TO tmp; ALTER TABLE t RENAME COLUMN big TO v; ALTER TABLE t RENAME tmp TO big",
    "ALTER TABLE t ADD COLUMN d int DEFAULT 9",
    "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text",
    "ALTER TABLE t ALTER n TYPE int USING -n",
    "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (n)",
    "VACUUM FULL t",
    "TRUNCATE t",
)


@pytest.mark.parametrize("rows_change", [pytest.param(False, marks=pytest.mark.soak), True])
def test_without_event_triggers_changes_are_found_and_the_table_copied_again(
    database: Database, warehouse: str, rows_change: bool
) -> None:
    numbers = range(len(_UNTOLD))
    for number in numbers:
        with database.connect() as connection:
            connection.execute(f"CREATE SCHEMA s{number}; SET search_path = s{number}".encode())
            for statement in TABLES[:3]:
                connection.execute(statement.encode())
    steps = Steps()
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    database.execute(
        "DROP EVENT TRIGGER mirror_pump_ddl",
        "DROP EVENT TRIGGER mirror_pump_drop",
        "DROP EVENT TRIGGER mirror_pump_rewrite",
    )
    with mirror.pumping(steps):
        names = [f"s{number}.t" for number in numbers]
        mirror.register(*names)
        mirror.await_live(*names)
        mirror.await_frontier()
        for number, change in enumerate(_UNTOLD):
            with database.connect() as connection:
                connection.execute(f"SET search_path = s{number}".encode())
                if rows_change:
                    connection.execute("UPDATE t SET n = n + 1000 WHERE id % 3 = 0")
                connection.execute(change.encode())
                if rows_change:
                    connection.execute("UPDATE t SET n = n + 2000 WHERE id % 3 = 1")
                    connection.execute("DELETE FROM t WHERE id % 7 = 0")

        def agrees(name: str) -> bool:
            return mirror.state(name) == "live" and mirror.heap(name) == mirror.lake(name)

        for name in names:
            await_true(lambda name=name: agrees(name), 60, f"{name} as the heap is")  # type: ignore[misc]
        mirror.await_frontier()
        mirror.assert_equal(*names)
    copied = {str(table) for table in steps.details(Step.TABLE_COPIED_AGAIN, "table")}
    assert {"s2.t", "s3.t", "s4.t", "s5.t"} <= copied
    mirror.assert_sound()


_SETTABLE = major_version() >= 17
"""Whether a session can turn event triggers off."""
_UNHEARD = (
    """
    ALTER EVENT TRIGGER mirror_pump_rewrite DISABLE;
    ALTER TABLE t ALTER n TYPE int USING n + 1000;
    ALTER EVENT TRIGGER mirror_pump_rewrite ENABLE ALWAYS
    """,
    *(["SET event_triggers = off; ALTER TABLE t ALTER n TYPE int USING n + 2000; RESET event_triggers"] * _SETTABLE),
)


def test_a_rewrite_while_an_event_trigger_is_off_is_known_by_what_it_leaves(database: Database, warehouse: str) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        mirror.await_frontier()
        for copies, unheard in enumerate(_UNHEARD, start=1):
            database.execute(unheard)
            await_true(lambda copies=copies: steps.count(Step.TABLE_COPIED_AGAIN) == copies, 20, unheard)  # type: ignore[misc]
            mirror.await_live("public.t")
            mirror.await_frontier()
            mirror.assert_equal("public.t")
        # Changes that leave every value as it was.
        database.execute(
            "ALTER TABLE other ADD COLUMN z int DEFAULT 7",
            f"GRANT SELECT (id, v) ON t TO {database.rows('SELECT current_user::regrole::text')[0][0]}",
            "VACUUM FREEZE pg_attribute",
            "VACUUM FULL pg_attribute",
        )
        await_true(lambda: steps.count(Step.TABLE_FILLING) == 1, 20, "other, for its default")
        mirror.await_live("public.other")
        database.execute("VACUUM FULL other", "ALTER TABLE t ADD COLUMN y int")
        described = "SELECT count(*) FROM modak.mirror_shapes s WHERE s.shape = modak.mirror_shape(s.table_id::oid)"
        await_true(lambda: database.rows(described) == [(2,)], 20, "looked at")
        database.execute("INSERT INTO t (id, y) VALUES (1000, 1)", "UPDATE other SET v = 'u'")
        mirror.await_frontier()
        assert steps.count(Step.TABLE_COPIED_AGAIN) == len(_UNHEARD), steps.details(Step.TABLE_COPIED_AGAIN, "reason")
        mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()


@pytest.mark.parametrize(
    ("part", "untold"),
    [
        *([("p1", "SET event_triggers = off")] * _SETTABLE),
        pytest.param("s", "DROP EVENT TRIGGER mirror_pump_ddl", marks=[pytest.mark.further] if _SETTABLE else []),
    ],
)
def test_an_unannounced_detach_and_attach_is_found_by_its_traces(
    database: Database, warehouse: str, part: str, untold: str
) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE s PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE s1 PARTITION OF s FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p SELECT generate_series(0, 19)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    if untold.startswith("DROP"):
        database.execute(untold)
    with mirror.pumping() as pump:
        mirror.register("p")
        mirror.await_live("public.p")
        mirror.await_frontier()
        bounds = "(0) TO (10)" if part == "p1" else "(10) TO (20)"
        with database.connect(autocommit=False) as connection:
            if untold.startswith("SET"):
                connection.execute(untold.encode())
            connection.execute(f"ALTER TABLE p DETACH PARTITION {part}; DELETE FROM {part} WHERE id % 2 = 0".encode())
            connection.execute(f"ALTER TABLE p ATTACH PARTITION {part} FOR VALUES FROM {bounds}".encode())
        await_true(lambda: pump.steps.count(Step.TABLE_COPIED_AGAIN), 20, "copied again")
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    mirror.assert_sound()


def test_a_table_that_is_locked_keeps_the_stream_from_hearing_of_no_other(database: Database, warehouse: str) -> None:
    """A prepared ALTER TABLE may stay for hours."""
    database.execute(*TABLES, "CREATE TABLE last (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "other", "last")
    database.execute(
        "DROP EVENT TRIGGER mirror_pump_ddl",
        "ALTER TABLE t ADD COLUMN x int",
        "ALTER TABLE other ADD COLUMN x int",
        "ALTER TABLE last ADD COLUMN x int",
    )
    with (
        connect(database.dsn, autocommit=True) as looking,
        database.connect(autocommit=False) as altering,
        altering.transaction(),
    ):
        altering.execute("LOCK TABLE other IN ACCESS EXCLUSIVE MODE")
        look = CatalogLook(mirror.settings.slot)
        assert note_changes(looking, look) == 2
        assert note_changes(looking, look) == 0
    with connect(database.dsn, autocommit=True) as looking:
        assert note_changes(looking, look) == 1
    mirror.catch_up()
    mirror.assert_equal("public.t", "public.other", "public.last")


def test_a_second_init_watches_what_is_not_watched(database: Database, warehouse: str) -> None:
    database.execute(*PARTITIONED)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("p")
    mirror.catch_up()
    triggers = "SELECT tgrelid::regclass::text, tgenabled::text FROM pg_trigger WHERE tgname LIKE 'mirror%%' ORDER BY 1"
    watched = [("p1", "A"), ("p2", "A")]
    assert database.rows(triggers) == watched
    database.execute("DROP TRIGGER mirror_pump_truncate ON p2", "ALTER EVENT TRIGGER mirror_pump_ddl DISABLE")
    lines: list[str] = []
    initialise(mirror.settings, lines.append)
    assert database.rows(triggers) == watched
    assert "event triggers: schema changes are followed where they happen" in lines
    assert database.rows("SELECT count(*) FROM pg_event_trigger WHERE evtenabled = 'A'") == [(3,)]
    database.execute("TRUNCATE p2")
    mirror.catch_up()
    mirror.assert_equal("public.p")
    mirror.unregister("p")
    assert database.rows(triggers) == []


def test_an_unannounced_truncate_of_a_partition_has_the_table_copied_again(database: Database, warehouse: str) -> None:
    """The trigger is disabled for a moment, without a note. Then the partition's file is compared."""
    database.execute(*PARTITIONED)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("p")
        mirror.await_live("public.p")
        mirror.await_frontier()
        with database.connect(autocommit=False) as connection:
            connection.execute("DROP TRIGGER mirror_pump_truncate ON p1")
            connection.execute("TRUNCATE p1")
        await_true(lambda: steps.count(Step.TABLE_COPIED_AGAIN), 20, "copied again")
        watched = "SELECT count(*) FROM pg_trigger WHERE tgname = 'mirror_pump_truncate' AND tgenabled = 'A'"
        await_true(lambda: database.rows(watched) == [(2,)], 20, "watched again")
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    mirror.assert_sound()


@pytest.mark.empty_database
def test_a_role_that_may_not_create_event_triggers_gets_a_warning(database: Database, warehouse: str) -> None:
    role = f"r_{database.name}"[:60]
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE \"{role}\" LOGIN REPLICATION PASSWORD 'x'".encode())
        try:
            connection.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO "{role}"'.encode())
            lines: list[str] = []
            dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role, password="x")
            settings = Settings(dsn=dsn, warehouse=warehouse, slot=f"s_{database.name}"[:60], storage_fsync=False)
            initialise(settings, lines.append)
            assert any("may not create event triggers" in line for line in lines), lines
            assert database.rows("SELECT count(*) FROM pg_event_trigger") == [(0,)]
        finally:
            connection.execute(f'DROP OWNED BY "{role}" CASCADE'.encode())
            connection.execute(f'DROP ROLE "{role}"'.encode())


@pytest.mark.further
@pytest.mark.empty_database
def test_a_table_that_changes_its_owner_fails_alone(database: Database, warehouse: str) -> None:
    """The pump cannot lock it then, either."""
    role = f"r_{database.name}"[:60]
    with database.connect() as connection:

        def run(*statements: str) -> None:
            for statement in statements:
                connection.execute(statement.replace("pump_role", f'"{role}"').encode())

        run(
            "CREATE ROLE pump_role LOGIN REPLICATION PASSWORD 'x'",
            f'GRANT CREATE ON DATABASE "{database.name}" TO pump_role',
        )
        try:
            for name in ("a", "b"):
                run(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"ALTER TABLE {name} OWNER TO pump_role")
            dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role, password="x")
            mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), dsn=dsn)
            run("GRANT ALL ON SCHEMA audit TO pump_role", "GRANT ALL ON ALL TABLES IN SCHEMA audit TO pump_role")
            run("GRANT ALL ON ALL SEQUENCES IN SCHEMA audit TO pump_role")
            assert database.rows("SELECT count(*) FROM pg_event_trigger") == [(0,)]
            with mirror.pumping():
                mirror.register("a", "b")
                mirror.await_live("public.a", "public.b")
                run("ALTER TABLE a OWNER TO postgres", "INSERT INTO b VALUES (1)")
                await_true(lambda: mirror.state("public.a") == "failed", 90, "the table fails")
                assert "does not own public.a" in mirror.error("public.a")
            # A later start must not prevent the other one.
            with mirror.pumping():
                run("INSERT INTO b VALUES (2)")
                mirror.await_frontier()
                mirror.assert_equal("public.b")
            mirror.assert_sound()
        finally:
            run("DROP OWNED BY pump_role CASCADE", "DROP ROLE pump_role")


def test_a_trigger_that_fails_says_so_and_the_table_is_copied_again(database: Database, warehouse: str) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping() as pump:
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.await_frontier()
        # Since this one's snapshot, another transaction has emitted a note about the table, so this one cannot.
        with database.connect(autocommit=False) as late:
            late.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            late.execute("SELECT 1")
            database.execute("ALTER TABLE t ADD COLUMN z int")
            late.execute("ALTER TABLE t ADD COLUMN y int DEFAULT 5")
            late.execute("UPDATE t SET n = -n WHERE id < 10")
            late.commit()
        mirror.await_frontier()
        # Twice, unless both are in one batch on a busy machine.
        await_true(lambda: pump.steps.count(Step.TABLE_COPIED_AGAIN), 20, "stalled, then copied again")
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")


@pytest.mark.further
@pytest.mark.parametrize("level", ["REPEATABLE READ", pytest.param("SERIALIZABLE", marks=pytest.mark.soak)])
def test_a_transaction_that_cannot_see_the_registration_changes_the_table(
    database: Database, warehouse: str, level: str
) -> None:
    database.execute(
        *TABLES,
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE q (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (10)",
        "INSERT INTO p SELECT generate_series(0, 9)",
        "INSERT INTO q SELECT generate_series(0, 9)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    names = ["public.t", "public.p", "public.q"]
    with mirror.pumping() as pump, database.connect(autocommit=False) as late:
        late.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        late.execute("SELECT 1")
        mirror.register(*names)
        mirror.await_live(*names)
        mirror.await_frontier()
        late.execute("ALTER TABLE t ALTER n TYPE int USING n + 1000")
        late.execute("TRUNCATE p1")
        late.execute("ALTER TABLE q DETACH PARTITION q1; DELETE FROM q1 WHERE id < 5")
        late.execute("ALTER TABLE q ATTACH PARTITION q1 FOR VALUES FROM (0) TO (10)")
        late.execute("ALTER TABLE other ADD COLUMN z int")
        late.commit()
        mirror.await_frontier()
        await_true(
            lambda: set(pump.steps.details(Step.TABLE_COPIED_AGAIN, "table")) == {"public.t", "public.q"},
            20,
            "copied again",
        )
        # The rows that a TRUNCATE removes are known.
        await_true(lambda: pump.steps.details(Step.TABLE_FILLING, "table") == ["public.p"], 20, "filled")
        mirror.await_live(*names)
        mirror.await_frontier()
        mirror.assert_equal(*names)
    mirror.assert_sound()


def test_whatever_a_shape_is_made_of_is_compared_again_when_it_was_written(database: Database, warehouse: str) -> None:
    """And nothing is compared for what does not concern shapes."""
    database.execute(
        *PARTITIONED,
        "CREATE TYPE mood AS ENUM ('ok', 'bad')",
        "CREATE TYPE pair AS (x int, y int)",
        "CREATE DOMAIN positive AS int",
        "CREATE TABLE every (id int PRIMARY KEY, code int NOT NULL UNIQUE, m mood, c pair, d positive, a text)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("p", "every")
    mirror.catch_up()
    role = f"member_{os.getpid()}"
    changing = [
        "ALTER TABLE every ADD COLUMN z int DEFAULT 3",
        "ALTER TABLE every RENAME a TO b",
        "ALTER TABLE every ALTER code TYPE bigint",
        "ALTER TABLE every REPLICA IDENTITY USING INDEX every_code_key",
        "ALTER TABLE every DROP CONSTRAINT every_pkey",
        "ALTER TABLE every ENABLE ROW LEVEL SECURITY",
        "ALTER TYPE mood ADD VALUE 'new'",
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        "ALTER TYPE pair ADD ATTRIBUTE z int",
        "ALTER TYPE mood RENAME TO temper",
        "ALTER TABLE p DETACH PARTITION p1",
        "ALTER TABLE p2 DISABLE TRIGGER mirror_pump_truncate",
        "ALTER EVENT TRIGGER mirror_pump_ddl DISABLE",
        "ALTER EVENT TRIGGER mirror_pump_ddl ENABLE ALWAYS",
        "VACUUM FULL every",
        "GRANT SELECT (b) ON every TO PUBLIC",
        "REVOKE ALL ON every FROM PUBLIC",
        "ALTER SCHEMA public RENAME TO renamed",
        "ALTER SCHEMA renamed RENAME TO public",
        f"CREATE ROLE {role}",
        f"ALTER ROLE {role} BYPASSRLS",
        f"DROP ROLE {role}",
        "DROP TABLE every",
    ]
    unchanging = [
        "ANALYZE",
        "VACUUM",
        "CREATE TEMP TABLE gone AS SELECT 1 AS x; ALTER TABLE gone ADD COLUMN y int; DROP TABLE gone",
        "DELETE FROM p",
        "CHECKPOINT",
    ]
    with connect(database.dsn, autocommit=True) as looking, database.connect() as writing:

        def state() -> str:
            row = looking.execute(queries("shape")["catalogs"]).fetchone()
            assert row is not None
            return str(row[0])

        for statement in changing:
            before = state()
            writing.execute(statement.encode())
            assert state() != before, statement
        for statement in unchanging:
            # Roles are the server's: another test may have made one at the same time, but not each time.
            before = after = ""
            for _ in range(10):
                before = state()
                writing.execute(statement.encode(), prepare=False)
                after = state()
                if after == before:
                    break
            assert after == before, statement


_WRITTEN: tuple[tuple[str, set[str] | None], ...] = (
    # The statement, and the tables that are compared because of it; None: all.
    ("ALTER TABLE plain ADD COLUMN z int DEFAULT 3", {"plain"}),
    ("ALTER TABLE plain RENAME v TO w", {"plain"}),
    ("ALTER TABLE plain ALTER code TYPE bigint", {"plain"}),
    ("ALTER TABLE plain REPLICA IDENTITY USING INDEX plain_code_key", {"plain"}),
    ("ALTER TABLE plain ENABLE ROW LEVEL SECURITY", {"plain"}),
    ("ALTER TABLE plain SET SCHEMA moved", {"plain"}),
    ("ALTER TABLE moved.plain SET SCHEMA public", {"plain"}),
    ("VACUUM FULL plain", {"plain"}),
    ("CREATE TABLE child () INHERITS (plain)", {"plain"}),
    ("ALTER TABLE p DETACH PARTITION p1", {"p"}),
    ("ALTER TABLE p1 ADD COLUMN x int; ALTER TABLE p1 DROP COLUMN x", set()),
    ("ALTER TABLE p2 DISABLE TRIGGER mirror_pump_truncate", {"p"}),
    ("CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (2000) TO (3000)", {"p"}),
    ("ALTER TYPE mood ADD VALUE 'new'", set()),
    ("ALTER TYPE pair ADD ATTRIBUTE z int", set()),
    ("ALTER TABLE rows RENAME TO rows_renamed", set()),
    ("ALTER TYPE mood RENAME TO temper", set()),
    ("CREATE TABLE unrelated (id int)", set()),
    ("ALTER SCHEMA moved RENAME TO renamed", None),
    ("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')", None),
    ("DROP TABLE plain CASCADE", {"plain"}),
)


def test_only_tables_of_which_something_was_written_are_compared_and_none_is_missed(
    database: Database, warehouse: str
) -> None:
    """What `differing` finds in all tables is the oracle."""
    database.execute(
        *PARTITIONED,
        "CREATE SCHEMA moved",
        "CREATE TYPE mood AS ENUM ('ok', 'bad')",
        "CREATE TYPE pair AS (x int, y int)",
        "CREATE TABLE rows (a int)",
        "CREATE TABLE plain (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE moody (id int PRIMARY KEY, m mood)",
        "CREATE TABLE paired (id int PRIMARY KEY, c pair[], r rows)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    tables = ("p", "plain", "other", "moody", "paired")
    mirror.register(*tables)
    # Nothing is announced.
    database.execute(*(f"DROP EVENT TRIGGER {name}" for name in queries("event_triggers")))
    ids = {name: database.rows(f"SELECT '{name}'::regclass::oid::bigint")[0][0] for name in tables}
    calls = "SELECT coalesce(sum(calls), 0)::int FROM pg_stat_xact_user_functions WHERE funcname = 'mirror_shape'"
    with connect(database.dsn, autocommit=True) as looking, database.connect() as writing:
        looking.execute("SET track_functions = 'all'")
        look = CatalogLook(mirror.settings.slot)
        while note_changes(looking, look):
            pass
        for statement, written in _WRITTEN:
            writing.execute(statement.format(publication=mirror.settings.publication).encode(), prepare=False)
            everything = looking.execute(queries("shape")["differing"], {"table_ids": list(ids.values())}).fetchall()
            with looking.transaction():
                ((before,),) = looking.execute(calls).fetchall()
                differing = look.differing(looking)
                ((after,),) = looking.execute(calls).fetchall()
            assert differing == {table_id for (table_id,) in everything}, statement
            # Tables with types of users depend on more than their own rows.
            compared = len(ids) if written is None else len(written | {"moody", "paired"})
            assert after - before == compared, statement
            while note_changes(looking, look):
                pass
