"""Iceberg's REST catalog as a part of an HTTP application: paths, pages, entity tags, and the protocol's errors.

Paths are taken apart before they are decoded, since a name may contain a slash. A namespace of several levels, which
engines ask for when they look whether `schema.table` is one, does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mirror_pump.errors import ConnectionLost, LakeError, MirrorPumpError, SourceError
from mirror_pump.rest_catalog.mirror_catalog import CatalogSource, CatalogView, FoundTable
from mirror_pump.rest_catalog.protocol import (
    CatalogConfig,
    Namespace,
    NamespaceList,
    ProtocolError,
    TableList,
    TableReference,
    bad_request,
    forbidden,
    no_such_namespace,
    no_such_view,
)
from mirror_pump.rest_catalog.storage_hints import storage_hints
from mirror_pump.rest_catalog.table_documents import TableDocuments
from mirror_pump.telemetry import get_logger, redact

CATALOG_PATH = "/iceberg"
"""Where the catalog is on the port: the `uri` of clients ends with it."""
DEFAULT_WAREHOUSE = "mirror"
_SNAPSHOTS = "snapshots"
"""Query parameter: `all`, or `refs` for those that branches and tags name."""
_PAGE = 1000
"""Names on a page, unless a client asks for fewer."""
_MOST_DISCARDED = 4 << 20
"""Bytes of a request's body that are read to throw them away."""
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


@dataclass(frozen=True)
class CatalogRequest:
    """A request that fits an endpoint."""

    parts: Mapping[str, str]
    """The decoded variable parts of the path."""
    query: Mapping[str, str]
    headers: Mapping[str, str]


_AnsweredBy = Callable[["CatalogEndpoints", CatalogRequest], Response]


@dataclass(frozen=True)
class Endpoint:
    """A path of the protocol's document, and who answers it."""

    method: str
    path: str
    answer: _AnsweredBy

    @property
    def name(self) -> str:
        """As in the list that clients get."""
        return f"{self.method} {self.path}"

    def match(self, method: str, segments: Sequence[bytes]) -> dict[str, str] | None:
        """The variable parts of a path that fits; None if it does not."""
        wanted = self.path.strip("/").split("/")
        if method != self.method or len(wanted) != len(segments):
            return None
        found = {}
        for name, given in zip(wanted, segments, strict=True):
            text = unquote_to_bytes(given).decode("utf-8", "replace")
            if name.startswith("{"):
                found[name.strip("{}")] = text
            elif name != text:
                return None
        return found


