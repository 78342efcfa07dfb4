"""The pgoutput messages of a real server, for each replica identity and type: decoded, they equal the table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from psycopg import sql

from decoders import messages
from decoders.pgtypes import column_type
from decoders.segment import RelationShape, TableChanges, decode_segment
from decoders.text import parse_text
from mirror_pump.testing.database import Database

SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET DateStyle = 'ISO'",
    "SET IntervalStyle = 'postgres'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
)
LARGE = "SELECT string_agg(md5((g + {0})::text), '') FROM generate_series(1, 400) g"
"""A text of 12,800 characters that does not compress: it is stored apart (TOASTed)."""


class Source:
    """A database with a publication of all its tables and a slot, whose messages are read as bytes."""

    def __init__(self, connection: psycopg.Connection[Any], slot: str) -> None:
        self.connection = connection
        self._slot = slot
        self.relations: dict[str, messages.RelationMessage] = {}

    def run(self, *statements: str) -> None:
        """Runs each statement in its own transaction."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode()).fetchall()

    def receive(self) -> list[bytes]:
        """The messages since the last call; Relation messages are kept in `relations`."""
        received = [
            row[0]
            for row in self.connection.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
                "'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')",
                (self._slot,),
            )
        ]
        for message in received:
            if message[:1] == b"R":
                relation = messages.parse_relation(message)
                self.relations[relation.name] = relation
        return received

    def shape(self, table: str, key: tuple[str, ...]) -> RelationShape:
        relation = self.relations[table]
        names = tuple(column.name for column in relation.columns)
        return RelationShape(
            relation_id=relation.relation_id,
            names=names,
            types=tuple(column_type(column.type_oid, column.type_modifier) for column in relation.columns),
            key=tuple(names.index(name) for name in key),
            not_null=tuple(name in key for name in names),
            every_key_deletes=False,
        )


@pytest.fixture
def source(database: Database) -> Iterator[Source]:
    slot = f"slot_{database.name}"
    with database.connect() as connection:
        for statement in SETTINGS:
            connection.execute(statement.encode())
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        yield Source(connection, slot)


def decode(received: list[bytes], *shapes: RelationShape) -> list[TableChanges]:
    lengths = np.array([len(message) for message in received], np.int32)
    results = decode_segment(b"".join(received), lengths, {shape.relation_id: shape for shape in shapes}, header=0)
    assert [result.error for result in results] == [None] * len(results)
    return results


def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def as_stored(source: Source, table: str, columns: str) -> list[tuple[Any, ...]]:
    return source.rows(f"SELECT {columns} FROM {table} ORDER BY 1")


IDENTITIES = {
    "DEFAULT": "DEFAULT",
    "FULL": "FULL",
    "USING INDEX": "USING INDEX doc_code",
}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_each_replica_identity(source: Source, identity: str) -> None:
    source.run(
        "CREATE TABLE doc (id int PRIMARY KEY, code text NOT NULL, n int, body text)",
        "CREATE UNIQUE INDEX doc_code ON doc (code)",
        f"ALTER TABLE doc REPLICA IDENTITY {IDENTITIES[identity]}",
        *(f"INSERT INTO doc SELECT {row}, 'c{row}', 0, ({LARGE.format(row)})" for row in range(1, 7)),
    )
    key = ("code",) if identity == "USING INDEX" else ("id",)
    first = source.receive()
    shape = source.shape("doc", key)
    (start,) = decode(first, shape)
    assert sorted(tuples(start.rows)) == as_stored(source, "doc", "*")
    assert start.deleted_keys.num_rows == 0
    before = {row[0]: row for row in tuples(start.rows)}

    source.run(
        "UPDATE doc SET n = 1 WHERE id = 1",
        "UPDATE doc SET id = 20, code = 'c20' WHERE id = 2",
        "UPDATE doc SET n = 2 WHERE id = 20",
        f"UPDATE doc SET body = ({LARGE.format(7000)}) WHERE id = 3",
        "UPDATE doc SET n = 3 WHERE id = 3",
        "DELETE FROM doc WHERE id = 4",
        "DELETE FROM doc WHERE id = 5",
        "INSERT INTO doc VALUES (5, 'c5', NULL, '')",
        "UPDATE doc SET id = 2, code = 'c2' WHERE id = 6",
        "BEGIN",
        "UPDATE doc SET n = 99",
        "ROLLBACK",
    )
    (result,) = decode(source.receive(), shape)
    touched = [1, 2, 3, 4, 5, 6]
    assert sorted(tuples(result.deleted_keys)) == [
        (f"c{row}",) if identity == "USING INDEX" else (row,) for row in touched
    ]
    rows = tuples(result.rows)
    if identity == "FULL":
        assert result.incomplete is None
    else:
        assert result.incomplete is not None
        lookups = tuples(result.incomplete.lookup_keys)
        assert sorted(lookups) == [("c1",), ("c2",), ("c6",)] if identity == "USING INDEX" else [(1,), (2,), (6,)]
        assert tuples(result.incomplete.missing) == [(False, False, False, True)] * 3
        for row, (lookup,) in zip(tuples(result.incomplete.rows), lookups, strict=True):
            assert row[3] is None
            rows.append((*row[:3], before[int(str(lookup).removeprefix("c"))][3]))
    assert sorted(rows) == as_stored(source, "doc", "*")


