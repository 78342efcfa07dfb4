"""Iceberg's REST catalog as a part of an HTTP application: paths, pages, entity tags, and the protocol's errors.

Paths are taken apart before they are decoded, since a name may contain a slash. A namespace of several levels, which
engines ask for when they look whether `schema.table` is one, does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote_to_bytes

import orjson
from pydantic import JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableName
from mirror_pump.ops.clients.access_file import AccessRules
from mirror_pump.ops.clients.client import Client, Right, client_of
from mirror_pump.rest_catalog.answers import as_protocol_error, error_response, json_answer
from mirror_pump.rest_catalog.catalog_requests import CatalogRequest, names_tag, page_of, read_body, sent_document
from mirror_pump.rest_catalog.catalog_source import (
    LEVELS,
    CatalogSource,
    CatalogView,
    FoundTable,
    SentChange,
    storage_hints,
)
from mirror_pump.rest_catalog.endpoint import OPENAPI_PATH, Endpoint, openapi_document
from mirror_pump.rest_catalog.protocol import (
    CatalogConfig,
    ChangedProperties,
    CommitTableAnswer,
    LoadTableAnswer,
    Namespace,
    NamespaceChange,
    NamespaceList,
    NoTokens,
    ProtocolError,
    RegisterTableRequest,
    RenameTableRequest,
    TableList,
    TableReference,
    TransactionRequest,
    bad_request,
    forbidden,
    no_such_namespace,
    no_such_view,
)
from mirror_pump.rest_catalog.restricted_view import RestrictedView, table_name
from mirror_pump.rest_catalog.table_commits import CreateTableRequest, UpdateTableRequest
from mirror_pump.rest_catalog.table_credentials import CredentialsScope, TableCredentials
from mirror_pump.rest_catalog.table_documents import TableDocuments
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.storage_kinds import S3, kind_of

CATALOG_PATH = "/iceberg"
"""Where the catalog is on the port: the `uri` of clients ends with it."""
_SNAPSHOTS = "snapshots"
"""Query parameter: `all`, or `refs` for those that branches and tags name."""
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
_DELEGATION = "X-Iceberg-Access-Delegation"
_IF_NONE_MATCH = "If-None-Match"
_REFUSALS = (403, 404)
"""Statuses of the answers that a client without the right gets."""
_UNREADABLE = "mirror-pump.unreadable"
"""Key of a configuration: the mirrored tables that are not part of a moment, or the first of them."""
_MOST_UNREADABLE = 20


class CatalogEndpoints:
    """Answers the protocol's requests. All but reading a body happens in threads of the framework."""

    def __init__(
        self,
        documents: TableDocuments,
        *,
        vends: bool,
        rules: AccessRules | None = None,
        body_seconds: float = 10.0,
    ) -> None:
        """`vends`: whether clients that ask for credentials get some: for single tables, if `rules` say how; or those
        by which this process reaches the storage, unless the client has grants. `body_seconds`: how long the body of a
        request may take to arrive."""
        self.sources: Sequence[CatalogSource] = ()
        """Where warehouses come from; none while the program starts."""
        self._documents = documents
        self._vends = vends
        self._rules = rules
        self._credentials = TableCredentials()
        self._body_seconds = body_seconds

    def routes(self) -> Sequence[BaseRoute]:
        """The part of the application that this is."""
        return (
            Route(f"{CATALOG_PATH}{OPENAPI_PATH}", self.openapi, methods=["GET"]),
            Route(f"{CATALOG_PATH}/{{path:path}}", self.serve, methods=_METHODS),
        )

    async def openapi(self, _: Request) -> Response:
        """The document of all that is served here, in the warehouses that can be written to."""
        return JSONResponse(openapi_document(ALL_ENDPOINTS))

    async def serve(self, request: Request) -> Response:
        """Answer any request below CATALOG_PATH."""
        try:
            body = await read_body(request, self._body_seconds)
        except ProtocolError as error:
            # The connection closes, since the rest of the body is never read.
            return error_response(error, {"Connection": "close"})
        try:
            return await run_in_threadpool(self._answer, request, body)
        except ProtocolError as error:
            return error_response(error)
        except MirrorPumpError as error:
            return error_response(as_protocol_error(error))

    def _answer(self, request: Request, body: bytes) -> Response:
        raw = request.scope["raw_path"].partition(b"?")[0].decode("latin-1").removeprefix(CATALOG_PATH)
        segments = [segment.encode("latin-1") for segment in raw.strip("/").split("/")]
        method = request.method
        if not self.sources:
            raise ProtocolError(503, "ServiceUnavailableException", "the catalog waits for its database: try again")
        for endpoint in ALL_ENDPOINTS:
            parts = endpoint.match(method, segments)
            if parts is not None:
                sent = CatalogRequest(parts, *_read(request, endpoint), body, client_of(request.scope))
                try:
                    return endpoint.answer(self, sent)
                except ProtocolError as error:
                    if error.status in _REFUSALS:
                        _audit(sent, "refused", endpoint=endpoint.name, error=str(error))
                    raise
        if segments[0] != b"v1":
            raise ProtocolError(404, "NoSuchEndpointException", "the catalog's paths begin with v1/")
        if method in ("GET", "HEAD"):
            raise ProtocolError(404, "NoSuchEndpointException", f"this catalog has no {method} {raw}")
        if segments[1:] == [b"oauth", b"tokens"]:
            return json_answer(NoTokens(), 400)
        prefix = unquote_to_bytes(segments[1]).decode("utf-8", "replace") if len(segments) > 1 else ""
        view = self._view_of(prefix)
        if view is not None:
            view.writer()
        raise ProtocolError(501, "UnsupportedOperationException", f"this catalog has no {method} {raw}")

    # Configuration

    def config(self, request: CatalogRequest) -> Response:
        if not request.client.may_at_all(Right.READ):
            # To attach a moment pins snapshots.
            raise forbidden(f"{request.client.name} may read no table: the access file grants it none")
        warehouse = request.query.get("warehouse") or self.sources[0].warehouses[0]
        attached = next(filter(None, (source.attach(warehouse) for source in self.sources)), None)
        if attached is None:
            raise bad_request(f"there is no warehouse {warehouse[:100]!r}: attach {self.warehouses()}")
        endpoints = [endpoint.name for endpoint in ENDPOINTS]
        if attached.writable:
            endpoints += [endpoint.name for endpoint in WRITE_ENDPOINTS]
        if attached.writable and attached.transactions:
            endpoints.append(TRANSACTION_ENDPOINT.name)
        if attached.writable and attached.rows:
            endpoints += [endpoint.name for endpoint in ROW_ENDPOINTS]
        defaults = attached.defaults | _unreadable(attached.unreadable, request.client)
        return json_answer(CatalogConfig(defaults=defaults, overrides={"prefix": attached.prefix}, endpoints=endpoints))

    # Namespaces

    def namespaces(self, request: CatalogRequest) -> Response:
        parent = request.query.get("parent")
        names = self._view(request).namespaces()
        if parent and parent not in names:
            raise no_such_namespace(parent)
        above = parent.split(LEVELS) if parent else []
        levels = [name.split(LEVELS) for name in names]
        children = [LEVELS.join(name) for name in levels if name[:-1] == above]
        page, token = page_of(children, request.query)
        return json_answer(NamespaceList(namespaces=[name.split(LEVELS) for name in page], next_page_token=token))

    def namespace(self, request: CatalogRequest) -> Response:
        name = request.parts["namespace"]
        self._names_in(request)
        properties = self._view(request).properties(name)
        return json_answer(Namespace(namespace=name.split(LEVELS), properties=_as_dict(properties)))

    def namespace_exists(self, request: CatalogRequest) -> Response:
        self._names_in(request)
        return Response(status_code=204)

    # Tables

    def tables(self, request: CatalogRequest) -> Response:
        namespace = request.parts["namespace"]
        page, token = page_of(self._names_in(request), request.query)
        identifiers = [TableReference(namespace=namespace.split(LEVELS), name=name) for name in page]
        return json_answer(TableList(identifiers=identifiers, next_page_token=token))

    def table(self, request: CatalogRequest) -> Response:
        table = self._find(request)
        _audit(request, "loaded", _name_in(request), credentials=self._wants_credentials(request))
        return self._loaded(request, table)

    def _loaded(self, request: CatalogRequest, table: FoundTable) -> Response:
        snapshots = request.query.get(_SNAPSHOTS, "all")
        if snapshots not in ("all", "refs"):
            raise bad_request(f"snapshots={snapshots[:20]!r}: only `all` and `refs` are known")
        config = {**table.config, **self._hints(request, table.location, table.storage)}
        document = self._documents.answer(table.location, table.storage, config, refs_only=snapshots == "refs")
        headers = {"ETag": document.etag, "Cache-Control": "private, no-cache"}
        if names_tag(request.headers.get(_IF_NONE_MATCH, ""), document.etag):
            return Response(status_code=304, headers=headers)
        return Response(document.body, headers=headers, media_type="application/json")

    def _hints(self, request: CatalogRequest, location: str, storage: StorageOptions) -> Mapping[str, str]:
        """How the client reaches the files of the table whose metadata file is at `location`, in a directory of the
        table's. Raises LakeError."""
        if not self._wants_credentials(request):
            return storage_hints(location, storage, credentials=False)
        role = None if self._rules is None else self._rules.credentials
        if role is None:
            return storage_hints(location, storage, credentials=request.client.grants is None)
        hints = storage_hints(location, storage, credentials=False)
        if kind_of(location) is not S3:
            return hints
        namespace, name = request.parts["namespace"], request.parts.get("table")
        writes = name is None or self._writes(request, table_name(namespace, name))
        root = location.rpartition("/")[0].rpartition("/")[0]
        scope = CredentialsScope(role, request.client.name or "", root, writes)
        return {**hints, **self._credentials.properties(scope, storage.properties_of(location))}

    def _writes(self, request: CatalogRequest, table: TableName) -> bool:
        """Whether the client may change the table, and the warehouse is served for writing."""
        try:
            self._view(request).writer()
        except ProtocolError:
            return False
        return request.client.may(Right.WRITE, table)

    def _wants_credentials(self, request: CatalogRequest) -> bool:
        """Whether the client asks for credentials, and may get some."""
        return self._vends and "vended-credentials" in request.headers.get(_DELEGATION, "")

    def table_exists(self, request: CatalogRequest) -> Response:
        self._find(request)
        return Response(status_code=204)

    def metrics(self, _: CatalogRequest) -> Response:
        """Takes an engine's report of a scan, and does nothing with it."""
        return Response(status_code=204)

    # Views

    def views(self, request: CatalogRequest) -> Response:
        self._names_in(request)
        return json_answer(TableList(identifiers=[]))

    def no_view(self, request: CatalogRequest) -> Response:
        raise no_such_view(request.parts["namespace"], request.parts["view"])

    # Writes

    def create_namespace(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        sent = sent_document(Namespace, request.sent)
        if not all(sent.namespace):
            raise bad_request("a namespace has a name")
        properties = writer.create_namespace(LEVELS.join(sent.namespace), sent.properties or {})
        _audit(request, "created", LEVELS.join(sent.namespace))
        return json_answer(Namespace(namespace=sent.namespace, properties=_as_dict(properties)))

    def change_namespace(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        change = sent_document(NamespaceChange, request.sent)
        removed = writer.change_namespace(request.parts["namespace"], change)
        _audit(request, "changed", request.parts["namespace"])
        missing = [name for name in change.removals if name not in removed]
        return json_answer(ChangedProperties(updated=list(change.updates), removed=list(removed), missing=missing))

    def drop_namespace(self, request: CatalogRequest) -> Response:
        self._view(request).writer().drop_namespace(request.parts["namespace"])
        _audit(request, "dropped", request.parts["namespace"])
        return Response(status_code=204)

    def create_table(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        sent = request.sent
        made = writer.create(request.parts["namespace"], sent)
        name = _new_name_in(request, sent)
        _audit(request, "created", name, credentials=self._wants_credentials(request))
        if isinstance(made, FoundTable):
            return self._loaded(request, made)
        # The client writes files before the table exists.
        config = self._hints(request, f"{made.location}/metadata/new", made.storage)
        return Response(orjson.dumps({"metadata": made.metadata, "config": config}), media_type="application/json")

    def commit_table(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        change = SentChange(request.parts["namespace"], request.parts["table"], request.sent)
        (made,) = writer.commit([change])
        _audit(request, "committed", _name_in(request))
        document = self._documents.answer(made.location, made.storage, None)
        return Response(document.body, headers={"ETag": document.etag}, media_type="application/json")

    def commit_transaction(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        changes = sent_document(TransactionRequest, request.sent).table_changes
        sent = [
            SentChange(LEVELS.join(change.identifier.namespace), change.identifier.name, change.model_dump())
            for change in changes
        ]
        writer.commit(sent)
        _audit(request, "committed", *(f"{change.namespace}.{change.name}" for change in sent))
        return Response(status_code=204)

    def drop_table(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        purge = request.query.get("purgeRequested", "false").lower() == "true"
        writer.drop(request.parts["namespace"], request.parts["table"], purge=purge)
        _audit(request, "dropped", _name_in(request), purge=purge)
        return Response(status_code=204)

    def rename_table(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        sent = sent_document(RenameTableRequest, request.sent)
        writer.rename(sent)
        source, destination = (
            f"{LEVELS.join(table.namespace)}.{table.name}" for table in (sent.source, sent.destination)
        )
        _audit(request, "renamed", source, to=destination.replace(LEVELS, "."))
        return Response(status_code=204)

    def register_table(self, request: CatalogRequest) -> Response:
        writer = self._view(request).writer()
        sent = request.sent
        table = writer.register(request.parts["namespace"], sent)
        name = _new_name_in(request, sent)
        _audit(request, "registered", name, file=table.location, credentials=self._wants_credentials(request))
        return self._loaded(request, table)

    # Helpers of several endpoints

    def _view(self, request: CatalogRequest) -> CatalogView:
        view = self._view_of(request.parts["prefix"])
        if view is None:
            raise bad_request(
                f"the prefix {request.parts['prefix'][:100]!r} is none of this catalog's: configure a `warehouse`"
                f" ({self.warehouses()}), and no prefix"
            )
        return view if request.client.grants is None else RestrictedView(view, request.client)

    def warehouses(self) -> str:
        """What a client may attach, for a message."""
        return " or ".join(f"`{name}`" for source in self.sources for name in source.warehouses)

    def _view_of(self, prefix: str) -> CatalogView | None:
        return next(filter(None, (source.view(prefix) for source in self.sources)), None)

    def _names_in(self, request: CatalogRequest) -> Sequence[str]:
        """The names of a namespace's tables. Raises ProtocolError without the namespace."""
        namespace = request.parts["namespace"]
        view = self._view(request)
        names = view.tables(namespace)
        if not names and namespace not in view.namespaces():
            raise no_such_namespace(namespace)
        return names

    def _find(self, request: CatalogRequest) -> FoundTable:
        return self._view(request).find(request.parts["namespace"], request.parts["table"])


_NAMESPACES = "/v1/{prefix}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"

_PAGES = ("pageToken", "pageSize")

ENDPOINTS = (
    Endpoint("GET", "/v1/config", CatalogEndpoints.config, query=("warehouse",), gives=CatalogConfig, refuses=()),
    Endpoint("GET", _NAMESPACES, CatalogEndpoints.namespaces, query=("parent", *_PAGES), gives=NamespaceList),
    Endpoint("GET", _NAMESPACE, CatalogEndpoints.namespace, gives=Namespace),
    Endpoint("HEAD", _NAMESPACE, CatalogEndpoints.namespace_exists, status=204),
    Endpoint("GET", f"{_NAMESPACE}/tables", CatalogEndpoints.tables, query=_PAGES, gives=TableList),
    Endpoint(
        *("GET", _TABLE, CatalogEndpoints.table),
        query=(_SNAPSHOTS,),
        headers=(_DELEGATION, _IF_NONE_MATCH),
        gives=LoadTableAnswer,
    ),
    Endpoint("HEAD", _TABLE, CatalogEndpoints.table_exists, status=204),
    Endpoint("POST", f"{_TABLE}/metrics", CatalogEndpoints.metrics, status=204),
    Endpoint("GET", f"{_NAMESPACE}/views", CatalogEndpoints.views, gives=TableList),
    Endpoint("GET", _VIEW, CatalogEndpoints.no_view, status=None),
    Endpoint("HEAD", _VIEW, CatalogEndpoints.no_view, status=None),
)
"""What this catalog can do. Clients get the list, and do not try anything else."""
WRITE_ENDPOINTS = (
    Endpoint("POST", _NAMESPACES, CatalogEndpoints.create_namespace, takes=Namespace, gives=Namespace, refuses=(409,)),
    Endpoint("DELETE", _NAMESPACE, CatalogEndpoints.drop_namespace, status=204, refuses=(404, 409)),
    Endpoint(
        *("POST", f"{_NAMESPACE}/tables", CatalogEndpoints.create_table),
        headers=(_DELEGATION,),
        takes=CreateTableRequest,
        gives=LoadTableAnswer,
        refuses=(404, 409),
    ),
    Endpoint(
        *("POST", _TABLE, CatalogEndpoints.commit_table),
        takes=UpdateTableRequest,
        gives=CommitTableAnswer,
        refuses=(404, 409),
    ),
    Endpoint("DELETE", _TABLE, CatalogEndpoints.drop_table, query=("purgeRequested",), status=204),
)
"""What it can do besides in a warehouse that is served for writing."""
TRANSACTION_ENDPOINT = Endpoint(
    *("POST", "/v1/{prefix}/transactions/commit", CatalogEndpoints.commit_transaction),
    takes=TransactionRequest,
    status=204,
    refuses=(404, 409),
)
"""And in one whose catalog changes several tables at once."""
ROW_ENDPOINTS = (
    Endpoint(
        *("POST", f"{_NAMESPACE}/properties", CatalogEndpoints.change_namespace),
        takes=NamespaceChange,
        gives=ChangedProperties,
        refuses=(404, 422),
    ),
    Endpoint(
        *("POST", "/v1/{prefix}/tables/rename", CatalogEndpoints.rename_table),
        takes=RenameTableRequest,
        status=204,
        refuses=(404, 409),
    ),
    Endpoint(
        *("POST", f"{_NAMESPACE}/register", CatalogEndpoints.register_table),
        headers=(_DELEGATION,),
        takes=RegisterTableRequest,
        gives=LoadTableAnswer,
        refuses=(404, 409),
    ),
)
"""And in one whose catalog has a row for each name."""
ALL_ENDPOINTS = (*ENDPOINTS, *WRITE_ENDPOINTS, TRANSACTION_ENDPOINT, *ROW_ENDPOINTS)


def _unreadable(tables: Sequence[TableName], client: Client) -> dict[str, str]:
    """What a configuration says of tables that are left out, as far as the client may know."""
    names = [f"{table.schema}.{table.name}" for table in tables if client.may(Right.READ, table)]
    return {_UNREADABLE: ", ".join(names[:_MOST_UNREADABLE])} if names else {}


def _as_dict(properties: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if properties is None else dict(properties)


def _new_name_in(request: CatalogRequest, sent: JsonValue) -> str:
    """The name of a table that a writer has made of what was sent."""
    assert isinstance(sent, dict), "the writer has understood it"
    return f"{request.parts['namespace']}.{sent['name']}"


def _name_in(request: CatalogRequest) -> str:
    return f"{request.parts['namespace']}.{request.parts['table']}"


def _audit(request: CatalogRequest, act: str, *names: str, **details: object) -> None:
    """Logs what a client did that had to say who it is: a line for each table or namespace."""
    if request.client.name is None:
        return
    for name in names or ("",):
        shown = name.replace(LEVELS, ".")
        prefix = request.parts.get("prefix", "")
        get_logger("audit").info(act, client=request.client.name, warehouse=prefix, name=shown, **details)


def _read(request: Request, endpoint: Endpoint[CatalogEndpoints]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The parameters and headers of a request that an endpoint knows. The protocol has If-None-Match for loads only: a
    commit that has happened is not to be answered by 304."""
    query = {name: request.query_params[name] for name in endpoint.query if name in request.query_params}
    return query, {name: request.headers[name] for name in endpoint.headers if name in request.headers}
