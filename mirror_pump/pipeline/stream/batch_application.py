"""From a batch's segment results to what the publish does to each table: order, truncations, completed rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from mirror_pump.engine.runner import TaskRunner
from mirror_pump.engine.segment_tasks import SegmentResult, TableResult, row_keys
from mirror_pump.errors import ForeignTable, TableError, about
from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.format.data_files import write_data_file
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.batches import BatchEnd, Failure, TableChange
from mirror_pump.pipeline.flow.requests import SegmentChange, TableDelta
from mirror_pump.pipeline.stream.schema_projection import adapted
from mirror_pump.pipeline.stream.toast_completion import Completer
from mirror_pump.pipeline.stream.toast_lookup import VersionedFile
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
        self._storage = storage
        self._completer = Completer(runner, storage, connect)
        self._lake_table = lake_table
        self._written: list[str] = []
        """URIs of files with completed rows, of the batch under way."""
        self._frontier = Lsn(0)
        """F when the batch under way began, as far as known."""

    def apply(
        self, end: BatchEnd, tables: Sequence[Sequence[MirroredTable]], results: Sequence[SegmentResult]
    ) -> AppliedBatch:
        """`results[i]` is what segment i came to, `tables[i]` the tables that it was decoded for. Leaves no file of its
        own behind when it raises."""
        self._written = []
        try:
            applied = self._apply(end, tables, results)
        except BaseException:
            discard(self._written, self._storage)
            raise
        # The next batch comes when this one is published.
        self._frontier = end.end_lsn
        return applied

    def _apply(
        self, end: BatchEnd, tables: Sequence[Sequence[MirroredTable]], results: Sequence[SegmentResult]
    ) -> AppliedBatch:
        # A table that was registered anew within the batch: what belongs to the former registration does not count.
        present = _present(end, tables)
        failures = {
            failure.table.table_id: failure
            for failure in end.failures
            if failure.table.start_lsn == present.get(failure.table.table_id, failure.table).start_lsn
        }
        by_table: dict[TableId, dict[int, TableResult]] = {}
        for number, (segment, result) in enumerate(zip(tables, results, strict=True)):
            counted = {table.table_id for table in segment if table.start_lsn == present[table.table_id].start_lsn}
            for one in result.tables:
                if one.table_id not in counted:
                    continue
                by_table.setdefault(one.table_id, {})[number] = one
                if one.error is not None and one.table_id not in failures:
                    table = present[one.table_id]
                    failures[one.table_id] = Failure(table, about(str(table.name), one.error))
        truncated = {
            truncation.table_id: truncation.before
            for truncation in end.truncations
            if truncation.table.start_lsn == present[truncation.table_id].start_lsn
        }
        changes = _changes(end, present)
        deltas = []
        for table_id in sorted(by_table.keys() | truncated.keys() | changes.keys()):
            if table_id in failures:
                continue
            table, found = present[table_id], by_table.get(table_id, {})
            found = {number: _under(one, tables[number], table) for number, one in found.items()}
            try:
                delta = self._delta(table, found, truncated.get(table_id), changes.get(table_id), end.xids)
            except TableError as error:
                failures[table_id] = Failure.of(present[table_id], error)
            else:
                deltas.append(delta)
        return AppliedBatch(tuple(deltas), tuple(_as_published(failure, changes) for failure in failures.values()))

    def _delta(
        self,
        table: MirroredTable,
        results: Mapping[int, TableResult],
        truncated_before: int | None,
        change: TableChange | None,
        xids: Sequence[int],
    ) -> TableDelta:
        counted = {number: result for number, result in results.items() if number >= (truncated_before or 0)}
        emptied = truncated_before is not None or (change is not None and change.copy_again)
        changes = {number: SegmentChange(result.files, result.keys) for number, result in counted.items()}
        beside: frozenset[int] = frozenset().union(*(result.sidecars for result in counted.values()))
        heap_read_at: Lsn | None = None
        incomplete = {number: result.incomplete for number, result in counted.items() if result.incomplete is not None}
        if incomplete:
            files = {number: one.files for number, one in changes.items()}
            versions = self._versions(table, files, in_lake=not emptied)
            for completed in self._completer.complete(table, incomplete, versions, xids, self._frontier):
                heap_read_at = max(heap_read_at or Lsn(0), completed.heap_read_at or Lsn(0)) or None
                for number, rows in completed.rows.items():
                    changes[number], more = self._with_rows(table, changes[number], rows)
                    beside |= more
        return TableDelta(
            table,
            segments=tuple(changes[number] for number in sorted(changes) if not changes[number].empty),
            truncate=truncated_before is not None,
            not_live_before=heap_read_at,
            sidecars=beside,
            change=change,
            dropped=tuple(
                (sum(number < before and not one.empty for number, one in changes.items()), bounds)
                for before, bounds in (change.dropped if change is not None else ())
            ),
        )

    def _versions(self, table: MirroredTable, files: Mapping[int, SegmentFiles], in_lake: bool) -> list[VersionedFile]:
        """The files in which rows' previous versions may be. While the table is being copied, where a row may be
        without any version, those that say which versions are another row's: the deletes."""
        deletes_count = not table.state.has_all_rows
        versions = [VersionedFile(file.path, number) for number, segment in files.items() for file in segment.data]
        if deletes_count:
            versions += [
                VersionedFile(file.path, number, deletes=True)
                for number, segment in files.items()
                for file in segment.deletes
            ]
        if in_lake:
            try:
                lake = self._lake_table(table)
            except ForeignTable as error:
                raise TableError(about(str(table.name), str(error)), error.remedy) from error
            older = [(file, False) for file in lake.live_data_files()]
            if deletes_count:
                older += [(file, True) for file in lake.live_equality_deletes()]
            # Numbered below every segment, in the order of their sequence numbers.
            sequences = sorted({file.sequence_number for file, _ in older}, reverse=True)
            ranks = {sequence: rank for rank, sequence in enumerate(sequences)}
            versions += [VersionedFile(file.path, -2 - ranks[file.sequence_number], deletes) for file, deletes in older]
        return versions

    def _with_rows(
        self, table: MirroredTable, change: SegmentChange, rows: pa.Table
    ) -> tuple[SegmentChange, frozenset[int]]:
        """With completed rows, which have every sidecar; and the columns of whose sidecars something is left."""
        if not rows.num_rows:
            return change, frozenset()
        rows, schema = narrowed(rows, LakeSchema.of_table(table))
        written = write_data_file(rows, schema, table.location, self._storage)
        self._written.append(written.path)
        keys = change.keys
        if keys is not None:
            # The segment may have found other columns: then no index plans with its keys.
            packing = KeyPacking.of(schema, keys.packing.secret) or keys.packing
            keys = replace(keys, rows=(*keys.rows, row_keys(rows, schema, packing)))
        return SegmentChange(replace(change.files, data=(*change.files.data, written)), keys), raw_text_fields(schema)


