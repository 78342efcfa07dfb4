"""Reads keys from the lake in the background: all keys of a table, to build its key index, or those of files that
another engine's rewrite added."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from mirror_pump.engine.lake_reads.index_keys import FileKeys, KeysTask, read_keys
from mirror_pump.errors import LakeError, TableError, TaskFailed
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed, naming
from mirror_pump.lake.contents.row_ids import RowIds
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.partitioning import PartitionTuple, partitions_of
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.key_index.index_plan import FileNumbers
from mirror_pump.lake.key_index.key_index import NOWHERE, KeyIndex, files_of, place_of
from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, unique_last
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.backlog import Backlog
from mirror_pump.pipeline.flow.events import Event, IndexRead
from mirror_pump.pipeline.flow.session_context import session_thread
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import work_for

if TYPE_CHECKING:
    # Importing it would load pyspark.
    from mirror_pump.engine.spark_runtime.runner import TaskRunner

_TASK_ROWS = 2_000_000
"""Number of rows whose keys one task reads. The keys take 16 to 32 MB."""
_TASK_FILES = 200
"""Maximum number of files that one task reads."""
_AHEAD = 1
"""Number of tasks that run while the result of another one is added to the index."""
_BACKLOG_POLL = 0.05
"""Seconds between looks whether a backlog is over, while a job waits for that."""


@dataclass(frozen=True)
class IndexJob:
    """A request to read keys of a table."""

    table_id: TableId
    job: int
    """Number of the job, which the answer repeats."""
    lake: LakeTable
    """The state of the table to read."""
    packing: KeyPacking
    indexed_paths: frozenset[str] | None
    """URIs of the data files whose keys are known. Only the others are read. None: build an index of all files."""
    budget: int
    """Maximum memory of a new index in bytes."""
    store: LeafStore | None = None
    """Where a new index keeps its leaves. None: in memory."""
    row_ids: RowIds | None = None
    """Where to keep the IDs of the files' rows, so that no commit has to read them. None: the rows have none."""


@dataclass(frozen=True)
class BuiltIndex:
    """The index of one state of a table."""

    index: KeyIndex
    numbers: FileNumbers


@dataclass(frozen=True)
class SucceededFiles:
    """The files that another engine's rewrite added and removed."""

    added: tuple[FileKeys, ...]
    """Newest first, so that a key's live row comes before rows of the key that a pending delete hides."""
    partitions: Mapping[str, PartitionTuple]
    """Their lake partitions, by URI."""
    gone: tuple[str, ...]
    """URIs of the known data files that are no longer part of the table."""


