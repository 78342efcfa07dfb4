"""docs/moments.md, block by block, and what receipts find."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.local_files import path_of
from tests.support.moments import kept_moment

_TEXT = (Path(__file__).parents[3] / "docs" / "moments.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"0/[0-9A-F]+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|by \w+,|[\d.]+ (?:KiB|B)\b")


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, product text, amount numeric(10,2), paid timestamptz)",
        "CREATE TABLE customers (id int PRIMARY KEY, name text, picture bytea, since date, weight real, ok bool)",
        "INSERT INTO orders VALUES (1, 'tea', 1.10, NULL), (2, '', -2.2, '2026-05-04 10:00:00.25+02')",
        "INSERT INTO orders VALUES (3, 'ä\",', 0, 'epoch')",
        r"INSERT INTO customers VALUES (1, NULL, '\x00ff', '2026-05-04', 'NaN', true)",
        "INSERT INTO customers VALUES (2, '-', '', 'infinity', 0.1, NULL)",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("orders", "customers")
    mirror.catch_up()
    return mirror


def test_every_block_runs_as_it_stands(
    mirror: Mirror, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands print what is below them, but for positions, times, sizes and roles; both queries give the digest of the
    receipt."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    output, digests, lake_query = "", [], ""
    for language, text in _BLOCKS:
        if language == "sh":
            output = "".join(_run(line, run) for line in text.splitlines())
        elif language == "text":
            assert _EXAMPLE.sub("...", text) in _EXAMPLE.sub("...", output)
        elif language == "sql" and text.startswith("COPY"):
            _copy(mirror, text, tmp_path)
        elif language == "sql":
            (table,) = [t for t in kept_moment(mirror, "audit").tables if t.table.name == "orders"]
            if text.startswith("FROM"):
                text = re.sub(r"FROM iceberg_scan\(.*?\)", text, lake_query)
            lake_query = text
            query = text.replace("$main_location", table.main_location).replace("$rows.csv", f"{tmp_path}/rows.csv")
            digests.append(open_duckdb().execute(query).fetchall())
    receipt = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    expected = [(table["rows"], table["digest"]) for table in receipt["tables"] if table["table"] == "public.orders"]
    assert digests == [expected, expected]


def _run(line: str, run: RunCommand) -> str:
    words = shlex.split(line)
    if words[0] != "mirror-pump":
        subprocess.run(line, shell=True, check=True)
        return ""
    result = run(*words[1:])
    assert result.exit_code == 0, result.output
    return result.stdout


def _copy(mirror: Mirror, statement: str, directory: Path) -> None:
    """To the client, since the server may be on another machine."""
    with mirror.database.session() as connection, (directory / "rows.csv").open("wb") as file:
        connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET bytea_output = 'hex'")
        with connection.cursor().copy(statement.replace("'$rows.csv'", "STDOUT").rstrip(";\n").encode()) as rows:
            for block in rows:
                file.write(block)


def test_a_receipt_finds_what_was_changed(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    """In the lake, in the receipt, and in the heap."""
    database, slot = mirror.database, ("--slot", mirror.settings.slot)
    database.execute("INSERT INTO orders SELECT g, 'g' || g, g, now() FROM generate_series(10, 5009) g")
    mirror.catch_up()
    key, receipt = tmp_path / "key", tmp_path / "receipt.json"
    key.write_text("0123456789abcdef")
    signed = ("--receipt", str(receipt), "--key", str(key))
    assert run("moment", "keep", "closing", *slot, *signed).exit_code == 0
    check = ("moment", "check", "closing", *slot, *signed)
    unchanged = run(*check)
    assert unchanged.exit_code == 0, unchanged.output
    assert unchanged.stdout.count("receipt equal, heap equal") == 2
    assert len(json.loads(receipt.read_text())["tables"][1]["ranges"]) == 5

    database.execute("UPDATE orders SET product = 'x' WHERE id = 1")
    ahead = run(*check)
    assert (ahead.exit_code, "receipt equal, heap different" in ahead.stdout) == (0, True)
    mirror.catch_up()
    assert "it has changed since" in run(*check).stdout

    text = receipt.read_text(encoding="utf-8")
    receipt.write_text(text.replace('"rows": 2', '"rows": 1'), encoding="utf-8")
    assert run(*check).exit_code != 0
    receipt.write_text(text.replace('"kept_by": "', '"kept_by": "not '), encoding="utf-8")
    assert "the signature of" in run(*check).stderr
    receipt.write_text(text, encoding="utf-8")

    # A moment that has other rows: that of the present, under the same name and frontier.
    table = next(table for table in kept_moment(mirror, "closing").tables if table.table.name == "orders")
    keep(mirror.settings, MomentOptions("later"))
    later = next(table for table in kept_moment(mirror, "later").tables if table.table.name == "orders")
    path_of(table.main_location).write_bytes(path_of(later.main_location).read_bytes())
    other = run(*check)
    assert other.exit_code == 1
    assert "public.orders: 5,003 rows, receipt different" in other.stdout
    assert other.stdout.count("and other values") == 1
    path_of(table.main_location).unlink()
    assert run(*check).exit_code == 1


def test_the_list_and_the_status_name_it(mirror: Mirror, run: RunCommand) -> None:
    keep(mirror.settings, MomentOptions("closing", note="of April"))
    (moment,) = json.loads(run("moment", "list", "--json", "--slot", mirror.settings.slot).stdout)
    assert (moment["name"], moment["note"], moment["own_bytes"]) == ("closing", "of April", 0)
    assert [table["table"] for table in moment["tables"]] == ["public.customers", "public.orders"]
    status = json.loads(run("status", "--json", "--slot", mirror.settings.slot).stdout)
    assert [(entry["name"], entry["tables"]) for entry in status["moments"]] == [
        ("closing", ["public.customers", "public.orders"])
    ]
    assert run("moment", "drop", "closing", "--slot", mirror.settings.slot).exit_code == 2
