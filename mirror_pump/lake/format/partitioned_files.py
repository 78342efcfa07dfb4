"""Writes rows, keys and positions as files of a partitioned lake table: one file or more for each lake partition.

`PartitionedWriter` takes rows in any order, batch by batch. The functions take what is in memory as a whole. All of
them write a single file for a table that is not partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType

import pyarrow as pa

from mirror_pump.lake.format.data_files import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    DataFileWriter,
    WrittenFile,
    write_data_file,
    write_equality_deletes,
)
from mirror_pump.lake.format.gathered_rows import GatheredRows
from mirror_pump.lake.format.partitioning import PartitionTuple, by_partition, divided
from mirror_pump.lake.format.position_deletes import Positions, write_position_deletes
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StagedFiles, StorageOptions
from mirror_pump.model import LakePartitioning

OPEN_FILES = 32
"""Maximum number of files that one writer has open. An open file in an object store holds a part of some MiB."""


class PartitionedWriter:
    """Streams rows into data files, one for each lake partition; a context manager.

    `written` describes the files after the block has ended without error. If the block fails, no file remains. Rows of
    one partition keep their order.

    Rows gather in memory, at most `gathered_bytes` of Arrow data or `gathered_rows`, before they are divided. Memory:
    twice as much, and one batch. At most `open_files` files stay open from one time to the next. The one that was
    written to longest ago is closed first, and its partition gets another file when it has more rows. So there are no
    more files than partitions if rows come about in the order of their partitions, or have few; else up to one for each
    partition each time that rows are divided. A writer of very many rows in no order can make that rarer by a larger
    `gathered_bytes`.
    """

    def __init__(
        self,
        schema: LakeSchema,
        location: str,
        storage: StorageOptions,
        partitioning: LakePartitioning | None,
        *,
        open_files: int = OPEN_FILES,
        gathered_rows: int = ROW_GROUP_ROWS,
        gathered_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        """`partitioning` is the table's (MirroredTable.partitioning); None: all rows go to one file. `location`: root
        URI of the table's files."""
        self._schema = schema
        self._location = location
        self._storage = storage
        self._partitioning = partitioning
        self._open_files = open_files
        self._gathered = GatheredRows(schema, gathered_rows, gathered_bytes)
        self._open: dict[PartitionTuple, DataFileWriter] = {}
        """In the order of the last writes, the longest ago first."""
        self._owned = StagedFiles(storage)
        self._closed: list[WrittenFile] = []
        self._done = False

    def __enter__(self) -> PartitionedWriter:
        self._owned.__enter__()
        return self

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Appends rows. Raises the same errors as `DataFileWriter.write`, some of them in a later call."""
        if self._gathered.add(rows):
            self._divide()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._divide()
                while self._open:
                    self._close_oldest()
            except BaseException as failure:
                self._abandon(type(failure), failure, failure.__traceback__)
                raise
            self._done = True
            self._owned.__exit__(None, None, None)
        else:
            self._abandon(kind, error, trace)

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """The files' descriptions, none without rows. Raises RuntimeError before the block has ended without error."""
        if not self._done:
            raise RuntimeError("the files have no description yet: their block has not ended without error")
        return tuple(self._closed)

    def _divide(self) -> None:
        """Writes the gathered rows, a row group for each partition."""
        if not self._gathered:
            return
        for partition, part in divided(self._gathered.take(), self._schema, self._partitioning):
            writer = self._writer(partition)
            writer.write(part)
            # A part refers to the memory of all rows.
            writer.flush()

    def _writer(self, partition: PartitionTuple) -> DataFileWriter:
        """The partition's open file, which becomes the one that was written to last."""
        writer = self._open.pop(partition, None)
        if writer is None:
            while len(self._open) >= self._open_files:
                self._close_oldest()
            writer = DataFileWriter(self._schema, self._location, self._storage, partition=partition)
            writer.__enter__()
        self._open[partition] = writer
        return writer

    def _close_oldest(self) -> None:
        partition = next(iter(self._open))
        writer = self._open.pop(partition)
        writer.__exit__(None, None, None)
        self._closed.append(writer.written)
        self._owned.own(writer.written.path)

    def _abandon(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes every file."""
        while self._open:
            _, writer = self._open.popitem()
            writer.__exit__(kind, error, trace)
        self._owned.__exit__(kind, error, trace)


def write_data_files(
    rows: pa.Table, schema: LakeSchema, location: str, storage: StorageOptions, partitioning: LakePartitioning | None
) -> tuple[WrittenFile, ...]:
    """Writes rows as one file for each lake partition, in ascending order of partitions; none without rows. Rows of one
    partition keep their order. Raises the same errors as `write_data_file`, and leaves no file behind then."""
    return _one_each(write_data_file, rows, schema, location, storage, partitioning)


def write_equality_delete_files(
    keys: pa.Table, schema: LakeSchema, location: str, storage: StorageOptions, partitioning: LakePartitioning | None
) -> tuple[WrittenFile, ...]:
    """Writes deleted keys as one equality-delete file for each lake partition; none without keys. Raises the same
    errors as `write_equality_deletes`, and leaves no file behind then."""
    return _one_each(write_equality_deletes, keys, schema, location, storage, partitioning)


def _one_each(
    write: Callable[[pa.Table, LakeSchema, str, StorageOptions, PartitionTuple], WrittenFile],
    rows: pa.Table,
    schema: LakeSchema,
    location: str,
    storage: StorageOptions,
    partitioning: LakePartitioning | None,
) -> tuple[WrittenFile, ...]:
    """What `write` makes of the rows of each lake partition; no file remains if it raises an error."""
    with StagedFiles(storage) as staged:
        files = []
        for partition, part in divided(rows, schema, partitioning):
            files.append(write(part, schema, location, storage, partition))
            staged.own(files[-1].path)
    return tuple(files)


def write_position_delete_files(
    positions: Mapping[str, Positions],
    partitions: Mapping[str, PartitionTuple],
    location: str,
    storage: StorageOptions,
) -> tuple[WrittenFile, ...]:
    """Writes positions as one file for each lake partition; none without positions. `positions`: as for
    `write_position_deletes`. `partitions`: by URI, the partitions of the data files; those of an unpartitioned table
    may be left out. Raises LakeError, and leaves no file behind then."""
    with StagedFiles(storage) as staged:
        files = []
        for partition, named in by_partition(positions, partitions):
            if any(len(rows) for rows in named.values()):
                files.append(write_position_deletes(named, location, storage, partition))
                staged.own(files[-1].path)
    return tuple(files)
