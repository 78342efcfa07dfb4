"""From a batch's segment results to what the publish does to each table: order, truncations, completed rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from mirror_pump.engine.runner import TaskRunner
from mirror_pump.engine.tasks import SegmentResult, TableResult
from mirror_pump.errors import TableError
from mirror_pump.lake.commit import LakeTable, SegmentFiles
from mirror_pump.lake.files import write_data_file
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.assembler import BatchEnd, Failure
from mirror_pump.pipeline.requests import TableDelta
from mirror_pump.pipeline.toast import VersionedFile, complete_rows
from mirror_pump.source.connect import PgConnection


@dataclass(frozen=True)
class AppliedBatch:
    """A batch as a publish takes it."""

    deltas: tuple[TableDelta, ...]
    failures: tuple[Failure, ...]


class BatchApplier:
    """Turns results into deltas. `lake_table` gives a table's present state, for values that must be looked up."""

    def __init__(
        self,
        runner: TaskRunner,
        storage: StorageOptions,
        connect: Callable[[], PgConnection],
        lake_table: Callable[[MirroredTable], LakeTable],
    ) -> None:
        self._runner = runner
        self._storage = storage
        self._connect = connect
        self._lake_table = lake_table

    def apply(
        self, end: BatchEnd, tables: Sequence[Sequence[MirroredTable]], results: Sequence[SegmentResult]
    ) -> AppliedBatch:
        """`results[i]` is what segment i came to, `tables[i]` the tables that it was decoded for."""
        failures = {failure.table.table_id: failure for failure in end.failures}
        # A table that was registered anew within the batch: what belongs to the former registration does not count.
        present = {table.table_id: table for segment in tables for table in segment}
        for truncation in end.truncations:
            present.setdefault(truncation.table_id, truncation.table)
        by_table: dict[TableId, dict[int, TableResult]] = {}
        for number, (segment, result) in enumerate(zip(tables, results, strict=True)):
            counted = {table.table_id for table in segment if table.start_lsn == present[table.table_id].start_lsn}
            for one in result.tables:
                if one.table_id not in counted:
                    continue
                by_table.setdefault(one.table_id, {})[number] = one
                if one.error is not None and one.table_id not in failures:
                    table = present[one.table_id]
                    failures[one.table_id] = Failure(table, f"{table.name}: {one.error}")
        truncated = {
            truncation.table_id: truncation.before
            for truncation in end.truncations
            if truncation.table.start_lsn == present[truncation.table_id].start_lsn
        }
        deltas = []
        for table_id in sorted(by_table.keys() | truncated.keys()):
            if table_id in failures:
                continue
            try:
                delta = self._delta(present[table_id], by_table.get(table_id, {}), truncated.get(table_id))
            except TableError as error:
                failures[table_id] = Failure(present[table_id], f"{error} {error.remedy}".strip())
            else:
                deltas.append(delta)
        return AppliedBatch(tuple(deltas), tuple(failures.values()))

    def _delta(
        self, table: MirroredTable, results: Mapping[int, TableResult], truncated_before: int | None
    ) -> TableDelta:
        counted = {number: result for number, result in results.items() if number >= (truncated_before or 0)}
        files = {number: result.files for number, result in counted.items()}
        heap_read_at: Lsn | None = None
        incomplete = {number: result.incomplete for number, result in counted.items() if result.incomplete is not None}
        if incomplete:
            versions = self._versions(table, files, in_lake=truncated_before is None)
            completed = complete_rows(table, incomplete, versions, self._runner, self._storage, self._connect)
            heap_read_at = completed.heap_read_at
            for number, rows in completed.rows.items():
                files[number] = self._with_rows(table, files[number], rows)
        return TableDelta(
            table,
            segments=tuple(files[number] for number in sorted(files) if files[number].data or files[number].deletes),
            truncate=truncated_before is not None,
            not_live_before=heap_read_at,
        )

    def _versions(self, table: MirroredTable, files: Mapping[int, SegmentFiles], in_lake: bool) -> list[VersionedFile]:
        """The files in which rows' previous versions may be. While the table is being copied, where a row may be
        without any version, those that say which versions are another row's: the deletes."""
        deletes_count = table.state is not TableState.LIVE
        versions = [VersionedFile(file.path, number) for number, segment in files.items() for file in segment.data]
        if deletes_count:
            versions += [
                VersionedFile(file.path, number, deletes=True)
                for number, segment in files.items()
                for file in segment.deletes
            ]
        if in_lake:
            lake = self._lake_table(table)
            older = [(file, False) for file in lake.live_data_files()]
            if deletes_count:
                older += [(file, True) for file in lake.live_equality_deletes()]
            # Numbered below every segment, in the order of their sequence numbers.
            sequences = sorted({file.sequence_number for file, _ in older}, reverse=True)
            ranks = {sequence: rank for rank, sequence in enumerate(sequences)}
            versions += [VersionedFile(file.path, -2 - ranks[file.sequence_number], deletes) for file, deletes in older]
        return versions

    def _with_rows(self, table: MirroredTable, files: SegmentFiles, rows: pa.Table) -> SegmentFiles:
        if not rows.num_rows:
            return files
        written = write_data_file(rows, LakeSchema.of_table(table), table.location, self._storage)
        return replace(files, data=(*files.data, written))
