"""What the cut-line of a table, and the frontier of mirrored ones, promise."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.testing.mirror import lake_rows, paced
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH
from tests.support.seam_scene import canonical, repeatable
from tests.support.table_modes import LAKE_LAG, TableModes


@pytest.mark.further
def test_a_table_has_one_cut_line_which_only_grows(modes: TableModes) -> None:
    """In everything that this process has done with these tables."""
    for table in modes.divided:
        table.grow()
    with modes.pumping():
        modes.await_settled()
    assert modes.database.rows("SELECT count(*), count(DISTINCT table_id) FROM modak.cutline") == [(5, 5)]
    for table in modes.divided:
        history: LiteralString = "SELECT t FROM audit.cutlines WHERE table_id = %s ORDER BY seen"
        lines = [t for (t,) in modes.database.rows(history, (table.table_id,))]
        assert len({*lines}) > 3
        assert all(before <= after for before, after in pairwise(lines)), table.name
        assert lines[-1] == table.cut == (table.partitions - 2) * WIDTH


@pytest.mark.further
def test_rows_from_the_cut_line_on_live_in_postgres_and_rows_below_it_in_the_lake(modes: TableModes) -> None:
    """To the row, on both sides of it, once corrections are folded."""
    key = next(modes.keys)
    for table in modes.divided:
        for at in (table.cut - 1, table.cut, table.cut + 1):
            table.put(at, key, "at the line")
    with modes.folding():
        pass
    for table in modes.divided:
        found = modes.assert_exact(table)
        assert {pk for pk, row in found.lake.items() if row[1] == key} == {canonical(table.cut - 1, key)}
        assert {pk for pk, row in found.hot.items() if row[1] == key} == {
            canonical(table.cut, key),
            canonical(table.cut + 1, key),
        }
        in_heap = [row[0] for row in table.heap(f"id = {key}")]
        assert in_heap == [table.cut - 1, table.cut, table.cut + 1][1 if table.sheds else 0 :]


def test_tiering_advances_it_and_readers_split_there_with_no_overlap_and_no_gap(modes: TableModes) -> None:
    """Reads go on while it advances, under writers on both sides: each finds each row exactly once."""
    key, seen = next(modes.keys), {table.name: {table.cut} for table in modes.divided}
    # Not below the retention line that comes with the advance.
    lowest = {table.name: table.cut - LAKE_LAG + WIDTH for table in modes.divided}
    seed = random.getrandbits(32)
    print(f"writer's seed {seed}")

    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        table = chance.choice(modes.divided)
        at = chance.randrange(lowest[table.name], table.partitions * WIDTH)
        if chance.random() < 0.3:
            table.remove_on(connection, at, key)
        else:
            table.put_on(connection, at, key, str(chance.random()))

    with modes.pumping(), writing(modes.database, write, seed):
        for table in modes.divided:
            table.grow()
        ends = {table.name: (table.partitions - 2) * WIDTH for table in modes.divided}
        while any(max(seen[name]) < end for name, end in ends.items()):
            for table in modes.divided:
                with modes.database.session(autocommit=False) as connection:
                    repeatable(connection)
                    seen[table.name].add(modes.compare(connection, table).t)
        modes.await_settled()
    assert all(len(lines) > 1 for lines in seen.values())


def test_the_frontier_of_mirrored_tables_is_the_highest_position_whose_changes_are_in_the_lake(
    modes: TableModes,
) -> None:
    """Every transaction that ended at or below a published frontier is in the lake at it, and none that began to commit
    after it. Tiered tables have no frontier: nothing of theirs goes through the stream."""
    table = modes.mirrored
    first: LiteralString = "SELECT coalesce(max(seen), 0) FROM audit.cutlines"
    ((start,),) = modes.database.rows(first)
    positions: dict[int, tuple[int, int]] = {}
    with modes.pumping(limits=paced(0)):
        for turn in range(12):
            key = next(modes.keys)
            before = modes.database.lsn()
            table.put(450, key, "one transaction")
            positions[key] = before, modes.database.lsn()
            if turn % 3 == 2:
                modes.mirror.await_frontier()
    points = modes.database.rows(
        # As of the end of each transaction.
        "SELECT f, location FROM (SELECT DISTINCT ON (xid) * FROM audit.cutlines WHERE table_id = %s AND seen > %s"
        " ORDER BY xid, seen DESC) c ORDER BY f",
        (table.table_id, start),
    )
    assert len(points) > 2
    for frontier, location in points:
        found = {row[1] for row in lake_rows(location, modes.duckdb)}
        for key, (before, after) in positions.items():
            assert (key in found) or after > frontier, f"{key} is not in the lake at {frontier}"
            assert (key not in found) or before < frontier, f"{key} is in the lake at {frontier} already"
    assert points[-1][0] >= max(after for _, after in positions.values())
    assert modes.database.rows(
        "SELECT table_name FROM modak.cutline JOIN modak.tables USING (table_id) WHERE replicated_lsn IS NULL"
        " ORDER BY 1"
    ) == [("bounded",), ("kept",), ("tiered",)]
