"""docs/reading.md, block by block, and what it promises of `mirror-pump sql`."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow.parquet as pq
import pytest

from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true, lake_rows
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.readers import role_of
from tests.support.retention_table import RetentionTable, at_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEXT = (Path(__file__).parents[3] / "docs" / "reading.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    made = Mirror.create(database, warehouse, tasks)
    database.execute(
        "CREATE TABLE public.products (id int PRIMARY KEY, name text)",
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, product int, amount numeric(10,2), paid bigint)",
        "INSERT INTO public.products VALUES (1, 'tea'), (2, 'salt')",
        "INSERT INTO public.orders VALUES (1, 1, 1.10, NULL), (2, 2, 2.20, 9007199254740993), (3, 1, 3.30, 1)",
    )
    made.register("public.products", "public.orders")
    RetentionTable(database, 2, key="created_at").create_tables(
        "created_at bigint, id bigint, v text, PRIMARY KEY (created_at, id)"
    )
    database.execute("INSERT INTO public.events SELECT g, g, 'first' FROM generate_series(0, 190, 10) g")
    made.register("public.events", retention=at_once("50"))
    made.catch_up()
    return made


_PASSED = "SELECT FROM modak.cutline WHERE table_id = 'public.events'::regclass::oid::bigint AND tier_key_hi = 100"


def read_by_hand(database: Database, text: str, role: str) -> dict[int, str]:
    r"""v by tier key, from the results of the statements and of DuckDB, combined as the document says, with a reader's
    role. This function replaces psql's `\gset` and variables."""
    variables: dict[str, Any] = {}
    found: list[list[tuple[Any, ...]]] = []
    with database.connect() as connection:
        connection.execute(f"GRANT SELECT ON public.events TO {role}; SET ROLE {role}".encode())
        for statement in filter(None, map(str.strip, re.split(r";\n|\\gset\n", text))):
            written = re.sub(r"(?<!:):(\w+)", r"{\1}", statement).format_map(variables)
            cursor = connection.execute(written.encode())
            if "release" in written:
                continue
            if cursor.description is not None:
                rows = cursor.fetchall()
                found.append(rows)
                variables |= dict(zip([column.name for column in cursor.description], rows[0], strict=True))
    (_, young, corrections) = found
    read = {at: v for at, _, v in lake_rows(variables["metadata_location"])}
    assert read, "the snapshot holds the old rows"
    for pk, op, payload in corrections:
        at = int(pk.partition(chr(31))[0])
        if op == 1:
            del read[at]
        else:
            read[at] = payload["v"]
    assert not read.keys() & {row[0] for row in young}, "nothing is in both"
    return read | {at: v for at, _, v in young}


def test_every_block_runs_as_it_stands(mirror: Mirror, run: RunCommand, spark: SparkSession, monkeypatch: Any) -> None:
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *values: printed.append(" ".join(map(str, values))))
    Path("report.sql").write_text(
        "SELECT max(amount) AS most FROM orders; SELECT count(*) AS products FROM products;\n"
    )
    names: dict[str, Any] = {"spark": spark}
    kinds = []
    with mirror.pumping(), role_of(mirror.database) as role:
        for kind, text in _BLOCKS:
            kinds.append(kind)
            if kind == "sh":
                for line in text.splitlines():
                    program, *arguments = shlex.split(line.replace("analyst", role.name), comments=True)
                    assert program == "mirror-pump"
                    result = run(*arguments, *(("--max-wait", "30") if "hybrid" in arguments else ()))
                    assert result.exit_code == 0, result.output
                    printed.append(result.stdout)
            elif kind == "python":
                exec(compile(text, "docs/reading.md", "exec"), names)
            else:
                await_true(lambda: mirror.database.rows(_PASSED), 30, "the cut-line has passed the old partition")
                mirror.database.execute(
                    """SELECT modak.upsert('events', '{"created_at": 10, "id": 10, "v": "late"}')"""
                )
                mirror.database.execute("""SELECT modak.delete('events', '{"created_at": 20, "id": 20}')""")
                by_hand = read_by_hand(mirror.database, text, f'"{role.name}"')
                assert by_hand == {at: "first" for at in range(0, 200, 10) if at != 20} | {10: "late"}
    assert kinds == ["sh", "sh", "python", "python", "sql"]
    assert "3 | 6.60" in re.sub(r" +", " ", printed[2])
    assert printed[3] == "id,name\n1,tea\n2,salt\n3,tea\n"
    assert pq.read_table("orders.parquet").num_rows == 3
    assert orjson.loads(printed[5]) == [{"count_star()": 3}]
    assert "public | orders   | live" in printed[6]
    assert re.search(r"^amount +\| DECIMAL\(10,2\)", printed[7], re.MULTILINE)
    assert printed[8] == "most\n3.30\nproducts\n2\n"
    assert names["old_and_young"] == 3
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []


