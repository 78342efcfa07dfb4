"""What a decoded batch brings to each table, and what its publish does with that. Values and pure functions: what has
to be looked up or written for it is the work of `mirror_pump.pipeline.stream.batch_planning`.

If a table is registered again within a batch, nothing of its former registration counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from decoders.change_events import SegmentTransactions
from decoders.incomplete_rows import IncompleteRows
from mirror_pump.engine.ingest.segment_tasks import TableResult
from mirror_pump.errors import FileMissing, TableError, about
from mirror_pump.lake.format.initial_defaults import initial_scalar
from mirror_pump.model import Column, Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.batches import BatchEnd, DecodedBatch, Truncation
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.combinations import TableOperation, schema_operation
from mirror_pump.pipeline.operations.operation import SegmentChange
from mirror_pump.pipeline.operations.requests import TableRequest
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.operations.truncate import Truncate


@dataclass(frozen=True)
class DecodedSegment:
    """What a segment brings to a table."""

    result: TableResult
    table: MirroredTable
    """The table as it was decoded for."""
    transactions: SegmentTransactions | None = None
    """Those of the segment."""

    @property
    def feed_rows(self) -> IncompleteRows | None:
        """Rows of the change feed that lack values."""
        return None if self.result.feed is None else self.result.feed.incomplete

    def under(self, table: MirroredTable) -> DecodedSegment:
        """The segment with its incomplete rows projected onto the columns of `table`."""
        if self.table.columns == table.columns:
            return self
        result = self.result
        if result.incomplete is not None:
            result = replace(result, incomplete=project_rows(result.incomplete, self.table, table))
        if result.feed is not None and result.feed.incomplete is not None:
            feed = replace(result.feed, incomplete=project_rows(result.feed.incomplete, self.table, table))
            result = replace(result, feed=feed)
        return replace(self, result=result, table=table)


@dataclass(frozen=True)
class DecodedTable:
    """What a batch brings to a table."""

    table: MirroredTable
    """As it is when the batch ends."""
    segments: Mapping[int, DecodedSegment] = field(default_factory=dict)
    """By number, in stream order."""
    truncations: tuple[Truncation, ...] = ()
    change: TableChange | None = None
    """Its changes, as one."""

    @property
    def emptied_before(self) -> int:
        """Number of the first segment whose rows no TRUNCATE removes."""
        return max((truncation.before for truncation in self.truncations), default=0)

    @property
    def counted(self) -> dict[int, TableResult]:
        """What the segments bring that no TRUNCATE empties, by number."""
        return {number: part.result for number, part in self.segments.items() if number >= self.emptied_before}

    @property
    def emptied(self) -> bool:
        """Whether no row of earlier batches stays."""
        return bool(self.truncations) or self._copied_again

    @property
    def has_live_feed(self) -> bool:
        """Whether the batch's changes go to a change feed."""
        return self.table.feed is not None and self.table.state is TableState.LIVE and not self._copied_again

    @property
    def _copied_again(self) -> bool:
        return self.change is not None and self.change.copy_again

    def require_decoded(self) -> None:
        """Raises TableError if a segment could not be decoded for the table, FileMissing if its files could not be
        written."""
        for segment in self.segments.values():
            if segment.result.error is not None:
                raise TableError(about(str(self.table.name), segment.result.error))
            if segment.result.missing is not None:
                location = segment.result.missing
                raise FileMissing(f"{location} could not be written", "", location)

    def projected(self) -> DecodedTable:
        """The same with the rows of all segments under the table's columns at the end of the batch."""
        return replace(self, segments={number: part.under(self.table) for number, part in self.segments.items()})

    def failed(self, failure: Failure) -> Failure:
        """The failure of the registration in the catalog: the batch's change of the table is not published."""
        if self.change is None:
            return failure
        return replace(failure, table=replace(failure.table, start_lsn=self.change.former_lsn))

    def request(
        self, changes: Mapping[int, SegmentChange], raw_text_columns: frozenset[int], heap_read_at: Lsn | None
    ) -> TableRequest:
        """What the publish does to the table. `changes`: those of the counted segments, with completed rows.
        `raw_text_columns` and `heap_read_at`: as of ApplyStream."""
        brought = {number: change for number, change in sorted(changes.items()) if not change.empty}
        operations: list[TableOperation] = [ApplyStream(tuple(brought.values()), raw_text_columns, heap_read_at)]
        if self.truncations:
            operations.append(Truncate())
        if self.change is not None:
            dropped = [(sum(number < before for number in brought), bounds) for before, bounds in self.change.dropped]
            kept_before = sum(number < self.change.kept_before for number in brought)
            operations.append(schema_operation(replace(self.change, kept_before=kept_before), dropped))
        return TableRequest(self.table, tuple(operations))


