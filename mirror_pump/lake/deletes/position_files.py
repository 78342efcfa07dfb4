"""Position-delete files, which tables of format version 2 have: each commit adds what it hides to what is there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized

from mirror_pump.lake.contents.file_listing import LiveFile, naming
from mirror_pump.lake.contents.size_classes import size_class
from mirror_pump.lake.deletes.delete_form import (
    DeleteForm,
    Hiding,
    MergeScope,
    PositionsToMerge,
    PresentFiles,
    RowsToHide,
)
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.document.snapshot_stats import SnapshotStats
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple, by_partition, partitions_of
from mirror_pump.lake.format.position_deletes import encoded_position_deletes
from mirror_pump.lake.manifests.manifest_list import Manifest

FULL_POSITIONS = 1 << 22
"""A position-delete file with this many rows is no longer merged. A merge takes about as many, which a commit encodes
in a sixth of a second."""

_OWN_FANOUT = 2
"""This many position-delete files that a merge has written for one data file are merged into one: a row takes only some
bytes in them, and every reader of the data file opens them all."""


class PositionFiles(DeleteForm):
    """A commit writes one file for each lake partition; a merge also one for each data file with many deleted rows."""

    adds_files = True

    def of_commit(
        self,
        base: PresentFiles,
        hidden: RowsToHide,
        replaced: RowsToHide,
        _added: Sequence[tuple[WrittenFile, int]],
        _removed: Callable[[], frozenset[str]],
        /,
    ) -> Hiding:
        """Reads nothing."""
        again = _encoded(replaced, base.location)
        return _hiding([*_encoded(hidden, base.location), *again], sum(file.size_bytes for file, _ in again))

    def of_archive(
        self,
        base: PresentFiles,
        files: Sequence[LiveFile],
        rows: HiddenRows,
        _left_out: Collection[str],
        /,
    ) -> Hiding:
        """Reads nothing. Rows that main hides may be hidden twice."""
        hidden = RowsToHide(rows.of_files({file.path for file in files}), partitions_of(files))
        return _hiding(_encoded(hidden, base.location))

    def unrepeated(self, positions: Sequence[LiveFile], paths: Sequence[str]) -> tuple[str, ...]:
        """All that may name them: rows that two files name would count twice."""
        return naming(positions, paths)

    def waiting(self, scope: MergeScope) -> PositionsToMerge:
        """Also those that refer to several data files and may name rows of one that the merge replaces: they would keep
        these rows. DuckDB computes row counts as rows of data files minus rows of delete files, and some queries fail
        with an internal error if that is negative. Those of other lake partitions do not refer to such a data file.

        Rewrites by other engines may leave files that refer to data files which are already gone.
        """
        stay: set[str | None] = {None, *scope.data}
        dangling = frozenset(file.path for file in scope.positions if file.about not in stay)
        remaining = [file for file in scope.positions if file.path not in dangling]
        files = _shared(file for file in remaining if scope.crowded or file.partition in scope.partitions)
        if scope.on_its_own:
            files = tuple(dict.fromkeys((*_full_classes(remaining, scope), *files)))
        return PositionsToMerge(files, dangling, frozenset(files))

    def counted(
        self, _before: SnapshotStats, after: SnapshotStats, _base: PresentFiles, _manifests: Sequence[Manifest], /
    ) -> SnapshotStats:
        """Nothing more is known."""
        return after


def _hiding(encoded: Sequence[tuple[WrittenFile, bytes]], rewritten_bytes: int = 0) -> Hiding:
    files = tuple(file for file, _ in encoded)
    contents = tuple((file.path, content) for file, content in encoded)
    return Hiding(files, contents, rewritten_bytes=rewritten_bytes)


def _encoded(hidden: RowsToHide, location: str) -> list[tuple[WrittenFile, bytes]]:
    """The position-delete files that say so: in each lake partition one for each data file with `own_positions`, and
    one for all others."""
    rows = hidden.rows
    counts: Mapping[str, Sized] = rows.vectors if isinstance(rows, HiddenRows) else rows
    groups: list[tuple[PartitionTuple, list[str]]] = []
    for partition, named in by_partition(counts, hidden.partitions):
        shared = []
        for path, of_file in named.items():
            if hidden.own_positions is not None and len(of_file) >= hidden.own_positions:
                groups.append((partition, [path]))
            elif len(of_file):
                shared.append(path)
        if shared:
            groups.append((partition, shared))
    return [
        encoded_position_deletes(((path, rows[path]) for path in sorted(paths)), location, partition)
        for partition, paths in groups
    ]


def _shared(positions: Iterable[LiveFile]) -> tuple[str, ...]:
    """Those that refer to several data files."""
    return tuple(file.path for file in positions if file.about is None and file.records < FULL_POSITIONS)


def _full_classes(positions: Sequence[LiveFile], scope: MergeScope) -> Iterator[str]:
    """Of each lake partition those of the largest full size class and of all smaller classes. Files that a merge has
    written for a single data file are only merged with each other."""
    groups: dict[tuple[PartitionTuple, str | None], list[LiveFile]] = defaultdict(list)
    for file in positions:
        if file.records < FULL_POSITIONS:
            groups[file.partition, file.about if file.records >= scope.own_positions else None].append(file)
    rows = 0
    for (_, data_path), files in groups.items():
        if rows < FULL_POSITIONS:
            for file in _full(files, _OWN_FANOUT if data_path else scope.fanout):
                rows += file.records
                yield file.path


def _full(files: Sequence[LiveFile], fanout: int) -> Iterator[LiveFile]:
    """The files in the largest full size class and in all smaller ones, smallest first: two, and as many more as a
    merge may take."""
    classes = Counter(size_class(file.records) for file in files)
    full = max((size for size, count in classes.items() if count >= fanout), default=-1)
    chosen = sorted((file for file in files if size_class(file.records) <= full), key=lambda file: file.records)
    rows = 0
    for number, file in enumerate(chosen):
        rows += file.records
        if number > 1 and rows > FULL_POSITIONS:
            break
        yield file
