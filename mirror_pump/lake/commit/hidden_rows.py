"""The rows that a commit hides, as deletion vectors: in tables of format version 3, in place of position-delete files.

Position deletes of any origin come together here: of the commit's stream changes, and of what it replaces. A file of
which no row is left goes, also one that the same commit would add. What else is removed is for the replacement, but for
vectors: those of removed data files go, and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.replacement import PresentFiles, Replaced
from mirror_pump.lake.commit.row_deletes import RowDeletes, TouchedFile, row_deletes, touched_files
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.deletion_vectors import VectorPlace, encoded_deletion_vectors
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, StoredEntry
from mirror_pump.lake.manifests.manifest_files import entries_of
from mirror_pump.lake.manifests.manifest_list import Manifest


@dataclass(frozen=True)
class VectorCommit:
    """What a commit adds and removes, with vectors."""

    replaced: Replaced
    """Removes superseded vectors and emptied files, too."""
    vectors: tuple[WrittenFile, ...]
    files: tuple[tuple[str, bytes], ...]
    """URI and content of the Puffin file with the vectors, which is still to be written; none without vectors."""
    emptied: frozenset[str]
    """Data files of which no row is left: those that the commit would add are not to be added."""


def vector_commit(
    base: PresentFiles,
    hidden: Sequence[Mapping[str, Positions]],
    added: Sequence[tuple[WrittenFile, int]],
    default_spec_id: int,
    replaced: Replaced,
) -> VectorCommit:
    """The vectors of a commit upon `base`. `hidden`: row numbers by data file URI, of older files and of those that the
    commit adds, which `added` has with their data sequence numbers. Raises LakeError."""
    removed = _removed_data(base, replaced)
    rows = {path: positions for path, positions in _united(hidden).items() if path not in removed}
    touched = [
        TouchedFile(file.path, number, file.record_count, file.partition, default_spec_id, rows.pop(file.path))
        for file, number in added
        if file.path in rows
    ]
    older, left = touched_files(base.manifests, rows, base.storage, cache=base.cache)
    if left:
        raise LakeError(
            f"rows of {min(left)} are to be hidden, which is not part of the table in {base.location}",
            "report this; the pump tries again from what the catalog says is applied",
        )
    deletes = row_deletes(base.manifests, [*touched, *older], removed, base.storage, cache=base.cache)
    vectors: tuple[WrittenFile, ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()
    if deletes.vectors:
        vectors, puffin = encoded_deletion_vectors(deletes.vectors, base.location)
        files = (puffin,)
        for entry, file in zip(vectors, deletes.vectors.values(), strict=True):
            assert entry.blob is not None
            base.cache.keep(VectorPlace(entry.path, entry.blob, entry.record_count), file.vector)
    changed = deletes.changed | {file.manifest for file in older if file.path in deletes.emptied}
    return VectorCommit(_with_deletes(replaced, deletes, changed), vectors, files, deletes.emptied)


def _with_deletes(replaced: Replaced, deletes: RowDeletes, changed: Collection[str | None]) -> Replaced:
    """`changed`: URIs of the manifests that lose files by the deletes."""

    def doomed(entry: ManifestEntry | StoredEntry) -> bool:
        if deletes.supersede(entry):
            return True
        if entry.content == FileContent.DATA:
            return entry.path in deletes.emptied or replaced.doomed(entry)
        # By its path a vector is not known: several are in one file.
        return (entry.blob is None or replaced.empties) and replaced.doomed(entry)

    def may_hold(manifest: Manifest) -> bool:
        return manifest.path in changed or replaced.may_hold(manifest)

    data = tuple((file, number) for file, number in replaced.data if file.path not in deletes.emptied)
    return replace(
        replaced,
        doomed=doomed,
        may_hold=may_hold,
        data=data,
        positions=(),
        hidden={},
        dangling=replaced.dangling - deletes.repeated,
    )


def _removed_data(base: PresentFiles, replaced: Replaced) -> frozenset[str]:
    """URIs of the data files that the replacement removes."""
    return frozenset(
        entry.path
        for manifest in base.manifests
        if manifest.content == ManifestContent.DATA and manifest.live_files and replaced.may_hold(manifest)
        for entry in entries_of(manifest, base.storage)
        if replaced.doomed(entry)
    )


def _united(parts: Sequence[Mapping[str, Positions]]) -> dict[str, Positions]:
    """What any of the parts names."""
    if len(parts) == 1:
        return dict(parts[0])
    united: dict[str, list[Positions]] = {}
    for part in parts:
        for path, positions in part.items():
            united.setdefault(path, []).append(positions)
    return {path: np.concatenate(positions) for path, positions in united.items()}
