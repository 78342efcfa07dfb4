"""Restored partitions: every type's values, what PARTITION OF gives, and what Postgres does not take."""

from __future__ import annotations

from typing import LiteralString

import pytest

from mirror_pump.errors import TableError
from mirror_pump.source.connect import connect
from mirror_pump.testing.mirror import Mirror, await_true
from tests.support.retention_table import at_once
from tests.support.table_wishes import parse_choices
from tests.support.type_oracle import CASES, ROWS, create_pool

_WIDTH = 1000
"""Tier values of a partition: the pool's rows fit in."""
_CASES = tuple(number for number, case in enumerate(CASES) if not case.type.startswith(("xml", "pg_node_tree")))
"""The embedded server reads no xml, and no server a pg_node_tree."""


def _await_dropped(mirror: Mirror, *partitions: str) -> None:
    database = mirror.database
    await_true(
        lambda: all(database.rows("SELECT to_regclass(%s)", (name,)) == [(None,)] for name in partitions),
        90,
        f"{partitions} dropped: {database.rows('SELECT partition_id, state, reason FROM modak.partitions')}",
    )


def _texts(mirror: Mirror, table: str, lo: int) -> list[tuple[str | None, ...]]:
    """The pool's rows of one partition as the types print them."""
    with connect(mirror.database.dsn, autocommit=True) as connection:
        connection.execute("SET search_path = pg_catalog")
        columns = ", ".join(f"format('%s', c{number}), c{number} IS NULL" for number in _CASES)
        query = f"SELECT id - {lo}, {columns} FROM public.{table} WHERE id >= {lo} AND id < {lo + ROWS} ORDER BY id"
        return connection.execute(query.encode()).fetchall()


def test_values_of_every_type_come_back_from_files_and_corrections(mirror: Mirror) -> None:
    database = mirror.database
    columns = ", ".join(f"c{number}" for number in _CASES)
    with database.connect() as connection:
        create_pool(connection, "pool")
        for number in set(range(len(CASES))) - set(_CASES):
            connection.execute(f"ALTER TABLE pool DROP COLUMN c{number}".encode())
        connection.execute("CREATE TABLE ev (LIKE pool INCLUDING ALL) PARTITION BY RANGE (id)")
        for number in range(2):
            connection.execute(
                f"CREATE TABLE ev{number} PARTITION OF ev FOR VALUES FROM ({number * _WIDTH}) TO"
                f" ({(number + 1) * _WIDTH})".encode()
            )
        for start in (0, _WIDTH):
            connection.execute(f"INSERT INTO ev SELECT id + {start}, n, {columns} FROM pool".encode())
    mirror.register("ev", retention=at_once("10"))
    with mirror.pumping():
        _await_dropped(mirror, "ev0")
        with database.connect() as connection:
            connection.execute(f"INSERT INTO ev SELECT id + 500, n, {columns} FROM pool".encode())
        mirror.unregister("ev", restore_heap=True)
    wanted = _texts(mirror, "pool", 0)
    assert len(wanted) == ROWS
    for start in (0, 500, _WIDTH):
        found = _texts(mirror, "ev", start)
        for place, number in enumerate(_CASES):
            cells = [row[2 * place + 1 : 2 * place + 3] for row in found]
            assert cells == [row[2 * place + 1 : 2 * place + 3] for row in wanted], (CASES[number].type, start)


_STRUCTURE: LiteralString = """
    SELECT a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
           a.attstorage, a.attcompression, a.attislocal, a.attinhcount::int, pg_get_expr(d.adbin, d.adrelid)
      FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 ORDER BY 1
"""
_CONSTRAINTS: LiteralString = """
    SELECT contype, conname, pg_get_constraintdef(oid), convalidated, conislocal, coninhcount::int, conparentid <> 0
      FROM pg_constraint WHERE conrelid = to_regclass(%s) ORDER BY 1, 2, 3
"""
_INDEXES: LiteralString = """
    SELECT replace(pg_get_indexdef(i.indexrelid), %s, 'X'), i.indisvalid, i.indisprimary,
           (SELECT inhparent::regclass::text FROM pg_inherits h WHERE h.inhrelid = i.indexrelid)
      FROM pg_index i WHERE i.indrelid = to_regclass(%s) ORDER BY 1
"""
_OTHERS: LiteralString = """
    SELECT pg_get_userbyid(relowner), relacl::text, reloptions, relreplident, relrowsecurity, relispartition,
           (SELECT array_agg(tgname ORDER BY tgname) FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT tgisinternal)
      FROM pg_class c WHERE oid = to_regclass(%s)
"""


def _structure(mirror: Mirror, partition: str) -> list[object]:
    rows = mirror.database.rows
    return [
        rows(_STRUCTURE, (partition,)),
        [tuple(str(part).replace(partition, "X") for part in row) for row in rows(_CONSTRAINTS, (partition,))],
        [tuple(str(part).replace(partition, "X") for part in row) for row in rows(_INDEXES, (partition, partition))],
        rows(_OTHERS, (partition,)),
    ]


