"""What each mode of a table promises: how much of it PostgreSQL holds, and what becomes of the rest."""

from __future__ import annotations

from typing import Any, LiteralString

import pytest

from mirror_pump.errors import MirrorPumpError, TableError
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.retain.retention import resume
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import Row, Steps, assert_same, lake_rows, normalised
from tests.support.promise_table import PromiseTable
from tests.support.retention_table import WIDTH, run
from tests.support.seam_scene import by_pyiceberg, canonical
from tests.support.table_modes import LAKE_LAG, TableModes
from tests.support.tiered import tiered

TRIGGERS: LiteralString = (
    "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'zz_modak%%' AND tgrelid IN"
    " (SELECT relid FROM pg_partition_tree(%s::regclass) UNION SELECT %s::regclass)"
)
"""How many triggers of the mirror a table and its partitions have. Takes its name twice."""


def main(modes: TableModes, table: PromiseTable) -> list[Row]:
    """The rows of the catalog's current snapshot, as every engine sees them, read by DuckDB and by pyiceberg."""
    location = modes.mirror.location(f"public.{table.name}")
    found = lake_rows(location, modes.duckdb)
    assert_same(found, by_pyiceberg(location) or found, f"{table.name} by pyiceberg")
    return found


def answer(modes: TableModes, query: str, mode: ReadMode, notices: list[str], **options: Any) -> list[Any]:
    """The only column of a query's result, by the product's own reader."""
    with open_query(modes.mirror.settings, Query(query, mode, **options), notices.append) as duckdb:
        return [value for (value,) in duckdb.execute(query).fetchall()]


def test_the_modes_differ_by_how_much_of_the_table_postgres_holds(modes: TableModes) -> None:
    """One axis: everything, a window of the newest partitions, everything beside the lake's copy."""
    for table in (modes.plain, modes.mirrored, modes.kept):
        assert_same(table.model(), table.heap(), f"{table.name}: the whole table")
    for table in (modes.retained, modes.tiered, modes.bounded):
        recent = table.model(f"at >= {table.cut}")
        assert 0 < len(recent) < len(table.model())
        assert_same(recent, table.heap(), f"{table.name}: its newest partitions")
    assert modes.database.rows(
        "SELECT table_name, mode, keep_heap, heap_retention_lag, lake_retention_lag FROM modak.tables ORDER BY 1"
    ) == [
        ("bounded", "tiered", False, None, LAKE_LAG),
        ("kept", "tiered", True, None, None),
        ("mirrored", "mirrored", False, None, None),
        ("retained", "mirrored", False, 100, None),
        ("tiered", "tiered", False, None, None),
    ]


def test_tables_of_all_modes_and_plain_ones_live_side_by_side_under_one_run(modes: TableModes) -> None:
    """One process tiers, sheds, expires, folds and streams at once, and leaves alone what is not registered."""
    steps = Steps()
    with modes.pumping(steps, fold_age=0.05):
        for table in (modes.plain, *modes.registered):
            key = next(modes.keys)
            table.put(450, key, "young")
            if table in modes.divided:
                table.put(table.cut - 10, key, "old")
                table.remove(table.cut - 20, 8)
                table.grow()
        modes.await_settled()
        modes.await_folded()
        modes.assert_all_exact()
        modes.mirror.assert_equal("public.mirrored")
        assert modes.database.rows("SELECT count(*) FROM modak.mirror_slots WHERE leader IS NOT NULL") == [(1,)]
    advanced, folded = steps.details(Step.TIER_ADVANCED, "table"), steps.details(Step.FOLDED, "table")
    assert {*advanced} == {*folded} == {f"public.{table.name}" for table in modes.divided}
    assert steps.details(Step.EXPIRED, "table") == ["public.bounded"]
    assert modes.database.rows("SELECT tablename::text FROM pg_publication_tables ORDER BY 1") == [
        ("mirrored",),
        ("retained",),
    ]
    assert modes.database.rows(TRIGGERS, ("plain", "plain")) == [(0,)]
    with pytest.raises(LookupError):
        modes.mirror.location("public.plain")


