"""docs/loads.md, block by block, beside a running pump, and the keys that are documented."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from mirror_pump.cli.main import app
from mirror_pump.http.access import Access
from mirror_pump.http.server import HttpServer, application
from mirror_pump.ops.load.load_endpoint import LoadEndpoint
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.json_schema import example, mismatches
from tests.support.retention_table import at_once

_DOCS = Path(__file__).parents[3] / "docs"
DOCUMENT = (_DOCS / "loads.md").read_text(encoding="utf-8")


def printed_as(shown: str, output: str) -> bool:
    """Whether a command printed what a page shows; `...` stands for any text."""
    pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, output.strip()) is not None


def shell(text: str) -> str:
    """Runs the lines of a block in this process, which spares the starts of programs. Returns what they print."""
    printed = ""
    text = re.sub(r"^cat > (\S+) <<'END'\n(.*?)^END\n", _written, text, flags=re.MULTILINE | re.DOTALL)
    for line in text.strip().splitlines():
        given, _, command = line.rpartition(" | ")
        rows, _, file = line.partition(" > ")
        if command.startswith("printf"):
            Path(file).write_text(_printed(rows))
            continue
        assert shlex.split(command)[0] == "mirror-pump"
        result = CliRunner().invoke(app, shlex.split(command)[1:], input=_printed(given) if given else None)
        assert result.exit_code == 0, (line, result.stderr)
        printed += result.stdout
    return printed


def _written(match: re.Match[str]) -> str:
    Path(match[1]).write_text(match[2])
    return ""


def _printed(command: str) -> str:
    return shlex.split(command)[1].replace("\\n", "\n")


def test_the_document_does_what_it_says(database: Database, warehouse: str, run: RunCommand) -> None:
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(2), retention_interval=0.1, fold_age=0.1)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["sql", "sh", "text", "sql", "sh", "sh", "text", "sh", "python"]

    with database.connect() as connection:
        connection.execute(blocks[0][1].encode())
    mirror.register("public.events", retention=at_once("3 weeks"))
    with mirror.pumping():
        await_true(
            lambda: database.rows("SELECT partition_id FROM modak.partitions WHERE state = 'dropped'"),
            60,
            "January has left",
        )
        assert printed_as(blocks[2][1], shell(blocks[1][1]))
        shell(blocks[4][1])
        assert printed_as(blocks[6][1], shell(blocks[5][1]))
        assert blocks[7][1].split()[:2] == ["mirror-pump", "run"]
        port_app = application(LoadEndpoint(mirror.settings).routes(), Access(loads=True))
        with (
            HttpServer("127.0.0.1", 0, port_app) as server,
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            port = server.url.rpartition(":")[2]
            exec(blocks[8][1].replace("9187", port), {})
        assert printed.getvalue() == "200 committed 3 0\n"
        with database.connect() as connection:
            labels = connection.execute(blocks[3][1].encode()).fetchall()
        assert {(label, state, rows) for label, state, rows, _ in labels} == {
            ("etl-2026-11-21", "committed", "3"),
            ("gone-1", "committed", "2"),
            ("partly-1", "committed", "1"),
            ("etl-2026-11-22", "committed", "3"),
        }
        # Folded or not, readers see the rows.
        answer = json.loads(run("sql", "SELECT count(*) AS rows, sum(n) AS n FROM events", "--format", "json").stdout)
        total = sum(range(1401)) - 1 - 1400 - 2 - 1399 + 100 + 200 + 300 + 1
        assert answer == [{"rows": 1401, "n": total}], answer
    document = json.loads(run("load", "events", "batch.csv", "--label", "etl-2026-11-21", "--json").stdout)
    assert document["replayed"] is True
    assert mismatches(document, "load") == []
    assert set(document["content"]) == set(example("load")["content"])


def test_wrong_usage_is_said_before_anything_is_loaded(run: RunCommand, tmp_path: Path) -> None:
    for name in ("a.csv", "a.txt", "b.jsonl"):
        (tmp_path / name).write_text("id\n1\n")
    for arguments, message in (
        (["events", "a.txt", "--label", "a"], "nothing tells the format of a.txt"),
        (["events", "a.csv", "b.jsonl", "--label", "a"], "several formats"),
        (["events", "nothing.csv", "--label", "a"], "there is no file nothing.csv"),
        (["events", "a.csv", "--label", "a", "--mode", "replace"], "--mode replace is not known"),
        (["events", "a.csv", "--label", "a", "--format", "xml"], "--format xml is not known"),
        (["events", "a.csv", "--label", ""], "a label has 1 to 200 characters"),
        (["nowhere.events", "a.csv", "--label", "a"], "there is no table"),
    ):
        result = run("load", *arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr, arguments
