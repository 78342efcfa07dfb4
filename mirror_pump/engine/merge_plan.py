"""Which files of a table a merge takes: small data files by size class and piled position deletes; or a worn one."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from mirror_pump.engine.delete_conversion import OrderedFile
from mirror_pump.engine.file_merge import OWN_POSITIONS, MergedPositions, MergeTask, PositionsTask
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed, paths_of
from mirror_pump.lake.format.data_files import FileContent

FANOUT = 8
"""This many files of one size class become one: a row is rewritten once per power of eight, and each class has seven
files at most that wait."""
_CLASS_BITS = 3

OWN_FANOUT = 2
"""The same for position-delete files that a merge has set apart for one data file: a row takes some bytes in them, and
every reader of that data file opens them all."""

FULL_POSITIONS = 1 << 22
"""Rows from which on a position-delete file is left alone."""

WORN_SHARE = 0.1
"""A data file is rewritten when so many of its rows are dead: at most nine live rows are written for each of these.
Readers pay for the dead ones, above all pyiceberg, which for every 131,072 rows of a file looks at all its deletes."""

MOST_SOURCES = 500
"""Data files of one merge: opening a small one costs as much as reading 50,000 rows."""
_MOST_SOURCE_ROWS = 4_000_000
"""Rows of one merge, about: each costs the driver 12 bytes until the merge has landed."""


@dataclass(frozen=True)
class MergePlan:
    """Tasks to run, and what they are based on. One of them at least."""

    data: MergeTask | None
    positions: PositionsTask | None
    removed: frozenset[str]
    """The files that the tasks read to replace them, and position-delete files about data files that go or are gone."""
    seen: dict[str, frozenset[str]]
    sequence_number: int


def plan_merge(table: LakeTable, listing: Listing, target_bytes: int) -> MergePlan | None:
    """What to merge in the table's present state; None if nothing has piled up.

    `target_bytes`: data files of this size and more are left alone; 0 leaves all alone. Only Parquet files of the
    current partition spec, an unpartitioned one, are merged, whoever wrote them. Reads the manifests that the listing
    (`mirror_pump.engine.conversion_plan.listing_for`) does not know yet. Raises LakeError.
    """
    present = _present(table, listing)
    if present is None:
        return None
    small = choose(present.data, sorted(present.pending), target_bytes)
    return _plan(table, present, small, pile=True)


def plan_rewrite(table: LakeTable, listing: Listing) -> MergePlan | None:
    """The most worn data file, whatever its size, to be written anew without its dead rows; None if none is worn.
    Otherwise as `plan_merge`."""
    present = _present(table, listing)
    if present is None:
        return None
    worn = _worn(present.data, present.positions, present.pending)
    return _plan(table, present, worn, pile=False) if worn else None


def plan_fill(
    table: LakeTable, listing: Listing, lacking: Callable[[LiveFile], bool], *, most_rows: int = _MOST_SOURCE_ROWS
) -> MergePlan | None:
    """The oldest data files that lack a column, `most_rows` at a time about, each to be written anew by itself; None if
    none is left. An empty file has no row to fill, and may be there to keep Iceberg from dropping a delete.

    Otherwise as `plan_merge`. NotFillable if another engine wrote files that are none of our kind, or partitioned the
    table.
    """
    present = _present(table, listing)
    if present is None or len(present.data) < len(present.paths):
        raise NotFillable("files of the lake table were written by another engine, and in a way that is not ours")
    chosen: list[LiveFile] = []
    rows = 0
    for file in sorted(present.data, key=_age):
        if file.records and lacking(file):
            chosen.append(file)
            rows += file.records
            if rows >= most_rows or len(chosen) >= MOST_SOURCES:
                break
    return _plan(table, present, tuple(chosen), pile=False) if chosen else None


class NotFillable(LakeError):
    """The table's files cannot be filled: it has to be copied again."""


