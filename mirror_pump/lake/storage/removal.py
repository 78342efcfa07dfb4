"""Removes files of the lake, and owns those that go if what they were written for fails."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from mirror_pump.errors import LakeError
from mirror_pump.lake.storage.gathered_writes import present_writes
from mirror_pump.lake.storage.local_files import remove_tree
from mirror_pump.lake.storage.options import StorageOptions, local_path
from mirror_pump.lake.storage.remote_files import requested
from mirror_pump.lake.storage.storage_errors import lake_errors


def delete(location: str, storage: StorageOptions, *, once: bool = False) -> None:
    """Removes a file; a missing file is not an error. `once`: without repeating what fails for a moment. Raises
    LakeError."""
    writes = present_writes()
    if writes is not None:
        writes.forget(location)
    path = local_path(location)
    if path is not None:
        with lake_errors("delete", location, storage):
            path.unlink(missing_ok=True)
        return

    def remove(filesystem: Any, key: str) -> None:
        with suppress(FileNotFoundError):
            filesystem.delete_file(key)

    requested("delete", location, storage, remove, once=once)


def delete_tree(location: str, storage: StorageOptions) -> None:
    """Removes everything below a location; a missing location is not an error. Raises LakeError."""
    path = local_path(location)
    if path is not None:
        with lake_errors("delete", location, storage):
            remove_tree(path)
        return

    def remove(filesystem: Any, key: str) -> None:
        filesystem.delete_dir_contents(key, missing_dir_ok=True)

    requested("delete", location, storage, remove)


def discard(locations: Iterable[str], storage: StorageOptions) -> None:
    """Removes files that nothing refers to. Ignores failures: a later sweep (`maintain`) removes what is left."""
    for location in locations:
        with suppress(LakeError):
            delete(location, storage, once=True)


class StagedFiles:
    """Owns written files that nothing refers to yet.

    A context manager. An exception in the block removes the files, so that a writer of several files leaves none behind
    if a later one fails. After the block they belong to the code that takes over `locations`.
    """

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._locations: list[str] = []

    @property
    def locations(self) -> tuple[str, ...]:
        """The locations, in the order of writing."""
        return tuple(self._locations)

    def add(self, *locations: str) -> None:
        """Adds locations that are being written."""
        self._locations += locations

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            discard(self._locations, self._storage)
