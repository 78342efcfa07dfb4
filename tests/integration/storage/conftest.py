"""A real object store, shared by the tests, and a proxy before it that fails in a test's ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.remote_lake import RemoteLake
from tests.support.s3_faults import FaultyStorage, faulty_storage
from tests.support.s3_storage import NoObjectStore, ObjectStore, executable, object_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """The run's object store."""
    try:
        executable()
    except NoObjectStore as error:
        pytest.skip(str(error))
    with object_store(tmp_path_factory.mktemp("seaweedfs")) as running:
        yield running


@pytest.fixture
def faulty(store: ObjectStore) -> Iterator[FaultyStorage]:
    """The proxy before it."""
    with faulty_storage(store.port) as proxy:
        yield proxy


@pytest.fixture
def remote(
    database: Database, store: ObjectStore, faulty: FaultyStorage, tasks: ThreadTaskRunner
) -> Iterator[RemoteLake]:
    """Makes mirrors of the test's database in the object store."""
    yield RemoteLake(database, store, faulty, tasks)
    faulty.disarm()
