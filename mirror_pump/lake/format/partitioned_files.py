"""Writes rows, keys and positions as files of a partitioned lake table: one file or more for each lake partition.

`PartitionedWriter` takes rows in any order, batch by batch. The functions take what is in memory as a whole. All of
them write a single file for a table that is not partitioned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import IO, Generic, TypeVar

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
from mirror_pump.lake.format.partitioning import (
    PartitionTuple,
    SortKeys,
    divided,
    partitioning_of_deletes,
    sort_keys,
    sorted_places,
    taken,
)
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StagedFiles, StorageOptions
from mirror_pump.model import LakePartitioning
from mirror_pump.runtime.file_systems import directory_on_disk

OPEN_FILES = 32
"""Maximum number of files that one writer has open. An open file in an object store holds a part of some MiB."""


FileKey = TypeVar("FileKey", bound=Hashable)
OpenFile = TypeVar("OpenFile", bound=DataFileWriter)


class OpenFiles(Generic[FileKey, OpenFile]):
    """Files that are being written, one for each key at a time. Of too many, the one that was written to longest ago is
    completed. Used by one thread at a time."""

    def __init__(self, completed: Callable[[FileKey, OpenFile], None], most: int = OPEN_FILES) -> None:
        self._completed = completed
        self._most = most
        self._open: dict[FileKey, OpenFile] = {}
        """In the order of the last writes, the longest ago first."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: FileKey) -> bool:
        return key in self._open

    def take(self, key: FileKey, begin: Callable[[], OpenFile]) -> OpenFile:
        """The key's open file, or the one that `begin` makes: now the one that was written to last."""
        writer = self._open.pop(key, None)
        if writer is None:
            while len(self._open) >= self._most:
                self.complete(next(iter(self._open)))
            writer = begin()
            writer.__enter__()
        self._open[key] = writer
        return writer

    def complete(self, key: FileKey) -> None:
        """Completes the key's file; its next rows begin another."""
        writer = self._open.pop(key)
        writer.__exit__(None, None, None)
        self._completed(key, writer)

    def complete_all(self) -> None:
        """Completes the files in the order of the last writes."""
        while self._open:
            self.complete(next(iter(self._open)))

    def abandon(self, error: BaseException) -> None:
        """Removes the files that are not complete."""
        while self._open:
            _, writer = self._open.popitem()
            writer.__exit__(type(error), error, error.__traceback__)


Key = TypeVar("Key", bound=Hashable)
_SPILL_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class SpilledRows(Generic[Key]):
    """Rows that wait on the disk until their partition's file is written: of one schema, by key, in one file without a
    name, which ends with this object or the process. Used by one thread at a time."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        self._places: dict[Key, list[tuple[int, int]]] = {}
        """Where each key's rows are, in the order in which they came: begin and end in the file."""

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def add(self, key: Key, rows: pa.Table) -> bool:
        """Returns False if the disk has no room for them, or no directory for temporary files is on a disk: then they
        are not here."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, rows.schema, options=_SPILL_OPTIONS) as stream:
            stream.write_table(rows)
        encoded = content.getvalue()
        try:
            if self._file is None:
                if (directory := directory_on_disk()) is None:
                    return False
                self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by `close`
            self._file.seek(self._end)
            self._file.write(encoded)
            self._file.flush()
        except OSError:
            return False
        begin, self._end = self._end, self._end + encoded.size
        self._places.setdefault(key, []).append((begin, self._end))
        return True

    def __iter__(self) -> Iterator[Key]:
        """The keys, the ones that came first before the others."""
        return iter(self._places)

    def rows(self, key: Key) -> Iterator[pa.Table]:
        """A key's rows, table by table as they came."""
        for begin, end in self._places[key]:
            assert self._file is not None, "there are rows"
            self._file.seek(begin)
            with pa.ipc.open_stream(pa.py_buffer(self._file.read(end - begin))) as stream:
                yield stream.read_all()

    def close(self) -> None:
        """Forgets all rows."""
        self._places.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