def decoded_tables(batch: DecodedBatch) -> tuple[list[DecodedTable], list[Failure]]:
    """What a batch brings to each table, by ID, but for those that the stream fails; and their failures."""
    end = batch.end
    final_tables = _final_tables(batch)
    changes = _changes(end, final_tables)
    segments: dict[TableId, dict[int, DecodedSegment]] = {}
    for number, (tables, result) in enumerate(zip(batch.tables, batch.results, strict=True)):
        decoded_for = {table.table_id: table for table in tables if _counts(table, final_tables)}
        for part in result.tables:
            if part.table_id in decoded_for:
                segment = DecodedSegment(part, decoded_for[part.table_id], result.transactions)
                segments.setdefault(part.table_id, {})[number] = segment
    truncations = [truncation for truncation in end.truncations if _counts(truncation.table, final_tables)]
    decoded = {
        table_id: DecodedTable(
            final_tables[table_id],
            segments.get(table_id, {}),
            tuple(truncation for truncation in truncations if truncation.table_id == table_id),
            changes.get(table_id),
        )
        for table_id in sorted(segments.keys() | {truncation.table_id for truncation in truncations} | changes.keys())
    }
    failures = {failure.table.table_id: failure for failure in end.failures if _counts(failure.table, final_tables)}
    return (
        [table for table_id, table in decoded.items() if table_id not in failures],
        [decoded[key].failed(failure) if key in decoded else failure for key, failure in failures.items()],
    )


def _counts(table: MirroredTable, final_tables: Mapping[TableId, MirroredTable]) -> bool:
    """Whether this is the table's last registration in the batch."""
    return table.start_lsn == final_tables.get(table.table_id, table).start_lsn


def _final_tables(batch: DecodedBatch) -> dict[TableId, MirroredTable]:
    """Each table as it is when the batch ends: the final state of its last registration."""
    final_tables = {truncation.table_id: truncation.table for truncation in batch.end.truncations}
    changed = list(batch.end.changed_tables)
    for number, tables in enumerate([*batch.tables, ()]):
        while changed and changed[0].before <= number:
            table = changed.pop(0).table
            final_tables[table.table_id] = table
        final_tables |= {table.table_id: table for table in tables}
    return final_tables


def _changes(end: BatchEnd, final_tables: Mapping[TableId, MirroredTable]) -> dict[TableId, TableChange]:
    """Combine the changes of each table, from its published registration to its state when the batch ends."""
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
        remedy = change.remedy or (first.remedy if first is not None and connected else "")
        combined = change.with_kept_of(first) if first is not None and connected else change
        changes[table_id] = replace(
            combined, former_lsn=former_lsn, reason=reason, remedy=remedy, fills=fills, dropped=dropped
        )
    return {
        table_id: replace(change, table=final_tables[table_id])
        for table_id, change in changes.items()
        if change.table.start_lsn == final_tables[table_id].start_lsn
    }


def project_rows(rows: IncompleteRows, old_table: MirroredTable, table: MirroredTable) -> IncompleteRows:
    """Project `rows`, which have the columns of `old_table`, onto the columns of `table`.

    Columns are renamed, dropped and widened. New columns hold NULL or the value that existing rows have in them. Only
    rows that are not written yet need this: readers find columns in files by field ID, or the files are filled.
    """
    before = {column.field_id: column.name for column in old_table.columns}

    def cells(source: pa.Table, column: Column, absent: pa.Scalar) -> pa.ChunkedArray:
        name = before.get(column.field_id)
        if name is None:
            return pa.chunked_array([pa.repeat(absent, source.num_rows)])
        return source.column(name).cast(absent.type)

    def keys(source: pa.Table) -> pa.Table:
        names = [column.name for column in table.key_columns]
        nulls = [pa.scalar(None, column.type.arrow) for column in table.key_columns]
        return pa.table(
            [cells(source, column, null) for column, null in zip(table.key_columns, nulls, strict=True)], names=names
        )

    names = [column.name for column in table.columns]
    later = {column.field_id: column.name for column in table.columns}
    return IncompleteRows(
        rows=pa.table([cells(rows.rows, column, initial_scalar(column)) for column in table.columns], names=names),
        raw={
            later[column.field_id]: rows.raw[column.name]
            for column in old_table.columns
            if column.name in rows.raw and column.field_id in later
        },
        missing=pa.table([cells(rows.missing, column, pa.scalar(False)) for column in table.columns], names=names),  # noqa: FBT003
        lookup_keys=keys(rows.lookup_keys),
    )
