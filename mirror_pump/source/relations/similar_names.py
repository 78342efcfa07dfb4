"""Which tables a misspelled name may mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from mirror_pump.model import TableName

_MOST = 3
"""The most names that are proposed."""


def similar_names(text: str, tables: Iterable[TableName]) -> list[TableName]:
    """The tables whose names look most like `text`, which may have a schema, and case and quotes of its own. Those of
    the schema that it names come first, then those of another with the same name."""
    schema, _, name = (part.strip('" ').lower() for part in text.rpartition("."))
    by_name: dict[str, list[TableName]] = {}
    for table in tables:
        by_name.setdefault(table.name.lower(), []).append(table)
    close = [name] if name in by_name else difflib.get_close_matches(name, by_name, _MOST)
    candidates = [table for close_name in close for table in by_name[close_name]]
    within = [table for table in candidates if table.schema.lower() == schema]
    return (within or candidates)[:_MOST]