class PartitionedWriter:
    """Streams rows into data files, one for each lake partition; a context manager.

    `written` describes the files after the block has ended without error. If the block fails, no file remains. Rows of
    one partition keep their order, unless the table is sorted: then those of each row group are.

    Rows gather in memory, at most `gathered_bytes` of Arrow data or `gathered_rows`, before they are divided. Memory:
    twice as much, and one batch. The files of the first `open_files` partitions stay open from one time to the next.
    Rows of others wait on the disk, in the directory for temporary files, until the end, when their files are written
    one after the other. So whatever order rows come in, each partition has one file, and `open_files` and one more are
    open at a time. Only if that disk is full, rows become a file each time that they are divided.
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
        self._gathered = GatheredRows(schema, gathered_rows, gathered_bytes)
        self._open: OpenFiles[PartitionTuple, DataFileWriter] = OpenFiles(self._close, open_files)
        self._most_open = open_files
        self._spilled: SpilledRows[PartitionTuple] = SpilledRows()
        self._owned = StagedFiles(storage)
        self._closed: list[WrittenFile] = []
        self._done = False

    def __enter__(self) -> PartitionedWriter:
        self._owned.__enter__()
        return self

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Appends rows. Raises the same errors as `DataFileWriter.write`, some of them in a later call."""
        if self._gathered.add(rows):
            self._divide(last=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._divide(last=True)
                self._open.complete_all()
                self._write_spilled()
            except BaseException as failure:
                self._abandon(failure)
                raise
            self._done = True
            self._owned.__exit__(None, None, None)
        else:
            self._abandon(error)

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """The files' descriptions, none without rows. Raises RuntimeError before the block has ended without error."""
        if not self._done:
            raise RuntimeError("the files have no description yet: their block has not ended without error")
        return tuple(self._closed)

    def _divide(self, *, last: bool) -> None:
        """Writes the gathered rows, a row group for each partition, or keeps them on the disk. `last`: no more rows
        come."""
        if not self._gathered:
            return
        for partition, part in divided(self._gathered.take(), self._schema, self._partitioning):
            if partition not in self._open and (last or len(self._open) >= self._most_open):
                waits = partition in self._spilled or not last
                if not (waits and self._spilled.add(partition, part)):
                    self._write_one(partition, [part])
                continue
            writer = self._open.take(partition, partial(self._begin, partition))
            writer.write(part)
            # A part refers to the memory of all rows.
            writer.flush()

    def _write_spilled(self) -> None:
        for partition in self._spilled:
            self._write_one(partition, self._spilled.rows(partition))
        self._spilled.close()

    def _write_one(self, partition: PartitionTuple, parts: Iterable[pa.Table]) -> None:
        """Writes a file of these parts of a partition, the rows of each row group in the table's order."""
        sorted_by = sort_keys(self._partitioning, self._schema)
        gathered = GatheredRows(self._schema, ROW_GROUP_ROWS, ROW_GROUP_BYTES)
        with self._begin(partition) as writer:
            for part in parts:
                if gathered.add(part):
                    writer.write(_in_order(gathered.take(), sorted_by))
                    writer.flush()
            if gathered:
                writer.write(_in_order(gathered.take(), sorted_by))
        self._close(partition, writer)

    def _begin(self, partition: PartitionTuple) -> DataFileWriter:
        return DataFileWriter(self._schema, self._location, self._storage, partition=partition)

    def _close(self, _: PartitionTuple, writer: DataFileWriter) -> None:
        self._closed.append(writer.written)
        self._owned.add(writer.path)

    def _abandon(self, error: BaseException) -> None:
        """Removes every file."""
        self._spilled.close()
        self._open.abandon(error)
        self._owned.__exit__(type(error), error, error.__traceback__)


def _in_order(rows: pa.Table, sorted_by: SortKeys) -> pa.Table:
    return taken(rows, sorted_places(rows, sorted_by)) if sorted_by else rows


def write_data_files(
    rows: pa.Table, schema: LakeSchema, location: str, storage: StorageOptions, partitioning: LakePartitioning | None
) -> tuple[WrittenFile, ...]:
    """Writes rows as one file for each lake partition, in ascending order of partitions; none without rows. Rows of one
    partition keep their order. Raises the same errors as `write_data_file`, and leaves no file behind then."""
    return _one_each(write_data_file, rows, schema, location, storage, partitioning)


def write_equality_delete_files(
    keys: pa.Table, schema: LakeSchema, location: str, storage: StorageOptions, partitioning: LakePartitioning | None
) -> tuple[WrittenFile, ...]:
    """Writes deleted keys as one equality-delete file for each lake partition, or as a single one for all partitions
    (`partitioning_of_deletes`); none without keys. Raises the same errors as `write_equality_deletes`, and leaves no
    file behind then."""
    divided_by = partitioning_of_deletes(partitioning, schema)
    return _one_each(write_equality_deletes, keys, schema, location, storage, divided_by)


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
            staged.add(files[-1].path)
    return tuple(files)
