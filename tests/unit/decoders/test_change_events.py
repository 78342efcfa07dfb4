"""Random streams, cut anywhere: the events of a segment are all changes of each table, in stream order, with the row
that the table had after each, and the net effect is what it is without them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.change_events import ChangeEvents, SegmentTransactions
from decoders.segment import TableChanges, decode_segment
from tests.support import pgoutput_encoder as encoder
from tests.unit.decoders.test_segment_properties import STREAMS, Row, ShapedTable, Stream, completed, texts

Event = tuple[int, int, str, Row, Row | None]
"""Position, sequence, name, row, old row."""


def transactions_of(random: Random, messages: int) -> SegmentTransactions:
    """Cuts the messages into transactions. The first may have begun before."""
    begins = sorted({0, *(random.randrange(max(messages, 1)) for _ in range(random.randrange(5)))})
    count = len(begins)
    return SegmentTransactions(
        begins=np.array(begins),
        lsns=np.arange(count) * 100 + 1000,
        xids=np.arange(count) + 7,
        committed_at=np.arange(count) * 1_000_000,
        rows_before=np.array([random.randrange(5), *[0] * (count - 1)]),
        origins=tuple(random.choice([None, "elsewhere"]) for _ in range(count)),
    )


def expected_events(table: ShapedTable, stream: Stream, low: int, high: int, heads: SegmentTransactions) -> list[Event]:
    """What the model says happened to the table."""
    relation, events = table.shape.relation_id, list[Event]()
    for place in range(high - low):
        change = stream.changes[low + place]
        if change is None or change.relation != relation:
            continue
        before, after = stream.known[low + place][relation], stream.known[low + place + 1][relation]
        own = max(index for index, begin in enumerate(heads.begins) if begin <= place)
        lsn = int(heads.lsns[own])
        seq = 2 * int(heads.rows_before[own] + place - heads.begins[own])
        old = None if change.old_key is None or not table.shape.old_rows else before[change.old_key]
        new_key = None
        if change.cells is not None:
            (new_key,) = [key for key, row in after.items() if before.get(key) is not row]
        gone: Row = ()
        if change.old_key is not None:
            key = dict(zip(table.shape.key, change.old_key, strict=True))
            gone = tuple(key.get(column) for column in range(len(table.shape.names)))
        if new_key is None:
            events.append((lsn, seq, "delete", gone, old))
        elif change.old_key is None:
            events.append((lsn, seq, "insert", after[new_key], None))
        elif change.old_key == new_key:
            events.append((lsn, seq, "update", after[new_key], old))
        else:
            events.append((lsn, seq, "delete", gone, old))
            events.append((lsn, seq + 1, "insert", after[new_key], None))
    return events


def decoded_events(events: ChangeEvents, before: dict[Any, Row]) -> list[Event]:
    old: list[Row | None] = [None] * events.heads.num_rows
    if events.old is not None:
        old = [row if present else None for row, present in zip(texts(events.old.rows), events.old.sent, strict=True)]
    result = [
        (head["_lsn"], head["_seq"], head["_op"], row, old_row)
        for head, row, old_row in zip(events.heads.to_pylist(), texts(events.rows), old, strict=True)
    ]
    assert result == sorted(result, key=lambda event: event[:2]), "they are in stream order"
    result += [
        (head["_lsn"], head["_seq"], head["_op"], row, None)
        for head, row in zip(events.incomplete_heads.to_pylist(), completed(events.incomplete, before), strict=True)
    ]
    return sorted(result, key=lambda event: event[:2])


def net_effect(result: TableChanges) -> list[Any]:
    parts = [result.rows, result.deleted_keys]
    if result.incomplete is not None:
        parts += [result.incomplete.rows, result.incomplete.missing, result.incomplete.lookup_keys]
    return [part.to_pylist() for part in parts]


@settings(max_examples=400)
@given(STREAMS, st.randoms(use_true_random=True))
def test_events_are_all_changes_in_order(stream: Stream, random: Random) -> None:
    for table in stream.tables:
        table.shape = replace(table.shape, events=True, old_rows=table.full)
    low, high = sorted(random.choices(range(len(stream.messages) + 1), k=2))
    shapes = {table.shape.relation_id: table.shape for table in stream.tables}
    plain = {relation: replace(shape, events=False, old_rows=False) for relation, shape in shapes.items()}
    heads = transactions_of(random, high - low)
    data, lengths = encoder.segment(stream.messages[low:high])
    results = decode_segment(data, lengths, shapes, transactions=heads)
    for result, without in zip(results, decode_segment(data, lengths, plain), strict=True):
        assert result.error is None
        assert net_effect(result) == net_effect(without)
        assert without.events is None
    by_relation = {result.relation_id: result for result in results}
    for table in stream.tables:
        expected = expected_events(table, stream, low, high, heads)
        if not expected:
            continue
        events = by_relation[table.shape.relation_id].events
        assert events is not None
        assert decoded_events(events, stream.known[low][table.shape.relation_id]) == expected
        counts = [sum(event[0] == lsn for event in expected) for lsn in heads.lsns]
        assert events.counts.tolist() == counts
        for head in events.heads.to_pylist():
            own = heads.lsns.tolist().index(head["_lsn"])
            assert head["_xid"] == heads.xids[own]
            assert head["_origin"] == heads.origins[own]
            assert head["_committed_at"].timestamp() == heads.committed_at[own] / 1e6


def test_old_rows_that_the_server_did_not_send_are_an_error() -> None:
    stream = Stream([])
    shape = replace(_shape(), events=True, old_rows=True)
    stream.messages = [encoder.update(1, ["1", "b"], None)]
    data, lengths = encoder.segment(stream.messages)
    (result,) = decode_segment(data, lengths, {1: shape}, transactions=transactions_of(Random(1), 1))
    assert result.error is not None
    assert "REPLICA IDENTITY FULL" in result.error
    assert not result.rows.num_rows


def _shape() -> Any:
    from decoders.columns import ColumnType
    from decoders.segment import RelationShape

    types = (ColumnType.parse("int"), ColumnType.parse("string"))
    return RelationShape(1, ("id", "v"), types, (0,), (True, False), every_key_deletes=False)
