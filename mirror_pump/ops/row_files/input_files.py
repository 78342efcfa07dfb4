"""Finds and opens files of rows: paths, glob patterns, URIs of any store, stdin; compressed or not."""

from __future__ import annotations

import fnmatch
import glob
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from mirror_pump.errors import FileMissing, LakeError, TableError, UsageError
from mirror_pump.lake.storage import StorageOptions, list_files, local_path, open_input
from mirror_pump.ops.row_files.file_format import MAGIC_BYTES, PARQUET_MAGIC, FileFormat, compression_of, format_of

STDIN = "-"

_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class InputFile:
    """One file of an ingest or a load."""

    number: int
    """From 0, in the order in which the files are read."""
    location: str
    """Path, URI, or `-`."""
    format: FileFormat
    size: int
    """Bytes as stored; 0 if unknown."""

    @property
    def name(self) -> str:
        return "stdin" if self.location == STDIN else self.location


@dataclass
class InputColumns:
    """The columns of the input's files, which all have the same, in any order."""

    names: tuple[str, ...] | None = None
    """None as long as no file tells any."""
    _first: str = ""

    def add(self, file: InputFile, names: tuple[str, ...] | None) -> None:
        """Adds the columns of another file, None if it has no rows that tell them. Raises UsageError for others than
        those of the first file."""
        if self.names is None:
            self.names, self._first = names, file.name
        elif names is not None and set(names) != set(self.names):
            raise UsageError(
                f"{file.name} has the columns {', '.join(names)}, and {self._first} {', '.join(self.names)}",
                "bring files of different columns one after the other",
            )


def find_files(
    patterns: Sequence[str], requested_format: FileFormat | None, storage: StorageOptions
) -> list[InputFile]:
    """The files that are named, in order; those of a pattern sorted by name.

    Raises UsageError for a file that is not there, a pattern without one, and a format that nothing tells.
    """
    matches: list[tuple[str, int]] = []
    for pattern in patterns:
        matches += _matching(pattern, storage)
    twice = first_double(location for location, _ in matches)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", "name each file once")
    return [
        InputFile(number, location, requested_format or _format_of(location), size)
        for number, (location, size) in enumerate(matches)
    ]


def first_double(locations: Iterable[str]) -> str | None:
    """The first location that there is another one like before it."""
    passed: set[str] = set()
    for location in locations:
        if location in passed:
            return location
        passed.add(location)
    return None


def _matching(pattern: str, storage: StorageOptions) -> list[tuple[str, int]]:
    """Location and size of each file that a name or pattern means."""
    if pattern == STDIN:
        return [(STDIN, 0)]
    path = local_path(pattern) or (None if "://" in pattern else Path(pattern))
    if path is None:
        return _matching_remote(pattern, storage)
    names = [str(path)] if path.exists() or not _PATTERN.search(str(path)) else sorted(glob.glob(str(path)))  # noqa: PTH207 - relative and absolute patterns alike
    files = [name for name in names if Path(name).is_file() or Path(name).is_fifo()]
    if not files:
        raise UsageError(f"there is no file {pattern}", "name files, or patterns such as 'history/*.csv.gz'")
    return [(name, Path(name).stat().st_size) for name in files]


def _matching_remote(pattern: str, storage: StorageOptions) -> list[tuple[str, int]]:
    first = _PATTERN.search(pattern)
    if first is None:
        try:
            with open_input(pattern, storage) as source:
                return [(pattern, source.size())]
        except FileMissing as error:
            raise _no_object(pattern) from error
    directory = pattern[: first.start()].rpartition("/")[0]
    matches = [
        (file.location, file.size_bytes)
        for file in list_files(directory, storage)
        # As of a shell: a star does not match a slash.
        if fnmatch.fnmatchcase(file.location, pattern) and file.location.count("/") == pattern.count("/")
    ]
    if not matches:
        raise _no_object(pattern)
    return sorted(matches)


def _no_object(pattern: str) -> UsageError:
    return UsageError(f"there is no object {pattern}", "check the bucket, the key, and the storage options")


def _format_of(location: str) -> FileFormat:
    file_format = format_of(location)
    if file_format is None:
        what = "stdin" if location == STDIN else location
        raise UsageError(f"nothing tells the format of {what}", "give --format csv, jsonl or parquet")
    return file_format


@contextmanager
def open_stored(file: InputFile, storage: StorageOptions) -> Iterator[BinaryIO]:
    """The bytes of a file as they are stored, from the first one on. Raises TableError for a file that cannot be
    read."""
    try:
        if file.location == STDIN:
            yield sys.stdin.buffer
        elif local_path(file.location) is not None or "://" not in file.location:
            with Path(_path(file)).open("rb") as stream:
                yield stream
        else:
            with open_input(file.location, storage) as source:
                yield cast("BinaryIO", source)
    except (OSError, LakeError) as error:
        raise _unreadable(file, error) from error


@contextmanager
def as_text(file: InputFile, stored: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """The decompressed bytes of a text file as a stream, and the stored ones as another, whose tell() shows the
    progress. Raises TableError for a Parquet file."""
    peeked = _Peeked(stored)
    beginning = peeked.peek(MAGIC_BYTES)[:MAGIC_BYTES]
    if beginning == PARQUET_MAGIC:
        raise TableError(f"{file.name} is a Parquet file", "give --format parquet")
    compression = compression_of(beginning)
    if compression is None:
        yield peeked, peeked
        return
    with pa.CompressedInputStream(pa.PythonFile(peeked, "r"), compression) as stream:
        yield stream, peeked


@contextmanager
def open_parquet_input(file: InputFile, storage: StorageOptions) -> Iterator[Any]:
    """A Parquet file, for reading at any position. Raises TableError if it cannot be read."""
    if file.location == STDIN:
        raise UsageError("Parquet cannot be read from stdin", "store it in a file: its content is described at its end")
    try:
        with open_input(_uri(file), storage) as source:
            yield source
    except LakeError as error:
        raise _unreadable(file, error) from error


class _Peeked:
    """A readable stream whose first bytes can be seen before they are read. pyarrow and ours read from it."""

    def __init__(self, stream: BinaryIO | Any) -> None:
        self._stream = stream
        self._ahead = b""
        self._read = 0
        self.closed = False

    def peek(self, count: int) -> bytes:
        while len(self._ahead) < count and (more := self._stream.read(count - len(self._ahead))):
            self._ahead += more
        return self._ahead

    def read(self, count: int = -1) -> bytes:
        if self._ahead:
            part, self._ahead = (self._ahead, b"") if count < 0 else (self._ahead[:count], self._ahead[count:])
        else:
            part = b"" if count == 0 else self._stream.read() if count < 0 else self._stream.read(count)
        self._read += len(part)
        return part

    def readinto(self, buffer: memoryview) -> int:
        if self._ahead:
            part = self.read(len(buffer))
            buffer[: len(part)] = part
            return len(part)
        count = int(cast("Any", self._stream).readinto(buffer))
        self._read += count
        return count

    def tell(self) -> int:
        return self._read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def _unreadable(file: InputFile, error: Exception) -> TableError:
    missing = isinstance(error, FileNotFoundError | FileMissing)
    text = "is not there any more" if missing else f"cannot be read: {error}"
    return TableError(f"{file.name} {text}", "nothing was changed; mend the file, and run the command again")


def _path(file: InputFile) -> str:
    return str(local_path(file.location) or file.location)


def _uri(file: InputFile) -> str:
    if "://" in file.location or file.location.startswith("file:/"):
        return file.location
    return str(Path(file.location).absolute())
