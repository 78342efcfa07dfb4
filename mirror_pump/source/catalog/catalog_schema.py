"""Creates and upgrades schema modak of a source database. Refuses a schema that is newer than this program.

Migrations create the tables; each runs once. Functions and views are in files that are applied whenever they have
changed (catalog_functions.py). Both happen in one transaction, which waits for no lock for long: all who read the
catalog would wait behind it. It begins again after a pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import psycopg.rows

import sql
from mirror_pump.errors import SourceError
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.source.catalog.catalog_functions import (
    FunctionDifference,
    apply_functions,
    function_difference,
    program_version,
)
from mirror_pump.source.catalog.lock_holders import naming_obstacles
from mirror_pump.source.connect import AS_ITS_ROLE, acting_as, limited
from mirror_pump.source.server import require_version
from sql.mirror_names import SCHEMA, marked

_SQL = sql.queries("catalog")
_LOCK = f"SELECT pg_advisory_xact_lock(hashtextextended('{SCHEMA}.mirror_migrations', 0))"

_LOCK_TIMEOUT = "1s"
"""How long an attempt waits for one lock."""
_PAUSES = Backoff(first=1.0, longest=5.0, jitter=0.5)
_PATIENCE = 120.0
"""Seconds after which no other attempt begins."""


@dataclass(frozen=True)
class MigrationResult:
    """What `migrate` did."""

    before: int
    """The version that was installed before; 0 if schema modak was empty or missing."""
    after: int
    applied: tuple[str, ...]
    """Names of the migrations that were run, in order, such as `0001_catalog`."""
    functions: tuple[str, ...]
    """Names of the files of sql/functions that were applied."""


def latest_version() -> int:
    """The schema version that this program works with."""
    return sql.migrations()[-1].version


def installed_version(connection: psycopg.Connection[Any]) -> int | None:
    """The version of schema modak; None if it does not contain our catalog.

    Raises SourceError if the schema belongs to another program, since two writers of one cut-line would corrupt it; if
    it has something else, which the mirror's end would drop with it; or if it is newer than this program.
    """
    has_catalog, has_seam = _only_row(connection, _SQL["catalogs"])
    if not has_catalog:
        if has_seam:
            raise SourceError(
                "schema modak of this database belongs to another program that implements the seam protocol",
                "mirror a database without that program, or have that program unregister its tables and remove its"
                " schema: rows that left PostgreSQL are named there alone",
            )
        if _only_row(connection, _SQL["is_used"]) == (True,):
            raise SourceError(
                "schema modak of this database has objects, and no catalog of a mirror",
                "empty it, or give the mirror another name: --mirror NAME (docs/operations.md#several-mirrors)",
            )
        return None
    version, seam_version = _only_row(
        connection,
        _SQL["versions"],
    )
    for kind, installed, supported in (
        ("catalog", version, latest_version()),
        ("seam catalog", seam_version, sql.SEAM_VERSION),
    ):
        if installed > supported:
            raise SourceError(
                f"schema modak of this database has {kind} version {installed}; this mirror-pump knows {supported}",
                "run the mirror-pump that upgraded it, or a later one",
            )
    return int(version)


def require_current(connection: psycopg.Connection[Any]) -> None:
    """Raises SourceError unless schema modak exists and has this program's version and functions. What `init` would
    refuse as well is said at once: a version of PostgreSQL."""
    with _readable():
        version = installed_version(connection)
    if version != latest_version():
        require_version(connection)
        state = f"mirror catalog version {version}, this program needs {latest_version()}"
        if version is None:
            state = "no mirror catalog"
        elif version == 0:
            state = "a mirror catalog of unknown version: modak.mirror_migrations is empty, as after a partial restore"
        raise SourceError(f"this database has {state}", "run: mirror-pump init")
    with _readable():
        difference = function_difference(connection)
    if difference is None:
        return
    _refuse_newer(difference)
    require_version(connection)
    raise SourceError(
        f"the functions in schema modak are not those of this mirror-pump, {program_version()}:"
        f" {', '.join(difference.files)} differ (last applied by mirror-pump {difference.applied_by or '-'})",
        "run: mirror-pump init",
    )


def _refuse_newer(difference: FunctionDifference | None) -> None:
    if difference is not None and difference.newer:
        raise SourceError(
            f"the functions in schema modak are those of mirror-pump {difference.applied_by}; this is"
            f" {program_version()}",
            f"run mirror-pump {difference.applied_by} or a later one",
        )


def migrate(connection: psycopg.Connection[Any], *, patience: float = _PATIENCE) -> MigrationResult:
    """Runs the missing migrations and applies changed functions, in one transaction (the caller's, if one is open).

    Everything is created by the owner of schema modak, whichever role calls. Concurrent calls wait for each other. If
    there is nothing to do, no other lock is taken. Raises SourceError if the schema is newer than this program, belongs
    to another program, if this role lacks privileges, or if a lock was not granted for `patience` seconds.
    """
    try:
        with _readable():
            return _PAUSES.call(lambda: _attempt(connection), _is_locked, seconds=patience)
    except psycopg.Error as error:
        if not _is_locked(error):
            raise
        raise naming_obstacles(connection) from error


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected)


def _attempt(connection: psycopg.Connection[Any]) -> MigrationResult:
    with connection.transaction():
        connection.execute(_LOCK)
        before = installed_version(connection) or 0
        if before:
            _refuse_newer(function_difference(connection))
        elif _is_forgotten(connection):
            before = _remember_migrations(connection)
        pending = [step for step in sql.migrations() if step.version > before]
        # What a superuser adds would run with a superuser's rights.
        other_owner: tuple[str] | None = connection.execute(_SQL["other_owner"]).fetchone()
        (limit,) = _only_row(connection, "SELECT current_setting('lock_timeout')")
        with acting_as(connection, other_owner[0] if other_owner else None), limited(connection, _LOCK_TIMEOUT):
            if pending and before == 0:
                # CREATE SCHEMA IF NOT EXISTS would require the privilege to create schemas even if this one exists.
                if _only_row(connection, f"SELECT to_regnamespace('{SCHEMA}') IS NULL")[0]:
                    connection.execute(f"CREATE SCHEMA {SCHEMA}")
                _script(connection, _SQL["create_migrations"])
            for step in pending:
                _script(connection, step.text)
                connection.execute(
                    f"INSERT INTO {SCHEMA}.mirror_migrations (version, name) VALUES (%s, %s)", (step.version, step.name)
                )
            functions = apply_functions(connection, everything=bool(pending))
        # What the caller's transaction does next waits as it did before.
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (limit,))
    applied = tuple(f"{step.version:04d}_{step.name}" for step in pending)
    return MigrationResult(before, pending[-1].version if pending else before, applied, functions)


def _is_forgotten(connection: psycopg.Connection[Any]) -> bool:
    """Whether the catalog has had migrations of which no row is left."""
    return bool(_only_row(connection, f"SELECT to_regclass('{SCHEMA}.mirror_functions') IS NOT NULL")[0])


def _remember_migrations(connection: psycopg.Connection[Any]) -> int:
    """Records the migrations again, if the functions tell which those were. Returns the version."""
    if function_difference(connection) is not None:
        raise SourceError(
            "modak.mirror_migrations is empty, as after a partial restore, and nothing else tells which version the"
            " catalog has",
            "restore its rows from a backup, or run `mirror-pump init` of the mirror-pump that was used last",
        )
    for step in sql.migrations():
        connection.execute(
            f"INSERT INTO {SCHEMA}.mirror_migrations (version, name) VALUES (%s, %s)", (step.version, step.name)
        )
    return latest_version()


def _script(connection: psycopg.Connection[Any], text: str) -> None:
    # As bytes: psycopg's types accept only literal strings, and these come from the package's files.
    connection.execute(marked(text).encode())


def _only_row(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
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
            f"this role may not use or create schema modak: {error.diag.message_primary}",
            f"{AS_ITS_ROLE}. The admin is the role that owns schema modak. If that does not exist yet, run as the"
            " database's owner: CREATE SCHEMA modak AUTHORIZATION <the mirror's role>",
        ) from error
