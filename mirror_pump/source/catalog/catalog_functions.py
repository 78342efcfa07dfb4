"""Keeps the functions, views and triggers of schema modak equal to those of this program (sql/functions).

Each file's checksum and the objects that it defined are recorded in modak.mirror_functions. A file runs again when its
checksum differs from what is recorded. CREATE OR REPLACE keeps an object's OID and privileges, so triggers on users'
partitions and views of users go on with the new text. What cannot be replaced is handled here:

- A function whose result or parameter names changed, or a view that lost columns, is dropped and made again, with the
  privileges that it had. If something of a user's depends on it, nothing is changed and the user is told.
- An object that no file defines any more is dropped, unless something depends on it: then it stays, and the next
  change of the functions tries again.

Only recorded objects are ever dropped: what others put into schema modak is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psycopg
import psycopg.rows

import sql
from mirror_pump.errors import SourceError
from mirror_pump.source.rows import fetch_rows
from sql.mirror_names import marked

_Connection = psycopg.Connection[Any]

_SQL = sql.queries("catalog")
_RETIRED = ""
"""The checksum of a file that this program has not got, while something depends on an object of it."""
_TO_DROP = re.compile(r"DROP FUNCTION (modak\w*\..+\))")
"""In the hint of an error of CREATE OR REPLACE FUNCTION. The rest of the hint may be in any language."""


@dataclass(frozen=True)
class FunctionDifference:
    """The functions of a database are not those of this program."""

    files: tuple[str, ...]
    """The files of sql/functions that differ, or that only one of the two has."""
    applied_by: str | None
    """Version of the program that applied them last; None if none has."""
    newer: bool
    """That program is newer than this one."""


@dataclass(frozen=True)
class _RecordedFunctions:
    """A row of the query `recorded`."""

    file: str
    """Without `.sql`."""
    checksum: str
    objects: list[str]
    """As DROP takes them, such as `FUNCTION modak.pin_below(bigint,bigint,boolean)`."""
    program: str


@cache
def program_version() -> str:
    """The version of this program; `0` where its metadata is missing. Looked up once: this reads the directory of every
    archive on the path, such as Spark's."""
    try:
        return version("mirror-pump")
    except PackageNotFoundError:
        return "0"


def function_difference(connection: _Connection) -> FunctionDifference | None:
    """How the database's functions differ from this program's; None if they do not. Schema modak has to be there."""
    recorded = {name: row for name, row in _recorded(connection).items() if row.checksum != _RETIRED}
    checksums = {file.name: file.checksum for file in sql.functions()}
    differing = sorted(
        name
        for name in recorded.keys() | checksums.keys()
        if name not in recorded or checksums.get(name) != recorded[name].checksum
    )
    if not differing:
        return None
    programs = sorted((row.program for row in recorded.values()), key=_release)
    applied_by = programs[-1] if programs else None
    newer = applied_by is not None and _release(applied_by) > _release(program_version())
    return FunctionDifference(tuple(differing), applied_by, newer)


def apply_functions(connection: _Connection, *, everything: bool) -> tuple[str, ...]:
    """Runs the files whose text has changed, or `everything`: after a migration, which may have dropped a view.

    In the caller's transaction, of which one runs at a time. Returns the names of the files. Raises SourceError if
    an object has to be dropped that something else depends on.
    """
    recorded_files = _recorded(connection)
    files = sql.functions()
    stale = [
        file
        for file in files
        if everything or file.name not in recorded_files or recorded_files[file.name].checksum != file.checksum
    ]
    gone = {name for name, row in recorded_files.items() if row.checksum != _RETIRED} - {file.name for file in files}
    if not stale and not gone:
        return ()
    settings = _rows(connection, _SQL["save_settings"])[0]
    connection.execute(_SQL["use_settings"].encode())
    defined = {}
    objects = _existing_objects(connection)
    for file in stale:
        before, objects = objects, _run(connection, file, recorded_files)
        defined[file.name] = sorted(name for name, place in objects.items() if before.get(name) != place)
    _drop_undefined(connection, recorded_files, defined, {file.name for file in files})
    for file in stale:
        connection.execute(
            _SQL["record"].encode(),
            {"file": file.name, "checksum": file.checksum, "objects": defined[file.name], "program": program_version()},
        )
    connection.execute(_SQL["restore_settings"].encode(), settings)
    return tuple(file.name for file in stale)


