"""Seam reads by DuckDB: the cut-line, the published snapshot, delta and heap of one moment, against a shadow table
with the same history."""

from __future__ import annotations

import pytest

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Row, assert_same, normalised
from tests.support.seam import EVENTS, Retained


@pytest.fixture
def retained(database: Database, warehouse: str, runner: TaskRunner) -> Retained:
    events = Retained.create(Mirror.create(database, warehouse, runner), 4)
    events.insert(*((at, at) for at in range(0, 400, 10)))
    events.retire()
    return events


def seam(retained: Retained, mode: ReadMode = ReadMode.SEAM) -> list[Row]:
    with open_query(retained.mirror.settings, Query(f"FROM {EVENTS}", mode), print) as duckdb:
        table = duckdb.execute(f"SELECT * FROM {EVENTS}").to_arrow_table()
    return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def test_a_read_shows_both_sides_and_every_correction(retained: Retained) -> None:
    assert_same(retained.truth(), seam(retained), "the cut-line at 200, partition 0 dropped")
    retained.upsert(10, 10, n="99.99")
    retained.upsert(50, 51)
    retained.delete(20, 20)
    retained.both("UPDATE {} SET t = 'corrected in the sealed partition' WHERE at = 150")
    retained.both("DELETE FROM {} WHERE at = 160")
    retained.both("UPDATE {} SET at = 155 WHERE at = 250")
    retained.both("UPDATE {} SET at = 255 WHERE at = 170")
    retained.both("DELETE FROM {} WHERE at = 300")
    retained.insert((310, 999), (5, 5))
    assert_same(retained.truth(), seam(retained), "the cut-line at 200, with corrections")
    assert retained.database.rows("SELECT count(*) FROM modak.delta")[0][0] >= 7
    assert retained.pins() == []


def test_partitions_can_be_added_while_a_read_is_open(retained: Retained) -> None:
    """By anybody, at once: one who had to wait for the reader would hold everybody else up behind, the reader too."""
    retained.both("UPDATE {} SET n = 'NaN' WHERE at = 260")
    wanted = retained.truth(sidecars=True)
    with open_query(retained.mirror.settings, Query(f"FROM {EVENTS}"), print) as duckdb:
        with retained.database.connect() as other:
            other.execute("SET lock_timeout = '1s'")
            other.execute(f"CREATE TABLE public.p4 PARTITION OF {EVENTS} FOR VALUES FROM (400) TO (500)".encode())
        assert duckdb.execute(f"SELECT count(*) FROM {EVENTS}").fetchone() == (len(wanted),)
