"""Replaces files without changing a row: the conversion of equality deletes, merges and fills, and whether they still
fit.

This module argues about deletes. `mirror_pump.lake.commit.merged_files` argues about merged data files.

Invariant: a rewrite that passes `check` changes no row that any reader sees. Terms: the base is the state that the
rewrite was computed from, and n its sequence number. The rewrite is published on the current state. It removes some
equality deletes of the base, and adds position deletes.

- A data file that is new since the base: `check` ensures that its data sequence number is above n. The removed equality
  deletes do not reach it: they were in the base, so their numbers are at most n, and an equality delete only reaches
  strictly lower numbers. The added position deletes do not name it. Files of stream changes since the base are of this
  kind.
- A data file that was in the base: the rows that the removed equality deletes hide in it were found by comparing whole
  keys with the deletes that have higher numbers. Each of these rows is in an added position-delete file, or in one of
  the base, and `check` ensures that the latter is still live.
- A position delete hides a row by its position, so the added ones hide nothing else. They reach their data files,
  because their data sequence number is that of the new snapshot, and no file has a higher one (Iceberg spec, scan
  planning: a position delete reaches data files with its own number and lower ones).
- A removed position-delete file was merged: its rows of remaining data files of the base are in an added file, and it
  cannot refer to newer data files. Or it referred to a single data file that is removed too, or that was not part of
  the base.
- Older snapshots keep their manifests, so time travel is unaffected.
- Rows of merged files keep their IDs and the sequence numbers of their last update, if they had any in the base. If the
  table got row IDs since, the rewrite does not fit.

In a table with deletion vectors, `mirror_pump.lake.commit.vector_rewrite` argues about position deletes.

If another engine's rewrite lands first, `check` refuses: the new files of that rewrite have an older number (that of
the snapshot that it started from), or the data files that the added position deletes name are gone. If it lands later,
Iceberg refuses its commit, because a delete file for one of its replaced data files has appeared. Iceberg looks for
such delete files only in snapshots whose operation is `overwrite` or `delete`. So a commit that adds a delete file must
never call itself `replace`. A merge that adds none must call itself `replace`: programs that read a table's appends as
a stream (Spark's structured streaming) skip such snapshots, and fail on an `overwrite`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.merged_files import MergedFile, followed
from mirror_pump.lake.commit.replacement import PresentFiles, Replaced
from mirror_pump.lake.commit.vector_rewrite import rows_to_hide
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.deletion_vectors import VectorPlace
from mirror_pump.lake.format.partitioned_files import write_position_delete_files
from mirror_pump.lake.format.partitioning import partitions_of
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.manifests.manifest_files import entries_of
from mirror_pump.lake.manifests.manifest_list import Manifest, rows_have_ids
from mirror_pump.lake.storage import StagedFiles, StorageOptions


class FileRewriteSuperseded(LakeError):
    """The table has changed in a way that the rewrite does not account for. It has to be computed again."""


@dataclass(frozen=True)
class FileRewrite:
    """The files to add and to remove, and what has to be true of the table when they are."""

    added: tuple[WrittenFile, ...]
    """Position-delete files."""
    removed: frozenset[str]
    """URIs of the files to remove: converted equality deletes, position deletes that were merged into `added`, the
    sources of `merged`, and position deletes that refer only to these."""
    relied_on: frozenset[str]
    """URIs of further files that have to be live: data files that `added` names, and position-delete files whose rows
    `added` does not repeat."""
    base_paths: Mapping[str, frozenset[str]]
    """The base: by manifest URI, the URIs of its live files."""
    sequence_number: int
    """The base's sequence number (n)."""
    complete: bool
    """Whether it removes every equality delete of the base."""
    merged: tuple[MergedFile, ...] = ()
    """Data files that replace others. Rows that were deleted from the others since the base are deleted from these
    too."""
    drops_rows: bool = False
    """Whether the merged files omit rows of dropped partitions. Then the commit must not call itself a rewrite."""
    with_vectors: bool = False
    """Whether the table has deletion vectors. Then nothing is in `added`, and of `removed` only what is `relied_on` has
    to be live."""
    hidden: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """With vectors, instead of `added`: rows to hide, by data file URI (DeletionVector.to_blob)."""
    sources: tuple[LiveFile, ...] = ()
    """With vectors: the data files that `merged` replaces."""
    base_vectors: Mapping[str, VectorPlace] = field(default_factory=dict)
    """The vectors that these have in the base, by URI."""
    keeps_row_ids: bool = False
    """Whether the rows of `merged` have the IDs that they had in the base."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """All files that were written for it."""
        return (*self.added, *(merged.file for merged in self.merged if merged.file is not None))

    @property
    def size_bytes(self) -> int:
        """Size of these files in bytes."""
        return sum(file.size_bytes for file in self.written)

    def concerns(self, manifest: Manifest) -> bool:
        """Whether the manifest may name a file that has to be removed."""
        if manifest.content == ManifestContent.DATA and not self.merged:
            return False
        paths = self.base_paths.get(manifest.path)
        return paths is None or not paths.isdisjoint(self.removed)

    def replaced(self, base_state: PresentFiles, written: StagedFiles) -> Replaced:
        """Writes position deletes for rows of `merged` that were deleted since the base. Raises LakeError, and
        FileRewriteSuperseded if the rewrite no longer fits the table."""
        self._require_row_ids(base_state.manifests)
        if self.with_vectors:
            return self._replaced_with_vectors(base_state)
        moved = deletes_moved(self, base_state.manifests, base_state.location, base_state.storage)
        written.own(*(file.path for file in moved))
        return Replaced(
            lambda entry: entry.path in self.removed,
            self.concerns,
            data=tuple((merged.file, merged.sequence_number) for merged in self.merged if merged.file is not None),
            positions=(*self.added, *moved),
            rewritten_bytes=self.size_bytes + sum(file.size_bytes for file in moved),
            only_rewrites=bool(self.merged) and not self.drops_rows,
            uncounted=self.drops_rows,
            converted_to=self.sequence_number if self.complete else None,
        )

    def _replaced_with_vectors(self, base_state: PresentFiles) -> Replaced:
        _, live = _examined(self, base_state.manifests, base_state.storage)
        _require_live(self.relied_on, live)
        try:
            hidden = rows_to_hide(self.merged, self.sources, self.base_vectors, self.hidden, base_state, live)
        except (LakeError, pa.ArrowException) as error:
            raise FileRewriteSuperseded(f"deleted rows cannot be carried over: {error}") from error
        return Replaced(
            lambda entry: entry.path in self.removed,
            self.concerns,
            data=tuple((merged.file, merged.sequence_number) for merged in self.merged if merged.file is not None),
            hidden=hidden,
            rewritten_bytes=self.size_bytes,
            only_rewrites=bool(self.merged) and not self.drops_rows,
            uncounted=self.drops_rows,
            converted_to=self.sequence_number if self.complete else None,
        )

    def _require_row_ids(self, manifests: Sequence[Manifest]) -> None:
        if self.merged and not self.keeps_row_ids and rows_have_ids(manifests):
            raise FileRewriteSuperseded("the table's rows have IDs now")


def check(rewrite: FileRewrite, manifests: Sequence[Manifest], storage: StorageOptions) -> tuple[str, ...]:
    """Raises FileRewriteSuperseded unless the rewrite may be published on a state with these manifests. Returns the
    URIs of the position-delete files that the base did not have.

    Reads the manifests that the base did not have, unless their entries are in memory.
    """
    positions, live = _examined(rewrite, manifests, storage)
    _require_live(rewrite.removed | rewrite.relied_on, live)
    return positions


def _require_live(paths: frozenset[str], live: Collection[str]) -> None:
    missing = paths.difference(live)
    if missing:
        raise FileRewriteSuperseded(f"{min(missing)} is not part of the table any more")


def _examined(
    rewrite: FileRewrite, manifests: Sequence[Manifest], storage: StorageOptions
) -> tuple[tuple[str, ...], Collection[str]]:
    """The URIs of the position-delete files that the base did not have, and of all live files. Raises as `check`."""
    base_paths = frozenset(chain.from_iterable(rewrite.base_paths.values()))
    live: set[str] = set()
    positions: list[str] = []
    for manifest in manifests:
        if not manifest.live_files:
            continue
        paths = rewrite.base_paths.get(manifest.path)
        if paths is not None:
            live |= paths
            continue
        for entry in entries_of(manifest, storage):
            live.add(entry.path)
            if entry.path in base_paths:
                continue
            if entry.content == FileContent.POSITION_DELETES:
                if rewrite.merged and isinstance(entry, StoredEntry) and entry.format not in ("PARQUET", "PUFFIN"):
                    raise FileRewriteSuperseded(f"{entry.path} is a position-delete file of format {entry.format}")
                positions.append(entry.path)
            elif entry.sequence_number <= rewrite.sequence_number:
                raise FileRewriteSuperseded(
                    f"{entry.path}, with sequence number {entry.sequence_number}, has come since the rewrite was"
                    f" computed, at sequence number {rewrite.sequence_number}"
                )
    return tuple(dict.fromkeys(positions)), live


def deletes_moved(
    rewrite: FileRewrite, manifests: Sequence[Manifest], location: str, storage: StorageOptions
) -> tuple[WrittenFile, ...]:
    """Checks the rewrite like `check`, and maps position deletes that are newer than the base to the new files. Writes
    at most one position-delete file for each lake partition.

    Also raises FileRewriteSuperseded if one of these position-delete files cannot be read: the table continues without
    the rewrite.
    """
    since = check(rewrite, manifests, storage)
    try:
        moved = followed(rewrite.merged, since, storage)
    except (LakeError, pa.ArrowException) as error:
        raise FileRewriteSuperseded(f"a position-delete file cannot be read: {error}") from error
    partitions = partitions_of(merged.file for merged in rewrite.merged if merged.file is not None)
    return write_position_delete_files(moved, partitions, location, storage)
