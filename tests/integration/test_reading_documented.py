"""docs/reading.md, block by block, and what `mirror-pump sql` promises there."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow.parquet as pq
import pytest

from mirror_pump.engine.runner import TaskRunner
from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from tests.integration.cli_support import Run, no_settings, run
from tests.integration.pipeline_support import runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_settings", "run", "runner"]

_TEXT = (Path(__file__).parents[2] / "docs" / "reading.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def mirror(database: Database, warehouse: str, runner: TaskRunner) -> Mirror:
    made = Mirror.create(database, warehouse, runner)
    database.execute(
        "CREATE TABLE public.products (id int PRIMARY KEY, name text)",
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, product int, amount numeric(10,2), paid bigint)",
        "INSERT INTO public.products VALUES (1, 'tea'), (2, 'salt')",
        "INSERT INTO public.orders VALUES (1, 1, 1.10, NULL), (2, 2, 2.20, 9007199254740993), (3, 1, 3.30, 1)",
    )
    made.register("public.products", "public.orders")
    made.catch_up()
    return made


def test_every_block_runs_as_it_stands(mirror: Mirror, run: Run, spark: SparkSession, monkeypatch: Any) -> None:
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *values: printed.append(" ".join(map(str, values))))
    names: dict[str, Any] = {"spark": spark}
    kinds = []
    with mirror.pumping():
        for kind, text in _BLOCKS:
            kinds.append(kind)
            if kind == "sh":
                for line in text.splitlines():
                    program, *arguments = shlex.split(line)
                    assert program == "mirror-pump"
                    result = run(*arguments, *(("--max-wait", "30") if "hybrid" in arguments else ()))
                    assert result.exit_code == 0, result.output
                    printed.append(result.stdout)
            elif kind == "python":
                exec(compile(text, "docs/reading.md", "exec"), names)
            else:
                with mirror.database.connect() as connection:
                    for statement in filter(str.strip, text.split(";\n")):
                        assert connection.execute(statement.encode()).fetchall() is not None
    assert kinds == ["sh", "python", "python", "sql"]
    assert "3 | 6.60" in re.sub(r" +", " ", printed[0])
    assert printed[1] == "id,name\n1,tea\n2,salt\n3,tea\n"
    assert pq.read_table("orders.parquet").num_rows == 3
    assert orjson.loads(printed[3]) == [{"count_star()": 3}]
    assert names["old_and_young"] == 3
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []


def test_tables_are_read_at_one_f_of_the_past(mirror: Mirror, run: Run) -> None:
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
            assert "read at F = " in result.stderr
        else:
            assert result.exit_code == 2
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60))
    assert run("sql", statement, "--at", moment, "--format", "csv").stdout.splitlines()[1] == "4,2"
    assert run("sql", statement, "--at", "1999-01-01").exit_code == 1
    assert run("sql", statement, "--at", "7FFFFFFF/0").exit_code == 2


def test_wrong_use_is_told_apart_from_what_cannot_be_read(mirror: Mirror, run: Run, tmp_path: Path) -> None:
    for arguments, code, said in (
        (["SELECT 1; SELECT 2"], 2, "this is not one query"),
        (["DELETE FROM orders"], 2, "this is not one query"),
        (["SELECT FROM WHERE"], 2, "syntax error"),
        (["FROM nowhere"], 2, "nowhere does not exist"),
        (["SELECT nothing FROM orders"], 2, "nothing"),
        (["FROM orders", "--at", "yesterday"], 2, "neither a WAL position nor a time"),
        (["FROM orders", "--at", "0/1", "--mode", "lake"], 2, "leave --mode and --min-lsn out"),
        (["FROM orders", "--format", "parquet"], 2, "give --output FILE"),
        (["FROM orders", "--output", str(tmp_path / "no" / "file")], 2, "cannot be written"),
        (["FROM orders", "--min-lsn", "7FFFFFFF/0", "--max-wait", "0.1"], 1, "has not passed"),
        (["EXPLAIN SELECT id FROM orders"], 0, "ICEBERG_SCAN"),
        (["SELECT 1 AS one"], 0, "(1 row)"),
    ):
        result = run("sql", *arguments)
        assert (result.exit_code, said in result.output) == (code, True), (arguments, result.output)
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []


def test_a_name_that_two_schemas_have_needs_its_schema(mirror: Mirror, run: Run) -> None:
    mirror.database.execute(
        'CREATE SCHEMA "Old Ones"',
        'CREATE TABLE "Old Ones".orders (id bigint PRIMARY KEY)',
        'INSERT INTO "Old Ones".orders VALUES (77)',
    )
    mirror.register('"Old Ones".orders')
    mirror.catch_up()
    assert "several mirrored tables" in run("sql", "FROM orders").output
    assert run("sql", 'SELECT id FROM "Old Ones".orders', "--format", "csv").stdout == "id\n77\n"
    found = run("sql", "SELECT count(*) AS n FROM PUBLIC.Orders", "--format", "json")
    assert orjson.loads(found.stdout) == [{"n": 3}]
