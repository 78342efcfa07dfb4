"""Merges the files of a change feed: which of them become one, and the task that writes it.

A feed gets a file with each publish, so its files are merged by size classes, as those of mirrored tables
(`merge_plan`). It has no deletes, and its order counts: a reader takes the changes between two positions, and skips
files by the bounds of `_lsn`.

Invariant: the files of a feed, sorted by their bounds, hold its changes in the order (`_lsn`, `_seq`), and so does what
a merge leaves. Only files that follow each other in this order are merged, those of one day of commits. Files that
overlap go together, so that no two overlap after it that did not before, and the task writes all rows in this order:
files may have rows of one transaction in turns. A file keeps its rows' day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.engine.rewrite.delete_conversion import OrderedFile
from mirror_pump.engine.rewrite.file_merge import MergeTask
from mirror_pump.engine.rewrite.merge_plan import MOST_SOURCES
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.contents.ordered_rows import in_commit_order, place_columns, places_of, sorted_batches
from mirror_pump.lake.contents.size_classes import size_class
from mirror_pump.lake.format.columns import names_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.feed_schema import LSN, LSN_ID, SEQ_ID
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.row_batches import row_batches, stored_rows
from mirror_pump.model import Lsn

FEED_FANOUT = 16
"""This many files are merged into one. Twice as many as of mirrored tables: a merge costs the pump a commit, and
readers need no more than to open the files."""
_BATCH_ROWS = 64 * 1024
_MOST_PLACES = 1_000_000


@dataclass(frozen=True)
class FeedFile:
    """A data file of a change feed."""

    file: LiveFile
    lowest_lsn: int
    highest_lsn: int
    lowest_seq: int

    @classmethod
    def of(cls, file: LiveFile) -> FeedFile:
        """The file with its bounds. Each file that the mirror wrote has those of `_lsn`; the table of transactions has
        no `_seq`. Raises LakeError for another one."""
        if LSN_ID not in file.lower_bounds or LSN_ID not in file.upper_bounds:
            raise LakeError(
                f"{file.path} of a change feed has no bounds of _lsn: another engine wrote it",
                "let other engines connect with a reader's role; begin the feed anew",
            )
        return cls(
            file,
            _number(file.lower_bounds[LSN_ID]),
            _number(file.upper_bounds[LSN_ID]),
            _number(file.lower_bounds.get(SEQ_ID, b"")),
        )

    @property
    def place(self) -> tuple[int, int, int]:
        """By what the files of a feed are sorted. Of several files with changes of one transaction, the first may begin
        with earlier ones, the last may end with later ones, and those between have no others."""
        return self.lowest_lsn, self.highest_lsn, self.lowest_seq


def _number(bound: bytes) -> int:
    return int.from_bytes(bound, "little", signed=True)


def feed_files(feed: LakeTable, listing: Listing) -> list[FeedFile]:
    """The feed's files with rows, in the order of its changes. Reads the manifests that the listing does not have.
    Raises LakeError."""
    by_manifest = listing.files(feed.manifests)
    files = (FeedFile.of(file) for files in by_manifest.values() for file in files if file.records)
    return sorted(files, key=lambda file: file.place)


def choose_neighbours(files: Sequence[FeedFile], target_bytes: int, fanout: int = FEED_FANOUT) -> tuple[LiveFile, ...]:
    """The files to merge into one, in order; none if too few have accumulated.

    `files` are all files of a feed, in order, and `target_bytes` is the size from which on one is left alone. Of
    neighbours of one day, chosen are those that make up the target size, or `fanout` and more that make a file of a
    higher size class than each of them. So a row is rewritten once per class, and once more for the target. What is
    left of a day is merged once the feed goes on with another. Files that overlap are chosen together or not at all.
    """
    clusters = list(_clusters(files))
    runs = list(_runs(clusters, target_bytes))
    candidates = (_chosen(run, target_bytes, fanout, closed=run[-1] is not clusters[-1]) for run in runs)
    return max(candidates, key=len, default=())


@dataclass(frozen=True)
class _Cluster:
    """Files that overlap: those of a publish that has changes whose values were looked up, in a file of their own."""

    files: tuple[LiveFile, ...]

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def size_class(self) -> int:
        """That of a file with all of its rows."""
        return size_class(self.records)

    @property
    def day(self) -> PartitionTuple | None:
        """The partition of its files; None if they have several."""
        partitions = {file.partition for file in self.files}
        return partitions.pop() if len(partitions) == 1 else None


def _clusters(files: Iterable[FeedFile]) -> Iterator[_Cluster]:
    cluster: list[LiveFile] = []
    end = 0
    for feed_file in files:
        if cluster and feed_file.lowest_lsn >= end:
            yield _Cluster(tuple(cluster))
            cluster = []
        end = max(end, feed_file.highest_lsn) if cluster else feed_file.highest_lsn
        cluster.append(feed_file.file)
    if cluster:
        yield _Cluster(tuple(cluster))


def _runs(clusters: Iterable[_Cluster], target_bytes: int) -> Iterator[list[_Cluster]]:
    """Neighbours that may be merged: small files of one day, in order."""
    run: list[_Cluster] = []
    for cluster in clusters:
        fits = cluster.day is not None and all(file.size_bytes < target_bytes for file in cluster.files)
        if run and not (fits and cluster.day == run[-1].day):
            yield run
            run = []
        if fits:
            run.append(cluster)
    if run:
        yield run


def _chosen(run: Sequence[_Cluster], target_bytes: int, fanout: int, *, closed: bool) -> tuple[LiveFile, ...]:
    if closed or sum(cluster.size_bytes for cluster in run) >= target_bytes:
        return _up_to(run, target_bytes)
    for number in sorted({cluster.size_class for cluster in run}, reverse=True):
        for lower, group in groupby(run, key=lambda cluster: cluster.size_class <= number):
            stretch = list(group)
            files = sum(len(cluster.files) for cluster in stretch)
            if lower and files >= fanout and size_class(sum(cluster.records for cluster in stretch)) > number:
                return _up_to(stretch, target_bytes)
    return ()


def _up_to(clusters: Sequence[_Cluster], target_bytes: int) -> tuple[LiveFile, ...]:
    """The first files, two or more, up to the target size; none of a single one."""
    chosen: list[LiveFile] = []
    size = 0
    for cluster in clusters:
        if len(chosen) > 1 and (size >= target_bytes or len(chosen) >= MOST_SOURCES):
            break
        chosen += cluster.files
        size += cluster.size_bytes
    return tuple(chosen) if len(chosen) > 1 else ()


def merge_task(feed: LakeTable, chosen: Sequence[LiveFile]) -> MergeTask:
    """The task that makes one file of these."""
    return MergeTask(tuple(map(OrderedFile.of, chosen)), (), feed.schema, feed.location, feed.storage)


@dataclass(frozen=True)
class JoinedFile:
    """A file with the rows of others."""

    file: WrittenFile

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """Every file that the task wrote."""
        return (self.file,)


def join_files(task: MergeTask) -> JoinedFile:
    """Writes the rows of the task's data files into one, in order, with the columns of the task's schema.

    Memory: a row group of the new file, and a batch of each file that has rows of the same transaction; of a file that
    is out of order what `sorted_batches` takes. Raises LakeError if a file cannot be read.
    """
    files = ((_lowest_lsn(file.path, task), partial(_sorted_rows_of, file, task)) for file in task.data)
    with DataFileWriter(task.file_schema, task.location, task.storage, partition=task.partition) as writer:
        for rows in in_commit_order(files):
            writer.write(rows)
    return JoinedFile(writer.written)


def _lowest_lsn(path: str, task: MergeTask) -> int:
    """The lowest position of a file's rows. The pump's files begin with it, those of engines need not."""
    return min(int(pc.min(places[LSN]).as_py()) for places in _places_of(path, task))


def _places_of(path: str, task: MergeTask) -> Iterator[pa.Table]:
    with open_parquet(path, task.storage) as parquet:
        names = names_by_id(parquet)
        for _, batch in row_batches(parquet, _MOST_PLACES, task.batch_bytes, columns=place_columns(names)):
            yield places_of(batch, names)


def _sorted_rows_of(file: OrderedFile, task: MergeTask) -> Iterator[pa.Table]:
    """A file's rows with the columns of the new one, in order."""
    return sorted_batches(partial(_rows_of, file, task), partial(_places_of, file.path, task))