class IndexBuilder(ThreadedService):
    """A thread that does one job after the other, and puts the answers into the inbox as IndexRead. Jobs that are
    unfinished when it stops get no answer."""

    def __init__(
        self,
        runner: TaskRunner,
        inbox: SimpleQueue[Event],
        report_file: Callable[[TableId, Exception], None] = lambda *_: None,
        backlog: Backlog | None = None,
    ) -> None:
        """`report_file`: SessionContext.report_file. `backlog`: what no job begins before."""
        self._inbox = inbox
        self._backlog = backlog or Backlog()
        self._report_file = report_file
        self._jobs: SimpleQueue[IndexJob | None] = SimpleQueue()
        # A batch waits for the job that it had taken, so it does not begin again.
        self._thread = session_thread(
            "index builder", self._run, inbox, interrupt=lambda: self._jobs.put(None), restarts=False
        )
        self._tasks = Tasks(runner, self._thread.stopping)

    def submit(self, job: IndexJob) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._thread.stopping():
            # A transaction over hundreds of tables requests as many indexes, and the next one may be under way.
            while self._backlog.comes_first and not self._thread.pause(_BACKLOG_POLL):
                pass
            if self._thread.stopping():
                return
            try:
                with work_for(str(job.table_id)):
                    answer = self._build(job) if job.indexed_paths is None else self._follow(job, job.indexed_paths)
            except (LakeError, TaskFailed, TableError) as error:
                self._report_file(job.table_id, error)
                error_text = f"{error}. {error.remedy}" if error.remedy else str(error)
                self._inbox.put(IndexRead(job.table_id, job.job, None, error_text))
            else:
                self._inbox.put(IndexRead(job.table_id, job.job, answer, ""))

    def _build(self, job: IndexJob) -> BuiltIndex:
        """Index the newest row of each key, unless a newer delete hides it. In a live table this is the key's only live
        row, because a delete always comes between two rows of a key."""
        data, equality, positions = _files(job.lake)
        if job.row_ids is not None:
            job.row_ids.read_first(job.lake.manifests)
        index, numbers = KeyIndex(job.packing.words, store=job.store), FileNumbers()
        sequence = {file.path: file.sequence_number for file in (*data, *equality)}
        partitions = partitions_of(data)
        for read in self._read(job, sorted(data, key=lambda file: file.sequence_number), positions):
            # Files come in the order of their sequence numbers, so a later row of a key replaces an earlier one.
            keys = PackedKeys.concatenated([file.keys for file in read], job.packing.words)
            places = np.concatenate(
                [place_of(numbers.number(file.path, partitions[file.path]), file.positions) for file in read]
            )
            last = unique_last(keys)
            index.put(keys.take(last), places[last])
            if index.nbytes > job.budget:
                raise LakeError(
                    f"its key index would need more than {job.budget} bytes", "raise --index-memory or --index-disk"
                )
        if equality:
            by_number = np.array([sequence[numbers.path(number)] for number in range(len(numbers.paths()))], np.int64)
            for read in self._read(replace(job, row_ids=None), equality, ()):
                for file in read:
                    places = index.find(file.keys)
                    hidden = (places >= 0) & (by_number[files_of(np.maximum(places, 0))] < sequence[file.path])
                    index.put(file.keys.take(hidden), np.full(int(hidden.sum()), NOWHERE, np.int64))
        return BuiltIndex(index, numbers)

    def _follow(self, job: IndexJob, indexed_paths: frozenset[str]) -> SucceededFiles:
        data, _, positions = _files(job.lake)
        # Newest first: a rewrite keeps the old row of a key that was updated in the meantime. A pending delete hides
        # it.
        new = sorted((file for file in data if file.path not in indexed_paths), key=lambda file: -file.sequence_number)
        added = tuple(file for read in self._read(job, new, positions) for file in read)
        gone = tuple(indexed_paths.difference(file.path for file in data))
        return SucceededFiles(added, partitions_of(new), gone)

    def _read(
        self, job: IndexJob, files: Sequence[LiveFile], positions: Sequence[LiveFile]
    ) -> Iterator[list[FileKeys]]:
        """Yields the files' keys in order, some files at a time. Reads ahead by one task."""
        running: deque[Future[list[FileKeys]]] = deque()
        for group in _groups(files):
            paths = tuple(file.path for file in group)
            task = KeysTask(
                paths,
                naming(positions, paths),
                job.lake.schema,
                job.packing,
                job.lake.storage,
                with_ids=job.row_ids is not None,
            )
            running.append(self._tasks.runner.submit(read_keys, task))
            if len(running) > _AHEAD:
                yield self._keys(job, running.popleft())
        while running:
            yield self._keys(job, running.popleft())

    def _keys(self, job: IndexJob, reading: Future[list[FileKeys]]) -> list[FileKeys]:
        """What a task has read. The rows' IDs are kept."""
        files = self._tasks.result(reading)
        if job.row_ids is None:
            return files
        for file in files:
            job.row_ids.put(file.path, file.ids)
        return [replace(file, ids=None) for file in files]


def _files(lake: LakeTable) -> tuple[list[LiveFile], list[LiveFile], list[LiveFile]]:
    """The table's data files, equality-delete files and position-delete files.

    Raises LakeError if another engine wrote files that an index cannot describe: in other formats, in partitions of
    their own, or with deletes by other columns than the key.
    """
    listing = Listing(lake.storage, (PATH_ID,))
    by_manifest = listing.files(lake.manifests)
    by_content: dict[FileContent, list[LiveFile]] = {content: [] for content in FileContent}
    for file, usual in listed(by_manifest, lake.manifests, lake.spec_ids):
        fits = file.content is not FileContent.EQUALITY_DELETES or set(file.equality_ids) == set(lake.schema.key_ids)
        if not (usual and fits) or lake.foreign_partitions:
            raise LakeError(f"{file.path} is of a kind that a key index does not know", "compact the table")
        if file.records:
            by_content[file.content].append(file)
    return (
        by_content[FileContent.DATA],
        by_content[FileContent.EQUALITY_DELETES],
        by_content[FileContent.POSITION_DELETES],
    )


def _groups(files: Sequence[LiveFile]) -> Iterator[list[LiveFile]]:
    group: list[LiveFile] = []
    rows = 0
    for file in files:
        if group and (rows + file.records > _TASK_ROWS or len(group) >= _TASK_FILES):
            yield group
            group, rows = [], 0
        group.append(file)
        rows += file.records
    if group:
        yield group