def test_tables_are_read_at_one_frontier_of_the_past(mirror: Mirror, run: RunCommand) -> None:
    mirror.database.execute("UPDATE public.orders SET paid = 2 WHERE id = 3")
    mirror.catch_up()
    first = mirror.frontier()
    mirror.database.execute("DELETE FROM public.orders WHERE id = 1")
    mirror.catch_up()
    between = time.time()
    mirror.database.execute("INSERT INTO public.orders VALUES (4, 2, 0, NULL), (5, 2, 0, NULL)")
    mirror.catch_up()
    statement = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM products)"
    for at, wanted in ((format_lsn(first), "3,2"), (str(int(between)), ""), (format_lsn(mirror.frontier()), "4,2")):
        result = run("sql", statement, "--at", at, "--format", "csv")
        if wanted:
            assert result.exit_code == 0, result.output
            assert result.stdout.splitlines()[1] == wanted
            assert "read at frontier " in result.stderr
        else:
            assert result.exit_code == 2
    second = int(time.time()) + 1
    await_true(lambda: time.time() >= second, 10, "the next full second")
    moment, future = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(point)) for point in (second, second + 3600))
    assert run("sql", statement, "--at", moment, "--format", "csv").stdout.splitlines()[1] == "4,2"
    assert "is in the future" in run("sql", statement, "--at", future).output
    assert run("sql", statement, "--at", future).exit_code == 2
    assert run("sql", statement, "--at", "1999-01-01").exit_code == 1
    assert run("sql", statement, "--at", "7FFFFFFF/0").exit_code == 2


@pytest.mark.further
def test_wrong_use_and_unreadable_moments_are_different_errors(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    for arguments, code, message in (
        (["SELECT 1; SELECT nothing"], 2, "nothing"),
        (["DELETE FROM orders"], 2, "the mirror is read-only"),
        (["CALL orders()"], 2, "this is not one query"),
        (["SELECT FROM WHERE"], 2, "syntax error"),
        (["FROM nowhere"], 2, "nowhere does not exist"),
        (["SELECT nothing FROM orders"], 2, "nothing"),
        (["FROM orders", "--at", "yesterday"], 2, "neither a WAL position nor a time"),
        (["FROM orders", "--at", "0/1", "--mode", "lake"], 2, "leave out --mode and --min-lsn"),
        (["FROM orders", "--format", "parquet"], 2, "give --output FILE"),
        (["FROM orders", "--output", str(tmp_path / "no" / "file")], 2, "cannot be written"),
        (["FROM orders", "--min-lsn", "7FFFFFFF/0", "--max-wait", "0.1"], 1, "has not passed"),
        (["EXPLAIN SELECT id FROM orders"], 0, "ICEBERG_SCAN"),
        (["SELECT 1 AS one"], 0, "(1 row)"),
    ):
        result = run("sql", *arguments)
        assert (result.exit_code, message in result.output) == (code, True), (arguments, result.output)
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []


@pytest.mark.further
def test_two_moments_in_one_statement_are_refused(mirror: Mirror, run: RunCommand) -> None:
    statement = "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM products)"
    for mode, notice in (("seam", "as of now"), ("hybrid", "a different point in time"), ("lake", ""), ("heap", "")):
        with mirror.pumping():
            result = run("sql", statement, "--mode", mode, "--format", "csv", "--max-wait", "30")
        assert result.exit_code == 0, result.output
        # Meanwhile, the old partition leaves the heap.
        assert mode == "heap" or result.stdout.splitlines()[1] == "20,2"
        assert (notice in result.stderr) if notice else ("retention" not in result.stderr), (mode, result.stderr)
    assert "retention" not in run("sql", "FROM events").stderr


@pytest.mark.further
def test_a_name_without_a_schema_follows_the_roles_own_path(mirror: Mirror, run: RunCommand) -> None:
    mirror.database.execute(
        'CREATE SCHEMA "Old Ones"',
        'CREATE TABLE "Old Ones".orders (id bigint PRIMARY KEY)',
        'INSERT INTO "Old Ones".orders VALUES (77)',
    )
    mirror.register('"Old Ones".orders')
    mirror.catch_up()
    with mirror.database.connect() as connection:
        for path, rows in (("public", "3"), ('"Old Ones", public', "1"), ('missing, public, "Old Ones"', "3")):
            connection.execute(f'ALTER DATABASE "{mirror.database.name}" SET search_path = {path}'.encode())
            for name in ("orders", "ORDERS"):
                assert run("sql", f"SELECT count(*) FROM {name}", "--format", "csv").stdout.split()[1] == rows, path
        connection.execute(f'ALTER DATABASE "{mirror.database.name}" SET search_path = pg_catalog'.encode())
        assert "several mirrored tables" in run("sql", "FROM orders").output
        # What the path finds is not mirrored, so that no other table answers in its place.
        connection.execute("CREATE SCHEMA plain CREATE TABLE orders (id int)")
        connection.execute(f'ALTER DATABASE "{mirror.database.name}" SET search_path = plain, public'.encode())
        refused = run("sql", "FROM orders")
        assert (refused.exit_code, "plain.orders by the search_path" in refused.output) == (2, True), refused.output
    assert run("sql", 'SELECT id FROM "Old Ones".orders', "--format", "csv").stdout == "id\n77\n"
    found = run("sql", "SELECT count(*) AS n FROM PUBLIC.Orders", "--format", "json")
    assert orjson.loads(found.stdout) == [{"n": 3}]