# --- tiered tables


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("at bigint PRIMARY KEY", "is not partitioned"),
        ("at bigint PRIMARY KEY) PARTITION BY LIST (at", "is not partitioned by range of one column"),
        ("at bigint PRIMARY KEY) PARTITION BY HASH (at", "is not partitioned by range of one column"),
        ("at bigint, id int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at, id", "not partitioned by range of one"),
        ("at text PRIMARY KEY) PARTITION BY RANGE (at", "neither an integer nor a time"),
        ("at bigint, id int) PARTITION BY RANGE (at", "key"),
    ],
)
def test_a_tiered_table_is_partitioned_by_range_on_the_tier_key(
    modes: TableModes, definition: str, reason: str
) -> None:
    """Every other table is refused."""
    with modes.database.session() as connection:
        run(connection, f"CREATE TABLE shaped ({definition})")
        try:
            with pytest.raises(MirrorPumpError, match=reason):
                modes.mirror.register("shaped", retention=tiered())
        finally:
            run(connection, "DROP TABLE shaped")


def test_postgres_keeps_only_the_recent_partitions_of_a_tiered_table(modes: TableModes) -> None:
    for table in (modes.tiered, modes.bounded):
        count = table.partitions
        assert table.cut == (count - 2) * WIDTH
        recent = {table.partition(count - 2), table.partition(count - 1)}
        assert table.attached() == recent
        assert table.heap(f"at < {table.cut}") == []


@pytest.mark.further
def test_whole_partitions_behind_the_high_water_mark_move_into_the_lake_and_are_then_dropped(
    modes: TableModes,
) -> None:
    """One whose newest rows are still within the lag stays whole, though most of its rows are beyond. A reader that
    pinned the table before shows that the rows are in the lake before the heap lets go of them."""
    table = modes.tiered
    leaving = table.partitions - 2
    table.put((leaving + 2) * WIDTH - 1, 1, "the newest key: less the lag it is the last one of the partition")
    with modes.pumping():
        modes.await_settled()
        assert table.cut == leaving * WIDTH
        assert table.partition(leaving) in table.attached()
        ((pin,),) = modes.database.rows("SELECT pin_id FROM modak.pin('tiered', in_one_snapshot => true)")
        table.grow()
        modes.until(lambda: table.history(leaving)[-1:] == ["tiered"], "the partition is proven to be in the lake")
        in_partition = f"at >= {leaving * WIDTH} AND at < {(leaving + 1) * WIDTH}"
        moved = table.heap(in_partition)
        assert moved == table.model(in_partition)
        assert table.cut == (leaving + 1) * WIDTH
        assert {*moved} <= {*lake_rows(table.published, modes.duckdb)}
        modes.assert_exact(table)
        modes.database.rows("SELECT modak.release(%s)", (pin,))
        modes.await_settled()
    assert table.history(leaving) == ["sealing", "tiering", "tiered", "dropped"]
    assert modes.database.rows("SELECT to_regclass(%s)::text", (table.partition(leaving),)) == [(None,)]
    assert {*moved} <= {*modes.assert_exact(table).cold.values()}


def test_each_tier_holds_its_own_slice_and_the_lake_has_the_only_copy_of_old_rows(modes: TableModes) -> None:
    """Also for an engine that knows nothing of the cut-line: the lake table as it is, and the heap as it is."""
    with modes.folding():
        pass
    for table in (modes.tiered, modes.bounded):
        heap, lake = table.heap(), main(modes, table)
        assert not {row[:2] for row in heap} & {row[:2] for row in lake}
        assert max(row[0] for row in lake) < table.cut <= min(row[0] for row in heap)
        assert_same(table.model(), [*heap, *lake], f"both tiers of {table.name}")
        assert_same(lake, lake_rows(table.published, modes.duckdb), f"the published snapshot of {table.name}")


