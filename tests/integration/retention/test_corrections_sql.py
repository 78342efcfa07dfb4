"""Rows below the cut-line, in the database alone: what triggers and functions make of changes, and what they refuse."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from mirror_pump.model import FIRST_YEAR, TierKind
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from tests.support.retention_sql import LOW, SqlTable

# Values that to_jsonb() does not convert back, and similar values that it does.
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


def test_tier_values_are_the_protocols(table: SqlTable) -> None:
    found = table.database.rows(
        "SELECT modak.tier_value(5::smallint), modak.tier_value(timestamptz '2026-01-01 03:00:00.000001+03'),"
        " modak.tier_value(timestamp '1969-12-31 23:59:59'), modak.tier_value(date '1970-02-01'),"
        " modak.tier_value(timestamptz 'infinity'), modak.tier_value(date '-infinity'),"
        " modak.tier_value(timestamp '294276-12-31 23:59:59') < modak.tier_value(timestamp 'infinity')"
    )
    assert found == [(5, 1767225600000001, -1000000, 31, 2**63 - 1, LOW, True)]


def test_a_composite_key_is_joined_and_escaped(table: SqlTable) -> None:
    assert table.value("SELECT modak.canonical_pk(%s)", "a\\b\x1f") == "a\\b\x1f"
    assert table.value("SELECT modak.canonical_pk(%s, %s, '')", "a\\b", "c\x1fd") == "a\\\\b\x1fc\\\x1fd\x1f"


def test_changes_below_the_cutline_become_corrections_of_whole_rows(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.database.execute(
        "UPDATE ev SET v = 'corrected' WHERE id = 1",
        "INSERT INTO ev (id, at, v) VALUES (4, 60, 'late')",
        "DELETE FROM ev WHERE id = 4",
        "INSERT INTO ev (id, at) VALUES (5, 61)",
        "UPDATE ev SET id = 6 WHERE id = 5",
    )
    assert table.delta() == {
        "1 50": (0, 50, {"id": 1, "at": 50, "v": "corrected", "n": 7}),
        "4 60": (1, 60, {"id": 4, "at": 60}),
        "5 61": (1, 61, {"id": 5, "at": 61}),
        "6 61": (0, 61, {"id": 6, "at": 61, "v": "none", "n": 7}),
    }
    versions = table.database.rows("SELECT pk FROM modak.delta ORDER BY version")
    assert versions[-1] == ("6\x1f61",), "versions order the writes"


def test_a_row_may_cross_the_cutline_in_both_directions(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.database.execute("UPDATE ev SET at = 250 WHERE id = 1", "UPDATE ev SET at = 70 WHERE id = 3")
    assert {key: op for key, (op, _, _) in table.delta().items()} == {"1 50": 1, "3 70": 0}
    assert table.drop("ev0") is None
    # Also if the heap has no partition for it any more.
    table.database.execute("UPDATE ev SET at = 30 WHERE id = 2")
    assert table.delta()["2 30"][0] == 0
    assert table.database.rows("SELECT id, at FROM ev ORDER BY id") == [(1, 250)]


def test_a_correction_is_what_other_triggers_leave_of_a_row(table: SqlTable) -> None:
    table.database.execute(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.v IS DISTINCT FROM 'touched' THEN"
        " UPDATE ev SET v = 'touched' WHERE id = NEW.id AND at = NEW.at; END IF; RETURN NULL; END $$",
        "CREATE TRIGGER touch AFTER INSERT OR UPDATE ON ev FOR EACH ROW EXECUTE FUNCTION touch()",
    )
    table.seal("ev0")
    table.database.execute("INSERT INTO ev (id, at) VALUES (8, 80)")
    assert table.advance("ev0", 100) is None
    table.database.execute("UPDATE ev SET n = 8 WHERE id = 1")
    assert {key: row[2]["v"] for key, row in table.delta().items()} == {"1 50": "touched", "8 80": "touched"}
    table.database.execute(
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
    assert {key: row[0] for key, row in table.delta().items()} == {"1 50": 0, "8 80": 1}
    assert table.drop("ev0") is None
    # The DEFAULT partition passes on the row in its final form.
    table.database.execute("INSERT INTO ev (id, at) VALUES (9, 20)")
    assert table.delta()["9 20"] == (0, 20, {"id": 9, "at": 20, "v": "touched", "n": 7})
    assert table.value("SELECT count(*) FROM ev_default") == 0


def test_a_correction_is_what_cascades_leave_of_a_row(table: SqlTable) -> None:
    table.database.execute(
        "ALTER TABLE ev ADD COLUMN parent int",
        "ALTER TABLE ev ADD FOREIGN KEY (parent, at) REFERENCES ev (id, at) ON UPDATE CASCADE",
        "INSERT INTO ev (id, at, parent) VALUES (2, 50, 1)",
    )
    table.pass_by("ev0", 100)
    table.database.execute("UPDATE ev SET id = id + 10 WHERE at = 50")
    assert {key: (row[0], row[2].get("parent")) for key, row in table.delta().items()} == {
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
def test_keys_are_compared_by_the_operators_of_their_index(table: SqlTable, kind: str, value: str) -> None:
    """The operators need not be on anybody's search_path."""
    with table.database.connect() as connection:
        for made in (
            "CREATE SCHEMA ext",
            "CREATE EXTENSION ltree SCHEMA ext",
            "CREATE TYPE mood AS ENUM ('1', '2', '3')",
            "CREATE DOMAIN moody AS mood",
            "CREATE TYPE pair AS (a int)",
            f"ALTER TABLE ev ALTER id TYPE {kind} USING {value}",
        ):
            connection.execute(made.encode())
    table.pass_by("ev0", 100)
    table.database.execute("UPDATE ev SET v = 'sealed' WHERE at = 50")
    assert [(row[0], row[2]["v"]) for row in table.delta().values()] == [(0, "sealed")]
    against: LiteralString = "SELECT difference FROM modak.delta_against('ev'::regclass, 'ev0'::regclass, 0, 100)"
    assert table.database.rows(against) == [(None,)]
    table.database.execute("DELETE FROM ev WHERE at = 50")
    assert [row[0] for row in table.delta().values()] == [1]
    assert table.drop("ev0") is None
    table.database.execute("INSERT INTO ev (id, at, v) SELECT id, 20, 'late' FROM ev WHERE at = 150")
    assert [row[2]["v"] for row in table.delta().values() if row[0] == 0] == ["late"]
    assert table.value("SELECT count(*) FROM ev_default") == 0


