"""Where the rows of a load go, in each mode and on both sides of the cut-line, and which are left out."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from mirror_pump.errors import MirrorPumpError, SourceError, TableError
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.source.loads.filtered_rows import TooManyFiltered
from mirror_pump.source.loads.labels import sweep_labels
from mirror_pump.testing.database import Database
from tests.support.loads import LoadedTable, Loader


def test_upserts_are_rows_above_the_cutline_and_corrections_below(table: LoadedTable) -> None:
    result = table.load("a", 'at,id,v\n50,1,gone\n150,2,cold\n250,3,hot\n260,9,""\n60,8,\n')
    assert result.to_json() | {"content": 0, "loaded_at": 0, "bytes": 0} == {
        "table": "public.ev",
        "label": "a",
        "state": "committed",
        "replayed": False,
        "content": 0,
        "loaded_at": 0,
        "bytes": 0,
        "rows_read": 5,
        "rows_loaded": 5,
        "rows_below_cutline": 3,
        "rows_superseded": 0,
        "rows_not_found": 0,
        "rows_filtered": 0,
        "filtered": [],
    }
    assert table.heap() == [(2, 150, "cold", 7), (3, 250, "hot", 7), (9, 260, "", 7)]
    assert table.delta() == {
        "1 50": (0, 50, {"id": 1, "at": 50, "v": "gone", "n": 7}),
        "2 150": (0, 150, {"id": 2, "at": 150, "v": "cold", "n": 7}),
        "8 60": (0, 60, {"id": 8, "at": 60, "v": None, "n": 7}),
    }
    assert table.value("SELECT count(*) FROM ONLY ev_default") == 0
    journal = table.database.rows("SELECT phase, details ->> 'label' FROM modak.op_log WHERE op_kind = 'load'")
    assert journal == [("done", "a")]


def test_corrections_of_a_load_are_those_of_single_upserts(table: LoadedTable) -> None:
    table.database.execute(
        "CREATE TYPE pair AS (a int, b text)",
        "ALTER TABLE ev ADD f float8, ADD j json, ADD arr int4[], ADD p pair, ADD ts timestamptz, ADD b bytea",
    )
    values = (
        ("-0", '{"b":1,  "a":[1.0]}', "[0:1]={7,8}", '(1,"x y")', "2026-03-29 02:30:00.5+02", "\\xdead"),
        ("NaN", "null", "{1,NULL}", "(,)", "infinity", "\\x"),
    )
    lines = ["id,at,f,j,arr,p,ts,b"]
    for number, row in enumerate(values):
        lines.append(f"{number},{number}," + ",".join('"' + text.replace('"', '""') + '"' for text in row))
    table.load("a", "\n".join(lines))
    whole: LiteralString = "SELECT pk, op, tier_key, payload::text FROM modak.delta ORDER BY pk"
    loaded = table.database.rows(whole)
    assert len(loaded) == 2
    for _, _, tier, _ in loaded:
        table.database.rows(
            "SELECT modak.upsert('ev', jsonb_build_object('id', %s::int, 'at', %s::int, 'f', %s::text, 'j', %s::text,"
            " 'arr', %s::text, 'p', %s::text, 'ts', %s::text, 'b', %s::text))",
            (tier, tier, *values[tier]),
        )
    assert table.database.rows(whole) == loaded


def test_many_old_rows_are_settled_in_parts(table: LoadedTable) -> None:
    # More than 1000 rows, and more than 8 MiB of text.
    text = "id,at,v\n" + "".join(f"{n},{n % 100},{'x' * 4000}\n" for n in range(3001))
    assert table.load("a", text).outcome["rows_below_cutline"] == 3001
    assert table.database.rows(
        "SELECT count(*), sum(tier_key), min(length(payload ->> 'v')), count(DISTINCT version) FROM modak.delta"
    ) == [(3001, sum(n % 100 for n in range(3001)), 4000, 3001)]
    assert table.value("SELECT count(*) FROM ONLY ev_default") == 0


def test_the_last_of_several_rows_with_a_key_counts(table: LoadedTable) -> None:
    outcome = table.load("a", "id,at,v\n1,50,first\n3,250,first\n1,50,last\n3,250,last\n").outcome
    assert (outcome["rows_loaded"], outcome["rows_superseded"]) == (2, 2)
    assert table.heap()[-1] == (3, 250, "last", 7)
    assert table.delta()["1 50"][2]["v"] == "last"


def test_inserts_leave_rows_alone_whose_keys_exist_in_the_heap(table: LoadedTable) -> None:
    text = "id,at,v\n1,50,old\n2,150,cold\n3,250,hot\n9,260,new\n9,260,again\n"
    with pytest.raises(TooManyFiltered, match="row 5: an earlier row"):
        table.load("a", text, "insert")
    assert table.labels() == {"a": "failed"}
    assert not table.delta()
    outcome = table.load("a", text, "insert", max_filtered=3).outcome
    assert [(row["row"], row["reason"][:11]) for row in outcome["filtered"]] == [
        (5, "an earlier "),
        (2, "its key exi"),
        (3, "its key exi"),
    ]
    assert outcome["rows_loaded"] == 2
    assert table.heap() == [(2, 150, "mid", 7), (3, 250, "new", 7), (9, 260, "new", 7)]
    # Nobody looks keys up in the lake: the row is new, or the newest.
    assert list(table.delta()) == ["1 50"]
    table.load("b", "id,at,v\n1,50,newer\n", "insert")
    assert table.delta()["1 50"][2]["v"] == "newer"


def test_deletes_remove_rows_of_the_heap_and_bury_the_others(table: LoadedTable) -> None:
    text = "v,id,at\nx,1,50\nx,2,150\nx,3,250\nx,4,260\nx,5,120\n"
    outcome = table.load("a", text, "delete").outcome
    wanted = {"rows_loaded": 4, "rows_below_cutline": 3, "rows_not_found": 1}
    assert {key: outcome[key] for key in wanted} == wanted
    assert table.heap() == []
    assert table.delta() == {
        "1 50": (1, 50, {"id": 1, "at": 50}),
        "2 150": (1, 150, {"id": 2, "at": 150}),
        "5 120": (1, 120, {"id": 5, "at": 120}),
    }


def test_each_refused_row_is_named(table: LoadedTable) -> None:
    table.database.execute("ALTER TABLE ev ADD CHECK (v <> 'bad')")
    text = "id,at,v,n\n1,50,ok,1\n2,51,bad,1\n3,x,ok,1\n4,52,ok\n,53,ok,1\n6,250,bad,1\n7,999,ok,1\n8,54,ok,1\n"
    with pytest.raises(TooManyFiltered, match="row 3: column at: invalid input syntax"):
        table.load("a", text)
    with pytest.raises(TooManyFiltered, match="5 rows are filtered, at most 4") as caught:
        table.load("a", text, max_filtered=4)
    assert len(caught.value.filtered) == 5
    outcome = table.load("a", text, max_filtered=9).outcome
    reasons = {row["row"]: row["reason"] for row in outcome["filtered"]}
    assert sorted(reasons) == [2, 3, 4, 5, 6, 7]
    assert "check constraint" in reasons[2]
    assert reasons[3] == 'column at: invalid input syntax for type bigint: "x"'
    assert reasons[5] == "it has no value of the key"
    assert "no partition" in reasons[7]
    assert (outcome["rows_read"], outcome["rows_loaded"], outcome["rows_filtered"]) == (8, 2, 6)
    assert sorted(table.delta()) == ["1 50", "8 54"]
    assert table.labels() == {"a": "committed"}


def test_rows_below_the_retention_line_are_refused(table: LoadedTable) -> None:
    table.database.execute("UPDATE modak.cutline SET retention_line = 20")
    for mode in ("upsert", "insert", "delete"):
        with pytest.raises(TooManyFiltered, match="row 2: it is below the retention line"):
            table.load("a", "id,at\n1,20\n2,19\n", mode)
        assert table.load(mode, "id,at\n1,20\n2,19\n", mode, max_filtered=1).outcome["rows_loaded"] == 1
    assert list(table.delta()) == ["1 20"]
    # The database refuses it as well, whoever calls.
    with table.database.connect(autocommit=False) as connection:
        connection.execute("SELECT modak.begin_load('ev', 'b', '{}')")
        connection.execute("INSERT INTO ev (id, at) VALUES (1, 5)")
        with pytest.raises(psycopg.errors.CheckViolation, match="below the retention line"):
            connection.execute("SELECT modak.finish_load('ev', 'b', '{}')")


def test_a_partial_file_and_unknown_columns_are_errors(table: LoadedTable) -> None:
    for text, message in (
        ("id,v\n1,x\n", "no key column at"),
        ("id,at,w\n1,2,3\n", "has no column w"),
        ("id,at,doubled\n1,2,3\n", "column doubled is generated"),
        ("id,at,at\n1,2,3\n", "two columns at"),
    ):
        with pytest.raises(TableError, match=message):
            table.load("a", text)
    assert table.load("a", "1,250,y", columns=("id", "at", "v")).outcome["rows_loaded"] == 1
    assert table.load("b", "id,at\n").outcome["rows_loaded"] == 0


def test_json_lines_are_read_as_modak_upsert_reads_them(table: LoadedTable) -> None:
    table.database.execute("ALTER TABLE ev ADD doc jsonb, ADD tags text[]")
    table.load("a", '{"id": 1, "at": 50, "doc": {"a": [1.50]}, "tags": ["x, y", null]}', form=FileFormat.JSONL)
    image = table.delta()["1 50"][2]
    assert image == {"id": 1, "at": 50, "v": "none", "n": 7, "doc": '{"a": [1.50]}', "tags": ["x, y", None]}


def test_columns_of_every_name_are_loaded(table: LoadedTable) -> None:
    table.database.execute(
        'CREATE TABLE "S%%s" (row_number int PRIMARY KEY, _row_number int, "a\'%%(b)s""" text)',
        "INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col, partition_scheme,"
        " lake_format, lake_table_ref, mode) VALUES ('\"S%%s\"'::regclass::oid::bigint, 'public', 'S', '{row_number}',"
        " 'row_number', '{}', 'iceberg', 'public.s', 'mirrored')",
    )
    ((name,),) = table.database.rows("SELECT relname FROM pg_class WHERE relname LIKE 'S%' AND relkind = 'r'")
    ((odd,),) = table.database.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = quote_ident(%s)::regclass AND attnum = 3", (name,)
    )
    head = 'row_number,_row_number,"' + odd.replace('"', '""')
    for mode, loaded in (("upsert", 2), ("insert", 0), ("delete", 2)):
        outcome = table.load(mode, head + '"\n1,2,3\n4,5,6\n', mode, name=f'"{name}"', max_filtered=2).outcome
        assert outcome["rows_loaded"] == loaded
        assert outcome["rows_below_cutline"] == 0


