"""The bytes of a load on their way: they are counted, limited, and hashed, so that a label is bound to its content."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, cast

from mirror_pump.errors import MirrorPumpError

_PART = 1024 * 1024


class ContentTooLarge(MirrorPumpError):
    """The input has more bytes than a load may have."""


class ContentStream(io.RawIOBase):
    """Passes the bytes of other streams on, one after the other."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: bytes that the input may have; beyond them reading raises ContentTooLarge."""
        self._stream: BinaryIO = io.BytesIO()
        self._most = most
        self._hash = hashlib.sha256()
        self.count = 0
        """Bytes that were read."""

    def begin(self, stream: BinaryIO) -> None:
        """Goes on with another stream."""
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = self._stream.read(_PART if size < 0 else size)
        if part:
            self._hash.update(part)
            self.count += len(part)
            if self._most is not None and self.count > self._most:
                raise ContentTooLarge(
                    f"the input has more than {self._most} bytes", "load it in parts, each with a label of its own"
                )
        return part

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def drain(self) -> None:
        """Reads the present stream up to its end."""
        while self.read(_PART):
            pass

    def digest(self) -> str:
        """The hash of all bytes that were read."""
        return "sha256:" + self._hash.hexdigest()


def seekable(content: ContentStream) -> AbstractContextManager[BinaryIO]:
    """All of the input, in a temporary file on disk: a Parquet file is read from its end."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        shutil.copyfileobj(cast("BinaryIO", content), file, _PART)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return cast("AbstractContextManager[BinaryIO]", file)
