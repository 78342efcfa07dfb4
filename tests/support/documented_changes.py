"""The rows of docs/schema-changes.md, and those of more_schema_changes.md beside this module."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

DOCUMENT = (Path(__file__).parents[2] / "docs" / "schema-changes.md").read_text(encoding="utf-8")
_MORE = Path(__file__).with_name("more_schema_changes.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class DocumentedChange:
    """A row with an example: what is done, its transactions, and the result."""

    section: str
    change: str
    transactions: tuple[str, ...]
    result: str
    is_further: bool = False
    """Whether the row is not of the document: a combination that a reader need not look up."""


def documented_changes() -> list[DocumentedChange]:
    """All rows with an example. Fails at a row that is not understood."""
    changes = [*_changes(DOCUMENT), *(replace(change, is_further=True) for change in _changes(_MORE))]
    assert len(changes) == len(re.findall(r"^\|[^|]+\| *`", DOCUMENT + _MORE, re.MULTILINE)), "a row is not understood"
    return changes


def _changes(text: str) -> list[DocumentedChange]:
    changes = []
    for part in text.split("\n## ")[1:]:
        section, _, body = part.partition("\n")
        for change, sql, result in re.findall(r"^\| ([^|]+) \| (`[^|]+`) \| ([a-zA-Z ]+) \|$", body, re.MULTILINE):
            changes.append(DocumentedChange(section, change, tuple(re.findall(r"`([^`]+)`", sql)), result))
    return changes
