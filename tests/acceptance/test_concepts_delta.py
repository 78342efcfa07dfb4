"""What corrections of rows that the heap does not hold any more promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, LiteralString

import pytest
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Summary

from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import Steps, assert_same, normalised
from tests.support.ingest_scene import csv_text
from tests.support.promise_table import PromiseTable
from tests.support.seam_scene import canonical
from tests.support.table_modes import TableModes

pytestmark = pytest.mark.further


def files_of(modes: TableModes, table: PromiseTable) -> set[Path]:
    """Every file of a lake table."""
    root = Path(modes.mirror.settings.require_warehouse().removeprefix("file://"))
    return {path for path in root.rglob("*") if path.is_file() and f"/{table.name}" in path.as_posix()}


def shedding(modes: TableModes) -> tuple[PromiseTable, ...]:
    return (modes.retained, modes.tiered, modes.bounded)


def test_corrections_of_rows_that_the_heap_lacks_do_not_touch_the_lake_on_the_write_path(modes: TableModes) -> None:
    """Not one file of it."""
    for table in shedding(modes):
        before = files_of(modes, table)
        assert before
        known = len(table.delta())
        key = next(modes.keys)
        table.both(f"INSERT INTO {{}} VALUES ({table.cut - 3}, {key}, 1, 'late')")
        table.put(table.cut - 4, key, "late")
        table.remove(table.cut - 50, 5)
        assert files_of(modes, table) == before
        assert len(table.delta()) >= known + 2
        modes.assert_exact(table)


def test_they_are_a_sparse_overlay_by_key_of_upserts_and_tombstones_and_the_newest_wins(modes: TableModes) -> None:
    """One row for a key, however often it is written, with the largest version; every read merges it over the
    published snapshot."""
    with modes.folding():
        pass
    for table in shedding(modes):
        key = next(modes.keys)
        at = table.cut - 20
        versions = []
        for turn in range(3):
            table.put(at, key, f"turn {turn}")
            versions += modes.database.rows(
                "SELECT version FROM modak.delta WHERE table_id = %s AND pk = %s", (table.table_id, canonical(at, key))
            )
        table.put(table.cut - 30, 7, "over a row of the lake")
        table.remove(table.cut - 40, 6)
        assert versions == sorted({*versions})
        assert {pk: op for pk, (op, _) in table.delta().items()} == {
            canonical(at, key): 0,
            canonical(table.cut - 30, 7): 0,
            canonical(table.cut - 40, 6): 1,
        }
        found = modes.assert_exact(table)
        assert canonical(table.cut - 40, 6) in found.lake
        with open_query(modes.mirror.settings, Query(f"FROM {table.name}"), print) as duckdb:
            rows = duckdb.execute(f"FROM {table.name}").fetchall()
        assert_same(table.model(), normalised(rows), "by the product's own reader")
        table.remove(at, key)
        assert table.delta()[canonical(at, key)][0] == 1
        modes.assert_exact(table)


def commits(modes: TableModes, table: PromiseTable) -> dict[int, Summary]:
    """What each snapshot of the lake table says of itself, by pyiceberg."""
    metadata = StaticTable.from_metadata(modes.mirror.location(f"public.{table.name}")).metadata
    return {found.snapshot_id: found.summary for found in metadata.snapshots if found.summary is not None}


def test_a_background_fold_turns_them_into_deletes_and_data_files_and_clears_them(modes: TableModes) -> None:
    """Equality deletes, if the pump has no key index of the table; otherwise positions, which cost readers less."""
    choices: tuple[tuple[dict[str, Any], str], ...] = (
        ({"index_memory": 0, "convert_age": 3600.0}, "added-equality-deletes"),
        ({}, "added-position-deletes"),
    )
    for options, kind in choices:
        with modes.folding():
            pass
        before = {table.name: (table.published, commits(modes, table)) for table in shedding(modes)}
        key = next(modes.keys)
        for table in shedding(modes):
            table.put(table.cut - 20, 8, f"folded {key}")
            table.put(table.cut - 2, key, "folded")
            table.remove(table.cut - 10, 9)
        with modes.pumping(fold_age=0.05, merge_bytes=0, **options):
            modes.await_folded()
            modes.until(lambda: all(not table.delta() for table in shedding(modes)), "they are cleared")
            for table in shedding(modes):
                published, former = before[table.name]
                assert table.published != published
                new = [summary for key, summary in commits(modes, table).items() if key not in former]
                assert any(commit["added-data-files"] and commit[kind] for commit in new), (table.name, new)
        for table in shedding(modes):
            found = modes.assert_exact(table)
            assert found.lake == found.cold, "the lake alone has the rows"
            table.put(table.cut - 10, 9, "again")


def test_a_row_corrected_again_in_the_middle_of_its_fold_survives(modes: TableModes) -> None:
    key = next(modes.keys)
    left: dict[str, list[str]] = {}
    waiting = {f"public.{table.name}": table for table in shedding(modes)}

    def correct(step: Step, details: dict[str, object]) -> None:
        # The fold's files are staged. It lands with the corrections that it has read.
        if step is Step.STAGED and details["frontier"] is None:
            for table in shedding(modes):
                if f"public.{table.name}" in waiting and folded_versions(table) == []:
                    table.put(table.cut - 7, key, "second")
        folded = waiting.pop(str(details["table"]), None) if step is Step.FOLDED else None
        if folded is not None:
            left[folded.name] = [payload["v"] for _, payload in folded.delta().values() if payload["id"] == key]

    def folded_versions(table: PromiseTable) -> list[tuple[int]]:
        query: LiteralString = (
            "SELECT folded_sequence FROM modak.delta WHERE table_id = %s AND pk = %s AND folded_sequence IS NOT NULL"
        )
        return modes.database.rows(query, (table.table_id, canonical(table.cut - 7, key)))

    for table in shedding(modes):
        table.put(table.cut - 7, key, "first")
    with modes.pumping(Steps(correct), fold_age=0.05):
        modes.until(lambda: not waiting, "all three are folded")
        modes.assert_all_exact()
        modes.await_folded()
    assert left == {table.name: ["second"] for table in shedding(modes)}
    for table in shedding(modes):
        assert modes.assert_exact(table).lake[canonical(table.cut - 7, key)][3] == "second"


def test_folds_are_a_cycle_of_the_pump_and_of_mirrored_tables_come_between_batches(modes: TableModes) -> None:
    """Batches of the stream are committed before, between and after folds, in one session, and no fold is part of a
    batch."""
    steps = Steps()
    tiered, retained = modes.tiered, modes.retained
    with modes.pumping(steps, fold_age=0.05):
        for turn in range(4):
            retained.put(retained.cut + 9, next(modes.keys), f"turn {turn}")
            modes.mirror.await_frontier()
            for table in (tiered, retained):
                table.put(table.cut - 9, next(modes.keys), f"turn {turn}")
            modes.await_folded()
        retained.put(retained.cut + 9, next(modes.keys), "after all folds")
        modes.mirror.await_frontier()
        assert steps.count(Step.STREAMING) == 1
    order = []
    for step, details in steps.occurrences:
        if step is Step.FOLDED:
            order.append(str(details["table"]))
        elif step is Step.STAGED and details["frontier"] is not None:
            order.append("batch")
    for table in (tiered, retained):
        folds = [place for place, name in enumerate(order) if name == f"public.{table.name}"]
        assert len(folds) >= 4
        assert "batch" in order[: folds[0]]
        assert "batch" in order[folds[0] : folds[-1]]
        assert "batch" in order[folds[-1] :]
        modes.assert_exact(table)


def test_fully_mirrored_tables_never_need_them(modes: TableModes) -> None:
    """Corrections of whatever age are plain changes of the heap, which the pump replays."""
    table = modes.mirrored
    table.both("UPDATE {} SET v = 'corrected' WHERE at < 50")
    table.both("DELETE FROM {} WHERE at = 60")
    with modes.pumping():
        modes.mirror.await_frontier()
    modes.mirror.assert_equal("public.mirrored")
    assert_same(table.model(), table.heap(), "the heap")
    corrected: LiteralString = (
        "SELECT count(*) FROM modak.op_log o WHERE table_id = %s AND op_kind IN ('fold', 'retention', 'tiering')"
    )
    assert modes.database.rows(corrected, (table.table_id,)) == [(0,)]
    assert table.delta() == {}


def test_bulk_historical_loads_go_through_ingestion_instead(modes: TableModes, tmp_path: Path) -> None:
    """No row of one is a correction; all of them come in one published snapshot."""
    with modes.folding():
        pass
    for table in shedding(modes):
        key = next(modes.keys)
        low = table.cut - 100
        rows = [(low + number % 90, 100_000 + key * 1000 + number, 1, "bulk") for number in range(500)]
        source = tmp_path / f"{table.name}.csv"
        source.write_text(csv_text(rows, ("at", "id", "n", "v")))
        ((first,),) = modes.database.rows("SELECT max(seen) FROM audit.cutlines")
        outcome = ingest(modes.mirror.settings, IngestRequest(table.name, (str(source),)), lambda _: None)
        assert (outcome.lake_rows, outcome.heap_rows, outcome.corrected) == (500, 0, 0)
        assert table.delta() == {}
        assert modes.database.rows(
            "SELECT count(DISTINCT s) FROM audit.cutlines WHERE table_id = %s AND seen > %s", (table.table_id, first)
        ) == [(1,)]
        with (
            modes.database.session(autocommit=False) as connection,
            connection.cursor().copy(f"COPY {table.name}_model FROM STDIN".encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)
        found = modes.assert_exact(table)
        assert canonical(*rows[0][:2]) in found.lake
