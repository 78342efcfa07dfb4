"""Fixtures of the acceptance tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.catalog_kinds import CatalogPlace
from tests.support.table_modes import TableModes


@contextmanager
def _table_modes(postgres: EmbeddedPostgres, root: Path) -> Iterator[TableModes]:
    """A mirror with a table of every mode, for several tests. At its end everything has to be right."""
    database = Database(postgres, f"t_modes_{os.urandom(3).hex()}")
    runner = ThreadTaskRunner()
    postgres.create_database(database.name)
    try:
        with duckdb_connection() as duckdb:
            with keeping_connections():
                made = TableModes.create(database, root.as_uri(), runner, duckdb)
            yield made
            with keeping_connections():
                with made.pumping(fold_age=0.05):
                    made.await_settled()
                    made.await_folded()
                made.assert_all_exact()
                made.mirror.assert_sound()
        assert_verified(database)
    finally:
        runner.close()
        postgres.drop_database(database.name)


@dataclass
class SharedModes:
    """The mirror that tests of several modules share, while there are any: to make it takes as long as many of them.
    It ends with the last of them, not with the session: its slot would keep all WAL until then."""

    postgres: EmbeddedPostgres
    directories: pytest.TempPathFactory
    _open: ExitStack | None = None
    _made: TableModes | None = None

    def get(self) -> TableModes:
        if self._made is None:
            self._open = ExitStack()
            self._made = self._open.enter_context(_table_modes(self.postgres, self.directories.mktemp("modes")))
        return self._made

    def close(self) -> None:
        """Raises AssertionError if something is wrong at the end."""
        opened, self._open, self._made = self._open, None, None
        if opened is not None:
            opened.close()


_SHARED = pytest.StashKey[SharedModes]()


@pytest.fixture(scope="module")
def catalog_dsn(postgres: EmbeddedPostgres, catalog_template: str) -> Iterator[str]:
    """A database with the catalog, for the tests of a module that use catalogs of different names in it."""
    name = f"t_catalogs_{os.urandom(3).hex()}"
    yield postgres.create_database(name, template=catalog_template)
    postgres.drop_database(name)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CatalogPlace:
    """An empty catalog of the kind that the test is parametrised with."""
    dsn = request.getfixturevalue("catalog_dsn") if request.param == "postgres" else ""
    return CatalogPlace(request.param, (tmp_path / "lake").as_uri(), dsn, catalog=os.urandom(6).hex())


@pytest.fixture(scope="session")
def shared_modes(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SharedModes]:
    shared = request.config.stash[_SHARED] = SharedModes(postgres, tmp_path_factory)
    yield shared
    shared.close()


@pytest.fixture
def modes(shared_modes: SharedModes) -> Iterator[TableModes]:
    """A mirror with a table of every mode. Tests leave table and model equal, and no pump running."""
    made = shared_modes.get()
    with keeping_connections():
        yield made


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends what tests share before the first one that does not need it."""
    shared = item.config.stash.get(_SHARED, None)
    if shared is not None and (nextitem is None or "modes" not in getattr(nextitem, "fixturenames", ())):
        shared.close()
