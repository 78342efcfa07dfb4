"""Writes files of the lake: each appears under its name as a whole and durable, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_pump.lake.storage.gathered_writes import GatheredWrites, present_writes
from mirror_pump.lake.storage.local_files import (
    make_local_directories,
    name_local,
    open_new,
    sync_directory,
    temporary_path,
    write_local,
)
from mirror_pump.lake.storage.options import Content, StorageOptions, local_name, local_path
from mirror_pump.lake.storage.remote_files import remote_file, write_object
from mirror_pump.lake.storage.removal import StagedFiles
from mirror_pump.lake.storage.storage_errors import lake_errors, stream_errors

if TYPE_CHECKING:
    import pyarrow as pa

_PARALLEL_WRITES = 8
"""Parallel writes to a remote store. A commit writes five small objects, each of which takes a round trip of some
20 ms."""


def make_directories(locations: Sequence[str], storage: StorageOptions) -> None:
    """Makes local directories, and those above them, durable; one that exists is no error. Object stores need none.
    Raises LakeError."""
    paths = [path for location in locations if (path := local_path(location)) is not None]
    if paths:
        with lake_errors("make", locations[0], storage):
            make_local_directories(paths, storage)


def write_bytes(location: str, content: Content, storage: StorageOptions) -> None:
    """Writes one file atomically: a reader sees all of it or nothing. Others may write under the same name meanwhile:
    one of the contents is there then, whole. Raises LakeError, and never removes what is there already."""
    _write_all([(location, content)], storage, StagedFiles(storage))


def write_all(files: Iterable[tuple[str, Content]], storage: StorageOptions) -> None:
    """Writes several files like `write_bytes`, under names that no other writer has, and all at once: together they
    take about as long as one. On return all are durable; in a block of `gathered_writes`, at its end. After an error
    none is left. Raises LakeError."""
    writes = present_writes()
    with StagedFiles(storage) as written:
        if writes is None:
            _write_all(files, storage, written)
        else:
            _gather(files, storage, written, writes)


def begin_writes(files: Sequence[tuple[str, Content]], storage: StorageOptions) -> Sequence[tuple[str, Content]]:
    """In a block of `gathered_writes`, writes the files as `write_all` does, so that they are on their way to the disk
    or the store while the caller goes on, and returns none. Elsewhere returns them: they are to be written with others,
    since each `write_all` waits. Raises LakeError."""
    if present_writes() is None:
        return files
    write_all(files, storage)
    return ()


def _gather(
    files: Iterable[tuple[str, Content]], storage: StorageOptions, written: StagedFiles, writes: GatheredWrites
) -> None:
    for location, content in files:
        path = local_name(location)
        written.add(location)
        if path is None:
            writes.request(location, content, storage)
        else:
            name_local(location, path, content, storage)
            if storage.fsync:
                writes.named(location, path, len(content))


def _write_all(files: Iterable[tuple[str, Content]], storage: StorageOptions, written: StagedFiles) -> None:
    """Writes the files. Records each location in `written` once something of ours may be there."""
    local: list[tuple[str, Path, Content]] = []
    remote: list[tuple[str, Content]] = []
    for location, content in files:
        path = local_path(location)
        if path is None:
            written.add(location)
            remote.append((location, content))
        else:
            local.append((location, path, content))
    if local:
        write_local(local, storage, written.add)
    if len(remote) == 1:
        write_object(remote[0], storage)
    elif remote:
        with ThreadPoolExecutor(_PARALLEL_WRITES) as pool:
            for _ in pool.map(lambda item: write_object(item, storage), remote):
                pass


@contextmanager
def open_output(location: str, storage: StorageOptions) -> Iterator[pa.NativeFile]:
    """An Arrow output stream for a new file, which appears under its name, durable, when the block ends without error;
    in a block of `gathered_writes`, a local file is durable at that one's end.

    Raises LakeError. After an error in the block nothing is left under the name (S3 may keep an unreferenced object);
    one that does not come from writing stays what it is.
    """
    import pyarrow as pa

    path = local_path(location)
    if path is None:
        from mirror_pump.storage_kinds.object_files import output_stream

        with lake_errors("write", location, storage):
            filesystem, key = remote_file(location, storage)
        with stream_errors("write", location, storage), output_stream(filesystem, key) as stream:
            yield stream
        return
    writes = present_writes()
    temporary = temporary_path(path)
    with lake_errors("write", location, storage):
        os.close(open_new(temporary, storage))
    try:
        with stream_errors("write", location, storage), pa.OSFile(str(temporary), "wb") as stream:
            yield stream
        with lake_errors("write", location, storage):
            if storage.fsync and writes is None:
                descriptor = os.open(temporary, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if storage.fsync and writes is not None:
        writes.named(location, str(path), path.stat().st_size)
    elif storage.fsync:
        sync_directory(path.parent)