class CatalogEndpoints:
    """Answers the protocol's requests. All but reading a body happens in threads of the framework."""

    def __init__(self, documents: TableDocuments, *, vends: bool) -> None:
        """`vends`: whether clients that ask for credentials get those by which this process reaches the storage."""
        self.sources: Sequence[CatalogSource] = ()
        """Where warehouses come from; none while the program starts."""
        self._documents = documents
        self._vends = vends

    def routes(self) -> Sequence[BaseRoute]:
        """The part of the application that this is."""
        return (Route(f"{CATALOG_PATH}/{{path:path}}", self.serve, methods=_METHODS),)

    async def serve(self, request: Request) -> Response:
        """Answer any request below CATALOG_PATH."""
        if not await _discard_body(request):
            return error_response(ProtocolError(413, "RequestTooLargeException", "the request's body is too large"))
        try:
            return await run_in_threadpool(self._answer, request)
        except ProtocolError as error:
            return error_response(error)
        except MirrorPumpError as error:
            return error_response(_as_protocol_error(error))

    def _answer(self, request: Request) -> Response:
        raw = request.scope["raw_path"].partition(b"?")[0].decode("latin-1").removeprefix(CATALOG_PATH)
        segments = [segment.encode("latin-1") for segment in raw.strip("/").split("/")]
        method = request.method
        if not self.sources:
            raise ProtocolError(503, "ServiceUnavailableException", "the catalog waits for its database: try again")
        for endpoint in ENDPOINTS:
            parts = endpoint.match(method, segments)
            if parts is not None:
                return endpoint.answer(self, CatalogRequest(parts, request.query_params, request.headers))
        if segments[0] != b"v1":
            raise ProtocolError(404, "NoSuchEndpointException", "the catalog's paths begin with v1/")
        if method in ("GET", "HEAD"):
            raise ProtocolError(404, "NoSuchEndpointException", f"this catalog has no {method} {raw}")
        if segments[1:] == [b"oauth", b"tokens"]:
            raise ProtocolError(
                404, "NoSuchEndpointException", "this catalog gives no tokens: configure the token itself as `token`"
            )
        raise forbidden(
            "the mirror is read-only: its tables are copies of PostgreSQL's, so write to these; nothing else can be"
            " created here"
        )

    # Configuration

    def config(self, request: CatalogRequest) -> Response:
        warehouse = request.query.get("warehouse") or DEFAULT_WAREHOUSE
        attached = next(filter(None, (source.attach(warehouse) for source in self.sources)), None)
        if attached is None:
            raise bad_request(
                f"there is no warehouse {warehouse[:100]!r}: attach `mirror`, or `mirror@latest` for all tables at one"
                " frontier"
            )
        endpoints = [endpoint.name for endpoint in ENDPOINTS]
        return _json(
            CatalogConfig(defaults=attached.defaults, overrides={"prefix": attached.prefix}, endpoints=endpoints)
        )

    # Namespaces

    def namespaces(self, request: CatalogRequest) -> Response:
        parent = request.query.get("parent")
        names = sorted({namespace for namespace, _ in self._view(request).names()})
        if parent:
            if parent not in names:
                raise no_such_namespace(parent)
            names = []
        page, token = _page(names, request.query)
        return _json(NamespaceList(namespaces=[[name] for name in page], next_page_token=token))

    def namespace(self, request: CatalogRequest) -> Response:
        name = request.parts["namespace"]
        self._names_in(request)
        return _json(Namespace(namespace=[name]))

    def namespace_exists(self, request: CatalogRequest) -> Response:
        self._names_in(request)
        return Response(status_code=204)

    # Tables

    def tables(self, request: CatalogRequest) -> Response:
        namespace = request.parts["namespace"]
        page, token = _page(self._names_in(request), request.query)
        found = [TableReference(namespace=[namespace], name=name) for name in page]
        return _json(TableList(identifiers=found, next_page_token=token))

    def table(self, request: CatalogRequest) -> Response:
        found = self._find(request)
        snapshots = request.query.get(_SNAPSHOTS, "all")
        if snapshots not in ("all", "refs"):
            raise bad_request(f"snapshots={snapshots[:20]!r}: only `all` and `refs` are known")
        delegation = request.headers.get("x-iceberg-access-delegation", "")
        wanted = self._vends and "vended-credentials" in delegation
        config = found.config | storage_hints(found.location, found.storage, credentials=wanted)
        document = self._documents.answer(found.location, found.storage, config, refs_only=snapshots == "refs")
        headers = {"ETag": document.etag, "Cache-Control": "private, no-cache"}
        if _names_tag(request.headers.get("if-none-match", ""), document.etag):
            return Response(status_code=304, headers=headers)
        return Response(document.body, headers=headers, media_type="application/json")

    def table_exists(self, request: CatalogRequest) -> Response:
        self._find(request)
        return Response(status_code=204)

    def metrics(self, _: CatalogRequest) -> Response:
        """Takes an engine's report of a scan, and does nothing with it."""
        return Response(status_code=204)

    # Views

    def views(self, request: CatalogRequest) -> Response:
        self._names_in(request)
        return _json(TableList(identifiers=[]))

    def no_view(self, request: CatalogRequest) -> Response:
        raise no_such_view(request.parts["namespace"], request.parts["view"])

    # What several of them need

    def _view(self, request: CatalogRequest) -> CatalogView:
        view = next(filter(None, (source.view(request.parts["prefix"]) for source in self.sources)), None)
        if view is None:
            raise bad_request(
                f"the prefix {request.parts['prefix'][:100]!r} is none of this catalog's: configure a `warehouse`, such"
                " as mirror, and no prefix"
            )
        return view

    def _names_in(self, request: CatalogRequest) -> list[str]:
        """The names of a namespace's tables. Raises ProtocolError without the namespace."""
        wanted = request.parts["namespace"]
        names = [name for namespace, name in self._view(request).names() if namespace == wanted]
        if not names:
            raise no_such_namespace(wanted)
        return names

    def _find(self, request: CatalogRequest) -> FoundTable:
        return self._view(request).find(request.parts["namespace"], request.parts["table"])


