"""How a read puts the tiers together, and that it shows one moment."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import assert_same, normalised
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH, run
from tests.support.table_modes import TableModes


def test_a_query_becomes_recent_rows_of_the_heap_and_the_lake_merged_with_its_corrections(modes: TableModes) -> None:
    """In `mirror-pump sql`, for every table with a cut-line. What a heap that is whole holds below the cut-line does
    not count: a row that was changed there behind the triggers is read as the lake has it. (The catalog is made not to
    notice: a read would be refused until the pump has made the row a correction, tests/integration/retention.)"""
    table = modes.kept
    old = table.partition(2)
    table.put(2 * WIDTH + 30, 3, "of the lake")
    with modes.database.session(autocommit=False) as connection:
        run(connection, f"ALTER TABLE {old} DISABLE TRIGGER zz_modak_row")
        run(connection, f"UPDATE {old} SET v = 'of the heap' WHERE at = {2 * WIDTH + 30} AND id = 3")
        run(connection, f"ALTER TABLE {old} ENABLE ALWAYS TRIGGER zz_modak_row")
        noticed = "UPDATE modak.partitions SET proven_as = modak.watch_mark(relation_id::oid) WHERE relation_id ="
        run(connection, f"{noticed} '{old}'::regclass::oid::bigint")
    try:
        for table in modes.divided:
            with open_query(modes.mirror.settings, Query(f"FROM {table.name}"), print) as duckdb:
                rows = duckdb.execute(f"FROM {table.name}").fetchall()
            assert_same(table.model(), normalised(rows), f"{table.name} by the product's reader")
            assert_same(modes.assert_exact(table).rows, normalised(rows), f"{table.name} by the protocol")
    finally:
        modes.database.execute("UPDATE kept SET v = 'of the lake' WHERE at = 230 AND id = 3")


def test_it_is_executed_by_duckdb_under_a_pin_on_cut_line_and_snapshot(modes: TableModes) -> None:
    """A pin for each table that the query names, as long as it is read, and not longer."""
    names = [table.name for table in modes.divided]
    query = " UNION ALL ".join(f"SELECT count(*) AS n FROM {name}" for name in names)
    seam = "SELECT table_id, tier_key_hi, lake_snapshot_id FROM modak.cutline WHERE tier_key_hi > -9223372036854775808"
    with open_query(modes.mirror.settings, Query(query), print) as duckdb:
        with modes.database.session() as connection:
            wanted = run(connection, f"{seam} ORDER BY 1").fetchall()
        assert len(wanted) == len(names)
        assert (
            modes.database.rows(
                "SELECT table_id, pinned_tier_key_hi, pinned_lake_snapshot_id FROM modak.read_pins"
                " WHERE expires_at > now() ORDER BY 1"
            )
            == wanted
        )
        assert duckdb.execute("SELECT version() LIKE 'v1.%'").fetchall() == [(True,)]
        counts = [count for (count,) in duckdb.execute(query).fetchall()]
    assert counts == [len(table.model()) for table in modes.divided]
    assert modes.database.rows("SELECT * FROM modak.read_pins") == []


@pytest.mark.soak
def test_the_result_is_one_moment_of_the_whole_table_whatever_goes_on(modes: TableModes) -> None:
    """Two writers change rows of both tiers, partitions leave, rows expire, corrections are folded, files are merged.
    Each read by the protocol equals the model as of the same moment. A query of all tables with a cut-line by the
    product's reader sees all or nothing of a transaction that wrote to all of them."""
    key = next(modes.keys)

    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        value, place = str(chance.random()), chance.choice([-1, 1])
        for table in modes.divided:
            at = cuts[table.name] + place * 10
            table.put_on(connection, at, key, value)
        table = chance.choice(modes.divided)
        at = chance.randrange(cuts[table.name] - 20, cuts[table.name] + WIDTH)
        if chance.random() < 0.3:
            table.remove_on(connection, at, key + 500_000)
        else:
            table.put_on(connection, at, key + 500_000, value)

    for table in modes.divided:
        table.grow()
    # Where the cut-line will be: all of these rows are in the heap at first.
    cuts = {table.name: table.cut + WIDTH for table in modes.divided}
    seeds = [random.getrandbits(32) for _ in range(2)]
    print(f"writers' seeds {seeds}")
    names = [table.name for table in modes.divided]
    places = {name: f'SELECT "at" - {cuts[name]} AS place, v FROM {name} WHERE id = {key}' for name in names}
    query = " UNION ALL ".join(f"SELECT '{name}' AS t, * FROM ({select})" for name, select in places.items())
    torn = reads = 0
    with modes.pumping(fold_age=0.05, merge_bytes=1 << 20) as running, ExitStack() as writers:
        for seed in seeds:
            writers.enter_context(writing(modes.database, write, seed))
        while (
            reads < 6
            or running.steps.count(Step.FOLDED) < 3
            or any(table.cut < cuts[table.name] for table in modes.divided)
        ):
            reads += 1
            for table in modes.divided:
                with modes.database.session(autocommit=False) as connection:
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    modes.compare(connection, table)
            with open_query(modes.mirror.settings, Query(query, ReadMode.SEAM), print) as duckdb:
                found: dict[int, set[str]] = {}
                for _, place, value in duckdb.execute(query).fetchall():
                    found.setdefault(place, set()).add(value)
            torn += any(len(values) != 1 for values in found.values())
        writers.close()
        modes.await_settled()
        modes.await_folded()
        modes.assert_all_exact()
    assert not torn, f"{torn} of {reads} queries saw a part of a transaction"
