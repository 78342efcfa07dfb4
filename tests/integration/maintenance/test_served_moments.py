"""The metadata files of moments that the REST catalog serves, and the sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.model import TableName, format_lsn
from mirror_pump.testing.database import Database
from tests.support.local_files import path_of
from tests.support.maintenance import T, age, prepare, write_and_publish
from tests.support.rest_catalog import ServedMirror, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOAD = "/v1/{}/namespaces/public/tables/t"


def load(catalog: ServedMirror, prefix: str) -> Any:
    """The table as of a moment."""
    answer = catalog.ask(_LOAD.format(prefix))
    assert answer.status == 200, answer.body
    return answer.document


def file_of(loaded: Any) -> Path:
    """The metadata file that an engine may open."""
    return path_of(loaded["metadata-location"])


def test_the_sweep_leaves_the_file_of_a_moment_that_is_read_and_takes_it_afterwards(
    database: Database, warehouse: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the moment is attached again while a sweep that has found its old file is at work."""
    maintained = prepare(database, warehouse, spark)
    mirror = maintained.mirror
    maintained.policy(
        T,
        rewrite_enabled=False,
        delete_compaction_enabled=False,
        manifest_rewrite_enabled=False,
        metadata_grace_hours=0.5,
    )
    write_and_publish(mirror, range(2))
    past = format_lsn(mirror.frontier())
    write_and_publish(mirror, range(2, 4))
    with served(mirror.settings) as catalog:
        prefix = catalog.attach(f"mirror@{past}")
        old = file_of(load(catalog, prefix))
        assert old.parent.name == "seam"
        age(maintained.files(T), 0.9)
        assert maintained.maintain(T).errors == []
        assert old.exists(), "its snapshot is pinned"
    database.execute("DELETE FROM modak.read_pins")
    unreferenced = Procedures.unreferenced
    seen: list[str] = []
    with served(mirror.settings) as catalog:
        again: list[Path] = []

        def attach(self: Procedures, table: TableName, locations: Sequence[str]) -> list[str]:
            seen.extend(locations)
            again.append(file_of(load(catalog, catalog.attach(f"mirror@{past}"))))
            return unreferenced(self, table, locations)

        _during_sweep(monkeypatch, attach)
        assert maintained.maintain(T).errors == []
        assert old.as_uri() in seen
        assert not old.exists(), "nobody reads it any more"
        assert again[0].exists()
        assert file_of(load(catalog, prefix)) == again[0]
    maintained.assert_equal(T)


def _during_sweep(
    monkeypatch: pytest.MonkeyPatch, doing: Callable[[Procedures, TableName, Sequence[str]], list[str]]
) -> None:
    monkeypatch.setattr(Procedures, "unreferenced", doing)
