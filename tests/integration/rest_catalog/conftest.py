"""Fixtures of the catalog's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirror_pump.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.rest_catalog import ServedMirror, served


@pytest.fixture(scope="module")
def readonly(
    postgres: EmbeddedPostgres, catalog_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedMirror]:
    """The catalog of a mirror without tables, for what no table is needed for."""
    database = Database(postgres, f"t_readonly_{tmp_path_factory.mktemp('r').parent.name.replace('-', '_')}")
    postgres.create_database(database.name, template=catalog_template)
    try:
        with served(Settings(dsn=database.dsn)) as running:
            yield running
    finally:
        postgres.drop_database(database.name)