@dataclass(frozen=True)
class _Present:
    """Files of a state."""

    data: list[LiveFile]
    """Those that may be merged."""
    positions: list[LiveFile]
    pending: frozenset[int]
    """Sequence numbers of equality deletes."""
    paths: frozenset[str]
    """URIs of all data files."""
    seen: dict[str, frozenset[str]]


def _present(table: LakeTable, listing: Listing) -> _Present | None:
    """None of a table that is left alone."""
    if table.partitioned:
        return None
    by_manifest = listing.files(table.manifests)
    data: list[LiveFile] = []
    positions: list[LiveFile] = []
    pending: set[int] = set()
    paths: set[str] = set()
    strange = False
    for file, usual in listed(by_manifest, table.manifests, table.spec_id):
        if file.content is FileContent.DATA:
            paths.add(file.path)
            if usual:
                data.append(file)
        elif file.content is FileContent.EQUALITY_DELETES:
            pending.add(file.sequence_number)
        elif usual:
            positions.append(file)
        else:
            strange = True
    # A position-delete file that cannot be read may be about any data file.
    return _Present([] if strange else data, positions, frozenset(pending), frozenset(paths), paths_of(by_manifest))


def _plan(table: LakeTable, present: _Present, sources: tuple[LiveFile, ...], *, pile: bool) -> MergePlan | None:
    gone = {file.path for file in sources}
    # Other engines' rewrites leave some that are about files which have gone before.
    about = present.paths - gone
    stay: set[str | None] = {None, *about}
    dangling = {file.path for file in present.positions if file.about not in stay}
    left = [file for file in present.positions if file.path not in dangling]
    crowded = table.position_deletes > table.records
    # What files about several data files say of the sources would stay behind. DuckDB counts rows as those of data
    # files less those of delete files, and fails with an internal error at some queries where that is below zero.
    piled = _piled(left, shared=bool(sources) or crowded) if pile else _shared(left)
    if not (sources or piled or (crowded and dangling)):
        return None
    return MergePlan(
        data=_merge(table, sources, present.positions) if sources else None,
        positions=PositionsTask(piled, about, table.location, table.storage) if piled else None,
        removed=frozenset(chain(gone, dangling, piled)),
        seen=present.seen,
        sequence_number=table.sequence_number,
    )


def _merge(table: LakeTable, sources: Sequence[LiveFile], positions: Iterable[LiveFile]) -> MergeTask:
    paths = {file.path for file in sources}
    # A row is deleted by position when its file is there: not by files of lower numbers.
    oldest = min(file.sequence_number for file in sources)
    about = ((file, file.about) for file in positions if file.sequence_number >= oldest)
    return MergeTask(
        data=tuple(OrderedFile(file.path, file.sequence_number) for file in sources),
        positions=tuple(file.path for file, one in about if one is None or one in paths),
        schema=table.schema,
        location=table.location,
        storage=table.storage,
    )


def merged_file_rewrite(
    plan: MergePlan, merged: Sequence[MergedFile], positions: MergedPositions | None
) -> FileRewrite:
    """The change that the plan's tasks came to. `merged` have no source in common."""
    relied_on = set() if plan.data is None else set(plan.data.positions)
    if positions is not None:
        relied_on.update(positions.data)
    return FileRewrite(
        added=() if positions is None else positions.files,
        removed=plan.removed,
        relied_on=frozenset(relied_on),
        seen=plan.seen,
        sequence_number=plan.sequence_number,
        complete=False,
        merged=tuple(merged),
    )


