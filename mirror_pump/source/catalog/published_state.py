"""What is published of each mirrored table: the one row from which readers, moments and landings take it.

Data flow: `published_states` reads the catalog by one statement, so all its rows are of one publish. A reader pins what
they name (`mirror_pump.source.catalog.pins`), a reader of the past has `mirror_pump.ops.reads.state_choice` choose from
their histories, and who changes a lake table stages on them (`mirror_pump.pipeline.landing.published_tables`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg.types.multirange import Multirange

from mirror_pump.model import Lsn, SnapshotId, TableId, TableMode, TableName, TableState
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("published_state")

_STATES = {
    TableState.WAITING: "waits to be copied",
    TableState.COPYING: "is being copied",
    TableState.FILLING: "is being filled",
    TableState.FAILED: "has failed",
    TableState.DROPPED: "was dropped in Postgres",
}


@dataclass(frozen=True)
class PublishedState:
    """A row of the query `states`. Two are equal if they are of one registration and name the same files: what was
    staged on one can land on the other."""

    table_id: TableId
    schema_name: str
    lake_table: str
    start_lsn: Lsn
    location: str = field(compare=False)
    """Root URI of its files."""
    mode: str = field(compare=False)
    state: str = field(compare=False)
    paused: bool = field(compare=False)
    dropped: bool = field(compare=False)
    """Whether the table was dropped in Postgres, even if the pump has not applied that yet."""
    live_after_lsn: Lsn | None = field(compare=False)
    """The position from which on the last copy was complete; None before the first copy is."""
    frontier: Lsn | None = field(compare=False)
    """None while the table is copied for the first time, and of a tiered table."""
    cut: int = field(compare=False)
    """The cut-line, a tier value."""
    has_cutline: bool
    """Whether the published snapshot is the archive's, on branch cold: rows from the cut-line on are not in it."""
    snapshot_id: SnapshotId
    """The published snapshot."""
    published_location: str
    """The metadata file in which the published snapshot is the current one; empty if there is none yet."""
    metadata_location: str | None
    """The metadata file that the catalog names: its current snapshot is the head of `main`. None if the catalog does
    not name the lake table."""
    head: dict[str, Any] | None = field(hash=False)
    """The state that the mirror left or examined, as `lake.commit.table_head` has it."""
    swept_before: float | None = field(compare=False)
    """Older files that nothing refers to may be gone, seconds since 1970. None: no file was deleted yet."""
    read_at: datetime = field(compare=False)
    """When this was read, by the database's clock."""
    kept_ranges: Multirange[int] = field(default_factory=Multirange, compare=False)
    """As MirroredTable.kept_ranges."""

    @property
    def lake_name(self) -> TableName:
        """Its name in the lake."""
        return TableName(self.schema_name, self.lake_table)

    @property
    def pointer(self) -> str:
        """The metadata file of a table that the catalog names."""
        assert self.metadata_location is not None
        return self.metadata_location

    @property
    def is_tiered(self) -> bool:
        return self.mode == TableMode.TIERED

    @property
    def is_readable(self) -> bool:
        """Whether the table's first copy is complete."""
        return bool(self.published_location) and (self.is_tiered or self.frontier is not None)

    @property
    def is_settled(self) -> bool:
        """Whether its lake table may be changed: it is there, and the table is not being copied or filled."""
        copied = (TableState.WAITING, TableState.COPYING, TableState.FILLING)
        return self.metadata_location is not None and self.state not in copied

    @property
    def examined(self) -> bool:
        """Whether the catalog names the state that the mirror left or examined."""
        return self.head is not None and self.head["location"] == self.metadata_location

    @property
    def complete_from(self) -> Lsn:
        """The position from which on what readers see was complete: 0 while the table is copied again, because they
        see its former copy."""
        position = self.live_after_lsn or Lsn(0)
        return position if self.frontier is not None and position <= self.frontier else Lsn(0)

    @property
    def obstacle(self) -> str | None:
        """Why the table does not follow the stream, after its name. None if it does."""
        return "is paused" if self.paused else state_text(self.state)


def state_text(state: str | None) -> str | None:
    """What is said of a table in this state, after its name. None of one that is live, or of none."""
    return None if state is None else _STATES.get(TableState(state))


def published_states(
    connection: PgConnection,
    *,
    slot: str | None = None,
    table_ids: Collection[TableId] | None = None,
    name: TableName | None = None,
) -> list[PublishedState]:
    """The tables, in the order of their IDs: of one mirror, with these IDs, or of this name in the lake (None: all).
    Raises psycopg.Error."""
    parameters = {
        "slot": slot,
        "table_ids": None if table_ids is None else sorted(table_ids),
        "schema": None if name is None else name.schema,
        "name": None if name is None else name.name,
    }
    return fetch_rows(connection, PublishedState, _SQL["states"], parameters)
