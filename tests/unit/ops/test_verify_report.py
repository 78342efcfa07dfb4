"""The report of `verify` is what docs/cli-json.schema.json describes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirror_pump.cli.main import app
from mirror_pump.model import Lsn
from mirror_pump.ops.setup import stored_settings as profile
from mirror_pump.ops.verify import verification as verifying
from mirror_pump.ops.verify.comparison import Comparison
from mirror_pump.ops.verify.verification import TableReport, VerifyReport
from tests.support.json_schema import mismatches

DIFFERENCE = {"key": {"id": "1"}, "kind": "missing", "columns": {}}
REPORT = VerifyReport(
    Lsn(1),
    (
        TableReport("public.same", Comparison(2, 2, 0, ()), frontier=Lsn(1)),
        TableReport("public.other", Comparison(2, 1, 1, (DIFFERENCE,)), frontier=Lsn(1)),
        TableReport("public.again", Comparison(1, 1, 0, ()), frontier=Lsn(0)),
        TableReport("public.copied", None, "the table is copying"),
    ),
)


def test_tables_that_were_not_compared_have_a_problem_and_no_differences() -> None:
    same, other, _, copied = REPORT.to_json()["tables"]
    assert [table["equal"] for table in (same, other, copied)] == [True, False, False]
    assert [table["problem"] for table in (same, other, copied)] == [None, None, "the table is copying"]
    assert [table["differences"] for table in (same, other, copied)] == [[], [DIFFERENCE], []]
    assert mismatches(REPORT.to_json(), "verify") == []


def test_people_read_why_a_table_was_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile, "complete", lambda settings: settings)
    monkeypatch.setattr(verifying, "verify", lambda *_, **__: REPORT)
    done = CliRunner().invoke(app, ["verify", "--dsn", "x"])
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "public.same: equal (heap 2 rows, lake 2 rows)",
        "public.other: DIFFERENT (heap 2 rows, lake 1 rows)",
        '  {"key":{"id":"1"},"kind":"missing","columns":{}}',
        "public.again: equal (heap 1 rows, lake 1 rows, at frontier 0/0)",
        "public.copied: NOT COMPARED (the table is copying)",
        "compared at frontier 0/1",
    ]
