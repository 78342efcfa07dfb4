"""Which data files a table has already: a file that is committed twice would have each of its rows twice.

Manifests never change, so each is read once for a Table object, and of its files only hashes are kept: 8 bytes a file.
A commit reads the manifests that others have written since the last one, and those that it merged itself. Each file is
in one merged manifest per power of ten, so all commits together read as much as they write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.manifests.entry_reader import PATH, EntryReader, Status
from mirror_pump.lake.manifests.manifest_list import Manifest, read_manifest
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.table.file_names import same_name
from mirror_pump.tables.table.staged_snapshot import TableVersion
from mirror_pump.tables.table.table_errors import FileRefused

_Hashes = npt.NDArray[np.uint64]


class KnownFiles:
    """Remembers the files of a table's manifests. Not thread-safe."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._by_manifest: dict[str, _Hashes] = {}
        """By manifest."""

    def refuse(self, paths: Sequence[str], state: TableVersion) -> None:
        """Raises FileRefused if the current snapshot has one of these data files, and LakeError."""
        if not paths:
            return
        added_hashes = _hashes(paths)
        by_manifest = {}
        for manifest in state.manifests:
            if manifest.content != ManifestContent.DATA or not manifest.live_files:
                continue
            manifest_hashes = self._by_manifest.get(manifest.path)
            if manifest_hashes is None:
                manifest_hashes = _hashes(self._paths(manifest))
            by_manifest[manifest.path] = manifest_hashes
            if _meet(added_hashes, manifest_hashes):
                self._refuse(paths, manifest, state)
        self._by_manifest = by_manifest

    def _refuse(self, paths: Sequence[str], manifest: Manifest, state: TableVersion) -> None:
        """Raises FileRefused if the manifest really has one of the files: two may have one hash."""
        there = {same_name(path) for path in self._paths(manifest)}
        twice = [path for path in paths if same_name(path) in there]
        if twice:
            raise FileRefused(
                f"{twice[0]} is in the table in {state.metadata.location} already", "leave it out of the commit"
            )

    def _paths(self, manifest: Manifest) -> list[str]:
        if manifest.entries is not None:
            return [entry.path for entry in manifest.entries if entry.status != Status.DELETED]
        content = read_manifest(manifest, self._storage)
        with decoding(manifest.path, "a readable manifest"):
            entries = EntryReader(content, frozenset())
            place = entries.places[PATH]
            return [row[place] for row in entries.live_rows()]


def _hashes(paths: Iterable[str]) -> _Hashes:
    """In order."""
    digests = b"".join(
        hashlib.blake2b(same_name(path).encode("utf-8", "surrogatepass"), digest_size=8).digest() for path in paths
    )
    return np.sort(np.frombuffer(digests, np.uint64))


def _meet(added_hashes: _Hashes, manifest_hashes: _Hashes) -> bool:
    """Whether any is in both, which are in order."""
    if not manifest_hashes.size:
        return False
    places = manifest_hashes.searchsorted(added_hashes)
    return bool((manifest_hashes[np.minimum(places, manifest_hashes.size - 1)] == added_hashes).any())
