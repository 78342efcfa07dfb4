"""Writes ingested rows below the cut-line to data files, which nobody sees before the ingest's transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields, widened
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.key_index import place_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.ingest.normalisation import LakeRows

FILE_BYTES = 512 << 20
"""Arrow bytes of rows in a data file, at most; compressed it takes a fraction of that. A file is a task of a reader."""


@dataclass
class LakeFiles:
    """The data files of one ingest. Threads share it."""

    schema: LakeSchema
    location: str
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


class LakeWriter:
    """One open file at a time for each set of raw text columns. Used by one thread at a time."""

    def __init__(self, files: LakeFiles, file_bytes: int = FILE_BYTES) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._open: dict[frozenset[int], _OpenFile] = {}

    def write(self, rows: LakeRows) -> npt.NDArray[np.int64]:
        """Writes the rows. Returns the place of each. Raises LakeError."""
        schema = self._files.schema
        table, file_schema = (
            narrowed(widened(rows.table, rows.raw, schema), schema) if rows.raw else (rows.table, schema)
        )
        raw = raw_text_fields(file_schema) if rows.raw else frozenset[int]()
        file = self._open.get(raw) or self._begin(raw, file_schema)
        places = place_of(file.number, np.arange(file.rows, file.rows + table.num_rows, dtype=np.int64))
        file.writer.write(table)
        file.rows += table.num_rows
        file.nbytes += table.nbytes
        if file.nbytes >= self._file_bytes:
            self._end(raw)
        return places

    def finish(self) -> None:
        """Ends the open files."""
        for raw in list(self._open):
            self._end(raw)

    def abandon(self, error: BaseException) -> None:
        """Leaves no part of the open files behind."""
        for file in self._open.values():
            file.writer.__exit__(type(error), error, None)
        self._open.clear()

    def _begin(self, raw: frozenset[int], schema: LakeSchema) -> _OpenFile:
        writer = DataFileWriter(schema, self._files.location, self._files.storage)
        number = self._files.begin(writer.path)
        writer.__enter__()
        file = self._open[raw] = _OpenFile(writer, number)
        return file

    def _end(self, raw: frozenset[int]) -> None:
        file = self._open.pop(raw)
        file.writer.__exit__(None, None, None)
        self._files.written[file.number] = file.writer.written
        self._files.raw_text_columns |= raw
