"""Moments that are kept: names of frontiers, and the snapshot of each table at each of them.

A moment stays until it is dropped. Its rows name what has to stay: the snapshots, which the lake tables' tags name too,
and a metadata file for each. A registration may end before its moments: nothing of it is deleted then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from mirror_pump.errors import UsageError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName
from mirror_pump.source.catalog.pins import PinSubject, of_snapshots
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import TypedRow, fetch_rows
from sql import queries

_SQL = queries("moments")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_POSITION = re.compile(r"[0-9A-Fa-f]{1,8}-[0-9A-Fa-f]{1,8}")
_WORDS = frozenset({"latest", "now"})
"""Names of warehouses have them in the place of a moment's name."""

TAG_PREFIX = "moment."
"""The beginning of the tags that name a moment's snapshots. No moment's name has a full stop."""


def is_moment_name(text: str) -> bool:
    """Whether a moment may be called that: it is neither a position, a time nor a word of the warehouses' names."""
    return bool(_NAME.fullmatch(text)) and not _POSITION.fullmatch(text) and text.lower() not in _WORDS


def moment_name(text: str) -> str:
    """The name of a moment. Raises UsageError if none may be called that."""
    if not is_moment_name(text):
        raise UsageError(
            f"{text!r} is no name for a moment",
            "begin with a letter, and go on with letters, digits, - and _, up to 63; not like a position (a-1), and"
            " neither latest nor now",
        )
    return text


@dataclass(frozen=True)
class KeptTable(
    TypedRow, JsonDocument, keys={"table_id": None, "pointer": None, "damaged_files": None}, also=("registered",)
):
    """One table of a moment."""

    table_id: TableId
    table: TableName
    """Its name in the lake when the moment was kept."""
    snapshot_id: SnapshotId
    """What `mirror@NAME` shows: of a table with heap retention, the rows below the cut-line."""
    metadata_location: str
    """A metadata file in which that is the current and only snapshot."""
    main_snapshot_id: SnapshotId
    """What `mirror.main@NAME` shows. The same but for tables with heap retention."""
    main_location: str
    pointer: str | None = None
    """The lake table's present metadata file; None if its registration has ended."""
    damaged_files: tuple[str, ...] = ()
    """URIs of files of it that were lost or damaged when the pump looked last."""

    @property
    def registered(self) -> bool:
        """Whether the registration that it had then goes on."""
        return self.pointer is not None


@dataclass(frozen=True)
class KeptMoment(JsonDocument, keys={"tables": None}):
    """A moment that stays until it is dropped."""

    name: str
    frontier: Lsn
    kept_at: datetime
    kept_by: str
    """The role that kept it."""
    note: str | None
    tables: tuple[KeptTable, ...]

    def to_json(self) -> dict[str, Any]:
        """What `status --json` says of it."""
        return super().to_json() | {
            "tables": [str(table.table) for table in self.tables],
            "damaged_files": [location for table in self.tables for location in table.damaged_files],
        }


@dataclass(frozen=True, kw_only=True)
class _MomentTableRow(KeptTable):
    """A row of the query `moment_tables`."""

    name: str
    frontier: Lsn
    kept_at: datetime
    kept_by: str
    note: str | None


def read_moments(connection: PgConnection, slot: str, name: str | None = None) -> tuple[KeptMoment, ...]:
    """All moments, the oldest frontier first, or the one of that name. Raises SourceError."""
    with source_errors("reading the moments that are kept"):
        rows = fetch_rows(connection, _MomentTableRow, _SQL["moment_tables"], {"slot": slot, "name": name})
    return tuple(
        KeptMoment(first.name, first.frontier, first.kept_at, first.kept_by, first.note, tables)
        for first, tables in (
            (group[0], tuple(KeptTable(**row.of_class(KeptTable)) for row in group))
            for group in (list(rows_of_one) for _, rows_of_one in groupby(rows, key=lambda row: row.name))
        )
    )


def insert_moment(
    connection: PgConnection, slot: str, name: str, frontier: Lsn, note: str | None, tables: Sequence[KeptTable]
) -> None:
    """Enters a moment, in the transaction that chooses its snapshots. Raises psycopg's UniqueViolation if there is one
    of that name."""
    moment = {"slot": slot, "name": name}
    connection.execute(_SQL["insert"], {**moment, "frontier": frontier, "note": note})
    columns = {
        "table_ids": [table.table_id for table in tables],
        "schemas": [table.table.schema for table in tables],
        "tables": [table.table.name for table in tables],
        "snapshot_ids": [table.snapshot_id for table in tables],
        "locations": [table.metadata_location for table in tables],
        "main_snapshot_ids": [table.main_snapshot_id for table in tables],
        "main_locations": [table.main_location for table in tables],
    }
    connection.execute(_SQL["insert_tables"], moment | columns)


def delete_moment(
    connection: PgConnection, slot: str, name: str, read: Collection[tuple[TableId, SnapshotId]], seconds: float
) -> None:
    """Removes a moment, and pins these snapshots of it for `seconds`: they may be being read."""
    of_snapshots([PinSubject(table_id, snapshot_id) for table_id, snapshot_id in read])(connection, seconds)
    connection.execute(_SQL["drop"], {"slot": slot, "name": name})


def moments_of_table(connection: PgConnection, table_id: TableId) -> list[str]:
    """Names of the moments that need files of a registration."""
    return _names(connection, "of_table", {"table_id": table_id})


def moments_at(connection: PgConnection, location: str) -> list[str]:
    """Names of the moments that need files below a location."""
    return _names(connection, "at_location", {"location": location})


def tags_of_table(connection: PgConnection, table_id: TableId) -> dict[str, SnapshotId]:
    """The tags that moments need in a lake table, with the snapshot of each."""
    with source_errors("reading the moments that are kept"):
        rows = connection.execute(_SQL["tags"], {"table_id": table_id}).fetchall()
    tags: dict[str, SnapshotId] = {}
    for name, (snapshot_id, main_snapshot_id) in rows:
        tag, main_tag = tag_names(name)
        tags[tag] = SnapshotId(snapshot_id)
        if main_snapshot_id != snapshot_id:
            tags[main_tag] = SnapshotId(main_snapshot_id)
    return tags


def drop_commands(names: Sequence[str]) -> str:
    """What gives these moments up."""
    return "; ".join(f"`mirror-pump moment drop {name}`" for name in names)


def moment_repair(name: str) -> str:
    """What to do about a file of a moment that is lost or damaged."""
    return (
        "restore the file from a backup, under the same name; or give the moment up:"
        f" `mirror-pump moment drop --yes {name}`"
    )


def _names(connection: PgConnection, query: str, parameters: dict[str, Any]) -> list[str]:
    with source_errors("reading the moments that are kept"):
        return [str(name) for (name,) in connection.execute(_SQL[query], parameters).fetchall()]


def tag_names(name: str) -> tuple[str, str]:
    """The tags of a moment's snapshots: of what `mirror@NAME` shows, and of `main` where that is another one."""
    return f"{TAG_PREFIX}{name}", f"{TAG_PREFIX}{name}.main"


def is_stale_tag(tag: str, names: Collection[str]) -> bool:
    """Whether a tag is that of a moment which is not among these any more."""
    return tag.startswith(TAG_PREFIX) and tag.removeprefix(TAG_PREFIX).removesuffix(".main") not in names
