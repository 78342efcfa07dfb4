"""What the database does by itself for tables with heap retention: triggers, routing, corrections, pins, and refusals.

No pump runs: the catalog's rows are made by hand, and T is moved by modak.advance() as a publish does it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from mirror_pump.model import FIRST_YEAR, TierKind
from mirror_pump.source import retention as source
from mirror_pump.source.catalog_schema import migrate
from mirror_pump.source.relations import describe, resolve_name
from mirror_pump.source.tables import columns_to_json
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.integration.pipeline_support import in_thread

LOW = -(2**63)


class Heap:
    """public.ev, partitions ev0 [0, 100), ev1 [100, 200), ev2 [200, 300) by `at`, DEFAULT partition evd; T is -2^63."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.connect(autocommit=False) as connection:
            migrate(connection)
            connection.execute(
                "CREATE TABLE ev (id int, gone int, at bigint, v text DEFAULT 'none', n int NOT NULL DEFAULT 7,"
                " doubled int GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)"
            )
            connection.execute("ALTER TABLE ev DROP COLUMN gone")
            # A partition numbers its columns in its own way.
            connection.execute(
                "CREATE TABLE ev0 (v text, n int NOT NULL, at bigint NOT NULL, id int NOT NULL,"
                " doubled int GENERATED ALWAYS AS (n * 2) STORED)"
            )
            connection.execute("ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)")
            connection.execute("CREATE TABLE ev1 PARTITION OF ev FOR VALUES FROM (100) TO (200)")
            connection.execute("CREATE TABLE ev2 PARTITION OF ev FOR VALUES FROM (200) TO (300)")
            connection.execute("CREATE TABLE evd PARTITION OF ev DEFAULT")
            connection.execute(
                "INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col,"
                " partition_scheme, lake_format, lake_table_ref, mode, heap_retention_lag)"
                " VALUES ('ev'::regclass::oid::bigint, 'public', 'ev', '{id,at}', 'at', '{}', 'iceberg', 'public.ev',"
                " 'mirrored', 0)"
            )
            connection.execute(
                "INSERT INTO modak.cutline VALUES ('ev'::regclass::oid::bigint, %s, 5, 10, NULL,"
                """ '{"metadata_location": "there", "snapshot_id": "5"}')""",
                (LOW,),
            )
            connection.execute("INSERT INTO modak.mirror_slots VALUES ('s', 'p', 'x', 1, 'd', 10)")
            columns = describe(connection, resolve_name(connection, "ev")[1]).columns
            connection.execute(
                "INSERT INTO modak.mirror_tables (table_id, slot_name, state, start_lsn, born_sequence, columns, key,"
                " lake_table, location, next_field_id, retention)"
                " VALUES ('ev'::regclass::oid::bigint, 's', 'live', 0, 1, %s, '{id,at}', 'ev', 'l', 9, '{}')",
                (Jsonb(columns_to_json(columns)),),
            )
            for name, lo in (("ev0", 0), ("ev1", 100), ("ev2", 200)):
                connection.execute(
                    "INSERT INTO modak.partitions"
                    " (table_id, partition_id, tier_key_lo, tier_key_hi, state, relation_id)"
                    " VALUES ('ev'::regclass::oid::bigint, %s, %s, %s, 'hot', %s::regclass::oid::bigint)",
                    (name, lo, lo + 100, name),
                )
            connection.execute("SELECT modak.retain_triggers('ev'::regclass, 'evd'::regclass, 'evd', 'default')")
            connection.execute("INSERT INTO ev VALUES (1, 50, 'old'), (2, 150, 'mid'), (3, 250, 'new')")

    def value(self, query: LiteralString, *parameters: Any) -> Any:
        """The first column of the first row."""
        return self.database.rows(query, parameters)[0][0]

    def seal(self, name: str) -> None:
        """Seals a partition, and notes the position."""
        assert self.value("SELECT modak.seal('ev'::regclass::oid::bigint, %s)", name) is None
        self.database.execute(
            "UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint"
            " WHERE state = 'sealing' AND sealed_lsn IS NULL"
        )

    def advance(self, name: str, cut: int) -> str | None:
        """Why T does not pass the partition; None if it has."""
        reason: str | None = self.value(
            "SELECT modak.advance('ev'::regclass::oid::bigint, %s, %s, %s)", name, cut, self.database.lsn()
        )
        return reason

    def pass_by(self, name: str, cut: int) -> None:
        """Seals a partition and has T pass it."""
        self.seal(name)
        assert self.advance(name, cut) is None

    def delta(self) -> dict[str, tuple[int, int, Any]]:
        """op, tier key and payload by key, with a blank for chr(31)."""
        rows = self.database.rows("SELECT replace(pk, chr(31), ' '), op, tier_key, payload FROM modak.delta")
        return {row[0]: row[1:] for row in rows}

    def captured(self) -> dict[str, int]:
        """op by key, of what is not void."""
        rows = self.database.rows(
            "SELECT replace(pk, chr(31), ' '), op FROM modak.mirror_captured c JOIN modak.partitions p"
            " USING (table_id, partition_id) WHERE version > captured_after"
        )
        return dict(rows)

    def prove(self) -> None:
        """Says of all partitions that T has passed that they are proven."""
        self.database.execute(
            "UPDATE modak.partitions SET state = 'tiered', proven_as = modak.watch_mark(relation_id::oid)"
            " WHERE state = 'tiering'"
        )

    def drop(self, name: str, lock_timeout: str = "200ms") -> str | None:
        """Why a partition is not dropped; None if it was. Whether it is proven is not asked."""
        self.prove()
        with self.database.connect() as connection:
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (lock_timeout,))
            row = connection.execute("SELECT modak.drop_proven('ev'::regclass::oid::bigint, %s)", (name,)).fetchone()
        assert row is not None
        reason: str | None = row[0]
        return reason

    def await_blocked_by(self, connection: psycopg.Connection[Any]) -> None:
        """Returns once another session waits for a lock that this one holds."""
        blocked: LiteralString = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        await_true(lambda: self.database.rows(blocked, (connection.info.backend_pid,)), 20, "somebody waits")


@pytest.fixture
def heap(database: Database) -> Heap:
    return Heap(database)


@contextmanager
def hasty(heap: Heap) -> Iterator[psycopg.Connection[Any]]:
    """A session that waits for no lock."""
    with heap.database.connect() as connection:
        connection.execute("SET lock_timeout = '50ms'")
        yield connection


