"""Who may use the HTTP port, and what it refuses before any part of the application sees it."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mirror_pump.errors import UsageError, with_remedy
from mirror_pump.ops.clients.access_file import AccessRules, AccessUnknown
from mirror_pump.ops.clients.client import ANY_CLIENT, Client, keep_client
from mirror_pump.ops.clients.token_issuer import IssuerAway, TokenRefused
from mirror_pump.ops.load import LOAD_PATH
from mirror_pump.rest_catalog.answers import error_response
from mirror_pump.rest_catalog.endpoints import CATALOG_PATH
from mirror_pump.rest_catalog.protocol import ProtocolError

PROBE_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered without the token: probes rarely can hold a secret, and what these say is none."""

HEAD_BYTES = 16 * 1024
"""Largest request line with headers. The server itself only refuses more if it does not arrive at once."""

_KINDS = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    503: "ServiceUnavailableException",
}
"""The catalog protocol's names of errors, by status."""

_CHECKS = 8

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every response, unless it has its own."""


def is_loopback(host: str) -> bool:
    """Whether every address of `host`, a name or an address, can be reached from this machine only."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


@dataclass(frozen=True)
class Access:
    """Who may use the port."""

    token: str | None = field(default=None, repr=False)
    """Needed to read everything but the probes. None: no client needs one, but only requests to a loopback name are
    answered, so that no web page can have its own name point at this port and read it (DNS rebinding)."""
    loads: bool = False
    """Whether the port takes loads."""
    load_token: str | None = field(default=None, repr=False)
    """Needed for loads, and good for nothing else. None: as for `token` None."""
    rules: AccessRules | None = None
    """Whose tokens of an issuer open the catalog and loads, besides these. None: no client's. With it, no request but a
    probe is answered without a token."""
    checks: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_CHECKS), repr=False, compare=False)
    """How many of these are checked at a time."""

    @classmethod
    def at(
        cls,
        host: str,
        token: str | None,
        *,
        loads: bool = False,
        load_token: str | None = None,
        access_file: str | None = None,
    ) -> Access:
        """Access to a port on `host`. Raises UsageError without a token if others can reach it, and without one for
        loads of its own if reading needs one: who reads metrics need not be able to write."""
        rules = None if access_file is None else AccessRules(Path(access_file).expanduser())
        if token is None and rules is None and not is_loopback(host):
            raise UsageError(
                f"--listen: anybody on the network could read the mirror's status at {host}",
                "set a token in MIRROR_PUMP_LISTEN_TOKEN (or listen_token in the configuration file), or listen on"
                " 127.0.0.1",
            )
        if loads and token is not None and load_token is None and rules is None:
            raise UsageError(
                "--loads: with the token for metrics one could write to tables",
                "set another token for loads in MIRROR_PUMP_LOAD_TOKEN (or load_token in the configuration file)",
            )
        if load_token is not None and load_token == token:
            raise UsageError("listen_token and load_token are the same", "give loads a token of their own")
        return cls(token, loads, load_token, rules)

    async def admitted(self, scope: Scope) -> Client | Response:
        """Who sent a request; or the response to one that is refused."""
        admitted = self._admitted(scope)
        if isinstance(admitted, _BearerToken):
            # The issuer may have to be asked, which is for few threads: others answer requests meanwhile.
            admitted = await to_thread.run_sync(admitted.client, limiter=self.checks)
        if isinstance(admitted, Client) or not _is_catalog(scope):
            return admitted
        refused = admitted
        return error_response(
            ProtocolError(
                refused.status_code,
                _KINDS.get(refused.status_code, "RESTException"),
                bytes(refused.body).decode().strip(),
            ),
            {name: value for name, value in refused.headers.items() if name in ("connection", "www-authenticate")},
        )

    def _admitted(self, scope: Scope) -> Client | PlainTextResponse | _BearerToken:
        size = len(scope["raw_path"]) + len(scope["query_string"])
        if size + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > HEAD_BYTES:
            return PlainTextResponse("the request's head is too large\n", 431, {"Connection": "close"})
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            # PostgreSQL, storages and engines have no names with it.
            return PlainTextResponse("a name has the character NUL, which no name has\n", 400, {"Connection": "close"})
        headers = Headers(scope=scope)
        writes = self.loads and scope["method"] == "PUT" and scope["path"].startswith(LOAD_PATH)
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if has_body and not writes and not _is_catalog(scope):
            # The connection closes, since the body is never read.
            return PlainTextResponse("a request here has no body\n", 413, {"Connection": "close"})
        if writes and (refusal := _refused_page(headers)) is not None:
            return refusal
        if _is_catalog(scope) and _from_page(headers):
            # To attach a moment pins snapshots, by a GET, which any page can make a browser send.
            return PlainTextResponse("a web page cannot use the catalog\n", 403, {"Connection": "close"})
        closes = {"Connection": "close"} if writes or has_body else {}
        token = self.load_token if writes else self.token
        if token is None and self.rules is None:
            if not _names_loopback(headers.get("host", "")):
                text = "without a token, only requests to a loopback name are answered (docs/monitoring.md)\n"
                return PlainTextResponse(text, 421, closes)
            return ANY_CLIENT
        authorization = headers.get("authorization", "")
        if scope["path"] in PROBE_PATHS or (token is not None and _knows(token, authorization)):
            return ANY_CLIENT
        if self.rules is not None and (writes or _is_catalog(scope)):
            scheme, _, bearer = authorization.partition(" ")
            return _BearerToken(self.rules, bearer.strip() if scheme.lower() == "bearer" else "", closes)
        return PlainTextResponse(
            "a token is needed: as a bearer token, or as the password of any user\n",
            401,
            {"WWW-Authenticate": 'Basic realm="mirror-pump", charset="UTF-8"'} | closes,
        )