@pytest.mark.further
def test_lake_rows_expire_behind_the_cut_line_so_the_history_is_bounded(modes: TableModes) -> None:
    table = modes.bounded
    for _ in range(2):
        before = table.line
        assert before == table.cut - LAKE_LAG
        for location in (table.published, modes.mirror.location("public.bounded")):
            assert any(row[0] < before + WIDTH for row in lake_rows(location, modes.duckdb)), "rows that will expire"
        table.put(before + 5, next(modes.keys), "a correction that expires with its row")
        table.grow()
        with modes.pumping():
            modes.await_settled()
        assert table.line == before + WIDTH
        for location in (table.published, modes.mirror.location("public.bounded")):
            rows = lake_rows(location, modes.duckdb)
            assert_same(rows, by_pyiceberg(location) or rows, "by pyiceberg")
            assert min(row[0] for row in rows) >= table.line
        assert all(payload["at"] >= table.line for _, payload in table.delta().values())
        ats = [row[0] for row in modes.assert_exact(table).rows]
        assert max(ats) - min(ats) < LAKE_LAG + 2 * WIDTH


def test_corrections_to_rows_that_moved_cold_land_in_the_delta_and_rewrite_nothing(modes: TableModes) -> None:
    for table in (modes.tiered, modes.bounded):
        known = table.delta().keys()
        places = (table.published, modes.mirror.location(f"public.{table.name}"))
        key = next(modes.keys)
        table.put(table.cut - 5, key, "corrected")
        table.remove(table.cut - 30, 7)
        assert places == (table.published, modes.mirror.location(f"public.{table.name}"))
        delta = table.delta()
        assert {pk: delta[pk][0] for pk in delta.keys() - known} == {
            canonical(table.cut - 5, key): 0,
            canonical(table.cut - 30, 7): 1,
        }
        found = modes.assert_exact(table)
        assert canonical(table.cut - 5, key) not in found.lake
        assert canonical(table.cut - 30, 7) in found.lake


# --- tiered tables that keep their heap


@pytest.mark.further
def test_a_keep_heap_table_tiers_the_same_way_minus_the_drop(modes: TableModes) -> None:
    """Partitions are copied in batches, the cut-line advances, and nothing leaves; plain DML works everywhere."""
    table = modes.kept
    leaving = table.partitions - 2
    low = leaving * WIDTH
    table.both(f"INSERT INTO {{}} SELECT {low} + g % 90, 50000 + g, 0, 'many' FROM generate_series(1, 700) g")
    before = table.attached()
    table.grow()
    steps = Steps()
    with modes.pumping(steps):
        modes.await_settled()
        assert len({*steps.details(Step.CHUNK_COPIED, "chunk")}) > 1
        assert table.cut == low + WIDTH
        assert table.attached() == before | {table.partition(table.partitions - 1)}
        assert table.history(leaving) == ["sealing", "tiering", "tiered"]
        assert "dropped" not in table.own_states()
        for number in range(table.partitions):
            at, key = number * WIDTH + 3, next(modes.keys)
            table.both(f"INSERT INTO {{}} VALUES ({at}, {key}, 0, 'new'), ({at}, {key} + 100000, 0, 'new')")
            table.both(f"INSERT INTO {{}} VALUES ({at}, {key}, 0, '') ON CONFLICT (at, id) DO UPDATE SET n = 5")
            assert table.both(f"UPDATE {{}} SET v = 'changed' WHERE at = {at} AND id = {key}") == 1
            assert table.both(f"DELETE FROM {{}} WHERE at = {at} AND id = {key} + 100000") == 1
            assert table.both(f"UPDATE {{}} SET n = n + 1 WHERE at = {number * WIDTH + 20}") >= 1
        with modes.database.session(autocommit=False) as connection:
            run(connection, f"TRUNCATE {table.partition(1)}")
            run(connection, f"DELETE FROM kept_model WHERE at >= {WIDTH} AND at < {2 * WIDTH}")
        modes.assert_exact(table)
    assert_same(table.model(), table.heap(), "the heap is whole")


