"""Changes of a lake in S3."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from mirror_pump.model import FeedMode, format_lsn
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.rest_catalog import served
from tests.support.s3_server import S3Server, s3_server

pytestmark = pytest.mark.further


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def mirror(database: Database, s3: S3Server, tasks: ThreadTaskRunner) -> Mirror:
    made = Mirror.create(database, "s3://lake/shop", tasks, vend_credentials=True, **s3.storage_settings)
    database.execute("CREATE TABLE public.orders (id int PRIMARY KEY, v text)")
    made.register("public.orders", feed=FeedOptions(FeedMode.KEYS))
    made.catch_up()
    return made


@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_an_interval_that_cuts_a_file(
    mirror: Mirror, s3: S3Server, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = []
    for number in range(6):
        mirror.database.execute(f"INSERT INTO orders VALUES ({number}, 'v')")
        positions.append(mirror.database.lsn())
    mirror.catch_up()
    interval = f"{format_lsn(positions[1])}..{format_lsn(positions[3])}"
    with served(mirror.settings) as catalog, catalog.duckdb(f"mirror@{interval}", delegates=True) as connection:
        assert connection.execute("SELECT id FROM lake.public.orders ORDER BY id").fetchall() == [(2,), (3,)]
    for name, value in s3.storage_settings.items():
        monkeypatch.setenv(f"MIRROR_PUMP_{name.upper()}", str(value))
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    result = run("sql", "SELECT id FROM orders ORDER BY id", "--changes", interval, "--format", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == [{"id": 2}, {"id": 3}]
    since, until = interval.split("..")
    printed = run("changes", "orders", "--since", since, "--until", until, "--json")
    assert printed.exit_code == 0, printed.output
    assert [json.loads(line).get("row") for line in printed.stdout.splitlines()] == [
        {"id": 2, "v": "v"},
        {"id": 3, "v": "v"},
        None,
    ]
