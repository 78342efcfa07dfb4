"""Deletion vectors, which tables of format version 3 have in place of position-delete files.

Position deletes of any origin come together here: of a commit's own changes, and of what it replaces. A file of which
no row is left goes, also one that the same commit would add. What else is removed is for the replacement, but for
vectors: those of removed data files go, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mirror_pump.errors import LakeError
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.deletes.delete_form import (
    DeleteForm,
    Hiding,
    MergeScope,
    PositionsToMerge,
    PresentFiles,
    RowsToHide,
)
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.deletes.position_files import FULL_POSITIONS
from mirror_pump.lake.deletes.row_deletes import TouchedFile, row_deletes, touched_files
from mirror_pump.lake.document.snapshot_stats import SnapshotStats
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.deletion_vectors import VectorPlace, encoded_deletion_vectors
from mirror_pump.lake.manifests.manifest_list import Manifest


class Vectors(DeleteForm):
    """A commit writes one Puffin file, with the vectors of all data files of which it hides rows. They take the place
    of the vectors and position-delete files that these have."""

    adds_files = False

    def of_commit(
        self,
        base: PresentFiles,
        hidden: RowsToHide,
        replaced: RowsToHide,
        added: Sequence[tuple[WrittenFile, int]],
        removed: Callable[[], frozenset[str]],
        /,
    ) -> Hiding:
        """Reads the entries of the older data files, and their deletes, that are not in the cache."""
        removed_data = removed()
        united = HiddenRows.united([HiddenRows.of(hidden.rows), HiddenRows.of(replaced.rows)])
        rows = {path: vector for path, vector in united.vectors.items() if path not in removed_data}
        touched = [
            TouchedFile(file.path, number, file.record_count, file.partition, base.spec_id, rows.pop(file.path))
            for file, number in added
            if file.path in rows
        ]
        older, left = touched_files(base.manifests, rows, base.storage, cache=base.cache)
        if left:
            raise LakeError(
                f"rows of {min(left)} are to be hidden, which is not part of the table in {base.location}",
                "report this; the pump tries again from what the catalog says is applied",
            )
        return _hiding(base, [*touched, *older], removed_data)

    def of_archive(
        self,
        base: PresentFiles,
        files: Sequence[LiveFile],
        rows: HiddenRows,
        left_out: Collection[str],
        /,
    ) -> Hiding:
        """These vectors have main's rows, too: a data file has at most one in a snapshot."""
        touched = [
            TouchedFile(
                file.path, file.sequence_number, file.records, file.partition, file.spec_id, rows.vector(file.path)
            )
            for file in files
        ]
        return _hiding(base, touched, left_out)

    def unrepeated(self, _positions: Sequence[LiveFile], _paths: Sequence[str], /) -> tuple[str, ...]:
        """None: a vector has each row once, whichever commits hid it."""
        return ()

    def waiting(self, scope: MergeScope) -> PositionsToMerge:
        """Position-delete files from before the table had vectors, which take their place: as many rows as a file would
        be left alone with; at least one file. A commit may supersede them meanwhile. Vectors go with their data files,
        and are merged by each commit."""
        files: list[str] = []
        rows = 0
        for file in scope.positions if scope.on_its_own else ():
            rows += file.records
            if files and rows > FULL_POSITIONS:
                break
            files.append(file.path)
        return PositionsToMerge(tuple(files), frozenset(), frozenset())

    def counted(
        self, before: SnapshotStats, after: SnapshotStats, base: PresentFiles, manifests: Sequence[Manifest], /
    ) -> SnapshotStats:
        """A vector goes with its data file. Position-delete files may name rows of vectors, and of files that went."""
        exact = _has_only_vectors(base, manifests)
        return SnapshotStats(after.written, after.rewritten, 0 if exact else before.dangling, int(not exact))


def _hiding(base: PresentFiles, touched: Sequence[TouchedFile], removed: Collection[str]) -> Hiding:
    """The vectors that hide these rows as well, if the data files `removed` go."""
    deletes = row_deletes(base.manifests, touched, removed, base.storage, cache=base.cache)
    if not deletes.vectors:
        return Hiding(deletes=deletes)
    entries, puffin = encoded_deletion_vectors(deletes.vectors, base.location)
    for entry, file in zip(entries, deletes.vectors.values(), strict=True):
        assert entry.blob is not None
        base.cache.keep(VectorPlace(entry.path, entry.blob, entry.record_count), file.vector)
    return Hiding(entries, (puffin,), deletes, joins=True)


def _has_only_vectors(base: PresentFiles, manifests: Sequence[Manifest]) -> bool:
    """Whether a new snapshot upon `base`, which has these manifests, surely has no position-delete file."""
    older = {manifest.path for manifest in base.manifests}
    for manifest in manifests:
        if not manifest.may_contain_position_deletes:
            continue
        if manifest.entries is not None:
            others = [entry for entry in manifest.entries if entry.blob is None]
            if any(entry.content == FileContent.POSITION_DELETES for entry in others):
                return False
        elif manifest.path not in older or base.cache.deletes(manifest, base.storage).others:
            return False
    return True
