"""Seam reads by DuckDB: the cut-line, the published snapshot, delta and heap of one point in time, compared with a
shadow table that has the same history."""

from __future__ import annotations

import pytest

from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.testing.mirror import Row, assert_same, normalised
from tests.support.typed_events import EVENTS, TypedEvents


def seam(events: TypedEvents, mode: ReadMode = ReadMode.SEAM) -> list[Row]:
    with open_query(events.mirror.settings, Query(f"FROM {EVENTS}", mode), print) as duckdb:
        table = duckdb.execute(f"SELECT * FROM {EVENTS}").to_arrow_table()
    return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def test_a_read_shows_both_sides_and_every_correction(events: TypedEvents) -> None:
    assert_same(events.truth(), seam(events), "the cut-line at 200, partition 0 dropped")
    events.upsert(10, 10, n="99.99")
    events.upsert(50, 51)
    events.delete(20, 20)
    events.both("UPDATE {} SET t = 'corrected in the sealed partition' WHERE at = 150")
    events.both("DELETE FROM {} WHERE at = 160")
    events.both("UPDATE {} SET at = 155 WHERE at = 250")
    events.both("UPDATE {} SET at = 255 WHERE at = 170")
    events.both("DELETE FROM {} WHERE at = 300")
    events.insert((310, 999), (5, 5))
    assert_same(events.truth(), seam(events), "the cut-line at 200, with corrections")
    assert events.database.rows("SELECT count(*) FROM modak.delta")[0][0] >= 7
    assert events.pins() == []


@pytest.mark.further
def test_partitions_can_be_added_while_a_read_is_open(events: TypedEvents) -> None:
    """By anybody, at once: a session that waited for the reader would block all others, the reader included."""
    events.both("UPDATE {} SET n = 'NaN' WHERE at = 260")
    wanted = events.truth(raw_texts=True)
    with open_query(events.mirror.settings, Query(f"FROM {EVENTS}"), print) as duckdb:
        with events.database.connect() as other:
            other.execute("SET lock_timeout = '1s'")
            other.execute(f"CREATE TABLE public.p4 PARTITION OF {EVENTS} FOR VALUES FROM (400) TO (500)".encode())
        assert duckdb.execute(f"SELECT count(*) FROM {EVENTS}").fetchone() == (len(wanted),)
