"""The catalog, held against its own OpenAPI document, and that against Iceberg's.

The tests marked `openapi` need Iceberg's, and are run by `make openapi DOCUMENT=...`. Each answer that any test gets
by `ServedMirror.ask` is held against Iceberg's document then, and otherwise against the server's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from pyiceberg.table.update import TableRequirement, TableUpdate

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.catalogs.path_catalog import PathCatalog
from mirror_pump.tables.table.table import Table
from tests.support.protocol_check import endpoint_of, faults_of_answer, iceberg_facts, own_facts
from tests.support.protocol_facts import facts_of
from tests.support.rest_catalog import NOT_SERVED, ServedMirror, serving

_NOT_IN_THE_DOCUMENT = {("HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}", "403")}
"""All other endpoints have this status there."""
_TABLE = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("at", pa.struct([("x", pa.float64())]))])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedMirror]:
    """The warehouses `own`, that can be written to, `fixed`, that cannot, and `plain`, without transactions."""
    root = tmp_path_factory.mktemp("protocol")
    (root / "plain").mkdir()
    storage = StorageOptions(fsync=False)
    catalog = MemoryCatalog((root / "own").as_uri(), storage)
    for name in ("s.t", "s.u", "s.deep.v"):
        table = Table.create(catalog, name, _TABLE)
        table.append(pa.table({"id": [1, 2], "tags": [["a"], None], "at": [{"x": 0.5}, None]}, _TABLE))
    with serving(
        LakeCatalogSource("own", catalog, read_write=True),
        LakeCatalogSource("fixed", catalog),
        LakeCatalogSource("plain", PathCatalog((root / "plain").as_uri(), storage), read_write=True),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def ours(server: ServedMirror) -> Mapping[str, Any]:
    """The facts of the server's own document."""
    return facts_of(server.ask("/openapi.json").document)


def test_answers_are_held_against_the_document_that_is_served(ours: Mapping[str, Any]) -> None:
    assert own_facts() == ours


@pytest.mark.openapi
def test_each_endpoint_is_in_the_document_with_all_that_it_reads_and_answers(ours: Mapping[str, Any]) -> None:
    theirs = iceberg_facts()["endpoints"]
    assert set(ours["endpoints"]) <= set(theirs)
    for name, endpoint in ours["endpoints"].items():
        known = theirs[name]
        for kind in ("query", "header"):
            assert set(endpoint[kind]) <= set(known[kind]), name
            # What a client must send is known.
            assert {one for one in known[kind] if one.endswith("!")} <= set(endpoint[kind]), name
        assert set(endpoint["answers"]) <= set(known["answers"]), name
        assert {error for error in endpoint["errors"] if (name, error) not in _NOT_IN_THE_DOCUMENT} <= set(
            known["errors"]
        ), name


@pytest.mark.openapi
def test_what_a_client_has_to_send_is_what_the_document_says(ours: Mapping[str, Any]) -> None:
    """All properties that are read are in the document, and none is required that is not required there."""
    theirs = iceberg_facts()["endpoints"]
    read = {name: set(endpoint["takes"]) for name, endpoint in ours["endpoints"].items() if "takes" in endpoint}
    assert len(read) == 4
    for name, properties in read.items():
        known = set(theirs[name]["takes"])
        assert {found.rstrip("!") for found in properties} <= {found.rstrip("!") for found in known}, name
        assert {found for found in properties if found.endswith("!")} <= known, name


@pytest.mark.openapi
def test_the_models_of_answers_are_those_of_the_document(ours: Mapping[str, Any]) -> None:
    """Each property is known there, and what is always there here is all that has to be."""
    checked = 0
    for name, endpoint in ours["endpoints"].items():
        for status, model in endpoint["answers"].items():
            if model is not None:
                found, theirs = ours["schemas"][model], iceberg_facts()
                known = theirs["schemas"][theirs["endpoints"][name]["answers"][status]]
                assert {key.rstrip("!") for key in found} <= {key.rstrip("!") for key in known}, name
                assert {key for key in known if key.endswith("!")} <= set(found), name
                checked += 1
    assert checked >= 8


@pytest.mark.parametrize("warehouse", ["own", "fixed", "plain"])
def test_clients_learn_what_is_not_served(server: ServedMirror, ours: Mapping[str, Any], warehouse: str) -> None:
    listed = set(server.ask(f"/v1/config?warehouse={warehouse}").document["endpoints"])
    writes = {name for name in ours["endpoints"] if not name.startswith(("GET", "HEAD")) and "/metrics" not in name}
    transactions = {name for name in writes if "/transactions/" in name}
    rows = {name for name in writes if name.endswith(("/rename", "/register", "/properties"))}
    hidden = {"own": set(), "fixed": writes, "plain": transactions | rows}[warehouse]
    assert listed == set(ours["endpoints"]) - hidden


