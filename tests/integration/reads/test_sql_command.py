"""`mirror-pump sql`: lists of tables, where queries come from, how results are written, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import orjson
import psutil
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from mirror_pump.cli.main import app
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import PROGRAM, RunCommand


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        'CREATE SCHEMA "Old Ones"',
        'CREATE TABLE "Old Ones".orders (id bigint PRIMARY KEY)',
        "CREATE TABLE public.orders (id int PRIMARY KEY, product text, amount numeric(10,2))",
        "INSERT INTO public.orders VALUES (1, 'tea', 1.10), (2, 'salt; pepper', 2.20)",
        "CREATE TABLE public.blobs (id int PRIMARY KEY, one bytea, many bytea[])",
        r"INSERT INTO public.blobs VALUES (1, '\xDEAD00626565', ARRAY['\xBEEF'::bytea, NULL, '']), (2, '', NULL),"
        " (3, NULL, '{}')",
    )
    made = Mirror.create(database, warehouse, tasks)
    made.register('"Old Ones".orders', "public.orders", "public.blobs")
    made.catch_up()
    database.execute("CREATE TABLE public.later (id int PRIMARY KEY, at date)")
    made.register("public.later")
    return made


def csv(run: RunCommand, *arguments: str) -> str:
    result = run("sql", *arguments, "--format", "csv")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.further
def test_mirrored_tables_are_listed_without_a_look_at_the_lake(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    away = tmp_path / "away"
    (tmp_path / "warehouse").rename(away)
    try:
        brief = "schema,name,state\nOld Ones,orders,live\npublic,blobs,live\npublic,later,copying\npublic,orders,live\n"
        for statement in ("SHOW TABLES", "show tables;", "/* all */ SHOW\tTABLES", "SHOW"):
            assert csv(run, statement) == brief, statement
        assert csv(run, 'SHOW TABLES FROM "Old Ones"') == "schema,name,state\nOld Ones,orders,live\n"
        for statement in ("DESCRIBE", "SHOW ALL TABLES", "desc tables"):
            result = run("sql", statement, "--format", "json")
            assert result.exit_code == 0, result.output
            tables = orjson.loads(result.stdout)
            assert [table["name"] for table in tables] == ["orders", "blobs", "later", "orders"]
            assert tables[3] == {
                "schema": "public",
                "name": "orders",
                "state": "live",
                "column_names": ["id", "product", "amount"],
                "column_types": ["INTEGER", "VARCHAR", "DECIMAL(10,2)"],
            }
        # A statement that names a table reads that table.
        assert run("sql", "DESCRIBE blobs").exit_code == 1
    finally:
        away.rename(tmp_path / "warehouse")
    described = csv(run, "DESCRIBE public.orders").splitlines()
    assert [line.split(",")[:2] for line in described[1:3]] == [["id", "INTEGER"], ["product", "VARCHAR"]]
    assert "amount" in csv(run, "SUMMARIZE FROM public.orders")
    assert csv(run, "SHOW public.orders").splitlines() == described


def test_no_table_is_listed_where_none_is_mirrored(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    Mirror.create(database, warehouse, tasks)
    assert "(0 rows)" in run("sql", "SHOW TABLES").stdout
    assert orjson.loads(run("sql", "DESCRIBE", "--format", "json").stdout) == []


def piped(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["sql", *arguments, "--format", "csv"], input=text)


@pytest.mark.further
def test_queries_come_from_stdin_from_files_and_several_at_once(
    mirror: Mirror, run: RunCommand, tmp_path: Path
) -> None:
    script = "-- two; of them\nSELECT id, product FROM public.orders WHERE product LIKE '%; %';\nSELECT 2 AS two\n"
    wanted = "id,product\n2,salt; pepper\ntwo\n2\n"
    file = tmp_path / "q.sql"
    file.write_text(script)
    for result in (piped(script), piped(script, "-"), piped("", "-f", str(file)), piped(script, "--file", "-")):
        assert (result.exit_code, result.stdout) == (0, wanted), result.output
    assert csv(run, script.partition("\n")[2]) == wanted
    # Which tables these name cannot be told by a binder that does not know their columns.
    for join in ("JOIN blobs USING (id)", "NATURAL JOIN blobs"):
        assert csv(run, f"SELECT count(*) AS n FROM public.orders {join}") == "n\n2\n"
    # The first error ends the run and determines the exit code. Earlier results have been written.
    failing = piped("SELECT 1 AS a; SELECT nothing; SELECT 2 AS b")
    assert (failing.exit_code, failing.stdout) == (2, "a\n1\n"), failing.output
    # Each statement reads the state at its own time.
    for arguments, text, message in (
        ((), "", "no query is given"),
        (("-",), " ; -- nothing\n", "no query is given"),
        (("-f", str(tmp_path / "none.sql")), "", "No such file"),
        (("-f", str(file), "SELECT 1"), "", "given twice"),
        (("-f", str(file), "--output", str(tmp_path / "x.csv")), "", "but 2 queries are given"),
        (("ATTACH 'x'",), "", "this is not one query"),
    ):
        result = piped(text, *arguments)
        assert (result.exit_code, message in result.output) == (2, True), (arguments, result.output)


@pytest.mark.further
def test_the_output_is_written_as_its_name_says(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    def written(name: str, *arguments: str) -> Path:
        file = tmp_path / name
        result = run("sql", "SELECT id FROM public.orders ORDER BY 1", "--output", str(file), *arguments)
        assert (result.exit_code, result.stdout) == (0, ""), result.output
        return file

    assert orjson.loads(written("a.json").read_bytes()) == [{"id": 1}, {"id": 2}]
    assert written("a.CSV").read_text() == "id\n1\n2\n"
    assert pq.read_table(written("a.parquet", "--format", "parquet")).column("id").to_pylist() == [1, 2]
    assert "(2 rows)" in written("a.txt").read_text()
    assert orjson.loads(written("a.out", "--format", "json").read_bytes()) == [{"id": 1}, {"id": 2}]
    for wanted in ("csv", "table", "parquet"):
        result = run("sql", "SELECT 1", "--output", str(tmp_path / "b.json"), "--format", wanted)
        assert result.exit_code == 2
        assert f"--format {wanted} contradicts --output" in result.output
    assert not (tmp_path / "b.json").exists()


@pytest.mark.further
def test_bytes_are_written_as_postgres_prints_them(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    with mirror.database.connect() as connection:
        printed = [row[0] for row in connection.execute("SELECT one::text FROM public.blobs ORDER BY id").fetchall()]
    assert printed == [r"\xdead00626565", r"\x", None]
    result = run("sql", "FROM blobs ORDER BY id", "--format", "json")
    rows = orjson.loads(result.stdout)
    assert [row["one"] for row in rows] == printed
    assert [row["many"] for row in rows] == [[r"\xbeef", None, r"\x"], None, []]
    assert csv(run, "SELECT one FROM blobs ORDER BY id") == "one\n\\xdead00626565\n\\x\n\n"
    lines = run("sql", "SELECT one AS o, many AS o FROM blobs ORDER BY id").stdout.splitlines()
    assert lines[2] == r"\xdead00626565 | [\xbeef, NULL, \x]"
    assert lines[3].split() == [r"\x", "|", "NULL"]
    file = tmp_path / "blobs.parquet"
    assert run("sql", "SELECT one FROM blobs ORDER BY id", "--output", str(file)).exit_code == 0
    assert pq.read_table(file).column("one").to_pylist() == [b"\xde\xad\x00bee", b"", None]


@pytest.mark.further
@pytest.mark.usefixtures("no_settings")
def test_ctrl_c_ends_a_query_in_one_line(mirror: Mirror, database: Database) -> None:
    endless = "SELECT count(*) FROM public.orders, range(1000000000000) a(i), range(1000000) b(j) WHERE i % 7 = j % 5"
    with subprocess.Popen(
        [*PROGRAM, "sql", endless],
        env={**os.environ, "MIRROR_PUMP_DSN": database.dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            await_true(lambda: database.rows("SELECT FROM modak.read_pins"), 30, "the tables are pinned")
            spent = psutil.Process(process.pid).cpu_times().user
            await_true(lambda: psutil.Process(process.pid).cpu_times().user > spent + 1.5, 60, "the query runs")
            process.send_signal(signal.SIGINT)
            output, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, output) == (130, b"")
    (line,) = error.splitlines()
    assert orjson.loads(line)["event"] == "interrupted"
    assert database.rows("SELECT FROM modak.read_pins") == []


@pytest.mark.further
def test_reserved_words_are_named_with_how_to_quote_them(mirror: Mirror, run: RunCommand) -> None:
    """DuckDB says no more than where it stopped, which is after the word."""
    mirror.database.execute(
        'CREATE TABLE public."order" (id int PRIMARY KEY, at date, "end" int, "desc" text, fine int)',
        "INSERT INTO public.\"order\" VALUES (1, '2026-01-02', 3, 'd', 4)",
    )
    mirror.register('public."order"', "public.later")
    mirror.catch_up()
    for statement, words in (
        ("SELECT at FROM later", ['"at"']),
        ("SELECT id FROM later -- at\n ORDER BY at", ['"at"']),
        ("SELECT max(at), 'at' FROM later", ['"at"']),
        ("SELECT id FROM order", ['"order"']),
        ("SELECT CASE WHEN id = 1 THEN end END FROM public.order", ['"end"']),
        ("SELECT desc, At FROM public.order", ['"desc"', '"At"']),
    ):
        result = run("sql", statement)
        assert result.exit_code == 2, statement
        error = orjson.loads(result.stderr)
        assert error["remedy"] == f"write it in double quotes: {', '.join(words)}", (statement, error)
        assert "reserved word" in error["event"]
    # With these quotes the statements are read, and other errors are those of DuckDB.
    assert csv(run, 'SELECT "desc", "At" FROM public.order') == "desc,at\nd,2026-01-02\n"
    wrong = run("sql", "SELECT fine at at FROM later WHERE FROM")
    assert (wrong.exit_code, "double quotes" in wrong.stderr) == (2, False)


@pytest.mark.further
def test_writes_are_told_as_what_they_are(mirror: Mirror, run: RunCommand) -> None:
    for statement in (
        "DROP TABLE orders",
        "/* now */ insert into orders values (3) on conflict (id) do nothing returning id",
        "UPDATE orders SET product = 'x'",
        "WITH a AS (SELECT 3 AS id) INSERT INTO orders FROM a",
        "TRUNCATE orders",
        "CREATE TABLE copied AS FROM orders",
    ):
        result = run("sql", statement)
        assert result.exit_code == 2, statement
        assert "the mirror is read-only" in result.stderr, (statement, result.stderr)
    assert csv(run, "SELECT count(*) AS n FROM public.orders") == "n\n2\n"


@pytest.mark.further
def test_only_tables_that_can_be_read_are_proposed(mirror: Mirror, run: RunCommand) -> None:
    proposed = run("sql", "SELECT * FROM public.blob").stderr
    assert "did you mean public.blobs?" in " ".join(proposed.split())
    # Its first copy is not complete. And DuckDB's own tables are no answer.
    for unknown in ("latr", "nothere", "pg_clas"):
        result = run("sql", f"SELECT * FROM {unknown}")
        assert result.exit_code == 2
        assert "id you mean" not in result.stderr, result.stderr
        assert "SHOW TABLES" in result.stderr
