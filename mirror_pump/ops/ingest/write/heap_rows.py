"""Rows that PostgreSQL itself stores: kept in files of CSV until the ingest's transaction copies them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa

from mirror_pump.source.copy_csv import csv_bytes

_PART = 1 << 20


class HeapRows:
    """Rows of strings in a temporary file, which is gone when it is closed. Used by one thread at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._file: IO[bytes] | None = None
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        """Appends rows with the columns `names`, all strings."""
        if not table.num_rows:
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._file.write(csv_bytes(table.select(self._names)))
        self.rows += table.num_rows

    def parts(self) -> Iterator[bytes]:
        """The rows, from the first one on."""
        if self._file is None:
            return
        self._file.flush()
        self._file.seek(0)
        while part := self._file.read(_PART):
            yield part

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
