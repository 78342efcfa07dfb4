"""The assembler: whole transactions per batch, segments anywhere, registrations followed exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.pipeline.assembler import HEADER, Assembler, Limits, Segment

from . import pgoutput as pg


class Fed:
    """An assembler with what it emitted, and the registrations that it is told of."""

    def __init__(self, *tables: MirroredTable, segment: int = 10_000, batch: int = 100_000, applied: int = 0) -> None:
        self.registered = {int(table.table_id): table for table in tables}
        self.segments: list[Segment] = []
        self.assembler = Assembler(Limits(segment, batch), Lsn(applied), self.registered.get, self.segments.append)

    def feed(self, *messages: bytes) -> int:
        return self.assembler.feed(messages)

    def values(self) -> list[bytes]:
        return [message[HEADER:] for segment in self.segments for message in segment.messages]


def transaction(end: int, *changes: bytes) -> list[bytes]:
    return [pg.begin(end - 8), *changes, pg.commit(end)]


def test_a_batch_ends_at_its_last_commit() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a")), *transaction(200, pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    assert (end.end_lsn, end.changes, end.transactions, end.segments) == (200, 2, 2, 1)
    assert len(fed.values()) == 2


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


def test_an_unregistered_table_is_ignored_and_the_others_go_on() -> None:
    one, two = pg.mirrored(7), pg.mirrored(8)
    fed = Fed(one, two)
    fed.feed(*transaction(100, pg.relation(one), pg.insert(7, "1", "a"), pg.relation(two), pg.insert(8, "1", "b")))
    del fed.registered[7]
    fed.feed(*transaction(200, pg.relation(one), pg.insert(7, "2", "a"), pg.insert(8, "2", "b")))
    fed.assembler.close()
    assert fed.segments[-1].tables == (two,)


def test_a_changed_column_sets_the_table_aside_with_its_reason() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a")))
    fed.feed(*transaction(200, pg.relation(table, text_oid=1043), pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    assert [failure.table for failure in end.failures] == [table]
    assert "column v has another type" in end.failures[0].error
    assert end.changes == 1, "what came after the change of columns is not decoded with the old ones"


def test_truncate_keeps_its_place() -> None:
    table = pg.mirrored(7)
    fed = Fed(table)
    fed.feed(*transaction(100, pg.relation(table), pg.insert(7, "1", "a"), pg.truncate(7, 99), pg.insert(7, "2", "b")))
    end = fed.assembler.close()
    assert [(one.table_id, one.before) for one in end.truncations] == [(7, 1)]
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
        sent += [message[HEADER:] for message in inserts]
        ends.append(number * 1000)
    got, frontiers = 0, [0]
    position = 0
    step = 0
    while position < len(stream):
        piece = stream[position : position + cuts[step % len(cuts)]]
        step += 1
        position += fed.feed(*piece)
        if fed.assembler.full:
            end = fed.assembler.close()
            got += end.changes
            frontiers.append(end.end_lsn)
            assert end.end_lsn in ends
            assert sum(len(s.messages) for s in fed.segments) == got
            # Whole transactions: everything up to the frontier is there, nothing beyond it.
            assert got == sum(len(rows) for rows, lsn in zip(sizes, ends, strict=True) if lsn <= end.end_lsn)
    got += fed.assembler.close().changes
    assert got == len(sent)
    assert fed.values() == sent
    assert frontiers == sorted(frontiers)
