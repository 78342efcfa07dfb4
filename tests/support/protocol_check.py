"""Answers of the catalog, held against an OpenAPI document.

ICEBERG_OPENAPI in the environment names Iceberg's (`make openapi`). Without it that is this server's own, which leaves
open what is in a table's metadata. Strict: a property that the document does not have is a fault, as is one that it
wants and that is missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mirror_pump.rest_catalog.endpoint import openapi_document
from mirror_pump.rest_catalog.endpoints import ALL_ENDPOINTS
from tests.support.protocol_facts import Shape, facts_of

_VARIABLE = "ICEBERG_OPENAPI"
OUTSIDE = {"408", "413", "421", "431"}
"""Statuses of HTTP itself, by which requests are refused before they reach the catalog."""
_PRIMITIVES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "any": (object,),
}


@cache
def protocol_facts() -> Mapping[str, Any]:
    """The facts (tests.support.protocol_facts) that answers are held against."""
    return iceberg_facts() if _VARIABLE in os.environ else own_facts()


@cache
def own_facts() -> Mapping[str, Any]:
    """Those of this server's own document."""
    return facts_of(openapi_document(ALL_ENDPOINTS))


@cache
def iceberg_facts() -> Mapping[str, Any]:
    """Those of Iceberg's document. Fails unless the environment names it."""
    assert _VARIABLE in os.environ, "run `make openapi DOCUMENT=rest-catalog-open-api.yaml`"
    return facts_of(yaml.safe_load(Path(os.environ[_VARIABLE]).read_text(encoding="utf-8")))


def endpoint_of(method: str, path: str) -> str | None:
    """The document's endpoint to which a request goes; None without one. `path`: as sent, below the catalog's."""
    given = path.partition("?")[0].strip("/").split("/")
    for name in protocol_facts()["endpoints"]:
        wanted_method, _, template = name.partition(" ")
        wanted = template.strip("/").split("/")
        pairs = zip(wanted, given, strict=False)
        fits = wanted_method == method and len(wanted) == len(given)
        if fits and all(part.startswith("{") or part == sent for part, sent in pairs):
            return str(name)
    return None


def faults_of_answer(method: str, path: str, status: int, media_type: str, body: bytes) -> Sequence[str]:
    """What is wrong with an answer, if anything is."""
    endpoint = endpoint_of(method, path)
    if endpoint is None:
        return ()
    facts = protocol_facts()["endpoints"][endpoint]
    if status < 400:
        if str(status) not in facts["answers"]:
            return [f"{endpoint} has no status {status}"]
        shape = facts["answers"][str(status)]
    else:
        if not {str(status), f"{status // 100}XX"} & {*facts["errors"], *OUTSIDE}:
            return [f"{endpoint} has no status {status}"]
        shape = facts["error"]
    if method == "HEAD" or shape is None:
        return [f"{endpoint} has a body: {body[:100]!r}"] if body else ()
    if media_type.partition(";")[0] != "application/json":
        return [f"{endpoint} answers {media_type}"]
    return [f"{endpoint}: {fault}" for fault in faults_of(shape, json.loads(body), "")]


def faults_of(shape: Shape, value: object, where: str) -> Sequence[str]:
    """How a value differs from a type. `where`: the path to it."""
    match shape:
        case str():
            return _faults_of_name(shape, value, where)
        case list():
            if not isinstance(value, list):
                return [f"{where} is no list: {value!r:.100}"]
            return [
                fault for index, item in enumerate(value) for fault in faults_of(shape[0], item, f"{where}[{index}]")
            ]
        case {"|": alternatives}:
            # Of several, the one that comes closest explains most.
            return min((faults_of(one, value, where) for one in alternatives), key=len)
        case _:
            return list(_faults_of_object(_merged(shape), value, where))


def _faults_of_name(name: str, value: object, where: str) -> Sequence[str]:
    if name[0].isupper():
        return faults_of(protocol_facts()["schemas"][name], value, where)
    if name.startswith("="):
        fits = value == name[1:]
    else:
        fits = isinstance(value, _PRIMITIVES[name]) and (name in ("boolean", "any") or not isinstance(value, bool))
    return () if fits else [f"{where} is not {name}: {value!r:.100}"]


def _faults_of_object(properties: Mapping[str, Shape], value: object, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is no object: {value!r:.100}"
        return
    for key in properties:
        if key.endswith("!") and key[:-1] not in value:
            yield f"{where}.{key[:-1]} is missing"
    for key, item in value.items():
        found = properties.get(key, properties.get(f"{key}!", properties.get("*")))
        if found is None:
            yield f"{where}.{key} is not in the document"
        else:
            yield from faults_of(found, item, f"{where}.{key}")


def _merged(shape: Shape) -> dict[str, Shape]:
    """An object's properties, with those of the objects that it consists of."""
    if isinstance(shape, str):
        return _merged(protocol_facts()["schemas"][shape])
    assert isinstance(shape, dict)
    if "&" not in shape:
        return shape
    found: dict[str, Shape] = {}
    for part in shape["&"]:
        found |= _merged(part)
    return found
