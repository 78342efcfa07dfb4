"""Local files and directories, made durable before anything refers to them."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from mirror_pump.errors import FileMissing, LakeError
from mirror_pump.lake.storage.options import Content, StorageOptions
from mirror_pump.lake.storage.storage_errors import REMEDY, lake_errors

_Item = TypeVar("_Item")

_REMOVE_TRIES = 20
"""Tries to remove a directory. An abandoned task adds a file or two; only one that keeps writing uses up the tries."""
_PARALLEL_FLUSHES = 16
"""Flushes at once: a commit writes five small files, and waits for the disk with each; one over hundreds of tables
thousands, which the journal of a file system takes together."""


def write_local(
    files: Sequence[tuple[str, Path, Content]], storage: StorageOptions, named: Callable[[str], None]
) -> None:
    """Writes local files: the content of all, then their names, each of which is flushed to disk in one go. Calls
    `named` with each location once the file is there."""
    unnamed: dict[str, tuple[Path, Path]] = {}
    open_files: list[tuple[str, int]] = []
    try:
        for location, path, content in files:
            with lake_errors("write", location, storage):
                temporary = temporary_path(path)
                descriptor = open_new(temporary, storage)
                unnamed[location] = temporary, path
                open_files.append((location, descriptor))
                write_whole(descriptor, content)
        if storage.fsync:
            _raise_first(_at_once(_flush, open_files))
    except BaseException:
        for temporary, _ in unnamed.values():
            temporary.unlink(missing_ok=True)
        raise
    finally:
        for _, descriptor in open_files:
            os.close(descriptor)
    try:
        for location, (temporary, path) in list(unnamed.items()):
            with lake_errors("write", location, storage):
                temporary.replace(path)
            named(location)
            del unnamed[location]
    except BaseException:
        for temporary, _ in unnamed.values():
            temporary.unlink(missing_ok=True)
        raise
    if storage.fsync:
        _raise_first(_at_once(sync_directory, list({path.parent for _, path, _ in files})))


def name_local(location: str, path: str, content: Content, storage: StorageOptions) -> None:
    """Writes a local file under a name that no other writer has, which appears with the whole content, and flushes
    neither. Raises LakeError, and leaves nothing then."""
    # Without pathlib, which takes longer than the system calls: a publish writes thousands.
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name}.tmp"
    with lake_errors("write", location, storage):
        descriptor = open_new(temporary, storage)
        try:
            write_whole(descriptor, content)
            os.rename(temporary, path)  # noqa: PTH104
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def begin_flush(location: str, path: str) -> Future[list[Exception]]:
    """Begins to flush the content of a file. The result is the error, if there is one."""
    return _flushing(os.getpid()).submit(_flush_share, _flush_path, [(location, path)])


def flush_paths(
    files: Mapping[str, str],
    missing: set[str] | None = None,
    begun: Mapping[str, Future[list[Exception]]] | None = None,
) -> None:
    """Flushes the content and the names of files, given by location. `begun`: those whose content is flushed already,
    or will be. Raises LakeError. With `missing`, files that are gone are no error: their locations are added there."""
    begun = begun or {}
    directories: dict[str, list[str]] = {}
    for location, path in files.items():
        directories.setdefault(path.rpartition("/")[0], []).append(location)
    contents = _at_once(_flush_path, [file for file in files.items() if file[0] not in begun])
    for future in begun.values():
        contents += future.result()
    for errors in (contents, _at_once(sync_directory, list(directories))):
        if missing is None:
            _raise_first(errors)
            continue
        for error in errors:
            if not isinstance(error, FileMissing):
                raise error
            # The name of a directory that is gone is its path.
            missing.update(directories.get(error.location, [error.location]))


def _flush_path(file: tuple[str, str]) -> None:
    location, path = file
    with lake_errors("write", location, None):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _flush(file: tuple[str, int]) -> None:
    location, descriptor = file
    with lake_errors("write", location, None):
        os.fsync(descriptor)


def _at_once(flush: Callable[[_Item], None], items: Sequence[_Item]) -> list[Exception]:
    """Flushes several files or directories: a disk, and the journal of a file system, do so for many in one go. Waits
    for all, and returns the errors."""
    shares = [items[place::_PARALLEL_FLUSHES] for place in range(min(_PARALLEL_FLUSHES, len(items)))]
    futures = [_flushing(os.getpid()).submit(_flush_share, flush, share) for share in shares[1:]]
    try:
        errors = _flush_share(flush, shares[0]) if shares else []
    finally:
        wait(futures)
    return [*errors, *(error for future in futures for error in future.result())]


def _flush_share(flush: Callable[[_Item], None], items: Sequence[_Item]) -> list[Exception]:
    errors: list[Exception] = []
    for item in items:
        try:
            flush(item)
        except LakeError as error:
            errors.append(error)
    return errors


def _raise_first(errors: Sequence[Exception]) -> None:
    if errors:
        raise errors[0]


@lru_cache(maxsize=1)
def _flushing(_process: int) -> ThreadPoolExecutor:
    """The threads of `_at_once`. A forked process has none of its parent's, and gets its own."""
    return ThreadPoolExecutor(_PARALLEL_FLUSHES, thread_name_prefix="flush")


def fill(descriptor: int, content: Content, storage: StorageOptions) -> None:
    """Writes the whole content to an open local file, durably, and closes it. Raises OSError."""
    try:
        write_whole(descriptor, content)
        if storage.fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(descriptor: int, content: Content) -> None:
    """Writes the whole content to an open local file. A single write may be partial if storage becomes full; the next
    one then fails. Raises OSError."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def is_there(path: Path | str) -> bool:
    """As Path.exists(), which takes other errors for an answer too. Raises LakeError for those."""
    try:
        os.stat(path)  # noqa: PTH116 - see missing_files
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LakeError(f"cannot look for {path}: {error}", REMEDY) from error
    return True


def remove_tree(path: Path) -> None:
    """Like rm -r. Tasks may still be writing below: files that vanish are ignored, files that appear are removed."""
    for tries_left in reversed(range(_REMOVE_TRIES)):
        try:
            shutil.rmtree(path)
            return
        except FileNotFoundError:
            if not path.exists():
                return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not tries_left:
                raise


def temporary_path(path: Path) -> Path:
    """A name beside a file, for its content until it is whole. Each writer has one of its own."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def open_new(path: Path | str, storage: StorageOptions) -> int:
    """Opens a local file for writing; one that exists is emptied. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags, storage.file_mode)
    except FileNotFoundError:
        if not storage.make_directories:
            raise
        make_local_directories([Path(path).parent], storage)
        return os.open(path, flags, storage.file_mode)


def make_local_directories(paths: Sequence[Path], storage: StorageOptions) -> None:
    """Makes directories, and those above them, durable; one that exists is no error. Raises OSError and LakeError."""
    for path in paths:
        # Path.mkdir gives its mode to the last directory only.
        for missing in reversed([parent for parent in path.parents if not parent.exists()]):
            missing.mkdir(storage.directory_mode, exist_ok=True)
        path.mkdir(storage.directory_mode, exist_ok=True)
    if storage.fsync:
        _raise_first(_at_once(sync_directory, list({made for path in paths for made in (*path.parents,)[:2]})))


def sync_directory(path: Path | str) -> None:
    """Makes the directory's entries durable. Raises LakeError."""
    with lake_errors("flush", str(path), None):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
