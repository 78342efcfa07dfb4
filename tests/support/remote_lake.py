"""Mirrors whose lake is in a real object store, reached through a proxy that can fail."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.ops.duckdb_connection import open_duckdb, reach_storage
from mirror_pump.ops.verify.compare_duckdb import compare
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.s3_faults import FaultyStorage


@dataclass
class RemoteLake:
    """Makes mirrors of one database."""

    database: Database
    bucket: str
    """Its URI."""
    settings: Mapping[str, str]
    """With which `faulty` lets one in."""
    faulty: FaultyStorage
    tasks: ThreadTaskRunner

    @property
    def warehouse(self) -> str:
        """The root of the test's files."""
        return f"{self.bucket}/{self.database.name}/shop"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with the settings."""
        return {f"MIRROR_PUMP_{name.upper()}": value for name, value in self.settings.items()}

    def mirror(self, **options: Any) -> Mirror:
        """A mirror with its lake at `warehouse`, opened with `settings` unless `options` differ."""
        chosen = {**self.settings, "reconnect_backoff_max": 0.5, **options}
        return Mirror.create(self.database, self.warehouse, self.tasks, **chosen)


def assert_equal(mirror: Mirror, *tables: str) -> None:
    """Fails unless `verify` finds all rows of these tables in the lake, each once. No pump may run: the check's own
    does without Spark."""
    with mirror.pumping(), closing(open_duckdb()) as duckdb:
        reach_storage(duckdb, reachable_warehouses(lake_storage(mirror.settings)))
        report = verify(mirror.settings, engine=ComparisonEngine(mirror.runner, partial(compare, duckdb)))
    assert {table.table: table.problem for table in report.tables} == dict.fromkeys(tables)
    assert report.equal, report.to_json()
    mirror.assert_sound()