def test_keys_that_are_equal_and_printed_otherwise_are_two(table: SqlTable) -> None:
    """As in the lake: the scale of a numeric is part of its text, and so of the key."""
    table.database.execute("ALTER TABLE ev ALTER id TYPE numeric")
    table.pass_by("ev0", 100)
    table.database.execute("UPDATE ev SET id = 1.0 WHERE id = 1")
    assert {key: row[0] for key, row in table.delta().items()} == {"1 50": 1, "1.0 50": 0}
    against: LiteralString = "SELECT difference FROM modak.delta_against('ev'::regclass, 'ev0'::regclass, 0, 100)"
    assert table.database.rows(against) == [(None,), (None,)]


def test_a_late_row_whose_key_a_trigger_changes_stays_nowhere(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    assert table.drop("ev0") is None
    table.database.execute(
        "CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE ev SET id = id + 1000 WHERE id = NEW.id AND at = NEW.at; RETURN NULL; END $$",
        "CREATE TRIGGER moved AFTER INSERT ON ev FOR EACH ROW EXECUTE FUNCTION moved()",
        "INSERT INTO ev (id, at) VALUES (9, 20)",
    )
    assert table.delta().keys() == {"1009 20"}
    assert table.value("SELECT count(*) FROM ev_default") == 0


def test_a_delete_trigger_that_keeps_late_rows_gets_them(table: SqlTable) -> None:
    table.database.execute(
        "CREATE FUNCTION softly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE public.ev SET v = 'deleted' WHERE id = OLD.id AND at = OLD.at; RETURN NULL; END $$",
        "CREATE TRIGGER softly BEFORE DELETE ON ev FOR EACH ROW EXECUTE FUNCTION softly()",
    )
    table.pass_by("ev0", 100)
    assert table.drop("ev0") is None
    with pytest.raises(psycopg.errors.TriggeredDataChangeViolation, match="a DELETE trigger keeps it"):
        table.database.execute("INSERT INTO ev (id, at) VALUES (9, 20)")
    table.database.execute(
        "DROP TRIGGER softly ON ev",
        "CREATE TRIGGER softly BEFORE DELETE ON ev FOR EACH ROW WHEN (pg_trigger_depth() = 0)"
        " EXECUTE FUNCTION softly()",
        "INSERT INTO ev (id, at) VALUES (9, 20)",
    )
    assert table.delta()["9 20"][2]["v"] == "none"
    assert table.value("SELECT count(*) FROM ev_default") == 0


def test_a_renamed_key_is_the_key_before_the_mirror_has_followed(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    assert table.drop("ev0") is None
    table.database.execute("ALTER TABLE ev RENAME id TO ident")
    assert table.value("""SELECT modak.delete('ev', '{"ident": 1, "at": 50}')""") == "delta"
    assert table.delta() == {"1 50": (1, 50, {"ident": 1, "at": 50})}
    table.database.execute("ALTER TABLE ev RENAME at TO moment")
    table.pass_by("ev1", 200)
    table.database.execute("UPDATE ev SET v = 'changed' WHERE ident = 2")
    assert table.value("""SELECT modak.upsert('ev', '{"ident": 9, "moment": 20}')""") == "delta"
    assert table.delta().keys() == {"1 50", "2 150", "9 20"}
    against: LiteralString = (
        "SELECT key, difference FROM modak.delta_against('ev'::regclass, 'ev1'::regclass, 100, 200)"
    )
    assert table.database.rows(against) == [(["2", "150"], None)]


def test_another_key_waits_until_the_mirror_has_followed(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.database.execute("ALTER TABLE ev DROP CONSTRAINT ev_pkey", "ALTER TABLE ev ADD PRIMARY KEY (n, at)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not followed"):
        table.value("""SELECT modak.delete('ev', '{"n": 1, "at": 50}')""")
    table.database.execute("ALTER TABLE ev DROP COLUMN id")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not followed"):
        table.seal("ev1")
    assert table.delta() == {}


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
    """The lake cannot hold infinities, and before the cut-line has moved no row is below it."""
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
            "INSERT INTO modak.mirror_tables (table_id, slot_name, state, start_lsn, start_sequence, columns, key,"
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


def test_an_insert_below_the_cutline_is_an_insert_like_any_other(table: SqlTable) -> None:
    table.database.execute("CREATE TABLE parent (id int PRIMARY KEY)", "INSERT INTO parent VALUES (1), (2), (3), (9)")
    table.database.execute("ALTER TABLE ev ADD CONSTRAINT known FOREIGN KEY (id) REFERENCES parent")
    table.database.execute("ALTER TABLE ev ADD CONSTRAINT plausible CHECK (n < 100)")
    table.pass_by("ev0", 100)
    assert table.drop("ev0") is None
    with table.database.connect() as connection:
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
    assert table.delta().keys() == {"9 20", "2 22"}
    assert table.value("SELECT count(*) FROM ev_default") == 0
    # A second insert of the key replaces the row: the newest one wins.
    table.database.execute("INSERT INTO ev (id, at, v) VALUES (9, 20, 'again')")
    assert table.delta()["9 20"][2]["v"] == "again"


def test_upsert_and_delete_find_the_row_wherever_it_is(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    say = table.value
    assert say("""SELECT modak.upsert('ev', '{"id": 1, "at": 50, "v": "sealed"}')""") == "delta"
    assert table.delta()["1 50"] == (0, 50, {"id": 1, "at": 50, "v": "sealed", "n": 7})
    assert table.database.rows("SELECT v FROM ev WHERE id = 1") == [("sealed",)], "the heap still has it"
    assert table.drop("ev0") is None
    assert say("""SELECT modak.upsert('ev', '{"id": 1, "at": 50, "n": 8}')""") == "delta"
    assert table.delta()["1 50"] == (0, 50, {"id": 1, "at": 50, "v": "none", "n": 8}), "a whole row: the default for v"
    assert say("""SELECT modak.upsert('ev', '{"id": 3, "at": 250, "v": null}')""") == "heap"
    assert table.database.rows("SELECT v, n FROM ev WHERE id = 3") == [(None, 7)]
    assert say("""SELECT modak.delete('ev', '{"id": 1, "at": 50}')""") == "delta"
    assert table.delta()["1 50"] == (1, 50, {"id": 1, "at": 50})
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
        with pytest.raises(error), table.database.connect() as connection:
            connection.execute(wrong.encode())


def test_a_role_needs_its_rights_on_the_table_and_no_others(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    role = f"r_{table.database.name}"
    with table.database.connect() as connection:
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


def test_replicas_of_other_servers_are_not_exempt(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    with table.database.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("INSERT INTO ev (id, at) VALUES (31, 31)")
    assert table.delta().keys() == {"31 31"}


def test_a_correction_by_another_program_is_not_taken_for_folded(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.database.execute(
        "UPDATE ev SET v = 'x' WHERE id = 1",
        "UPDATE modak.delta SET folded_sequence = 3",
        "INSERT INTO modak.delta (table_id, pk, op, tier_key, version, payload)"
        " SELECT table_id, pk, 1, tier_key, nextval('modak.delta_version'), payload FROM modak.delta"
        " ON CONFLICT (table_id, pk) DO UPDATE SET op = excluded.op, version = excluded.version",
    )
    assert table.database.rows("SELECT op, folded_sequence FROM modak.delta") == [(1, None)]


def test_corrections_are_compared_with_the_heap(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.database.execute(
        "INSERT INTO ev (id, at) VALUES (41, 41), (42, 42), (43, 43), (44, 44)", "DELETE FROM ev WHERE id = 44"
    )
    against: LiteralString = (
        "SELECT key[1], difference FROM modak.delta_against('ev'::regclass, 'ev0'::regclass, 0, 100) ORDER BY 1"
    )
    assert table.database.rows(against) == [("41", None), ("42", None), ("43", None), ("44", None)]
    with table.database.connect() as connection:
        connection.execute("ALTER TABLE ev0 DISABLE TRIGGER zz_modak_row")
        connection.execute("UPDATE ev SET v = 'unseen' WHERE id = 41")
        connection.execute("DELETE FROM ev WHERE id = 42")
        connection.execute("INSERT INTO ev (id, at) VALUES (44, 44)")
    assert table.database.rows(against) == [("41", "different"), ("42", "missing"), ("43", None), ("44", "extra")]
