"""Chunks of a real table, compared with what the server prints and with the stream's parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from decoders.text import parse_text
from mirror_pump.errors import ConnectionLost, SourceError
from mirror_pump.model import Column
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.heap.block_reader import Chunk, FilenodeChanged, RawTextNeeded, plan_chunks, read_chunk
from mirror_pump.source.heap.packed_columns import packable
from mirror_pump.source.relations.relations import describe, resolve_name
from mirror_pump.testing.database import Database
from tests.support.repacking import repack
from tests.support.users_tables import connect_as_user

TYPES_AND_VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "int": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "real": ["NaN", "-Infinity", "-0", "3.4e38", "1e-45", "0.1"],
    "double precision": ["NaN", "Infinity", "-0", "1.7976931348623157e308", "5e-324", "0.1"],
    "numeric(14,2)": ["-999999999999.99", "0.00", "0.10", "123"],
    "numeric(38,38)": ["0.00000000000000000000000000000000000001", "-0.99999999999999999999999999999999999999"],
    "numeric(38,0)": ["99999999999999999999999999999999999999", "-1"],
    "numeric(5,-2)": ["123400", "-9999900"],
    "numeric(2,4)": ["0.0099", "-0.0001"],
    "numeric": ["NaN", "-Infinity", "1.50", "1e-30", "123456789012345678901234567890.10"],
    "numeric(60,30)": ["1.5"],
    "text": ["", "ünïcode ☃", "tab\tnew\nline\\", "NULL"],
    "varchar(10)": ["x", "y  "],
    "char(6)": ["ab", ""],
    '"char"': ["a", ""],
    "name": ["a_name"],
    "bytea": ["\\x", "\\x00ff5c27"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "date": ["4714-11-24 BC", "0001-01-01 BC", "0001-01-01", "1969-12-31", "9999-12-31", "5874897-12-31"],
    "time": ["00:00:00", "23:59:59.999999", "24:00:00"],
    "timestamp": ["4714-11-24 00:00:00 BC", "1969-12-31 23:59:59.999999", "294246-12-31 23:59:59.999999"],
    "timestamptz": ["4714-11-24 00:00:00+00 BC", "2024-02-29 12:00:00.5+05:30", "294246-12-31 23:59:59.999999+00"],
    "timetz": ["12:00:00+05:30", "24:00:00-15:59"],
    "interval": ["1 year 2 mons -3 days 04:05:06.7", "0"],
    "json": ['{"a":  1}'],
    "jsonb": ['{"b": 2, "a": null}'],
    "inet": ["1.2.3.4", "1.2.3.4/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "money": ["-1234.56"],
    "bit(4)": ["1010"],
    "varbit": ["", "10101"],
    "int4range": ["[1,5)", "empty"],
    "tsvector": ["'a':1 'b':2"],
    "point": ["(1.5,-2)"],
    "box": ["(3,4),(1,2)"],
    "pg_lsn": ["16/B374D848"],
    "int[]": ["{}", "{1,NULL,3}"],
    "text[]": ['{"a,b","NULL",NULL,"c\\"d",""}'],
    "numeric(10,2)[]": ["{1.50,-2}"],
    "timestamptz[]": ['{"2024-01-01 00:00:00+00"}'],
    "bytea[]": ['{"\\\\x00ff"}'],
    "box[]": ["{(3,4),(1,2);(1,1),(0,0)}"],
    "int2vector": ["1 2"],
    "mood": ["sad", "so so"],
    "mood[]": ['{sad,"so so"}'],
    "pair": ['(1,"a b")', "(,)"],
    "pair[]": ['{"(1,x)"}'],
    "cash": ["12.345"],
    "cash[]": ["{1,2.5}"],
    "feeling": ["sad"],
    "deep_feeling": ["so so"],
    "tags": ["{a,b}"],
    "couple": ["(1,z)"],
    "span": ["[1,3)"],
    "code": ["ab"],
}

CREATE_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'so so');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN cash AS numeric(12,3);
CREATE DOMAIN feeling AS mood;
CREATE DOMAIN deep_feeling AS feeling;
CREATE DOMAIN tags AS varchar(5)[];
CREATE DOMAIN couple AS pair;
CREATE DOMAIN span AS int4range;
CREATE DOMAIN code AS char(4);
"""


@pytest.fixture
def conn(database: Database) -> Iterator[PgConnection]:
    with connect_as_user(database.dsn) as connection:
        yield connection


def read_all(database: Database, conn: PgConnection, name: str, target_bytes: int = 1 << 20) -> pa.Table:
    description = describe(conn, resolve_name(conn, name)[1])
    chunks = plan_chunks(conn, description.table_id, target_bytes)
    batches = [batch for chunk in chunks for batch in read_chunk(database.dsn, chunk, description.columns)]
    schema = pa.schema([(column.name, column.type.arrow) for column in description.columns])
    return pa.Table.from_batches(batches, schema=schema)


