"""Creates a file unless there is one of its name: the one atomic step that tables without a server need.

Locally it is link(2): the content is written and flushed under a temporary name first, so the name never stands for a
part of a file, as it could after O_EXCL. In an object store it is a PUT on the condition that there is no object
(`If-None-Match: *`, in Google's a generation of 0), by obstore.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from contextlib import suppress
from pathlib import Path

from mirror_pump.errors import CredentialsError, LakeError, OutcomeUnknown
from mirror_pump.lake.storage import (
    StorageOptions,
    delete,
    exists,
    fill,
    lake_errors,
    local_path,
    open_new,
    read_bytes,
    sync_directory,
    temporary_path,
)
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.storage_kinds import kind_of
from mirror_pump.storage_kinds.kind import client_library

_TRIES = Backoff(first=0.1, longest=2.0, jitter=0.5)
_MOST = 4
"""Attempts to find out about a request without an answer; obstore makes several within each."""
_NOT_KNOWN = re.compile(r"NotImplemented|status code: 501")
"""In the answer of a store that has no conditional PUT, and so has done nothing."""


def put_if_absent(location: str, content: bytes, storage: StorageOptions) -> bool:
    """Creates the file with this content, which no other writer may choose too. True: it is there now, durable. False:
    another writer was first, and nothing has changed.

    If the answer of the store is lost, the file is read: it has this content or not. Raises LakeError if the storage
    fails and the file certainly was not created, and OutcomeUnknown if that could not be found out.
    """
    path = local_path(location)
    return _linked(path, content, storage) if path is not None else _put(location, content, storage)


def require_put_if_absent(directory: str, storage: StorageOptions) -> None:
    """Raises LakeError unless the store refuses a second PUT: stores that ignore the condition would lose commits."""
    if local_path(directory) is not None:
        return
    location = f"{directory.rstrip('/')}/{uuid.uuid4().hex}.probe"
    try:
        refused = put_if_absent(location, b"1", storage) and not put_if_absent(location, b"2", storage)
    except OutcomeUnknown as error:
        raise LakeError(str(error), error.remedy) from error
    finally:
        with suppress(LakeError):
            delete(location, storage)
    if not refused:
        raise _no_conditions(directory, "ignores")


class ProbedStore:
    """The store of a directory, which has to create only what is absent. It is probed once, before the first commit:
    not every way to it need be like the one by which the directory was made. Threads may share it."""

    def __init__(self, directory: str, storage: StorageOptions) -> None:
        """`directory`: its URI, which need not exist yet."""
        self._directory = directory
        self._storage = storage
        self._probed = False

    def require(self) -> None:
        """Raises LakeError unless the store refuses a second PUT; asks it the first time only."""
        if not self._probed:
            require_put_if_absent(self._directory, self._storage)
            self._probed = True


def _no_conditions(location: str, verb: str) -> LakeError:
    return LakeError(
        f"the object store of {location} {verb} If-None-Match, so writers would overwrite each other's commits",
        "use a store with conditional writes, such as Amazon S3, or a catalog in PostgreSQL or SQLite; a proxy before"
        " the store has to pass the header on",
    )


def _linked(path: Path, content: bytes, storage: StorageOptions) -> bool:
    temporary = temporary_path(path)
    with lake_errors("write", str(path), storage):
        descriptor = open_new(temporary, storage)
        try:
            fill(descriptor, content, storage)
            created = _link(temporary, path)
        finally:
            # What it is about is done, or has failed, by now.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        if created and storage.fsync:
            try:
                sync_directory(path.parent)
            except LakeError as error:
                raise OutcomeUnknown(
                    f"{path} was created, but its directory cannot be flushed: {error}", error.remedy
                ) from error
    return created


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except OSError as error:
        # NFS may lose its answer to a link that was made (link(2), bugs): the number of names tells.
        if os.stat(temporary).st_nlink == 2:  # noqa: PTH116 - beside os.link
            return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _put(location: str, content: bytes, storage: StorageOptions) -> bool:
    """As put_if_absent. A refusal may be the answer to a repetition of a request that succeeded: the content tells."""
    kind = kind_of(location)
    if kind is None:
        raise LakeError(f"{location} is in no storage that is known", "use a directory, a bucket, or a SQL catalog")
    obstore = client_library()
    exceptions = obstore.exceptions
    _, key = kind.split(location)
    for attempt in range(1, _MOST + 1):
        try:
            store = kind.object_store(location, storage.properties_of(location))
        except LakeError as error:
            if attempt == 1:
                raise
            # An earlier attempt may have created it.
            raise OutcomeUnknown(f"{error}; it is not certain that {location} was not created", error.remedy) from error
        try:
            obstore.put(store, key, content, mode="create", use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            stored_content = _content(location, storage)
            if stored_content is not None:
                return stored_content == content
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            # It may be the answer to a repetition, too.
            stored_content = _content(location, storage)
            if stored_content is not None:
                return stored_content == content
            refused, remedy = f"cannot write {location}: {type(error).__name__}", storage.remedy_of(location)
            if _is_absent(location, storage):
                raise CredentialsError(refused, remedy) from None
            raise OutcomeUnknown(f"{refused}, and it cannot be seen whether it is there", remedy) from None
        except exceptions.BaseError as error:
            if _NOT_KNOWN.search(str(error)):
                raise _no_conditions(location, "refuses") from None
            stored_content = _content(location, storage)
            if stored_content is not None:
                return stored_content == content
        else:
            return True
        if attempt < _MOST:
            time.sleep(_TRIES.shortened(_TRIES.pause(attempt)))
    raise OutcomeUnknown(
        f"the object store did not say whether it created {location}",
        "load the table again when the store answers, and see whether the commit is there",
    )


def _content(location: str, storage: StorageOptions) -> bytes | None:
    """The file's content; None if it is not there, or the store does not answer."""
    try:
        return read_bytes(location, storage)
    except LakeError:
        return None


def _is_absent(location: str, storage: StorageOptions) -> bool:
    """Whether the store says that there is no such file."""
    try:
        return not exists(location, storage)
    except LakeError:
        return False