@pytest.mark.openapi
def test_the_rest_of_the_protocol_is_listed_as_not_served(ours: Mapping[str, Any]) -> None:
    assert iceberg_facts()["endpoints"].keys() - ours["endpoints"].keys() == NOT_SERVED


def test_what_is_not_served_is_refused_by_a_status_of_the_document(
    server: ServedMirror, ours: Mapping[str, Any]
) -> None:
    """Also to clients that do not look at the list."""
    assert not NOT_SERVED & set(ours["endpoints"])
    for name in NOT_SERVED:
        method, _, template = name.partition(" ")
        path = template.replace("{prefix}", "own").replace("{namespace}", "s").replace("{table}", "t")
        answer = server.ask(re.sub("{.*?}", "x", path), method, "{}")
        if "oauth" in name:
            assert (answer.status, set(answer.document)) == (400, {"error", "error_description"})
        else:
            assert answer.error[0] == (404 if method == "GET" else 501), name


_SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
_T = "/v1/own/namespaces/s/tables/t"
_NEW = "/v1/own/namespaces/s/tables"
_GONE = [{"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}]
_MISSING = {"namespace": ["s"], "name": "missing"}
_MADE = {"namespace": ["s"], "name": "made"}
_FILE = "the metadata file of the table that was made last"
_SET = [{"action": "set-properties", "updates": {"a": "b"}}]


def _change(
    requirements: Sequence[object] = (), updates: Sequence[object] = _SET, **named: object
) -> dict[str, object]:
    return {"requirements": requirements, "updates": updates, **named}


def _both(requirements: Sequence[object] = ()) -> dict[str, object]:
    return {
        "table-changes": [
            _change(identifier={"namespace": ["s"], "name": "t"}),
            _change(requirements, identifier={"namespace": ["s"], "name": "u"}),
        ]
    }


_ASKED: tuple[tuple[str, str, object, int], ...] = (
    ("GET", "/v1/config", None, 200),
    ("GET", "/v1/config?warehouse=nowhere", None, 400),
    ("GET", "/v1/own/namespaces", None, 200),
    ("GET", "/v1/own/namespaces?pageSize=1&pageToken=", None, 200),
    ("GET", "/v1/own/namespaces?parent=none", None, 404),
    ("GET", "/v1/none/namespaces", None, 400),
    ("GET", "/v1/own/namespaces/s%1Fdeep", None, 200),
    ("GET", "/v1/own/namespaces/none", None, 404),
    ("HEAD", "/v1/own/namespaces/s", None, 204),
    ("HEAD", "/v1/own/namespaces/none", None, 404),
    ("GET", _NEW, None, 200),
    ("GET", f"{_NEW}?pageSize=1", None, 200),
    ("GET", f"{_NEW}?pageSize=x", None, 400),
    ("GET", "/v1/own/namespaces/none/tables", None, 404),
    ("GET", _T, None, 200),
    ("GET", f"{_T}?snapshots=all", None, 200),
    ("GET", f"{_T}?snapshots=refs", None, 200),
    ("GET", f"{_T}?snapshots=x", None, 400),
    ("GET", "/v1/own/namespaces/s/tables/none", None, 404),
    ("HEAD", _T, None, 204),
    ("HEAD", "/v1/own/namespaces/s/tables/none", None, 404),
    ("POST", f"{_T}/metrics", {"report-type": "scan-report"}, 204),
    ("GET", "/v1/own/namespaces/s/views", None, 200),
    ("GET", "/v1/own/namespaces/none/views", None, 404),
    ("GET", "/v1/own/namespaces/s/views/v", None, 404),
    ("HEAD", "/v1/own/namespaces/s/views/v", None, 404),
    ("POST", "/v1/own/namespaces", {"namespace": ["made"], "properties": {"owner": "x"}}, 200),
    ("POST", "/v1/own/namespaces", {"namespace": ["made"]}, 409),
    ("POST", "/v1/own/namespaces", {"namespace": "made"}, 400),
    ("POST", "/v1/own/namespaces", {"namespace": []}, 400),
    ("POST", "/v1/own/namespaces", {"namespace": ["with.dot"]}, 400),
    ("GET", "/v1/own/namespaces/with.dot", None, 404),
    ("POST", "/v1/own/namespaces", {"namespace": ["above", "below"]}, 200),
    ("GET", "/v1/own/namespaces?parent=above", None, 200),
    ("DELETE", "/v1/own/namespaces/above", None, 409),
    ("DELETE", "/v1/own/namespaces/above%1Fbelow", None, 204),
    ("POST", "/v1/fixed/namespaces", {"namespace": ["made"]}, 403),
    ("DELETE", "/v1/own/namespaces/s", None, 409),
    ("DELETE", "/v1/own/namespaces/made", None, 204),
    ("DELETE", "/v1/own/namespaces/made", None, 404),
    ("DELETE", "/v1/fixed/namespaces/s", None, 403),
    ("POST", _NEW, {"name": "made", "schema": _SCHEMA}, 200),
    ("POST", _NEW, {"name": "made", "schema": _SCHEMA}, 409),
    ("POST", _NEW, {"name": "staged", "schema": _SCHEMA, "stage-create": True}, 200),
    ("POST", _NEW, {"name": "bad"}, 400),
    ("POST", _NEW, {"name": "with.dot", "schema": _SCHEMA}, 400),
    ("POST", _NEW, {"name": "elsewhere", "schema": _SCHEMA, "location": "file:///elsewhere"}, 400),
    ("POST", "/v1/own/namespaces/none/tables", {"name": "t", "schema": _SCHEMA}, 404),
    ("POST", "/v1/fixed/namespaces/s/tables", {"name": "x", "schema": _SCHEMA}, 403),
    ("POST", _T, _change(), 200),
    ("POST", _T, _change(_GONE), 409),
    ("POST", _T, _change(updates=[{"action": "none"}]), 400),
    ("POST", "/v1/own/namespaces/s/tables/none", _change(), 404),
    ("POST", "/v1/fixed/namespaces/s/tables/t", _change(), 403),
    ("POST", "/v1/own/transactions/commit", _both(), 204),
    ("POST", "/v1/own/transactions/commit", _both(_GONE), 409),
    ("POST", "/v1/own/transactions/commit", {"table-changes": [_change()]}, 400),
    ("POST", "/v1/own/transactions/commit", {"table-changes": [_change(identifier=_MISSING)]}, 404),
    ("POST", "/v1/fixed/transactions/commit", _both(), 403),
    ("POST", "/v1/own/namespaces/s/properties", {"updates": {"a": "b"}, "removals": ["c"]}, 200),
    ("POST", "/v1/own/namespaces/s/properties", {"updates": {"a": "b"}, "removals": ["a"]}, 422),
    ("POST", "/v1/own/namespaces/s/properties", {"updates": ["a"]}, 400),
    ("POST", "/v1/own/namespaces/none/properties", {}, 404),
    ("POST", "/v1/own/tables/rename", {"source": _MADE, "destination": _MISSING}, 204),
    ("POST", "/v1/own/tables/rename", {"source": _MADE, "destination": _MISSING}, 404),
    ("POST", "/v1/own/tables/rename", {"source": _MISSING, "destination": _MISSING}, 409),
    ("POST", "/v1/own/tables/rename", {"source": _MISSING, "destination": _MADE}, 204),
    ("DELETE", f"{_NEW}/made", None, 204),
    ("DELETE", f"{_NEW}/made", None, 404),
    ("POST", "/v1/own/namespaces/s/register", {"name": "made", "metadata-location": _FILE}, 200),
    ("POST", "/v1/own/namespaces/s/register", {"name": "made", "metadata-location": _FILE}, 409),
    ("POST", "/v1/own/namespaces/none/register", {"name": "made", "metadata-location": _FILE}, 404),
    ("POST", "/v1/own/namespaces/s/register", {"name": "more", "metadata-location": _FILE}, 400),
    ("POST", "/v1/own/namespaces/s/register", {"name": "more"}, 400),
    ("DELETE", "/v1/fixed/namespaces/s/tables/t", None, 403),
)
"""Requests, in this order, and the status of each answer. `ServedMirror.ask` holds these against the document."""


def test_answers_of_each_kind_are_as_the_document_has_them(server: ServedMirror, ours: Mapping[str, Any]) -> None:
    given: dict[str, set[str]] = {}
    file = ""
    for method, path, body, status in _ASKED:
        answer = server.ask(path, method, None if body is None else json.dumps(body).replace(_FILE, file))
        assert answer.status == status, (method, path, answer.body)
        if (path, status) == (_NEW, 200) and "metadata-location" in answer.document:
            file = answer.document["metadata-location"]
        given.setdefault(str(endpoint_of(method, path)), set()).add(str(status))
    for name, endpoint in ours["endpoints"].items():
        # 401, 503 and 5XX are the same for all: see below.
        of_its_own = {"404", "409"} & set(endpoint["errors"]) - ({"404"} if "/metrics" in name else set())
        assert (set(endpoint["answers"]) - {"304"}) | of_its_own <= given[name], name


def test_what_any_request_may_get_is_as_the_document_has_it(server: ServedMirror, tmp_path: Path) -> None:
    tag = server.ask(_T).headers["etag"]
    assert server.ask(_T, If_None_Match=tag).status == 304
    assert server.ask("/v1/config", Origin="https://example.com").status == 403
    with serving() as starting:
        assert starting.ask("/v1/config").error[:2] == (503, "ServiceUnavailableException")
    catalog = MemoryCatalog(tmp_path.as_uri())
    location = Table.create(catalog, "s.t", _TABLE).metadata_location
    with serving(LakeCatalogSource("own", catalog), token="correct-horse-battery-staple") as guarded:
        stranger = ServedMirror(guarded.port)
        assert stranger.ask("/v1/config").error[:2] == (401, "NotAuthorizedException")
        assert guarded.ask(_T).status == 200
        Path(location.removeprefix("file://")).unlink()
        assert guarded.ask(f"{_T}?snapshots=refs").error[:2] == (500, "ServiceFailureException")


def test_a_commit_that_happened_is_never_answered_by_not_modified(server: ServedMirror) -> None:
    answer = server.ask(_T, "POST", json.dumps(_change()), If_None_Match="*")
    assert (answer.status, set(answer.document)) == (200, {"metadata-location", "metadata"})


def test_kinds_of_changes_that_are_not_known_are_refused(server: ServedMirror) -> None:
    """A requirement that is not known must not pass as met. Views are not served."""
    _assert_refused(server, ["add-view-version", "something"])


@pytest.mark.openapi
def test_all_kinds_of_changes_of_the_document_are_known_or_refused(server: ServedMirror) -> None:
    assert set(iceberg_facts()["requirements"]) <= _known(TableRequirement)
    unknown = set(iceberg_facts()["updates"]) - _known(TableUpdate)
    # Of tables of version 3, and of views.
    assert all(re.search("-encryption-key$|-view-version$", kind) for kind in unknown), unknown
    _assert_refused(server, sorted(unknown))


def _assert_refused(server: ServedMirror, updates: Sequence[str]) -> None:
    before = server.ask(_T).document["metadata-location"]
    for kind in updates:
        assert server.ask(_T, "POST", json.dumps(_change(updates=[*_SET, {"action": kind}]))).error[0] == 400
    assert server.ask(_T, "POST", json.dumps(_change([{"type": "assert-something"}]))).error[0] == 400
    assert server.ask(_T).document["metadata-location"] == before


def _known(union: Any) -> set[str]:
    """The kinds that the library of updates has."""
    return set(TypeAdapter(union).json_schema()["discriminator"]["mapping"])


_METADATA = {"format-version": 2, "table-uuid": "u"}
_LOADED = {"metadata-location": "file:///x", "metadata": _METADATA, "config": {}}
_REFS = {"main": {"type": "twig", "snapshot-id": 1}}


@pytest.mark.parametrize(
    ("method", "path", "status", "answer", "fault"),
    [
        ("GET", "/v1/config", 200, {"overrides": {}, "endpoints": []}, "defaults is missing"),
        ("GET", "/v1/config", 200, {"defaults": {}, "overrides": {"n": 1}}, "overrides.n is not string"),
        ("GET", "/v1/own/namespaces", 200, {"namespaces": ["s"]}, "namespaces[0] is no list"),
        ("GET", "/v1/own/namespaces", 200, {"namespaces": [], "next": "t"}, "next is not in the document"),
        # Iceberg's document has what is in a table's metadata.
        pytest.param(
            *("GET", _T, 200, {**_LOADED, "metadata": {"format-version": 2}}, "table-uuid is missing"),
            marks=pytest.mark.openapi,
        ),
        pytest.param(
            *("GET", _T, 200, {**_LOADED, "metadata": {**_METADATA, "refs": _REFS}}, "refs.main.type is not =tag"),
            marks=pytest.mark.openapi,
        ),
        ("GET", _T, 200, {**_LOADED, "metadata": []}, "metadata is no object"),
        ("POST", _T, 200, _LOADED, "config is not in the document"),
        ("POST", "/v1/own/transactions/commit", 204, {}, "has a body"),
        ("GET", _T, 418, {"error": {"message": "m", "type": "t", "code": 418}}, "no status 418"),
        ("GET", _T, 404, {"error": {"message": "m", "type": "t", "code": "404"}}, "error.code is not integer"),
        ("GET", _T, 404, {"message": "m"}, "error is missing"),
        ("HEAD", _T, 200, {}, "no status 200"),
    ],
)
def test_another_answer_would_be_noticed(method: str, path: str, status: int, answer: object, fault: str) -> None:
    faults = faults_of_answer(method, path, status, "application/json", json.dumps(answer).encode())
    assert fault in "; ".join(faults)
