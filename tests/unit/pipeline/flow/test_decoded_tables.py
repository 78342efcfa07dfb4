"""What of a batch counts for each table, and what its publish does: values in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mirror_pump.engine.ingest.segment_tasks import SegmentResult, TableResult
from mirror_pump.errors import FileMissing, TableError
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.model import FeedMode, Lsn, MirroredTable, TableFeed, TableId, TableState
from mirror_pump.pipeline.flow.batches import BatchEnd, DecodedBatch, StreamTransaction, Truncation
from mirror_pump.pipeline.flow.decoded_tables import DecodedTable, decoded_tables
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.change_columns import ChangeColumns
from mirror_pump.pipeline.operations.copy_again import CopyAgain
from mirror_pump.pipeline.operations.fill_columns import FillColumns
from mirror_pump.pipeline.operations.operation import SegmentChange
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.operations.truncate import Truncate
from tests.unit.pipeline.operations_support import TABLE

AGAIN = replace(TABLE, start_lsn=Lsn(60))
"""TABLE, copied again."""
OTHER = replace(TABLE, table_id=TableId(7), start_lsn=Lsn(10))
RENAMED = replace(TABLE, columns=(replace(TABLE.columns[0], name="number"),), key=("number",))
BOUNDS = PartitionBounds(1, 0, 10)


def brought(table: MirroredTable, rows: int = 1, error: str | None = None, missing: str | None = None) -> TableResult:
    file = WrittenFile(FileContent.DATA, "file:///f", rows, 10, {}, {}, {}, {}, {})
    return TableResult(table.table_id, rows, SegmentFiles((file,) if rows else (), ()), None, error, missing=missing)


def truncation(table: MirroredTable, before: int) -> Truncation:
    return Truncation(table, before, StreamTransaction(Lsn(1), 1, 1), 0)


def batch(
    *segments: Sequence[tuple[MirroredTable, TableResult]],
    truncations: Sequence[Truncation] = (),
    failures: Sequence[Failure] = (),
    changes: Sequence[TableChange] = (),
) -> DecodedBatch:
    end = BatchEnd(Lsn(99), 1, len(segments), 1, 1, tuple(truncations), tuple(failures), tuple(changes))
    results = tuple(SegmentResult(tuple(result for _, result in segment), 1.0, 2.0) for segment in segments)
    return DecodedBatch(end, tuple(tuple(table for table, _ in segment) for segment in segments), results, 0.0)


def one(*segments: MirroredTable, **more: Sequence[object]) -> DecodedTable:
    """The only table of a batch that brings it a row by each of these segments."""
    (table,), failures = decoded_tables(batch(*([(table, brought(table))] for table in segments), **more))  # type: ignore[arg-type]
    assert failures == []
    return table


@pytest.mark.parametrize(
    ("before", "counted", "emptied"),
    [((), [0, 1, 2], False), ((0,), [0, 1, 2], True), ((1,), [1, 2], True), ((1, 2), [2], True), ((3,), [], True)],
)
def test_what_comes_before_a_truncate_does_not_count(
    before: tuple[int, ...], counted: list[int], *, emptied: bool
) -> None:
    table = one(TABLE, TABLE, TABLE, truncations=[truncation(TABLE, number) for number in before])
    assert (list(table.counted), table.emptied, list(table.segments)) == (counted, emptied, [0, 1, 2])
    changes = {number: SegmentChange(result.files) for number, result in table.counted.items()}
    operations = table.request(changes, frozenset(), None)
    assert (operations.get(Truncate) is not None) == emptied
    stream = operations.get(ApplyStream)
    assert stream is not None
    assert len(stream.segments) == len(counted)


def test_a_former_registration_does_not_count() -> None:
    change = TableChange(AGAIN, TABLE.start_lsn, 1, "it was altered")
    table = one(
        TABLE, AGAIN, truncations=[truncation(TABLE, 1)], failures=[Failure(TABLE, "too late")], changes=[change]
    )
    assert (list(table.segments), table.truncations, table.table, table.change) == ([1], (), AGAIN, change)
    assert table.emptied
    assert table.request({}, frozenset(), None).get(CopyAgain) is not None
    failure = table.failed(Failure(AGAIN, "no"))
    assert failure.table.start_lsn == TABLE.start_lsn, "the catalog has the registration from before the batch"


def test_a_table_that_the_stream_fails_is_not_planned() -> None:
    change = TableChange(AGAIN, TABLE.start_lsn, 0)
    tables, failures = decoded_tables(
        batch(
            [(AGAIN, brought(AGAIN)), (OTHER, brought(OTHER))],
            failures=[Failure(AGAIN, "it has no key"), Failure(replace(TABLE, table_id=TableId(8)), "it is gone")],
            changes=[change],
        )
    )
    assert [table.table for table in tables] == [OTHER]
    assert [(failure.table.table_id, failure.table.start_lsn) for failure in failures] == [
        (TABLE.table_id, TABLE.start_lsn),
        (TableId(8), TABLE.start_lsn),
    ]


@pytest.mark.parametrize(
    ("results", "error"),
    [
        ([brought(TABLE, error="no value"), brought(TABLE, missing="file:///x")], TableError),
        ([brought(TABLE, missing="file:///x"), brought(TABLE, error="no value")], FileMissing),
        ([brought(TABLE), brought(TABLE)], None),
    ],
)
def test_the_first_segment_that_fails_says_why(results: list[TableResult], error: type[Exception] | None) -> None:
    (table,), _ = decoded_tables(batch(*([(TABLE, result)] for result in results)))
    if error is None:
        table.require_decoded()
    else:
        with pytest.raises(error, match=r"no value|file:///x could not be written"):
            table.require_decoded()


def test_the_changes_of_a_batch_are_one_change() -> None:
    first = TableChange(RENAMED, TABLE.start_lsn, 0, "a", fills=True, dropped=((1, BOUNDS),))
    second = replace(first, before=2, reason="b", fills=False, dropped=((2, BOUNDS),))
    table = one(TABLE, RENAMED, RENAMED, changes=[first, second])
    assert table.change == replace(second, reason="a, b", fills=True, dropped=((1, BOUNDS), (2, BOUNDS)))
    assert table.table == RENAMED
    changes = {number: SegmentChange(result.files) for number, result in table.counted.items()}
    changes[0] = SegmentChange(SegmentFiles((), ()))
    fill = table.request(changes, frozenset(), None).get(FillColumns)
    assert fill is not None
    assert [number for number, _ in fill.dropped] == [0, 1], "empty segments are not counted"
    renamed = one(TABLE, changes=[replace(second, dropped=())])
    assert renamed.request({}, frozenset(), None).get(ChangeColumns) is not None


@pytest.mark.parametrize(
    ("state", "again", "is_live"),
    [(TableState.LIVE, False, True), (TableState.COPYING, False, False), (TableState.LIVE, True, False)],
)
def test_the_feed_of_a_live_table_gets_changes(state: TableState, *, again: bool, is_live: bool) -> None:
    feed = TableFeed(FeedMode.ROWS, "file:///lake/feed")
    table = replace(AGAIN if again else TABLE, state=state, feed=feed)
    decoded = DecodedTable(table, change=TableChange(table, TABLE.start_lsn, 0))
    assert decoded.has_live_feed == is_live
    assert not replace(decoded, table=replace(table, feed=None)).has_live_feed
