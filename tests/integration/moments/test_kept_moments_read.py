"""Every engine reads a moment that is kept by its name."""

from __future__ import annotations

import csv
import io

import pytest

from mirror_pump.ops.moments.dropping import drop
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.moments import by_duckdb, by_pyiceberg, change, two_tables
from tests.support.rest_catalog import served


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror of two tables with the value 1, kept as `closing`, which has gone on to 2."""
    mirror = two_tables(database, warehouse, tasks)
    with mirror.pumping():
        change(mirror, 1)
        keep(mirror.settings, MomentOptions("closing"))
        change(mirror, 2)
    return mirror


def test_engines_attach_it_by_name(mirror: Mirror) -> None:
    with served(mirror.settings) as catalog:
        for attached in (by_duckdb, by_pyiceberg):
            for view in ("mirror", "mirror.main"):
                moment = attached(catalog, f"{view}@closing")
                assert (moment("a"), moment("b")) == (1, 1)
        prefix = catalog.attach("mirror@closing")
        path = f"/v1/{prefix}/namespaces/public/tables/a"
        answer = catalog.ask(path)
        assert answer.document["config"]["mirror-pump.frontier"] == prefix.partition(".at=")[2].replace("-", "/")
        assert "there is no moment opening" in catalog.ask("/v1/config?warehouse=mirror@opening").error[2]
        # It holds no pins, and needs no lease.
        assert mirror.database.rows("SELECT FROM modak.read_pins") == []
        drop(mirror.settings, "closing")
        with served(mirror.settings) as restarted:
            assert "there is no moment closing" in restarted.ask(path).error[2]
            with mirror.pumping():
                change(mirror, 3)
            keep(mirror.settings, MomentOptions("closing"))
            assert "another one was kept under this name" in restarted.ask(path).error[2]
            assert by_duckdb(restarted, "mirror@closing")("a") == 3


def test_sql_reads_it_by_name(mirror: Mirror, run: RunCommand) -> None:
    options = ("--slot", mirror.settings.slot, "--format", "csv")
    both = "SELECT (SELECT max(v) FROM a) AS a, (SELECT max(v) FROM public.b) AS b"
    assert _rows(run("sql", both, "--at", "closing", *options).stdout) == [["a", "b"], ["1", "1"]]
    mixed = "SELECT (SELECT max(v) FROM a AT (VERSION => 'closing')) AS a, (SELECT max(v) FROM b) AS b"
    assert _rows(run("sql", mixed, *options).stdout) == [["a", "b"], ["1", "2"]]
    refused = run("sql", "FROM a", "--at", "opening", *options)
    assert refused.exit_code == 2
    assert "no moment of that name is kept" in refused.stderr
    mirror.unregister("b")
    assert _rows(run("sql", both, "--at", "closing", *options).stdout) == [["a", "b"], ["1", "1"]]


def _rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))