def one_chunk(conn: PgConnection, name: str) -> tuple[Chunk, tuple[Column, ...]]:
    description = describe(conn, resolve_name(conn, name)[1])
    (chunk,) = plan_chunks(conn, description.table_id, 1 << 30)
    return chunk, description.columns


def test_every_type_as_the_stream_would_read_it(database: Database, conn: PgConnection) -> None:
    conn.execute(CREATE_TYPES.encode())
    names = {f"c{number} \"'x": type_ for number, type_ in enumerate(TYPES_AND_VALUES)}
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in names}
    definition = ", ".join(f"{quoted[name]} {type_}" for name, type_ in names.items())
    conn.execute(f"CREATE TABLE t (id int PRIMARY KEY, {definition})".encode())
    longest = max(map(len, TYPES_AND_VALUES.values()))
    parameters = ", ".join(f"%s::{type_}" for type_ in names.values())
    for row in range(longest + 1):
        # The row after the last value, and the rest of a short list, is NULL.
        values = [(TYPES_AND_VALUES[type_] + [None] * longest)[row : row + 1][0] if row < longest else None
                  for type_ in names.values()]  # fmt: skip
        conn.execute(f"INSERT INTO t VALUES ({row}, {parameters})".encode(), values)

    copied = read_all(database, conn, "t")

    description = describe(conn, resolve_name(conn, "t")[1])
    printed = ", ".join(
        f"CASE WHEN {quoted[name]} IS DISTINCT FROM NULL THEN format('%s', {quoted[name]}) END" for name in names
    )
    rows = conn.execute(f"SELECT id::text, {printed} FROM t ORDER BY id".encode()).fetchall()
    for column, texts in zip(description.columns, zip(*rows, strict=True), strict=True):
        expected = parse_text(pa.array(texts, pa.string()), column.type)
        assert expected.unrepresentable is None, column
        actual = copied.column(column.name).combine_chunks()
        assert actual.type == column.type.arrow
        if pa.types.is_floating(column.type.arrow):
            # NaN differs from itself, and -0 equals 0, so printed values are compared.
            assert str(actual.to_pylist()) == str(expected.values.to_pylist()), column
        else:
            assert actual.equals(expected.values), column


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("numeric(10,2)", "NaN"),
        ("date", "infinity"),
        ("date", "-infinity"),
        ("timestamp", "infinity"),
        ("timestamptz", "-infinity"),
        ("timestamptz", "294276-12-31 23:59:59+00"),
        ("int[]", "{{1,2},{3,4}}"),
        ("int[]", "[0:1]={1,2}"),
    ],
)
def test_values_that_do_not_fit_come_as_raw_text(
    database: Database, conn: PgConnection, type_: str, value: str
) -> None:
    conn.execute(f"CREATE TABLE t (id int PRIMARY KEY, odd {type_}, even {type_})".encode())
    conn.execute("INSERT INTO t VALUES (1, NULL), (2, %s)", (value,))
    with pytest.raises(RawTextNeeded) as needed:
        read_all(database, conn, "t")
    assert needed.value.columns == {"odd"}
    chunk, columns = one_chunk(conn, "t")
    (batch,) = read_chunk(database.dsn, chunk, columns, raw_text_columns=frozenset({"odd", "even"}))
    assert batch.schema.names == ["id", "odd", "even", "odd", "even"]
    assert [column.to_pylist() for column in batch.columns] == [
        [1, 2],
        [None] * 2,
        [None] * 2,
        [None, value],
        [None] * 2,
    ]


def test_chunks_cover_each_row_once(database: Database, conn: PgConnection) -> None:
    conn.execute(
        """
        CREATE TABLE t (id int, dropped int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE "A b" PARTITION OF t FOR VALUES FROM (0) TO (3000);
        CREATE TABLE b (v text, id int PRIMARY KEY, dropped int);
        ALTER TABLE t ATTACH PARTITION b FOR VALUES FROM (3000) TO (9000);
        CREATE TABLE nothing PARTITION OF t FOR VALUES FROM (9000) TO (9001);
        ALTER TABLE t DROP COLUMN dropped;
        INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(0, 8999) i;
        DELETE FROM t WHERE id % 7 = 0
        """
    )
    table_id = resolve_name(conn, "t")[1]
    chunks = plan_chunks(conn, table_id, 10 * 8192)
    assert {chunk.name for chunk in chunks} == {"A b", "b"}
    assert len(chunks) > 10
    table = read_all(database, conn, "t", 10 * 8192)
    assert sorted(table["id"].to_pylist()) == [i for i in range(9000) if i % 7]
    assert set(table["v"].to_pylist()) == {"x" * 100}


