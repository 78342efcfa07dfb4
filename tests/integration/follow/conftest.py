"""A REST catalog of Iceberg's that follows, one for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.iceberg_rest import IcebergRest, iceberg_rest


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRest]:
    with iceberg_rest(tmp_path_factory.mktemp("rest-catalog")) as server:
        yield server


@pytest.fixture
def rest(rest_server: IcebergRest) -> IcebergRest:
    """The server, without tables of other tests."""
    catalog = rest_server.pyiceberg()
    for namespace in catalog.list_namespaces():
        for table in catalog.list_tables(namespace):
            catalog.drop_table(table)
        catalog.drop_namespace(namespace)
    return rest_server