def test_keys_are_compared_by_the_operators_of_their_index(table: LoadedTable) -> None:
    """They are in the schema of an extension, where our statements do not look."""
    table.database.execute(
        "CREATE EXTENSION citext",
        "CREATE TABLE words (id citext PRIMARY KEY, v text)",
        "INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col, partition_scheme,"
        " lake_format, lake_table_ref, mode) VALUES ('words'::regclass::oid::bigint, 'public', 'words', '{id}',"
        " 'id', '{}', 'iceberg', 'public.words', 'mirrored')",
    )
    for mode, text, loaded in (
        ("upsert", "id,v\nA,1\nb,1\n", 2),
        ("insert", "id,v\na,2\nc,2\n", 1),
        ("delete", "id\na\nB\nd\n", 2),
    ):
        assert table.load(mode, text, mode, name="words", max_filtered=1).outcome["rows_loaded"] == loaded, mode
    assert table.database.rows("SELECT id::text, v FROM words") == [("c", "2")]


def test_functions_of_a_table_need_a_search_path_of_their_own(table: LoadedTable) -> None:
    """Ours is not that of the role, in which others may create objects."""
    table.database.execute(
        "CREATE TABLE audit (id bigint)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO audit VALUES (NEW.id); RETURN NEW; END $$",
        "CREATE TRIGGER note BEFORE INSERT ON ev2 FOR EACH ROW EXECUTE FUNCTION note()",
    )
    row = "id,at,v\n9,260,w\n"
    with pytest.raises(SourceError, match="audit") as refused:
        table.load("first", row)
    assert "give that function a search_path" in refused.value.remedy
    table.database.execute("ALTER FUNCTION note() SET search_path = public, pg_temp")
    table.load("second", row)
    assert table.database.rows("SELECT id FROM audit") == [(9,)]


