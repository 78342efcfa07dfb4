"""Errors of the storage, as a LakeError that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirror_pump.errors import CredentialsError, FileMissing, LakeError, StorageFull
from mirror_pump.lake.storage.options import StorageOptions, local_path
from mirror_pump.lake.storage.remote_store import is_arrow_error, refuses_credentials
from mirror_pump.settings.credentials import without_secrets

REMEDY = "check that the location exists, that the process may write there, and that the storage properties are right"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_REMEDY = (
    "make room there; nothing is lost: unpublished changes are received again, automatically within a minute or"
    " when mirror-pump is started again. Until then the frontier does not move and the server keeps the WAL"
)


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
            raise FileMissing(f"cannot {verb} {location}: {error}", REMEDY, location) from error
        if storage is None or local_path(location) is not None:
            raise LakeError(f"cannot {verb} {location}: {error}", REMEDY) from error
        text = without_secrets(f"cannot {verb} {location}: {error}", storage.properties_of(location))
        if refuses_credentials(error):
            raise CredentialsError(text, storage.remedy_of(location)) from None
        raise LakeError(text, REMEDY) from None


@contextmanager
def stream_errors(verb: str, location: str, storage: StorageOptions) -> Iterator[None]:
    """As `lake_errors`, for a block with the caller's work in it: only what Arrow raises is about its stream."""
    try:
        yield
    except Exception as error:
        if _raised_by_arrow(error):
            with lake_errors(verb, location, storage):
                raise
        raise


def _raised_by_arrow(error: Exception) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    # Arrow passes on what a file system in Python has raised.
    parts = Path(trace.tb_frame.f_code.co_filename).parts
    return "pyarrow" in parts or "storage_kinds" in parts


def no_room(error: BaseException) -> bool:
    """Whether an error means that a local file system, or the user's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM
