"""Fixtures of the acceptance tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.table_modes import TableModes


@pytest.fixture
def modes(shared_modes: TableModes) -> Iterator[TableModes]:
    """The mirror with a table of every mode. Tests leave table and model equal, and no pump running."""
    with keeping_connections():
        yield shared_modes


@pytest.fixture(scope="session")
def shared_modes(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableModes]:
    """One mirror with a table of every mode, which several modules share: to make it takes as long as many of their
    tests."""
    database = Database(postgres, f"t_modes_{os.urandom(3).hex()}")
    runner = ThreadTaskRunner()
    root: Path = tmp_path_factory.mktemp("modes")
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
