"""What a table metadata document has to have so that its views find what they read: keys, and values of their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_ValueCheck = type | Callable[[str, Any], None]
"""The type of a value, or what raises ValueError for a value of that path."""
_KeyChecks = tuple[tuple[str, _ValueCheck], ...]


def require_shape(document: Mapping[str, Any]) -> None:
    """Raises ValueError for a document that lacks a key, or has a value of another type there (Iceberg spec, table
    metadata fields). Keys that the views do not read may hold anything."""
    _require("", document, _EVERY_VERSION, _OPTIONAL)
    if document["format-version"] > 1:
        _require("", document, _SINCE_VERSION_2)
    current = document.get("current-snapshot-id")
    snapshots = document.get("snapshots") or ()
    if current not in (None, -1) and all(snapshot["snapshot-id"] != current for snapshot in snapshots):
        raise ValueError(f"its current snapshot {current} is not among its snapshots")


def _require(path: str, value: Any, keys: _KeyChecks, optional: _KeyChecks = ()) -> None:
    if type(value) is not dict:
        raise ValueError(f"{path or 'the document'} is no object")
    for key, check in keys:
        # Nearly every value is of its type, and a document has thousands. (A boolean is no int here.)
        if type(inner := value.get(key)) is not check:
            if inner is None:
                raise ValueError(f"{path}{key} is missing")
            _require_value(f"{path}{key}", inner, check)
    for key, check in optional:
        if (inner := value.get(key)) is not None and type(inner) is not check:
            _require_value(f"{path}{key}", inner, check)


def _wrong(path: str, value: Any) -> ValueError:
    return ValueError(f"{path} is {str(value)[:40]!r}")


def _require_value(path: str, value: Any, check: _ValueCheck) -> None:
    if isinstance(check, type):
        raise _wrong(path, value)
    check(path, value)


def _each(keys: _KeyChecks, optional: _KeyChecks = ()) -> _ValueCheck:
    """A list of objects with these keys."""

    def check(path: str, value: Any) -> None:
        if type(value) is not list:
            raise ValueError(f"{path} is no list")
        for number, element in enumerate(value):
            _require(f"{path}[{number}].", element, keys, optional)

    return check


def _texts(path: str, value: Any) -> None:
    """An object of texts."""
    if type(value) is not dict or not set(map(type, value.values())) <= {str}:
        raise _wrong(path, value)


def _refs(path: str, value: Any) -> None:
    """Branches and tags by name."""
    if type(value) is not dict:
        raise _wrong(path, value)
    for name, ref in value.items():
        _require(f"{path}.{name}.", ref, (("snapshot-id", int),))


_EVERY_VERSION: _KeyChecks = (
    ("format-version", int),
    ("location", str),
    ("last-updated-ms", int),
    ("last-column-id", int),
)
_OPTIONAL: _KeyChecks = (
    ("last-sequence-number", int),
    ("current-snapshot-id", int),
    ("next-row-id", int),
    ("properties", _texts),
    ("refs", _refs),
    (
        "snapshots",
        _each(
            (("snapshot-id", int), ("timestamp-ms", int)),
            (
                ("sequence-number", int),
                ("parent-snapshot-id", int),
                ("manifest-list", str),
                ("schema-id", int),
                ("first-row-id", int),
                ("added-rows", int),
                ("summary", _texts),
            ),
        ),
    ),
    ("snapshot-log", _each((("snapshot-id", int), ("timestamp-ms", int)))),
    ("metadata-log", _each((("metadata-file", str), ("timestamp-ms", int)))),
    ("sort-orders", _each((("order-id", int), ("fields", list)))),
    ("statistics", _each((("statistics-path", str),))),
    ("partition-statistics", _each((("statistics-path", str),))),
)
_SINCE_VERSION_2: _KeyChecks = (
    ("table-uuid", str),
    ("last-sequence-number", int),
    ("schemas", _each((("schema-id", int), ("fields", _each((("id", int), ("name", str))))))),
    ("current-schema-id", int),
    ("partition-specs", _each((("spec-id", int), ("fields", list)))),
    ("default-spec-id", int),
    ("last-partition-id", int),
)
