"""What an endpoint of the catalog is: a path of the protocol, what it reads of a request, and what it answers.

The OpenAPI document, what this server has of Iceberg's protocol, is made from all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import AliasChoices, AliasPath, BaseModel, JsonValue
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from mirror_pump.rest_catalog.catalog_requests import CatalogRequest
from mirror_pump.rest_catalog.protocol import ErrorResponse
from mirror_pump.source.catalog.catalog_functions import program_version

Answering = TypeVar("Answering")
"""The class whose methods answer."""


@dataclass(frozen=True)
class Endpoint(Generic[Answering]):
    """A path of the protocol's document, and who answers it."""

    method: str
    path: str
    answer: Callable[[Answering, CatalogRequest], Response]
    query: tuple[str, ...] = ()
    """Query parameters that it reads. It does not get any others."""
    headers: tuple[str, ...] = ()
    """Headers, likewise."""
    takes: type[BaseModel] | None = None
    """The body of a request."""
    status: int | None = 200
    """Of the answer that was asked for; None if there is never one."""
    gives: type[BaseModel] | None = None
    """The body of that answer."""
    refuses: tuple[int, ...] = (404,)
    """Statuses of errors, besides those that any request may get."""

    @property
    def name(self) -> str:
        """As in the list that clients get."""
        return f"{self.method} {self.path}"

    def match(self, method: str, segments: Sequence[bytes]) -> dict[str, str] | None:
        """The variable parts of a path that fits; None if it does not."""
        expected = self.path.strip("/").split("/")
        if method != self.method or len(expected) != len(segments):
            return None
        variables = {}
        for name, given in zip(expected, segments, strict=True):
            text = unquote_to_bytes(given).decode("utf-8", "replace")
            if name.startswith("{"):
                variables[name.strip("{}")] = text
            elif name != text:
                return None
        return variables


OPENAPI_PATH = "/openapi.json"
"""Below the catalog's path."""
_ANY_REQUEST = ("400", "401", "403", "503", "5XX")
"""Statuses of errors that any request may get."""
_REFERENCE = "#/components/schemas/{model}"


def openapi_document(endpoints: Sequence[Endpoint[Any]]) -> Mapping[str, JsonValue]:
    """Paths with their methods, parameters, bodies and statuses. Tables' metadata is an object without further words:
    Iceberg's specification of the format has them."""
    answers = {endpoint.gives for endpoint in endpoints if endpoint.gives is not None} | {ErrorResponse}
    named = sorted(answers, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "serialization") for model in named], ref_template=_REFERENCE)
    paths: dict[str, dict[str, JsonValue]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Iceberg REST catalog of mirror-pump", "version": program_version()},
        "paths": dict(paths),
        "components": {"schemas": schemas["$defs"]},
    }


def _operation(endpoint: Endpoint[Any]) -> JsonValue:
    parts = [(name, "path") for name in re.findall(r"{([^}]*)}", endpoint.path)]
    read = [*parts, *((name, "query") for name in endpoint.query), *((name, "header") for name in endpoint.headers)]
    parameters: list[JsonValue] = [
        {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}} for name, place in read
    ]
    answers: dict[str, JsonValue] = {}
    if endpoint.status is not None:
        answers[str(endpoint.status)] = _content(endpoint.gives, "what was asked for")
    if "If-None-Match" in endpoint.headers:
        answers["304"] = _content(None, "what the client has is the newest")
    for status in sorted({*_ANY_REQUEST, *map(str, endpoint.refuses)}):
        answers[status] = _content(ErrorResponse, "an error")
    operation: dict[str, JsonValue] = {"parameters": parameters, "responses": answers}
    if endpoint.takes is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": _sent_schema(endpoint.takes)}}}
    return operation


def _content(model: type[BaseModel] | None, description: str) -> JsonValue:
    if model is None:
        return {"description": description}
    reference: JsonValue = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"description": description, "content": {"application/json": {"schema": reference}}}


def _sent_schema(model: type[BaseModel]) -> JsonValue:
    """The names of a request's properties. What they contain is understood by Iceberg's own models."""
    fields: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    for name, field in model.model_fields.items():
        alias = field.validation_alias or name
        assert not isinstance(alias, AliasChoices | AliasPath)
        fields[alias] = {}
        if field.is_required():
            required.append(alias)
    return {"type": "object", "properties": fields, "required": required}