def test_a_key_that_is_stored_apart(source: Source) -> None:
    # Index entries reach 2,700 bytes: wide enough to be stored out of line once the column may not be compressed.
    source.run(
        "CREATE TABLE apart (k text PRIMARY KEY, n int, other text)",
        "ALTER TABLE apart ALTER k SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
        "INSERT INTO apart SELECT repeat(md5('1'), 80), 1, repeat('x', 9000)",
    )
    first = source.receive()
    shape = source.shape("apart", ("k",))
    decode(first, shape)
    source.run("UPDATE apart SET n = 2, other = repeat('y', 3000)")
    received = source.receive()
    update = next(message for message in received if message[:1] == b"U")
    assert update[5:6] == b"K"
    assert update.count(b"u") >= 1
    (result,) = decode(received, shape)
    assert tuples(result.rows) == as_stored(source, "apart", "*")
    assert tuples(result.deleted_keys) == source.rows("SELECT k FROM apart")


def test_composite_and_typed_keys(source: Source) -> None:
    source.run(
        "CREATE TABLE part (day date, name text, code uuid, amount numeric(6,2), note text, "
        "PRIMARY KEY (day, name, amount))",
        "INSERT INTO part VALUES ('2024-01-01', 'a', gen_random_uuid(), 1.5, 'x'), "
        "('infinity', 'b', NULL, 2, 'y'), ('2024-01-01', '', NULL, -0.05, 'z')",
        "DELETE FROM part WHERE day = 'infinity'",
    )
    received = source.receive()
    (result,) = decode(received, source.shape("part", ("day", "name", "amount")))
    stored = as_stored(source, "part", "day, name, code, amount, note")
    found = [(day, name, code, amount, note) for day, name, code, amount, note in tuples(result.rows)]
    expected = [(day, name, code and code.bytes, amount, note) for day, name, code, amount, note in stored]
    assert sorted(found, key=str) == sorted(expected, key=str)