@pytest.mark.further
def test_a_restored_partition_is_as_one_that_the_owner_makes(mirror: Mirror) -> None:
    """Identity, defaults, generated columns, checks, foreign keys both ways, indexes, triggers, default privileges."""
    database = mirror.database
    database.execute(
        "CREATE TABLE kinds (kind text PRIMARY KEY)",
        "INSERT INTO kinds VALUES ('a'), ('b')",
        "CREATE FUNCTION noop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TABLE ev (id bigint GENERATED ALWAYS AS IDENTITY, at int, gone int,"
        " kind text DEFAULT 'a' REFERENCES kinds, v int NOT NULL CHECK (v > 0),"
        " twice int GENERATED ALWAYS AS (v * 2) STORED, t text STORAGE EXTERNAL,"
        " PRIMARY KEY (at, id), UNIQUE (at, t)) PARTITION BY RANGE (at)",
        "CREATE INDEX ON ev (v) WHERE v > 5",
        "CREATE TRIGGER of_owner BEFORE INSERT ON ev FOR EACH ROW EXECUTE FUNCTION noop()",
        "CREATE TABLE refers (at int, id bigint, FOREIGN KEY (at, id) REFERENCES ev)",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO public",
        "ALTER TABLE ev DROP COLUMN gone",
        *(f"CREATE TABLE ev{n} PARTITION OF ev FOR VALUES FROM ({n * 100}) TO ({n * 100 + 100})" for n in range(4)),
        "INSERT INTO ev (at, v, t) SELECT g, g + 1, 't' || g FROM generate_series(0, 399) g",
    )
    before = _structure(mirror, "ev0")
    rows: LiteralString = "SELECT * FROM ev ORDER BY at, id"
    kept = database.rows(rows)
    mirror.register("ev", retention=at_once("100"))
    with mirror.pumping():
        _await_dropped(mirror, "ev0", "ev1")
        mirror.unregister("ev", restore_heap=True)
    assert database.rows(rows) == kept
    assert _structure(mirror, "ev0") == before
    # As of any table: the key, the identity, the foreign keys.
    database.execute("INSERT INTO ev (at, v) VALUES (5, 7)", "INSERT INTO refers SELECT at, id FROM ev WHERE v = 7")
    assert database.rows("SELECT max(id), count(DISTINCT id) FROM ev") == [(401, 401)]


@pytest.mark.further
def test_a_row_that_postgres_does_not_take_stops_the_restore_until_it_is_dealt_with(mirror: Mirror) -> None:
    database = mirror.database
    database.execute(
        "CREATE TABLE ev (at int PRIMARY KEY, v int) PARTITION BY RANGE (at)",
        *(f"CREATE TABLE ev{n} PARTITION OF ev FOR VALUES FROM ({n * 100}) TO ({n * 100 + 100})" for n in range(3)),
        "INSERT INTO ev SELECT g, g FROM generate_series(0, 299) g",
    )
    mirror.register("ev", retention=at_once("100"))
    with mirror.pumping():
        _await_dropped(mirror, "ev0")
        database.execute("ALTER TABLE ev ADD CONSTRAINT from_ten CHECK (v <> 7) NOT VALID")
        with pytest.raises(TableError, match=r"did not take a row of the lake: .*from_ten.*Failing row"):
            mirror.unregister("ev", restore_heap=True)
        assert database.rows("SELECT count(*) FROM ev") == [(200,)]
        database.execute("""SELECT modak.upsert('ev', '{"at": 7, "v": 8}')""")
        # The file has the row as it was.
        with pytest.raises(TableError, match="from_ten"):
            mirror.unregister("ev", restore_heap=True)
        database.execute("ALTER TABLE ev DROP CONSTRAINT from_ten")
        mirror.unregister("ev", restore_heap=True)
    assert database.rows("SELECT count(*), min(at), max(v) FILTER (WHERE at = 7) FROM ev") == [(300, 0, 8)]


@pytest.mark.further
def test_columns_that_were_left_out_are_lost_only_by_yes(mirror: Mirror) -> None:
    database = mirror.database
    database.execute(
        "CREATE TABLE ev (at int PRIMARY KEY, v int, secret text DEFAULT 'none') PARTITION BY RANGE (at)",
        *(f"CREATE TABLE ev{n} PARTITION OF ev FOR VALUES FROM ({n * 100}) TO ({n * 100 + 100})" for n in range(3)),
        "INSERT INTO ev SELECT g, g, 'secret' FROM generate_series(0, 299) g",
    )
    mirror.register("ev", retention=at_once("100"), choices=parse_choices(["v=decimal(20,5)"], ["secret"]))
    with mirror.pumping():
        _await_dropped(mirror, "ev0")
        with pytest.raises(TableError, match="left out of the mirror: secret"):
            mirror.unregister("ev", restore_heap=True)
        mirror.unregister("ev", restore_heap=True, yes=True)
    assert database.rows("SELECT secret, count(*), sum(v) FROM ev GROUP BY 1 ORDER BY 1") == [
        ("none", 100, 4950),
        ("secret", 200, 39900),
    ]
