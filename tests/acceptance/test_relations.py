"""Tables as databases really have them: partitions, odd names, dropped and generated columns, each replica identity."""

from __future__ import annotations

import pytest

from mirror_pump.errors import TableError
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner


def test_partitioned_table_through_its_root(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    database.execute(
        "CREATE TABLE events (at int, id int, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (100) TO (200) PARTITION BY LIST (id)",
        "CREATE TABLE events_2a PARTITION OF events_2 FOR VALUES IN (1, 2)",
        "CREATE TABLE events_2b PARTITION OF events_2 DEFAULT",
        "INSERT INTO events SELECT g % 200, g, 'copied ' || g FROM generate_series(1, 3000) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("events")
    with mirror.pumping():
        mirror.await_live("public.events")
        database.execute(
            "UPDATE events SET at = at + 100 WHERE at < 50",
            "UPDATE events SET v = v || '!' WHERE id % 7 = 0",
            "DELETE FROM events WHERE id % 11 = 0",
            "CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (200) TO (300)",
            "INSERT INTO events SELECT 200 + g % 100, g, 'later' FROM generate_series(10001, 10200) g",
            "UPDATE events SET at = at - 150 WHERE at >= 250",
        )
        mirror.await_frontier()
        assert mirror.state("public.events") == "live", mirror.error("public.events")
        mirror.assert_equal("public.events")
    mirror.assert_sound()


@pytest.mark.further
def test_names_schemas_keys_and_columns_of_all_sorts(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute(
        'CREATE SCHEMA "Odd ""Schema%"',
        'CREATE TABLE "Odd ""Schema%"."Ta-ble ä" ("Key One" text, "k%2" int, "select" text, '
        '"a""b" numeric(5,1), PRIMARY KEY ("Key One", "k%2"))',
        """INSERT INTO "Odd ""Schema%"."Ta-ble ä" SELECT 'k ' || g, g, 's', g / 10.0 FROM generate_series(1, 200) g""",
        "CREATE TABLE changed (a int, id bigint PRIMARY KEY, gone text, v text,"
        " twice bigint GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE changed DROP COLUMN gone",
        "INSERT INTO changed (a, id, v) SELECT g, g, 'v' FROM generate_series(1, 200) g",
        "CREATE TABLE wholly (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), v text)",
        "ALTER TABLE wholly REPLICA IDENTITY FULL",
        "INSERT INTO wholly (v) SELECT g::text FROM generate_series(1, 200) g",
        "CREATE TABLE indexed (id int PRIMARY KEY, code text NOT NULL UNIQUE, v text)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code_key",
        "INSERT INTO indexed SELECT g, 'code ' || g, 'v' FROM generate_series(1, 200) g",
        "CREATE TABLE keys_only (id date PRIMARY KEY)",
        "INSERT INTO keys_only SELECT date '2024-01-01' + g FROM generate_series(1, 50) g",
    )
    odd, quoted = 'Odd "Schema%.Ta-ble ä', '"Odd ""Schema%"."Ta-ble ä"'
    plain = ["public.wholly", "public.indexed", "public.keys_only"]
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register(quoted, "changed", "wholly", "indexed", "keys_only")
    with mirror.pumping():
        mirror.await_live(odd, "public.changed", *plain)
        database.execute(
            'UPDATE "Odd ""Schema%"."Ta-ble ä" SET "Key One" = "Key One" || \'!\' WHERE "k%2" % 3 = 0',
            'DELETE FROM "Odd ""Schema%"."Ta-ble ä" WHERE "k%2" % 5 = 0',
            "UPDATE changed SET v = 'w', a = NULL WHERE id % 3 = 0",
            "DELETE FROM changed WHERE id % 5 = 0",
            "INSERT INTO changed (a, id, v) SELECT g, g, NULL FROM generate_series(1001, 1100) g",
            "UPDATE wholly SET v = v || 'x' WHERE v::int % 3 = 0",
            "DELETE FROM wholly WHERE v LIKE '%5'",
            "UPDATE indexed SET code = code || '!', v = 'w' WHERE id % 3 = 0",
            "UPDATE indexed SET id = id + 10000 WHERE id % 4 = 0",
            "DELETE FROM indexed WHERE id % 5 = 0",
            "DELETE FROM keys_only WHERE id < '2024-01-20'",
            "UPDATE keys_only SET id = id + 1000 WHERE id > '2024-02-10'",
        )
        mirror.await_frontier()
        mirror.assert_equal(*plain)
        heap = database.rows(f'SELECT "Key One", "k%2", "select", "a""b" FROM {quoted} ORDER BY 2')
        assert sorted(mirror.lake(odd), key=lambda row: row[1]) == heap
        assert sorted(mirror.lake("public.changed"), key=lambda row: row[1]) == database.rows(
            f"SELECT a, id, v{'' if major_version() < 18 else ', twice'} FROM changed ORDER BY id"
        )


_REFUSED: list[tuple[list[str], str]] = [
    (["CREATE TABLE t (id int)"], "no primary key"),
    (["CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"], "NOTHING"),
    (["CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)"], "DEFERRABLE"),
    (["CREATE TABLE t (id float8 PRIMARY KEY)"], "float"),
    (["CREATE UNLOGGED TABLE t (id int PRIMARY KEY)"], "unlogged"),
    (["CREATE TABLE o (id int PRIMARY KEY)", "CREATE VIEW t AS SELECT * FROM o"], "view"),
    (["CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (t)"], "INHERITS"),
]


def test_what_cannot_be_mirrored_is_refused_and_left_as_it_was(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    mirror = Mirror.create(database, warehouse, tasks)
    for statements, expected in _REFUSED:
        with database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())
        with pytest.raises(TableError, match=f"(?i){expected}") as refusal:
            mirror.register("t")
        assert refusal.value.remedy
        assert mirror.state("public.t") == ""
        assert database.rows("SELECT count(*) FROM pg_publication_tables") == [(0,)]
        assert database.rows("SELECT count(*) FROM modak.iceberg_tables") == [(0,)]
        database.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
