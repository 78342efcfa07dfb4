"""What the tier key is for: it alone says in which tier a row is.

The tests of test_concepts_*.py have the statement that they prove in their names. They share one mirror with a table of
each mode, and read by plain SQL, DuckDB and pyiceberg.
"""

from __future__ import annotations

import pytest

from mirror_pump.errors import TableError
from mirror_pump.model import TableMode
from mirror_pump.source.retention.retention_plan import RetentionOptions
from tests.support.retention_table import run
from tests.support.seam_scene import canonical
from tests.support.table_modes import TableModes

pytestmark = pytest.mark.further

WITHIN = 100
"""So far below the cut-line every table has rows, also one whose oldest rows have expired."""


def test_every_registered_table_names_one_column_as_its_tier_key(modes: TableModes) -> None:
    """The catalog has one column for each table, and its values as bigints: of times and dates, too, distances from
    1970 (tests/unit/source/relations). Of a table that is mirrored whole it is the first column of the key."""
    assert modes.database.rows("SELECT table_name, tier_key_col, tier_key_type FROM modak.tables ORDER BY 1") == [
        (table.name, "at", "bigint") for table in sorted(modes.registered, key=lambda table: table.name)
    ]
    assert modes.database.rows(
        "SELECT DISTINCT format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid IN ('modak.cutline'::regclass, 'modak.partitions'::regclass, 'modak.delta'::regclass,"
        " 'modak.read_pins'::regclass) AND attname ~ 'tier_key|retention_line'"
    ) == [("bigint",)]


def test_the_tier_key_alone_decides_where_a_row_lives(modes: TableModes) -> None:
    """Rows that differ in nothing else, inserted by one statement, by COPY and by modak.upsert, the younger ones first:
    those from the cut-line on are in the heap, and those below it are corrections of the lake."""
    for table in (modes.retained, modes.tiered, modes.bounded):
        cut = table.cut
        places = [cut, cut + 1, cut - 1, cut - WITHIN]
        by_insert, by_copy, by_upsert = (next(modes.keys) for _ in range(3))
        values = ", ".join(f"({at}, {by_insert}, 1, 'same')" for at in places)
        table.both(f"INSERT INTO {{}} VALUES {values}")
        with modes.database.session(autocommit=False) as connection:
            for name in (table.name, f"{table.name}_model"):
                with connection.cursor().copy(f"COPY {name} FROM STDIN".encode()) as copy:
                    for at in places:
                        copy.write_row((at, by_copy, 1, "same"))
        for at in places:
            table.put(at, by_upsert, "same")
        new = {by_insert, by_copy, by_upsert}
        in_heap = {(row[0], row[1]) for row in table.heap() if row[1] in new}
        assert in_heap == {(at, key) for key in new for at in places if at >= cut}, table.name
        corrections = {payload["at"]: pk for pk, (_, payload) in table.delta().items() if payload["id"] in new}
        assert set(corrections) == {at for at in places if at < cut}, table.name
        assert modes.assert_exact(table).hot.keys() >= {canonical(at, key) for at, key in in_heap}


def declared(tier_key: str) -> RetentionOptions:
    return RetentionOptions(lag="9 weeks", mode=TableMode.TIERED, tier_key=tier_key)


def test_it_is_declared_at_registration(modes: TableModes) -> None:
    """And has to be the column by which the table is partitioned."""
    modes.database.execute(
        "CREATE TABLE declared (id bigint, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE declared_1 PARTITION OF declared FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    )
    try:
        with pytest.raises(TableError, match="declared is partitioned by day, not by id"):
            modes.mirror.register("declared", retention=declared("id"))
        modes.mirror.register("declared", retention=declared("day"))
        assert modes.database.rows(
            "SELECT tier_key_col, tier_key_type FROM modak.tables WHERE table_name = 'declared'"
        ) == [("day", "date")]
        modes.mirror.unregister("declared", drop_lake=True)
    finally:
        modes.database.execute("DROP TABLE declared")


def test_an_update_of_the_tier_key_moves_the_row_to_where_the_new_value_says(modes: TableModes) -> None:
    """From the heap to below the cut-line everywhere. Back by UPDATE as long as the heap has the row, which a table
    that keeps its heap always does; otherwise by taking it away below and inserting it above."""
    for table in modes.divided:
        cut, key = table.cut, next(modes.keys)
        old, young = cut - WITHIN, cut + 50
        table.put(young, key, "young")
        assert table.both(f"UPDATE {{}} SET at = {old} WHERE (at, id) = ({young}, {key})") == 1
        found = modes.assert_exact(table)
        assert canonical(old, key) in found.cold, table.name
        assert canonical(young, key) not in found.hot, table.name
        in_heap = table.heap(f"id = {key}")
        assert [row[0] for row in in_heap] == ([] if table.sheds else [old]), table.name
        if table.sheds:
            table.remove(old, key)
            table.both(f"INSERT INTO {{}} VALUES ({young}, {key}, 7, 'young')")
        else:
            assert table.both(f"UPDATE {{}} SET at = {young} WHERE (at, id) = ({old}, {key})") == 1
        found = modes.assert_exact(table)
        assert canonical(young, key) in found.hot, table.name
        assert canonical(old, key) not in found.cold, table.name
    # Where there is one tier, there is nowhere to move to.
    key = next(modes.keys)
    modes.mirrored.put(450, key, "young")
    modes.mirrored.both(f"UPDATE {{}} SET at = 5 WHERE (at, id) = (450, {key})")
    assert [row[0] for row in modes.mirrored.heap(f"id = {key}")] == [5]
    with modes.database.session() as connection:
        assert run(connection, "SELECT count(*) FROM modak.delta WHERE payload ->> 'at' = '5'").fetchone() == (0,)
