"""Commands and tiered tables: what they read, compare, refuse, and leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import LiteralString

import pytest

from mirror_pump.errors import FileMissing, TableError
from mirror_pump.lake.commit.readable_files import DescriptionCheck
from mirror_pump.model import MirroredTable
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.reads.time_travel import parse_when
from mirror_pump.ops.resync.resync import plan_resync
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.retention.drop_proof import Proof, Prover
from mirror_pump.source.retention.partitions import Partition
from mirror_pump.testing.mirror import await_true
from tests.support.events_table import EventsTable
from tests.support.tiered import TieredTables

ALL = 'SELECT "at", id, n, v FROM events'


def _read(events: EventsTable, mode: ReadMode, statement: str = ALL) -> tuple[list[tuple[object, ...]], list[str]]:
    """The rows of a statement, sorted, and what its reader was told."""
    warnings: list[str] = []
    with open_query(events.mirror.settings, Query(statement, mode), warnings.append) as duckdb:
        return sorted(duckdb.execute(statement).fetchall()), warnings


def test_every_mode_reads_what_it_says(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=4, rows=20)
    mirror, database = events.mirror, events.mirror.database
    database.execute("CREATE TABLE plain (id int PRIMARY KEY)", "INSERT INTO plain VALUES (1)")
    mirror.register("plain")
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        mirror.await_live("public.plain")
        mirror.await_frontier()
        whole = sorted(database.rows("SELECT at, id, n, v FROM model"))
        below = [row for row in whole if row[0] < events.cut]
        assert _read(events, ReadMode.SEAM) == (whole, [])
        assert _read(events, ReadMode.HYBRID) == (whole, [])
        assert _read(events, ReadMode.HEAP) == ([row for row in whole if row[0] >= events.cut], [])
        rows, (warning,) = _read(events, ReadMode.LAKE)
        assert rows == below
        assert "events is a tiered table: its lake has no row from the cut-line on" in warning
        joined, warnings = _read(events, ReadMode.SEAM, "SELECT count(*), (SELECT count(*) FROM plain) FROM events")
        assert joined == [(len(whole), 1)]
        assert len(warnings) == 1, "they are as of two moments"
        past = Query(ALL, ReadMode.SEAM, at=parse_when("2026-01-01"))
        with (
            pytest.raises(TableError, match="has no frontier"),
            open_query(mirror.settings, past, lambda _: None) as duckdb,
        ):
            duckdb.execute(ALL)
        with pytest.raises(TableError, match="nothing of it comes by the stream"):
            plan_resync(mirror.settings, ["events"])
        assert [table.table for table in plan_resync(mirror.settings, []).tables] == ["public.plain"]


@pytest.mark.further
def test_verify_compares_what_heap_and_lake_both_hold(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=4, rows=20, keep_heap=True)
    mirror, database = events.mirror, events.mirror.database
    (nothing,) = verify(mirror.settings).tables
    assert (nothing.equal, nothing.compared) == (True, "nothing: no partition is in the heap and in the lake")
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered")
    (table,) = verify(mirror.settings, ["events"]).tables
    assert table.equal
    assert table.frontier is None
    assert table.comparison is not None
    assert (table.comparison.heap_rows, table.comparison.lake_rows) == (40, 40)
    assert table.compared == "partitions that heap and lake both hold: public.p0, public.p1"
    database.execute(
        "ALTER TABLE p1 DISABLE TRIGGER zz_modak_row",
        "UPDATE p1 SET n = 5 WHERE id = 7",
        "DELETE FROM p1 WHERE id = 8",
        "ALTER TABLE p1 ENABLE ALWAYS TRIGGER zz_modak_row",
    )
    (table,) = verify(mirror.settings, ["events"]).tables
    assert table.comparison is not None
    assert not table.equal
    found = {(difference["key"]["id"], difference["kind"]) for difference in table.comparison.differences}
    assert found == {("7", "different"), ("8", "extra")}
    assert (table.comparison.heap_rows, table.comparison.lake_rows) == (39, 40)
    database.execute("UPDATE p1 SET n = 0 WHERE id = 7", "DELETE FROM model WHERE at >= 100 AND at < 200 AND id = 8")
    database.execute("SELECT modak.delete('events', '{\"at\": 140, \"id\": 8}')")


def test_a_partition_that_leaves_while_verify_compares_is_left_out(
    tiered_tables: TieredTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tiered_tables.tiered(partitions=4, rows=20, keep_heap=True)
    with events.mirror.pumping():
        events.await_state(p0="tiered", p1="tiered")
    prove, database = Prover.prove, events.mirror.database

    def prove_after(statement: LiteralString) -> None:
        def changed(prover: Prover, table: MirroredTable, partition: Partition) -> Proof:
            if partition.partition_id == "public.p0":
                database.execute(statement)
            return prove(prover, table, partition)

        monkeypatch.setattr(Prover, "prove", changed)

    prove_after("ALTER TABLE p0 DISABLE TRIGGER zz_modak_row")
    (table,) = verify(events.mirror.settings, ["events"]).tables
    assert table.problem is not None
    assert "partition public.p0 could not be compared" in table.problem
    prove_after("DROP TABLE p0")
    (table,) = verify(events.mirror.settings, ["events"]).tables
    assert table.equal
    assert table.compared == "partitions that heap and lake both hold: public.p1"
    tried: list[str] = []

    def swept(_: DescriptionCheck, location: str) -> Iterator[FileMissing]:
        tried.append(location)
        if len(tried) == 1:
            yield FileMissing("a file is missing", "", "file:///gone")

    monkeypatch.setattr(DescriptionCheck, "wrong_files", swept)
    (table,) = verify(events.mirror.settings, ["events"]).tables
    assert table.equal, "a file that is replaced meanwhile is no loss"
    assert len(tried) > 1


@pytest.mark.soak
def test_status_and_unregister_know_the_mode(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=3, rows=20)
    mirror = events.mirror
    with mirror.pumping():
        events.await_state(p0="dropped")
        with StatusReader(mirror.settings) as reader:
            await_true(lambda: not [alert for alert in reader.read().alerts if alert.table], 30, "the table is well")
            (shown,) = reader.read().tables
    assert (shown.mode, shown.frontier, shown.lag_bytes, shown.state) == ("tiered", None, None, "live")
    assert shown.retention is not None
    assert (shown.retention.cut, shown.retention.lag) == ("100", "100")
    with pytest.raises(TableError, match="the lake has the only copy"):
        mirror.unregister("events")
    with pytest.raises(TableError, match="would destroy the only copy"):
        mirror.unregister("events", drop_lake=True)
    mirror.unregister("events", drop_lake=True, yes=True)
    # None is left on a partition.
    assert mirror.database.rows("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'zz_modak%'") == [(0,)]
    assert mirror.database.rows("SELECT count(*) FROM modak.partition_chunks") == [(0,)]
