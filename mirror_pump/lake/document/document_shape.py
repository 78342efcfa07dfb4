"""What a table metadata document has to have so that its views find what they read: keys, and values of their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def require_shape(document: Mapping[str, Any]) -> None:
    """Raises ValueError for a document that lacks a key, or has a value of another type there (Iceberg spec, table
    metadata fields). Keys that the views do not read may hold anything."""
    _require("", document, _EVERY_VERSION)
    if document["format-version"] > 1:
        _require("", document, _SINCE_VERSION_2)
    current = document.get("current-snapshot-id")
    snapshots = document.get("snapshots") or ()
    if current not in (None, -1) and all(snapshot["snapshot-id"] != current for snapshot in snapshots):
        raise ValueError(f"its current snapshot {current} is not among its snapshots")


def _require(path: str, value: Any, fields: Mapping[str, Any]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{path or 'the document'} is no object")  # noqa: TRY004 - of the document, not of a call
    for name, check in fields.items():
        optional = name.endswith("?")
        key = name.removesuffix("?")
        inner = value.get(key)
        if inner is None:
            if optional:
                continue
            raise ValueError(f"{path}{key} is missing")
        if isinstance(check, Mapping):
            _require(f"{path}{key}.", inner, check)
        elif isinstance(check, list):
            if not isinstance(inner, list):
                raise ValueError(f"{path}{key} is no list")  # noqa: TRY004 - as above
            for number, element in enumerate(inner):
                _require(f"{path}{key}[{number}].", element, check[0])
        elif not check(inner):
            raise ValueError(f"{path}{key} is {str(inner)[:40]!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _are_refs(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(ref, dict) and _is_integer(ref.get("snapshot-id")) for ref in value.values()
    )


_FIELDS = [{"id": _is_integer, "name": _is_text}]
_EVERY_VERSION: Mapping[str, Any] = {
    "format-version": _is_integer,
    "location": _is_text,
    "last-updated-ms": _is_integer,
    "last-column-id": _is_integer,
    "last-sequence-number?": _is_integer,
    "current-snapshot-id?": _is_integer,
    "properties?": _are_texts,
    "snapshots?": [
        {
            "snapshot-id": _is_integer,
            "timestamp-ms": _is_integer,
            "sequence-number?": _is_integer,
            "parent-snapshot-id?": _is_integer,
            "manifest-list?": _is_text,
            "schema-id?": _is_integer,
            "first-row-id?": _is_integer,
            "added-rows?": _is_integer,
            "summary?": _are_texts,
        }
    ],
    "snapshot-log?": [{"snapshot-id": _is_integer, "timestamp-ms": _is_integer}],
    "metadata-log?": [{"metadata-file": _is_text, "timestamp-ms": _is_integer}],
    "refs?": _are_refs,
    "sort-orders?": [{"order-id": _is_integer, "fields": _is_list}],
    "statistics?": [{"statistics-path": _is_text}],
    "partition-statistics?": [{"statistics-path": _is_text}],
    "next-row-id?": _is_integer,
}
_SINCE_VERSION_2: Mapping[str, Any] = {
    "table-uuid": _is_text,
    "last-sequence-number": _is_integer,
    "schemas": [{"schema-id": _is_integer, "fields": _FIELDS}],
    "current-schema-id": _is_integer,
    "partition-specs": [{"spec-id": _is_integer, "fields": _is_list}],
    "default-spec-id": _is_integer,
    "last-partition-id": _is_integer,
}
