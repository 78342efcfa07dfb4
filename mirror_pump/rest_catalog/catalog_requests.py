"""Requests of the catalog's clients: bodies, pages of names, entity tags."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import orjson
from pydantic import BaseModel, JsonValue, ValidationError
from starlette.requests import ClientDisconnect, Request

from mirror_pump.model import parse_count
from mirror_pump.ops.clients.client import ANY_CLIENT, Client
from mirror_pump.ops.row_files.json_texts import is_deeper
from mirror_pump.rest_catalog.protocol import ProtocolError, bad_request
from mirror_pump.runtime.handed_files import has_nul, problems_of

_PAGE = 1000
"""Names on a page, unless a client asks for fewer."""
_MOST_SENT = 4 << 20
"""Bytes of a request's body."""
_DEEPEST = 100
"""JSON arrays and objects in one another in a request's body. A type of Iceberg in another one takes three."""

_Sent = TypeVar("_Sent", bound=BaseModel)


@dataclass(frozen=True)
class CatalogRequest:
    """A request that fits an endpoint."""

    parts: Mapping[str, str]
    """The decoded variable parts of the path."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    client: Client = ANY_CLIENT
    """Who sent it."""

    @property
    def sent(self) -> JsonValue:
        """The body. Raises ProtocolError if it is no JSON."""
        try:
            document: JsonValue = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise bad_request(f"the request's body is no JSON: {error}") from error
        if is_deeper(document, _DEEPEST):
            raise bad_request(f"the request's body is nested too deeply: {_DEEPEST} levels are allowed")
        # Control characters are only there as escapes.
        if b"\\u0000" in self.body and has_nul(document):
            raise bad_request("the request's body has a text with the character NUL, which no name or value has")
        return document


def sent_document(kind: type[_Sent], document: JsonValue) -> _Sent:
    """The document as an object of this kind. Raises ProtocolError, which names the properties that do not fit."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise bad_request(f"the request cannot be understood: {problems_of(error)[:1000]}") from error
    except (ValueError, TypeError) as error:
        raise bad_request(f"the request cannot be understood: {str(error)[:500]}") from error


async def read_body(request: Request, within: float) -> bytes:
    """The body. Raises ProtocolError if it is too large, or does not arrive `within` so many seconds."""
    body = bytearray()
    try:
        async with asyncio.timeout(within):
            async for part in request.stream():
                body += part
                if len(body) > _MOST_SENT:
                    raise ProtocolError(413, "RequestTooLargeException", "the request's body is too large")
    except (TimeoutError, ClientDisconnect):
        raise ProtocolError(408, "RequestTimeoutException", "the request's body did not arrive in time") from None
    return bytes(body)


def page_of(names: Sequence[str], query: Mapping[str, str]) -> tuple[Sequence[str], str | None]:
    """A page of names, and the token of the next one: the last name of this page. Without a token in the request,
    the client knows no pages, and gets all."""
    token = query.get("pageToken")
    if token is None and "pageSize" not in query:
        return names, None
    try:
        size = max(1, min(parse_count(query.get("pageSize", str(_PAGE))), _PAGE))
    except ValueError:
        raise bad_request("pageSize is no number") from None
    left = [name for name in names if not token or name > token]
    return left[:size], left[size - 1] if len(left) > size else None


def names_tag(header: str, etag: str) -> bool:
    """Whether an If-None-Match header names this entity tag (RFC 9110, 13.1.2)."""
    return header.strip() == "*" or etag in re.findall(r'(?:W/)?("[^"]*")', header)
