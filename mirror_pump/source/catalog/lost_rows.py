"""Rows of schema modak that are gone although others need them: what to do about each, and how `init` mends them.

A partial restore loses them, or a DELETE by hand. Without its rows a table is not mirrored, and no command would know
of it. docs/faults.md lists what becomes of every table of the catalog.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from mirror_pump.model import Lsn, TableId
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from sql import SEAM_VERSION, queries

_SQL = queries("lost_rows")

_NOTES_SECRET = "mirror_secret"  # noqa: S105 - the name of a relation
_SHAPES = "mirror_shapes"
_POINTERS = "iceberg_tables"
_SEAM_VERSION = "schema_meta"


@dataclass(frozen=True)
class LostRow:
    """A row of modak.mirror_lost_rows()."""

    relation: str
    """The relation that lacks the row, with the schema."""
    table_id: TableId | None
    """None, like `table_name`, if the row is none of a table's."""
    table_name: str | None
    in_lake_alone: bool
    """Whether the lake or modak.delta may have rows of the table that its heap has not."""

    @property
    def _name(self) -> str:
        return self.relation.rpartition(".")[2]

    @property
    def message(self) -> str:
        """What is lost, and what happens because of it."""
        if self._name == _NOTES_SECRET:
            return (
                f"{self.relation} is empty, as after a partial restore: changes of tables' definitions and TRUNCATEs of"
                " partitions are not noted in the stream"
            )
        if self._name == _SEAM_VERSION:
            return (
                f"{self.relation} is empty, as after a partial restore: other readers do not know the catalog's version"
            )
        if self._name == _SHAPES:
            return (
                f"{self.relation} has no row of it, as after a partial restore: changes of its definition go unnoticed"
            )
        happens = "engines and readers do not find its lake table" if self._name == _POINTERS else "it is not mirrored"
        return f"{self.relation} has no row of it, as after a partial restore: {happens}"

    @property
    def remedy(self) -> str:
        """What to do."""
        name = shlex.quote(str(self.table_name))
        if self._name == _NOTES_SECRET:
            return "`mirror-pump init` makes a new one, and has all tables copied again"
        if self._name in (_SHAPES, _SEAM_VERSION):
            return "`mirror-pump init` records it again"
        if self._name == _POINTERS:
            return (
                f"restore its row from a backup, or `mirror-pump unregister {name}` and `mirror-pump register {name}`,"
                " which copies it again"
            )
        if self.in_lake_alone:
            return (
                "restore its rows of schema modak from a backup: rows that left its heap are in the lake alone. To give"
                f" up the registration and keep the lake table: `mirror-pump unregister {name} --keep-lake`"
            )
        if self._name == "tables":
            return (
                f"`mirror-pump init`, then `mirror-pump register {name}`; or `mirror-pump unregister {name}`, if it"
                " shall not be mirrored"
            )
        return f"`mirror-pump init` ends what is left of the registration; then `mirror-pump register {name}`"

    @property
    def is_secret(self) -> bool:
        """Whether it is the secret that signs change notes."""
        return self._name == _NOTES_SECRET

    @property
    def is_shape(self) -> bool:
        """Whether it is the definition of a table that was noted last."""
        return self._name == _SHAPES

    @property
    def ends_registration(self) -> bool:
        """Whether the table is not mirrored, and its registration cannot be completed again."""
        return self._name not in (_NOTES_SECRET, _SHAPES, _POINTERS, _SEAM_VERSION)


def read_lost_rows(connection: PgConnection) -> tuple[LostRow, ...]:
    """All that is lost, ordered by table."""
    with source_errors("looking for lost rows of schema modak"):
        return tuple(fetch_rows(connection, LostRow, _SQL["lost"]))


def lost_registration(connection: PgConnection, table_id: TableId) -> LostRow | None:
    """What a table's registration lacks so that it cannot go on. None if it lacks nothing, or there is none."""
    return next((row for row in read_lost_rows(connection) if row.table_id == table_id and row.ends_registration), None)


def is_begun(connection: PgConnection, table_id: TableId) -> bool:
    """Whether any row of a registration is left."""
    with source_errors("looking for a registration"):
        return connection.execute(_SQL["begun"], {"table_id": table_id}).fetchone() == (True,)


@dataclass(frozen=True)
class LostSlot:
    """A mirror whose row of modak.mirror_slots is gone."""

    slot_name: str
    publication_name: str
    frontier: Lsn | None
    """What readers of its tables have. None if none is complete."""


def lost_slot(connection: PgConnection) -> LostSlot | None:
    """The mirror of this database, if its row is gone and tables of it are left."""
    with source_errors("looking for the mirror's slot"):
        return fetch_row(connection, LostSlot, _SQL["lost_slot"])


def make_secret(connection: PgConnection) -> None:
    """Makes the secret that signs change notes. Those that were signed before are worthless from now on."""
    connection.execute(_SQL["new_secret"])


def make_shape(connection: PgConnection, table_id: TableId) -> None:
    """Records the definition of a table as the pump knows it."""
    connection.execute(_SQL["new_shape"], {"table_id": table_id})


def delete_lost(connection: PgConnection, table_id: TableId) -> None:
    """Removes what is left of a registration, and remembers where its files are. In the caller's transaction."""
    for statement in ("keep_location", "end"):
        connection.execute(_SQL[statement], {"table_id": table_id})


def record_seam_version(connection: PgConnection) -> None:
    """Records the version of the public seam catalog."""
    connection.execute(_SQL["seam_version"], {"version": SEAM_VERSION})


def registered_namespaces(connection: PgConnection) -> list[str]:
    """The schemas of registered tables."""
    return [name for (name,) in connection.execute(_SQL["namespaces"]).fetchall()]
