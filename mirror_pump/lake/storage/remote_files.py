"""Requests to remote stores, which are repeated if they fail for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mirror_pump.lake.storage.options import Content, StorageOptions
from mirror_pump.lake.storage.remote_store import open_store, repeated
from mirror_pump.lake.storage.storage_errors import lake_errors

_Result = TypeVar("_Result")


def requested(
    verb: str,
    location: str,
    storage: StorageOptions,
    request: Callable[[Any, str], _Result],
    *,
    once: bool = False,
) -> _Result:
    """The result of a request to a remote store, which may be repeated. Raises FileMissing and LakeError."""
    with lake_errors(verb, location, storage):
        # Each time with credentials as they are then.
        return repeated(lambda: request(*remote_file(location, storage)), once=once)


def remote_file(location: str, storage: StorageOptions) -> tuple[Any, str]:
    """The Arrow file system and the key within it. Raises LakeError for a location that cannot be opened."""
    if "://" not in location:
        return open_store(location, {})
    return open_store(location, storage.properties_of(location))


def read_whole(filesystem: Any, key: str) -> bytes:
    """The content of a remote file. Arrow believes an answer that is shorter than what was asked for to be whole, and
    leaves the rest of the memory as it was: so that memory is filled with a byte that the file does not end with."""
    with filesystem.open_input_file(key) as stream:
        size = stream.size()
        for mark in (b"\0", b"\xff"):
            content = bytearray(mark * size)
            stream.seek(0)
            if stream.readinto(content) == size and not (content and content.endswith(mark)):
                return bytes(content)
        raise OSError(f"the answer was cut off: {key} has {size} bytes")


def write_object(file: tuple[str, Content], storage: StorageOptions) -> None:
    """Writes one object, given as location and content. Raises LakeError."""
    from mirror_pump.storage_kinds.object_files import output_stream

    location, content = file

    def write(filesystem: Any, key: str) -> None:
        with output_stream(filesystem, key) as stream:
            stream.write(content)

    requested("write", location, storage, write)
