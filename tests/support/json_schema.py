"""Writes docs/cli-json.schema.json from the types that print JSON, and holds documents against it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any

from mirror_pump.model import Lsn

SCHEMA = Path(__file__).parents[2] / "docs" / "cli-json.schema.json"


@dataclass(frozen=True)
class Keys:
    """The keys of an object, and the types that they are fields or properties of; the first that has one counts."""

    where: str
    """Path of the object in the example: keys, and `[]` for the items of a list. Empty for the whole."""
    types: tuple[type, ...]
    fields: Mapping[str, str] = field(default_factory=dict)
    """By key, the field that it shows, if that has another name."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """By key, the meaning of what is no single field; empty if the name says it."""


@dataclass(frozen=True)
class Part:
    """A definition of the schema."""

    example: Any
    keys: tuple[Keys, ...]


def schema_text(parts: Mapping[str, Part]) -> str:
    """The text of docs/cli-json.schema.json, with a definition for each part."""
    examples = {name: json.loads(json.dumps(part.example)) for name, part in parts.items()}
    names = frozenset(parts)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "JSON output of mirror-pump",
        "description": "docs/cli-json.md says which command prints which of these documents",
        "$defs": {
            name: {**_described(examples[name], "", part, names), "examples": [examples[name]]}
            for name, part in parts.items()
        },
    }
    return json.dumps(document, indent=2) + "\n"


def example(name: str) -> Any:
    """The example of the schema's definition of this name."""
    return json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"][name]["examples"][0]


def _described(value: Any, where: str, part: Part, names: frozenset[str]) -> dict[str, Any]:
    """The schema of a value of the part's example. Raises LookupError for a key that no type has."""
    if isinstance(value, list):
        item = {"items": _described(value[0], f"{where}[]", part, names)} if value else {}
        return {"type": "array", **item}
    keys = next((keys for keys in part.keys if keys.where == where), None)
    if not isinstance(value, dict):
        return {"type": _TYPES[type(value)]}
    properties = {}
    for key, member in value.items():
        below = f"{where}.{key}" if where else key
        described = _member(key, member, keys) if keys else {}
        if key in names and not member:
            described.pop("type", None)
            described |= _reference(key, member)
        elif isinstance(member, list | dict):
            described = {**_described(member, below, part, names), **described}
        properties[key] = described
    return {"type": "object", "properties": properties, "required": list(value)} if keys else {"type": "object"}


def _reference(name: str, member: Any) -> dict[str, Any]:
    """The part of this name, which an example has no object of."""
    reference = {"$ref": f"#/$defs/{name}"}
    return {"anyOf": [reference, {"type": "null"}]} if member is None else {"type": "array", "items": reference}


_TYPES: Mapping[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
    datetime: "string",
    Lsn: "string",
    timedelta: "number",
}


def _member(key: str, value: Any, keys: Keys) -> dict[str, Any]:
    """The types of a key's value, if they can be told, and its meaning, if it has one."""
    hint = None
    if key in keys.computed:
        meaning = keys.computed[key]
    else:
        name, _, owner = keys.fields.get(key, key).partition(" of ")
        types = [kind for kind in keys.types if name in _names(kind) and owner in ("", kind.__name__)]
        if not types:
            raise LookupError(f"{key} is in no field of {keys.types}")
        meaning = _documented(types[0]).get(name) or _choices(types[0], name)
        hint = _hint(types[0], name)
    names = _type_names(value, hint, "None" in meaning)
    return {**({"type": names} if names else {}), **({"description": _in_json(meaning)} if meaning else {})}


def _type_names(value: Any, hint: Any, nullable: bool) -> str | list[str]:
    """JSON's names of the types of values like this one; empty if they cannot be told."""
    hints = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    by_hint = {_TYPES[kind] for kind in hints if isinstance(kind, type) and kind in _TYPES}
    names = {_TYPES[type(value)]} - {"null"} or by_hint - {"null"}
    if names == {"integer"} and "number" in by_hint:
        names = {"number"}
    if names and (nullable or value is None or "null" in by_hint):
        names.add("null")
    return names.pop() if len(names) == 1 else sorted(names, key=lambda name: (name == "null", name))


def _hint(kind: type, name: str) -> Any:
    """The annotation of a field or property."""
    if _is_field(kind, name):
        return typing.get_type_hints(kind).get(name)
    return typing.get_type_hints(getattr(kind, name).fget).get("return")


def mismatches(value: Any, name: str) -> list[str]:
    """Where a document is not as the schema's definition of this name has it: other keys, or other types."""
    return list(_mismatches(value, {"$ref": f"#/$defs/{name}"}, name))


def _mismatches(value: Any, node: Mapping[str, Any], where: str) -> Iterator[str]:
    if "anyOf" in node:
        (reference, _) = node["anyOf"]
        yield from () if value is None else _mismatches(value, reference, where)
        return
    if "$ref" in node:
        node = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"][node["$ref"].rpartition("/")[2]]
    names = [node["type"]] if isinstance(node.get("type"), str) else node.get("type", [])
    name = _TYPES[type(value)]
    if names and name not in names and not (name == "integer" and "number" in names):
        yield f"{where} is {name}, not {' or '.join(names)}"
    elif isinstance(value, list) and "items" in node:
        for item in value:
            yield from _mismatches(item, node["items"], f"{where}[]")
    elif isinstance(value, dict) and "properties" in node:
        if set(value) != set(node["required"]):
            yield f"{where} has the keys {list(value)}, not {node['required']}"
        for key in value.keys() & node["properties"].keys():
            yield from _mismatches(value[key], node["properties"][key], f"{where}.{key}")


def _names(kind: type) -> set[str]:
    properties = {name for name, value in inspect.getmembers(kind) if isinstance(value, property)}
    return {entry.name for entry in fields(kind)} | properties


def _documented(kind: type) -> dict[str, str]:
    """Docstrings of a class's fields, properties and members, those of parents included."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    inherited = {
        name: text for parent in kind.__bases__ if is_dataclass(parent) for name, text in _documented(parent).items()
    }
    found: dict[str, str] = {}
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(following, ast.Expr):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            assert isinstance(target, ast.Name)
            found[target.id] = ast.literal_eval(following.value)
    return inherited | {name: " ".join(text.split()) for name, text in found.items()}


def _choices(kind: type, name: str) -> str:
    """For a field without a docstring that is an enumeration: its values, each with the first sentence of its own."""
    hint = typing.get_type_hints(kind).get(name) if _is_field(kind, name) else None
    hints = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    for choice in hints:
        if isinstance(choice, type) and issubclass(choice, Enum):
            texts = _documented(choice)
            said = [
                f"`{member.value}`"
                + (f": {texts[member.name].split('. ')[0].rstrip('.')}" if member.name in texts else "")
                for member in choice
            ]
            return ". ".join(said)
    return ""


def _is_field(kind: type, name: str) -> bool:
    return name in {entry.name for entry in fields(kind)}


def _in_json(text: str) -> str:
    """A docstring's text with JSON's words for Python's."""
    text = text.strip().rstrip(".")
    for python, as_json in (("None", "null"), ("True", "`true`"), ("False", "`false`")):
        text = re.sub(rf"\b{python}\b", as_json, text)
    return text