def test_nothing_to_copy(database: Database, conn: PgConnection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id)")
    assert plan_chunks(conn, resolve_name(conn, "t")[1], 8192) == ()
    assert plan_chunks(conn, resolve_name(conn, "p")[1], 8192) == ()
    conn.execute("INSERT INTO t VALUES (1); DELETE FROM t")
    chunk, columns = one_chunk(conn, "t")
    assert list(read_chunk(database.dsn, chunk, columns)) == [] or read_all(database, conn, "t").num_rows == 0


@pytest.mark.parametrize(
    "change",
    [
        "VACUUM FULL t",
        pytest.param(repack("t"), id="repack"),
        "TRUNCATE t",
        "ALTER TABLE t RENAME TO u",
        "DROP TABLE t",
        "ALTER TABLE t ALTER v TYPE bigint",
    ],
)
def test_a_rewritten_heap_is_noticed(database: Database, conn: PgConnection, change: str) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    chunk, columns = one_chunk(conn, "t")
    assert len(list(read_chunk(database.dsn, chunk, columns))) == 1
    conn.execute(change.encode())
    with pytest.raises(FilenodeChanged):
        list(read_chunk(database.dsn, chunk, columns))


def test_reads_in_an_exported_snapshot(database: Database, conn: PgConnection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    chunk, columns = one_chunk(conn, "t")
    with connect(database.dsn) as exporter:
        exporter.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        conn.execute("INSERT INTO t VALUES (2)")
        (batch,) = read_chunk(database.dsn, chunk, columns, snapshot=row[0])
        assert batch["id"].to_pylist() == [1]
    assert sum(batch.num_rows for batch in read_chunk(database.dsn, chunk, columns)) == 2


def test_a_read_of_a_partition_leaves_its_parents_to_others(database: Database, conn: PgConnection) -> None:
    """DDL such as DETACH PARTITION locks them first. Neither waits for the other."""
    conn.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE branch PARTITION OF p FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF branch FOR VALUES FROM (0) TO (50); INSERT INTO p SELECT generate_series(1, 9)"
    )
    chunk, columns = one_chunk(conn, "p")
    with connect(database.dsn) as exporter, connect(database.dsn) as ddl:
        exporter.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        [(snapshot,)] = exporter.execute("SELECT pg_export_snapshot()").fetchall()
        for where in ("", "id > 1"):
            read = read_chunk(database.dsn, chunk, columns, snapshot=snapshot, where=where)
            next(read)
            ddl.execute("LOCK TABLE ONLY public.p, ONLY public.branch IN ACCESS EXCLUSIVE MODE NOWAIT")
            assert list(read) == []
            (batch,) = read_chunk(database.dsn, chunk, columns, snapshot=snapshot, where=where)
            assert batch.num_rows == (8 if where else 9)
            ddl.rollback()


def test_a_partition_whose_bounds_exclude_a_condition_is_not_read(database: Database, conn: PgConnection) -> None:
    conn.execute(
        "CREATE TABLE p (id int) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF p FOR VALUES FROM (0) TO (50); INSERT INTO p VALUES (1);"
        "CREATE FUNCTION is_read(id int) RETURNS bool LANGUAGE plpgsql COST 0.00001 AS"
        " $$ BEGIN RAISE EXCEPTION 'row % is read', id; END $$"
    )
    chunk, columns = one_chunk(conn, "p")
    assert list(read_chunk(database.dsn, chunk, columns, where="public.is_read(id) AND id >= 50")) == []
    with pytest.raises(SourceError, match="row 1 is read"):
        list(read_chunk(database.dsn, chunk, columns, where="public.is_read(id) AND id >= 49"))


def test_one_process_reads_several_databases(new_database: Callable[[], Database]) -> None:
    """They share what the driver knows of types, and nothing else."""
    reads = []
    for number in range(3):
        database = new_database()
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with database.session() as connection:
            connection.execute(
                "INSERT INTO t SELECT i, repeat('y', 1000) FROM generate_series(1, 2000 + %s) i", (number,)
            )
            chunk, columns = one_chunk(connection, "t")
        reads.append(read_chunk(database.dsn, chunk, columns, batch_bytes=1 << 20))
    begun = [next(read).num_rows for read in reads]
    assert max(begun) < 2000
    rows = [first + sum(batch.num_rows for batch in read) for first, read in zip(begun, reads, strict=True)]
    assert rows == [2000, 2001, 2002]


