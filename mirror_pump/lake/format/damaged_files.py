"""Reads files such that an error names the one whose content cannot be read: it was cut off, or bytes of it changed.

Parquet and Avro files have no checksum over the whole, so a decoder notices damage late and in many ways. Without the
name an operator could not tell which file to restore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mirror_pump.errors import FileDamaged, LakeError, MirrorPumpError, one_line_of
from mirror_pump.lake.storage import StorageOptions, local_path, open_input, read_bytes

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FORMAT = re.compile(
    "thrift|parquet|schema|metadata|decompress|codec|corrupt|end of stream|page|dictionary|level|flatbuffers|IPC",
    re.IGNORECASE,
)
"""Words of Arrow's errors about what is in a Parquet file. It raises OSError for these as well as for the storage."""
_SHOWN = 300
"""Characters of a decoder's error that are repeated."""


@contextmanager
def open_parquet(
    location: str, storage: StorageOptions, dictionaries: Sequence[str] | None = None
) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file, for the time of the block. `dictionaries`: columns to read as dictionaries.

    Raises FileMissing, FileDamaged also for what reading raises in the block, and LakeError if the storage fails.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_input(location, storage) as source:
        try:
            yield pq.ParquetFile(source, read_dictionary=dictionaries)
        except MirrorPumpError:
            raise
        except OSError as error:
            # Errors of a local file system have a number; object stores' have none.
            if error.errno is not None or (local_path(location) is None and not _FORMAT.search(str(error))):
                raise
            raise _confirmed(location, storage, error) from error
        except (pa.ArrowException, ValueError, LookupError, StopIteration) as error:
            raise _confirmed(location, storage, error) from error


def _confirmed(location: str, storage: StorageOptions, error: Exception) -> MirrorPumpError:
    """The error for a Parquet file that could not be decoded: FileDamaged, unless the answer of a remote store was
    damaged instead. Arrow takes a short answer for the file's content, and a table must not fail for that."""
    if local_path(location) is None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = read_bytes(location, storage)
        try:
            for _ in pq.ParquetFile(pa.BufferReader(content)).iter_batches():
                pass
        except Exception as again:  # noqa: BLE001 - as in `decoding`
            return file_damaged(location, "a readable Parquet file", again)
        return LakeError(
            f"{location} was read wrongly, and is whole: {one_line_of(error)[:_SHOWN]}",
            "nothing: a pump tries again by itself. If it happens often, see what stands before the storage",
        )
    return file_damaged(location, "a readable Parquet file", error)


@contextmanager
def decoding(location: str, kind: str) -> Iterator[None]:
    """For a block that only decodes the content of a file: whatever it raises is FileDamaged. `kind`: what the file is
    not then, with its article."""
    try:
        yield
    except MirrorPumpError:
        raise
    except Exception as error:
        # Decoders of damaged bytes raise whatever they happen to stumble over.
        raise file_damaged(location, kind, error) from error


def file_damaged(location: str, kind: str, error: Exception | str) -> FileDamaged:
    """The error for a file whose content is wrong. `kind`: what it is not then, with its article."""
    detail = one_line_of(error)[:_SHOWN] or type(error).__name__
    return FileDamaged(
        f"{location} is damaged: it is not {kind}: {detail}",
        "restore this file from a backup, or unregister the table and register it again, which copies it again",
        location,
    )