TYPES = {
    "bool": "true|false",
    "int2": "-32768|32767",
    "int4": "-2147483648|2147483647",
    "int8": "-9223372036854775808|9223372036854775807",
    "oid": "4294967295",
    "float4": "1.1|NaN|-Infinity|-0|1e-45|3.4028235e38",
    "float8": "0.1|NaN|Infinity|-0|5e-324|1.7976931348623157e308|1e20",
    "numeric(14,2)": "-0.05|999999999999.99|7",
    "numeric(38,10)": "1234567890123456789012345678.0123456789",
    "numeric": "1e50|NaN|-0.000000000000000000000000000000000000000000001",
    "text": "|NULL|a\nb|ä🙂|\\x00",
    "varchar(5)": "abc",
    "char(5)": "abc",
    "name": "abc",
    "jsonb": '{"a": [1, null]}',
    "json": '{"a":  1}',
    "inet": "10.0.0.1/8",
    "interval": "1 year 2 days 03:04:05.6|-1 day",
    "timetz": "10:00:00+05:30",
    "money": "12.34",
    "bit(3)": "101",
    "int4range": "[1,5)|empty",
    "tsvector": "a b",
    "point": "(1,2)",
    "bytea": "\\x|\\x00ff10",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "date": "0001-01-01|9999-12-31|4714-11-24 BC|5874897-12-31|0044-03-15 BC|10000-01-01",
    "time": "00:00:00|23:59:59.999999|01:02:03.5|24:00:00",
    "timestamp": "2024-02-29 12:34:56.789|0001-01-01|4714-11-24 00:00:00 BC|10000-01-01 00:00:00.1|"
    "294246-12-31 23:59:59.999999",
    "timestamptz": "2024-02-29 12:34:56.789+05:30|1850-01-01 00:00:00+00:19:32|0044-03-15 00:00:00+00 BC|20000-01-01",
    "int4[]": "{}|{1,NULL,-3}",
    "text[]": '{"",NULL,"NULL","a,b","c\\"d\\\\e","{f}"," g ","h\ni",ä}',
    "numeric(6,2)[]": "{1.5,NULL}",
    "timestamptz[]": '{"2024-01-01 10:00:00+02",NULL}',
    "uuid[]": "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
    "bytea[]": '{"\\\\x00ff",NULL}',
    "box[]": "{(1,2),(0,0);(3,4),(2,2)}",
}


def server_value(type_sql: str, text: str) -> sql.Composed:
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(type_sql))


def oracle(kind: str, column: str) -> str:
    """SQL for the expected decoded value, in a form that needs no parser of ours."""
    return {
        "date": f"CASE WHEN isfinite({column}) THEN {column} - date '1970-01-01' END",
        "timestamp": f"(extract(epoch FROM {column}) * 1000000)::bigint",
        "timestamptz": f"(extract(epoch FROM {column}) * 1000000)::bigint",
        # The text of the output function; a cast to text would strip char(n) of its blanks.
        "string": f"CASE WHEN {column} IS NOT NULL THEN format('%s', {column}) END",
        "uuid": f"uuid_send({column})",
        "float": f"float4send({column})",
        "double": f"float8send({column})",
    }.get(kind, column)


def comparable(kind: str, values: pa.ChunkedArray) -> list[Any]:
    if kind in ("timestamp", "timestamptz"):
        return list(values.cast(pa.int64()).to_pylist())
    if kind == "date":
        return list(values.cast(pa.int32()).to_pylist())
    if kind in ("float", "double"):
        width = ">f4" if kind == "float" else ">f8"
        return [None if value is None else np.array(value, width).tobytes() for value in values.to_pylist()]
    return list(values.to_pylist())


def same(mine: Any, stored: Any) -> bool:
    """Equality, where psycopg returns time zones and UUIDs as objects inside arrays."""
    if isinstance(mine, list) and isinstance(stored, list):
        return all(same(value, other) for value, other in itertools.zip_longest(mine, stored))
    return bool(mine == getattr(stored, "bytes", stored))


@pytest.mark.parametrize("type_sql", TYPES)
def test_each_type(source: Source, type_sql: str) -> None:
    texts = TYPES[type_sql].split("|")
    source.run(f"CREATE TABLE typed (id int PRIMARY KEY, v {type_sql})")
    for place, text in enumerate([*texts, None]):
        value = sql.SQL("NULL") if text is None else server_value(type_sql, text)
        source.connection.execute(sql.SQL("INSERT INTO typed VALUES ({}, {})").format(sql.Literal(place), value))
    received = source.receive()
    shape = source.shape("typed", ("id",))
    (result,) = decode(received, shape)
    kind = shape.types[1].kind.value
    stored = [row[0] for row in source.rows(f"SELECT {oracle(kind, 'v')} FROM typed ORDER BY id")]
    mine = comparable(kind, result.rows["v"])
    assert len(mine) == len(texts) + 1
    for element, other in zip(mine, stored, strict=True):
        assert same(element, other)


