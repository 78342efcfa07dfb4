"""A server that cannot stream changes, as most servers are set up, and databases in it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.memory import in_memory

SETTINGS = {
    "wal_level": "replica",
    "max_replication_slots": "0",
    "max_wal_senders": "0",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
}


@pytest.fixture(scope="session")
def replica_server() -> Iterator[EmbeddedPostgres]:
    """The server of these tests. One that changes its settings restores them (`then_replica`)."""
    with EmbeddedPostgres(settings=SETTINGS, temporary_in=in_memory()) as server:
        yield server


@pytest.fixture
def database(replica_server: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database of that server."""
    name = f"t_{os.urandom(4).hex()}"
    with keeping_connections(), replica_server.database(name):
        yield Database(replica_server, name)


@pytest.fixture
def then_replica(replica_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """The server, which is as before after the test. To be requested before `database`, whose slots are gone by
    then."""
    yield replica_server
    replica_server.restart(settings=SETTINGS)


@pytest.fixture(autouse=True)
def clean_environment(no_settings: None) -> None:
    """Clears the environment of settings."""
