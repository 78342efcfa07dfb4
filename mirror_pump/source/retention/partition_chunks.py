"""Chunks of partitions of tiered tables in the catalog: block ranges that are copied, and the files of those that are
read.

Invariant: every row of a partition is in the files of its chunks, or was changed since and is among the captured
changes, if all of its chunks are done and were read under the present capture (modak.not_copied), with the columns that
the catalog has. The publish that changes the columns forgets all chunks, and a chunk that was read with other columns
is not recorded: its files would lack a column that no fill adds. A chunk is read in a database snapshot of its own,
after the seal was committed. A row that was not changed since is in the same block for all of them, so exactly one
chunk has it. A row that was changed is captured, whatever chunks made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.model import TableId
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_row, fetch_rows
from sql import queries

_SQL = queries("retention")


@dataclass(frozen=True)
class Capture:
    """What the chunks of a sealed partition have to be read under."""

    captured_after: int
    """The version after which all of its changes are captured: it changes with each seal and each TRUNCATE."""
    relation_id: int
    filenode: int | None
    """The file of its heap, which changes when that is rewritten. None: the partition is gone."""


@dataclass(frozen=True)
class PartitionChunk:
    """A row of modak.partition_chunks."""

    chunk_no: int
    captured_after: int
    relation_id: int
    filenode: int
    lo_block: int
    hi_block: int | None
    """Exclusive; None: up to the end of the heap."""
    rows: int | None
    """None until it is done."""
    files: Sequence[Mapping[str, Any]]
    """Its data files (mirror_pump.lake.format.file_json), with `raw_text_columns`; none if it had no row, or is not
    done."""
    done: bool

    def fits(self, capture: Capture) -> bool:
        """Whether it was planned, and read, under this capture."""
        return (self.captured_after, self.relation_id, self.filenode) == (
            capture.captured_after,
            capture.relation_id,
            capture.filenode,
        )


def read_capture(connection: PgConnection, table_id: TableId, partition_id: str) -> Capture | None:
    """None for a partition that is not sealed."""
    where = {"table_id": table_id, "partition_id": partition_id}
    return fetch_row(connection, Capture, _SQL["capture"], where)


def read_chunks(connection: PgConnection, table_id: TableId, partition_id: str) -> tuple[PartitionChunk, ...]:
    """The planned chunks, in their order."""
    where = {"table_id": table_id, "partition_id": partition_id}
    return tuple(fetch_rows(connection, PartitionChunk, _SQL["chunks"], where))


def plan(
    connection: PgConnection,
    table_id: TableId,
    partition_id: str,
    capture: Capture,
    ranges: Sequence[tuple[int, int | None]],
) -> None:
    """Records the block ranges of a partition that is to be copied."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(
            _SQL["plan_chunk"],
            [
                {
                    "table_id": table_id,
                    "partition_id": partition_id,
                    "chunk_no": number,
                    "captured_after": capture.captured_after,
                    "relation_id": capture.relation_id,
                    "filenode": capture.filenode,
                    "lo_block": lo_block,
                    "hi_block": hi_block,
                }
                for number, (lo_block, hi_block) in enumerate(ranges)
            ],
        )


def chunk_done(
    connection: PgConnection,
    table_id: TableId,
    partition_id: str,
    chunk: PartitionChunk,
    rows: int,
    files: Sequence[Mapping[str, Any]],
    written_since: float,
) -> bool:
    """Records that a chunk was read. Returns whether it counts: it is still planned, and no sweep may have removed one
    of its files. `written_since`: time before the first file was begun, in seconds since the Unix epoch."""
    parameters = {
        "table_id": table_id,
        "partition_id": partition_id,
        "chunk_no": chunk.chunk_no,
        "captured_after": chunk.captured_after,
        "filenode": chunk.filenode,
        "rows": rows,
        "files": Jsonb([dict(file) for file in files]),
        "written_since": written_since,
    }
    return connection.execute(_SQL["chunk_done"], parameters).rowcount == 1


def forget_chunks(connection: PgConnection, table_id: TableId, partition_id: str | None = None) -> list[str]:
    """Forgets the chunks that were read under a capture that has ended, and all of one partition. Returns the URIs of
    their files, which the caller removes."""
    rows = connection.execute(_SQL["forget_chunks"], {"table_id": table_id, "partition_id": partition_id}).fetchall()
    return [path for (paths,) in rows for path in paths]