@pytest.mark.parametrize(
    ("type_sql", "texts"),
    [
        ("numeric(6,2)", ["NaN", "1"]),
        ("date", ["infinity", "-infinity", "2024-01-01"]),
        ("timestamp", ["infinity", "-infinity", "294276-12-31 23:59:59.999999", "2024-01-01"]),
        ("timestamptz", ["infinity", "294276-12-31 23:59:59.999999+00", "2024-01-01"]),
        ("int4[]", ["{{1,2},{3,4}}", "[0:1]={1,2}", "{1}"]),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_flagged_as_the_server_prints_it(
    source: Source, type_sql: str, texts: list[str]
) -> None:
    printed = []
    for text in texts:
        query = sql.SQL("SELECT ({})::text, ({}::regtype)::oid").format(
            server_value(type_sql, text), sql.Literal(type_sql)
        )
        (row,) = source.connection.execute(query).fetchall()
        printed.append(row[0])
    modifier = ((6 << 16) | 2) + 4 if type_sql.startswith("numeric") else -1
    parsed = parse_text(pa.array(printed, pa.string()), column_type(row[1], modifier))
    assert parsed.unrepresentable is not None
    assert parsed.unrepresentable.to_pylist() == [True] * (len(texts) - 1) + [False]
    assert pc.is_null(parsed.values).to_pylist() == parsed.unrepresentable.to_pylist()


def test_the_rare_messages(source: Source) -> None:
    source.run(
        'CREATE SCHEMA "Odd"',
        'CREATE TABLE "Odd"."Ta ble" (id bigint PRIMARY KEY, amount numeric(14,2))',
        "CREATE TABLE second (id int PRIMARY KEY)",
    )
    source.receive()
    oids = dict(source.rows("SELECT relname, oid FROM pg_class WHERE relname IN ('Ta ble', 'second')"))
    before = source.rows("SELECT clock_timestamp(), pg_current_wal_lsn() - '0/0'")[0]
    source.run(
        'INSERT INTO "Odd"."Ta ble" VALUES (1, 2)',
        'TRUNCATE "Odd"."Ta ble", second RESTART IDENTITY CASCADE',
        # It is not flushed by itself: the transaction after it does that.
        "SELECT pg_logical_emit_message(false, 'modak', 'now')",
        "SELECT pg_logical_emit_message(true, 'modak', 'grüße')",
    )
    after = source.rows("SELECT clock_timestamp(), pg_current_wal_lsn() - '0/0'")[0]
    received = source.receive()
    by_tag: dict[bytes, list[bytes]] = {}
    for message in received:
        by_tag.setdefault(message[:1], []).append(message)
    begin, commit = messages.parse_begin(by_tag[b"B"][0]), messages.parse_commit(by_tag[b"C"][0])
    assert begin.final_lsn == commit.commit_lsn
    assert before[1] <= commit.commit_lsn < commit.end_lsn <= after[1]
    assert before[0].timestamp() * 1e6 - 1 <= commit.commit_time_us <= after[0].timestamp() * 1e6 + 1
    assert begin.commit_time_us == commit.commit_time_us
    relation = source.relations["Ta ble"]
    assert (relation.schema, relation.relation_id, relation.replica_identity) == ("Odd", oids["Ta ble"], "d")
    assert relation.columns == (
        messages.RelationColumn("id", 20, -1, is_key=True),
        messages.RelationColumn("amount", 1700, 917_510, is_key=False),
    )
    (truncate,) = map(messages.parse_truncate, by_tag[b"T"])
    assert set(truncate.relation_ids) == set(oids.values())
    assert (truncate.cascade, truncate.restart_identity) == (True, True)
    output = {
        (message.transactional, message.prefix, message.content)
        for message in map(messages.parse_logical_message, by_tag[b"M"])
    }
    assert output == {(True, "modak", "grüße".encode()), (False, "modak", b"now")}
