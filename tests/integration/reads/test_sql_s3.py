"""A lake in S3 is queried with DuckDB's installed extensions: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.s3_server import S3Server, s3_server

pytestmark = pytest.mark.further

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def mirror(database: Database, s3: S3Server, tasks: ThreadTaskRunner) -> Mirror:
    made = Mirror.create(database, "s3://lake/shop", tasks, **s3.storage_settings)
    database.execute("CREATE TABLE public.orders (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO public.orders SELECT g, 'v' || g FROM generate_series(1, 3) g")
    made.register("public.orders")
    made.catch_up()
    return made


@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_nothing_is_downloaded_to_read_s3(
    mirror: Mirror, s3: S3Server, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_ACCESS_KEY", "reader")
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_SECRET_KEY", "reader's secret")
    query = ("sql", "SELECT count(*), max(v) FROM orders", "--format", "csv")
    result = run(*query)
    assert (result.exit_code, result.stdout) == (0, "count_star(),max(v)\n3,v3\n"), result.output
    # Without a key in the settings, credentials come from where AWS's tools look for them.
    monkeypatch.delenv("MIRROR_PUMP_STORAGE_ACCESS_KEY")
    monkeypatch.delenv("MIRROR_PUMP_STORAGE_SECRET_KEY")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "its secret")
    result = run(*query)
    assert (result.exit_code, result.stdout) == (0, "count_star(),max(v)\n3,v3\n"), result.output
    assert s3.keys == {"pump", "reader", "environment"}
    # DuckDB keeps installed extensions there.
    assert list(home.iterdir()) == []
