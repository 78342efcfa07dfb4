"""The assembler: whole transactions per batch, segments anywhere, registrations followed exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.model import ExcludedColumn, Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.batches import Segment
from mirror_pump.pipeline.schema.decisions import Action, SchemaChangeDecision
from mirror_pump.pipeline.stream.assembler import Assembler, Limits
from mirror_pump.source.relations.change_notes import Note, parse_note
from mirror_pump.source.stream.message_block import FRAME_BYTES, MessageBlock
from tests.support import pgoutput as pg


class Fed:
    """An assembler with its output, and the registrations that it gets."""

    def __init__(
        self,
        *tables: MirroredTable,
        segment: int = 10_000,
        batch: int = 100_000,
        applied: int = 0,
        row: int = 1 << 30,
        isolated_transaction: int | None = None,
    ) -> None:
        self.registered = {int(table.table_id): table for table in tables}
        self.segments: list[Segment] = []
        self.judged: list[Note] = []
        self.decisions: list[SchemaChangeDecision] = []
        self.wanted: list[Lsn] = []
        self.assembler = Assembler(
            Limits(segment, batch, row),
            Lsn(applied),
            self.registered.get,
            self.segments.append,
            decide=self._decide,
            isolated_transaction=None if isolated_transaction is None else Lsn(isolated_transaction),
            request_frontier=self.wanted.append,
            read_note=lambda content, _: parse_note(content),
        )

    def _decide(self, _table: MirroredTable, note: Note) -> SchemaChangeDecision:
        self.judged.append(note)
        return self.decisions.pop(0)

    def feed(self, *messages: bytes) -> int:
        return self.assembler.feed(MessageBlock.of(messages))

    def values(self) -> list[bytes]:
        return [content for segment in self.segments for content in messages_of(segment)]


def messages_of(segment: Segment) -> list[bytes]:
    """The pgoutput messages of a segment."""
    return list(MessageBlock(segment.data, np.cumsum(np.frombuffer(segment.lengths, np.int32))).contents())


def transaction(end: int, *changes: bytes) -> list[bytes]:
    return [pg.begin(end - 8), *changes, pg.commit(end)]


def test_a_batch_ends_at_its_last_commit() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a")), *transaction(200, pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    assert (end.end_lsn, end.changes, end.transactions, end.segments) == (200, 2, 2, 1)
    assert len(fed.values()) == 2


def test_a_batch_knows_its_transactions() -> None:
    table = pg.mirrored(7)
    fed = Fed(table, applied=100)
    for number, xid in enumerate([4, 2**32 - 1, 3], 1):
        fed.feed(
            pg.begin(number * 100 - 8, xid), pg.relation(table), pg.insert(7, str(xid), "a"), pg.commit(number * 100)
        )
    assert list(fed.assembler.close().xids) == [2**32 - 1, 3], "without those that are applied already"
    assert not fed.assembler.close().xids


def test_a_batch_cannot_close_inside_a_transaction_but_its_segments_leave_it() -> None:
    table = pg.mirrored(7)
    fed = Fed(table, segment=200, batch=300)
    messages = [pg.begin(92), pg.relation(table), *(pg.insert(7, str(i), "x" * 50) for i in range(20))]
    assert fed.feed(*messages) == len(messages)
    assert (fed.assembler.in_transaction, fed.assembler.full) == (True, False)
    assert len(fed.segments) > 3, "a large transaction leaves in pieces before it ends"
    fed.feed(pg.commit(100))
    assert (fed.assembler.in_transaction, fed.assembler.full) == (False, True)
    assert fed.assembler.close().changes == 20


def test_feeding_stops_at_the_commit_that_fills_the_batch() -> None:
    table = pg.mirrored(7)
    fed = Fed(table, segment=100, batch=150)
    first = transaction(100, pg.relation(table), *(pg.insert(7, str(i), "x" * 50) for i in range(3)))
    second = transaction(200, pg.insert(7, "9", "y"))
    assert fed.feed(*first, *second) == len(first)
    assert fed.assembler.close().end_lsn == 100
    assert fed.feed(*second) == len(second)
    assert fed.assembler.close().end_lsn == 200


def test_a_column_that_is_left_out_has_to_be_there() -> None:
    """Its position in the rows counts: rows without it are not the table's."""
    sent = pg.mirrored(7)
    excluding = replace(sent, excluded=(ExcludedColumn(9, "secret"),))
    fed = Fed(excluding)
    fed.feed(*transaction(100, pg.relation(sent), pg.insert(7, "1", "a")))
    (change,) = fed.assembler.close().changed_tables
    assert change.table.awaiting_description
    assert "secret is gone" in change.reason
    assert not fed.segments