def test_a_row_trigger_on_tiered_partitions_mirrors_every_change_into_the_delta(modes: TableModes) -> None:
    """In the transaction of the change; so reads across the cut-line see it, and a fold brings it to the lake. Changes
    of partitions that are not tiered yet leave no trace."""
    table = modes.kept
    with_trigger = modes.database.rows(
        "SELECT tgrelid::regclass::text FROM pg_trigger"
        " WHERE tgname = 'zz_modak_row' AND tgtype & 1 = 1 AND tgenabled = 'A'"
    )
    assert {name for (name,) in with_trigger} & table.attached() == {
        table.partition(number) for number in range(table.partitions - 2)
    }
    with modes.folding():
        pass
    key = next(modes.keys)
    count: LiteralString = "SELECT pk, op FROM modak.delta WHERE table_id = %s AND folded_sequence IS NULL ORDER BY pk"
    with modes.database.session(autocommit=False) as connection:
        run(connection, f"INSERT INTO kept VALUES (15, {key}, 0, 'undone')")
        assert connection.execute(count, (table.table_id,)).fetchall() == [(canonical(15, key), 0)]
        connection.rollback()
    assert modes.database.rows(count, (table.table_id,)) == []
    table.both(f"INSERT INTO {{}} VALUES (15, {key}, 0, 'inserted'), (25, {key}, 0, 'inserted')")
    table.both(f"UPDATE {{}} SET v = 'updated' WHERE (at, id) = (15, {key})")
    table.both(f"DELETE FROM {{}} WHERE (at, id) = (25, {key})")
    table.both(f"UPDATE {{}} SET id = {key} + 200000 WHERE (at, id) = (30, 3)")
    table.both(f"INSERT INTO {{}} VALUES ({table.cut + 5}, {key}, 0, 'young')")
    assert modes.database.rows(count, (table.table_id,)) == sorted(
        [
            (canonical(15, key), 0),
            (canonical(25, key), 1),
            (canonical(30, 3), 1),
            (canonical(30, key + 200000), 0),
        ]
    )
    assert table.delta()[canonical(15, key)][1] == {"at": 15, "id": key, "n": 0, "v": "updated"}
    modes.assert_exact(table)
    with modes.folding():
        pass
    assert_same(table.heap(f"at < {table.cut}"), list(modes.assert_exact(table).lake.values()), "what is folded")


@pytest.mark.further
def test_full_history_in_both_stores_without_a_replication_slot(modes: TableModes) -> None:
    """PostgreSQL never shrinks: every partition that there ever was is there."""
    table = modes.kept
    with modes.folding():
        pass
    assert_same(table.model(), table.heap(), "the heap has everything")
    assert_same(table.model(f"at < {table.cut}"), main(modes, table), "the lake has all but the newest partitions")
    assert table.attached() == {table.partition(number) for number in range(table.partitions)}
    assert modes.database.rows(
        "SELECT slot_name, publication_name FROM modak.tables WHERE mode = 'tiered' GROUP BY 1, 2"
    ) == [(None, None)]
    assert modes.database.rows("SELECT count(*) FROM pg_publication_tables WHERE tablename = 'kept'") == [(0,)]


# --- tables that are mirrored whole


@pytest.mark.further
def test_a_fully_mirrored_table_is_any_table_with_a_primary_key(modes: TableModes) -> None:
    """However it is partitioned, or not, and whatever its key is made of. Without a key it is refused."""
    shapes = {
        "of_text": "(name text PRIMARY KEY, n int)",
        "of_pair": "(a uuid, b date, n int, PRIMARY KEY (a, b))",
        "by_list": "(region text, id int, PRIMARY KEY (region, id)) PARTITION BY LIST (region)",
        "keyless": "(n int)",
    }
    with modes.database.session() as connection:
        for name, shape in shapes.items():
            run(connection, f"CREATE TABLE {name} {shape}")
        run(connection, "CREATE TABLE by_list_n PARTITION OF by_list FOR VALUES IN ('n')")
        run(connection, "INSERT INTO of_text VALUES ('', 1), ('b', 2)")
        run(connection, "INSERT INTO of_pair VALUES (gen_random_uuid(), '2026-01-01', 1)")
        run(connection, "INSERT INTO by_list VALUES ('n', 1)")
        with pytest.raises(TableError, match="key"):
            modes.mirror.register("keyless")
        mirrored = [name for name in shapes if name != "keyless"]
        modes.mirror.register(*mirrored)
        with modes.pumping():
            modes.mirror.await_live(*(f"public.{name}" for name in mirrored))
            run(connection, "UPDATE of_text SET n = 3 WHERE name = 'b'")
            modes.mirror.await_frontier()
            modes.mirror.assert_equal(*(f"public.{name}" for name in mirrored))
        for name in shapes:
            if name in mirrored:
                modes.mirror.unregister(name, drop_lake=True)
            run(connection, f"DROP TABLE {name}")


