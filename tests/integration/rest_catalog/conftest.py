"""Fixtures of the catalog's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import LiteralString

import pytest

from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.settings.config import Settings
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.catalog_kinds import KINDS, CatalogPlace
from tests.support.rest_catalog import ServedMirror, served, serving


@pytest.fixture(scope="module")
def shared_database(postgres: EmbeddedPostgres, catalog_template: str) -> Iterator[Database]:
    """A database for a module's tests, whose mirror is verified at the end."""
    database = Database(postgres, f"t_served_{os.urandom(4).hex()}")
    postgres.create_database(database.name, template=catalog_template)
    try:
        yield database
        assert_verified(database)
    finally:
        postgres.drop_database(database.name)


@pytest.fixture(scope="module")
def shared_warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where its lake is."""
    return tmp_path_factory.mktemp("served").as_uri()


@pytest.fixture(scope="module")
def shared_tasks() -> Iterator[ThreadTaskRunner]:
    """The tasks of a module's tests run in threads."""
    runner = ThreadTaskRunner()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def mirror_of(
    shared_database: Database, shared_warehouse: str, shared_tasks: ThreadTaskRunner
) -> Callable[..., Mirror]:
    """Makes the module's mirror: of a table that the given statements create and fill."""

    def make(table: str, *statements: LiteralString) -> Mirror:
        shared_database.execute(*statements)
        mirror = Mirror.create(shared_database, shared_warehouse, shared_tasks)
        mirror.register(table)
        mirror.catch_up()
        return mirror

    return make


@pytest.fixture(scope="module")
def readonly(postgres: EmbeddedPostgres, catalog_template: str) -> Iterator[ServedMirror]:
    """The catalog of a mirror without tables, for what no table is needed for."""
    database = Database(postgres, f"t_readonly_{os.urandom(4).hex()}")
    postgres.create_database(database.name, template=catalog_template)
    try:
        with served(Settings(dsn=database.dsn)) as running:
            yield running
    finally:
        postgres.drop_database(database.name)


@pytest.fixture(scope="module")
def places(
    postgres: EmbeddedPostgres, catalog_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, CatalogPlace]]:
    """Where a catalog of each kind is, which a module's tests share."""
    root = tmp_path_factory.mktemp("lakes")
    database = Database(postgres, f"t_lakes_{os.urandom(4).hex()}")
    postgres.create_database(database.name, template=catalog_template)
    for kind in KINDS:
        (root / kind).mkdir()
    try:
        yield {kind: CatalogPlace(kind, (root / kind).as_uri(), database.dsn) for kind in KINDS}
    finally:
        postgres.drop_database(database.name)


@pytest.fixture(scope="module")
def catalogs(places: Mapping[str, CatalogPlace]) -> Iterator[Mapping[str, StoredCatalog]]:
    """A catalog of each kind."""
    made = {kind: place.open() for kind, place in places.items()}
    yield made
    for catalog in made.values():
        catalog.close()


@pytest.fixture(scope="module")
def writable(catalogs: Mapping[str, StoredCatalog]) -> Iterator[ServedMirror]:
    """All kinds, each as the warehouse of its name."""
    with serving(*(LakeCatalogSource(kind, catalog, read_write=True) for kind, catalog in catalogs.items())) as server:
        yield server