def choose(data: Iterable[LiveFile], pending: Sequence[int], target_bytes: int) -> tuple[LiveFile, ...]:
    """The data files to make one of, oldest first; none if no size class is full.

    `pending`: the sequence numbers of all equality deletes, ascending. None of them is between two of the chosen files'
    numbers, nor equal to one (mirror_pump.lake.commit.merged_files says why). Merged are the files of the largest
    class of which
    there are `FANOUT`, and all of smaller classes, oldest first, until there is a target's worth of bytes: so a row is
    rewritten once per class, and once more each time that most of the rows beside it have died.
    """
    runs: dict[int, list[LiveFile]] = defaultdict(list)
    for file in data:
        place = bisect_left(pending, file.sequence_number)
        if file.size_bytes < target_bytes and (place == len(pending) or pending[place] != file.sequence_number):
            runs[place].append(file)
    chosen = [_chosen(run, target_bytes) for run in runs.values()]
    # Where most files go.
    return max(chosen, key=len, default=())


def _chosen(run: Sequence[LiveFile], target_bytes: int) -> tuple[LiveFile, ...]:
    classes: dict[int, list[LiveFile]] = defaultdict(list)
    for file in run:
        classes[size_class(file.records)].append(file)
    full = max((size for size, files in classes.items() if len(files) >= FANOUT), default=None)
    if full is None:
        return ()
    chosen: list[LiveFile] = []
    size = rows = 0
    # The full class first: what is smaller can wait.
    for number in sorted((one for one in classes if one <= full), reverse=True):
        for file in sorted(classes[number], key=_age):
            if len(chosen) > 1 and (size >= target_bytes or rows >= _MOST_SOURCE_ROWS or len(chosen) >= MOST_SOURCES):
                return tuple(sorted(chosen, key=_age))
            chosen.append(file)
            size += file.size_bytes
            rows += file.records
    return tuple(sorted(chosen, key=_age))


def size_class(records: int) -> int:
    """By rows, not bytes: of files with a few rows most bytes are footer, and eight of them make one of hardly more.
    Each class ends at eight times the rows of the one before."""
    return max(records.bit_length() - 1, 0) // _CLASS_BITS


def _age(file: LiveFile) -> tuple[int, str]:
    return file.sequence_number, file.path


def _worn(data: Iterable[LiveFile], positions: Iterable[LiveFile], pending: Collection[int]) -> tuple[LiveFile, ...]:
    """The data file with the largest share of dead rows, if that is `WORN_SHARE`: as far as position-delete files say
    that are about it alone. Those about several leave open how many rows are whose, and are taken apart as they grow.

    No equality delete has its number: it may be what keeps that from being dropped, and may have no live row.
    """
    dead: Counter[str | None] = Counter()
    for file in positions:
        dead[file.about] += file.records
    found = [
        (dead[file.path] / file.records, file)
        for file in data
        if 0 < file.records <= _MOST_SOURCE_ROWS and file.sequence_number not in pending
    ]
    share, most = max(found, key=itemgetter(0), default=(0.0, None))
    return () if most is None or share < WORN_SHARE else (most,)


def _shared(positions: Iterable[LiveFile]) -> tuple[str, ...]:
    """Position-delete files about several data files."""
    return tuple(file.path for file in positions if file.about is None and file.records < FULL_POSITIONS)


def _piled(positions: Sequence[LiveFile], *, shared: bool) -> tuple[str, ...]:
    """Position-delete files to merge: those of the largest size class that is full, and all smaller ones; of files that
    a merge has set apart for one data file, likewise among themselves. `shared`: and all that are about several."""
    piles: dict[str | None, list[LiveFile]] = defaultdict(list)
    for one in positions:
        if one.records < FULL_POSITIONS:
            piles[one.about if one.records >= OWN_POSITIONS else None].append(one)
    full = chain.from_iterable(_full(pile, OWN_FANOUT if about else FANOUT) for about, pile in piles.items())
    return tuple(dict.fromkeys((*full, *(_shared(positions) if shared else ()))))


def _full(pile: Sequence[LiveFile], fanout: int) -> Iterator[str]:
    classes = Counter(size_class(one.records) for one in pile)
    full = max((size for size, count in classes.items() if count >= fanout), default=-1)
    return (one.path for one in pile if size_class(one.records) <= full)
