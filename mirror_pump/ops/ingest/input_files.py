"""Finds and opens the files of an ingest: paths, glob patterns, URIs of any store, stdin; compressed or not."""

from __future__ import annotations

import fnmatch
import glob
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow as pa

from mirror_pump.errors import FileMissing, LakeError, TableError, UsageError
from mirror_pump.lake.storage import StorageOptions, list_files, local_path, open_input
from mirror_pump.ops.ingest.ingest_request import FileFormat

STDIN = "-"

_SUFFIXES = {
    ".parquet": FileFormat.PARQUET,
    ".csv": FileFormat.CSV,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
}
_COMPRESSED = (".gz", ".gzip", ".zst", ".zstd", ".bz2")
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bz2"))
"""How compressed files begin. Names are not trusted: a download may have been decompressed on its way."""
_PARQUET_MAGIC = b"PAR1"
_PEEK = 4
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class InputFile:
    """One file of an ingest."""

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


def find_files(patterns: Sequence[str], wanted: FileFormat | None, storage: StorageOptions) -> list[InputFile]:
    """The files that are named, in order; those of a pattern sorted by name.

    Raises UsageError for a file that is not there, a pattern without one, and a format that nothing tells.
    """
    found: list[tuple[str, int]] = []
    for pattern in patterns:
        found += _matching(pattern, storage)
    named = [location for location, _ in found]
    twice = next((location for location in named if named.count(location) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", "name each file once")
    return [
        InputFile(number, location, wanted or _format_of(location), size)
        for number, (location, size) in enumerate(found)
    ]


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
    literal = first is None
    directory = (pattern if first is None else pattern[: first.start()]).rpartition("/")[0]
    listed = sorted((file.location, file.size_bytes) for file in list_files(directory, storage))
    found = [
        (location, size)
        for location, size in listed
        # As of a shell: a star does not match a slash.
        if (
            location == pattern
            if literal
            else fnmatch.fnmatchcase(location, pattern) and location.count("/") == pattern.count("/")
        )
    ]
    if not found:
        raise UsageError(f"there is no object {pattern}", "check the bucket, the key, and the storage options")
    return found


def _format_of(location: str) -> FileFormat:
    name = location.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    known = _SUFFIXES.get(PurePosixPath(name).suffix)
    if known is None:
        what = "stdin" if location == STDIN else location
        raise UsageError(f"nothing tells the format of {what}", "give --format csv, jsonl or parquet")
    return known


@contextmanager
def open_text(file: InputFile, storage: StorageOptions) -> Iterator[tuple[Any, Any]]:
    """The decompressed bytes of a text file as a stream, and the stored stream, whose tell() shows the progress.

    Raises TableError for a file that cannot be read or is not what its format says.
    """
    with _opened(file, storage) as stored:
        peeked = stored.peek(_PEEK)[:_PEEK]
        if peeked == _PARQUET_MAGIC:
            raise TableError(f"{file.name} is a Parquet file", "give --format parquet")
        compression = next((kind for magic, kind in _MAGIC if peeked.startswith(magic)), None)
        if compression is None:
            yield stored, stored
            return
        with pa.CompressedInputStream(pa.PythonFile(stored, "r"), compression) as stream:
            yield stream, stored


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

    def __init__(self, stream: IO[bytes] | Any) -> None:
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

    def tell(self) -> int:
        return self._read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


@contextmanager
def _opened(file: InputFile, storage: StorageOptions) -> Iterator[_Peeked]:
    try:
        if file.location == STDIN:
            yield _Peeked(sys.stdin.buffer)
        elif local_path(file.location) is not None or "://" not in file.location:
            with Path(_path(file)).open("rb") as stream:
                yield _Peeked(stream)
        else:
            with open_input(file.location, storage) as source:
                yield _Peeked(source)
    except (OSError, LakeError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: InputFile, error: Exception) -> TableError:
    missing = isinstance(error, FileNotFoundError | FileMissing)
    text = "is not there any more" if missing else f"cannot be read: {error}"
    return TableError(f"{file.name} {text}", "nothing was ingested; mend the file and ingest again")


def _path(file: InputFile) -> str:
    return str(local_path(file.location) or file.location)


def _uri(file: InputFile) -> str:
    if "://" in file.location or file.location.startswith("file:/"):
        return file.location
    return str(Path(file.location).absolute())
