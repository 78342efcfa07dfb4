"""Damaged files of lake tables: which table fails because of one, and which are recorded for the alerts of `status`.

A table fails when the stream cannot be applied without the file. A job that is not part of the stream (a merge, a
conversion, a key index, a proof) fails alone, and the table continues. Then the file is recorded, until it can be read
again or the table does not need it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from mirror_pump.errors import FileDamaged, FileMissing, LakeError, TableError, copy_anew, is_data_file
from mirror_pump.lake.commit.presence import readers_files, require_head, wrong_files
from mirror_pump.lake.commit.readable_files import is_damaged
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("damaged_files")


def damage_failure(table: MirroredTable, error: FileDamaged) -> Failure:
    """The failure of a table whose changes need the damaged file."""
    only_copy = table.tier is not None and table.tier.moved
    return Failure.of(table, TableError(f"{table.name}: {error}", copy_anew(table.name.shell, only_copy=only_copy)))


@dataclass(frozen=True)
class RecordedDamage:
    """A row of the query `recorded`."""

    table_id: TableId
    location: str
    metadata_files: list[str]
    """Those of the table's readers and of the next commit."""


def record_damage(connection: PgConnection, table_id: TableId, error: FileDamaged | FileMissing) -> None:
    """Records a lost or damaged file of the table, unless it is recorded or the table is not mirrored any more."""
    connection.execute(_SQL["record"], {"table_id": table_id, "location": error.location, "error": str(error)})


def recorded_damage(connection: PgConnection, slot: str) -> list[RecordedDamage]:
    """All recorded files of a mirror."""
    return fetch_rows(connection, RecordedDamage, _SQL["recorded"], {"slot": slot})


def is_repaired(recorded: RecordedDamage, storage: StorageOptions) -> bool:
    """Whether the file can be read again, or no metadata file of its table names it. False if that is not known."""
    try:
        wrong = {error.location for location in recorded.metadata_files for error in wrong_files(location, storage)}
        if recorded.location in wrong or not all(map(is_data_file, wrong)):
            return False
        if not is_data_file(recorded.location):
            return True
        heads = (require_head(location, storage) for location in recorded.metadata_files)
        needed = any(recorded.location in readers_files(head) for head in heads)
        return not needed or not is_damaged(recorded.location, storage)
    except LakeError:
        return False


def forget_damage(connection: PgConnection, recorded: RecordedDamage) -> None:
    """Ends the alert of the file."""
    connection.execute(_SQL["forget"], {"table_id": recorded.table_id, "location": recorded.location})


class FileOwner(StrEnum):
    """What needs files of the lake."""

    TABLE = "table"
    FEED = "feed"
    MOMENT = "moment"
    """A table of a moment."""


@dataclass(frozen=True)
class NeededFiles:
    """A row of the query `needed`: a metadata file that readers open."""

    kind: str
    owner_id: int
    """The table's ID, also of a moment; or the feed's."""
    moment: str
    """The moment's name; else empty."""
    metadata_location: str
    location: str
    """Root URI of the table's or the feed's files; of a moment the metadata file again."""

    @property
    def owner(self) -> tuple[str, int, str]:
        """Tells it from all others, whichever metadata files it has."""
        return self.kind, self.owner_id, self.moment

    @property
    def root(self) -> str:
        """Root URI of the files of its table or feed."""
        if self.kind == FileOwner.MOMENT:
            # In the directory `seam` or `metadata` of its table.
            return self.location.rsplit("/", 2)[0]
        return self.location


def needed_files(connection: PgConnection, slot: str) -> list[NeededFiles]:
    """What each table, feed and moment of a mirror needs, in the order of their owners."""
    return fetch_rows(connection, NeededFiles, _SQL["needed"], {"slot": slot})


def record_wrong_files(
    connection: PgConnection, slot: str, needed: NeededFiles, wrong: Mapping[str, FileMissing | FileDamaged]
) -> None:
    """Records what is lost or damaged of a table, or replaces what was recorded of a feed or of a moment."""
    if needed.kind == FileOwner.TABLE:
        for error in wrong.values():
            # That its metadata file is gone is found, and decided upon, within seconds.
            if not (isinstance(error, FileMissing) and error.location == needed.metadata_location):
                record_damage(connection, TableId(needed.owner_id), error)
        return
    parameters = {"slot": slot, "locations": sorted(wrong), **asdict(needed)}
    statement = _SQL["record_of_feed"] if needed.kind == FileOwner.FEED else _SQL["record_of_moment"]
    connection.execute(statement, parameters)