def test_postgres_keeps_the_whole_copy_and_the_pump_trails_every_change_into_the_lake(modes: TableModes) -> None:
    """Plain DML of old and of young rows alike."""
    table = modes.mirrored
    key = next(modes.keys)
    with modes.pumping():
        for at in (0, 250, 490):
            table.both(f"INSERT INTO {{}} VALUES ({at}, {key}, 0, 'new'), ({at}, {key} + 100000, 0, 'new')")
            table.both(f"UPDATE {{}} SET n = n + 1 WHERE at BETWEEN {at} AND {at + 40}")
            table.both(f"DELETE FROM {{}} WHERE (at, id) = ({at}, {key} + 100000)")
        modes.mirror.await_frontier()
    assert_same(table.model(), table.heap(), "the heap has everything")
    assert_same(table.model(), main(modes, table), "and so has the lake")


def test_nothing_routes_and_nothing_needs_the_delta_of_a_fully_mirrored_table(modes: TableModes) -> None:
    table = modes.mirrored
    assert modes.database.rows(TRIGGERS, ("mirrored", "mirrored")) == [(0,)]
    assert modes.database.rows(TRIGGERS, ("retained", "retained")) != [(0,)]
    assert modes.database.rows("SELECT count(*) FROM modak.partitions WHERE table_id = %s", (table.table_id,)) == [(0,)]
    table.both("UPDATE {} SET n = n + 1 WHERE at < 100")
    assert table.delta() == {}
    assert table.cut == -(2**63), "the heap is complete"


def test_the_lake_is_a_trailing_full_copy_of_a_fully_mirrored_table(modes: TableModes) -> None:
    """Without a pump it stays where it was, a whole state that the table had."""
    table = modes.mirrored
    with modes.pumping():
        modes.mirror.await_frontier()
    before = table.model()
    table.put(5, next(modes.keys), "later")
    assert_same(before, main(modes, table), "the state of the frontier")
    with modes.pumping():
        modes.mirror.await_frontier()
    assert_same(table.model(), main(modes, table), "the state of the next frontier")


