"""Plans merges: which small data files, by size class, which position deletes, or which file with many deleted rows."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter

from mirror_pump.engine.rewrite.delete_conversion import FoundRows, OrderedFile
from mirror_pump.engine.rewrite.file_merge import MergeTask, PositionsTask
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed, paths_of
from mirror_pump.lake.contents.size_classes import size_class
from mirror_pump.lake.deletes.delete_form import OWN_POSITIONS, MergeScope
from mirror_pump.lake.deletes.row_deletes import ReadDeletes
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.partitioning import PartitionTuple, partitions_of

FANOUT = 8
"""This many files of one size class are merged into one. So a row is rewritten once per power of eight, and at most
seven files of each class wait to be merged."""
MUCH_DELETED_SHARE = 0.1
"""A data file is rewritten once this share of its rows is deleted, so at most nine live rows are written per deleted
row. Deleted rows slow readers down, above all pyiceberg, which reads all deletes of a file per 131,072 rows."""

MOST_SOURCES = 500
"""Maximum data files per merge: opening a small one costs as much as reading 50,000 rows."""
_MOST_SOURCE_ROWS = 4_000_000
"""Approximate maximum rows per merge. Each costs the driver 12 bytes until the merge has landed."""


@dataclass(frozen=True)
class MergeSizes:
    """How much has to accumulate before it is merged."""

    fanout: int = FANOUT
    """This many files of one size class are merged into one."""
    own_positions: int = OWN_POSITIONS
    """A data file with this many deleted rows gets a position-delete file of its own."""


DEFAULT_SIZES = MergeSizes()


@dataclass(frozen=True)
class MergePlan:
    """Tasks to run, at least one, and the state that they are based on."""

    data: tuple[MergeTask, ...]
    """At most one for each lake partition. No two of them have a source in common."""
    positions: PositionsTask | None
    rewrite: FileRewrite
    """What they lead to, as far as the plan tells."""


def plan_merge(
    table: LakeTable, listing: Listing, target_bytes: int, sizes: MergeSizes = DEFAULT_SIZES
) -> MergePlan | None:
    """Plans what to merge in the table's current state; None if too little has accumulated.

    `target_bytes`: data files of at least this size are left alone; 0 leaves all alone. Only Parquet files of the
    current partition spec are merged, whichever engine wrote them, and only with files of their own partition. Reads
    the manifests that the listing (`mirror_pump.engine.rewrite.conversion_plan.listing_for`) does not know yet. Raises
    LakeError.
    """
    current_files = _current_files(table, listing)
    if current_files is None:
        return None
    small = choose_by_partition(current_files.data, sorted(current_files.pending), target_bytes, sizes.fanout)
    return _plan(table, current_files, small, sizes, merge_positions=True)


def plan_rewrite(table: LakeTable, listing: Listing, sizes: MergeSizes = DEFAULT_SIZES) -> MergePlan | None:
    """Plans to rewrite the data file with the largest share of deleted rows, whatever its size, without these rows.

    None if no file reaches `MUCH_DELETED_SHARE`. Otherwise like `plan_merge`.
    """
    current_files = _current_files(table, listing)
    if current_files is None:
        return None
    most_deleted = _most_deleted(current_files.data, current_files.positions, current_files.pending)
    return _plan(table, current_files, (most_deleted,), sizes, merge_positions=False) if most_deleted else None


def plan_fill(table: LakeTable, listing: Listing, lacking: Callable[[LiveFile], bool]) -> MergePlan | None:
    """Plans to rewrite the oldest data files that lack a column, each by itself, some rows at a time.

    None if no such file is left. Empty files are skipped: they have no row to fill, and may keep Iceberg from dropping
    a delete. Otherwise like `plan_merge`. Raises NotFillable if another engine partitioned the table or wrote files
    that are not of our kind.
    """
    current_files = _current_files(table, listing)
    if current_files is None or len(current_files.data) < len(current_files.paths):
        raise NotFillable("another engine wrote files of the lake table in a way that the mirror cannot rewrite")
    chosen: list[tuple[LiveFile]] = []
    rows = 0
    for file in sorted(current_files.data, key=_age):
        if file.records and lacking(file):
            chosen.append((file,))
            rows += file.records
            if rows >= _MOST_SOURCE_ROWS or len(chosen) >= MOST_SOURCES:
                break
    return _plan(table, current_files, chosen, DEFAULT_SIZES, merge_positions=False) if chosen else None


class NotFillable(LakeError):
    """The table's files cannot be filled, so the table has to be copied again."""


