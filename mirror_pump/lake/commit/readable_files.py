"""Reads the files of a table, or what describes them, to find those that are there and damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from decoders.columns import ColumnType
from mirror_pump.errors import FileDamaged, FileMissing
from mirror_pump.lake.commit.presence import DescribedEntries, examined_files, readers_files, require_head
from mirror_pump.lake.contents.described_files import described_columns, description_digest, require_described
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.deletion_vectors import PUFFIN_SUFFIX, require_vectors
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.storage import StorageOptions

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_ONCE = 4
"""Files that are read at the same time, batch by batch."""
_FOOTERS_AT_ONCE = 16
"""Footers: each is small, and waits for the answers of a store."""
_BATCH = 256
"""Files whose footers are read together."""


def require_readable(location: str, storage: StorageOptions) -> None:
    """Reads every Parquet file, and every file of deletion vectors, that readers of the metadata file need. Raises
    FileDamaged for the first that cannot be read, FileMissing and LakeError."""
    files = dict.fromkeys(readers_files(require_head(location, storage)))
    _of_all(
        lambda path: require_file(path, storage),
        [path for path in files if path.endswith((".parquet", PUFFIN_SUFFIX))],
        _AT_ONCE,
    )


class DescriptionCheck:
    """Holds files against what manifests say of them: reads footers of Parquet files, and deletion vectors. Tables,
    moments and feeds share files, so each is read once with one description."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._described: set[bytes] = set()
        """Digests of descriptions that hold."""

    def wrong_files(self, location: str) -> Iterator[FileMissing | FileDamaged]:
        """As `presence.wrong_files`, and files that are not what their manifests say. Raises LakeError."""
        waiting: list[StoredEntry] = []
        types: dict[int, ColumnType] = {}
        for result in examined_files(location, self._storage):
            if not isinstance(result, DescribedEntries):
                yield result
                continue
            types = types or described_columns(result.metadata)
            waiting += result.entries
            if len(waiting) >= _BATCH:
                yield from self._read(waiting, types)
                waiting = []
        yield from self._read(waiting, types)

    def require_described(self, location: str) -> None:
        """Raises the first error of `wrong_files`, and LakeError."""
        for error in self.wrong_files(location):
            raise error

    def _read(
        self, entries: Sequence[StoredEntry], types: Mapping[int, ColumnType]
    ) -> Iterator[FileMissing | FileDamaged]:
        unread = {digest: entry for entry in entries if (digest := description_digest(entry)) not in self._described}

        def read(entry: StoredEntry) -> FileMissing | FileDamaged | None:
            try:
                require_described(entry, types, self._storage)
            except (FileMissing, FileDamaged) as error:
                return error
            return None

        for digest, error in zip(unread, _of_all(read, list(unread.values()), _FOOTERS_AT_ONCE), strict=True):
            if error is None:
                self._described.add(digest)
            else:
                yield error


def _of_all(check: Callable[[Item], Result], items: Sequence[Item], at_once: int) -> list[Result]:
    """Raises the first error."""
    with ThreadPoolExecutor(at_once) as threads:
        reads = [threads.submit(check, item) for item in items]
        try:
            return [read.result() for read in reads]
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
