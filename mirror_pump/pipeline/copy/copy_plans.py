"""The chunks of copies: planned once for each copy, and stored in the catalog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psycopg

from mirror_pump.errors import SourceError
from mirror_pump.model import MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.events import CopyPlanned
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.connect import PgConnection, limited
from mirror_pump.source.heap.block_reader import Chunk, HeapLeaf, balanced_bytes, chunks_of, read_leaves
from mirror_pump.source.relations.change_notes import same_layout
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.leader import check_epoch
from sql import queries

_SQL = queries("copy")
_SHAPE_SQL = queries("shape")


@dataclass(frozen=True)
class _ChunkRow:
    """A row of the query `chunks`; see Chunk."""

    chunk_no: int
    relation_id: int
    schema_name: str | None
    relation_name: str | None
    """None, like `schema_name`, for a heap that is gone."""
    filenode: int
    lo_block: int
    hi_block: int | None


def planned_chunks(connection: PgConnection, table: MirroredTable) -> list[tuple[int, Chunk | None]]:
    """The numbered chunks of the table's copy that are not done. None for a chunk of a heap that is gone."""
    parameters = {"table_id": table.table_id, "generation": table.generation}
    return [
        (
            row.chunk_no,
            None
            if row.schema_name is None or row.relation_name is None
            else Chunk(row.relation_id, row.schema_name, row.relation_name, row.filenode, row.lo_block, row.hi_block),
        )
        for row in fetch_rows(connection, _ChunkRow, _SQL["chunks"], parameters)
    ]


def is_same_copy(table: MirroredTable, current_table: MirroredTable | None) -> bool:
    """Whether this copy of the table is still wanted: the table did not fail, was not registered again, and its copy
    was not restarted."""
    return (
        current_table is not None
        and current_table.state is TableState.COPYING
        and (current_table.start_lsn, current_table.generation) == (table.start_lsn, table.generation)
    )


class CopyPlans:
    """Plans copies in one session. Owned by one thread."""

    def __init__(self, context: SessionContext, epoch: int) -> None:
        """`epoch`: the epoch of the pump's leadership."""
        self._context = context
        self._epoch = epoch
        self._awaited: dict[tuple[TableId, int], set[str]] = {}
        """By table and start LSN, the transactions that have to end before the copy is planned."""

    def plan(
        self,
        connection: PgConnection,
        table: MirroredTable,
        *,
        awaits_writers: bool = True,
        fits: Callable[[Sequence[HeapLeaf]], bool] = lambda _: True,
    ) -> bool:
        """Divide the table's current heap into chunks. Rows in blocks that are added later come in the stream. Returns
        whether there are chunks to read now.

        Planning waits until every transaction that may have ended below the start LSN is visible. A registration has
        waited for their end itself. A table that is copied again has its start LSN from the stream, which is ahead of
        visibility, so planning waits for the transactions that hold locks (`awaits_writers`). It also waits while the
        heap's columns or partitions differ from those at the stream's position, or `fits` is false.
        """
        chunks = self._chunks(connection, table, awaits_writers=awaits_writers, fits=fits)
        return chunks is not None and bool(self._store(connection, [(table, chunks)]))

    def plan_together(self, connection: PgConnection, tables: Iterable[MirroredTable]) -> set[TableId]:
        """As `plan`, in one transaction for all tables: it may wait for a publish to end. Returns the tables that have
        chunks to read now."""
        plans = [(table, self._chunks(connection, table)) for table in tables]
        return self._store(connection, [(table, chunks) for table, chunks in plans if chunks is not None])

    def _chunks(
        self,
        connection: PgConnection,
        table: MirroredTable,
        *,
        awaits_writers: bool = True,
        fits: Callable[[Sequence[HeapLeaf]], bool] = lambda _: True,
    ) -> Sequence[Chunk] | None:
        """The chunks of the heap. None if it cannot be planned yet."""
        if not self._settled(connection, table, awaits_writers=awaits_writers):
            return None
        try:
            with limited(connection):
                leaves = read_leaves(connection, table.table_id)
        except SourceError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                return None
            raise
        if not fits(leaves):
            return None
        settings = self._context.settings
        into_partitions = table.partitioning is not None and bool(table.partitioning.fields)
        chunk_bytes = balanced_bytes(
            leaves, settings.copy_chunk_bytes, settings.copy_workers, into_partitions=into_partitions
        )
        return chunks_of(leaves, chunk_bytes)

    def _store(self, connection: PgConnection, plans: Sequence[tuple[MirroredTable, Sequence[Chunk]]]) -> set[TableId]:
        """Store the chunks of each table, unless its copy is another one now. Returns the tables that have chunks to
        read."""
        if not plans:
            return set()
        with connection.transaction():
            check_epoch(connection, self._context.slot, self._epoch)
            stored = [(table, chunks) for table, chunks in plans if self._insert(connection, table, chunks)]
        for table, chunks in stored:
            self._context.observer(Step.COPY_PLANNED, table=str(table.name), chunks=len(chunks))
            self._context.inbox.put(CopyPlanned(table, len(chunks)))
        return {table.table_id for table, chunks in stored if chunks or table.where_different}

    def _insert(self, connection: PgConnection, table: MirroredTable, chunks: Sequence[Chunk]) -> bool:
        """Insert the chunks. False if the copy is another one now. Without a chunk the copy is complete, unless the
        lake may have rows that the heap does not have."""
        who = {"table_id": table.table_id, "start_lsn": table.start_lsn, "generation": table.generation}
        if connection.execute(_SQL["plan"], who).rowcount != 1:
            return False
        with connection.cursor() as cursor:
            cursor.executemany(
                _SQL["plan_chunk"],
                [
                    {
                        "table_id": table.table_id,
                        "generation": table.generation,
                        "chunk_no": number,
                        "relation_id": chunk.relation_id,
                        "filenode": chunk.filenode,
                        "lo_block": chunk.lo_block,
                        "hi_block": chunk.hi_block,
                    }
                    for number, chunk in enumerate(chunks)
                ],
            )
        if not (chunks or table.where_different):
            connection.execute(_SQL["nothing_to_copy"], {"table_id": table.table_id})
        return True

    def _settled(self, connection: PgConnection, table: MirroredTable, *, awaits_writers: bool) -> bool:
        """Whether the table's copy can be planned now. If False, the thread checks again later."""
        who: dict[str, object] = {"table_id": table.table_id}
        identity = (table.table_id, table.start_lsn)
        holders = {holder for (holder,) in connection.execute(_SHAPE_SQL["lockers"], who)}
        if table.generation and awaits_writers:
            self._awaited[identity] = self._awaited.get(identity, holders) & holders
            if self._awaited[identity]:
                return False
        row = connection.execute(_SHAPE_SQL["present"], who).fetchone()
        return not table.shape or (row is not None and same_layout(json.loads(table.shape), row[0]))
