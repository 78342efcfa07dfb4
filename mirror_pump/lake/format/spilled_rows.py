"""Rows that wait on the disk until their partition's file is written."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterator
from typing import IO, Generic, TypeVar

import pyarrow as pa

from mirror_pump.runtime.file_systems import directory_on_disk

Key = TypeVar("Key", bound=Hashable)

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class SpilledRows(Generic[Key]):
    """Rows of one schema by key, in one file without a name, which ends with this object or the process. Used by one
    thread at a time."""

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
        with pa.ipc.new_stream(content, rows.schema, options=_OPTIONS) as stream:
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
