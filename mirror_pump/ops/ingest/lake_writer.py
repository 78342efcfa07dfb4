"""Writes ingested rows below the cut-line to data files, which nobody sees before the ingest's transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.partitioned_files import OPEN_FILES
from mirror_pump.lake.format.partitioning import PartitionTuple, places_by_partition
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields, widened
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.key_index import place_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import LakePartitioning
from mirror_pump.ops.ingest.normalisation import LakeRows

FILE_BYTES = 512 << 20
"""Arrow bytes of rows in a data file, at most; compressed it takes a fraction of that. A file is a task of a reader."""


@dataclass
class LakeFiles:
    """The data files of one ingest. Threads share it."""

    schema: LakeSchema
    location: str
    partitioning: LakePartitioning | None
    """The table's lake partitions; None if it has none."""
    storage: StorageOptions
    note: Callable[[str], None]
    """Called with a file's URI before it is written."""
    paths: list[str] = field(default_factory=list)
    """By file number."""
    written: dict[int, WrittenFile] = field(default_factory=dict)
    """By file number. Complete when all writers have ended."""
    raw_text_columns: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, path: str) -> int:
        """A new file's number."""
        with self._lock:
            self.paths.append(path)
            number = len(self.paths) - 1
        self.note(path)
        return number


@dataclass
class _OpenFile:
    writer: DataFileWriter
    number: int
    rows: int = 0
    nbytes: int = 0


_FileKind: TypeAlias = tuple[frozenset[int], PartitionTuple]
"""Which rows share a file: their raw text columns, and their lake partition."""


class LakeWriter:
    """One open file at a time for each set of raw text columns in each lake partition, and OPEN_FILES at most. Used by
    one thread at a time."""

    def __init__(self, files: LakeFiles, file_bytes: int = FILE_BYTES) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._open: dict[_FileKind, _OpenFile] = {}
        """In the order of the last writes, the longest ago first."""

    def write(self, rows: LakeRows) -> npt.NDArray[np.int64]:
        """Writes the rows. Returns the place of each. Raises LakeError."""
        schema = self._files.schema
        table, file_schema = (
            narrowed(widened(rows.table, rows.raw, schema), schema) if rows.raw else (rows.table, schema)
        )
        raw = raw_text_fields(file_schema) if rows.raw else frozenset[int]()
        places = np.empty(table.num_rows, np.int64)
        for partition, chosen in places_by_partition(table, file_schema, self._files.partitioning):
            part = table if len(chosen) == table.num_rows else table.take(pa.array(chosen))
            places[chosen] = self._write((raw, partition), part, file_schema)
        return places

    def _write(self, kind: _FileKind, rows: pa.Table, schema: LakeSchema) -> npt.NDArray[np.int64]:
        file = self._open.pop(kind, None) or self._begin(kind, schema)
        self._open[kind] = file
        places = place_of(file.number, np.arange(file.rows, file.rows + rows.num_rows, dtype=np.int64))
        file.writer.write(rows)
        file.rows += rows.num_rows
        file.nbytes += rows.nbytes
        if file.nbytes >= self._file_bytes:
            self._end(kind)
        return places

    def finish(self) -> None:
        """Ends the open files."""
        for kind in list(self._open):
            self._end(kind)

    def abandon(self, error: BaseException) -> None:
        """Leaves no part of the open files behind."""
        for file in self._open.values():
            file.writer.__exit__(type(error), error, None)
        self._open.clear()

    def _begin(self, kind: _FileKind, schema: LakeSchema) -> _OpenFile:
        while len(self._open) >= OPEN_FILES:
            self._end(next(iter(self._open)))
        writer = DataFileWriter(schema, self._files.location, self._files.storage, partition=kind[1])
        number = self._files.begin(writer.path)
        writer.__enter__()
        return _OpenFile(writer, number)

    def _end(self, kind: _FileKind) -> None:
        file = self._open.pop(kind)
        file.writer.__exit__(None, None, None)
        self._files.written[file.number] = file.writer.written
        self._files.raw_text_columns |= kind[0]
