"""Reads the files of a table, or what describes them, to find those that are there and damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from mirror_pump.errors import FileDamaged
from mirror_pump.lake.commit.presence import heads_of, readers_files, require_all, require_head
from mirror_pump.lake.contents.described_files import require_described
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.deletion_vectors import PUFFIN_SUFFIX, require_vectors
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import listed_manifests
from mirror_pump.lake.storage import StorageOptions

Item = TypeVar("Item")

_AT_ONCE = 4
"""Files that are read at the same time."""


def require_readable(location: str, storage: StorageOptions) -> None:
    """Reads every Parquet file, and every file of deletion vectors, that readers of the metadata file need. Raises
    FileDamaged for the first that cannot be read, FileMissing and LakeError."""
    files = dict.fromkeys(readers_files(require_head(location, storage)))
    _for_all(
        lambda path: require_file(path, storage),
        [path for path in files if path.endswith((".parquet", PUFFIN_SUFFIX))],
    )


def require_all_described(location: str, storage: StorageOptions) -> None:
    """Checks that metadata describes the files that readers of the metadata file need. Reads manifests, deletion
    vectors, and footers of Parquet files. Raises the first FileDamaged or FileMissing, and LakeError."""
    require_all(location, storage)
    metadata = read_metadata(location, storage)
    types = {field.field_id: field.type for schema in metadata.readable_schemas for field in schema.fields}
    entries = {
        (entry.path, entry.blob): entry
        for snapshot in heads_of(metadata)
        for manifest in listed_manifests(snapshot, storage)
        for entry in (stored_of(manifest, storage) if manifest.live_files else ())
    }
    _for_all(lambda entry: require_described(entry, types, storage), list(entries.values()))


def _for_all(check: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Raises the first error."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        reads = [threads.submit(check, item) for item in items]
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