@dataclass(frozen=True)
class _CurrentFiles:
    """The files of a table's state."""

    data: list[LiveFile]
    """Data files that may be merged."""
    positions: list[LiveFile]
    pending: frozenset[int]
    """Data sequence numbers of equality deletes."""
    paths: frozenset[str]
    """URIs of all data files."""
    partitions: Mapping[str, PartitionTuple]
    """Lake partitions of all files, by URI; empty for an unpartitioned table."""
    live_paths: dict[str, frozenset[str]]


def _current_files(table: LakeTable, listing: Listing) -> _CurrentFiles | None:
    """The files of the table's current state; None for a table that another engine partitioned, which is left
    alone."""
    if table.foreign_partitions:
        return None
    by_manifest = listing.files(table.manifests)
    data: list[LiveFile] = []
    positions: list[LiveFile] = []
    pending: set[int] = set()
    paths: set[str] = set()
    unreadable = False
    for file, supported in listed(by_manifest, table.manifests, table.spec_ids):
        if file.content is FileContent.DATA:
            paths.add(file.path)
            if supported:
                data.append(file)
        elif file.content is FileContent.EQUALITY_DELETES:
            pending.add(file.sequence_number)
        elif supported:
            positions.append(file)
        else:
            unreadable = True
    # A position-delete file that cannot be read may refer to any data file.
    return _CurrentFiles(
        [] if unreadable else data,
        positions,
        frozenset(pending),
        frozenset(paths),
        {} if table.partitioning is None else partitions_of(chain.from_iterable(by_manifest.values())),
        paths_of(by_manifest),
    )


def _plan(
    table: LakeTable,
    current_files: _CurrentFiles,
    groups: Sequence[Sequence[LiveFile]],
    sizes: MergeSizes,
    *,
    merge_positions: bool,
) -> MergePlan | None:
    """Plans to merge each group of data files into one, and position-delete files besides."""
    sources = list(chain.from_iterable(groups))
    replaced = {file.path for file in sources}
    about = current_files.paths - replaced
    crowded = table.position_deletes > table.records
    waiting = table.deletes.waiting(
        MergeScope(
            [file for file in current_files.positions if file.vector is None],
            about,
            {file.partition for file in sources},
            crowded,
            merge_positions,
            sizes.fanout,
            sizes.own_positions,
        )
    )
    if not (sources or waiting.files or (crowded and waiting.dangling)):
        return None
    data = tuple(_merge(table, group, current_files.positions) for group in groups)
    vectors = {file.path: file.vector for task in data for file in task.data if file.vector is not None}
    rewrite = FileRewrite(
        removed=frozenset(chain(replaced, waiting.dangling, waiting.files)),
        relied_on=waiting.relied_on,
        base_paths=current_files.live_paths,
        sequence_number=table.sequence_number,
        complete=False,
        partitions=current_files.partitions,
        own_positions=sizes.own_positions,
        sources=tuple(sources),
        read=ReadDeletes(vectors, frozenset(chain.from_iterable(task.positions for task in data))),
        keeps_row_ids=all(task.has_lineage for task in data),
    )
    positions = PositionsTask(waiting.files, about, table.storage) if waiting.files else None
    return MergePlan(data, positions, rewrite)


def _merge(table: LakeTable, sources: Sequence[LiveFile], positions: Iterable[LiveFile]) -> MergeTask:
    """The task that merges data files of one lake partition."""
    paths = {file.path for file in sources}
    partitions = {file.partition for file in sources}
    # A position delete comes after the row that it deletes, so files with lower numbers do not matter.
    oldest = min(file.sequence_number for file in sources)
    about = (
        (file, file.about)
        for file in positions
        if file.vector is None and file.sequence_number >= oldest and file.partition in partitions
    )
    vectors = {path: file.vector for file in positions if file.vector is not None and (path := file.about) in paths}
    return MergeTask(
        data=tuple(OrderedFile.of(file, vectors.get(file.path)) for file in sources),
        positions=tuple(file.path for file, data_path in about if data_path is None or data_path in paths),
        schema=table.schema,
        location=table.location,
        storage=table.storage,
        order=table.metadata.sort_order,
    )


