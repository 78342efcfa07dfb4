"""Followers: other catalogs in which the mirrored tables are shown, and what is recorded of each.

What a follower shows is in its tables' own properties (mirror_pump/ops/follow/follower_tables.py). What is recorded
here says which tables to look at there, and which files have to stay for them: a table is recorded before it is
registered or moved, so no death of a pump leaves one behind that no row names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.errors import FollowerError, UsageError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName, format_lsn
from mirror_pump.source.advisory_locks import advisory_key
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import TypedRow, fetch_rows
from sql import queries

_SQL = queries("followers")

FILES_STAY = 86_400.0
"""Seconds for which files stay that a follower's tables name, after its tables were looked at last: one that is away
for longer must not keep them for ever."""
_EXAMINED_AFTER = 600.0
"""Seconds after which all tables of a follower are looked at, whether they have changed in the mirror or not."""
_REFUSED_AFTER = 60.0
"""The same, if one of its tables could not follow."""
_PLACEHOLDER = re.compile(r"\{(schema|table)\}")

Identifier = tuple[str, ...]
"""A table's name in another catalog, behind the names of its namespace."""


class FollowerKind(StrEnum):
    """The kinds of catalogs that can follow, by pyiceberg's names."""

    REST = "rest"
    GLUE = "glue"
    HIVE = "hive"

    @property
    def folds_names(self) -> bool:
        """Whether names there are in lower case, and namespaces have one level."""
        return self is not FollowerKind.REST


@dataclass(frozen=True)
class Follower(
    TypedRow,
    JsonDocument,
    keys={
        **dict.fromkeys(("slot", "follower_id", "published", "published_at", "read_at", "may_move")),
        "credential_ref": "credentials",
    },
    also=("behind_seconds", "files_stay"),
):
    """A row of the query `followers`. It holds no secrets."""

    slot: str
    name: str
    follower_id: str
    """By which its tables there are recognised."""
    kind: FollowerKind
    options: dict[str, str]
    """Properties of pyiceberg's catalog, such as `uri` and `warehouse`."""
    credential_ref: str | None
    namespace_pattern: str
    table_pattern: str
    frontier: Lsn | None
    """All of its tables are as of this frontier, or have not changed since theirs. None: not all are there yet."""
    reached_at: datetime | None
    """When that was reached."""
    examined_at: datetime | None
    """When all of its tables were looked at."""
    moves_together: bool | None
    """Whether it takes changes of several tables in one commit; None before the first."""
    error: str | None
    """Why it does not follow, and what to do; None if it does."""
    behind_since: datetime | None
    """Since when it has been behind, as its rounds have noticed."""
    ends: bool
    """Whether it is being removed."""
    published: Lsn
    """The mirror's frontier."""
    published_at: datetime | None
    """When that was published."""
    read_at: datetime
    """When this was read, by the database's clock."""
    tables: int
    """How many tables it shows."""
    refused: int
    """How many cannot be shown, or have been changed there by others."""
    may_move: bool
    """Whether a pump has found that this is the mirror's server, and no copy of it or a former state."""

    @property
    def behind_seconds(self) -> float:
        """For how long it has been behind the mirror's frontier; 0 if it is not."""
        since = self.behind_since or self.published_at
        if self.frontier == self.published or since is None:
            return 0.0
        return max(0.0, (self.read_at - since).total_seconds())

    @property
    def files_stay(self) -> bool:
        """Whether files are still kept that its tables name."""
        return self.examined_at is not None and (self.read_at - self.examined_at).total_seconds() < FILES_STAY

    @property
    def examination_due(self) -> bool:
        """Whether all of its tables are to be looked at."""
        interval = _REFUSED_AFTER if self.refused else _EXAMINED_AFTER
        return self.examined_at is None or (self.read_at - self.examined_at).total_seconds() >= interval

    @property
    def text(self) -> str:
        """What it is and how far it has come, for people."""
        where = " ".join(filter(None, (self.kind.value, self.options.get("uri") or self.options.get("glue.region"))))
        frontier = "nowhere yet" if self.frontier is None else f"at frontier {format_lsn(self.frontier)}"
        parts = [f"{self.name}: {where}", frontier, f"{self.tables} tables"]
        if self.behind_seconds:
            parts.insert(2, f"{self.behind_seconds:.0f} s behind")
        if self.refused:
            parts.append(f"{self.refused} of them refused")
        if self.moves_together is not None:
            parts.append("all at once" if self.moves_together else "one after the other")
        if self.ends:
            parts.append("is being removed")
        return ", ".join(parts)

    @property
    def lease(self) -> str:
        """The name of the pins of what it shows."""
        return f"mirror-pump follower {self.name} {self.follower_id}"

    @property
    def lock_key(self) -> int:
        """The advisory lock of the one program that changes something there."""
        return advisory_key(f"follower {self.follower_id}")

    def identifier(self, table: TableName) -> Identifier:
        """What a table is called there."""
        names = {"schema": table.schema, "table": table.name}

        def filled(pattern: str) -> str:
            name = _PLACEHOLDER.sub(lambda match: names[match[1]], pattern)
            return name.lower() if self.kind.folds_names else name

        return (*map(filled, self.namespace_pattern.split(".")), filled(self.table_pattern))


