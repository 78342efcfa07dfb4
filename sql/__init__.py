"""The catalog's SQL as package data: the whole schema, and the numbered migrations that lead to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

SEAM_VERSION = 1
"""modak.schema_meta.version: the public seam catalog's version, which consumers by others check. Our additions to
schema modak do not touch it; they are counted in modak.mirror_migrations."""

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, order=True)
class Migration:
    """One step of the schema. Released ones never change: a correction is a new migration."""

    version: int
    name: str
    text: str


def schema() -> str:
    """The current schema in one piece, for reading and for the proof that the migrations lead there."""
    return (resources.files(__name__) / "schema.sql").read_text(encoding="utf-8")


def migrations() -> tuple[Migration, ...]:
    """All migrations, in order, numbered from 1 without gaps."""
    found = sorted(
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in (resources.files(__name__) / "migrations").iterdir()
        if (match := _NAME.fullmatch(file.name))
    )
    assert [step.version for step in found] == list(range(1, len(found) + 1)), "migrations are numbered 1, 2, 3 ..."
    return tuple(found)


def queries(name: str) -> dict[str, str]:
    """The named statements of sql/queries/`name`.sql: each begins at a line `-- name: statement`."""
    text = (resources.files(__name__) / "queries" / f"{name}.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (statement.strip().rstrip(";") for statement in parts[2::2]), strict=True))


def reader_role(quoted: str) -> str:
    """The statements that let a role read the mirror; `quoted` is its name as SQL has it."""
    text = (resources.files(__name__) / "roles" / "reader.sql").read_text(encoding="utf-8")
    return text.replace(':"reader"', quoted)
