"""The part of docs/changes.md about reading, block by block."""

from __future__ import annotations

import datetime
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from mirror_pump.model import FeedMode, format_lsn
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.pasted import duckdb_home, execute
from tests.support.rest_catalog import served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = (Path(__file__).parents[3] / "docs" / "changes.md").read_text(encoding="utf-8")
_SECTION = re.split(r"^## ", _PAGE.partition("\n## Read changes\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", _SECTION, re.MULTILINE | re.DOTALL)
_ADDRESS = "http://127.0.0.1:8181/iceberg"
_POSITION = "0/1A2B3C"


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10,2))",
        "INSERT INTO orders SELECT g, 'c' || g, g FROM generate_series(1, 9) g",
    )
    made = Mirror.create(database, warehouse, tasks)
    made.register("orders", feed=FeedOptions(FeedMode.KEYS))
    made.catch_up()
    return made


def _change(mirror: Mirror) -> None:
    mirror.database.execute(
        "UPDATE orders SET total = total + 1 WHERE id % 2 = 0",
        "DELETE FROM orders WHERE id % 5 = 0",
        "INSERT INTO orders SELECT max(id) + 1, 'new', 1 FROM orders",
    )
    mirror.catch_up()


def blocks(language: str) -> list[str]:
    """The section's blocks of one language."""
    return [text for kind, text in _BLOCKS if kind == language]


def test_every_block_is_run() -> None:
    assert [language for language, _ in _BLOCKS] == ["mermaid", "sh", "python", "python", "python", "sh"]


def test_commands(mirror: Mirror, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    begin = format_lsn(mirror.frontier())
    now = datetime.datetime.now(datetime.UTC).isoformat()
    _change(mirror)
    outputs = []
    for line in "".join(blocks("sh")).splitlines():
        assert line.startswith("mirror-pump ")
        written = line.replace(_POSITION, begin).replace("2026-11-20", now)
        result = run(*shlex.split(written)[1:])
        assert result.exit_code == 0, result.output
        outputs.append(result.stdout)
    counts, transactions, as_json, lines = outputs
    assert re.findall(r"(\w+) +\| (\d+)", counts) == [("delete", "1"), ("insert", "1"), ("update", "4")]
    assert "public.orders" in transactions
    assert as_json.count('"op":') == 6
    assert lines.splitlines()[-1] == f"-- frontier {format_lsn(mirror.frontier())}"


def test_a_copy_in_duckdb_follows(mirror: Mirror, database: Database, tmp_path: Path) -> None:
    """From the first load on, by changes alone; a TRUNCATE is a load again."""
    with served(mirror.settings) as catalog:
        program = blocks("python")[0].replace(_ADDRESS, catalog.uri) + "print(afresh)\n"
        home = duckdb_home(tmp_path)
        for number, loads in enumerate((True, False, False, True)):
            if number == 3:
                database.execute("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'again', 1)")
                mirror.catch_up()
            elif number:
                _change(mirror)
            assert execute(program, database, tmp_path, HOME=home).strip() == str(loads)
            with duckdb.connect(str(tmp_path / "own.duckdb")) as own:
                copied = own.execute("SELECT id, customer, total FROM orders ORDER BY id").fetchall()
                ((frontier,),) = own.execute("FROM progress").fetchall()
            assert copied == database.rows("SELECT id, customer, total FROM orders ORDER BY id")
            assert frontier == format_lsn(mirror.frontier())


def test_positions_by_sql_alone() -> None:
    (expression,) = re.findall(r"`(printf\(.*?\))`", _SECTION, re.DOTALL)
    position = duckdb.execute(f"SELECT {' '.join(expression.split())} FROM (SELECT 91234567890 AS lsn)").fetchall()
    assert position == [(format_lsn(91234567890).replace("/", "-"),)]


@pytest.mark.further
def test_spark(
    mirror: Mirror, spark: SparkSession, no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MIRROR_PUMP_DSN", mirror.database.dsn)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    begin = format_lsn(mirror.frontier())
    _change(mirror)
    assert no_settings is None
    names: dict[str, object] = {"spark": spark}
    exec(blocks("python")[1].replace(_POSITION, begin), names)
    assert names["since"] == format_lsn(mirror.frontier())
    spark.conf.set("spark.sql.catalog.own", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.own.type", "hadoop")
    spark.conf.set("spark.sql.catalog.own.warehouse", str(tmp_path / "own"))
    spark.sql("CREATE TABLE own.shop.orders (id bigint, customer string, total decimal(10,2)) USING iceberg")
    for row in mirror.heap("orders"):
        spark.sql(f"INSERT INTO own.shop.orders VALUES {row[0], row[1], float(row[2])}")
    mirror.database.execute("UPDATE orders SET id = 77 WHERE id = 3", "UPDATE orders SET total = 9 WHERE id IN (4, 77)")
    _change(mirror)
    exec(blocks("python")[2], names)
    assert names["since"] == format_lsn(mirror.frontier())
    own = [tuple(row) for row in spark.sql("FROM own.shop.orders ORDER BY id").collect()]
    assert own == mirror.database.rows("SELECT id, customer, total FROM orders ORDER BY id")