@contextmanager
def repeatable_read(heap: Heap) -> Iterator[psycopg.Connection[Any]]:
    """A session whose snapshot is taken now."""
    with heap.database.connect(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        yield connection


# Values that to_jsonb() does not lead back to, and neighbours that it does.
VALUES = {
    "float8": ("-0", "NaN", "-Infinity", "1e300", "0.1", "5e-324"),
    "float4": ("-0", "3.4028235e38", "1e-45"),
    "numeric": ("1.10", "-0.000", "NaN", "12345678901234567890.123456789"),
    "numeric(5,2)": ("1.10",),
    "int8": ("9223372036854775807",),
    "text": ("", "null", '{"a": 1}', 'a"b\\c\n', "\u2603\U0001f600"),
    "char(4)": ("ab", ""),
    '"char"': ("x",),
    "bool": ("t", "f"),
    "bytea": (r"\xdeadbeef", r"\x"),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",),
    "date": ("infinity", "0044-03-15 BC", "5874897-12-31", "2026-01-31"),
    "timestamp": ("-infinity", "0044-03-15 01:02:03.000001 BC", "294276-12-31 23:59:59.999999"),
    "timestamptz": ("infinity", "2026-03-29 02:30:00.5+02", "12345-06-07 00:00:00+00"),
    "time": ("24:00:00",),
    "timetz": ("04:05:06.789-08:30",),
    "interval": ("1 year 2 mons -3 days 04:05:06.7", "-00:00:01"),
    "money": ("-12.34",),
    "json": ('{"b":1,  "a":[1.0, null]}', "null", '"text"', "3"),
    "jsonb": ('{"b": 1}', "null", '"text"', "3.00"),
    "int4[]": ("{1,NULL,3}", "[0:1]={7,8}", "{{1,2},{3,4}}", "{}"),
    "text[]": ('{a,"b c",NULL,"NULL"}',),
    "jsonb[]": ('{"{\\"a\\": 1}",NULL}',),
    "float8[]": ("{-0,NaN}",),
    "pair": ('(1,"x y")', "(,)"),
    "pair[]": ('{"(1,x)"}',),
    "mood": ("bad",),
    "mood[]": ("{ok,bad}",),
    "doc": ('{"a":  1}',),
    "positive": ("3",),
    "inet": ("10.0.0.1", "10.0.0.0/8"),
    "int4range": ("[1,4)", "empty"),
    "int4multirange": ("{[1,4),[7,9)}",),
    "bit(3)": ("101",),
    "tsvector": ("'a':1 'b':2",),
    "point": ("(1.5,-0)",),
    "name": ("n",),
    "regclass": ("pg_class",),
}


def test_every_value_comes_back_from_its_payload(database: Database) -> None:
    columns = [(f"c{number}", kind) for number, kind in enumerate(VALUES)]
    with database.connect() as connection:
        migrate(connection)
        connection.execute("CREATE TYPE pair AS (a int, b text)")
        connection.execute("CREATE TYPE mood AS ENUM ('ok', 'bad')")
        connection.execute("CREATE DOMAIN doc AS json")
        connection.execute("CREATE DOMAIN positive AS int CHECK (value > 0)")
        listed = ", ".join(f"{name} {kind}" for name, kind in columns)
        connection.execute(f"CREATE TABLE odd (id int PRIMARY KEY, {listed})".encode())
        for number in range(max(map(len, VALUES.values())) + 1):
            given = [(name, VALUES[kind][number % len(VALUES[kind])]) for name, kind in columns]
            names, texts = ", ".join(name for name, _ in given), [text for _, text in given]
            if number == max(map(len, VALUES.values())):
                names, texts = columns[0][0], [None]  # type: ignore[list-item]  # a row of NULLs
            marks = ", ".join(["%s"] * len(texts))
            connection.execute(f"INSERT INTO odd (id, {names}) VALUES ({number}, {marks})".encode(), texts)
        for setting in ("TimeZone = 'UTC'", "extra_float_digits = 1", "DateStyle = 'ISO'"):
            connection.execute(f"SET {setting}".encode())
        image = connection.execute("SELECT modak.row_image('odd'::regclass, 1, '{1}', true)").fetchone()
        assert image is not None
        back = ", ".join(
            f"format('%s', CASE jsonb_typeof(i.payload -> '{name}') WHEN 'string' THEN (i.payload ->> '{name}')::{kind}"
            f" WHEN 'null' THEN NULL ELSE (jsonb_populate_record(NULL::odd, i.payload)).{name} END),"
            f" format('%s', t.{name})"
            for name, kind in columns
        )
        query = (
            f"SELECT {back} FROM odd t CROSS JOIN LATERAL ({image[0].replace('($1).*', 't.*')}) AS i(tier, pk, payload)"
        )
        rows = connection.execute(query.encode()).fetchall()
    assert len(rows) > 5
    for row in rows:
        for (_, kind), came, was in zip(columns, row[::2], row[1::2], strict=True):
            assert came == was, kind


def test_tier_values_are_the_protocols(heap: Heap) -> None:
    found = heap.database.rows(
        "SELECT modak.tier_value(5::smallint), modak.tier_value(timestamptz '2026-01-01 03:00:00.000001+03'),"
        " modak.tier_value(timestamp '1969-12-31 23:59:59'), modak.tier_value(date '1970-02-01'),"
        " modak.tier_value(timestamptz 'infinity'), modak.tier_value(date '-infinity'),"
        " modak.tier_value(timestamp '294276-12-31 23:59:59') < modak.tier_value(timestamp 'infinity')"
    )
    assert found == [(5, 1767225600000001, -1000000, 31, 2**63 - 1, LOW, True)]


def test_a_composite_key_is_joined_and_escaped(heap: Heap) -> None:
    assert heap.value("SELECT modak.canonical_pk(%s)", "a\\b\x1f") == "a\\b\x1f"
    assert heap.value("SELECT modak.canonical_pk(%s, %s, '')", "a\\b", "c\x1fd") == "a\\\\b\x1fc\\\x1fd\x1f"


def test_changes_below_t_become_corrections_of_whole_rows(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute(
        "UPDATE ev SET v = 'corrected' WHERE id = 1",
        "INSERT INTO ev (id, at, v) VALUES (4, 60, 'late')",
        "DELETE FROM ev WHERE id = 4",
        "INSERT INTO ev (id, at) VALUES (5, 61)",
        "UPDATE ev SET id = 6 WHERE id = 5",
    )
    assert heap.delta() == {
        "1 50": (0, 50, {"id": 1, "at": 50, "v": "corrected", "n": 7}),
        "4 60": (1, 60, {"id": 4, "at": 60}),
        "5 61": (1, 61, {"id": 5, "at": 61}),
        "6 61": (0, 61, {"id": 6, "at": 61, "v": "none", "n": 7}),
    }
    versions = heap.database.rows("SELECT pk FROM modak.delta ORDER BY version")
    assert versions[-1] == ("6\x1f61",), "versions order the writes"


def test_a_row_may_cross_t_in_both_directions(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute("UPDATE ev SET at = 250 WHERE id = 1", "UPDATE ev SET at = 70 WHERE id = 3")
    assert {key: op for key, (op, _, _) in heap.delta().items()} == {"1 50": 1, "3 70": 0}
    assert heap.drop("ev0") is None
    # And where the heap has no partition for it any more.
    heap.database.execute("UPDATE ev SET at = 30 WHERE id = 2")
    assert heap.delta()["2 30"][0] == 0
    assert heap.database.rows("SELECT id, at FROM ev ORDER BY id") == [(1, 250)]


def test_a_correction_is_what_other_triggers_leave_of_a_row(heap: Heap) -> None:
    heap.database.execute(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.v IS DISTINCT FROM 'touched' THEN"
        " UPDATE ev SET v = 'touched' WHERE id = NEW.id AND at = NEW.at; END IF; RETURN NULL; END $$",
        "CREATE TRIGGER touch AFTER INSERT OR UPDATE ON ev FOR EACH ROW EXECUTE FUNCTION touch()",
    )
    heap.seal("ev0")
    heap.database.execute("INSERT INTO ev (id, at) VALUES (8, 80)")
    assert heap.advance("ev0", 100) is None
    heap.database.execute("UPDATE ev SET n = 8 WHERE id = 1")
    assert {key: row[2]["v"] for key, row in heap.delta().items()} == {"1 50": "touched", "8 80": "touched"}
    heap.database.execute(
        "CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF TG_OP = 'DELETE' THEN INSERT INTO ev (id, at, v) VALUES (OLD.id, OLD.at, 'touched');"
        " ELSE DELETE FROM ev WHERE id = NEW.id AND at = NEW.at; END IF; RETURN NULL; END $$",
        "CREATE TRIGGER undelete AFTER DELETE ON ev0 FOR EACH ROW EXECUTE FUNCTION undo()",
        "DELETE FROM ev WHERE id = 1",
        "DROP TRIGGER undelete ON ev0",
        "CREATE TRIGGER unkeep AFTER UPDATE ON ev0 FOR EACH ROW WHEN (NEW.n = 9) EXECUTE FUNCTION undo()",
        "UPDATE ev SET n = 9 WHERE id = 8",
        "DROP TRIGGER unkeep ON ev0",
    )
    assert {key: row[0] for key, row in heap.delta().items()} == {"1 50": 0, "8 80": 1}
    assert heap.drop("ev0") is None
    # The DEFAULT partition lets go of the row as it is in the end.
    heap.database.execute("INSERT INTO ev (id, at) VALUES (9, 20)")
    assert heap.delta()["9 20"] == (0, 20, {"id": 9, "at": 20, "v": "touched", "n": 7})
    assert heap.value("SELECT count(*) FROM evd") == 0


def test_a_correction_is_what_cascades_leave_of_a_row(heap: Heap) -> None:
    heap.database.execute(
        "ALTER TABLE ev ADD COLUMN parent int",
        "ALTER TABLE ev ADD FOREIGN KEY (parent, at) REFERENCES ev (id, at) ON UPDATE CASCADE",
        "INSERT INTO ev (id, at, parent) VALUES (2, 50, 1)",
    )
    heap.pass_by("ev0", 100)
    heap.database.execute("UPDATE ev SET id = id + 10 WHERE at = 50")
    assert {key: (row[0], row[2].get("parent")) for key, row in heap.delta().items()} == {
        "1 50": (1, None), "2 50": (1, None), "11 50": (0, None), "12 50": (0, 11),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("ext.ltree", "id::text::ext.ltree"),
        ("moody", "id::text::moody"),
        ("pair", "ROW(id)::pair"),
        ("int[]", "ARRAY[id]"),
    ],
)
def test_keys_are_compared_by_the_operators_of_their_index(heap: Heap, kind: str, value: str) -> None:
    """Which need not be on anybody's search_path."""
    with heap.database.connect() as connection:
        for made in (
            "CREATE SCHEMA ext",
            "CREATE EXTENSION ltree SCHEMA ext",
            "CREATE TYPE mood AS ENUM ('1', '2', '3')",
            "CREATE DOMAIN moody AS mood",
            "CREATE TYPE pair AS (a int)",
            f"ALTER TABLE ev ALTER id TYPE {kind} USING {value}",
        ):
            connection.execute(made.encode())
    heap.pass_by("ev0", 100)
    heap.database.execute("UPDATE ev SET v = 'sealed' WHERE at = 50")
    assert [(row[0], row[2]["v"]) for row in heap.delta().values()] == [(0, "sealed")]
    against: LiteralString = "SELECT difference FROM modak.delta_against('ev'::regclass, 'ev0'::regclass, 0, 100)"
    assert heap.database.rows(against) == [(None,)]
    heap.database.execute("DELETE FROM ev WHERE at = 50")
    assert [row[0] for row in heap.delta().values()] == [1]
    assert heap.drop("ev0") is None
    heap.database.execute("INSERT INTO ev (id, at, v) SELECT id, 20, 'late' FROM ev WHERE at = 150")
    assert [row[2]["v"] for row in heap.delta().values() if row[0] == 0] == ["late"]
    assert heap.value("SELECT count(*) FROM evd") == 0


def test_keys_that_are_equal_and_printed_otherwise_are_two(heap: Heap) -> None:
    """As in the lake: a numeric's scale is part of its text, and so of the key."""
    heap.database.execute("ALTER TABLE ev ALTER id TYPE numeric")
    heap.pass_by("ev0", 100)
    heap.database.execute("UPDATE ev SET id = 1.0 WHERE id = 1")
    assert {key: row[0] for key, row in heap.delta().items()} == {"1 50": 1, "1.0 50": 0}
    against: LiteralString = "SELECT difference FROM modak.delta_against('ev'::regclass, 'ev0'::regclass, 0, 100)"
    assert heap.database.rows(against) == [(None,), (None,)]


def test_a_late_row_whose_key_a_trigger_changes_stays_nowhere(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    assert heap.drop("ev0") is None
    heap.database.execute(
        "CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE ev SET id = id + 1000 WHERE id = NEW.id AND at = NEW.at; RETURN NULL; END $$",
        "CREATE TRIGGER moved AFTER INSERT ON ev FOR EACH ROW EXECUTE FUNCTION moved()",
        "INSERT INTO ev (id, at) VALUES (9, 20)",
    )
    assert heap.delta().keys() == {"1009 20"}
    assert heap.value("SELECT count(*) FROM evd") == 0


def test_a_delete_trigger_that_keeps_late_rows_is_told_of_them(heap: Heap) -> None:
    heap.database.execute(
        "CREATE FUNCTION softly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE public.ev SET v = 'deleted' WHERE id = OLD.id AND at = OLD.at; RETURN NULL; END $$",
        "CREATE TRIGGER softly BEFORE DELETE ON ev FOR EACH ROW EXECUTE FUNCTION softly()",
    )
    heap.pass_by("ev0", 100)
    assert heap.drop("ev0") is None
    with pytest.raises(psycopg.errors.TriggeredDataChangeViolation, match="a DELETE trigger keeps it"):
        heap.database.execute("INSERT INTO ev (id, at) VALUES (9, 20)")
    heap.database.execute(
        "DROP TRIGGER softly ON ev",
        "CREATE TRIGGER softly BEFORE DELETE ON ev FOR EACH ROW WHEN (pg_trigger_depth() = 0)"
        " EXECUTE FUNCTION softly()",
        "INSERT INTO ev (id, at) VALUES (9, 20)",
    )
    assert heap.delta()["9 20"][2]["v"] == "none"
    assert heap.value("SELECT count(*) FROM evd") == 0


def test_a_renamed_key_is_the_key_before_the_mirror_has_followed(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    assert heap.drop("ev0") is None
    heap.database.execute("ALTER TABLE ev RENAME id TO ident")
    assert heap.value("""SELECT modak.delete('ev', '{"ident": 1, "at": 50}')""") == "delta"
    assert heap.delta() == {"1 50": (1, 50, {"ident": 1, "at": 50})}
    heap.database.execute("ALTER TABLE ev RENAME at TO moment")
    heap.pass_by("ev1", 200)
    heap.database.execute("UPDATE ev SET v = 'changed' WHERE ident = 2")
    assert heap.value("""SELECT modak.upsert('ev', '{"ident": 9, "moment": 20}')""") == "delta"
    assert heap.delta().keys() == {"1 50", "2 150", "9 20"}
    against: LiteralString = (
        "SELECT key, difference FROM modak.delta_against('ev'::regclass, 'ev1'::regclass, 100, 200)"
    )
    assert heap.database.rows(against) == [(["2", "150"], None)]


def test_another_key_waits_until_the_mirror_has_followed(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute("ALTER TABLE ev DROP CONSTRAINT ev_pkey", "ALTER TABLE ev ADD PRIMARY KEY (n, at)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not followed"):
        heap.value("""SELECT modak.delete('ev', '{"n": 1, "at": 50}')""")
    heap.database.execute("ALTER TABLE ev DROP COLUMN id")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not followed"):
        heap.seal("ev1")
    assert heap.delta() == {}


@pytest.mark.parametrize(
    ("kind", "years"),
    [
        ("timestamptz", ("2026-01-01 00:00:00+00", "2027-01-01 00:00:00+00")),
        ("date", ("2026-01-01", "2027-01-01")),
    ],
)
def test_rows_that_neither_the_lake_nor_a_partition_holds_are_refused(
    database: Database, kind: str, years: tuple[str, str]
) -> None:
    """Infinity is nothing the lake can hold, and before T has moved nothing is below it."""
    first, second = years
    with database.connect() as connection:
        migrate(connection)
        for made in (
            f"CREATE TABLE timed (at {kind} PRIMARY KEY) PARTITION BY RANGE (at)",
            f"CREATE TABLE year PARTITION OF timed FOR VALUES FROM ('{first}') TO ('{second}')",
            "CREATE TABLE other PARTITION OF timed DEFAULT",
        ):
            connection.execute(made.encode())
        connection.execute(
            "INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col,"
            " tier_key_type, partition_scheme, lake_format, lake_table_ref, mode, heap_retention_lag)"
            " VALUES ('timed'::regclass::oid::bigint, 'public', 'timed', '{at}', 'at', %s, '{}', 'iceberg',"
            " 'public.timed', 'mirrored', 0)",
            (kind,),
        )
        cut = FIRST_YEAR[TierKind(kind)]
        connection.execute(
            "INSERT INTO modak.cutline VALUES ('timed'::regclass::oid::bigint, %s, 5, 10, NULL, '{}')", (cut,)
        )
        connection.execute("INSERT INTO modak.mirror_slots VALUES ('s', 'p', 'x', 1, 'd', 10)")
        connection.execute(
            "INSERT INTO modak.mirror_tables (table_id, slot_name, state, start_lsn, born_sequence, columns, key,"
            " lake_table, location, next_field_id, retention) VALUES ('timed'::regclass::oid::bigint, 's', 'live', 0,"
            """ 1, '[{"attnum": 1, "name": "at"}]', '{at}', 'timed', 'l', 9, '{}')"""
        )
        connection.execute("SELECT modak.retain_triggers('timed'::regclass, 'other'::regclass, 'other', 'default')")
        connection.execute("SET TimeZone = 'UTC'")
        found = []
        for moved in (False, True):
            for value in ("-infinity", "0044-03-15 BC", "2020-01-01"):
                try:
                    connection.execute("INSERT INTO timed VALUES (%s)", (value,))
                    inserted = True
                except psycopg.errors.CheckViolation:
                    inserted = False
                buried = connection.execute(
                    "SELECT modak.delete('timed', jsonb_build_object('at', %s::text))", (value,)
                ).fetchone()
                assert buried is not None
                assert buried[0] == ("delta" if inserted else "nothing")
                found.append((moved, value, inserted))
            connection.execute(f"UPDATE modak.cutline SET tier_key_hi = modak.tier_value({kind} '{first}')".encode())
    assert [(moved, value) for moved, value, inserted in found if inserted] == [
        (True, "0044-03-15 BC"),
        (True, "2020-01-01"),
    ]
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE first PARTITION OF timed FOR VALUES FROM (MINVALUE) TO ('{first}')".encode())
        connection.execute("SELECT modak.retain_triggers('timed'::regclass, 'first'::regclass, 'first', 'cold')")
        with pytest.raises(psycopg.errors.CheckViolation, match="finite"):
            connection.execute("INSERT INTO timed VALUES ('-infinity')")


def test_an_insert_below_t_is_an_insert_like_any_other(heap: Heap) -> None:
    heap.database.execute("CREATE TABLE parent (id int PRIMARY KEY)", "INSERT INTO parent VALUES (1), (2), (3), (9)")
    heap.database.execute("ALTER TABLE ev ADD CONSTRAINT known FOREIGN KEY (id) REFERENCES parent")
    heap.database.execute("ALTER TABLE ev ADD CONSTRAINT plausible CHECK (n < 100)")
    heap.pass_by("ev0", 100)
    assert heap.drop("ev0") is None
    with heap.database.connect() as connection:
        inserted = connection.execute("INSERT INTO ev (id, at) VALUES (9, 20) RETURNING id, v, doubled").fetchall()
        assert inserted == [(9, "none", 14)]
        for wrong, error in (
            ("INSERT INTO ev (id, at) VALUES (8, 20)", psycopg.errors.ForeignKeyViolation),
            ("INSERT INTO ev (id, at, n) VALUES (9, 21, 100)", psycopg.errors.CheckViolation),
            ("INSERT INTO ev (id, at, n) VALUES (9, 21, NULL)", psycopg.errors.NotNullViolation),
            ("INSERT INTO ev (id, at) VALUES (9, 300)", psycopg.errors.CheckViolation),
        ):
            with pytest.raises(error) as caught:
                connection.execute(wrong.encode())
        assert 'no partition of relation "ev" found for row' in str(caught.value)
        with connection.cursor().copy("COPY ev (id, at) FROM STDIN") as copy:
            copy.write("2\t22\n3\t250000000\n".replace("250000000", "299"))
    assert heap.delta().keys() == {"9 20", "2 22"}
    assert heap.value("SELECT count(*) FROM evd") == 0
    # A second insert of the key replaces the row: the newest wins.
    heap.database.execute("INSERT INTO ev (id, at, v) VALUES (9, 20, 'again')")
    assert heap.delta()["9 20"][2]["v"] == "again"


def test_upsert_and_delete_find_the_row_wherever_it_is(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    say = heap.value
    assert say("""SELECT modak.upsert('ev', '{"id": 1, "at": 50, "v": "sealed"}')""") == "delta"
    assert heap.delta()["1 50"] == (0, 50, {"id": 1, "at": 50, "v": "sealed", "n": 7})
    assert heap.database.rows("SELECT v FROM ev WHERE id = 1") == [("sealed",)], "the heap still has it"
    assert heap.drop("ev0") is None
    assert say("""SELECT modak.upsert('ev', '{"id": 1, "at": 50, "n": 8}')""") == "delta"
    assert heap.delta()["1 50"] == (0, 50, {"id": 1, "at": 50, "v": "none", "n": 8}), "a whole row: the default for v"
    assert say("""SELECT modak.upsert('ev', '{"id": 3, "at": 250, "v": null}')""") == "heap"
    assert heap.database.rows("SELECT v, n FROM ev WHERE id = 3") == [(None, 7)]
    assert say("""SELECT modak.delete('ev', '{"id": 1, "at": 50}')""") == "delta"
    assert heap.delta()["1 50"] == (1, 50, {"id": 1, "at": 50})
    assert say("""SELECT modak.delete('ev', '{"id": 3, "at": 250}')""") == "heap"
    assert say("""SELECT modak.delete('ev', '{"id": 3, "at": 250}')""") == "nothing"
    for wrong, error in (
        ("""SELECT modak.upsert('ev', '{"id": 1, "at": 50, "w": 1}')""", psycopg.errors.UndefinedColumn),
        ("""SELECT modak.upsert('ev', '{"id": 1, "at": 50, "doubled": 1}')""", psycopg.errors.UndefinedColumn),
        ("""SELECT modak.upsert('ev', '{"id": 1, "at": 50, "n": null}')""", psycopg.errors.NotNullViolation),
        ("""SELECT modak.upsert('ev', '{"id": 1}')""", psycopg.errors.NotNullViolation),
        ("""SELECT modak.upsert('ev', '[1]')""", psycopg.errors.InvalidParameterValue),
        ("""SELECT modak.delete('ev', '{"id": 1, "at": 50, "v": "x"}')""", psycopg.errors.InvalidParameterValue),
        ("""SELECT modak.upsert('pg_class', '{}')""", psycopg.errors.UndefinedTable),
    ):
        with pytest.raises(error), heap.database.connect() as connection:
            connection.execute(wrong.encode())


def test_a_role_needs_its_rights_on_the_table_and_no_others(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    role = f"r_{heap.database.name}"
    with heap.database.connect() as connection:
        connection.execute(f'CREATE ROLE "{role}"'.encode())
        try:
            connection.execute(f'GRANT USAGE ON SCHEMA public, modak TO "{role}"'.encode())
            connection.execute(f'GRANT SELECT, INSERT, UPDATE ON ev TO "{role}"'.encode())
            connection.execute(f'SET ROLE "{role}"'.encode())
            assert connection.execute("""SELECT modak.upsert('ev', '{"id": 1, "at": 50}')""").fetchone() == ("delta",)
            connection.execute("INSERT INTO ev (id, at) VALUES (7, 7)")
            for forbidden in (
                """SELECT modak.delete('ev', '{"id": 1, "at": 50}')""",
                """SELECT modak.bury('ev', '{"id": 1, "at": 50}')""",
                "SELECT modak.put_delta('ev'::regclass::oid::bigint, 'x', 1::smallint, 1, '{}')",
                "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev1', 200, 1)",
                "SELECT modak.drop_proven('ev'::regclass::oid::bigint, 'ev0')",
                "SELECT modak.retain_triggers('ev'::regclass, 'ev1'::regclass, 'ev1', 'cold')",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(forbidden.encode())
            connection.execute("RESET ROLE")
            connection.execute(f'GRANT DELETE ON ev TO "{role}"'.encode())
            connection.execute(f'SET ROLE "{role}"'.encode())
            assert connection.execute("""SELECT modak.bury('ev', '{"id": 1, "at": 50}')""").fetchone() == (True,)
            connection.execute("RESET ROLE")
            connection.execute("ALTER TABLE ev ENABLE ROW LEVEL SECURITY")
            connection.execute(f'SET ROLE "{role}"'.encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row security"):
                connection.execute("""SELECT modak.bury('ev', '{"id": 1, "at": 50}')""")
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f'DROP OWNED BY "{role}"'.encode())
            connection.execute(f'DROP ROLE "{role}"'.encode())


def test_no_change_slips_between_the_seal_and_t(heap: Heap) -> None:
    """A writer whose transaction began before the seal, in whatever isolation, holds it up or is captured."""
    with heap.database.connect(autocommit=False) as early:
        early.execute("UPDATE ev SET v = 'early' WHERE id = 1")
        with hasty(heap) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.seal('ev'::regclass::oid::bigint, 'ev0')")
        early.commit()
    with repeatable_read(heap) as old:
        heap.seal("ev0")
        old.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        with hasty(heap) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)")
        old.commit()
    assert heap.captured() == {"11 11": 0}
    with repeatable_read(heap) as old:
        assert heap.advance("ev0", 100) is None
        # By its snapshot the partition is above T still.
        old.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        old.execute("UPDATE ev SET v = 'late' WHERE id = 1")
        old.commit()
    assert {key: op for key, (op, _, _) in heap.delta().items()} == {"11 11": 0, "12 12": 0, "1 50": 0}
    assert heap.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_what_a_truncate_took_is_not_captured_any_more(heap: Heap) -> None:
    heap.seal("ev0")
    with repeatable_read(heap) as old:
        heap.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        assert heap.captured() == {"11 11": 0}
        # This one does not see the row, nor what was captured of it.
        old.execute("TRUNCATE ev0")
        old.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        old.commit()
    assert heap.captured() == {"12 12": 0}
    assert heap.advance("ev0", 100) == "partition ev0 is not sealed", "F has to pass the TRUNCATE too"
    heap.database.execute(
        "UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint WHERE state = 'sealing'"
    )
    assert heap.advance("ev0", 100) is None
    assert heap.delta().keys() == {"12 12"}


def test_a_truncate_below_t_takes_nothing_from_the_lake(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    for truncate in ("TRUNCATE ev", "TRUNCATE ev0"):
        heap.database.execute("INSERT INTO ev (id, at) VALUES (1, 99) ON CONFLICT DO NOTHING")
        with heap.database.connect() as connection:
            connection.execute(truncate.encode())
    assert heap.value("SELECT truncated FROM modak.partitions WHERE partition_id = 'ev0'")
    assert {key: op for key, (op, _, _) in heap.delta().items()} == {"1 99": 0}


def test_t_passes_partitions_in_their_order_and_only_where_f_is(heap: Heap) -> None:
    assert heap.advance("ev0", 100) == "partition ev0 is not sealed"
    heap.seal("ev0")
    heap.seal("ev1")
    assert heap.advance("ev1", 200) == "partition public.ev0 comes first"
    assert heap.advance("ev1", 150) == "partition ev1 is not waiting for T to reach 150"
    behind = heap.value("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 1)")
    assert behind == "F has not passed the position at which partition ev0 was sealed"
    # A partition that nobody has noticed yet.
    heap.database.execute("CREATE TABLE before PARTITION OF ev FOR VALUES FROM (-100) TO (0)")
    assert heap.advance("ev0", 100) == "partition public.before comes first"
    heap.database.execute("ALTER TABLE ev DETACH PARTITION before")
    heap.database.execute("UPDATE modak.mirror_tables SET state = 'copying'")
    assert "is being copied" in str(heap.advance("ev0", 100))
    heap.database.execute("UPDATE modak.mirror_tables SET state = 'live', start_lsn = 9223372036854775807")
    assert "was since partition ev0 was sealed" in str(heap.advance("ev0", 100))
    heap.database.execute("UPDATE modak.mirror_tables SET start_lsn = 0")
    heap.database.execute("ALTER TABLE ev0 DISABLE TRIGGER zz_modak_row")
    assert heap.advance("ev0", 100) == "changes of partition ev0 are not captured"
    heap.database.execute("ALTER TABLE ev0 ENABLE ALWAYS TRIGGER zz_modak_row")
    assert heap.advance("ev0", 100) is None
    assert heap.advance("ev1", 200) is None
    assert heap.value("SELECT tier_key_hi FROM modak.cutline") == 200


def test_t_waits_for_a_new_seal_if_much_was_captured(heap: Heap) -> None:
    """Writers wait while captured changes become corrections: all at once, and never more than so many."""
    heap.database.execute("UPDATE modak.partitions SET capture_limit = 2")
    heap.seal("ev0")
    heap.database.execute("INSERT INTO ev (id, at) VALUES (11, 11), (12, 12), (13, 13)")
    assert heap.advance("ev0", 100) == "more than 2 changes of partition ev0 were captured"
    with heap.database.connect() as connection:
        where = {"table_id": heap.value("SELECT 'ev'::regclass::oid::bigint"), "partition_id": "ev0"}
        assert source.run(connection, "crowded", where) == 1
        heap.seal("ev0")
        assert source.run(connection, "crowded", where) == 0, "what was captured before is void"
        heap.database.execute(
            "INSERT INTO ev (id, at) VALUES (21, 21), (22, 22)",
            "UPDATE ev SET v = 'again' WHERE id IN (13, 21)",
            # Somebody else was there first.
            "INSERT INTO modak.delta SELECT table_id, pk, 1, 1, 21, 0, payload, now(), 3 FROM modak.mirror_captured"
            " WHERE tier_key = 21",
        )
        assert source.run(connection, "crowded", where) == 0, "the limit has doubled: it ends some time"
        connection.execute("SET track_functions = 'all'")
        with connection.transaction():
            connection.execute(
                "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, %s)", (heap.database.lsn(),)
            )
            one_by_one = connection.execute("SELECT pg_stat_get_xact_function_calls('modak.put_delta'::regproc)")
            assert one_by_one.fetchone() == (None,)
    assert {key: (op, payload["v"]) for key, (op, _, payload) in heap.delta().items()} == {
        "13 13": (0, "again"),
        "21 21": (0, "again"),
        "22 22": (0, "none"),
    }
    assert heap.database.rows("SELECT old_tier_key, folded_sequence FROM modak.delta") == [(None, None)] * 3
    assert heap.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_t_passes_a_partition_that_its_owner_dropped(heap: Heap) -> None:
    heap.seal("ev0")
    heap.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)", "DROP TABLE ev0")
    assert heap.advance("ev0", 100) is None
    assert heap.delta() == {}, "the stream has what was captured of it"
    assert heap.value("SELECT state FROM modak.partitions WHERE partition_id = 'ev0'") == "dropped"


def test_triggers_survive_renames_and_leave_detached_partitions_alone(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute(
        "ALTER TABLE ev RENAME COLUMN at TO moment",
        "ALTER TABLE ev0 RENAME TO first",
        "ALTER TABLE ev ADD COLUMN w jsonb",
        "INSERT INTO ev (id, moment, w) VALUES (21, 21, '{}')",
    )
    assert heap.delta()["21 21"][2] == {"id": 21, "moment": 21, "v": "none", "n": 7, "w": "{}"}
    heap.database.execute("ALTER TABLE ev DETACH PARTITION first", "UPDATE first SET n = 0", "TRUNCATE first")
    assert heap.delta().keys() == {"21 21"}
    assert not heap.value("SELECT truncated FROM modak.partitions WHERE partition_id = 'ev0'")


def test_replicas_of_other_servers_are_not_exempt(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    with heap.database.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("INSERT INTO ev (id, at) VALUES (31, 31)")
    assert heap.delta().keys() == {"31 31"}


def test_a_correction_by_somebody_else_is_not_taken_for_folded(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute(
        "UPDATE ev SET v = 'x' WHERE id = 1",
        "UPDATE modak.delta SET folded_sequence = 3",
        "INSERT INTO modak.delta (table_id, pk, op, tier_key, version, payload)"
        " SELECT table_id, pk, 1, tier_key, nextval('modak.delta_version'), payload FROM modak.delta"
        " ON CONFLICT (table_id, pk) DO UPDATE SET op = excluded.op, version = excluded.version",
    )
    assert heap.database.rows("SELECT op, folded_sequence FROM modak.delta") == [(1, None)]


def test_corrections_are_compared_with_the_heap(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute(
        "INSERT INTO ev (id, at) VALUES (41, 41), (42, 42), (43, 43), (44, 44)", "DELETE FROM ev WHERE id = 44"
    )
    against: LiteralString = (
        "SELECT key[1], difference FROM modak.delta_against('ev'::regclass, 'ev0'::regclass, 0, 100) ORDER BY 1"
    )
    assert heap.database.rows(against) == [("41", None), ("42", None), ("43", None), ("44", None)]
    with heap.database.connect() as connection:
        connection.execute("ALTER TABLE ev0 DISABLE TRIGGER zz_modak_row")
        connection.execute("UPDATE ev SET v = 'unseen' WHERE id = 41")
        connection.execute("DELETE FROM ev WHERE id = 42")
        connection.execute("INSERT INTO ev (id, at) VALUES (44, 44)")
    assert heap.database.rows(against) == [("41", "different"), ("42", "missing"), ("43", None), ("44", "extra")]


def test_nothing_is_dropped_under_a_reader(heap: Heap) -> None:
    with repeatable_read(heap) as reader:
        reader.execute("SELECT tier_key_hi FROM modak.cutline")
        heap.pass_by("ev0", 100)
        assert "reads a snapshot" in str(heap.drop("ev0"))
        pin = reader.execute("SELECT pin_id, t FROM modak.pin('ev')").fetchone()
        assert pin is not None
        assert pin[1] == LOW, "T as of its snapshot"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            heap.drop("ev0")
        reader.commit()
    assert f"pin {pin[0]} of a reader" in str(heap.drop("ev0"))
    with heap.database.connect() as later:
        later.execute("SELECT modak.pin('ev')")
        assert heap.value("SELECT modak.release(%s)", pin[0])
        assert not heap.value("SELECT modak.release(%s)", pin[0])
        assert heap.drop("ev0") is None, "a pin at or above its upper bound needs nothing of it"
    assert heap.value("SELECT to_regclass('ev0')::text") is None


def test_an_expired_pin_protects_nothing(heap: Heap) -> None:
    heap.value("SELECT pin_id FROM modak.pin('ev', interval '0')")
    heap.pass_by("ev0", 100)
    assert heap.drop("ev0") is None
    assert heap.database.rows("SELECT read_pins, expired_pins, oldest_pin FROM modak.status") == [(1, 1, None)]


@pytest.mark.parametrize(
    ("obstacle", "said"),
    [
        ("CREATE VIEW dependent AS SELECT * FROM ev0", "depend"),
        ("CREATE TABLE child (id int, at bigint, FOREIGN KEY (id, at) REFERENCES ev0)", "depend"),
    ],
)
def test_what_depends_on_a_partition_keeps_it(heap: Heap, obstacle: LiteralString, said: str) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute(obstacle)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match=said):
        heap.drop("ev0")
    assert heap.value("SELECT count(*) FROM ev0") == 1


def test_rows_that_are_referred_to_keep_their_partition_and_others_do_not(heap: Heap) -> None:
    heap.database.execute(
        "CREATE TABLE child (id int, at bigint, FOREIGN KEY (id, at) REFERENCES ev)", "INSERT INTO child VALUES (1, 50)"
    )
    heap.pass_by("ev0", 100)
    heap.prove()
    with heap.database.connect(autocommit=False) as connection:
        answer = connection.execute("SELECT modak.drop_proven('ev'::regclass::oid::bigint, 'ev0')").fetchone()
        assert answer == ("rows of public.child refer to rows of it, by the foreign key child_id_at_fkey",)
        held = connection.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = ANY"
            " ('{ev,ev0,evd,child,modak.read_pins}'::regclass[]::oid[])"
        ).fetchall()
        assert held == [("AccessShareLock",)], "nobody waits while the rows are looked for"
    heap.database.execute("UPDATE child SET id = 3, at = 250")
    assert heap.drop("ev0") is None
    assert heap.value("SELECT to_regclass('ev0')::text") is None


@pytest.mark.parametrize("columns", ["id int, at bigint", "id bigint, at int"])
def test_a_drop_that_takes_long_is_given_up(heap: Heap, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """Postgres looks through a table that refers to this one while it keeps everybody out."""
    with heap.database.connect() as connection:
        connection.execute(f"CREATE TABLE child ({columns}, FOREIGN KEY (id, at) REFERENCES ev)".encode())
        connection.execute("INSERT INTO child SELECT 3, 250 FROM generate_series(1, 1000)")
        heap.pass_by("ev0", 100)
        heap.prove()
        where = {"table_id": heap.value("SELECT 'ev'::regclass::oid::bigint"), "partition_id": "ev0"}
        monkeypatch.setattr(source, "DROP_TIMEOUT", "1ms")
        assert "takes longer than 1ms" in str(source.attempt(connection, "drop", where))
        monkeypatch.undo()
        assert source.attempt(connection, "drop", where) is None
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)


def test_a_trigger_that_was_switched_off_means_another_proof(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute("ALTER TABLE ev0 DISABLE TRIGGER ALL")
    assert "proven again" in str(heap.drop("ev0"))
    assert heap.database.rows("SELECT state FROM modak.partitions WHERE partition_id = 'ev0'") == [("tiering",)]
    heap.database.execute("UPDATE ev SET n = 1 WHERE id = 1")
    assert heap.delta().keys() == {"1 50"}, "it is on again"


@pytest.mark.parametrize(
    ("away", "back"),
    [
        (
            "ALTER TABLE ev DETACH PARTITION ev0",
            "ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)",
        ),
        ("ALTER TABLE above ATTACH PARTITION ev DEFAULT", "ALTER TABLE above DETACH PARTITION ev"),
    ],
    ids=["the partition", "the table"],
)
def test_a_partition_that_was_away_since_its_proof_is_proven_again(
    heap: Heap, away: LiteralString, back: LiteralString
) -> None:
    heap.database.execute(
        "CREATE TABLE above (v text, n int NOT NULL, at bigint NOT NULL, id int NOT NULL,"
        " doubled int GENERATED ALWAYS AS (n * 2) STORED) PARTITION BY RANGE (at)"
    )
    heap.pass_by("ev0", 100)
    heap.prove()
    with heap.database.connect(autocommit=False) as owner:
        owner.execute(away)
        owner.execute("UPDATE ev0 SET v = 'mended'")
        owner.execute(back)
    assert heap.delta() == {}, "no trigger saw it"
    assert "proven again" in str(heap.drop("ev0"))
    assert heap.database.rows("SELECT state, v FROM modak.partitions, ev0 WHERE partition_id = 'ev0'") == [
        ("tiering", "mended")
    ]
    assert heap.drop("ev0") is None


def test_housekeeping_means_no_other_proof(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.prove()
    for statement in (
        "CREATE TABLE ev3 PARTITION OF ev FOR VALUES FROM (300) TO (400)",
        "DROP TABLE ev3",
        "CREATE INDEX ON ev (v)",
        "ALTER TABLE ev RENAME COLUMN n TO number",
        "ALTER TABLE ev0 RENAME TO first",
        "UPDATE ev SET number = 1",
        "VACUUM (FREEZE, ANALYZE) ev",
        "VACUUM FREEZE pg_class, pg_inherits, pg_trigger",
        "VACUUM FULL pg_class, pg_inherits, pg_trigger",
    ):
        with heap.database.connect() as connection:
            connection.execute(statement.encode())
    assert heap.drop("ev0") is None


@pytest.mark.parametrize(
    ("meanwhile", "said", "kept"),
    [
        (
            (
                "ALTER TABLE ev0 DISABLE TRIGGER ALL",
                "UPDATE ev0 SET v = 'unseen'",
                "ALTER TABLE ev0 ENABLE ALWAYS TRIGGER zz_modak_row",
            ),
            "proven again",
            "unseen",
        ),
        (
            (
                "CREATE TABLE fixed (LIKE ev0 INCLUDING ALL)",
                "INSERT INTO fixed (id, at, v, n) VALUES (1, 50, 'fixed', 7)",
                "ALTER TABLE ev DETACH PARTITION ev0",
                "ALTER TABLE ev0 RENAME TO former",
                "ALTER TABLE fixed RENAME TO ev0",
                "ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)",
            ),
            "altered meanwhile",
            "fixed",
        ),
    ],
    ids=["trigger off and on", "another table of its name"],
)
def test_what_is_dropped_is_what_was_proven(
    heap: Heap, meanwhile: tuple[LiteralString, ...], said: str, kept: str
) -> None:
    """Changes of a partition between the look at it and its lock."""
    heap.pass_by("ev0", 100)
    heap.prove()
    found: list[str | None] = []
    with heap.database.connect(autocommit=False) as reader:
        # A pin in the making, for which the drop waits in between.
        reader.execute("LOCK TABLE modak.read_pins IN ROW EXCLUSIVE MODE")
        with in_thread(lambda _: found.append(heap.drop("ev0", "20s")), "drop"):
            heap.await_blocked_by(reader)
            with heap.database.connect(autocommit=False) as owner:
                for statement in meanwhile:
                    owner.execute(statement)
            reader.commit()
    assert said in str(found[0])
    assert heap.database.rows("SELECT v FROM ev0") == [(kept,)]


def test_waiting_for_f_wakes_the_pump_and_ends_in_time(heap: Heap) -> None:
    heap.database.execute("SELECT pg_create_logical_replication_slot('watch', 'test_decoding')")
    assert heap.value("SELECT modak.wait_for('0/A', '1 second')"), "F is there already"
    assert not heap.value("SELECT modak.wait_for(NULL, '0.1 seconds')")
    told = heap.database.rows(
        "SELECT data FROM pg_logical_slot_get_changes('watch', NULL, NULL) WHERE data LIKE '%modak.wait%'"
    )
    heap.database.execute("SELECT pg_drop_replication_slot('watch')")
    assert len(told) == 1
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(heap.value("SELECT modak.wait_for('0/FFFF', '20 seconds')")))
    waiter.start()
    await_true(
        lambda: heap.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT modak.wait_for(%20 s%'"),
        10,
        "it waits",
    )
    heap.database.execute("UPDATE modak.cutline SET replicated_lsn = 65536")
    waiter.join(10)
    assert found == [True]
    with repeatable_read(heap) as reader, pytest.raises(psycopg.errors.ActiveSqlTransaction):
        reader.execute("SELECT modak.wait_for()")