@pytest.mark.further
def test_reads_of_a_fully_mirrored_table_take_the_lake_or_the_heap_as_asked(modes: TableModes) -> None:
    """By default the lake, at its frontier, since that is what readers of this product come for; the heap by the mode
    `heap`. A hybrid read takes old rows from the lake, once the lake provably has all that was committed before the
    read, and young ones from the heap; if that does not come about it takes the heap, and says so."""
    table = modes.mirrored
    with modes.pumping():
        modes.mirror.await_frontier()
    key = next(modes.keys)
    table.put(5, key, "later")
    query = f"SELECT v FROM mirrored WHERE id = {key}"
    notices: list[str] = []
    assert answer(modes, query, ReadMode.SEAM, notices) == []
    assert answer(modes, query, ReadMode.HEAP, notices) == ["later"]
    assert notices == []
    assert answer(modes, query, ReadMode.HYBRID, notices, max_wait=0.01) == ["later"]
    assert any("heap" in notice for notice in notices), notices
    query = 'SELECT "at", id, n, v FROM mirrored'
    with (
        modes.pumping(),
        open_query(modes.mirror.settings, Query(query, ReadMode.HYBRID, max_wait=60), print) as duckdb,
    ):
        views = duckdb.execute("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall()
        assert "iceberg_scan" in str(views), "old rows are read from the lake"
        found = duckdb.execute(query).fetchall()
    assert_same(table.model(), normalised(found), "a hybrid read")


# --- mirrored tables with heap retention


@pytest.mark.further
def test_partitions_are_dropped_once_they_are_behind_and_the_mirror_provably_holds_them(modes: TableModes) -> None:
    """A partition of which the heap has another row than the mirror is not dropped, however old it is."""
    table = modes.retained
    leaving = table.partitions - 2
    with modes.pumping():
        modes.await_settled()
        ((pin,),) = modes.database.rows("SELECT pin_id FROM modak.pin('retained', in_one_snapshot => true)")
        table.grow()
        modes.until(lambda: table.history(leaving)[-1:] == ["tiered"], "the partition is proven")
        partition = table.partition(leaving)
        with modes.database.session(autocommit=False) as connection:
            run(connection, f"ALTER TABLE {partition} DISABLE TRIGGER zz_modak_row")
            run(connection, f"UPDATE {partition} SET n = 99 WHERE id = 3")
            run(connection, f"ALTER TABLE {partition} ENABLE ALWAYS TRIGGER zz_modak_row")
        modes.database.rows("SELECT modak.release(%s)", (pin,))
        resume(modes.mirror.settings, ["retained"])
        stopped: LiteralString = "SELECT retention_stopped FROM modak.status WHERE table_name = 'retained'"
        modes.until(lambda: "heap and lake differ" in str(modes.database.rows(stopped)), "the proof fails")
        assert partition in table.attached()
        with modes.database.session() as connection:
            run(connection, f"UPDATE {partition} SET n = 0 WHERE id = 3")
        resume(modes.mirror.settings, ["retained"])
        modes.await_settled()
    assert table.history(leaving)[-1] == "dropped"
    assert table.history(leaving).index("tiered") < table.history(leaving).index("dropped")
    modes.assert_exact(table)


@pytest.mark.further
def test_full_history_in_the_lake_a_bounded_window_in_postgres_and_reads_split_at_the_seam(modes: TableModes) -> None:
    """`main` is the whole table, for engines that read the lake alone; the published snapshot has the rows below the
    cut-line, for reads that are split there as those of a tiered table are."""
    table = modes.retained
    with modes.folding():
        modes.mirror.await_frontier()
    assert_same(table.model(), main(modes, table), "the lake has everything")
    ats = [row[0] for row in table.heap()]
    assert max(ats) - min(ats) < 2 * WIDTH, "the lag, and the partition that it reaches into"
    found = modes.assert_exact(table)
    assert all(row[0] < table.cut for row in found.lake.values())
    assert {row[0] >= table.cut for row in found.hot.values()} == {True}


@pytest.mark.further
def test_writes_below_the_dropped_window_take_the_delta_path_and_are_folded_between_batches(modes: TableModes) -> None:
    """Old data stays correctable after its heap rows are gone, while the stream of young rows goes on."""
    table = modes.retained
    inserted, put = next(modes.keys), next(modes.keys)
    table.both(f"INSERT INTO {{}} VALUES (5, {inserted}, 1, 'late')")
    table.put(15, put, "late")
    table.remove(40, 4)
    assert table.heap("at < 100") == []
    corrections = {canonical(5, inserted): 0, canonical(15, put): 0, canonical(40, 4): 1}
    assert corrections.items() <= {pk: op for pk, (op, _) in table.delta().items()}.items()
    modes.assert_exact(table)
    steps = Steps()
    with modes.pumping(steps, fold_age=0.05):
        for turn in range(6):
            table.both(f"INSERT INTO {{}} VALUES ({table.cut + 5}, {next(modes.keys)}, {turn}, 'young')")
            modes.mirror.await_frontier()
        modes.await_folded()
        table.both(f"INSERT INTO {{}} VALUES ({table.cut + 5}, {next(modes.keys)}, 9, 'young')")
        modes.mirror.await_frontier()
    assert "public.retained" in steps.details(Step.FOLDED, "table")
    found = {canonical(*row[:2]) for row in main(modes, table)}
    assert {pk for pk in corrections if pk in found} == {canonical(5, inserted), canonical(15, put)}
    assert_same(table.model(), main(modes, table), "the stream's rows and the folded ones")
