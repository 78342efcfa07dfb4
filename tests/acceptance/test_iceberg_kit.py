"""Iceberg's own tests of REST catalogs, run by its Java client against catalogs that are served for writing. `make kit`
runs them: they need some jars, which it fetches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from tests.support.catalog_kinds import CatalogPlace
from tests.support.iceberg_kit import results
from tests.support.rest_catalog import serving

pytestmark = [pytest.mark.kit, pytest.mark.timeout(500)]

_RENAME = "Server does not support endpoint: POST /v1/{prefix}/tables/rename"
_REGISTER = "Server does not support endpoint: POST /v1/{prefix}/namespaces/{namespace}/register"
_PROPERTIES = "Server does not support endpoint: POST /v1/{prefix}/namespaces/{namespace}/properties"
_LOCATION = "this catalog chooses the directories of its tables"
_EXPECTED: Mapping[str, str] = {
    # A table is in a directory of its name, and a table that is dropped with its files takes that with it.
    "testRenameTable": _RENAME,
    "testRenameTableDestinationTableAlreadyExists": _RENAME,
    "testRenameTableMissingSourceTable": _RENAME,
    "renameTableNamespaceMissing": _RENAME,
    "dropAfterRenameDoesntCorruptTable": _RENAME,
    # No client decides which files this process reads.
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
    # Nor where it writes.
    "testLoadTable": _LOCATION,
    "testCompleteCreateTable": _LOCATION,
    "testCompleteCreateTransaction": _LOCATION,
    "testCompleteCreateTransactionV2": _LOCATION,
    "testCompleteCreateTransactionMultipleSchemas": _LOCATION,
    "testCompleteCreateOrReplaceTransactionCreate": _LOCATION,
    "testCompleteCreateOrReplaceTransactionReplace": _LOCATION,
    "testCompleteReplaceTransaction": _LOCATION,
    "testCreateTableWithDefaultColumnValue": _LOCATION,
    # Metadata files never change, so an answer that was made once is given again.
    "testLoadTableWithMissingMetadataFile": "Expecting code to raise a throwable",
    # Its files say by number which order they have.
    "testConcurrentReplaceTransactionSortOrderConflict": "sort order 1 of newdb.newtable was added concurrently",
}
"""The tests that fail on purpose, with a part of what they say then."""


@pytest.mark.parametrize("kind", ["sqlite", "log"])
def test_the_tests_of_iceberg_pass_but_for_what_is_not_served(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    with (
        closing(CatalogPlace(kind, root.as_uri(), "").open()) as catalog,
        serving(LakeCatalogSource("kit", catalog, read_write=True)) as server,
    ):
        found = results(server, "kit", tmp_path)
    failed = {name: why for name, why in found.items() if why not in ("", "skipped")}
    assert {name: why for name, why in failed.items() if _EXPECTED.get(name, "\0") not in why} == {}
    assert set(failed) == set(_EXPECTED), "these pass by now"
    assert list(found.values()).count("") >= 64, found
