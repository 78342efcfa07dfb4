"""The changes of a segment as rows of a change feed: every change in stream order, not the net effect.

An UPDATE that changes the key is two events: the row of the old key is deleted, and the new row is inserted. The values
of an event are the cells that the net effect is made of too, so they are found, and parsed, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from decoders.incomplete_rows import IncompleteRows, RawTexts
from decoders.tuples import DELETE, INSERT, Bools, Bytes, Changes, Ints

OP_INSERT, OP_UPDATE, OP_DELETE = range(3)
OPS = pa.array(["insert", "update", "delete"])
"""Names of what an event did, by number."""

HEAD_SCHEMA = pa.schema(
    [
        ("_op", pa.string()),
        ("_lsn", pa.int64()),
        ("_seq", pa.int64()),
        ("_xid", pa.int64()),
        ("_committed_at", pa.timestamp("us", tz="UTC")),
        ("_origin", pa.string()),
    ]
)
"""What every event has, besides the columns of its table."""


@dataclass(frozen=True)
class SegmentTransactions:
    """The transactions of a segment's messages, in stream order. Picklable."""

    begins: Ints
    """Index in the segment of each one's first message there. The first is 0."""
    lsns: Ints
    """Position at which the commit record begins."""
    xids: Ints
    committed_at: Ints
    """Microseconds since 1970 UTC."""
    rows_before: Ints
    """Row changes of the transaction before its first message in the segment."""
    origins: tuple[str | None, ...]
    """Names of the replication origins; None for a transaction of this server."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return 5 * self.begins.nbytes + 8 * len(self.origins)

    def of_messages(self, messages: Ints) -> Ints:
        """The index of the transaction of each message, given by its index in the segment; these ascend."""
        if not len(messages):
            return np.zeros(0, np.int64)
        limits = np.searchsorted(messages, self.begins)
        return np.repeat(np.arange(len(self.begins)), np.diff(np.append(limits, len(messages))))

    def heads(self, transactions: Ints, ops: Ints, messages: Ints, seconds: Bools) -> pa.Table:
        """What the events have besides columns. `transactions`: the indexes of theirs. `messages`: their indexes in the
        segment. `seconds`: whether the event is the insertion of an UPDATE that changes the key."""
        seqs = 2 * (self.rows_before[transactions] + messages - self.begins[transactions]) + seconds
        if self.origins.count(None) < len(self.origins):
            origins = pa.array(self.origins, pa.string()).take(pa.array(transactions))
        else:
            origins = pa.nulls(len(transactions), pa.string())
        columns = [
            OPS.take(pa.array(ops)),
            pa.array(self.lsns[transactions]),
            pa.array(seqs),
            pa.array(self.xids[transactions]),
            pa.array(self.committed_at[transactions]).cast(HEAD_SCHEMA.field("_committed_at").type),
            origins,
        ]
        return pa.table(columns, schema=HEAD_SCHEMA)


@dataclass(frozen=True)
class OldRows:
    """The old rows of events. Those of events without one are all NULL."""

    rows: pa.Table
    raw: RawTexts
    sent: Bools
    """Whether the event has an old row."""


@dataclass(frozen=True)
class ChangeEvents:
    """The events of one relation in a segment, in stream order."""

    heads: pa.Table
    """Of schema HEAD_SCHEMA."""
    rows: pa.Table
    """The columns of the relation: the new row, or of a deletion the key, with NULL in all other columns."""
    raw: RawTexts
    """Raw text of `rows`."""
    counts: Ints
    """Number of events by transaction of the segment, those of `incomplete` included."""
    old: OldRows | None = None
    """If old rows were asked for."""
    incomplete: IncompleteRows | None = None
    """New rows with values that are not in the segment, whose events are not in `rows`."""
    incomplete_heads: pa.Table = field(default_factory=HEAD_SCHEMA.empty_table)
    """Of schema HEAD_SCHEMA, for each of the incomplete rows."""


@dataclass(frozen=True)
class EventOrder:
    """Which events a relation's messages are."""

    messages: Ints
    """By event, the message, counted among those of the relation."""
    ops: Ints
    seconds: Bools
    """Whether it is the second event of its message."""

    @classmethod
    def of(cls, tags: Bytes, key_changed: Bools) -> EventOrder:
        """`key_changed`: by message, whether it is an UPDATE that changes the key."""
        each = 1 + key_changed.astype(np.int64)
        messages = np.repeat(np.arange(len(tags)), each)
        seconds = np.zeros(len(messages), np.bool_)
        seconds[np.cumsum(each)[key_changed] - 1] = True
        own_tags, changes_key = tags[messages], key_changed[messages]
        ops = np.full(len(messages), OP_UPDATE, np.int64)
        ops[(own_tags == INSERT) | seconds] = OP_INSERT
        ops[(own_tags == DELETE) | (changes_key & ~seconds)] = OP_DELETE
        return cls(messages, ops, seconds)

    def new_places(self, changes: Changes) -> Ints:
        """By event, the index of its new tuple; -1 for a deletion."""
        return np.where(self.ops == OP_DELETE, -1, changes.new_places[self.messages])

    def old_places(self, changes: Changes) -> Ints:
        """By event, the index of its old tuple; -1 if it has none."""
        return np.where(self.ops == OP_INSERT, -1, changes.old_places[self.messages])


def taken_or_null(columns: pa.Table, places: Ints) -> pa.Table:
    """The rows at these places; all NULL where the place is -1."""
    if len(places) == columns.num_rows and (places == np.arange(len(places))).all():
        return columns
    return columns.take(pa.array(places, mask=places < 0))


def raw_or_null(raw: RawTexts, places: Ints) -> dict[str, pa.ChunkedArray]:
    """Raw texts at these places, without columns that have none."""
    indexes = pa.array(places, mask=places < 0)
    texts = {name: column.take(indexes) for name, column in raw.items()}
    return {name: column for name, column in texts.items() if column.null_count < len(column)}
