"""Clients with tokens of an issuer: what each sees of the catalog, may write and load, and what the log has of it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pyiceberg.exceptions import NoSuchTableError, UnauthorizedError
from structlog.testing import capture_logs

from mirror_pump.http.access import Access
from mirror_pump.http.server import HttpServer, application
from mirror_pump.ops.clients.token_issuer import IssuerAway, TokenCheck, TokenIssuer
from mirror_pump.ops.load.load_endpoint import LoadEndpoint
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.settings.config import Settings
from mirror_pump.testing.mirror import Mirror
from tests.integration.loads.test_load_http import put
from tests.support.catalog_kinds import CatalogPlace
from tests.support.issuer import AUDIENCE, SigningIssuer, issuing
from tests.support.rest_catalog import ServedMirror, served, serving

_TABLES = "/v1/mirror/namespaces/{}/tables"


@pytest.fixture(scope="module")
def mirror(mirror_of: Callable[..., Mirror]) -> Mirror:
    made = mirror_of(
        "t",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'read')",
        "CREATE TABLE payroll (id int PRIMARY KEY, v text)",
        "INSERT INTO payroll VALUES (1, 'secret')",
        "CREATE SCHEMA hr",
        "CREATE TABLE hr.people (id int PRIMARY KEY)",
    )
    made.register("payroll", "hr.people")
    made.catch_up()
    return made


@pytest.fixture(scope="module")
def issuer() -> Iterator[SigningIssuer]:
    with issuing() as running:
        yield running


@pytest.fixture
def access_file(issuer: SigningIssuer, tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    write_rules(path, issuer, ("bi", ["public.t"], ["read"]), ("role:staff", ["public.*"], ["read"]))
    return path


def write_rules(path: Path, issuer: SigningIssuer, *grants: tuple[str, list[str], list[str]]) -> None:
    """Replaces the access file in one step."""
    tables = [f'[issuer]\nurl = "{issuer.url}"\naudience = "{AUDIENCE}"\n']
    tables += [f'[[grant]]\nto = ["{to}"]\ntables = {names}\nrights = {rights}\n' for to, names, rights in grants]
    new = path.with_suffix(".new")
    new.write_text("\n".join(tables))
    new.replace(path)


def as_client(server: ServedMirror, token: str) -> ServedMirror:
    return ServedMirror(server.port, token)


def names(server: ServedMirror, namespace: str) -> list[str]:
    document = server.ask(_TABLES.format(namespace)).document
    return [entry["name"] for entry in document["identifiers"]]


def test_a_client_sees_and_reads_what_it_may_and_no_other_name(
    mirror: Mirror, issuer: SigningIssuer, access_file: Path
) -> None:
    settings = mirror.settings.model_copy(update={"access_file": str(access_file)})
    with served(settings) as server, capture_logs() as logged:
        bi = as_client(server, issuer.token("bi"))
        assert bi.ask("/v1/mirror/namespaces").document["namespaces"] == [["public"]]
        assert names(bi, "public") == ["t"]
        hidden, absent = (bi.ask(f"{_TABLES.format('public')}/{name}") for name in ("payroll", "absent"))
        assert hidden.error[:2] == absent.error[:2] == (404, "NoSuchTableException")
        assert hidden.body.replace(b"payroll", b"absent") == absent.body
        assert bi.ask("/v1/mirror/namespaces/hr").body.replace(b"hr", b"no") == bi.ask("/v1/mirror/namespaces/no").body
        assert bi.ask(f"{_TABLES.format('hr')}/people", "HEAD").status == 404
        assert bi.duckdb("mirror@latest").execute("SELECT v FROM lake.public.t").fetchall() == [("read",)]
        with pytest.raises(duckdb.Error, match="payroll"):
            bi.duckdb("mirror").execute("SELECT * FROM lake.public.payroll")
        with pytest.raises(NoSuchTableError):
            bi.pyiceberg("mirror").load_table("public.payroll")
        staff = as_client(server, issuer.token("anna", roles=["staff"]))
        assert names(staff, "public") == ["payroll", "t"]
        assert staff.pyiceberg("mirror@latest").load_table("public.payroll").scan().to_arrow().num_rows == 1
        stranger = as_client(server, issuer.token("carl"))
        assert stranger.ask("/v1/mirror/namespaces").document["namespaces"] == []
        # To attach a moment would pin all tables.
        assert stranger.ask("/v1/config?warehouse=mirror%40latest").error[0] == 403
    audit = {(line["event"], line["client"], line["name"]) for line in logged if "client" in line}
    assert {("loaded", "bi", "public.t"), ("loaded", "anna", "public.payroll")} <= audit
    assert ("refused", "bi", "") in audit
    assert not {entry for entry in audit if entry[0] == "loaded" and entry[1] == "bi" and entry[2] != "public.t"}


def test_tables_that_a_moment_lacks_are_named_to_who_may_read_them(
    mirror: Mirror, issuer: SigningIssuer, access_file: Path
) -> None:
    mirror.database.execute("CREATE TABLE late (id int PRIMARY KEY)")
    frontier = mirror.frontier()
    mirror.register("late")
    mirror.catch_up()
    point = f"{frontier >> 32:X}-{frontier & 0xFFFFFFFF:X}"
    try:
        with served(mirror.settings.model_copy(update={"access_file": str(access_file)})) as server:
            shown = {}
            for name, roles in (("bi", []), ("anna", ["staff"])):
                client = as_client(server, issuer.token(name, roles=roles))
                config = client.ask(f"/v1/config?warehouse=mirror%40{point}").document
                shown[name] = config["defaults"].get("mirror-pump.unreadable", "")
        assert shown == {"bi": "", "anna": "public.late"}
    finally:
        mirror.unregister("late", drop_lake=True)


def forged(issuer: SigningIssuer, algorithm: str) -> str:
    """A token without a signature, or one whose key is the issuer's public key."""

    def part(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    claims = {"sub": "bi", "iss": issuer.url, "aud": AUDIENCE, "exp": int(time.time()) + 600}
    text = b".".join(part(json.dumps(entry).encode()) for entry in ({"alg": algorithm, "kid": "first"}, claims))
    public = issuer.keys["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = b"" if algorithm == "none" else hmac.digest(public, text, hashlib.sha256)
    return (text + b"." + part(signature)).decode()


def test_tokens_that_are_not_the_issuers_for_us_are_refused(issuer: SigningIssuer, access_file: Path) -> None:
    with issuing() as other, serving(access_file=str(access_file)) as server:
        good = issuer.token("bi")
        tokens = {
            "expired": issuer.token("bi", exp=int(time.time()) - 60),
            "not yet": issuer.token("bi", nbf=int(time.time()) + 600),
            "endless": issuer.token("bi", exp=None),
            "other service": issuer.token("bi", aud="mail"),
            "no audience": issuer.token("bi", aud=None),
            "other issuer": other.token("bi"),
            "says it is the issuer": other.token("bi", iss=issuer.url),
            "no name": issuer.token("bi", sub=None),
            "none": forged(issuer, "none"),
            "public key": forged(issuer, "HS256"),
            "changed": good[:-6] + "AAAAAA",
            "text": "correct-horse-battery-staple",
        }
        statuses = {name: as_client(server, token).ask("/v1/config").status for name, token in tokens.items()}
        assert set(statuses.values()) == {401}, statuses
        assert server.ask("/v1/config").status == 401
        answer = server.ask("/v1/config", Authorization="Basic " + base64.b64encode(f"x:{good}".encode()).decode())
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        with pytest.raises(UnauthorizedError):
            as_client(server, tokens["expired"]).pyiceberg("mirror")
        # No mirror is served: one with a good token comes further.
        assert as_client(server, good).ask("/v1/config").status == 503
        # A token that names an unknown key makes the server ask the issuer, but not each time.
        issuer.requests.clear()
        for _ in range(5):
            as_client(server, other.token("bi", iss=issuer.url)).ask("/v1/config")
        assert len(issuer.requests) <= 1


def test_keys_are_exchanged_and_the_issuer_may_be_away(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    with issuing() as issuer:
        write_rules(path, issuer, ("bi", ["*"], ["read"]))
        check = TokenCheck(TokenIssuer(url=issuer.url, audience=AUDIENCE), asked_again=0.0)
        assert check.client(issuer.token("bi")).name == "bi"
        issuer.add_key("second")
        token = issuer.token("bi", "second")
        assert check.client(token).name == "bi"
        issuer.add_key("third")
    assert check.client(token).name == "bi"
    with pytest.raises(IssuerAway, match="cannot be had"):
        check.client(issuer.token("bi", "third"))
    with serving(access_file=str(path)) as server, capture_logs() as logged:
        code, kind, text = as_client(server, token).ask("/v1/config").error
        assert (code, kind) == (503, "ServiceUnavailableException")
        assert text == "tokens cannot be checked at the moment: try again"
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["the issuer's keys cannot be had"]


def test_others_are_answered_while_the_issuer_is_silent(tmp_path: Path, issuer: SigningIssuer) -> None:
    token = "correct-horse-battery-staple"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = tmp_path / "access.toml"
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        path.write_text(f'[issuer]\nurl = "{url}"\nkeys = "{url}/keys"\naudience = "{AUDIENCE}"\n')
        with serving(access_file=str(path), token=token) as server, ThreadPoolExecutor(20) as pool:
            refused = [pool.submit(as_client(server, issuer.token("bi")).ask, "/v1/config") for _ in range(20)]
            # The issuer has been asked, and does not answer.
            with silent.accept()[0]:
                assert as_client(server, token).ask("/v1/config").error[2].startswith("the catalog waits")
                assert not any(answer.done() for answer in refused)
        assert {answer.result().status for answer in refused} == {503}


def test_rights_change_while_it_serves_and_a_mistake_closes_the_door(
    mirror: Mirror, issuer: SigningIssuer, access_file: Path
) -> None:
    with served(mirror.settings.model_copy(update={"access_file": str(access_file)})) as server:
        bi = as_client(server, issuer.token("bi"))
        assert names(bi, "public") == ["t"]
        write_rules(access_file, issuer, ("bi", ["public.payroll"], ["read"]))
        assert names(bi, "public") == ["payroll"]
        text = access_file.read_text()
        for mistake in (text.replace("rights", "right"), text + "[", ""):
            access_file.write_text(mistake)
            assert bi.ask("/v1/mirror/namespaces").error[0] == 503
        access_file.unlink()
        assert bi.ask("/v1/mirror/namespaces").error[0] == 503
        write_rules(access_file, issuer)
        assert bi.ask("/v1/mirror/namespaces").document["namespaces"] == []


def test_a_client_writes_where_it_may(issuer: SigningIssuer, tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    write_rules(
        path, issuer, ("etl", ["made.*"], ["write"]), ("etl", ["*.shown"], ["read"]), ("boss", ["*"], ["write"])
    )
    (tmp_path / "lake").mkdir()
    with (
        closing(CatalogPlace("sqlite", (tmp_path / "lake").as_uri(), "").open()) as catalog,
        serving(LakeCatalogSource("lake", catalog, read_write=True), access_file=str(path)) as server,
        capture_logs() as logged,
    ):
        etl, boss = (as_client(server, issuer.token(name)) for name in ("etl", "boss"))
        namespaces = "/v1/lake/namespaces"

        def make(client: ServedMirror, namespace: str, table: str) -> int:
            schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
            body = json.dumps({"name": table, "schema": schema})
            return client.ask(f"{namespaces}/{namespace}/tables", "POST", body).status

        def make_namespace(client: ServedMirror, name: str) -> int:
            return client.ask(namespaces, "POST", json.dumps({"namespace": name.split("\x1f")})).status

        assert make_namespace(etl, "other") == 403
        assert [make_namespace(boss, "other"), make_namespace(etl, "made")] == [200, 200]
        assert [make(etl, "other", "t"), make(boss, "other", "t"), make(boss, "other", "shown")] == [403, 200, 200]
        assert make(etl, "made", "t") == 200
        assert etl.ask(f"{namespaces}/other/tables/shown").status == 200
        for table, status in (("shown", 403), ("t", 404), ("absent", 404)):
            assert etl.ask(f"{namespaces}/other/tables/{table}", "DELETE").status == status
            assert etl.ask(f"{namespaces}/other/tables/{table}", "POST", '{"updates": []}').status == status
        part = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
        changes = [{"identifier": {"namespace": [namespace], "name": "t"}, **part} for namespace in ("made", "other")]
        sent = json.dumps({"table-changes": changes})
        assert etl.ask("/v1/lake/transactions/commit", "POST", sent).status == 404
        assert "a" not in etl.ask(f"{namespaces}/made/tables/t").document["metadata"]["properties"]
        assert boss.ask("/v1/lake/transactions/commit", "POST", sent).status == 204
        assert etl.ask(f"{namespaces}/made/tables/t").document["metadata"]["properties"]["a"] == "b"
        assert etl.ask(f"{namespaces}/other", "DELETE").status == 404
        # To rename takes the right for both names; to register that for all.
        rename, register = "/v1/lake/tables/rename", f"{namespaces}/made/register"

        def renamed(client: ServedMirror, *names: str) -> int:
            parts = ({"namespace": [schema], "name": table} for schema, table in (name.split(".") for name in names))
            return client.ask(
                rename, "POST", json.dumps(dict(zip(("source", "destination"), parts, strict=True)))
            ).status

        assert renamed(etl, "made.t", "made.u") == renamed(etl, "made.u", "made.t") == 204
        assert renamed(etl, "made.t", "other.u") == renamed(etl, "other.shown", "made.u") == 403
        assert renamed(etl, "other.t", "made.u") == renamed(etl, "other.absent", "made.u") == 404
        assert renamed(boss, "other.t", "made.u") == 204
        file = etl.ask(f"{namespaces}/made/tables/u").document["metadata-location"]
        assert etl.ask(f"{namespaces}/made/tables/u", "DELETE").status == 204
        body = json.dumps({"name": "v", "metadata-location": file})
        assert [client.ask(register, "POST", body).status for client in (etl, boss)] == [403, 200]
        properties = json.dumps({"updates": {"a": "b"}})
        for namespace, statuses in (("made", [200, 200]), ("other", [404, 200]), ("absent", [404, 404])):
            changed = f"{namespaces}/{namespace}/properties"
            assert [client.ask(changed, "POST", properties).status for client in (etl, boss)] == statuses
        assert etl.ask(f"{namespaces}/made").document["properties"] == {"a": "b"}
        # A table and a namespace would have one directory.
        assert make_namespace(boss, "made\x1fin") == 200
        assert make(etl, "made", "in") == 409
        assert make_namespace(boss, "made\x1ft") == 409
        assert etl.ask(f"{namespaces}/made/tables/t?purgeRequested=true", "DELETE").status == 204
    audit = {(line["event"], line["client"], line["name"], line.get("to")) for line in logged if "client" in line}
    assert ("renamed", "boss", "other.t", "made.u") in audit
    assert {("registered", "boss", "made.v", None), ("changed", "etl", "made", None)} <= audit


def test_a_location_tells_a_client_of_no_table(issuer: SigningIssuer, tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    write_rules(path, issuer, ("etl", ["made.*"], ["write"]), ("boss", ["*"], ["write"]))
    (tmp_path / "lake").mkdir()
    warehouse = (tmp_path / "lake").as_uri()
    schema = {"type": "struct", "fields": []}
    updates = [
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": schema, "last-column-id": 0},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ]
    with (
        closing(CatalogPlace("sqlite", warehouse, "").open()) as catalog,
        serving(LakeCatalogSource("lake", catalog, read_write=True), access_file=str(path)) as server,
    ):
        etl, boss = (as_client(server, issuer.token(name)) for name in ("etl", "boss"))
        catalog.create_namespace("made")

        def status(client: ServedMirror, path: str, **body: object) -> int:
            return client.ask(f"/v1/lake/namespaces{path}", "POST", json.dumps(body)).status

        def commit(client: ServedMirror, name: str, location: str) -> int:
            asked = [*updates, {"action": "set-location", "location": location}]
            create = [{"type": "assert-create"}]
            return status(client, f"/made/tables/{name}", requirements=create, updates=asked)

        staged = json.dumps({"name": "t", "schema": schema, "stage-create": True})
        answer = etl.ask("/v1/lake/namespaces/made/tables", "POST", staged)
        assert commit(etl, "t", answer.document["metadata"]["location"]) == 200
        location = f"{warehouse}/other/secret/x"
        for client, expected in ((etl, 403), (boss, 200)):
            assert commit(client, "u", f"{location}-0123456789ab") == expected
            assert status(client, "/made/tables", name="v", schema=schema, location=location) == expected
            assert status(client, "/made/properties", updates={"location": location}) == expected
        assert status(etl, "", namespace=["made", "x"], properties={"location": location}) == 403


def test_a_client_loads_where_it_may_and_learns_no_name(mirror: Mirror, issuer: SigningIssuer, tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    write_rules(path, issuer, ("loader", ["public.t"], ["load"]), ("reader", ["*"], ["read", "write"]))
    settings = Settings(dsn=mirror.settings.dsn, loads=True)
    app = application(LoadEndpoint(settings).routes(), Access.at("127.0.0.1", None, loads=True, access_file=str(path)))
    label = os.urandom(4).hex()

    def load(name: str | None, table: str) -> tuple[int, str]:
        token = {} if name is None else {"Authorization": f"Bearer {issuer.token(name)}"}
        headers = {"label": f"{label}{table}", "format": "csv", **token}
        status, answer, _ = put(port, b"id,v\n7,loaded\n", headers, f"/load/{table}")
        return status, answer.get("error", "")

    with HttpServer("127.0.0.1", 0, app) as server, capture_logs() as logged:
        port = int(server.url.rpartition(":")[2])
        assert load("loader", "public.t")[0] == 200
        assert load("loader", "PUBLIC.T")[0] == 200
        hidden, absent = load("loader", "public.payroll"), load("loader", "public.absent")
        assert hidden[0] == absent[0] == 403
        assert hidden[1].replace("payroll", "absent") == absent[1]
        assert load("reader", "public.t")[0] == 403
        assert load(None, "public.t")[0] == 401
    mirror.catch_up()
    assert (7, "loaded") in mirror.lake("public.t")
    assert ("loads rows", "loader", "public.t") in {
        (line["event"], line["client"], line["name"]) for line in logged if "client" in line
    }
