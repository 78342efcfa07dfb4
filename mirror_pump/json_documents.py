"""Documents that commands print as JSON (docs/cli-json.md): each is a dataclass, whose fields are the keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from mirror_pump.errors import MirrorPumpError
from mirror_pump.model import Lsn, SnapshotId, TableName, format_lsn

_PLAIN = (type(None), str, int, float, bool)


class JsonDocument:
    """A dataclass of which JSON has every field. A field `error` that is an error has its remedy as a key beside it."""

    _keys: ClassVar[Mapping[str, str | None]] = {}
    _also: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls, keys: Mapping[str, str | None] | None = None, also: Sequence[str] = ()) -> None:
        """`keys`: by field, another key than its name; None: JSON does not have the field. `also`: properties that it
        has."""
        cls._keys, cls._also = keys or {}, also

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {key: of_value(getattr(self, name)) for name, key, of_value in _entries(type(self))}  # type: ignore[arg-type]  # classes are hashable


@cache
def _entries(document: type[JsonDocument]) -> list[tuple[str, str, Callable[[Any], Any]]]:
    """The fields and properties that a document has, with their keys, and what makes JSON of their values."""
    hints = get_type_hints(document)
    entries = []
    for name in (*(field.name for field in fields(document)), *document._also):  # type: ignore[arg-type]
        key = document._keys.get(name, name)
        if key is None:
            continue
        kinds = (hints.get(name), *get_args(hints.get(name)))
        entries.append((name, key, _of_kinds(kinds)))
        if key == "error" and any(isinstance(kind, type) and issubclass(kind, MirrorPumpError) for kind in kinds):
            entries.append((name, "remedy", lambda error: None if error is None else error.remedy))
    return entries


def _of_kinds(kinds: Sequence[Any]) -> Callable[[Any], Any]:
    """What makes JSON of a value. A snapshot's ID is a text: it has more digits than all programs keep of a number."""
    for kind, text in ((Lsn, format_lsn), (SnapshotId, str)):
        if kind in kinds:
            return lambda value: None if value is None else text(value)
    return json_value


def json_value(value: Any) -> Any:
    """What JSON has of a value."""
    if type(value) in _PLAIN:
        return value
    match value:
        case JsonDocument():
            return value.to_json()
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case TableName() | MirrorPumpError():
            return str(value)
        case list() | tuple():
            return [json_value(item) for item in value]
        case Mapping():
            return {key: json_value(member) for key, member in value.items()}
    if is_dataclass(value):
        return {field.name: json_value(getattr(value, field.name)) for field in fields(value)}
    return value
