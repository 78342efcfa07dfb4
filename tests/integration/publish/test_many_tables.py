"""What is done for one table reads and asks no more where thousands of others are mirrored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from sql import queries

_FEW, _MANY = 6, 40
_MOST_STATEMENTS = 46
"""To register a plain table. Each is a round trip, unless it is sent together with others. Four are looks once it is
locked: whether it, or its name, was registered meanwhile. One asks for the transaction's number, by which a lost answer
to its COMMIT is found out."""


def _make_tables(database: Database) -> None:
    database.execute(
        "CREATE SCHEMA many",
        f"DO $$ BEGIN FOR n IN 1..{_MANY} LOOP"
        " EXECUTE format('CREATE TABLE many.t%s (id int PRIMARY KEY, name text, amount numeric, at timestamptz)', n);"
        " END LOOP; END $$",
    )


def _register(mirror: Mirror, first: int, last: int) -> None:
    mirror.register(*(f"many.t{number}" for number in range(first, last + 1)))


@contextmanager
def _statements(database: Database) -> Iterator[list[int]]:
    """The number of statements that the server logs during the block."""
    begin = database.server.log.stat().st_size
    counted: list[int] = []
    yield counted
    with database.server.log.open("rb") as log:
        log.seek(begin)
        counted.append(sum(b" LOG:  statement: " in line or b" LOG:  execute " in line for line in log))


def test_a_registration_takes_as_many_statements_as_the_first(database: Database, warehouse: str) -> None:
    _make_tables(database)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    database.execute(f"ALTER DATABASE \"{database.name}\" SET log_statement = 'all'")

    def per_table(first: int) -> float:
        with _statements(database) as one:
            _register(mirror, first, first)
        with _statements(database) as five:
            _register(mirror, first + 1, first + 5)
        return (five[0] - one[0]) / 4

    _register(mirror, 1, 1)
    among_few = per_table(2)
    database.execute(f"ALTER DATABASE \"{database.name}\" SET log_statement = 'none'")
    _register(mirror, _FEW + 2, _MANY - 6)
    database.execute(f"ALTER DATABASE \"{database.name}\" SET log_statement = 'all'")
    among_many = per_table(_MANY - 5)
    assert among_few == among_many
    assert 10 < among_many <= _MOST_STATEMENTS


_COUNTERS = """
SELECT r.name, sum(pg_stat_get_xact_tuples_returned(r.oid) + pg_stat_get_xact_tuples_fetched(r.oid))
  FROM unnest(%(names)s::text[], %(oids)s::bigint[]) AS r (name, oid) GROUP BY r.name
"""
"""By relation, the rows that this transaction has read, of it and of its indexes. Reads no catalog itself."""


def _rows_read(connection: psycopg.Connection[Any], query: str, parameters: dict[str, object]) -> dict[str, int]:
    """The rows that a query reads of the catalogs, by table. The server's caches are filled before."""
    relations = connection.execute(
        "SELECT c.relname, r.oid::bigint FROM pg_class c LEFT JOIN pg_index i ON i.indrelid = c.oid"
        " CROSS JOIN LATERAL (SELECT c.oid UNION SELECT i.indexrelid) AS r (oid) WHERE c.relkind = 'r'"
        " AND c.relnamespace IN ('modak'::regnamespace, 'pg_catalog'::regnamespace) AND r.oid IS NOT NULL"
    ).fetchall()
    counters = {"names": [name for name, _ in relations], "oids": [oid for _, oid in relations]}
    connection.execute(query, parameters)
    with connection.transaction():
        before = dict(connection.execute(_COUNTERS, counters).fetchall())
        connection.execute(query, parameters)
        after = dict(connection.execute(_COUNTERS, counters).fetchall())
    return {name: int(rows - before[name]) for name, rows in after.items() if rows > before[name]}


