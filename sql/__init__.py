"""The catalog's SQL as package data: tables come from numbered migrations, functions and views from files by subject.

- migrations/: tables, indexes, constraints. Each runs once in a database.
- functions/: everything that can be replaced where it is. A file runs again whenever its text has changed.
- queries/: the statements that the program runs, by name.
- roles/: what other roles are granted.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

from sql.mirror_names import marked, of_mirror

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


@dataclass(frozen=True)
class FunctionFile:
    """A file of sql/functions: it may run any number of times, in any order with the others."""

    name: str
    """Without `.sql`."""
    text: str

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> tuple[Migration, ...]:
    """All migrations, in order, numbered from 1 without gaps."""
    steps = sorted(
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in (resources.files(__name__) / "migrations").iterdir()
        if (match := _NAME.fullmatch(file.name))
    )
    assert [step.version for step in steps] == list(range(1, len(steps) + 1)), "migrations are numbered 1, 2, 3 ..."
    return tuple(steps)


def functions() -> tuple[FunctionFile, ...]:
    """The functions, views and triggers of schema modak, by subject, in the order of the files' names."""
    return tuple(
        FunctionFile(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in sorted((resources.files(__name__) / "functions").iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    )


def queries(name: str) -> dict[str, str]:
    """The named statements of sql/queries/`name`.sql: each begins at a line `-- name: statement`. They are marked
    (sql/mirror_names.py): a connection gives their names the ending of its mirror."""
    text = (resources.files(__name__) / "queries" / f"{name}.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (marked(statement.strip().rstrip(";")) for statement in parts[2::2]), strict=True))


def role_script(name: str) -> str:
    """The text of sql/roles/`name`.sql, for psql: `admin`, `pump` or `reader`."""
    return (resources.files(__name__) / "roles" / f"{name}.sql").read_text(encoding="utf-8")


def reader_role(quoted: str, mirror: str | None = None) -> str:
    """The statements that let a role read the mirror of this name; `quoted` is the role's name as SQL has it."""
    return of_mirror(marked(role_script("reader")), mirror).replace(':"reader"', quoted)
