"""The rows of a plan: as Arrow batches, which need little memory, as one Arrow table, or as a Spark DataFrame."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mirror_pump.tables.read_plan.file_rows import FileRows
from mirror_pump.tables.read_plan.planned_files import PlannedFile, ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_THREADS = 4
"""Files that are read at a time."""
_WAITING_BATCHES = 2
"""Batches of one file that wait to be taken."""


@dataclass(frozen=True)
class Scan:
    """The matching rows of a snapshot, past all its deletes. Reads nothing before it is asked for rows."""

    plan: ReadPlan
    metadata_location: str | None = None
    """The metadata file that the plan was made from; only `to_spark` needs it."""

    @property
    def schema(self) -> pa.Schema:
        """Of the batches and tables."""
        return FileRows(self.plan).schema

    def to_arrow(self, threads: int = DEFAULT_THREADS) -> pa.Table:
        """All rows. Raises the errors of `to_batches`."""
        return pa.Table.from_batches(list(self.to_batches(threads)), self.schema)

    def to_batches(self, threads: int = DEFAULT_THREADS) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of files and, within a file, of its rows; no batch is empty.

        Reads up to `threads` files at a time. Memory: a few batches of some 16 MB for each of these, whatever the size
        of the table, and the deletes of files that are being read. Close the iterator if you do not read it to the end.
        Raises FileMissing, FileDamaged and LakeError for what cannot be read, and ForeignTable for files that are not
        Parquet.
        """
        rows = FileRows(self.plan)
        if threads <= 1 or len(self.plan.files) <= 1:
            for file in self.plan.files:
                yield from rows.batches(file)
            return
        yield from _in_parallel(rows, iter(self.plan.files), threads)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """The rows as a DataFrame of the pinned snapshot, which Spark reads through Iceberg's runtime, whatever
        catalogs the session has. Raises UsageError without `metadata_location`."""
        from mirror_pump.tables.read_plan.spark_frame import scanned_frame

        return scanned_frame(spark, self.plan, self.metadata_location)


class _FileTask:
    """A file that a thread reads into a queue."""

    def __init__(self, rows: FileRows, file: PlannedFile, stopped: threading.Event) -> None:
        self._rows = rows
        self._file = file
        self._stopped = stopped
        self._queue: queue.Queue[Any] = queue.Queue(_WAITING_BATCHES)
        self._thread = threading.Thread(target=self._run, name="lake-scan", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._rows.batches(self._file):
                if not self._put(batch):
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - raised by the reader that takes the batches
            self._put(error)

    def _put(self, item: Any) -> bool:
        """Whether the reader still wants it."""
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def batches(self) -> Iterator[pa.RecordBatch]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def join(self) -> None:
        self._thread.join()


def _in_parallel(rows: FileRows, files: Iterator[PlannedFile], threads: int) -> Iterator[pa.RecordBatch]:
    stopped = threading.Event()
    tasks: deque[_FileTask] = deque()
    try:
        while True:
            while len(tasks) < threads and (file := next(files, None)) is not None:
                tasks.append(_FileTask(rows, file, stopped))
            if not tasks:
                return
            yield from tasks[0].batches()
            tasks.popleft().join()
    finally:
        stopped.set()
        for task in tasks:
            task.join()
