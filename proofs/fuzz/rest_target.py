"""What clients of the REST catalog send."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cache
from tempfile import mkdtemp
from typing import Any

from starlette.applications import Starlette
from starlette.types import Message

from mirror_pump.errors import UsageError
from mirror_pump.http.access import Access
from mirror_pump.http.server import application
from mirror_pump.rest_catalog.attachment_names import parse_prefix, parse_warehouse
from mirror_pump.rest_catalog.endpoints import CATALOG_PATH, CatalogEndpoints
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.rest_catalog.table_documents import TableDocuments
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog

_METHODS = ("GET", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS")
_REQUEST_END = b"\n\n"
_MOST_REQUESTS = 8
_NOT_IMPLEMENTED = 501


def warehouse(content: bytes) -> None:
    """What a client attaches is a warehouse, none, or a UsageError; a prefix that is one is written in one way."""
    text = content.decode(errors="ignore")
    with suppress(UsageError):
        parse_warehouse(text)
    attached = parse_prefix(text)
    if attached is not None:
        assert parse_prefix(attached.prefix) == attached, text


def requests(content: bytes) -> None:
    """A client's requests, one after the other, are answered without a fault of the server."""
    catalog = MemoryCatalog(_directory())
    endpoints = CatalogEndpoints(TableDocuments(1 << 20), vends=False)
    endpoints.sources = (LakeCatalogSource("lake", catalog, read_write=True),)
    server = application(endpoints.routes(), Access.at("127.0.0.1", None))
    for request in content.split(_REQUEST_END)[:_MOST_REQUESTS]:
        head, _, body = request.partition(b"\n")
        path, _, query = head[1:].partition(b"?")
        method = _METHODS[head[0] % len(_METHODS)] if head else "GET"
        status = asyncio.run(_answered(server, method, path, query, body))
        assert 200 <= status < 500 or status == _NOT_IMPLEMENTED, (status, request)


@cache
def _directory() -> str:
    return mkdtemp(prefix="fuzzed-catalog-")


async def _answered(server: Starlette, method: str, path: bytes, query: bytes, body: bytes) -> int:
    """The status of the answer. Raises what the server raises."""
    raw = CATALOG_PATH.encode() + b"/v1/" + path
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": raw.decode("latin-1"),
        "raw_path": raw,
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await server(scope, receive, send)
    return statuses[0]
