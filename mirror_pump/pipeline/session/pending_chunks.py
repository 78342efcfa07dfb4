"""The chunks of initial copies that are written and wait for the next publish."""

from __future__ import annotations

from collections.abc import Iterable

from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.operations.add_chunks import AddChunks, CopiedChunk
from mirror_pump.pipeline.operations.requests import TableRequest


class PendingChunks:
    """The chunks of one session. Only the loop's thread may use it."""

    def __init__(self) -> None:
        self._by_table: dict[TableId, list[tuple[MirroredTable, CopiedChunk]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether any chunk waits."""
        return bool(self._by_table)

    @property
    def files(self) -> list[str]:
        """URIs of the chunks' files."""
        chunks = [chunk for copied in self._by_table.values() for _, chunk in copied]
        return [file.path for chunk in chunks for file in chunk.files]

    def add(self, table: MirroredTable, chunk: CopiedChunk) -> None:
        """Keep a chunk of the table's copy until the next publish."""
        self._by_table.setdefault(table.table_id, []).append((table, chunk))

    def take_with(self, table_requests: Iterable[TableRequest]) -> tuple[TableRequest, ...]:
        """The requests, together with all waiting chunks, which wait no longer."""
        by_table = {table_request.table.table_id: table_request for table_request in table_requests}
        waiting, self._by_table = self._by_table, {}
        for table_id, copied in waiting.items():
            newest = max((table for table, _ in copied), key=lambda table: table.start_lsn)
            table_request = by_table.get(table_id, TableRequest(newest))
            if table_request.table.start_lsn < newest.start_lsn:
                # The table was registered again in the meantime. The request for its earlier registration is obsolete.
                table_request = TableRequest(newest)
            chunks = tuple(chunk for table, chunk in copied if table.start_lsn == table_request.table.start_lsn)
            by_table[table_id] = table_request.adding(AddChunks(chunks)) if chunks else table_request
        return tuple(by_table.values())