_NAMESPACES = "/v1/{prefix}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"

ENDPOINTS = (
    Endpoint("GET", "/v1/config", CatalogEndpoints.config),
    Endpoint("GET", _NAMESPACES, CatalogEndpoints.namespaces),
    Endpoint("GET", _NAMESPACE, CatalogEndpoints.namespace),
    Endpoint("HEAD", _NAMESPACE, CatalogEndpoints.namespace_exists),
    Endpoint("GET", f"{_NAMESPACE}/tables", CatalogEndpoints.tables),
    Endpoint("GET", _TABLE, CatalogEndpoints.table),
    Endpoint("HEAD", _TABLE, CatalogEndpoints.table_exists),
    Endpoint("POST", f"{_TABLE}/metrics", CatalogEndpoints.metrics),
    Endpoint("GET", f"{_NAMESPACE}/views", CatalogEndpoints.views),
    Endpoint("GET", _VIEW, CatalogEndpoints.no_view),
    Endpoint("HEAD", _VIEW, CatalogEndpoints.no_view),
)
"""What this catalog can do. Clients get the list, and do not try anything else."""


async def _discard_body(request: Request) -> bool:
    """Read the body, which nobody needs. False if it is too large to be read."""
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > _MOST_DISCARDED:
                return False
    except ClientDisconnect:
        return False
    return True


def _page(names: Sequence[str], query: Mapping[str, str]) -> tuple[Sequence[str], str | None]:
    """A page of names, and the token of the next one: the last name of this page. Without a token in the request,
    the client knows no pages, and gets all."""
    token = query.get("pageToken")
    if token is None and "pageSize" not in query:
        return names, None
    try:
        size = max(1, min(int(query.get("pageSize", _PAGE)), _PAGE))
    except ValueError:
        raise bad_request("pageSize is no number") from None
    left = [name for name in names if not token or name > token]
    return left[:size], left[size - 1] if len(left) > size else None


def _names_tag(header: str, etag: str) -> bool:
    """Whether an If-None-Match header names this entity tag (RFC 9110, 13.1.2)."""
    return header.strip() == "*" or etag in re.findall(r'(?:W/)?("[^"]*")', header)


def _as_protocol_error(error: MirrorPumpError) -> ProtocolError:
    """What went wrong on our side. Clients try a 503 again by themselves."""
    text = redact(f"{error}; {error.remedy}" if error.remedy else str(error))
    get_logger("rest-catalog").warning("a request of the catalog failed", error=str(error), remedy=error.remedy)
    if isinstance(error, ConnectionLost):
        return ProtocolError(503, "ServiceUnavailableException", text)
    if isinstance(error, SourceError | LakeError):
        return ProtocolError(500, "ServiceFailureException", text)
    return bad_request(text)


def error_response(error: ProtocolError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that is an error."""
    return _json(error.response(), error.status, headers)


def _json(document: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = document.model_dump_json(exclude_none=True)
    return Response(text, status, headers, media_type="application/json")
