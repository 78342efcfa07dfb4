"""Reads and writes the lake's storage: local files, made durable, or any store that pyiceberg can open."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from mirror_pump.credentials import without_secrets
from mirror_pump.errors import CredentialsError, FileMissing, LakeError, StorageFull
from mirror_pump.lake.object_store import attempts, is_arrow_error, open_store, refuses_credentials

if TYPE_CHECKING:
    import pyarrow as pa

    from mirror_pump.config import Settings

_Result = TypeVar("_Result")

_LOCAL = "file://"
_PARALLEL_LOOKS = 16
"""A look at an object is a round trip, of some 10 ms in a remote store, and nothing else."""
_PARALLEL_WRITES = 4
"""Parallel writes to a remote store. A commit writes four small objects, each with a round trip of some 20 ms."""
_REMOVE_TRIES = 20
"""Tries to remove a directory. An abandoned task adds a file or two; only one that keeps writing uses up the tries."""
_REMEDY = "check that the location exists, that the process may write there, and that the storage properties are right"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_REMEDY = (
    "make room there; nothing is lost: unpublished changes are received again, automatically within a minute or"
    " when mirror-pump is started again. Until then the frontier does not move and the server keeps the WAL"
)

_REFUSED_REMEDY = (
    "give other credentials, or give these the rights to read, write, list and delete below the location; nothing is"
    " lost: until then the frontier does not move"
)


class StorageAccess(Protocol):
    """Knows the storage profiles (mirror_pump.lake.profile_access)."""

    def properties_of(self, location: str) -> Mapping[str, str]:
        """The FileIO properties with which a remote location is reached. Raises CredentialsError, and LakeError."""
        ...

    def remedy_of(self, location: str) -> str:
        """What to do if the store does not accept the credentials for a location."""
        ...


@dataclass(frozen=True)
class StorageOptions:
    """How to reach the storage. Picklable: it travels to tasks. `repr()` shows no secrets."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """pyiceberg FileIO properties, such as `s3.endpoint` and `s3.access-key-id`; none are needed for file:// URIs. To
    read them, use `properties_of`."""
    fsync: bool = True
    """Flush local files and their directory entries to disk before anything refers to them: a publish that survives a
    power failure must not point to files that did not. Measured on ext4: 0.3 ms for a small file (0.06 without)."""
    make_directories: bool = True
    """Make the local directories that files are written into. Not for a pump: the directories of a table exist from its
    registration on, and one that is gone later is an error, not a place to begin again."""
    profiles: StorageAccess | None = field(default=None, repr=False, compare=False)
    """If set, each location is reached as its storage profile says, and `properties` is not used."""

    def properties_of(self, location: str) -> Mapping[str, str]:
        """The FileIO properties for a remote location. They contain secrets: never print them. Raises CredentialsError
        if there are no credentials, and LakeError."""
        return self.properties if self.profiles is None else self.profiles.properties_of(location)

    def remedy_of(self, location: str) -> str:
        """What to do if the store does not accept the credentials for a location."""
        return _REFUSED_REMEDY if self.profiles is None else self.profiles.remedy_of(location)


def storage_of(settings: Settings) -> StorageOptions:
    """How the settings reach tables that are in no storage profile."""
    return StorageOptions(settings.storage_properties, fsync=settings.storage_fsync)


def join(base: str, *parts: str) -> str:
    """`base` and `parts` as one URI."""
    return "/".join([base.rstrip("/"), *parts])


def local_path(location: str) -> Path | None:
    """The local path of a URI (file:///a/b, file:/a/b) or absolute path; None for a remote location.

    Iceberg locations are not percent-encoded, so nothing is decoded.
    """
    if location.startswith(_LOCAL):
        return Path(location.removeprefix(_LOCAL))
    if location.startswith("file:/"):
        return Path(location.removeprefix("file:"))
    return Path(location) if location.startswith("/") else None


def make_directory(location: str, storage: StorageOptions) -> None:
    """Makes a local directory, and those above it, durable; one that exists is no error. Object stores need none.
    Raises LakeError."""
    path = local_path(location)
    if path is not None:
        with lake_errors("make", location, storage):
            _make_directory(path, storage)


def read_bytes(location: str, storage: StorageOptions) -> bytes:
    """The content of a file. Raises FileMissing, and LakeError if it cannot be read."""
    path = local_path(location)
    if path is not None:
        with lake_errors("read", location, storage):
            return path.read_bytes()
    return _repeated("read", location, storage, _read_whole)


def _read_whole(filesystem: Any, key: str) -> bytes:
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


@contextmanager
def open_input(location: str, storage: StorageOptions) -> Iterator[pa.NativeFile]:
    """Opens a file for reading at any position. Raises FileMissing, and LakeError if it cannot be read."""
    import pyarrow as pa

    with lake_errors("read", location, storage):
        path = local_path(location)
        if path is not None:
            with pa.OSFile(str(path), "rb") as source:
                yield source
            return
        filesystem, key = _remote(location, storage)
        with filesystem.open_input_file(key) as source:
            yield source


def write_bytes(location: str, content: bytes, storage: StorageOptions) -> None:
    """Writes one file atomically: a reader sees all of it or nothing. Raises LakeError."""
    write_all([(location, content)], storage)


def write_all(files: Iterable[tuple[str, bytes]], storage: StorageOptions) -> None:
    """Writes several files like `write_bytes`, remote ones in parallel. On return all are durable; after an error none
    is left. Raises LakeError."""
    with StagedFiles(storage) as written:
        _write_all(files, storage, written)


def _write_all(files: Iterable[tuple[str, bytes]], storage: StorageOptions, written: StagedFiles) -> None:
    """Writes the files. Records each location in `written` before any part of the file can exist."""
    remote: list[tuple[str, bytes]] = []
    directories: set[Path] = set()
    for location, content in files:
        written.own(location)
        path = local_path(location)
        if path is None:
            remote.append((location, content))
            continue
        with lake_errors("write", location, storage):
            temporary = _temporary(path)
            descriptor = open_new(temporary, storage)
            try:
                fill(descriptor, content, storage)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            directories.add(path.parent)
    if storage.fsync:
        for directory in directories:
            sync_directory(directory)
    if len(remote) == 1:
        _write_remote(remote[0], storage)
    elif remote:
        with ThreadPoolExecutor(_PARALLEL_WRITES) as pool:
            for _ in pool.map(lambda item: _write_remote(item, storage), remote):
                pass


def fill(descriptor: int, content: bytes, storage: StorageOptions) -> None:
    """Writes the whole content to an open local file, durably, and closes it. A single write may be partial if storage
    becomes full; the next one then fails. Raises OSError."""
    with os.fdopen(descriptor, "wb", buffering=0) as stream:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[stream.write(remaining) :]
        if storage.fsync:
            os.fsync(descriptor)


@dataclass(frozen=True)
class StoredFile:
    """A file as listed by the storage."""

    location: str
    """URI of the file, spelled like the listed location."""
    size_bytes: int
    modified: float
    """Seconds since 1970 UTC, by the storage's clock."""


def list_files(location: str, storage: StorageOptions) -> Iterator[StoredFile]:
    """Every file below a location; an empty or missing location is not an error. Raises LakeError."""
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    def listing(filesystem: Any, key: str) -> tuple[int, list[Any]]:
        selector = FileSelector(key.rstrip("/"), recursive=True, allow_not_found=True)
        return len(selector.base_dir), filesystem.get_file_info(selector)

    path = local_path(location)
    if path is None:
        root, listed = _repeated("list", location, storage, listing)
    else:
        with lake_errors("list", location, storage):
            root, listed = listing(LocalFileSystem(), str(path))
    for found in listed:
        if found.type == FileType.File:
            uri = location.rstrip("/") + found.path[root:]
            yield StoredFile(uri, found.size or 0, (found.mtime_ns or 0) / 1e9)


def exists(location: str, storage: StorageOptions) -> bool:
    """Whether a file exists. Raises LakeError if the storage does not answer."""
    path = local_path(location)
    if path is not None:
        with lake_errors("look for", location, storage):
            return _is_there(path)
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
    from pyarrow.fs import FileType

    def look(filesystem: Any, key: str) -> int | None:
        found = filesystem.get_file_info(key)
        return int(found.size or 0) if found.type == FileType.File else None

    return _repeated("look for", location, storage, look)


def list_directories(location: str, storage: StorageOptions) -> list[str]:
    """Names of the directories directly in a location, in order; none in a missing one. Raises LakeError."""
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    def listing(filesystem: Any, key: str) -> list[str]:
        found = filesystem.get_file_info(FileSelector(key.rstrip("/"), recursive=False, allow_not_found=True))
        return sorted(entry.base_name for entry in found if entry.type == FileType.Directory)

    path = local_path(location)
    if path is None:
        return _repeated("list", location, storage, listing)
    with lake_errors("list", location, storage):
        return listing(LocalFileSystem(), str(path))


def missing_files(locations: Iterable[str], storage: StorageOptions) -> frozenset[str]:
    """Those that are not there; remote ones are looked for in parallel. Raises LakeError if the storage does not
    answer."""
    missing: set[str] = set()
    remote: list[str] = []
    for location in set(locations):
        # Each commit comes here with dozens of them: a Path takes ten times as long as the look.
        path = location.removeprefix(_LOCAL) if location.startswith(_LOCAL) else None
        if path is None and local_path(location) is None:
            remote.append(location)
        elif not (exists(location, storage) if path is None else _is_there(path)):
            missing.add(location)
    if remote:
        with ThreadPoolExecutor(min(len(remote), _PARALLEL_LOOKS)) as pool:
            there = pool.map(lambda location: exists(location, storage), remote)
            missing.update(location for location, found in zip(remote, there, strict=True) if not found)
    return frozenset(missing)


def directory_answers(location: str, storage: StorageOptions) -> bool:
    """Whether a warehouse is there to be asked: a local directory that has something in it, as the place where a file
    system is to be mounted has not; or a bucket. Raises LakeError if the storage does not answer."""
    path = local_path(location)
    if path is not None:
        with lake_errors("look for", location, storage):
            return _is_there(path) and any(entry.name != "lost+found" for entry in os.scandir(path))
    from pyarrow.fs import FileType

    def look(filesystem: Any, key: str) -> bool:
        return bool(filesystem.get_file_info(key.partition("/")[0]).type == FileType.Directory)

    return _repeated("look for", location, storage, look)


def _is_there(path: Path | str) -> bool:
    """As Path.exists(), which takes other errors for an answer too. Raises LakeError for those."""
    try:
        os.stat(path)  # noqa: PTH116 - see missing_files
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LakeError(f"cannot look for {path}: {error}", _REMEDY) from error
    return True


def delete(location: str, storage: StorageOptions, *, once: bool = False) -> None:
    """Removes a file; a missing file is not an error. `once`: without repeating what fails for a moment. Raises
    LakeError."""
    path = local_path(location)
    if path is not None:
        with lake_errors("delete", location, storage):
            path.unlink(missing_ok=True)
        return

    def remove(filesystem: Any, key: str) -> None:
        with suppress(FileNotFoundError):
            filesystem.delete_file(key)

    _repeated("delete", location, storage, remove, once=once)


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

    def own(self, *locations: str) -> None:
        """Adds locations that are being written."""
        self._locations += locations

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            discard(self._locations, self._storage)


def delete_tree(location: str, storage: StorageOptions) -> None:
    """Removes everything below a location; a missing location is not an error. Raises LakeError."""
    path = local_path(location)
    if path is not None:
        with lake_errors("delete", location, storage):
            _remove_tree(path)
        return

    def remove(filesystem: Any, key: str) -> None:
        filesystem.delete_dir_contents(key, missing_dir_ok=True)

    _repeated("delete", location, storage, remove)


def _remove_tree(path: Path) -> None:
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


@contextmanager
def open_output(location: str, storage: StorageOptions) -> Iterator[pa.NativeFile]:
    """An Arrow output stream for a new file, which appears under its name, durable, when the block ends without error.

    Raises LakeError. After an error in the block nothing is left under the name (a remote store may keep an
    unreferenced object).
    """
    import pyarrow as pa

    path = local_path(location)
    if path is None:
        with lake_errors("write", location, storage):
            filesystem, key = _remote(location, storage)
            with filesystem.open_output_stream(key) as stream:
                yield stream
        return
    temporary = _temporary(path)
    with lake_errors("write", location, storage):
        os.close(open_new(temporary, storage))
        try:
            with pa.OSFile(str(temporary), "wb") as stream:
                yield stream
            if storage.fsync:
                descriptor = os.open(temporary, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if storage.fsync:
            sync_directory(path.parent)


def _repeated(
    verb: str,
    location: str,
    storage: StorageOptions,
    request: Callable[[Any, str], _Result],
    *,
    once: bool = False,
) -> _Result:
    """The result of a request to a remote store, which is repeated if it fails for a moment: it has the same effect
    however often it is made. Raises FileMissing and LakeError."""
    with lake_errors(verb, location, storage):
        for attempt in attempts(once=once):
            with attempt:
                # With credentials as they are now.
                return request(*_remote(location, storage))
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def lake_errors(verb: str, location: str, storage: StorageOptions | None) -> Iterator[None]:
    """Turns errors in the block into LakeError. `storage`: None for what is local."""
    try:
        yield
    except Exception as error:
        # ArrowInvalid is a ValueError: about content, not storage.
        if not isinstance(error, OSError) and (isinstance(error, ValueError) or not is_arrow_error(error)):
            raise
        if no_room(error):
            raise StorageFull(f"no space left to {verb} {location}: {error}", _FULL_REMEDY) from error
        if isinstance(error, FileNotFoundError):
            raise FileMissing(f"cannot {verb} {location}: {error}", _REMEDY, location) from error
        if storage is None or local_path(location) is not None:
            raise LakeError(f"cannot {verb} {location}: {error}", _REMEDY) from error
        text = without_secrets(f"cannot {verb} {location}: {error}", storage.properties_of(location))
        if refuses_credentials(error):
            raise CredentialsError(text, storage.remedy_of(location)) from None
        raise LakeError(text, _REMEDY) from None


def no_room(error: BaseException) -> bool:
    """Whether an error means that a local file system, or the user's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def open_new(path: Path, storage: StorageOptions) -> int:
    """Opens a local file for writing; one that exists is emptied. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        if not storage.make_directories:
            raise
        _make_directory(path.parent, storage)
        return os.open(path, flags, 0o644)


def _make_directory(path: Path, storage: StorageOptions) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if storage.fsync:
        for made in (path.parent, path.parent.parent):
            sync_directory(made)


def sync_directory(path: Path) -> None:
    """Makes the directory's entries durable. Raises LakeError."""
    with lake_errors("flush", str(path), None):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_remote(file: tuple[str, bytes], storage: StorageOptions) -> None:
    location, content = file

    def write(filesystem: Any, key: str) -> None:
        with filesystem.open_output_stream(key) as stream:
            stream.write(content)

    _repeated("write", location, storage, write)


def _remote(location: str, storage: StorageOptions) -> tuple[Any, str]:
    """The Arrow file system and the key within it. Raises LakeError for a location that cannot be opened."""
    if "://" not in location:
        return open_store(location, {})
    return open_store(location, storage.properties_of(location))
