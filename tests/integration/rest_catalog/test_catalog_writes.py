"""Writers of lake catalogs by the protocol: together with others, what they require, and the namespaces they make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, NamespaceNotEmptyError

from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog
from mirror_pump.tables.table.table import Table
from tests.support.catalog_kinds import PROCESSES, ROWS, CatalogPlace, rows
from tests.support.rest_catalog import ServedMirror, serving

ROUNDS = 3


@pytest.mark.parametrize("kind", PROCESSES)
@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(40, marks=pytest.mark.soak)])
def test_no_commit_of_writers_by_rest_and_by_the_library_is_lost(
    places: Mapping[str, CatalogPlace], writable: ServedMirror, kind: str, rounds: int
) -> None:
    """Two clients of the server and one program with a catalog of its own begin each commit at the same moment."""
    own = places[kind].open()
    name = f"together.t{rounds}"
    table = Table.create(own, name, ROWS)
    together = Barrier(3)

    def library() -> None:
        for number in range(rounds):
            together.wait(60)
            table.append(rows(number))

    def client(first: int) -> None:
        catalog = writable.pyiceberg(kind)
        for number in range(first, first + rounds):
            loaded = catalog.load_table(name)
            together.wait(60)
            while True:
                try:
                    loaded.append(rows(number))
                    break
                except CommitFailedException:
                    loaded = catalog.load_table(name)

    with ThreadPoolExecutor(3) as pool:
        # A barrier that breaks ends the others, if one fails.
        program = pool.submit(library)
        clients = [pool.submit(client, first) for first in (1000, 2000)]
        program.result(300)
        for each in clients:
            each.result(300)
    expected = sorted(first + number for first in (0, 1000, 2000) for number in range(rounds))
    again = Table.open(places[kind].open(), name)
    assert sorted(again.scan().to_arrow()["id"].to_pylist()) == expected
    assert len(again.history()) == 1 + len(expected), "each commit is one snapshot, upon the one before"
    own.close()


def _send(server: ServedMirror, warehouse: str, path: str, body: object) -> tuple[int, Any]:
    answer = server.ask(f"/v1/{warehouse}/namespaces/{path}", "POST", json.dumps(body))
    return answer.status, answer.document


def _required(table: Table) -> list[dict[str, Any]]:
    """Each requirement of the protocol about a table that exists, as it is met."""
    metadata = table.refresh().metadata.document
    return [
        {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": metadata["current-snapshot-id"]},
        {"type": "assert-ref-snapshot-id", "ref": "other", "snapshot-id": None},
        {"type": "assert-ref-snapshot-id", "ref": "other"},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata["last-column-id"]},
        {"type": "assert-current-schema-id", "current-schema-id": metadata["current-schema-id"]},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": metadata["last-partition-id"]},
        {"type": "assert-default-spec-id", "default-spec-id": metadata["default-spec-id"]},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": metadata["default-sort-order-id"]},
    ]


def test_each_requirement_that_is_met_lets_the_change_through(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror
) -> None:
    table = Table.create(catalogs["memory"], "needs.t", ROWS)
    table.append(rows(1))
    for number, requirement in enumerate(_required(table)):
        body = {
            "requirements": [requirement],
            "updates": [{"action": "set-properties", "updates": {f"n{number}": "x"}}],
        }
        assert _send(writable, "memory", "needs/tables/t", body)[0] == 200, requirement
    body = {"requirements": _required(table), "updates": [{"action": "remove-properties", "removals": ["n0"]}]}
    assert _send(writable, "memory", "needs/tables/t", body)[0] == 200
    assert {f"n{number}" for number in range(1, 9)} <= table.refresh().metadata.properties.keys()


def test_a_table_without_snapshots_has_no_reference_of_any_name(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror
) -> None:
    writable.ask("/v1/memory/namespaces", "POST", json.dumps({"namespace": ["fresh"]}))
    schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
    assert _send(writable, "memory", "fresh/tables", {"name": "t", "schema": schema})[0] == 200
    assert not list(Table.open(catalogs["memory"], "fresh.t").metadata.snapshots)
    for snapshot, status in ((None, 200), (7, 409)):
        needed = {"type": "assert-ref-snapshot-id", "ref": "other", "snapshot-id": snapshot}
        body = {"requirements": [needed], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
        assert _send(writable, "memory", "fresh/tables/t", body)[0] == status


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"requirements": [{"type": "assert-mood", "mood": "good"}]}, "assert-mood"),
        ({"requirements": [{"mood": "good"}]}, "type"),
        ({"requirements": [{"type": "assert-table-uuid"}]}, "uuid"),
        ({"requirements": [{"type": "assert-table-uuid", "uuid": "no"}]}, "uuid"),
        ({"requirements": ["assert-create"]}, "requirements.0"),
        ({"requirements": {"type": "assert-create"}}, "requirements"),
        ({"updates": [{"action": "paint", "colour": "red"}]}, "paint"),
        ({"updates": [{"colour": "red"}]}, "action"),
        ({"updates": [{"action": "set-properties"}]}, "updates"),
        ({"updates": [{"action": "add-schema", "schema": {"type": "list"}}]}, "schema"),
        ({"updates": [{"action": "set-current-schema", "schema-id": 77}]}, "77"),
        ({"updates": [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7}]}, "7"),
        ({"updates": [{"action": "remove-snapshots", "snapshot-ids": [7]}]}, "7"),
        ({"updates": [{"action": "upgrade-format-version", "format-version": 9}]}, "9"),
    ],
)
def test_what_the_server_does_not_know_is_refused_with_the_reason(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, part: Mapping[str, Any], reason: str
) -> None:
    catalog = catalogs["memory"]
    if "unknown" not in catalog.namespaces():
        Table.create(catalog, "unknown.t", ROWS)
    before = dict(catalog.pointers())
    known = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
    status, answer = _send(writable, "memory", "unknown/tables/t", {**known, **part})
    assert (status, answer["error"]["type"]) == (400, "BadRequestException"), answer
    assert reason in answer["error"]["message"], answer
    assert "\n" not in answer["error"]["message"]
    assert catalog.pointers() == before


@pytest.mark.parametrize("kind", PROCESSES)
def test_namespaces_without_tables_outlive_the_server(places: Mapping[str, CatalogPlace], kind: str) -> None:
    place = places[kind]
    first = place.open()
    with serving(LakeCatalogSource("lake", first, read_write=True)) as server:
        client = server.pyiceberg("lake")
        for namespace in ("kept", "deep.er", "gone"):
            client.create_namespace(namespace)
        client.drop_namespace("gone")
        client.create_namespace("full")
        client.create_table("full.t", ROWS)
    first.close()
    second = place.open()
    with serving(LakeCatalogSource("lake", second, read_write=True)) as server:
        client = server.pyiceberg("lake")
        assert {("kept",), ("deep",), ("full",)} <= set(client.list_namespaces())
        assert ("gone",) not in client.list_namespaces()
        assert client.list_namespaces("deep") == [("deep", "er")]
        assert server.ask("/v1/lake/namespaces", "POST", '{"namespace": ["kept"]}').error[:2] == (
            409,
            "AlreadyExistsException",
        )
        for namespace, content in (("deep", "deep.er"), ("full", "full.t")):
            with pytest.raises(NamespaceNotEmptyError, match=content):
                client.drop_namespace(namespace)
        assert server.ask("/v1/lake/namespaces/none", "DELETE").error[:2] == (404, "NoSuchNamespaceException")
        client.drop_table("full.t")
        # In a path, the directory that another namespace was in is one too.
        for namespace in ("full", "kept", "deep.er", *(["deep"] if kind == "path" else [])):
            client.drop_namespace(namespace)
    second.close()
    third = place.open()
    assert not set(third.namespaces()) & {"kept", "deep", "deep.er", "gone", "full"}
    Table.create(third, "kept.t", pa.schema([("id", pa.int64())]))
    assert "kept" in third.namespaces(), "tables are enough"
    assert third.create_namespace("full")
    third.close()
    assert "full" in place.open().namespaces()
