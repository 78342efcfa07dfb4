"""What the catalog answers, held against pyiceberg's models of the protocol; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from pyiceberg.catalog.rest import (
    ConfigResponse,
    ListNamespaceResponse,
    ListTablesResponse,
    NamespaceResponse,
    RestCatalog,
    TableResponse,
)
from pyiceberg.catalog.rest.response import ErrorResponse
from pyiceberg.exceptions import OAuthError

from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.rest_catalog import ServedMirror, served

_ODD = 'we/ird "n%61me"'
_TABLES = "/v1/mirror/namespaces/public/tables"


@pytest.fixture(scope="module")
def catalog(shared_database: Database, shared_warehouse: str, shared_tasks: ThreadTaskRunner) -> Iterator[ServedMirror]:
    database = shared_database
    names = ["public.a", "public.b", "public.c", "other.a"]
    database.execute(
        "CREATE SCHEMA other", 'CREATE SCHEMA "o/d"', f'CREATE TABLE "o/d".{_quoted(_ODD)} (id int PRIMARY KEY)'
    )
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (1, 'one')")
    mirror = Mirror.create(database, shared_warehouse, shared_tasks)
    mirror.register(*names, f'"o/d".{_quoted(_ODD)}')
    mirror.catch_up()
    database.execute("UPDATE a SET v = 'two'")
    mirror.catch_up()
    database.execute("CREATE TABLE waiting (id int PRIMARY KEY)")
    mirror.register("waiting")
    with served(mirror.settings) as running:
        yield running


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def test_a_name_with_a_nul_is_a_bad_request(catalog: ServedMirror) -> None:
    for path in (
        f"{_TABLES}/a%00",
        "/v1/mirror/namespaces/pub%00lic",
        "/v1/mirror/namespaces?parent=%00",
        "/v1/config?warehouse=mirror%00",
        "/v1/mi%00rror/namespaces",
    ):
        assert catalog.ask(path).error[:2] == (400, "BadRequestException"), path
    for sent in ('{"namespace": ["a\\u0000"]}', '{"a\\u0000": 1}'):
        assert catalog.ask("/v1/mirror/namespaces", "POST", sent).error[:2] in (
            (400, "BadRequestException"),
            (403, "ForbiddenException"),
        )
    # A backslash, and then a text of its own.
    assert "NUL" not in catalog.ask(f"{_TABLES}/a/metrics", "POST", '{"a": "\\\\u0000"}').body.decode()


def test_the_mirror_is_a_catalog(catalog: ServedMirror) -> None:
    """Each kind of answer, by paths that any client may ask for."""
    config = ConfigResponse.model_validate_json(catalog.ask("/v1/config?warehouse=mirror").body)
    assert config.overrides == {"prefix": "mirror"}
    assert catalog.ask("/v1/config").document == catalog.ask("/v1/config?warehouse=mirror").document

    namespaces = ListNamespaceResponse.model_validate_json(catalog.ask("/v1/mirror/namespaces?pageToken=").body)
    assert [name for (name,) in namespaces.namespaces] == ["o/d", "other", "public"]
    assert catalog.ask("/v1/mirror/namespaces?parent=public").document == {"namespaces": []}
    assert catalog.ask("/v1/mirror/namespaces?parent=none").error[:2] == (404, "NoSuchNamespaceException")
    assert NamespaceResponse.model_validate_json(catalog.ask("/v1/mirror/namespaces/public").body).namespace == (
        "public",
    )
    assert catalog.ask("/v1/mirror/namespaces/public", "HEAD").status == 204
    # Engines look whether a table is a namespace.
    for missing in ("nowhere", "public%1Fa"):
        assert catalog.ask(f"/v1/mirror/namespaces/{missing}").error[:2] == (404, "NoSuchNamespaceException")
        assert catalog.ask(f"/v1/mirror/namespaces/{missing}", "HEAD").status == 404
        assert catalog.ask(f"/v1/mirror/namespaces/{missing}/tables").error[:2] == (404, "NoSuchNamespaceException")

    tables = ListTablesResponse.model_validate_json(catalog.ask(_TABLES).body)
    assert [(table.namespace, table.name) for table in tables.identifiers] == [(("public",), name) for name in "abc"]
    assert catalog.ask(f"{_TABLES}/a", "HEAD").status == 204
    assert catalog.ask(f"{_TABLES}/d", "HEAD").status == 404
    assert catalog.ask(f"{_TABLES}/d").error[:2] == (404, "NoSuchTableException")
    code, _, message = catalog.ask(f"{_TABLES}/waiting").error
    assert code == 400
    assert "public.waiting is still being copied" in message
    odd = f"/v1/mirror/namespaces/{quote('o/d', safe='')}/tables"
    assert catalog.ask(odd).document["identifiers"] == [{"namespace": ["o/d"], "name": _ODD}]
    assert catalog.ask(f"{odd}/{quote(_ODD, safe='')}").status == 200

    assert catalog.ask("/v1/mirror/namespaces/public/views").document == {"identifiers": []}
    assert catalog.ask("/v1/mirror/namespaces/public/views/a").error[:2] == (404, "NoSuchViewException")
    assert catalog.ask("/v1/mirror/namespaces/public/views/a", "HEAD").status == 404
    assert catalog.ask(f"{_TABLES}/a/metrics", "POST", json.dumps({"report-type": "scan-report"})).status == 204


def test_a_table_is_its_metadata_file(catalog: ServedMirror) -> None:
    answer = catalog.ask(f"{_TABLES}/a?snapshots=all")
    loaded = TableResponse.model_validate_json(answer.body)
    stored = read_metadata(str(loaded.metadata_location), StorageOptions())
    assert answer.document["metadata"] == stored.document
    assert loaded.metadata.current_snapshot_id == stored.current_snapshot_id

    tag = answer.headers["etag"]
    for known in (tag, f'"another", W/{tag}', "*"):
        unchanged = catalog.ask(f"{_TABLES}/a", If_None_Match=known)
        assert (unchanged.status, unchanged.body, unchanged.headers["etag"]) == (304, b"", tag)
    assert catalog.ask(f"{_TABLES}/a", If_None_Match='"another"').status == 200

    refs = catalog.ask(f"{_TABLES}/a?snapshots=refs")
    assert [snapshot["snapshot-id"] for snapshot in refs.document["metadata"]["snapshots"]] == [
        stored.current_snapshot_id
    ]
    assert len(answer.document["metadata"]["snapshots"]) > 1
    assert refs.headers["etag"] != tag
    assert TableResponse.model_validate_json(refs.body).metadata.current_snapshot() is not None
    assert catalog.ask(f"{_TABLES}/a?snapshots=some").error[0] == 400


def test_pages(catalog: ServedMirror) -> None:
    """Each name comes once, in order, whatever the size of the page."""
    for path, kind, whole in ((_TABLES, "identifiers", 3), ("/v1/mirror/namespaces", "namespaces", 3)):
        for size in (1, 2, 3, 7):
            found: list[object] = []
            token: str | None = ""
            while token is not None:
                page = catalog.ask(f"{path}?pageSize={size}&pageToken={quote(token, safe='')}").document
                assert len(page[kind]) <= size
                found += page[kind]
                token = page.get("next-page-token")
            assert found == catalog.ask(path).document[kind]
            assert len(found) == whole
    assert catalog.ask(f"{_TABLES}?pageSize=many").error[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/mirror/namespaces"),
        ("DELETE", "/v1/mirror/namespaces/public"),
        ("POST", "/v1/mirror/namespaces/public/properties"),
        ("POST", _TABLES),
        ("POST", f"{_TABLES}/a"),
        ("DELETE", f"{_TABLES}/a?purgeRequested=true"),
        ("POST", "/v1/mirror/namespaces/public/register"),
        ("POST", "/v1/mirror/tables/rename"),
        ("POST", "/v1/mirror/transactions/commit"),
        ("POST", "/v1/mirror/namespaces/public/views"),
        ("PUT", "/v1/mirror/anything"),
    ],
)
def test_writes_are_refused_with_the_reason(readonly: ServedMirror, method: str, path: str) -> None:
    answer = readonly.ask(path, method, json.dumps({"name": "x" * 100_000}))
    assert ErrorResponse.model_validate_json(answer.body).error.type == "ForbiddenException"
    code, _, message = answer.error
    assert code == 403
    assert "read-only" in message
    assert "PostgreSQL" in message


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/v1/config?warehouse=lake", 400, "attach `mirror`"),
        ("/v1/config?warehouse=mirror%40yesterday", 400, "no moment"),
        ("/v1/config?warehouse=mirror%400-FFFFFFFF", 400, ""),
        ("/v1/nowhere/namespaces", 400, "configure a `warehouse`"),
        ("/v1/mirror.at=xyz/namespaces", 400, "configure a `warehouse`"),
        ("/v1/mirror/namespaces/public/functions", 404, "has no GET"),
        ("/v2/config", 404, "v1/"),
        ("/", 404, "v1/"),
    ],
)
def test_what_is_not_there(readonly: ServedMirror, path: str, code: int, text: str) -> None:
    found, _, message = readonly.ask(path).error
    assert found == code
    assert text in message


def test_tokens_are_configured_not_given(readonly: ServedMirror) -> None:
    """In OAuth's form, which clients show."""
    answer = readonly.ask("/v1/oauth/tokens", "POST", "grant_type=client_credentials&client_secret=s3cr3t")
    assert answer.status == 400
    assert "`token`" in answer.document["error_description"]
    assert b"s3cr3t" not in answer.body
    with pytest.raises(OAuthError, match="configure the token itself"):
        RestCatalog(
            "lake",
            **{"uri": readonly.uri, "credential": "id:s3cr3t", "oauth2-server-uri": f"{readonly.uri}/v1/oauth/tokens"},
        )
