"""A mirror served as an Iceberg REST catalog, and clients of it."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog

from mirror_pump.http.access import Access
from mirror_pump.http.server import HttpServer, application
from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.rest_catalog.catalog_source import CatalogSource
from mirror_pump.rest_catalog.endpoints import CATALOG_PATH, CatalogEndpoints
from mirror_pump.rest_catalog.service import CatalogService
from mirror_pump.rest_catalog.table_documents import TableDocuments
from mirror_pump.settings.config import Settings
from tests.support.protocol_check import faults_of_answer

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


DOCUMENT = Path(__file__).parents[2] / "docs" / "rest-catalog.md"


def documented_blocks(language: str, heading: str) -> list[str]:
    """The blocks of code in a section of docs/rest-catalog.md, up to the next heading of any level."""
    section = re.split(
        r"^#+ ", DOCUMENT.read_text(encoding="utf-8").partition(heading)[2], maxsplit=1, flags=re.MULTILINE
    )[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


NOT_SERVED = frozenset(
    {
        "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials",
        "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/sign",
        "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan",
        "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan/{plan-id}",
        "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan/{plan-id}",
        "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/tasks",
        "POST /v1/{prefix}/namespaces/{namespace}/views",
        "POST /v1/{prefix}/namespaces/{namespace}/views/{view}",
        "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}",
        "POST /v1/{prefix}/namespaces/{namespace}/register-view",
        "POST /v1/{prefix}/views/rename",
        "POST /v1/oauth/tokens",
    }
)
"""The endpoints of the protocol that are not served, by the protocol's names."""


@dataclass(frozen=True)
class CatalogAnswer:
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str]:
        """Code, type and message of an error; fails unless it is in the protocol's form and of the answer's status."""
        found = self.document["error"]
        assert found["code"] == self.status, self
        assert set(found) == {"code", "type", "message"}, self
        return found["code"], found["type"], found["message"]


@dataclass(frozen=True)
class ServedMirror:
    """A running server."""

    port: int
    token: str | None = None

    @property
    def uri(self) -> str:
        """What clients call `uri`."""
        return f"http://127.0.0.1:{self.port}{CATALOG_PATH}"

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> CatalogAnswer:
        """Sends a request for a path below the catalog's. Fails if the OpenAPI document has no such answer:
        this server's own, or Iceberg's (tests.support.protocol_check)."""
        found = self.send(path, method, body, **headers)
        kind = found.headers.get("content-type", "")
        assert not (faults := faults_of_answer(method, path, found.status, kind, found.body)), faults
        return found

    def send(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> CatalogAnswer:
        """The same, whatever the answer is."""
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, CATALOG_PATH + path, body, given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return CatalogAnswer(answer.status, found, answer.read())

    def attach(self, warehouse: str) -> str:
        """The prefix that a client gets for a warehouse."""
        answer = self.ask(f"/v1/config?warehouse={warehouse.replace('+', '%2B').replace('@', '%40')}")
        assert answer.status == 200, answer.body
        return str(answer.document["overrides"]["prefix"])

    def pyiceberg(self, warehouse: str) -> RestCatalog:
        """pyiceberg's client, attached."""
        access = {"token": self.token} if self.token else {}
        return RestCatalog("lake", uri=self.uri, warehouse=warehouse, **access)

    def duckdb(self, warehouse: str, *, delegates: bool = False) -> DuckDBPyConnection:
        """A DuckDB with the warehouse attached as `lake`. `delegates`: it asks the catalog for credentials."""
        connection = open_duckdb("httpfs")
        self.attach_in(connection, warehouse, "lake", delegates=delegates)
        return connection

    def attach_in(self, connection: DuckDBPyConnection, warehouse: str, name: str, *, delegates: bool = False) -> None:
        """Attaches the warehouse in a DuckDB."""
        access = f"TOKEN '{self.token}'" if self.token else "AUTHORIZATION_TYPE 'none'"
        options = f"TYPE iceberg, ENDPOINT '{self.uri}', {access}" + (
            "" if delegates else ", ACCESS_DELEGATION_MODE 'none'"
        )
        connection.execute(f"ATTACH '{warehouse}' AS {name} ({options})")


@contextmanager
def serving(
    *sources: CatalogSource,
    vends: bool = False,
    token: str | None = None,
    body_seconds: float = 10.0,
    access_file: str | None = None,
) -> Iterator[ServedMirror]:
    """Serves lake catalogs during the block, without a mirror. `vends`: clients that ask for credentials get some."""
    access = Access.at("127.0.0.1", token, access_file=access_file)
    endpoints = CatalogEndpoints(TableDocuments(1 << 20), vends=vends, rules=access.rules, body_seconds=body_seconds)
    endpoints.sources = sources
    with HttpServer("127.0.0.1", 0, application(endpoints.routes(), access)) as server:
        yield ServedMirror(int(server.url.rpartition(":")[2]), token)


@contextmanager
def served(settings: Settings, token: str | None = None) -> Iterator[ServedMirror]:
    """Serves the mirror during the block."""
    access = Access.at("127.0.0.1", token, access_file=settings.access_file)
    with (
        CatalogService(settings, access.rules) as service,
        HttpServer("127.0.0.1", 0, application(service.endpoints.routes(), access)) as server,
    ):
        service.begin(settings)
        yield ServedMirror(int(server.url.rpartition(":")[2]), token)
