"""Replaces files without changing a row: the conversion of equality deletes, merges and fills, and whether they still
fit.

This module argues about deletes. `mirror_pump.lake.commit.merged_files` argues about merged data files.

Invariant: a rewrite that lands changes no row that any reader sees, in any form of position deletes
(`mirror_pump.lake.deletes`). Terms: the base is the state that the rewrite was computed from, and n its sequence
number. The rewrite is published on the current state. It removes some equality deletes of the base, or data files and
position-delete files, and hides rows by their positions.

- A data file that is new since the base: `examined` ensures that its data sequence number is above n. The removed
  equality deletes do not reach it: they were in the base, so their numbers are at most n, and an equality delete only
  reaches strictly lower numbers. No hidden row is in it. Files of stream changes since the base are of this kind.
- A data file that was in the base, and is live: the rows that the removed equality deletes hide in it were found by
  comparing whole keys with the deletes that have higher numbers. Each of these rows is hidden by the commit, or by a
  position-delete file of the base that is `relied_on`: `replaced` ensures that it is still live.
- Of a data file that is gone no row has to be hidden.
- A position hides nothing else. The delete reaches its data file, because its data sequence number is that of the new
  snapshot, and no file has a higher one (Iceberg spec, scan planning: a position delete reaches data files with its own
  number and lower ones).
- A removed position-delete file was merged: its rows of remaining data files of the base are hidden by the commit, and
  it cannot refer to newer data files. Or it referred to a single data file that is removed too, or that was not part of
  the base. Vectors go with their data files (`mirror_pump.lake.deletes.vectors`).
- Older snapshots keep their manifests, so time travel is unaffected.
- Rows of merged files keep their IDs and the sequence numbers of their last update, if they had any in the base. If the
  table got row IDs since, the rewrite does not fit.

Nothing in a rewrite says in which form rows are hidden: the commit that lands it writes the form that the table has by
then, also if that was upgraded since.

If another engine's rewrite lands first, `examined` refuses: the new files of that rewrite have an older number (that of
the snapshot that it started from), or they have the rows of files that are gone, of which none has to be hidden then.
If it lands later,
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
from mirror_pump.lake.commit.merged_files import MergedFile, rows_lost_since
from mirror_pump.lake.commit.replacement import Replaced
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.deletes.delete_form import PresentFiles, RowsToHide
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.deletes.row_deletes import NOTHING_READ, ReadDeletes, rows_lost
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple, partitions_of
from mirror_pump.lake.manifests.manifest_files import entries_of
from mirror_pump.lake.manifests.manifest_list import Manifest, rows_have_ids
from mirror_pump.lake.storage import StagedFiles, StorageOptions


class FileRewriteSuperseded(LakeError):
    """The table has changed in a way that the rewrite does not account for. It has to be computed again."""


@dataclass(frozen=True)
class FileRewrite:
    """The rows to hide and the files to add and to remove, and what has to be true of the table then."""

    removed: frozenset[str]
    """URIs of the files to remove: converted equality deletes, position-delete files that were merged into `hidden`,
    the sources of `merged`, and position-delete files that refer only to these."""
    relied_on: frozenset[str]
    """URIs of the files that have to be live: converted equality deletes, and position-delete files whose rows `hidden`
    does not repeat, or repeats instead of them."""
    base_paths: Mapping[str, frozenset[str]]
    """The base: by manifest URI, the URIs of its live files."""
    sequence_number: int
    """The base's sequence number (n)."""
    complete: bool
    """Whether it removes every equality delete of the base."""
    hidden: HiddenRows = field(default_factory=HiddenRows, repr=False)
    """Rows to hide of data files of the base."""
    partitions: Mapping[str, PartitionTuple] = field(default_factory=dict, repr=False)
    """The lake partitions of these data files, by URI; those of an unpartitioned table may be left out."""
    own_positions: int | None = None
    """As of RowsToHide."""
    merged: tuple[MergedFile, ...] = ()
    """Data files that replace others. Rows that were deleted from the others since the base are deleted from these
    too."""
    sources: tuple[LiveFile, ...] = ()
    """The data files that `merged` replaces."""
    read: ReadDeletes = NOTHING_READ
    """The deletes that were read of them."""
    drops_rows: bool = False
    """Whether the merged files omit rows of dropped partitions. Then the commit must not call itself a rewrite."""
    keeps_row_ids: bool = False
    """Whether the rows of `merged` have the IDs that they had in the base."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """All files that were written for it."""
        return tuple(merged.file for merged in self.merged if merged.file is not None)

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

    def replaced(self, base_state: PresentFiles, _written: StagedFiles, /) -> Replaced:
        """Writes nothing. Raises FileRewriteSuperseded if the rewrite no longer fits the table, and LakeError."""
        if self.merged and not self.keeps_row_ids and rows_have_ids(base_state.manifests):
            raise FileRewriteSuperseded("the table's rows have IDs now")
        _, live = examined(self.base_paths, self.sequence_number, base_state.manifests, base_state.storage)
        require_live(self.relied_on, live)
        sources = [file for file in self.sources if file.path in live]
        if self.sources and not sources:
            require_live(frozenset(file.path for file in self.sources), live)
        return Replaced(
            lambda entry: entry.path in self.removed,
            self.concerns,
            data=tuple((merged.file, merged.sequence_number) for merged in self.merged if merged.file is not None),
            hidden=self._rows_to_hide(base_state, sources, live),
            rewritten_bytes=self.size_bytes,
            only_rewrites=bool(self.merged) and not self.drops_rows,
            uncounted=self.drops_rows,
            converted_to=self.sequence_number if self.complete else None,
        )

    def _rows_to_hide(self, base_state: PresentFiles, sources: Sequence[LiveFile], live: Collection[str]) -> RowsToHide:
        """Also those of merged files that `sources`, the live ones, have lost since the base."""
        before = HiddenRows.united(merged.hidden for merged in self.merged)
        try:
            lost = rows_lost(base_state.manifests, sources, before, self.read, base_state.storage, base_state.cache)
        except (LakeError, pa.ArrowException) as error:
            raise FileRewriteSuperseded(f"deleted rows cannot be carried over: {error}") from error
        rows = self.hidden.of_files(live).union(HiddenRows.of(rows_lost_since(self.merged, lost, live)))
        return RowsToHide(rows, {**self.partitions, **partitions_of(self.written)}, self.own_positions)


def require_live(paths: frozenset[str], live: Collection[str]) -> None:
    """Raises FileRewriteSuperseded unless all of these files are live."""
    missing = paths.difference(live)
    if missing:
        raise FileRewriteSuperseded(f"{min(missing)} is not part of the table any more")


def examined(
    base_paths: Mapping[str, frozenset[str]],
    sequence_number: int,
    manifests: Sequence[Manifest],
    storage: StorageOptions,
) -> tuple[tuple[str, ...], Collection[str]]:
    """The URIs of the position-delete files that the base did not have, and of all live files. `base_paths`,
    `sequence_number`: as of FileRewrite. Raises FileRewriteSuperseded if a data file or equality delete has come since
    that commits after the base would not have added.

    Reads the manifests that the base did not have, unless their entries are in memory.
    """
    before = frozenset(chain.from_iterable(base_paths.values()))
    live: set[str] = set()
    positions: list[str] = []
    for manifest in manifests:
        if not manifest.live_files:
            continue
        paths = base_paths.get(manifest.path)
        if paths is not None:
            live |= paths
            continue
        for entry in entries_of(manifest, storage):
            live.add(entry.path)
            if entry.path in before:
                continue
            if entry.content == FileContent.POSITION_DELETES:
                positions.append(entry.path)
            elif entry.sequence_number <= sequence_number:
                raise FileRewriteSuperseded(
                    f"{entry.path}, with sequence number {entry.sequence_number}, has come since the rewrite was"
                    f" computed, at sequence number {sequence_number}"
                )
    return tuple(dict.fromkeys(positions)), live
