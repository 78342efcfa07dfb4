"""Who may use the catalog, and what a client is told about the storage."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.exceptions import UnauthorizedError

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.rest_catalog.catalog_source import storage_hints
from mirror_pump.rest_catalog.endpoints import CATALOG_PATH
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.rest_catalog import CatalogAnswer, ServedMirror, documented_blocks, served, serving
from tests.support.s3_server import s3_server

_TOKEN = "correct-horse-battery-staple"
_LOAD = "/v1/mirror/namespaces/public/tables/t"


@pytest.fixture(scope="module")
def mirror(mirror_of: Callable[..., Mirror]) -> Mirror:
    return mirror_of("t", "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'read')")


@pytest.fixture
def guarded(mirror: Mirror) -> Iterator[ServedMirror]:
    with served(mirror.settings, _TOKEN) as running:
        yield running


def test_a_token_is_needed_and_engines_send_it(guarded: ServedMirror) -> None:
    stranger = ServedMirror(guarded.port)
    for answer in (stranger.ask("/v1/config"), stranger.ask(_LOAD, Authorization="Bearer wrong")):
        code, kind, _ = answer.error
        assert (code, kind) == (401, "NotAuthorizedException")
        assert _TOKEN not in answer.body.decode()
    with pytest.raises(UnauthorizedError):
        stranger.pyiceberg("mirror")
    with pytest.raises(duckdb.Error, match=r"401|[Uu]nauthorized"):
        stranger.duckdb("mirror")
    assert guarded.pyiceberg("mirror@latest").load_table("public.t").scan().to_arrow().num_rows == 1
    assert guarded.duckdb("mirror@latest").execute("SELECT v FROM lake.public.t").fetchall() == [("read",)]


def test_no_web_page_can_attach(readonly: ServedMirror) -> None:
    """To attach a moment pins snapshots, and is a GET."""
    for headers in ({"Origin": "https://example.com"}, {"Sec_Fetch_Site": "cross-site"}):
        assert readonly.ask("/v1/config?warehouse=mirror@latest", **headers).error[:2] == (403, "ForbiddenException")
    assert readonly.ask("/v1/config", Host="example.com").error[0] == 421
    assert readonly.ask("/v1/config", X="x" * 20_000).error[0] == 431
    assert readonly.ask("/v1/mirror/tables/rename", "POST", "x" * (5 << 20)).error[0] == 413


def nested_type(levels: int) -> dict[str, Any]:
    """A struct in a struct, and so on: three levels of JSON for each."""
    found: Any = "long"
    for number in range(levels):
        field = {"id": number + 2, "name": "f", "required": False, "type": found}
        found = {"type": "struct", "fields": [field]}
    return dict(found)


def test_bodies_are_limited_in_bytes_and_in_depth(writable: ServedMirror) -> None:
    prefix = f"/v1/{writable.attach('path')}"
    assert writable.ask(f"{prefix}/namespaces", "POST", json.dumps({"namespace": ["deep"]})).status == 200
    tables = f"{prefix}/namespaces/deep/tables"

    def create(name: str, levels: int) -> CatalogAnswer:
        field = {"id": 1, "name": "id", "required": False, "type": nested_type(levels)}
        schema = {"type": "struct", "schema-id": 0, "fields": [field]}
        return writable.ask(tables, "POST", json.dumps({"name": name, "schema": schema}))

    assert create("allowed", 30).status == 200
    assert writable.ask(f"{tables}/allowed").status == 200
    assert "too deep" in create("refused", 40).error[2]
    for levels in (300, 1000, 500_000):
        text = '{"name": "x", "schema": ' + '[{"a":' * levels + "1" + "}]" * levels + "}"
        for path in (tables, f"{tables}/allowed", f"{prefix}/transactions/commit", f"{prefix}/namespaces"):
            assert writable.ask(path, "POST", text).error[0] in (400, 413), levels
    assert writable.ask(tables, "POST", '"' + "x" * (5 << 20) + '"').error[0] == 413


def test_a_body_that_does_not_end_is_given_up() -> None:
    with (
        serving(body_seconds=0.2) as served_catalog,
        closing(socket.create_connection(("127.0.0.1", served_catalog.port), timeout=60)) as connection,
    ):
        head = f"POST {CATALOG_PATH}/v1/x/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{"
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")
        while connection.recv(65536):
            pass


_KNOWN = {
    "s3.endpoint": "http://127.0.0.1:9000",
    "s3.region": "eu-central-1",
    "s3.access-key-id": "AKIAEXAMPLE",
    "s3.secret-access-key": "very-secret-key",
}


@pytest.mark.parametrize("wanted", [False, True])
def test_clients_learn_where_the_storage_is_and_keys_only_if_they_are_to(*, wanted: bool) -> None:
    storage = StorageOptions(_KNOWN)
    found = storage_hints("s3://lake/public/t/metadata/1.metadata.json", storage, credentials=wanted)
    assert ("very-secret-key" in found.values()) == ("AKIAEXAMPLE" in found.values()) == wanted
    assert found["s3.endpoint"] == _KNOWN["s3.endpoint"]
    assert found["client.region"] == found["s3.region"] == "eu-central-1"
    assert found["s3.path-style-access"] == "true"
    assert storage_hints("file:///lake/public/t/metadata/1.metadata.json", storage, credentials=True) == {}


@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_engines_read_s3_with_the_credentials_that_they_are_given(database: Database, tasks: ThreadTaskRunner) -> None:
    with s3_server() as s3:
        mirror = Mirror.create(database, "s3://lake/shop", tasks, **s3.storage_settings)
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'read')")
        mirror.register("t")
        mirror.catch_up()
        for vends in (False, True):
            with served(mirror.settings.model_copy(update={"vend_credentials": vends})) as catalog:
                for header, wanted in (("", False), ("vended-credentials,remote-signing", True)):
                    config = catalog.ask(_LOAD, X_Iceberg_Access_Delegation=header).document["config"]
                    assert (config.get("s3.secret-access-key") == "pump's secret") == (vends and wanted)
                    assert config["s3.endpoint"] == s3.endpoint
                if vends:
                    duckdb = catalog.duckdb("mirror@latest", delegates=True)
                    assert duckdb.execute("SELECT v FROM lake.public.t").fetchall() == [("read",)]
                    rows = catalog.pyiceberg("mirror@latest").load_table("public.t").scan().to_arrow()
                    assert rows["v"].to_pylist() == ["read"]


def test_the_program_serves_until_it_is_stopped(mirror: Mirror, tmp_path: Path) -> None:
    program = Program(mirror.database.dsn, tmp_path, {"MIRROR_PUMP_LISTEN_TOKEN": _TOKEN})
    (command,) = documented_blocks("sh", "## Serve it\n")
    _, *arguments = shlex.split(command)
    options = ("--slot", mirror.settings.slot, "--listen", "127.0.0.1:0")
    process = program.start(*arguments, *options, log="serve.log")
    log = tmp_path / "serve.log"
    try:
        await_true(
            lambda: "/iceberg (warehouse" in log.read_text() or process.poll() is not None, 60, "the program serves"
        )
        assert process.poll() is None, log.read_text()
        port = int(log.read_text().partition("/iceberg")[0].rpartition(":")[2])
        answer = ServedMirror(port, _TOKEN).ask(_LOAD)
        assert answer.status == 200, answer.body
        program.stop(process)
    finally:
        program.kill(process)
    assert _TOKEN not in log.read_text()
    assert "stopped serving" in log.read_text()


def test_a_pump_serves_the_catalog_at_its_port(mirror: Mirror) -> None:
    from mirror_pump.http.pump_port import PumpPort
    from mirror_pump.monitoring.monitor import Monitor

    for catalog, status in ((True, 200), (False, 404)):
        settings = mirror.settings.model_copy(update={"listen": "127.0.0.1:0", "catalog": catalog})
        with Monitor(settings, PumpPort) as monitor:
            services = monitor._services
            assert services is not None
            assert isinstance(services._port, PumpPort)
            port = int(services._port.url.rpartition(":")[2])
            if catalog:
                assert ServedMirror(port).ask(_LOAD).error[0] == 503
            monitor.watch(settings)
            assert ServedMirror(port).send(_LOAD).status == status
            assert json.loads(_get(port, "/healthz"))["status"] == "ok"


def _get(port: int, path: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return bytes(answer.read())
