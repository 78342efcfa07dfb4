"""Damaged files of lake tables: which table fails because of one, and which are recorded for the alerts of `status`.

A table fails when the stream cannot be applied without the file. A job that is not part of the stream (a merge, a
conversion, a key index, a proof) fails alone, and the table continues. Then the file is recorded, until it can be read
again or the table does not need it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.errors import FileDamaged, LakeError, TableError
from mirror_pump.lake.commit.presence import readers_files, require_head
from mirror_pump.lake.commit.readable_files import is_damaged
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("damaged_files")

_REMEDY = (
    "unregister the table and register it again, which copies it again; or restore the file from a backup first, if its"
    " former content has to be read until then"
)
_ONLY_COPY = (
    "the lake had the only copy of rows that left Postgres: restore the file from a backup, and the table can be read"
    " again as it was; to mirror what Postgres holds, unregister it with --keep-lake and register it"
)


def damage_failure(table: MirroredTable, error: FileDamaged) -> Failure:
    """The failure of a table whose changes need the damaged file."""
    only_copy = table.tier is not None and table.tier.moved
    return Failure.of(table, TableError(f"{table.name}: {error}", _ONLY_COPY if only_copy else _REMEDY))


@dataclass(frozen=True)
class RecordedDamage:
    """A row of the query `recorded`."""

    table_id: TableId
    location: str
    metadata_files: list[str]
    """Those of the table's readers and of the next commit."""


def record_damage(connection: PgConnection, table_id: TableId, error: FileDamaged) -> None:
    """Records a damaged file of the table, unless it is recorded or the table is not mirrored any more."""
    connection.execute(_SQL["record"], {"table_id": table_id, "location": error.location, "error": str(error)})


def recorded_damage(connection: PgConnection, slot: str) -> list[RecordedDamage]:
    """All recorded files of a mirror."""
    return fetch_rows(connection, RecordedDamage, _SQL["recorded"], {"slot": slot})


def is_repaired(recorded: RecordedDamage, storage: StorageOptions) -> bool:
    """Whether the file can be read again, or no metadata file of its table names it. False if that is not known."""
    try:
        heads = (require_head(location, storage) for location in recorded.metadata_files)
        needed = any(recorded.location in readers_files(head) for head in heads)
        return not needed or not is_damaged(recorded.location, storage)
    except LakeError:
        return False


def forget_damage(connection: PgConnection, recorded: RecordedDamage) -> None:
    """Ends the alert of the file."""
    connection.execute(_SQL["forget"], {"table_id": recorded.table_id, "location": recorded.location})
