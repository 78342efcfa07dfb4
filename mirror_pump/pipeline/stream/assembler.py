"""Divides the stream into segments and batches. Protocol logic without I/O: it is fed messages and emits work.

A batch holds whole transactions. Its segments are consecutive slices of the stream. They may end anywhere, even inside
a transaction. A segment is emitted as soon as it is full, long before its batch closes. pgoutput sends a transaction
only after it has committed, so nothing that was emitted can be rolled back, and memory use stays constant however large
a transaction is.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from decoders.messages import (
    RelationMessage,
    parse_begin,
    parse_commit,
    parse_logical_message,
    parse_origin,
    parse_relation,
    parse_truncate,
)
from mirror_pump.errors import about, with_remedy
from mirror_pump.lake.contents.kept_ranges import TierRanges
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.batches import BatchEnd, Segment, StreamTransaction, Truncation
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.schema.comparable_rows import rows_are_comparable
from mirror_pump.pipeline.schema.decisions import Action, SchemaChangeDecision
from mirror_pump.pipeline.schema.schema_change import rows_of
from mirror_pump.pipeline.stream.segment_transactions import OpenTransactions
from mirror_pump.pipeline.stream.stream_tables import StreamTables, difference_from
from mirror_pump.runtime.table_work import is_of_one_table, unexpected
from mirror_pump.source.relations.change_notes import PREFIX, Note, NoteReader
from mirror_pump.source.stream.message_block import FRAME_BYTES, HEADER_BYTES, MessageBlock
from sql.mirror_names import SCHEMA, of_mirror

_BEGIN, _COMMIT, _RELATION, _TRUNCATE, _MESSAGE, _ORIGIN = b"BCRTMO"
_RELATION_ID = struct.Struct(">I")
WAIT_PREFIX = f"{SCHEMA}.wait"
"""Prefix, marked, of the logical messages that modak.wait_for() emits. Their content is the wanted frontier: a WAL
position in hexadecimal digits."""


@dataclass(frozen=True)
class Limits:
    """When segments and batches close."""

    segment_bytes: int
    batch_bytes: int
    row_bytes: int = 1 << 30
    """A row change of more bytes than this fails its table. The server sends none beyond 1 GB."""


@dataclass
class _OpenBatch:
    """What the open batch has collected so far."""

    segments: int = 0
    changes: int = 0
    transactions: int = 0
    size: int = 0
    commit_time_us: int = 0
    truncations: list[Truncation] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    changed_tables: list[TableChange] = field(default_factory=list)
    xids: array[int] = field(default_factory=lambda: array("I"))

    @property
    def empty(self) -> bool:
        return not (self.changes or self.truncations or self.failures or self.changed_tables)


class Assembler:
    """Takes messages in stream order. `emit` receives the segments, `close()` returns the batch's end.

    `lookup(relation_id)` returns the table's current registration, None if the relation is not mirrored. It is called
    at every Relation message. Postgres sends one before the first change after a publication or schema change, so a
    registration that was added, removed or replaced is seen before the first change that it concerns.

    `decide(table, note)` decides what to do about a table that one of the pump's notes describes
    (mirror_pump.source.relations.change_notes). The notes of a transaction are combined. They are handled at the
    table's next Relation message, which comes before its next change, or at the commit. So a key that is dropped and
    created again in between was never missing. From then on the table as decided counts, not the catalog's row, because
    publishes are behind the stream. A table that is copied again gets the transaction's position as its start LSN, as
    if it had just been registered. A table that awaits its description continues only with a note that is `settled`,
    whatever earlier notes say.

    `isolated_transaction` is the LSN of the commit of a transaction that the server cannot send whole. It gets its own
    batch, which ends with `skip_transaction` once the server gives up. `request_frontier(lsn)` is called with each
    position at which a client wants the frontier. The stream has the messages of all mirrors of the database; those of
    others than `mirror` are passed over.
    """

    def __init__(
        self,
        limits: Limits,
        applied: Lsn,
        lookup: Callable[[int], MirroredTable | None],
        emit: Callable[[Segment], None],
        barrier: Lsn | None = None,
        decide: Callable[[MirroredTable, Note], SchemaChangeDecision] = lambda table, _: SchemaChangeDecision(
            Action.WAIT, table, "it was altered"
        ),
        isolated_transaction: Lsn | None = None,
        request_frontier: Callable[[Lsn], None] = lambda _: None,
        *,
        read_note: NoteReader,
        mirror: str | None = None,
    ) -> None:
        self._limits = limits
        self._tables = StreamTables(lookup)
        self._emit = emit
        self._decide = decide
        self._request_frontier = request_frontier
        self._read_note = read_note
        self._wait_prefix, self._note_prefix = of_mirror(WAIT_PREFIX, mirror), of_mirror(PREFIX, mirror)
        self._barrier = barrier
        self._isolated_transaction = isolated_transaction
        self._applied = applied
        self._notes: dict[int, Note] = {}
        """Notes of the current transaction that are not decided yet."""
        self._truncated: dict[int, tuple[int, int]] = {}
        """Tables that the current transaction truncated, with the numbers of segments and changes before the
        truncation."""
        self._data: list[bytes] = []
        """The open segment's messages, in pieces."""
        self._lengths: list[bytes] = []
        """... and their lengths."""
        self._size = 0
        self._first_lsn = 0
        """Position of the commit of the open segment's first transaction."""
        self._changes = 0
        self._batch = _OpenBatch()
        self._in_transaction = False
        self._skipping = False
        self._final_lsn = 0
        self._xid = 0
        self._transactions = OpenTransactions()
        self.position = applied
        """Everything that ends at or below this position was fed (commit ends and, between transactions,
        keepalives)."""

    @property
    def in_transaction(self) -> bool:
        return self._in_transaction

    @property
    def empty(self) -> bool:
        """Whether closing now would produce a batch without any effect."""
        return self._batch.empty and not self._changes

    @property
    def full(self) -> bool:
        """Whether the batch has enough bytes or reached the barrier, and may close. Only true between transactions."""
        if self._in_transaction:
            return False
        if self._barrier is not None and self.position >= self._barrier:
            return not self.empty
        return self._batch.size + self._size >= self._limits.batch_bytes

    def feed(self, block: MessageBlock, begin: int = 0) -> int:
        """Take the messages of `block` in order, from the one at index `begin`. Returns the index of the first that was
        not taken.

        Takes fewer than given if the batch became full at a commit, or if a transaction begins that needs its own
        batch. Then close the batch and feed the rest.
        """
        for place in block.controls_from(begin):
            if begin < place:
                self._take_changes(block, begin, place)
            content = block.content(place)
            tag = content[0]
            if (
                tag == _BEGIN
                and self._isolated_transaction is not None
                and not self.empty
                and parse_begin(content).final_lsn == self._isolated_transaction
            ):
                return place
            self._control(content, block.wal_end(place) if tag == _MESSAGE else 0)
            begin = place + 1
            if tag == _COMMIT and self.full:
                return begin
        self._take_changes(block, begin, len(block))
        return len(block)

    def _take_changes(self, block: MessageBlock, begin: int, end: int) -> None:
        """Take the row changes at the indexes from `begin` to `end`, and emit each segment that becomes full."""
        limit = min(self._limits.segment_bytes, self._limits.row_bytes)
        bounds = block.bounds
        while begin < end and not self._skipping and self._tables.active:
            stop = end
            if bounds[end] - bounds[begin] + self._size >= limit:
                stop = 1 + block.message_at(bounds[begin] + limit - self._size - 1)
                if bounds[stop] - bounds[stop - 1] - FRAME_BYTES > self._limits.row_bytes:
                    self._append(block, begin, stop - 1)
                    self._refuse_row(block.content(stop - 1))
                    self._emit_segment()
                    begin = stop
                    continue
            self._append(block, begin, stop)
            if self._size >= limit:
                self._emit_segment()
            begin = stop

    def _append(self, block: MessageBlock, begin: int, end: int) -> None:
        """Add the messages at the indexes from `begin` to `end` to the open segment."""
        if begin < end:
            if not self._data:
                self._first_lsn = self._final_lsn
            data = block.data[block.bounds[begin] : block.bounds[end]]
            self._data.append(data)
            self._lengths.append(block.lengths[begin:end].tobytes())
            self._transactions.take(self._changes, end - begin)
            self._size += len(data)
            self._changes += end - begin

    def idle_at(self, wal_end: Lsn) -> None:
        """A keepalive came between transactions: the server has sent everything that ends at or below `wal_end`."""
        if not self._in_transaction:
            self.position = max(self.position, wal_end)

    def refresh(self, tables: Sequence[MirroredTable]) -> None:
        """Use new descriptions of known tables. After a table went live, for example, its inserts need no deletes."""
        for table in tables:
            shown_table = self._tables.shown_table(table.table_id)
            if (
                shown_table is not None
                and shown_table.start_lsn == table.start_lsn
                and shown_table.state != table.state
            ):
                self._emit_segment()
                # Keep the known columns: they may be newer than the published ones.
                self._tables.replace(replace(shown_table, state=table.state, live_after_lsn=table.live_after_lsn))

    def drop(self, table: MirroredTable) -> None:
        """Ignore the table's changes from here on, until a Relation message finds it registered again.

        Does nothing if the table is already registered again: then the earlier registration failed, whose files were in
        another location.
        """
        active = self._tables.active.get(table.table_id)
        if active is not None and active.location == table.location:
            self._ignore(table.table_id)

    def _ignore(self, relation_id: int) -> None:
        if relation_id in self._tables.active:
            self._emit_segment()
            self._tables.ignore(relation_id)

    def close(self) -> BatchEnd:
        """End the batch. Must not be called inside a transaction."""
        if self._in_transaction:
            raise AssertionError("a batch holds whole transactions: it cannot close inside one")
        self._emit_segment()
        batch, self._batch = self._batch, _OpenBatch()
        return BatchEnd(
            end_lsn=self.position,
            commit_time_us=batch.commit_time_us,
            segments=batch.segments,
            changes=batch.changes,
            transactions=batch.transactions,
            truncations=tuple(batch.truncations),
            failures=tuple(batch.failures),
            changed_tables=tuple(batch.changed_tables),
            xids=batch.xids,
        )

    @property
    def transaction(self) -> Lsn | None:
        """LSN of the commit of the transaction that is being fed, None between transactions."""
        return Lsn(self._final_lsn) if self._in_transaction else None

    def skip_transaction(self, tables: Sequence[TableId], reason: str) -> BatchEnd:
        """End the batch of the isolated transaction, the rest of which never arrives.

        The received part does not count: the caller has to discard the segments of this batch, and tables return to
        their state before it. The rest may have changed or altered any table. So each of `tables` is described and
        copied again from there.
        """
        if not self._in_transaction or self._final_lsn != self._isolated_transaction:
            raise AssertionError("only a transaction in a batch of its own can be skipped")
        self._data, self._lengths, self._size, self._changes = [], [], 0, 0
        self._transactions.emitted(is_needed=False)
        self._batch = _OpenBatch(transactions=1)
        self._notes, self._truncated = {}, {}
        self._tables.restore()
        self._in_transaction = False
        # The server skips transactions whose commit record begins before the position that streaming starts at.
        self.position = Lsn(max(self.position, self._final_lsn + 1))
        for table_id in tables:
            table = self._registered(table_id)
            if table is not None and not table.awaiting_description:
                self._await_description(table, reason)
        return self.close()

    def _refuse_row(self, content: bytes) -> None:
        """Fail the table of a message that is too large, which is not taken."""
        (relation_id,) = _RELATION_ID.unpack_from(content, 1)
        table = self._tables.active.get(relation_id)
        if table is not None:
            size, limit = len(content) + HEADER_BYTES - FRAME_BYTES, self._limits.row_bytes
            self._fail(
                table,
                f"a change of one row takes {size:,} bytes in the stream, more than max_row_bytes allows"
                f" ({limit:,}). Raise it (the pump needs some six times as much memory), make the row smaller, or"
                " replace REPLICA IDENTITY FULL if that is why old and new row are sent; then unregister the table and"
                " register it",
            )

    def _emit_segment(self) -> None:
        """Emit the collected messages as a segment, if they hold changes of any active table."""
        if not self._data:
            return
        data, lengths = b"".join(self._data), b"".join(self._lengths)
        batch = self._batch
        batch.size += self._size
        tables = tuple(_with_due_feed(table, self._first_lsn) for table in self._tables.active.values())
        transactions = self._transactions.emitted(is_needed=any(table.feed is not None for table in tables))
        if tables:
            batch.changes += self._changes
            segment = Segment(batch.segments, data, lengths, tables, transactions)
            batch.segments += 1
            self._emit(segment)
        self._data, self._lengths, self._size, self._changes = [], [], 0, 0

    def _control(self, content: bytes, wal_end: int) -> None:
        """Take a message that is no row change. `wal_end`: of a logical message, the server's end of WAL."""
        tag = content[0]
        if tag == _BEGIN:
            begin = parse_begin(content)
            self._final_lsn, self._xid = begin.final_lsn, begin.xid
            self._transactions.begin(StreamTransaction(Lsn(begin.final_lsn), begin.xid, begin.commit_time_us))
            self._in_transaction = True
            self._skipping = self._final_lsn < self._applied
            self._notes, self._truncated = {}, {}
            if self._final_lsn == self._isolated_transaction:
                self._tables.save()
        elif tag == _COMMIT:
            commit = parse_commit(content)
            for relation_id in list(self._notes):
                with self._work_for(relation_id):
                    self._take_notes(relation_id)
            self._in_transaction = False
            self._skipping = False
            self.position = Lsn(max(self.position, commit.end_lsn))
            if not self.empty:
                self._batch.transactions += 1
                self._batch.xids.append(self._xid)
                self._batch.commit_time_us = commit.commit_time_us
        elif tag == _RELATION:
            relation = parse_relation(content)
            with self._work_for(relation.relation_id):
                self._relation(relation)
        elif tag == _TRUNCATE and not self._skipping:
            transactions = self._transactions
            for relation_id in parse_truncate(content).relation_ids:
                table = self._tables.active.get(relation_id)
                if table is not None:
                    self._emit_segment()
                    if table.kept_ranges:
                        table = replace(table, kept_ranges=())
                        self._change(table, table, "", emptied=True)
                    self._batch.truncations.append(
                        Truncation(table, self._batch.segments, transactions.current, transactions.rows)
                    )
                    self._truncated[relation_id] = self._batch.segments, self._changes
            transactions.truncated()
        elif tag == _ORIGIN:
            self._transactions.from_origin(parse_origin(content))
        elif tag == _MESSAGE:
            logical = parse_logical_message(content)
            if logical.prefix == self._wait_prefix:
                # Any client that may write to the database can send such a message, with any content. A position beyond
                # the server's end of WAL must not make other clients wait, so it is capped. The client asks again.
                with suppress(ValueError):
                    self._request_frontier(Lsn(min(int(logical.content[:_LSN_DIGITS], 16), wal_end)))
            elif logical.prefix == self._note_prefix and logical.transactional and not self._skipping:
                note = self._read_note(logical.content, self._xid)
                if note is not None:
                    with self._work_for(note.table_id):
                        self._note(note)

    @contextmanager
    def _work_for(self, relation_id: int) -> Iterator[None]:
        """Fails the table if the block raises what no code expects."""
        try:
            yield
        except Exception as error:
            table = self._registered(relation_id) if is_of_one_table(error) else None
            if table is None:
                raise
            self._fail(table, with_remedy(unexpected(table, error)))

    def _note(self, note: Note) -> None:
        """Keep a note until the table's next change or the commit, combined with the transaction's earlier notes."""
        if note.truncated:
            # A TRUNCATE of the whole table is in the stream itself. A note for each partition follows it.
            if self._truncated.get(note.table_id) == (self._batch.segments, self._changes):
                return
            table = self._registered(note.table_id)
            if table is not None and not table.awaiting_description:
                reason = "one of its partitions was truncated"
                bounds = rows_of(note.truncated_leaf, table)
                if bounds is None:
                    self._change(self._copied_again(table), table, reason)
                else:
                    self._change(table, table, reason, fills=True, dropped=(bounds,))
            return
        earlier_note = self._notes.get(note.table_id)
        if earlier_note is not None:
            note = note.after(earlier_note)
        self._notes[note.table_id] = note

    def _take_notes(self, relation_id: int) -> None:
        """Handle the current transaction's notes about the table so far."""
        note = self._notes.pop(relation_id, None)
        table = self._registered(relation_id) if note is not None else None
        if note is None or table is None:
            return
        decision = self._decide(table, note)
        action = decision.action
        if table.awaiting_description and action is not Action.DROPPED:
            if not note.settled:
                # Earlier notes may be lost with their slot: what this one leaves open proves nothing.
                action = Action.WAIT
            elif action not in (Action.FAIL, Action.WAIT):
                action = Action.COPY_AGAIN
        if action is Action.FOLLOW:
            self._change(decision.table, table, decision.reason, kept_ranges=decision.kept_ranges)
        elif action is Action.FILL:
            dropped, kept_ranges = decision.dropped, decision.kept_ranges
            self._change(decision.table, table, decision.reason, fills=True, dropped=dropped, kept_ranges=kept_ranges)
        elif action is Action.COPY_AGAIN:
            again = self._copied_again(decision.table)
            by_rows = table.awaiting_description and table.where_different and rows_are_comparable(table, again)
            self._change(
                again,
                table,
                decision.reason,
                remedy=decision.remedy,
                where_different=by_rows,
                kept_ranges=decision.kept_ranges,
            )
            if relation_id not in self._tables.active and self._tables.was_sent_as(again):
                self._tables.activate(again)
        elif action is Action.WAIT and not table.awaiting_description:
            self._await_description(
                table, decision.reason, waits_for_owner=decision.waits_for_owner, kept_ranges=decision.kept_ranges
            )
        elif action in (Action.FAIL, Action.DROPPED):
            self._fail(table, decision.reason, dropped=action is Action.DROPPED)

    def _change(
        self,
        table: MirroredTable,
        old_table: MirroredTable,
        reason: str,
        *,
        remedy: str = "",
        fills: bool = False,
        dropped: Sequence[PartitionBounds] = (),
        where_different: bool = False,
        waits_for_owner: bool = False,
        kept_ranges: TierRanges = (),
        emptied: bool = False,
    ) -> None:
        """`kept_ranges`: ranges whose rows the lake keeps, which a new copy would lose."""
        self._emit_segment()
        before = self._batch.segments
        change = TableChange(
            table,
            old_table.start_lsn,
            before,
            reason,
            remedy=remedy,
            fills=fills,
            dropped=tuple((before, bounds) for bounds in dropped),
            where_different=where_different,
            waits_for_owner=waits_for_owner,
            kept_before=before,
            emptied=emptied,
        )
        change = replace(change, lost=kept_ranges) if change.copy_again else replace(change, kept_ranges=kept_ranges)
        self._batch.changed_tables.append(change)
        self._tables.replace(table)

    def _await_description(
        self, table: MirroredTable, reason: str, *, waits_for_owner: bool = False, kept_ranges: TierRanges = ()
    ) -> None:
        waiting = replace(self._copied_again(table), state=TableState.WAITING)
        self._change(waiting, table, reason, waits_for_owner=waits_for_owner, kept_ranges=kept_ranges)
        self._ignore(table.table_id)

    def _fail(self, table: MirroredTable, reason: str, *, dropped: bool = False) -> None:
        self._ignore(table.table_id)
        self._tables.fail(table)
        self._batch.failures.append(Failure(table, about(str(table.name), reason), dropped))

    def _copied_again(self, table: MirroredTable) -> MirroredTable:
        return replace(
            table,
            state=TableState.COPYING,
            # The start LSN is unique even if the table is copied again twice in one transaction.
            start_lsn=Lsn(max(self._final_lsn, table.start_lsn + 1)),
            live_after_lsn=None,
            # The copy begins without any row above the cut-line, or replaces those that the heap has not.
            kept_ranges=(),
        )

    def _registered(self, relation_id: int) -> MirroredTable | None:
        """The registration to which changes at this position of the stream belong."""
        return self._tables.registered(relation_id, self._final_lsn)

    def _relation(self, relation: RelationMessage) -> None:
        # Then the open segment has no change of it, and may become one of its segments too: tables that are first
        # written to in one transaction share one.
        is_first = not self._tables.was_sent(relation.relation_id)
        self._tables.forget_sent(relation.relation_id)
        self._take_notes(relation.relation_id)
        self._tables.set_sent(relation)
        table = self._registered(relation.relation_id)
        active_table = self._tables.active.get(relation.relation_id)
        if table is None or table.awaiting_description:
            self._ignore(relation.relation_id)
            return
        difference = difference_from(table, relation)
        if difference:
            self._await_description(table, f"it was altered, and no note described it: {difference}")
        elif active_table is None or active_table.start_lsn != table.start_lsn:
            if not is_first:
                self._emit_segment()
            self._tables.activate(table)


_LSN_DIGITS = 16


def _with_due_feed(table: MirroredTable, first_lsn: int) -> MirroredTable:
    """The table as a segment is decoded whose first transaction commits at `first_lsn`: without its feed if that begins
    later."""
    return replace(table, feed=None) if table.feed is not None and table.feed.not_before > first_lsn else table
