"""Reads files of the lake, and looks which there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirror_pump.lake.storage.gathered_writes import settle
from mirror_pump.lake.storage.local_files import is_there
from mirror_pump.lake.storage.options import LOCAL, StorageOptions, local_path
from mirror_pump.lake.storage.remote_files import read_whole, remote_file, requested
from mirror_pump.lake.storage.storage_errors import lake_errors, stream_errors
from mirror_pump.storage_kinds import kind_of

if TYPE_CHECKING:
    import pyarrow as pa

_PARALLEL_LOOKS = 16
"""A look at an object is a round trip, of some 10 ms in a remote store, and nothing else."""


def read_bytes(location: str, storage: StorageOptions) -> bytes:
    """The content of a file. Raises FileMissing, and LakeError if it cannot be read."""
    path = local_path(location)
    if path is not None:
        with lake_errors("read", location, storage):
            return path.read_bytes()
    settle([location])
    return requested("read", location, storage, read_whole)


@contextmanager
def open_input(location: str, storage: StorageOptions) -> Iterator[pa.NativeFile]:
    """Opens a file for reading at any position. Raises FileMissing, and LakeError if it cannot be read. Errors in the
    block that do not come from reading stay what they are."""
    import pyarrow as pa

    with stream_errors("read", location, storage):
        path = local_path(location)
        if path is not None:
            with pa.OSFile(str(path), "rb") as source:
                yield source
            return
        settle([location])
        with lake_errors("read", location, storage):
            filesystem, key = remote_file(location, storage)
        with filesystem.open_input_file(key) as source:
            yield source


@dataclass(frozen=True)
class StoredFile:
    """A file as listed by the storage."""

    location: str
    """URI of the file, spelled like the listed location."""
    size_bytes: int
    modified: float
    """Seconds since 1970 UTC, by the storage's clock."""


def list_files(location: str, storage: StorageOptions, *, recursive: bool = True) -> Iterator[StoredFile]:
    """Every file below a location, or directly in it; an empty or missing location is not an error. Raises
    LakeError."""
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    def listing(filesystem: Any, key: str) -> tuple[int, list[Any]]:
        selector = FileSelector(key.rstrip("/"), recursive=recursive, allow_not_found=True)
        return len(selector.base_dir), filesystem.get_file_info(selector)

    path = local_path(location)
    if path is None:
        root, listed = requested("list", location, storage, listing)
    else:
        with lake_errors("list", location, storage):
            root, listed = listing(LocalFileSystem(), str(path))
    for info in listed:
        if info.type == FileType.File:
            uri = location.rstrip("/") + info.path[root:]
            yield StoredFile(uri, info.size or 0, (info.mtime_ns or 0) / 1e9)


def list_directories(location: str, storage: StorageOptions) -> list[str]:
    """Names of the directories directly in a location, in order; none in a missing one. Raises LakeError."""
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    def listing(filesystem: Any, key: str) -> list[str]:
        entries = filesystem.get_file_info(FileSelector(key.rstrip("/"), recursive=False, allow_not_found=True))
        return sorted(entry.base_name for entry in entries if entry.type == FileType.Directory)

    path = local_path(location)
    if path is None:
        return requested("list", location, storage, listing)
    with lake_errors("list", location, storage):
        return listing(LocalFileSystem(), str(path))


def exists(location: str, storage: StorageOptions) -> bool:
    """Whether a file exists. Raises LakeError if the storage does not answer."""
    path = local_path(location)
    if path is not None:
        with lake_errors("look for", location, storage):
            return is_there(path)
    return size_of(location, storage) is not None


def size_of(location: str, storage: StorageOptions) -> int | None:
    """Length of a file in bytes; None if it does not exist. Raises LakeError if the storage does not answer."""
    path = local_path(location)
    if path is not None:
        with lake_errors("look for", location, storage):
            try:
                return os.stat(path).st_size  # noqa: PTH116 - see missing_files
            except FileNotFoundError:
                return None
    settle([location])
    from pyarrow.fs import FileType

    def look(filesystem: Any, key: str) -> int | None:
        info = filesystem.get_file_info(key)
        return int(info.size or 0) if info.type == FileType.File else None

    return requested("look for", location, storage, look)


def missing_files(locations: Iterable[str], storage: StorageOptions) -> frozenset[str]:
    """Those that are not there; remote ones are looked for in parallel. Raises LakeError if the storage does not
    answer."""
    missing: set[str] = set()
    remote: list[str] = []
    for location in set(locations):
        # Each commit comes here with dozens of them: a Path takes ten times as long as the look.
        path = location.removeprefix(LOCAL) if location.startswith(LOCAL) else None
        if path is None and local_path(location) is None:
            remote.append(location)
        elif not (exists(location, storage) if path is None else is_there(path)):
            missing.add(location)
    if remote:
        settle(remote)
        with ThreadPoolExecutor(min(len(remote), _PARALLEL_LOOKS)) as pool:
            there = pool.map(lambda location: exists(location, storage), remote)
            missing.update(location for location, is_present in zip(remote, there, strict=True) if not is_present)
    return frozenset(missing)


def directory_answers(location: str, storage: StorageOptions) -> bool:
    """Whether a warehouse is there to be asked: a local directory that has something in it, as the place where a file
    system is to be mounted has not; or a bucket. Raises LakeError if the storage does not answer."""
    path = local_path(location)
    if path is not None:
        with lake_errors("look for", location, storage):
            return is_there(path) and any(entry.name != "lost+found" for entry in os.scandir(path))
    from pyarrow.fs import FileType

    kind = kind_of(location)
    below_bucket = "" if kind is None else kind.split(location)[1]

    def look(filesystem: Any, key: str) -> bool:
        bucket = key.removesuffix(below_bucket).rstrip("/")
        return bool(filesystem.get_file_info(bucket).type == FileType.Directory)

    return requested("look for", location, storage, look)