def test_triggers_see_the_rows_and_a_delete_trigger_cannot_keep_one(table: LoadedTable) -> None:
    table.database.execute(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.v IS DISTINCT FROM 'touched' THEN"
        " UPDATE public.ev SET v = 'touched' WHERE id = NEW.id AND at = NEW.at; END IF; RETURN NULL; END $$",
        "CREATE TRIGGER touch AFTER INSERT OR UPDATE ON ev FOR EACH ROW EXECUTE FUNCTION touch()",
    )
    table.load("a", "id,at\n1,50\n2,150\n3,250\n")
    assert {key: row[2]["v"] for key, row in table.delta().items()} == {"1 50": "touched", "2 150": "touched"}
    table.database.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER keep BEFORE DELETE ON ev FOR EACH ROW EXECUTE FUNCTION keep()",
    )
    with pytest.raises(SourceError, match="a DELETE trigger keeps it"):
        table.load("b", "id,at\n5,50\n")
    assert table.value("SELECT count(*) FROM ONLY ev_default") == 0


def test_the_rights_are_those_of_the_caller(table: LoadedTable, loader: Loader) -> None:
    for granted, mode, message in (
        ("SELECT", "upsert", "permission denied"),
        ("INSERT", "upsert", "permission denied"),
        ("UPDATE", "upsert", None),
        ("SELECT", "delete", "permission denied"),
        ("DELETE", "delete", None),
    ):
        loader.grant(granted, "ev")
        text = "id,at\n1,50\n2,150\n3,250\n"
        if message is None:
            assert table.load(mode, text, mode, dsn=loader.dsn).outcome["rows_loaded"] == 3
            continue
        with pytest.raises(MirrorPumpError, match=message):
            table.load(mode, text, mode, dsn=loader.dsn)
    assert {key: op for key, (op, _, _) in table.delta().items()} == {"1 50": 1, "2 150": 1}
    with psycopg.connect(loader.dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT modak.put_deltas(1, '[]')")


def test_policies_of_row_security_apply(table: LoadedTable, loader: Loader) -> None:
    loader.grant("SELECT, INSERT, UPDATE, DELETE", "ev")
    table.database.execute(
        "ALTER TABLE ev ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON ev USING (v = 'mine')",
    )
    assert table.load("a", "id,at,v\n1,260,mine\n", dsn=loader.dsn).outcome["rows_loaded"] == 1
    with pytest.raises(SourceError, match="row-level security"):
        table.load("b", "id,at,v\n2,260,yours\n", dsn=loader.dsn)
    with pytest.raises(SourceError, match="cannot be applied to rows that the heap no longer holds"):
        table.load("c", "id,at,v\n1,50,mine\n", "delete", dsn=loader.dsn)


def test_a_plain_mirrored_table_takes_loads_too(table: LoadedTable, database: Database) -> None:
    database.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, v text)",
        "INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col, partition_scheme,"
        " lake_format, lake_table_ref, mode) VALUES ('plain'::regclass::oid::bigint, 'public', 'plain', '{id}', 'id',"
        " '{}', 'iceberg', 'public.plain', 'mirrored')",
        "CREATE TABLE alone (id int PRIMARY KEY)",
    )
    assert table.load("a", "id,v\n1,x\n2,y\n", name="plain").outcome["rows_below_cutline"] == 0
    assert table.load("b", "id\n1\n3\n", "delete", name="plain").outcome["rows_not_found"] == 1
    assert database.rows("SELECT * FROM plain") == [(2, "y")]
    with pytest.raises(TableError, match="alone is not registered"):
        table.load("a", "id\n1\n", name="alone")


def test_old_labels_are_swept_by_the_policy_of_their_table(table: LoadedTable) -> None:
    table.load("old", "id,at\n1,250\n")
    table.load("new", "id,at\n1,250\n")
    table.database.execute("UPDATE modak.load_labels SET updated_at = now() - interval '29 days' WHERE label = 'old'")
    with table.database.session() as connection:
        sweep_labels(connection, "s")
        assert list(table.labels()) == ["new", "old"]
        table.database.execute("""UPDATE modak.tables SET maintenance_policy = '{"load_label_days": 28}'""")
        sweep_labels(connection, "s")
    assert list(table.labels()) == ["new"]
