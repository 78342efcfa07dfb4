"""An Arrow file system over a store of obstore's: what this program does with files, and no more.

Paths are keys. A file appears with its whole content when it is closed. obstore repeats what fails for a moment; what
goes on failing is an OSError, as of Arrow's own file systems.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

_PART = 8 << 20
"""Bytes of a part of a large file. A smaller file is written by one request."""


def object_files(store: Any) -> PyFileSystem:
    """The file system of a bucket. Threads may share it."""
    return PyFileSystem(_ObjectFiles(store))


@contextmanager
def _os_errors() -> Iterator[None]:
    """obstore's errors as OSError; a missing object is a FileNotFoundError already."""
    from obstore import exceptions

    try:
        yield
    except exceptions.BaseError as error:
        # What follows is the error's structure, with the names of Rust's types.
        text = " ".join(str(error).partition("Debug source")[0].split())
        raise OSError(f"{type(error).__name__}: {text}") from None


class _ObjectFiles(FileSystemHandler):  # type: ignore[misc]
    def __init__(self, store: Any) -> None:
        import obstore

        self._obstore = obstore
        self._store = store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ObjectFiles) and self._store == other._store

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "obstore"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        is_directory = False
        with _os_errors(), suppress(FileNotFoundError):
            if path:
                with suppress(FileNotFoundError):
                    return _file_info(self._obstore.head(self._store, path))
            listing = self._obstore.list(self._store, f"{path}/" if path else None, chunk_size=1)
            # A bucket that is there may be empty.
            is_directory = next(iter(listing), None) is not None or not path
        return FileInfo(path, FileType.Directory if is_directory else FileType.NotFound)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        base = selector.base_dir.rstrip("/")
        prefix = f"{base}/" if base else None
        with _os_errors():
            if selector.recursive:
                objects = [entry for chunk in self._obstore.list(self._store, prefix) for entry in chunk]
                return [_file_info(entry) for entry in objects]
            listing = self._obstore.list_with_delimiter(self._store, prefix)
        directories = [FileInfo(name.rstrip("/"), FileType.Directory) for name in listing["common_prefixes"]]
        return [*directories, *map(_file_info, listing["objects"])]

    def open_input_file(self, path: str) -> pa.PythonFile:
        with _os_errors():
            size = self._obstore.head(self._store, path)["size"]
        return pa.PythonFile(_ObjectReader(self._obstore, self._store, path, size), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        return pa.PythonFile(self.writer(path), mode="w")

    def writer(self, path: str) -> _ObjectWriter:
        return _ObjectWriter(self._obstore, self._store, path)

    def delete_file(self, path: str) -> None:
        with _os_errors():
            self._obstore.delete(self._store, path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        with _os_errors():
            for chunk in self._obstore.list(self._store, f"{path.rstrip('/')}/"):
                self._delete_all([entry["path"] for entry in chunk])

    def _delete_all(self, paths: list[str]) -> None:
        try:
            self._obstore.delete(self._store, paths)
        except FileNotFoundError:
            # Another program has removed one of them.
            for path in paths:
                with suppress(FileNotFoundError):
                    self._obstore.delete(self._store, path)

    def _never(self, *_: Any) -> NoReturn:
        raise NotImplementedError("the lake does without")

    create_dir = delete_dir = delete_root_dir_contents = move = copy_file = open_append_stream = _never


@contextmanager
def output_stream(filesystem: Any, path: str) -> Iterator[Any]:
    """As open_output_stream of any of Arrow's file systems. If the block fails, nothing is left under the name in one
    of `object_files`; S3's writes what there is by then."""
    handler = getattr(filesystem, "handler", None)
    if not isinstance(handler, _ObjectFiles):
        with filesystem.open_output_stream(path) as stream:
            yield stream
        return
    writer = handler.writer(path)
    with pa.PythonFile(writer, mode="w") as stream:
        try:
            yield stream
        except BaseException:
            writer.abandon()
            raise


def _file_info(entry: Any) -> FileInfo:
    return FileInfo(entry["path"], FileType.File, size=entry["size"], mtime=entry["last_modified"])


class _ObjectReader(io.RawIOBase):
    """An object, each read of which is a request."""

    def __init__(self, obstore: Any, store: Any, path: str, size: int) -> None:
        self._obstore, self._store, self._path, self._size = obstore, store, path, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._size - self._position)
        length = rest if size is None or size < 0 else min(size, rest)
        if not length:
            return b""
        with _os_errors():
            content = bytes(self._obstore.get_range(self._store, self._path, start=self._position, length=length))
        if len(content) != length:
            raise OSError(f"the answer was cut off: {len(content)} of {length} bytes of {self._path}")
        self._position += length
        return content


class _ObjectWriter(io.RawIOBase):
    """A new object: parts of a large one go while it is written."""

    def __init__(self, obstore: Any, store: Any, path: str) -> None:
        self._writer = obstore.open_writer(store, path, buffer_size=_PART)
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, content: Any) -> int:
        with _os_errors():
            # Arrow may use the memory again.
            self._writer.write(bytes(content))
        self._written += len(content)
        return len(content)

    def abandon(self) -> None:
        """Ends it without the object. Parts of a large one are not made into it."""
        super().close()
        self._writer = None

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _os_errors():
                self._writer.close()

    def __del__(self) -> None:
        # Not closed, as IOBase would: what nothing has closed is not whole.
        self._writer = None
