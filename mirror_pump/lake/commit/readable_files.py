"""Reads the files of a table from beginning to end, to find those that are there and damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from mirror_pump.errors import FileDamaged
from mirror_pump.lake.commit.presence import readers_files, require_head
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.deletion_vectors import PUFFIN_SUFFIX, require_vectors
from mirror_pump.lake.storage import StorageOptions

_AT_ONCE = 4
"""Files that are read at the same time."""


def require_readable(location: str, storage: StorageOptions) -> None:
    """Reads every Parquet file, and every file of deletion vectors, that readers of the metadata file need. Raises
    FileDamaged for the first that cannot be read, FileMissing and LakeError."""
    files = dict.fromkeys(readers_files(require_head(location, storage)))
    paths = [path for path in files if path.endswith((".parquet", PUFFIN_SUFFIX))]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        reads = [threads.submit(require_file, path, storage) for path in paths]
        try:
            for read in reads:
                read.result()
        finally:
            threads.shutdown(cancel_futures=True)


def require_file(path: str, storage: StorageOptions) -> None:
    """Reads a Parquet file, or one of deletion vectors. Raises FileDamaged, FileMissing and LakeError."""
    if path.endswith(PUFFIN_SUFFIX):
        require_vectors(path, storage)
        return
    with open_parquet(path, storage) as file:
        for _ in file.iter_batches():
            pass


def is_damaged(path: str, storage: StorageOptions) -> bool:
    """Whether the file is damaged. Raises FileMissing and LakeError."""
    with suppress(FileDamaged):
        require_file(path, storage)
        return False
    return True