@dataclass(frozen=True)
class FollowerTable(TypedRow):
    """A row of the query `tables`: what a follower shows of one registration."""

    table_id: TableId
    start_lsn: Lsn
    namespace: list[str]
    name: str
    table_uuid: str
    directory: str
    """Where its metadata files are that the mirror writes for this follower."""
    snapshot_id: SnapshotId | None
    """What it shows. None: it was never seen there."""
    next_snapshot_id: SnapshotId | None
    """What it may show since, if the answer was lost."""
    published_location: str | None
    """The published metadata that it was made to show."""
    metadata_location: str | None
    """Its metadata file there, when it was looked at last."""
    error: str | None
    """Why it does not follow, and what to do."""

    @property
    def identifier(self) -> Identifier:
        """Its name there."""
        return (*self.namespace, self.name)

    @property
    def registration(self) -> tuple[TableId, Lsn]:
        """Which registration of which table it shows."""
        return self.table_id, self.start_lsn


def check_pattern(option: str, pattern: str) -> str:
    """The pattern of names. Raises UsageError."""
    rest = _PLACEHOLDER.sub("x", pattern)
    if not rest or "{" in rest or "}" in rest or (option == "--namespace" and not all(rest.split("."))):
        raise UsageError(
            f"{option} {pattern} is no pattern of names",
            "give a name, in which {schema} and {table} stand for those of the mirrored table, such as shop_{schema}",
        )
    return pattern


def read_followers(connection: PgConnection, slot: str, name: str | None = None) -> list[Follower]:
    """All followers of a mirror, or the one of this name, by name. Raises SourceError."""
    with source_errors("reading the followers"):
        return fetch_rows(connection, Follower, _SQL["followers"], {"slot": slot, "name": name})


def one_follower(connection: PgConnection, slot: str, name: str) -> Follower:
    """Raises UsageError if there is none of this name, SourceError."""
    followers = read_followers(connection, slot, name)
    if not followers:
        raise UsageError(f"there is no follower {name}", "`mirror-pump follow list` shows the followers")
    return followers[0]


def insert_follower(connection: PgConnection, slot: str, name: str, **columns: Any) -> None:
    """Raises psycopg's UniqueViolation if there is one of this name."""
    options = Jsonb(dict(columns.pop("options")))
    connection.execute(_SQL["add"], {"slot": slot, "name": name, "options": options, **columns})


def end_follower(connection: PgConnection, follower: Follower) -> None:
    """Has no pump register anything there any more. Raises SourceError."""
    _execute(connection, "end", follower)


def delete_follower(connection: PgConnection, follower: Follower) -> None:
    """Forgets it. Raises SourceError."""
    _execute(connection, "delete", follower)


def take_lock(connection: PgConnection, follower: Follower) -> bool:
    """Makes this session the one that changes something there, until it ends. False if another one is. Raises
    SourceError."""
    with source_errors("locking a follower"):
        row = connection.execute(_SQL["lock"], {"key": follower.lock_key}).fetchone()
    return row is not None and bool(row[0])


def tables_of(connection: PgConnection, follower: Follower) -> list[FollowerTable]:
    """What is recorded of its tables. Raises SourceError."""
    with source_errors("reading a follower's tables"):
        return fetch_rows(connection, FollowerTable, _SQL["tables"], {"slot": follower.slot, "name": follower.name})


def require_follower(connection: PgConnection, follower: Follower) -> None:
    """Has it stay until the end of the transaction. Raises FollowerError if it is being removed, psycopg.Error."""
    if connection.execute(_SQL["stays"], {"follower_id": follower.follower_id}).fetchone() is None:
        raise FollowerError(f"follower {follower.name} is being removed", "nothing follows there any more")


def store_tables(connection: PgConnection, follower: Follower, tables: Sequence[FollowerTable]) -> None:
    """Records these tables, in one transaction. Raises FollowerError if the follower is being removed, SourceError."""
    with source_errors("recording a follower's tables"), connection.transaction():
        require_follower(connection, follower)
        for table in tables:
            connection.execute(_SQL["store_table"], {"slot": follower.slot, "follower": follower.name, **vars(table)})


def delete_table(connection: PgConnection, follower: Follower, table: FollowerTable) -> None:
    """Forgets a table that is not there any more. Raises SourceError."""
    _execute(connection, "delete_table", follower, **vars(table))


def note_begun(connection: PgConnection, follower: Follower) -> None:
    """Records that it is behind from now on, unless it has been. Raises SourceError."""
    _execute(connection, "begun", follower)


def note_reached(
    connection: PgConnection, follower: Follower, frontier: Lsn | None, *, moves_together: bool, examined: bool
) -> None:
    """Records how far it has followed. `frontier`: None if one of its tables could not. Raises SourceError."""
    outcome = {"frontier": frontier, "moves_together": moves_together, "examined": examined}
    _execute(connection, "reached", follower, **outcome)


def note_failed(connection: PgConnection, follower: Follower, error: str) -> None:
    """Records why it does not follow. Raises SourceError."""
    _execute(connection, "failed", follower, error=error)


def _execute(connection: PgConnection, query: str, follower: Follower, **parameters: object) -> None:
    # By its ID: another one of its name may have been added meanwhile.
    with source_errors("recording a follower"):
        connection.execute(_SQL[query], {"follower_id": follower.follower_id, **parameters})
