"""Two clients that number what they add to a table alike, since neither knows of the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.table.table import Table
from tests.support.rest_catalog import CatalogAnswer, ServedMirror, serving

_PATH = "/v1/own/namespaces/s/tables/t"
_COLUMNS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "v", "required": False, "type": "string"},
]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ServedMirror]:
    """A server with a table of two columns and one row."""
    catalog = MemoryCatalog(tmp_path.as_uri(), StorageOptions(fsync=False))
    Table.create(catalog, "s.t", pa.schema([("id", pa.int64()), ("v", pa.string())])).append(
        pa.table({"id": [1], "v": ["x"]})
    )
    with serving(LakeCatalogSource("own", catalog, read_write=True)) as server:
        yield server


def commit(server: ServedMirror, *updates: dict[str, Any]) -> CatalogAnswer:
    return server.ask(_PATH, "POST", json.dumps({"requirements": [], "updates": updates}))


def metadata(server: ServedMirror) -> dict[str, Any]:
    found: dict[str, Any] = server.ask(_PATH).document["metadata"]
    return found


def schema(*columns: int, number: int = 1) -> dict[str, Any]:
    """A schema of some of the columns, in this order."""
    fields = [_COLUMNS[column] for column in columns]
    return {"action": "add-schema", "schema": {"type": "struct", "schema-id": number, "fields": fields}}


def spec(transform: str, number: int = 1) -> dict[str, Any]:
    field = {"source-id": 1, "field-id": 1000, "name": "part", "transform": transform}
    return {"action": "add-spec", "spec": {"spec-id": number, "fields": [field]}}


def order(direction: str, number: int = 1) -> dict[str, Any]:
    field = {"source-id": 1, "transform": "identity", "direction": direction, "null-order": "nulls-last"}
    return {"action": "add-sort-order", "sort-order": {"order-id": number, "fields": [field]}}


_CURRENT = {"action": "set-current-schema", "schema-id": -1}


def test_a_schema_gets_a_number_of_its_own_by_which_its_snapshot_names_it(table: ServedMirror) -> None:
    assert commit(table, schema(1, 0), _CURRENT).status == 200
    (last,) = metadata(table)["snapshots"][-1:]
    snapshot = {
        **last,
        "snapshot-id": last["snapshot-id"] + 1,
        "parent-snapshot-id": last["snapshot-id"],
        "sequence-number": last["sequence-number"] + 1,
        "timestamp-ms": metadata(table)["last-updated-ms"] + 1,
        "schema-id": 1,
    }
    named = {"action": "set-current-schema", "schema-id": 1}
    assert commit(table, schema(0), named, {"action": "add-snapshot", "snapshot": snapshot}).status == 200
    found = metadata(table)
    assert {one["schema-id"]: [field["id"] for field in one["fields"]] for one in found["schemas"]} == {
        0: [1, 2],
        1: [2, 1],
        2: [1],
    }
    assert len(found["schemas"]) == 3
    assert found["current-schema-id"] == 2
    assert [one["schema-id"] for one in found["snapshots"] if one["snapshot-id"] == snapshot["snapshot-id"]] == [2]


def test_a_schema_that_is_there_keeps_its_number(table: ServedMirror) -> None:
    assert commit(table, schema(1, 0), _CURRENT).status == 200
    for number in (1, 2, 7):
        assert commit(table, schema(0, 1, number=number), _CURRENT).status == 200
        assert metadata(table)["current-schema-id"] == 0
        assert commit(table, schema(1, 0, number=number), _CURRENT).status == 200
        assert metadata(table)["current-schema-id"] == 1
    assert [one["schema-id"] for one in metadata(table)["schemas"]] == [0, 1]


@pytest.mark.parametrize(
    ("first", "other", "chosen", "listed", "number"),
    [
        (spec("bucket[4]"), spec("bucket[8]"), ("set-default-spec", "spec-id"), "partition-specs", "default-spec-id"),
        (
            *(order("asc"), order("desc")),
            *(("set-default-sort-order", "sort-order-id"), "sort-orders", "default-sort-order-id"),
        ),
    ],
    ids=["spec", "order"],
)
def test_a_spec_or_an_order_is_not_taken_for_another_one(
    table: ServedMirror, first: dict[str, Any], other: dict[str, Any], chosen: tuple[str, str], listed: str, number: str
) -> None:
    """Files name theirs by number. The client gets a 409, upon which it begins anew."""
    last = {"action": chosen[0], chosen[1]: -1}
    assert commit(table, first, last).status == 200
    before = metadata(table)
    assert commit(table, other, last).error[:2] == (409, "CommitFailedException")
    assert metadata(table) == before
    assert commit(table, first, last).status == 200
    found = metadata(table)
    assert (len(found[listed]), found[number]) == (2, 1)
