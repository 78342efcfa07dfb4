"""Iceberg's own tests of REST catalogs, run by its Java client against catalogs that are served for writing. `make kit`
runs them: they need some jars, which it fetches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.testing.database import Database
from tests.support.catalog_kinds import CatalogPlace
from tests.support.iceberg_kit import results
from tests.support.rest_catalog import serving

pytestmark = [pytest.mark.kit, pytest.mark.timeout(500)]

_NAMESPACES = frozenset({"a", "newdb", "ns", "ns_1", "ns_2"})
_RENAME = "Server does not support endpoint: POST /v1/{prefix}/tables/rename"
_REGISTER = "Server does not support endpoint: POST /v1/{prefix}/namespaces/{namespace}/register"
_PROPERTIES = "Server does not support endpoint: POST /v1/{prefix}/namespaces/{namespace}/properties"
_LOCATION = "a table's name is its directory here"
_ALWAYS: Mapping[str, str] = {
    # The files of its history are in its directory, by which they are found, removed, and given out.
    "testCompleteCreateOrReplaceTransactionReplace": "so it stays",
    "testCompleteReplaceTransaction": "so it stays",
    # Metadata files never change, so an answer that was made once is given again.
    "testLoadTableWithMissingMetadataFile": "Expecting code to raise a throwable",
    # Its files say by number which order they have.
    "testConcurrentReplaceTransactionSortOrderConflict": "sort order 1 of newdb.newtable was added concurrently",
}
_OF_A_PATH: Mapping[str, str] = {
    # A table is in a directory of its name.
    "testRenameTable": _RENAME,
    "testRenameTableDestinationTableAlreadyExists": _RENAME,
    "testRenameTableMissingSourceTable": _RENAME,
    "renameTableNamespaceMissing": _RENAME,
    "dropAfterRenameDoesntCorruptTable": _RENAME,
    "testRegisterTable": _REGISTER,
    "testRegisterExistingTable": _REGISTER,
    "testSetNamespaceProperties": _PROPERTIES,
    "testUpdateNamespaceProperties": _PROPERTIES,
    "testUpdateAndSetNamespaceProperties": _PROPERTIES,
    "testRemoveNamespaceProperties": _PROPERTIES,
    "testSetNamespacePropertiesNamespaceDoesNotExist": _PROPERTIES,
    "testRemoveNamespacePropertiesNamespaceDoesNotExist": _PROPERTIES,
    # Spark sends an owner with each namespace, so properties are not refused.
    "testCreateNamespaceWithProperties": "should be a subset of returned properties",
    "testLoadTable": _LOCATION,
    "testCompleteCreateTable": _LOCATION,
    "testCompleteCreateTransaction": _LOCATION,
    "testCompleteCreateTransactionV2": _LOCATION,
    "testCompleteCreateTransactionMultipleSchemas": _LOCATION,
    "testCompleteCreateOrReplaceTransactionCreate": _LOCATION,
    "testCreateTableWithDefaultColumnValue": _LOCATION,
}
_EXPECTED: Mapping[str, Mapping[str, str]] = {"sqlite": _ALWAYS, "postgres": _ALWAYS, "log": {**_ALWAYS, **_OF_A_PATH}}
"""The tests that fail on purpose, with a part of what they say then."""


@pytest.fixture
def temporary() -> Iterator[str]:
    """The tests ask for tables in /tmp. URI of it as a warehouse; what they leave of their namespaces is removed."""
    before = {name for name in _NAMESPACES if Path("/tmp", name).exists()}
    yield "file:///tmp"
    for name in _NAMESPACES - before:
        shutil.rmtree(Path("/tmp", name), ignore_errors=True)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "log"])
def test_the_tests_of_iceberg_pass_but_for_what_is_not_served(
    kind: str, tmp_path: Path, temporary: str, database: Database
) -> None:
    root = tmp_path.as_uri() if kind == "log" else temporary
    catalog: StoredCatalog
    if kind == "sqlite":
        catalog = SqliteCatalog(tmp_path / "kit.db", root, StorageOptions(fsync=False))
    else:
        catalog = CatalogPlace(kind, root, database.dsn, catalog="kit").open()
    with closing(catalog), serving(LakeCatalogSource("kit", catalog, read_write=True)) as server:
        found = results(server, "kit", tmp_path)
    failed = {name: why for name, why in found.items() if why not in ("", "skipped")}
    expected = _EXPECTED[kind]
    assert {name: why for name, why in failed.items() if expected.get(name, "\0") not in why} == {}
    assert set(failed) == set(expected), "these pass by now"
    passed = list(found.values()).count("")
    assert passed + len(expected) >= 90, found
