"""A real object store, shared by the tests, and a proxy before it that fails in a test's ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.other_stores import NoEmulator, OtherStore, azurite, google
from tests.support.remote_lake import RemoteLake
from tests.support.s3_faults import FaultyStorage, faulty_storage
from tests.support.s3_storage import BUCKET, NoObjectStore, ObjectStore, executable, object_store


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
    yield RemoteLake(database, f"s3://{BUCKET}", store.settings(faulty.endpoint), faulty, tasks)
    faulty.disarm()


@pytest.fixture(scope="session", params=["gs", "abfss"])
def other_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherStore]:
    """An emulator of Google's or of Azure's store."""
    with ExitStack() as stack:
        try:
            emulator = {"gs": google, "abfss": azurite}[request.param]
            store = stack.enter_context(emulator(tmp_path_factory.mktemp("store")))
        except NoEmulator as error:
            pytest.skip(str(error))
        yield store


@pytest.fixture
def other(database: Database, other_store: OtherStore, tasks: ThreadTaskRunner) -> Iterator[RemoteLake]:
    """As `remote`, in that store."""
    with faulty_storage(other_store.port, other_store.translation) as proxy:
        yield RemoteLake(database, other_store.root, other_store.settings(proxy.port), proxy, tasks)
        proxy.disarm()
