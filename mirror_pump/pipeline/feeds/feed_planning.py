"""What a batch brings to the change feed of one table: what tasks wrote, rows that lacked values, and TRUNCATEs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from decoders.change_events import HEAD_SCHEMA, SegmentTransactions
from decoders.incomplete_rows import IncompleteRows
from decoders.tuples import Ints
from mirror_pump.engine.ingest.feed_files import in_order, without_empty, write_feed_rows
from mirror_pump.lake.format.raw_text_columns import every_raw_text, is_raw_text, raw_text_id
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StagedFiles, StorageOptions
from mirror_pump.pipeline.flow.batches import Truncation
from mirror_pump.pipeline.flow.decoded_tables import DecodedTable
from mirror_pump.pipeline.operations.append_changes import COUNT, COUNT_SCHEMA, AppendChanges

_NUMBER = ""
"""The column, in rows to be completed, of their number among those of the segment. No column of PostgreSQL can have
this name."""


def plan_feed(
    decoded: DecodedTable,
    complete: Callable[[int, IncompleteRows, Callable[[pa.Table], None]], None],
    storage: StorageOptions,
    written: StagedFiles,
) -> AppendChanges | None:
    """What the batch brings to the feed of a table; None if it has none. The rows have the table's columns at the end
    of the batch. `complete` looks up the missing values of a segment's rows, and hands on the rows with every raw text
    column, part by part. `written` owns the files that are written here."""
    feed, truncations = decoded.table.feed, decoded.truncations
    if feed is None:
        return None
    parts = [segment.result.feed for segment in decoded.segments.values()]
    if None in parts:
        return AppendChanges(tuple(file for part in parts if part for file in part.files), is_whole=False)
    columns = LakeSchema.of_table(decoded.table)
    results, counts = [], []
    extra: list[tuple[pa.Table, pa.Table]] = [_truncated_rows(truncations, columns)] if truncations else []
    for number, segment in sorted(decoded.segments.items()):
        part = segment.result.feed
        assert part is not None
        assert segment.transactions is not None
        results.append(part.written)
        counts.append(_counts(segment.transactions, part.counts))
        if part.incomplete is not None:
            complete(number, _numbered(part.incomplete), partial(_add, extra, part.incomplete_heads))
    if truncations:
        counts.append(_truncated_counts(truncations))
    if extra:
        names = [field.name for field in every_raw_text(columns).fields]
        heads, (rows,) = in_order(
            pa.concat_tables([heads for heads, _ in extra]),
            [pa.concat_tables([rows.select(names) for _, rows in extra])],
        )
        results.append(write_feed_rows(heads, rows, _raw_of(rows, columns), None, columns, feed, storage))
        written.add(*(file.path for file in results[-1].files))
    return AppendChanges(
        tuple(file for result in results for file in result.files),
        _all_ids(result.raw_text for result in results),
        _all_ids(result.old_raw_text for result in results),
        counts,
    )


def _all_ids(several: Iterable[frozenset[int]]) -> frozenset[int]:
    ids: frozenset[int] = frozenset()
    return ids.union(*several)


def _add(extra: list[tuple[pa.Table, pa.Table]], heads: pa.Table, rows: pa.Table) -> None:
    extra.append((heads.take(rows.column(_NUMBER)), rows))


def _numbered(incomplete: IncompleteRows) -> IncompleteRows:
    count = incomplete.rows.num_rows
    return IncompleteRows(
        incomplete.rows.append_column(_NUMBER, pa.array(np.arange(count))),
        incomplete.raw,
        incomplete.missing.append_column(_NUMBER, pa.array(np.zeros(count, bool))),
        incomplete.lookup_keys,
    )


def _raw_of(rows: pa.Table, columns: LakeSchema) -> dict[str, pa.ChunkedArray]:
    """The raw texts of rows with every raw text column, by the name of their column."""
    names = {raw_text_id(field.field_id): field.name for field in columns.fields}
    raw = {
        names[field.field_id]: rows.column(field.name) for field in every_raw_text(columns).fields if is_raw_text(field)
    }
    return without_empty(raw)


def _counts(transactions: SegmentTransactions, counts: Ints) -> pa.Table:
    places = np.flatnonzero(counts)
    columns = [
        pa.array(transactions.lsns[places]),
        pa.array(transactions.xids[places]),
        pa.array(transactions.committed_at[places]).cast(COUNT_SCHEMA.field("_committed_at").type),
        pa.array(transactions.origins, pa.string()).take(pa.array(places)),
        pa.array(counts[places].astype(np.int64)),
    ]
    return pa.table(columns, schema=COUNT_SCHEMA)


def _truncated_heads(truncations: Sequence[Truncation]) -> pa.Table:
    rows = [
        {
            "_op": "truncate",
            "_lsn": truncation.transaction.final_lsn,
            "_seq": 2 * truncation.number,
            "_xid": truncation.transaction.xid,
            "_committed_at": truncation.transaction.commit_time_us,
            "_origin": truncation.transaction.origin,
        }
        for truncation in truncations
    ]
    return pa.Table.from_pylist(rows, schema=HEAD_SCHEMA)


def _truncated_rows(truncations: Sequence[Truncation], columns: LakeSchema) -> tuple[pa.Table, pa.Table]:
    schema = every_raw_text(columns).arrow
    nulls = [pa.nulls(len(truncations), field.type) for field in schema]
    return _truncated_heads(truncations), pa.table(nulls, names=schema.names)


def _truncated_counts(truncations: Sequence[Truncation]) -> pa.Table:
    heads = _truncated_heads(truncations)
    ones = pa.array(np.ones(len(truncations), np.int64))
    return pa.table([*(heads.column(name) for name in COUNT_SCHEMA.names if name != COUNT), ones], schema=COUNT_SCHEMA)