def _rows_of(file: OrderedFile, task: MergeTask) -> Iterator[pa.Table]:
    """A file's rows with the columns of the new one."""
    batches = stored_rows(file.path, task.file_schema, None, task.storage, _BATCH_ROWS, task.batch_bytes)
    for first, columns, live in batches:
        yield task.rows_of(file, first, columns, len(live))


def merge_rewrite(chosen: Sequence[LiveFile], joined: WrittenFile, listing: Listing) -> FeedRewrite:
    """The rewrite that puts a file with the rows of the chosen ones in their place. `listing` has listed these."""
    newest = max(file.sequence_number for file in chosen)
    return FeedRewrite(frozenset(file.path for file in chosen), listing, ((joined, newest),))


def expiry_rewrite(files: Sequence[FeedFile], first_day: int, listing: Listing) -> FeedRewrite | None:
    """The rewrite that takes out the files at the beginning of a feed whose changes were all committed before this day,
    counted from 1970. None if there are none. `listing` has listed `files`, which are in order.

    A feed has no gap, so a file stays as long as one before it: server clocks may have been set.
    """
    expired: list[FeedFile] = []
    for feed_file in files:
        (day,) = feed_file.file.partition
        if day is None or day >= first_day:
            break
        expired.append(feed_file)
    if not expired:
        return None
    return FeedRewrite(
        frozenset(feed_file.file.path for feed_file in expired),
        listing,
        removed_rows=sum(feed_file.file.records for feed_file in expired),
        expired_lsn=Lsn(max(feed_file.highest_lsn for feed_file in expired) + 1),
    )