def test_transactions_that_are_applied_already_are_skipped() -> None:
    table = pg.mirrored(7)
    fed = Fed(table, applied=100)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "old")))
    assert fed.assembler.empty
    fed.feed(*transaction(108, pg.relation(table), pg.insert(7, "2", "new")))
    assert fed.assembler.close().changes == 1


def test_changes_before_a_registration_do_not_count() -> None:
    table = pg.mirrored(7, start_lsn=150)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "before")))
    assert fed.assembler.empty
    fed.feed(*transaction(200, pg.relation(table), pg.insert(7, "2", "after")))
    assert fed.assembler.close().changes == 1


def test_a_new_registration_starts_a_segment_of_its_own() -> None:
    old, new = pg.mirrored(7, start_lsn=0), pg.mirrored(7, start_lsn=150)
    fed = Fed(old)
    fed.feed(*transaction(100, pg.relation(old), pg.insert(7, "1", "old")))
    fed.registered[7] = new
    fed.feed(*transaction(200, pg.relation(new), pg.insert(7, "1", "new")))
    fed.assembler.close()
    assert [segment.tables for segment in fed.segments] == [(old,), (new,)]


def test_tables_that_the_server_describes_for_the_first_time_share_a_segment() -> None:
    """Else the first transaction over hundreds of tables would be as many tasks."""
    first, second = pg.mirrored(7), pg.mirrored(8)
    fed = Fed(first, second)
    fed.feed(
        *transaction(
            100, pg.relation(first), pg.insert(7, "1", "a"), pg.relation(second), pg.insert(8, "1", "b"),
            pg.insert(7, "2", "c"),
        )
    )  # fmt: skip
    assert fed.assembler.close().segments == 1
    assert {table.table_id for table in fed.segments[0].tables} == {7, 8}
    assert len(fed.values()) == 3


def test_changes_from_before_a_registration_are_in_no_segment_of_its_own() -> None:
    """The server has described the table already, so the open segment may have changes that do not count."""
    mirrored, later = pg.mirrored(7), pg.mirrored(8)
    fed = Fed(mirrored)
    fed.feed(
        *transaction(100, pg.relation(mirrored), pg.insert(7, "1", "a"), pg.relation(later), pg.insert(8, "1", "b"))
    )
    fed.registered[8] = replace(later, start_lsn=Lsn(150))
    fed.feed(*transaction(200, pg.relation(later), pg.insert(8, "2", "c")))
    fed.assembler.close()
    of_both = [segment for segment in fed.segments if 8 in {table.table_id for table in segment.tables}]
    assert [content for segment in of_both for content in messages_of(segment)] == [
        pg.insert(8, "2", "c").removeprefix(pg.HEADER)
    ]


def test_an_unregistered_table_is_ignored_and_the_others_go_on() -> None:
    one, two = pg.mirrored(7), pg.mirrored(8)
    fed = Fed(one, two)
    fed.feed(*transaction(100, pg.relation(one), pg.insert(7, "1", "a"), pg.relation(two), pg.insert(8, "1", "b")))
    del fed.registered[7]
    fed.feed(*transaction(200, pg.relation(one), pg.insert(7, "2", "a"), pg.insert(8, "2", "b")))
    fed.assembler.close()
    assert fed.segments[-1].tables == (two,)