def _run(
    connection: _Connection, file: sql.FunctionFile, recorded_files: Mapping[str, _RecordedFunctions]
) -> dict[str, str]:
    """Runs one file; returns what is present then."""
    ours = {name for row in recorded_files.values() for name in row.objects}
    dropped: set[str] = set()
    grants: list[tuple[str, str]] = []
    while True:
        try:
            with connection.transaction():
                # As bytes: psycopg takes a str from source code only, and this comes from the package's files.
                connection.execute(marked(file.text).encode())
            break
        except psycopg.errors.InvalidFunctionDefinition as error:
            match = _TO_DROP.search(error.diag.message_hint or "")
            blocking = {f"FUNCTION {match[1]}"} if match else set()
            to_drop = (blocking & ours) - dropped
            if not to_drop:
                raise
        except psycopg.errors.InvalidTableDefinition:
            # A view has lost or renamed columns; which one, the server does not say.
            recorded = recorded_files[file.name].objects if file.name in recorded_files else ()
            to_drop = {name for name in recorded if name.startswith("VIEW ")} - dropped
            if not to_drop:
                raise
        for name in sorted(to_drop):
            grants += [(name, grant) for (grant,) in _rows(connection, _SQL["grants"], {"object": name})]
            _drop_to_replace(connection, name)
        dropped |= to_drop
    objects = _existing_objects(connection)
    for name, grant in grants:
        if name in objects:
            connection.execute(grant.encode())
    # A grant moves the row that holds a definition.
    return _existing_objects(connection) if grants else objects


def _drop_to_replace(connection: _Connection, name: str) -> None:
    try:
        with connection.transaction():
            connection.execute(f"DROP {name}".encode())
    except psycopg.errors.DependentObjectsStillExist as error:
        raise SourceError(
            f"{name.lower()} has to be dropped and created again for this mirror-pump, but other objects depend on it:"
            f" {error.diag.message_detail}",
            "drop what depends on it, run `mirror-pump init`, then create it again",
        ) from error


def _drop_undefined(
    connection: _Connection,
    recorded_files: Mapping[str, _RecordedFunctions],
    defined: Mapping[str, list[str]],
    files: Iterable[str],
) -> None:
    """Drops recorded objects that no file defines any more. Those that something depends on stay recorded."""
    unchanged = {
        name for file, row in recorded_files.items() if file not in defined and file in files for name in row.objects
    }
    still_defined = unchanged.union(*defined.values())
    for file, row in recorded_files.items():
        left = [name for name in row.objects if name not in still_defined and not _dropped(connection, name)]
        if file in defined:
            defined[file].extend(left)
        elif file not in files and left:
            connection.execute(
                _SQL["record"].encode(),
                {"file": file, "checksum": _RETIRED, "objects": left, "program": row.program},
            )
        elif file not in files:
            connection.execute(_SQL["forget"].encode(), {"file": file})


def _dropped(connection: _Connection, name: str) -> bool:
    try:
        with connection.transaction():
            connection.execute(f"DROP {name.replace(' ', ' IF EXISTS ', 1)}".encode())
    except psycopg.errors.DependentObjectsStillExist:
        return False
    return True


def _existing_objects(connection: _Connection) -> dict[str, str]:
    """The functions and views of schema modak, and where their definitions are stored: that changes whenever they are
    replaced, also by the same text."""
    return dict(_rows(connection, _SQL["objects"]))


def _recorded(connection: _Connection) -> dict[str, _RecordedFunctions]:
    return {row.file: row for row in fetch_rows(connection, _RecordedFunctions, _SQL["recorded"])}


def _release(program: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    match = re.match(r"\d+(\.\d+)*", program)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _rows(connection: _Connection, query: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchall()