_OF_ONE_TABLE = (
    ("publish", "due_to_go_live"),
    ("publish", "registrations"),
    ("pump", "due_to_go_live"),
    ("pump", "copying"),
    ("publication", "record"),
    ("retention", "tables"),
    ("retention", "premade_tables"),
    ("pause", "due"),
)
"""Files and names of queries."""


def test_a_query_about_one_table_reads_no_rows_of_others(database: Database, warehouse: str) -> None:
    """By indexes, which the server only prefers to reading so few rows if it is told so."""
    _make_tables(database)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    rows: list[dict[tuple[str, str, str], int]] = []
    with database.connect() as connection:
        connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
        for first, last in ((1, _FEW), (_FEW + 1, _MANY)):
            _register(mirror, first, last)
            # The copy of one is complete; another one is live, and has retention, and a third one is only copied.
            for number, change in ((1, "live_after_lsn = 1"), (2, "state = 'live', retention = '{\"premake\": 1}'"),
                                   (3, "state = 'live', snapshot_only = true")):  # fmt: skip
                update = f"UPDATE modak.mirror_tables SET {change} WHERE table_id = 'many.t{number}'::regclass"
                connection.execute(update.encode())
            connection.execute("ANALYZE modak.mirror_tables")
            parameters: dict[str, object] = {
                "slot": mirror.settings.slot,
                "frontier": 2,
                "table_ids": [connection.execute("SELECT 'many.t1'::regclass::oid::bigint").fetchone()[0]],  # type: ignore[index]
            }
            rows.append(
                {
                    (file, name, table): read
                    for file, name in _OF_ONE_TABLE
                    for table, read in _rows_read(connection, queries(file)[name], parameters).items()
                }
            )
    among_few, among_many = rows
    assert {
        place: (among_few.get(place, 0), read) for place, read in among_many.items() if read > among_few.get(place, 0)
    } == {}


def test_an_entry_of_the_lake_is_compared_with_no_other(database: Database, warehouse: str) -> None:
    _make_tables(database)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    rows: list[int] = []
    with database.connect() as connection:
        connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
        for number, (first, last) in enumerate(((1, _FEW), (_FEW + 1, _MANY))):
            _register(mirror, first, last)
            insert = (
                f"INSERT INTO modak.iceberg_tables VALUES ('lake', 'many', 'other{number}' || clock_timestamp()::text)"
            )
            rows.append(_rows_read(connection, insert, {}).get("mirror_tables", 0))
    assert rows == [0, 0]


_OF_RELATIONS = [
    pytest.param("SELECT modak.mirror_shape(%(oid)s::oid)", id="shape"),
    *(pytest.param(queries("relations")[name], id=name) for name in ("relation", "leaves", "identities", "columns")),
    pytest.param(queries("relations")["base_types"].replace("%(oids)s", "'{23,25,1700,1184,1009}'"), id="base_types"),
    pytest.param(queries("shape")["lockers"], id="lockers"),
]


@pytest.mark.parametrize("query", _OF_RELATIONS)
def test_a_description_of_a_table_does_not_read_whole_catalogs(database: Database, warehouse: str, query: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text, amount numeric(12,2), at timestamptz, tags text[])",
        "CREATE SCHEMA many",
        "DO $$ BEGIN FOR n IN 1..300 LOOP"
        " EXECUTE format('CREATE TABLE many.t%s (id int PRIMARY KEY)', n);"
        " END LOOP; END $$",
        "ANALYZE",
    )
    Mirror.create(database, warehouse, ThreadTaskRunner())
    with database.connect() as connection:
        ((oid,),) = connection.execute("SELECT 't'::regclass::oid::bigint").fetchall()
        # The tests' server plans for any table.
        connection.execute("SET plan_cache_mode = auto")
        parameters = {"oid": oid, "table_id": oid, "stored": True, "measured": True, "oids": [oid]}
        read = _rows_read(connection, query, parameters)
    assert read
    assert {table: rows for table, rows in read.items() if rows > 200} == {}
