"""The catalog's side of a resync: marks tables to be copied again, and lets the stream begin at a new slot's position.

Readers of a marked table keep its published snapshot and its promised frontier. What the pump commits from then on
builds on metadata that only `mirror_tables.staged_location` names; it begins as the file that readers see. So marking a
table writes no file, and needs no pump. docs/design/resync.md has the states, and argues why the frontier never moves
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, TableId, TableName, TableState, TierKind, format_lsn
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.tier_keys import shown
from mirror_pump.source.rows import TypedRow, fetch_rows
from mirror_pump.source.server import server_time
from mirror_pump.source.stream.slot import system_identity
from mirror_pump.table_life import TableEvent, state_by, states_before
from sql import queries

_SQL = queries("resync")

_KEYLESS = "it has no key. Readers keep what it held before; give it a key, and it is copied again by itself"


@dataclass(frozen=True)
class _CandidateRow(TypedRow):
    """A row of the query `tables`."""

    table_id: TableId
    name: TableName
    state: TableState
    error: str
    """Empty if there is none."""
    resync_since: datetime | None
    """When the resync began that the table is part of. None: it is part of none. Meaningful while it is `copied`."""
    paused_since: datetime | None
    snapshot_only: bool
    """Whether its changes are not followed between copies."""
    tier_key_type: str
    kept_below: int | None
    """The cut-line, if only the lake has the rows below it. None if there are no such rows."""
    left_to_the_lake: str | None
    """Partitions above the cut-line whose rows only the lake has. None if there are no such partitions."""


@dataclass(frozen=True)
class ResyncCandidate(_CandidateRow):
    """A registered table, as a resync finds it."""

    size_bytes: int
    """What a copy reads from the heap; the server's estimate."""
    rows: int
    """As `size_bytes`."""

    @property
    def kept_text(self) -> str | None:
        """`kept_below` as SQL prints it."""
        return None if self.kept_below is None else shown(TierKind(self.tier_key_type), self.kept_below)

    @property
    def copied(self) -> bool:
        """Whether the table is being copied or filled, or waits for it."""
        return self.state in (TableState.WAITING, TableState.COPYING, TableState.FILLING)


@dataclass(frozen=True)
class _HeapSize:
    """A row of the query `sizes`."""

    table_id: TableId
    size_bytes: int
    rows: int


@dataclass(frozen=True)
class RepairedRows:
    """What a copy replaced that compared a table with its heap. A row of the query `repairs`."""

    table_id: TableId
    frontier: Lsn | None
    """That readers have now."""
    heap_rows: int
    lake_rows: int
    missing: int
    """Keys that only the heap had."""
    extra: int
    """Keys that only the lake had."""
    different: int
    """Keys with other values in the lake, or more than one row."""


def repaired_rows(connection: PgConnection, tables: Sequence[TableId]) -> dict[TableId, RepairedRows]:
    """Reads, by table, what its last copy replaced. Leaves out tables that were copied as a whole."""
    rows = fetch_rows(connection, RepairedRows, _SQL["repairs"], {"table_ids": list(tables)})
    return {row.table_id: row for row in rows}


def resync_candidates(connection: PgConnection, slot: str) -> list[ResyncCandidate]:
    """Reads all registered tables of the slot, ordered by name."""
    rows = fetch_rows(connection, _CandidateRow, _SQL["tables"], {"slot": slot})
    table_ids = [row.table_id for row in rows]
    sizes = {size.table_id: size for size in fetch_rows(connection, _HeapSize, _SQL["sizes"], {"table_ids": table_ids})}
    return [ResyncCandidate(**vars(row) | vars(sizes[row.table_id])) for row in rows]


def mark_tables(
    connection: PgConnection,
    slot: str,
    tables: Sequence[TableId],
    position: Lsn,
    *,
    gap: bool,
    where_different: bool = False,
    joins: bool = True,
) -> list[TableId]:
    """Marks tables to be copied again, and to go live together. Returns those that were marked.

    The caller's transaction must hold the lock of the slot's row, so that no publish is under way. Only transactions
    that end after `position` concern the tables from then on. `gap`: the stream lacks changes from before it, so
    clients that wait for the frontier wait until the tables are copied. `where_different`: their copies may replace
    the rows that differ alone, if the metadata that they build on has rows. It has none once a copy has emptied it,
    until it is live again. `joins`: the tables begin a resync together; otherwise each stays in its own.
    """
    parameters = {
        "slot": slot,
        "table_ids": list(tables),
        "position": position,
        "since": server_time(connection) if joins else None,
        "gap": gap,
        "where_different": where_different,
        "keyless": _KEYLESS,
        "former": states_before(TableEvent.COPY_AWAITED),
        "state": state_by(TableEvent.COPY_AWAITED).value,
    }
    return [TableId(table_id) for (table_id,) in connection.execute(_SQL["mark"], parameters).fetchall()]


def begin_stream(connection: PgConnection, slot: str, position: Lsn) -> None:
    """Records that the stream begins at `position`. In the same transaction, the caller marks every table that has not
    ended. Raises SourceError if the frontier would move back, or if the server writes another timeline than the mirror
    was published on: that is a matter of `reconcile`."""
    timeline = system_identity(connection).timeline
    parameters = {"slot": slot, "position": position, "timeline": timeline}
    if connection.execute(_SQL["begin_stream"], parameters).fetchone() is None:
        raise SourceError(
            f"slot {slot}: the frontier cannot become {format_lsn(position)} on timeline {timeline}; nothing was done",
            "run `mirror-pump resync --all` again",
        )