def _present(end: BatchEnd, tables: Sequence[Sequence[MirroredTable]]) -> dict[TableId, MirroredTable]:
    """Each table as it is when the batch ends: a registration's last form, of the last registration."""
    present: dict[TableId, MirroredTable] = {}
    changed = list(end.changed_tables)
    for number in range(len(tables) + 1):
        while changed and changed[0].before <= number:
            table = changed.pop(0).table
            present[table.table_id] = table
        if number < len(tables):
            present |= {table.table_id: table for table in tables[number]}
    for truncation in end.truncations:
        present.setdefault(truncation.table_id, truncation.table)
    return present


def _changes(end: BatchEnd, present: Mapping[TableId, MirroredTable]) -> dict[TableId, TableChange]:
    """What the changes of each table come to, from its registration as published to how it is when the batch ends."""
    changes: dict[TableId, TableChange] = {}
    for change in end.changed_tables:
        table_id = change.table.table_id
        first = changes.get(table_id)
        connected = first is not None and first.table.start_lsn == change.former_lsn
        former_lsn = first.former_lsn if first is not None and connected else change.former_lsn
        reasons = [first.reason, change.reason] if first is not None and connected else [change.reason]
        reason = ", ".join(dict.fromkeys(reason for reason in reasons if reason))
        fills = change.fills or (first is not None and connected and first.fills)
        dropped = (*(first.dropped if first is not None and connected else ()), *change.dropped)
        changes[table_id] = replace(change, former_lsn=former_lsn, reason=reason, fills=fills, dropped=dropped)
    return {
        table_id: replace(change, table=present[table_id])
        for table_id, change in changes.items()
        if change.table.start_lsn == present[table_id].start_lsn
    }


def _as_published(failure: Failure, changes: Mapping[TableId, TableChange]) -> Failure:
    """The failure of the registration that the catalog knows: what changed in the batch is not published."""
    change = changes.get(failure.table.table_id)
    if change is None:
        return failure
    return replace(failure, table=replace(failure.table, start_lsn=change.former_lsn))


def _under(result: TableResult, segment: Sequence[MirroredTable], table: MirroredTable) -> TableResult:
    """A segment's result with its incomplete rows under the columns that the table has when the batch ends."""
    former = next(one for one in segment if one.table_id == table.table_id)
    if result.incomplete is None or former.columns == table.columns:
        return result
    return replace(result, incomplete=adapted(result.incomplete, former, table))