def test_an_unannounced_column_change_makes_the_table_wait_to_be_copied_again() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a")))
    fed.feed(*transaction(200, pg.relation(table, text_oid=1043), pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    (change,) = end.changed_tables
    assert (change.table.awaiting_description, change.table.state, change.former_lsn) == (True, TableState.WAITING, 0)
    assert change.copy_again
    assert "column v has another type" in change.reason
    assert end.changes == 1, "what came after the change of columns is not decoded with the old ones"


def test_truncate_keeps_its_place() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a"), pg.truncate(7, 99), pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    assert [(truncation.table_id, truncation.before) for truncation in end.truncations] == [(7, 1)]
    assert end.segments == 2


def test_a_keepalive_moves_the_position_between_transactions_only() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.assembler.idle_at(Lsn(50))
    assert fed.assembler.position == 50
    fed.feed(pg.begin(92), pg.relation(table), pg.insert(7, "1", "a"))
    fed.assembler.idle_at(Lsn(500))
    assert fed.assembler.position == 50
    fed.feed(pg.commit(100))
    assert fed.assembler.position == 100


@given(
    sizes=st.lists(st.lists(st.integers(1, 120), max_size=6), max_size=12),
    segment=st.integers(60, 600),
    batch=st.integers(60, 900),
    cuts=st.lists(st.integers(1, 7), min_size=1),
)
def test_nothing_is_lost_doubled_or_reordered_however_it_is_cut(
    sizes: list[list[int]], segment: int, batch: int, cuts: list[int]
) -> None:
    table = pg.mirrored(7)
    fed = Fed(table, segment=segment, batch=batch)
    stream: list[bytes] = [pg.begin(1), pg.relation(table), pg.commit(9)]
    sent, ends = [], []
    for number, rows in enumerate(sizes, 1):
        inserts = [pg.insert(7, f"{number}.{place}", "x" * size) for place, size in enumerate(rows)]
        stream += transaction(number * 1000, *inserts)
        sent += [message[len(pg.HEADER) :] for message in inserts]
        ends.append(number * 1000)
    got, frontiers = 0, [0]
    position = 0
    step = 0
    while position < len(stream):
        piece = stream[position : position + cuts[step % len(cuts)]]
        step += 1
        # A block that is not taken as a whole is fed again from there, as the receiver does.
        block, taken = MessageBlock.of(piece), 0
        while taken < len(block) and not fed.assembler.full:
            taken = fed.assembler.feed(block, taken)
        position += taken
        if fed.assembler.full:
            end = fed.assembler.close()
            got += end.changes
            frontiers.append(end.end_lsn)
            assert end.end_lsn in ends
            assert sum(len(messages_of(s)) for s in fed.segments) == got
            # Whole transactions: everything up to the frontier is there, and nothing beyond it.
            assert got == sum(len(rows) for rows, lsn in zip(sizes, ends, strict=True) if lsn <= end.end_lsn)
    got += fed.assembler.close().changes
    assert got == len(sent)
    assert fed.values() == sent
    assert frontiers == sorted(frontiers)
    for emitted in fed.segments:
        last = len(messages_of(emitted)[-1]) + len(pg.HEADER) + FRAME_BYTES
        assert len(emitted.data) - last < segment, "it ends with the first message that makes it full"


def test_rows_after_a_change_that_is_followed_belong_to_the_table_as_it_is_then() -> None:
    table = pg.mirrored(7)
    renamed = replace(table, columns=(table.columns[0], replace(table.columns[1], name="w")))
    fed = Fed(table)
    fed.decisions = [SchemaChangeDecision(Action.FOLLOW, renamed)]
    changes = [pg.relation(table), pg.insert(7, "1", "a"), pg.note(7), pg.relation(renamed), pg.insert(7, "2", "b")]
    fed.feed(*transaction(100, *changes))
    fed.feed(*transaction(200, pg.relation(renamed), pg.insert(7, "3", "c")))
    end = fed.assembler.close()
    assert [segment.tables for segment in fed.segments] == [(table,), (renamed,)]
    (change,) = end.changed_tables
    assert (change.table, change.before, change.copy_again) == (renamed, 1, False)


def test_a_table_that_is_copied_again_has_a_new_start_and_later_rows_count_for_the_copy() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.decisions = [SchemaChangeDecision(Action.COPY_AGAIN, table, "why")]
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a"), pg.note(7), pg.relation(table)))
    fed.feed(*transaction(200, pg.insert(7, "3", "c")))
    end = fed.assembler.close()
    (change,) = end.changed_tables
    assert (change.table.start_lsn, change.table.state, change.former_lsn) == (92, TableState.COPYING, 0)
    assert (change.copy_again, change.reason) == (True, "why")
    assert [segment.tables[0].start_lsn for segment in fed.segments] == [0, 92]
    # The catalog is updated later; until then, its content is ignored.
    fed.feed(*transaction(300, pg.relation(table), pg.insert(7, "4", "d")))
    fed.assembler.close()
    assert fed.segments[-1].tables[0].start_lsn == 92


@pytest.mark.parametrize("described", [True, False])
def test_a_table_that_was_copied_again_is_live_also_if_the_server_describes_it_later(described: bool) -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.decisions = [SchemaChangeDecision(Action.COPY_AGAIN, table, "why")]
    fed.feed(*transaction(100, *([pg.relation(table)] if described else []), pg.note(7)))
    (change,) = fed.assembler.close().changed_tables
    live = replace(change.table, state=TableState.LIVE, live_after_lsn=Lsn(150))
    fed.registered[7] = live
    fed.assembler.refresh([live])
    fed.feed(*transaction(200, pg.relation(table), pg.insert(7, "1", "a")))
    fed.assembler.close()
    assert fed.segments[-1].tables == (live,), "its inserts need no deletes"


def test_two_copies_of_one_transaction_are_distinguished() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.decisions = [
        SchemaChangeDecision(Action.COPY_AGAIN, table, "one"),
        SchemaChangeDecision(Action.COPY_AGAIN, table, "two"),
    ]
    first, second = [pg.note(7), pg.relation(table)], [pg.note(7), pg.relation(table)]
    fed.decisions[1] = SchemaChangeDecision(Action.COPY_AGAIN, replace(table, start_lsn=Lsn(92)), "two")
    fed.feed(*transaction(100, *first, pg.insert(7, "1", "a"), *second, pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    assert [(table.former_lsn, table.table.start_lsn) for table in end.changed_tables] == [(0, 92), (92, 93)]


def test_notes_of_a_transaction_are_taken_together_and_once() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.decisions = [SchemaChangeDecision(Action.NOTHING, table)]
    # A partition was detached and attached, one was attached with rows, one was unlogged, and a column had a default
    # for a moment.
    first = {"leaves": [{"id": 8}, {"id": 11, "persistence": "u"}], "columns": [{"attnum": 5, "filled": True}]}
    last = {
        "leaves": [{"id": 8}, {"id": 9}, {"id": 10}, {"id": 11, "persistence": "p"}],
        "columns": [{"attnum": 5, "filled": False}],
    }
    told = [pg.note(7, rewritten=4), pg.note(7, shape=first, filled=[10]), pg.note(7, shape=last, filled=[9])]
    fed.feed(*transaction(100, *told))
    assert fed.judged == [
        Note(
            TableId(7),
            exact=True,
            shape=last,
            filled=frozenset({9, 10, 11}),
            stayed=frozenset({8}),
            filled_columns=frozenset({5}),
            rewritten=4,
        )
    ]
    assert fed.assembler.empty


def test_a_table_that_awaits_its_description_is_not_applied_before_a_note_describes_it() -> None:
    table = replace(pg.mirrored(7), state=TableState.WAITING)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a")))
    assert fed.assembler.empty
    fed.decisions = [SchemaChangeDecision(Action.FOLLOW, table), SchemaChangeDecision(Action.FOLLOW, table)]
    fed.feed(*transaction(200, pg.note(7), pg.relation(table), pg.insert(7, "2", "b")))
    assert fed.assembler.empty, "rows from before may still come"
    fed.feed(*transaction(300, pg.note(7, shape={}, settled=True), pg.relation(table), pg.insert(7, "3", "c")))
    (change,) = fed.assembler.close().changed_tables
    assert (change.table.awaiting_description, change.copy_again) == (False, True)
    assert len(fed.segments) == 1


def test_only_a_settled_note_fails_a_table_that_awaits_its_description() -> None:
    """Earlier notes may be lost with their slot, so what another note leaves open proves nothing."""
    table = replace(pg.mirrored(7), state=TableState.WAITING)
    fed = Fed(table)
    failing = SchemaChangeDecision(Action.FAIL, table, "why")
    fed.decisions = [failing, failing]
    fed.feed(*transaction(100, pg.note(7)))
    assert fed.assembler.empty
    fed.feed(*transaction(200, pg.note(7, shape={}, settled=True)))
    (change,) = fed.assembler.close().failures
    assert change.error.endswith("why")


def test_a_table_that_waited_is_applied_although_the_server_does_not_describe_it_again() -> None:
    table = replace(pg.mirrored(7), state=TableState.WAITING)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a")))
    fed.decisions = [SchemaChangeDecision(Action.NOTHING, table)]
    fed.feed(*transaction(200, pg.note(7, shape={}, settled=True)), *transaction(300, pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    assert (end.changes, [table.copy_again for table in end.changed_tables]) == (1, [True])


def test_a_transaction_that_the_server_cannot_send_gets_a_batch_of_its_own_and_is_passed_over() -> None:
    one, two, later = pg.mirrored(7), pg.mirrored(8), pg.mirrored(9, start_lsn=1000)
    fed = Fed(one, two, later, segment=100, isolated_transaction=192)
    former = transaction(100, pg.relation(one), pg.insert(7, "1", "a"))
    broken = [pg.begin(192), *(pg.insert(7, str(i), "x" * 50) for i in range(10))]
    assert fed.feed(*former, *broken) == len(former), "what came before is a batch"
    assert fed.assembler.close().end_lsn == 100
    fed.feed(*broken)
    assert fed.assembler.transaction == 192
    end = fed.assembler.skip_transaction([TableId(7), TableId(8), TableId(9), TableId(10)], "why")
    assert (end.end_lsn, end.segments, end.changes) == (193, 0, 0)
    assert [
        (change.table.table_id, change.table.awaiting_description, change.copy_again) for change in end.changed_tables
    ] == [
        (7, True, True),
        (8, True, True),
    ], "a table that was registered later is not concerned"
    assert fed.assembler.empty
    # Later changes are not applied before the table is described.
    fed.feed(*transaction(300, pg.insert(7, "2", "b")))
    assert fed.assembler.empty


def test_a_truncate_takes_the_rows_of_kept_ranges() -> None:
    table = replace(pg.mirrored(7), kept_ranges=((1, 2),))
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a"), pg.truncate(7), pg.insert(7, "2", "b")))
    (change,) = fed.assembler.close().changed_tables
    assert [segment.tables[0].kept_ranges for segment in fed.segments] == [((1, 2),), ()]
    assert (change.table.kept_ranges, change.before, change.copy_again) == ((), 1, False)


@pytest.mark.parametrize("inside", ["truncated", "altered", "too large"])
def test_what_a_transaction_that_is_passed_over_did_to_its_tables_does_not_count(inside: str) -> None:
    table, other = pg.mirrored(7), pg.mirrored(8)
    fed = Fed(table, other, row=500, isolated_transaction=192)
    changes = {
        "truncated": [pg.relation(table), pg.note(7, truncated=9)],
        "altered": [pg.relation(table, text_oid=1043)],
        "too large": [pg.relation(table), pg.insert(7, "1", "x" * 500)],
    }[inside]
    fed.feed(pg.begin(192), pg.relation(other), *changes, pg.insert(7, "2", "b"))
    end = fed.assembler.skip_transaction([TableId(7), TableId(8)], "why")
    assert end.failures == ()
    assert [
        (table.table.table_id, table.former_lsn, table.table.start_lsn, table.table.awaiting_description)
        for table in end.changed_tables
    ] == [(7, 0, 192, True), (8, 0, 192, True)], "each is copied again, from the registration that is published"


def test_a_table_that_waited_waits_on_behind_a_transaction_that_is_passed_over() -> None:
    table = replace(pg.mirrored(7), state=TableState.WAITING)
    fed = Fed(table, isolated_transaction=192)
    fed.decisions = [SchemaChangeDecision(Action.FOLLOW, table)]
    fed.feed(pg.begin(192), pg.note(7), pg.relation(table), pg.insert(7, "1", "a"))
    assert fed.assembler.skip_transaction([TableId(7)], "why").changed_tables == ()
    fed.feed(*transaction(300, pg.insert(7, "2", "b")))
    assert fed.assembler.empty, "the note that described it does not count"


def test_a_transaction_that_was_not_isolated_cannot_be_skipped() -> None:
    fed = Fed(pg.mirrored(7), isolated_transaction=92)
    fed.feed(pg.begin(192))
    with pytest.raises(AssertionError, match="batch of its own"):
        fed.assembler.skip_transaction([], "why")


@pytest.mark.parametrize("segment", [100, 10_000])
def test_a_row_beyond_the_limit_fails_its_table_and_no_other(segment: int) -> None:
    one, two = pg.mirrored(7), pg.mirrored(8)
    fed = Fed(one, two, segment=segment, row=500)
    fed.feed(
        *transaction(
            100, pg.relation(one), pg.relation(two), pg.insert(8, "1", "a"), pg.insert(7, "1", "x" * 460),
            pg.insert(7, "2", "y" * 500), pg.insert(8, "2", "b"), pg.insert(7, "3", "z" * 600), pg.insert(7, "4", "w"),
        )
    )  # fmt: skip
    end = fed.assembler.close()
    assert ["more than max_row_bytes allows (500)" in failure.error for failure in end.failures] == [True]
    assert not any(b"yyyy" in value or b"zzzz" in value for value in fed.values())
    applied = [
        (table.table_id, value)
        for segment in fed.segments
        for table in segment.tables
        for value in messages_of(segment)
    ]
    assert {value[1:5] for table_id, value in applied if table_id == 8} >= {(8).to_bytes(4, "big")}
    assert sum(value[4] == 8 for value in {value for _, value in applied}) == 2


def test_a_failed_table_is_not_resumed_before_the_catalog_says_so() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.decisions = [SchemaChangeDecision(Action.DROPPED, table, "it was dropped")]
    fed.feed(*transaction(100, pg.note(7, shape=None)))
    fed.feed(*transaction(200, pg.relation(table), pg.insert(7, "1", "a")))
    end = fed.assembler.close()
    assert [failure.error for failure in end.failures] == ["public.t7: it was dropped"]
    assert end.changes == 0


def test_a_truncated_partition_makes_its_table_be_copied_again_unless_the_whole_table_was_truncated() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    whole = [pg.relation(table), pg.truncate(7), pg.note(7, truncated=8), pg.note(7, truncated=9)]
    fed.feed(*transaction(100, *whole, pg.insert(7, "1", "a")))
    assert fed.assembler.close().changed_tables == ()
    fed.feed(*transaction(200, pg.truncate(7), pg.insert(7, "1", "a"), pg.note(7, truncated=8)))
    assert [table.copy_again for table in fed.assembler.close().changed_tables] == [True]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"7", b'{"table": "x"}', b'{"table": null}', b"\xff", b'{"table": 1e999}', b'{"table": NaN}',
        b'{"table": 7, "rewritten": 1e999}', b'{"table": 7, "shape": "x"}', b'{"table": 7, "shape": []}',
        b'{"table": 7, "shape": {"leaves": 5}}', b'{"table": 7, "shape": {"columns": [{"filled": true}]}}',
        b"[" * 100_000,
    ],
    ids=lambda content: content[:40].decode(errors="replace"),
)  # fmt: skip
def test_messages_of_others_under_our_prefix_are_ignored(content: bytes) -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.logical(content), pg.logical(b'{"table": 7, "shape": null}', prefix=b"other")))
    assert fed.assembler.empty


def test_a_wait_for_the_frontier_is_served_wherever_the_stream_is() -> None:
    fed = Fed(pg.mirrored(7), applied=1000)

    def wait(digits: bytes, reached: int) -> bytes:
        message = pg.logical(digits, b"modak.wait")
        return message[:9] + reached.to_bytes(8, "big") + message[17:]

    fed.feed(wait(b"2a", 100), pg.begin(92), wait(b"2b", 100), wait(b"nothing", 100), wait(b"ffffffffffffffffff", 300))
    assert fed.wanted == [0x2A, 0x2B, 300]
    assert fed.assembler.empty