@dataclass(frozen=True)
class _BearerToken:
    """The token of a request that the access file decides about."""

    rules: AccessRules
    text: str = field(repr=False)
    """Empty without one."""
    closes: Mapping[str, str]
    """Headers of a refusal."""

    def client(self) -> Client | PlainTextResponse:
        """Whose it is; or the response without a client. May ask the issuer."""
        try:
            return self.rules.client(self.text)
        except TokenRefused as error:
            return PlainTextResponse(f"{with_remedy(error)}\n", 401, {"WWW-Authenticate": "Bearer", **self.closes})
        except (IssuerAway, AccessUnknown):
            return PlainTextResponse("tokens cannot be checked at the moment: try again\n", 503, dict(self.closes))


def _knows(token: str, authorization: str) -> bool:
    """Whether the value of an Authorization header has the token."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            _, _, given = base64.b64decode(credentials, validate=True).partition(b":")
        except binascii.Error:
            return False
    elif scheme.lower() == "bearer":
        given = credentials.encode("latin-1", "replace")
    else:
        return False
    return hmac.compare_digest(given, token.encode())


def _refused_page(headers: Headers) -> PlainTextResponse | None:
    """Refuses a write that a web page asks a browser for: the browser may know the token, or be on this machine.

    A browser names the page's origin in every PUT, and cannot be made to leave it out. Before it sends one across
    origins it asks for permission (OPTIONS), which is never given here. The header `label`, too, takes that permission.
    """
    if _from_page(headers):
        return PlainTextResponse("a web page cannot load rows\n", 403, {"Connection": "close"})
    if "label" not in headers:
        return PlainTextResponse("the header `label` is missing\n", 400, {"Connection": "close"})
    return None


def _from_page(headers: Headers) -> bool:
    """Whether a web page made a browser send the request."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def _is_catalog(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(f"{CATALOG_PATH}/")


def _names_loopback(host: str) -> bool:
    """Whether a Host header names this machine as only this machine can."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: refuses what `Access` refuses, and adds `_HEADERS` to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_missing(MutableHeaders(scope=message), _HEADERS.items())
            await send(message)

        assert scope["type"] == "http", "the server speaks HTTP only, without lifespan events"
        admitted = await self._access.admitted(scope)
        if isinstance(admitted, Client):
            keep_client(scope, admitted)
            await self._app(scope, receive, send_with_headers)
        else:
            await admitted(scope, receive, send_with_headers)


def add_missing(headers: MutableHeaders, defaults: Iterable[tuple[str, str]]) -> None:
    """Add the headers that are not there yet."""
    for name, value in defaults:
        headers.setdefault(name, value)