def test_errors_are_ours(database: Database, conn: PgConnection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    chunk, columns = one_chunk(conn, "t")
    with pytest.raises(ConnectionLost):
        list(read_chunk("host=127.0.0.1 port=1", chunk, columns))
    with pytest.raises(SourceError) as failure:
        list(read_chunk(database.dsn, chunk, columns, snapshot="nonsense"))
    assert not isinstance(failure.value, ConnectionLost)
    conn.execute("ALTER TABLE t ADD v int; ALTER TABLE t RENAME id TO di")
    with pytest.raises(FilenodeChanged, match="altered"):
        list(read_chunk(database.dsn, chunk, columns))
    # Columns with the same names and types but other numbers are other columns.
    conn.execute("CREATE TABLE u (id int PRIMARY KEY, a int, b int); INSERT INTO u VALUES (1, 2, 3)")
    chunk, columns = one_chunk(conn, "u")
    conn.execute("ALTER TABLE u RENAME a TO c; ALTER TABLE u RENAME b TO a; ALTER TABLE u RENAME c TO b")
    with pytest.raises(FilenodeChanged, match="altered"):
        list(read_chunk(database.dsn, chunk, columns))


def test_reads_in_several_batches(database: Database, conn: PgConnection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    conn.execute("INSERT INTO t SELECT i, repeat('y', 1000) FROM generate_series(1, 5000) i")
    chunk, columns = one_chunk(conn, "t")
    batches = list(read_chunk(database.dsn, chunk, columns, batch_bytes=1 << 20))
    assert len(batches) >= 4
    assert sum(batch.num_rows for batch in batches) == 5000


def test_packed_columns_are_the_rows_that_the_server_sends_one_by_one(database: Database, conn: PgConnection) -> None:
    """A condition, even one that all rows meet, has them sent one by one. More columns than bits of a mask; NULLs are
    in the first rows, and in the very last."""
    types = ["bool", "int2", "int4", "int8", "float4", "float8", "date", "timestamp", "timestamptz", "uuid", "text",
             "varchar(40)", "bytea", "numeric(12,3)"]  # fmt: skip
    values = {
        "bool": "i % 2 = 0",
        "date": "date '1990-01-01' + i",
        "timestamp": "timestamp '1990-01-01' + i * interval '1.000001 s'",
        "timestamptz": "timestamptz '1990-01-01+02' + i * interval '1.000001 s'",
        "uuid": "md5(i::text)::uuid",
        "text": "repeat(chr(10) || 'é', i % 7)",
        "varchar(40)": "i || ' €  '",
        "bytea": "decode(repeat('0a00', i % 5), 'hex')",
        "numeric(12,3)": "(i - 2000) * 1.125",
    }
    columns = [(f'c{number} "', types[number % len(types)]) for number in range(3 * len(types))]
    quoted = [(name.replace('"', '""'), type_) for name, type_ in columns]
    defined = ", ".join(f'"{name}" {type_}' for name, type_ in quoted)
    filled = ", ".join(
        f"CASE WHEN (i + {number}) % {3 + number} <> 0 OR i > 3000"
        f" THEN ({values.get(type_, '(i - 2000) * 3')})::{type_} END"
        for number, (_, type_) in enumerate(quoted)
    )
    conn.execute(f"CREATE TABLE t (id int PRIMARY KEY, {defined})".encode())
    # The columns as the mirror knows them, since when NULL was allowed in the first one.
    description = describe(conn, resolve_name(conn, "t")[1]).columns
    conn.execute(f"INSERT INTO t SELECT i, {filled} FROM generate_series(1, 4000) i".encode())
    conn.execute("DELETE FROM t WHERE id BETWEEN 1000 AND 2000")
    conn.execute("VACUUM t")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")
    conn.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    conn.execute("ALTER TABLE t ALTER id DROP NOT NULL")
    conn.execute("INSERT INTO t DEFAULT VALUES")
    (chunk,) = plan_chunks(conn, resolve_name(conn, "t")[1], 1 << 30)
    assert packable(description)
    rows = pa.Table.from_batches(read_chunk(database.dsn, chunk, description, where="true"))
    assert rows.num_rows > 1500
    # Ranges with NULLs are looked at again, unless ANALYZE has found that most have some.
    for _ in range(2):
        packed = pa.Table.from_batches(read_chunk(database.dsn, chunk, description, batch_bytes=1 << 16))
        assert packed.equals(rows)
        conn.execute("ANALYZE t")


def test_values_outside_of_their_rows_are_read(database: Database, conn: PgConnection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    conn.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    conn.execute("INSERT INTO t SELECT i, repeat('z', i * 10000) FROM generate_series(0, 3) i")
    copied = read_all(database, conn, "t")
    assert copied["v"].to_pylist() == ["z" * size for size in (0, 10000, 20000, 30000)]
