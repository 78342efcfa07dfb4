"""Lanes of an ingest: each takes batches of input rows, one after the other, and writes their rows to where they go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from mirror_pump.ops.ingest.convert.normalisation import LakeRows, Normaliser, row_texts
from mirror_pump.ops.ingest.convert.postgres_values import PostgresValues
from mirror_pump.ops.ingest.divide.row_division import RowDivision
from mirror_pump.ops.ingest.ingest_request import OnError
from mirror_pump.ops.ingest.ingest_target import IngestTarget, insertable
from mirror_pump.ops.ingest.write.heap_rows import HeapRows
from mirror_pump.ops.ingest.write.lake_writer import LakeFiles, LakeWriter
from mirror_pump.ops.row_files.row_batch import RefusedRow, RowBatch, RowRefused
from mirror_pump.source.connect import PgConnection


@dataclass
class RejectFile:
    """Where refused rows go: a file of JSON lines, or nowhere, and then the first one ends the ingest."""

    on_error: OnError
    write: Callable[[bytes], object]
    rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, refused: list[RefusedRow]) -> None:
        """Raises RowRefused for the first of them unless rows are skipped."""
        if not refused:
            return
        if self.on_error is OnError.ABORT:
            first = min(refused, key=lambda row: row.place)
            remedy = "nothing was ingested; mend the row, or leave such rows out with --on-error skip --rejects FILE"
            raise RowRefused(first.place, first.reason, remedy)
        with self._lock:
            self.rows += len(refused)
            for row in refused:
                reject = {
                    "file": row.place.file,
                    row.place.unit: row.place.line,
                    "error": row.reason,
                    "row": row.values,
                }
                self.write(orjson.dumps(reject) + b"\n")


@dataclass
class LaneOutput:
    """What the lanes of an ingest share."""

    target: IngestTarget
    division: RowDivision
    rejects: RejectFile
    connect: Callable[[], PgConnection]
    dry_run: bool
    """Nothing is stored."""
    lake: LakeFiles | None
    """None if no row goes to the lake, and for a dry run."""


class RowLane:
    """Used by one thread at a time."""

    def __init__(self, output: LaneOutput) -> None:
        self._output = output
        target = output.target
        self._postgres = PostgresValues(output.connect, target)
        self._normaliser = Normaliser(target, self._postgres)
        self._names = insertable(target, [*(column.name for column in target.lake_columns), *target.unmirrored])
        self._writer = None if output.lake is None else LakeWriter(output.lake)
        self.heap = HeapRows(self._names)
        self.lake_rows = 0
        self.heap_rows = 0

    def take(self, batch: RowBatch) -> int:
        """Writes the rows of a batch. Returns their number. Raises RowRefused and LakeError."""
        rows, refused = self._normaliser.normalise(batch)
        expired = self._output.division.expired(rows.table) if rows.table.num_rows else np.zeros(0, np.int64)
        if len(expired):
            text = self._output.division.expiry_text()
            refused += [RefusedRow(rows.batch.place(int(row)), text, _shown(rows, int(row))) for row in expired]
            rows = _taken(rows, np.setdiff1d(np.arange(rows.table.num_rows), expired))
        self._output.rejects.add(refused)
        if not rows.table.num_rows:
            return 0
        below = self._output.division.to_lake(rows.table)
        if below.all():
            self._to_lake(rows)
        elif not below.any():
            self._to_heap(rows)
        else:
            self._to_lake(_taken(rows, np.flatnonzero(below)))
            self._to_heap(_taken(rows, np.flatnonzero(~below)))
        return int(rows.table.num_rows)

    def _to_lake(self, rows: LakeRows) -> None:
        self.lake_rows += rows.table.num_rows
        if self._writer is not None:
            self._writer.write(rows)

    def _to_heap(self, rows: LakeRows) -> None:
        self.heap_rows += rows.table.num_rows
        if not self._output.dry_run:
            self.heap.add(row_texts(rows, self._names))

    def finish(self) -> None:
        """Ends the lane's files, and its session."""
        if self._writer is not None:
            self._writer.finish()
        self._postgres.close()

    def abandon(self, error: BaseException) -> None:
        """Leaves no part of the lane's files behind."""
        if self._writer is not None:
            self._writer.abandon(error)
        self.close()

    def close(self) -> None:
        self._postgres.close()
        self.heap.close()


def _taken(rows: LakeRows, places: npt.NDArray[np.int64]) -> LakeRows:
    indices = pa.array(places)
    raw = {name: texts.take(indices) for name, texts in rows.raw.items()}
    return replace(
        rows,
        table=rows.table.take(indices),
        raw={name: texts for name, texts in raw.items() if texts.null_count < len(texts)},
        unmirrored={name: texts.take(indices) for name, texts in rows.unmirrored.items()},
        batch=rows.batch.take(places),
    )


def _shown(rows: LakeRows, row: int) -> dict[str, str | None]:
    texts = row_texts(_taken(rows, np.array([row])), rows.table.column_names)
    return {name: texts.column(name)[0].as_py() for name in texts.column_names}
