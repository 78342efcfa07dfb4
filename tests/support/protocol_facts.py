"""What an OpenAPI document says of a REST catalog, as facts: names, places, types, statuses; no sentences.

So Iceberg's document and this server's own can be compared, and answers be held against either. Types:

| in the facts | a value |
|---|---|
| `string`, `integer`, `number`, `boolean`, `null`, `any` | of this type |
| `=asc`, `=desc` | this text |
| a capitalised name | as the schema of that name |
| `[T]` | a list of T |
| `{"a!": T, "b": U, "*": V}` | an object with a, perhaps with b, and with any others as V |
| `{"|": [T, U]}` | T or U |
| `{"&": [T, U]}` | an object with the properties of T and of U |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_METHODS = ("get", "head", "post", "put", "delete", "patch")

Shape = str | list[Any] | dict[str, Any]
"""A type, as above."""


def facts_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an OpenAPI document."""
    reader = _OpenApiDocument(document)
    return {
        "endpoints": dict(sorted(reader.endpoints())),
        "schemas": dict(sorted(reader.schemas())),
        "updates": reader.kinds("BaseUpdate"),
        "requirements": reader.kinds("TableRequirement"),
    }


class _OpenApiDocument:
    """An OpenAPI document, read."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def _of(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a reference names."""
        while "$ref" in found:
            place: Any = self._document
            for part in found["$ref"].removeprefix("#/").split("/"):
                place = place[part]
            found = place
        return found

    def endpoints(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each endpoint's name, as in the protocol's list of them, and what it reads and answers."""
        for path, item in self._document["paths"].items():
            for method in _METHODS:
                if method in item:
                    given = (*item.get("parameters", ()), *item[method].get("parameters", ()))
                    yield f"{method.upper()} {path}", self._operation(item[method], [self._of(one) for one in given])

    def _operation(self, operation: Mapping[str, Any], parameters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        facts: dict[str, Any] = {
            place: sorted(
                found["name"] + "!" * found.get("required", False) for found in parameters if found["in"] == place
            )
            for place in ("query", "header")
        }
        if "requestBody" in operation:
            facts["takes"] = sorted(_properties(self._of(self._body(self._of(operation["requestBody"])) or {})))
        answers = {str(status): self._of(answer) for status, answer in operation["responses"].items()}
        bodies = {status: self._body(answer) for status, answer in answers.items() if status < "4"}
        facts["answers"] = {status: None if body is None else shape_of(body) for status, body in bodies.items()}
        facts["errors"] = sorted(answers.keys() - bodies.keys())
        facts["error"] = shape_of(self._body(answers["400"]) or {})
        return facts

    def _body(self, content: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The schema of a body, if there is one."""
        kinds: Mapping[str, Any] = content.get("content", {})
        return next((kind["schema"] for kind in kinds.values()), None)

    def schemas(self) -> Iterator[tuple[str, Shape]]:
        """Each schema's name, and the type."""
        for name, schema in self._document.get("components", {}).get("schemas", {}).items():
            yield name, shape_of(schema)

    def kinds(self, base: str) -> list[str]:
        """The names of all kinds of an object."""
        schema = self._document.get("components", {}).get("schemas", {}).get(base, {})
        return sorted(schema.get("discriminator", {}).get("mapping", {}))


def _properties(schema: Mapping[str, Any]) -> Iterator[str]:
    """The names. Some may be required without a type."""
    required = schema.get("required", ())
    for name in dict.fromkeys((*schema.get("properties", {}), *required)):
        yield name + "!" * (name in required)


def shape_of(schema: Mapping[str, Any]) -> Shape:
    """A JSON schema, in the words of this module."""
    if schema.get("nullable"):
        return {"|": [shape_of({name: value for name, value in schema.items() if name != "nullable"}), "null"]}
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    alternatives = schema.get("oneOf") or schema.get("anyOf")
    if alternatives:
        return {"|": [shape_of(part) for part in alternatives]}
    if "allOf" in schema:
        own = {name: value for name, value in schema.items() if name != "allOf"}
        parts = [*schema["allOf"], *([own] if "properties" in own else ())]
        return {"&": [shape_of(part) for part in parts]}
    if "const" in schema:
        return f"={schema['const']}"
    if "enum" in schema:
        return {"|": [f"={value}" for value in schema["enum"]]}
    kind = schema.get("type", "any")
    if kind == "array":
        return [shape_of(schema.get("items", {}))]
    return _object(schema) if kind == "object" else str(kind)


def _object(schema: Mapping[str, Any]) -> Shape:
    properties = schema.get("properties", {})
    found = {key: shape_of(properties.get(key.removesuffix("!"), {})) for key in _properties(schema)}
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        found["*"] = shape_of(others)
    elif others or not properties:
        found["*"] = "any"
    return found
