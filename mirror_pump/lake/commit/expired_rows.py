"""Removes the rows below a table's retention line: whole files by their bounds, the rows of other files by position
deletes.

Invariant: the state after it has exactly the rows of the state before that are at or above the line. No reader sees a
row below it, whichever way the new snapshot is read.

- A data file whose upper bound is below the line is removed without being read. The bounds of tier keys are exact, and
  deletes can only take rows away. Files without rows stay: they are placeholders
  (`mirror_pump.lake.commit.new_snapshot`).
- In a file that has, or may have, rows on both sides, those below the line get position deletes, except for those that
  have one already. No data file is rewritten for that: a later merge or compaction drops these rows.
- A position-delete file that names removed data files is removed as well. What it says about others is repeated in the
  new position-delete file, which is newer, and so reaches the same rows. One that is not Parquet (another engine's)
  stays: it hides nothing that is left.
- An equality-delete file goes if all its keys are below the line (the tier key is part of every key): no row of such a
  key is left, and none comes. Writes below the line are refused, and what comes nevertheless is not folded.
- Older snapshots keep their manifests. So pinned readers and time travel find their files until maintenance expires
  these snapshots, and frees the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mirror_pump.lake.commit.replacement import Replaced
from mirror_pump.lake.contents.cutline import CutLine, Side
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.deletes.delete_form import PresentFiles, RowsToHide
from mirror_pump.lake.deletes.hidden_rows import NO_ROWS, HiddenRows
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.partitioning import partitions_of
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.storage import StagedFiles, StorageOptions


@dataclass(frozen=True)
class RowsBelow:
    """All rows below the line."""

    line: CutLine
    """The retention line, in terms of the lake's tier key column."""

    def replaced(self, base_state: PresentFiles, _written: StagedFiles, /) -> Replaced:
        """Reads the tier key of files that may have rows on both sides of the line, and position deletes that concern
        these and removed files. Raises LakeError."""
        listed = Listing(base_state.storage, (self.line.field_id, PATH_ID)).files(base_state.manifests)
        files = [file for live_files in listed.values() for file in live_files]
        data = [file for file in files if file.content is FileContent.DATA]
        removed, below = self._expired(data, base_state.storage)
        positions = [file for file in files if file.content is FileContent.POSITION_DELETES]
        left = {file.path for file in data} - removed
        superseded, repeated, dangling = _superseded(positions, removed, left, base_state.storage)
        hidden = repeated.union(_not_hidden_yet(below, positions, base_state.storage))
        removes = removed | superseded | {file.path for file in files if self._idle(file)}
        return Replaced(
            lambda entry: entry.path in removes,
            lambda manifest: any(file.path in removes for file in listed.get(manifest.path, ())),
            hidden=RowsToHide(hidden, partitions_of(data)),
            dangling=dangling,
        )

    def _expired(self, data: Iterable[LiveFile], storage: StorageOptions) -> tuple[frozenset[str], HiddenRows]:
        """URIs of the data files with rows below the line alone, and those rows of files with others, too."""
        removed = set()
        below = {}
        for file in data:
            side = self.line.side(file)
            if side is Side.BELOW and file.records:
                removed.add(file.path)
            elif side is Side.BOTH:
                rows, total = self.line.rows_below(file.path, storage)
                if len(rows) == total:
                    removed.add(file.path)
                elif len(rows):
                    below[file.path] = rows
        return frozenset(removed), HiddenRows.of(below)

    def _idle(self, file: LiveFile) -> bool:
        """Whether this is an equality-delete file with keys below the line alone."""
        return (
            file.content is FileContent.EQUALITY_DELETES
            and self.line.field_id in file.equality_ids
            and file.records > 0
            and self.line.side(file) is Side.BELOW
        )


def _superseded(
    positions: Iterable[LiveFile], removed: Collection[str], left: Collection[str], storage: StorageOptions
) -> tuple[frozenset[str], HiddenRows, int]:
    """Returns the URIs of the position-delete files to drop, their rows of the data files that are `left`, and the
    number of their rows of files that are gone already."""
    superseded = set()
    repeated = NO_ROWS
    dangling = 0
    for file in positions:
        if file.about in removed:
            superseded.add(file.path)
        elif file.about is None and file.format == "PARQUET" and any(_may_name(file, path) for path in removed):
            named = HiddenRows.read([file.path], {*removed, *left}, storage)
            if named.keys().isdisjoint(removed):
                continue
            superseded.add(file.path)
            repeated = repeated.union(named.of_files(left))
            dangling += file.records - named.rows
    return frozenset(superseded), repeated, dangling


def _may_name(file: LiveFile, path: str) -> bool:
    """Whether the bounds of a position-delete file allow that it names this data file."""
    named = path.encode()
    return file.lower_bounds.get(PATH_ID, named) <= named <= file.upper_bounds.get(PATH_ID, named)


def _not_hidden_yet(rows: HiddenRows, positions: Sequence[LiveFile], storage: StorageOptions) -> HiddenRows:
    """Those of the rows that no position-delete file hides: counts of live rows stay exact."""
    naming = [
        file.path for file in positions if file.format == "PARQUET" and any(_may_name(file, path) for path in rows)
    ]
    return rows.without(HiddenRows.read(naming, rows.keys(), storage))
