"""The lock under which pointers of the mirror's lake tables move. Only its holder can move one.

Nothing slow happens under it, since all publishes wait meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.catalog import (
    delete_pointer,
    ensure_namespace,
    insert_pointer,
    rename_pointer,
    replace_pointer,
    swap_pointer,
)
from mirror_pump.model import TableName
from mirror_pump.source.catalog.slot_row import SlotRow, lock_slot
from mirror_pump.source.connect import PgConnection


@dataclass(frozen=True)
class SlotLock:
    """The lock of a mirror, which the connection holds until its transaction ends.

    Invariant: a pointer moves only from the metadata file that the move was staged on, or not at all. So no commit of
    another program is lost: it is the new base, or the move fails.
    """

    connection: PgConnection
    row: SlotRow | None
    """None if the slot is not in the catalog."""

    @classmethod
    def take(cls, connection: PgConnection, slot: str, stopped_seconds: int | None = None) -> SlotLock:
        """Waits for the lock, within a transaction of the caller. If this process is stopped while it holds the lock,
        the server ends its session after `stopped_seconds`. Raises psycopg.Error."""
        return cls(connection, lock_slot(connection, slot, stopped_seconds))

    def move(self, lake_name: TableName, old: str, new: str) -> None:
        """Moves a table's pointer from one metadata file to another. Raises CommitConflict if it is not at `old`."""
        if not swap_pointer(self.connection, lake_name.schema, lake_name.name, old, new):
            raise CommitConflict(f"another engine committed to {lake_name} in the lake")

    def insert(self, lake_name: TableName, location: str) -> None:
        """Enters a new table, and its namespace. Raises psycopg's UniqueViolation if the catalog has it already."""
        ensure_namespace(self.connection, lake_name.schema)
        insert_pointer(self.connection, lake_name.schema, lake_name.name, location)

    def replace(self, lake_name: TableName, location: str) -> None:
        """Puts another table in the place of one that the catalog has."""
        ensure_namespace(self.connection, lake_name.schema)
        replace_pointer(self.connection, lake_name.schema, lake_name.name, location)

    def rename(self, lake_name: TableName, new_name: TableName) -> str | None:
        """Gives a table another name. Returns its metadata file; None if the catalog does not have the table."""
        return rename_pointer(self.connection, lake_name, new_name)

    def delete(self, lake_name: TableName) -> bool:
        """Removes a table from the catalog. Its files stay. Returns False if the catalog did not have it."""
        return delete_pointer(self.connection, lake_name.schema, lake_name.name)
