"""Writes ingested rows below the cut-line to data files, which no reader sees before the ingest's transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.partitioned_files import OpenFiles
from mirror_pump.lake.format.partitioning import PartitionTuple, places_by_partition, taken
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields, widened
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.key_index import place_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import LakePartitioning
from mirror_pump.ops.ingest.convert.normalisation import LakeRows
from mirror_pump.ops.ingest.write.ingested_keys import IngestedKeys

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
    begin: Callable[[], tuple[int, str]]
    """A new file's number and URI."""
    paths: list[str]
    """By file number."""
    packing: KeyPacking
    """How keys are compared."""
    keys: IngestedKeys
    """Of all rows in the files."""
    written: dict[int, WrittenFile] = field(default_factory=dict)
    """By file number. Complete when all writers have ended."""
    raw_text_columns: set[int] = field(default_factory=set)


_FileKind: TypeAlias = tuple[frozenset[int], PartitionTuple]
"""Which rows share a file: their raw text columns, and their lake partition."""


class _NumberedFile(DataFileWriter):
    """A file of the ingest."""

    number = 0
    rows = 0
    nbytes = 0
    """Arrow bytes of its rows."""


class LakeWriter:
    """One open file at a time for each set of raw text columns in each lake partition, and OPEN_FILES at most. Used by
    one thread at a time."""

    def __init__(self, files: LakeFiles) -> None:
        self._files = files
        self._open: OpenFiles[_FileKind, _NumberedFile] = OpenFiles(self._note)

    def write(self, rows: LakeRows) -> None:
        """Writes the rows, and notes their keys. Raises LakeError."""
        schema = self._files.schema
        table, file_schema = (
            narrowed(widened(rows.table, rows.raw, schema), schema) if rows.raw else (rows.table, schema)
        )
        raw = raw_text_fields(file_schema) if rows.raw else frozenset[int]()
        places = np.empty(table.num_rows, np.int64)
        for partition, chosen in places_by_partition(table, file_schema, self._files.partitioning):
            places[chosen] = self._write((raw, partition), taken(table, chosen), file_schema)
        key = [rows.table.column(column.name) for column in schema.key.fields]
        self._files.keys.add(self._files.packing.pack(key), places)

    def _write(self, kind: _FileKind, rows: pa.Table, schema: LakeSchema) -> npt.NDArray[np.int64]:
        file = self._open.take(kind, partial(self._begin, kind, schema))
        places = place_of(file.number, np.arange(file.rows, file.rows + rows.num_rows, dtype=np.int64))
        file.write(rows)
        file.rows += rows.num_rows
        file.nbytes += rows.nbytes
        if file.nbytes >= FILE_BYTES:
            self._open.complete(kind)
        return places

    def finish(self) -> None:
        """Ends the open files."""
        self._open.complete_all()

    def abandon(self, error: BaseException) -> None:
        """Leaves no part of the open files behind."""
        self._open.abandon(error)

    def _begin(self, kind: _FileKind, schema: LakeSchema) -> _NumberedFile:
        number, path = self._files.begin()
        file = _NumberedFile(schema, self._files.location, self._files.storage, partition=kind[1], path=path)
        file.number = number
        return file

    def _note(self, kind: _FileKind, file: _NumberedFile) -> None:
        self._files.written[file.number] = file.written
        self._files.raw_text_columns |= kind[0]
