"""Brings schema modak of a source database up to date, and refuses one that is newer than this program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import psycopg.rows

import sql
from mirror_pump.errors import SourceError

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('modak.mirror_migrations', 0))"

# As in sql/schema.sql. The ledger is made before the first migration, which is recorded in it.
_LEDGER = """
CREATE TABLE IF NOT EXISTS modak.mirror_migrations (
    version     int         PRIMARY KEY,
    name        text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_migrations IS 'The migrations of mirror-pump that this database has had';
"""


@dataclass(frozen=True)
class MigrationResult:
    """What migrate() did."""

    before: int
    """The version that it found; 0 where schema modak was empty or missing."""
    after: int
    applied: tuple[str, ...]
    """Names of the migrations that it ran, in order, such as `0002_mirror`; empty if there was nothing to do."""


def latest_version() -> int:
    """The schema version that this program works with."""
    return sql.migrations()[-1].version


def installed_version(connection: psycopg.Connection[Any]) -> int | None:
    """The version of schema modak; None if it does not hold our catalog.

    Raises SourceError if somebody else made it: two writers of one cut-line would ruin it.
    """
    ledger, seam = _one(
        connection,
        "SELECT to_regclass('modak.mirror_migrations') IS NOT NULL, to_regclass('modak.schema_meta') IS NOT NULL",
    )
    if not ledger:
        if seam:
            raise SourceError(
                "schema modak of this database was made by another program that keeps the seam catalog",
                "mirror from a database without it, or unregister its tables there and drop schema modak",
            )
        return None
    version, seam_version = _one(
        connection,
        "SELECT (SELECT coalesce(max(version), 0) FROM modak.mirror_migrations),"
        " (SELECT coalesce(max(version), 0) FROM modak.schema_meta)",
    )
    for kind, found, known in (
        ("catalog", version, latest_version()),
        ("seam catalog", seam_version, sql.SEAM_VERSION),
    ):
        if found > known:
            raise SourceError(
                f"schema modak of this database has {kind} version {found}; this mirror-pump knows {known}",
                "run the mirror-pump that upgraded it, or a later one",
            )
    return int(version)


def require_current(connection: psycopg.Connection[Any]) -> None:
    """Raises SourceError unless schema modak is there and at this program's version."""
    with _readable():
        version = installed_version(connection)
    if version != latest_version():
        found = (
            "no mirror catalog"
            if version is None
            else f"mirror catalog version {version}, this program needs {latest_version()}"
        )
        raise SourceError(f"this database has {found}", "run: mirror-pump init")


def migrate(connection: psycopg.Connection[Any]) -> MigrationResult:
    """Runs the missing migrations, all in one transaction (the caller's, if it has one open), one caller at a time.

    Raises SourceError for a database that is newer than this program, is somebody else's, or does not let us in.
    """
    with _readable(), connection.transaction():
        connection.execute(_LOCK)
        before = installed_version(connection) or 0
        pending = [step for step in sql.migrations() if step.version > before]
        if pending and before == 0:
            # Asked first: CREATE SCHEMA IF NOT EXISTS wants the right to create even where the schema is there.
            if _one(connection, "SELECT to_regnamespace('modak') IS NULL")[0]:
                connection.execute("CREATE SCHEMA modak")
            _script(connection, _LEDGER)
        for step in pending:
            _script(connection, step.text)
            connection.execute(
                "INSERT INTO modak.mirror_migrations (version, name) VALUES (%s, %s)", (step.version, step.name)
            )
    applied = tuple(f"{step.version:04d}_{step.name}" for step in pending)
    return MigrationResult(before, pending[-1].version if pending else before, applied)


def _script(connection: psycopg.Connection[Any], text: str) -> None:
    # As bytes: psycopg takes a str from source code only, and these come from the package's files.
    connection.execute(text.encode())


def _one(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        row = cursor.execute(query.encode()).fetchone()
    assert row is not None
    return row


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"this role may not use or make schema modak: {error.diag.message_primary}",
            "as an owner of the database: CREATE SCHEMA modak AUTHORIZATION <the mirror's role>",
        ) from error