def merged_file_rewrite(plan: MergePlan, merged: Sequence[MergedFile], positions: FoundRows | None) -> FileRewrite:
    """The change that the plan's tasks produced. Each source occurs in one of `merged` only."""
    rewrite = replace(plan.rewrite, merged=tuple(merged))
    if positions is None or not positions.hidden:
        return replace(rewrite, relied_on=frozenset())
    return replace(rewrite, hidden=positions.hidden)


def choose_by_partition(
    data: Iterable[LiveFile], pending: Sequence[int], target_bytes: int, fanout: int = FANOUT
) -> list[tuple[LiveFile, ...]]:
    """What `choose` chooses from the files of each lake partition, most files first, as much as one commit may merge. A
    batch may add a small file to each of many partitions, and merging one partition a commit would not keep up."""
    by_partition: dict[PartitionTuple, list[LiveFile]] = defaultdict(list)
    for file in data:
        by_partition[file.partition].append(file)
    candidates = (choose(files, pending, target_bytes, fanout) for files in by_partition.values())
    groups: list[tuple[LiveFile, ...]] = []
    files = rows = 0
    for group in sorted(filter(None, candidates), key=len, reverse=True):
        files += len(group)
        rows += sum(file.records for file in group)
        if groups and (files > MOST_SOURCES or rows > _MOST_SOURCE_ROWS):
            break
        groups.append(group)
    return groups


def choose(
    data: Iterable[LiveFile], pending: Sequence[int], target_bytes: int, fanout: int = FANOUT
) -> tuple[LiveFile, ...]:
    """The data files to merge into one, oldest first; none if no size class is full.

    `pending`: the sequence numbers of all equality deletes, ascending. None of them lies between the numbers of two
    chosen files, or equals one of them (mirror_pump.lake.commit.merged_files explains why). Chosen are files of the
    largest class that has at least `fanout` files, then those of all smaller classes, oldest first, until they make up
    the target size. So a row is rewritten once per class, and once more each time that most of its neighbours have been
    deleted.
    """
    runs: dict[int, list[LiveFile]] = defaultdict(list)
    for file in data:
        place = bisect_left(pending, file.sequence_number)
        if file.size_bytes < target_bytes and (place == len(pending) or pending[place] != file.sequence_number):
            runs[place].append(file)
    chosen = [_chosen(run, target_bytes, fanout) for run in runs.values()]
    # The run in which most files are replaced.
    return max(chosen, key=len, default=())


def _chosen(run: Sequence[LiveFile], target_bytes: int, fanout: int) -> tuple[LiveFile, ...]:
    classes: dict[int, list[LiveFile]] = defaultdict(list)
    for file in run:
        classes[size_class(file.records)].append(file)
    full = max((size for size, files in classes.items() if len(files) >= fanout), default=None)
    if full is None:
        return ()
    chosen: list[LiveFile] = []
    size = rows = 0
    # The full class comes first; smaller classes can wait.
    for number in sorted((candidate for candidate in classes if candidate <= full), reverse=True):
        for file in sorted(classes[number], key=_age):
            if len(chosen) > 1 and (size >= target_bytes or rows >= _MOST_SOURCE_ROWS or len(chosen) >= MOST_SOURCES):
                return tuple(sorted(chosen, key=_age))
            chosen.append(file)
            size += file.size_bytes
            rows += file.records
    return tuple(sorted(chosen, key=_age))


def _age(file: LiveFile) -> tuple[int, str]:
    return file.sequence_number, file.path


def _most_deleted(
    data: Iterable[LiveFile], positions: Iterable[LiveFile], pending: Collection[int]
) -> tuple[LiveFile, ...]:
    """The data file with the largest share of deleted rows, if that reaches `MUCH_DELETED_SHARE`.

    Only position-delete files that refer to a single data file count. Those that refer to several do not tell how many
    rows belong to which, and are split as they grow. Files with the sequence number of a pending equality delete are
    skipped: such a file may keep the delete from being dropped, and may have no live row.
    """
    deleted: Counter[str | None] = Counter()
    for file in positions:
        deleted[file.about] += file.records
    shares = [
        (deleted[file.path] / file.records, file)
        for file in data
        if 0 < file.records <= _MOST_SOURCE_ROWS and file.sequence_number not in pending
    ]
    share, most = max(shares, key=itemgetter(0), default=(0.0, None))
    return () if most is None or share < MUCH_DELETED_SHARE else (most,)
