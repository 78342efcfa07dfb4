"""The pump's commits to a table: random ones against a model of the rows and of their lineage, with rewrites that land
after later commits, in each form of deletes by position; and what each leaves of deletion vectors."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from mirror_pump.engine.rewrite.file_merge import merge_positions
from mirror_pump.engine.rewrite.merge_plan import MergeSizes, merged_file_rewrite, plan_merge
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.expired_rows import RowsBelow
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.model import LakePartitioning
from mirror_pump.ops.maintenance.file_counts import FileCounter
from mirror_pump.ops.maintenance.plan import position_deletes_of
from mirror_pump.ops.status.lake_content import lake_content
from mirror_pump.settings.policy import Policy
from mirror_pump.testing.lake import read_duckdb
from tests.support.lake_tables import SCHEMA, START_MS, STORAGE, TARGET
from tests.support.vector_tables import BY_ID, VectorTable


def random_history(table: VectorTable, steps: int = 300) -> None:
    """Ends once each kind of rewrite has landed, one of them late; 50 steps at least."""
    for number in range(steps):
        if number > 50 and table.conversions and table.merges and table.moved:
            break
        if number == 20:
            table.upgrade()
        kinds = [*4 * [table.change], *2 * [table.begin], *2 * [table.land], table.truncate, table.restart]
        table.drawn.choice(kinds)()
        table.check()
    assert table.conversions
    assert table.merges
    assert table.moved


@pytest.mark.parametrize(
    ("partitioning", "first_version", "last_version"),
    [
        pytest.param(None, 3, 3, id="whole, vectors", marks=pytest.mark.further),
        pytest.param(None, 2, 3, id="whole, upgraded"),
        pytest.param(None, 2, 2, id="whole, files"),
        pytest.param(BY_ID, 3, 3, id="by id, vectors"),
        pytest.param(BY_ID, 2, 3, id="by id, upgraded", marks=pytest.mark.further),
        pytest.param(BY_ID, 2, 2, id="by id, files", marks=pytest.mark.further),
    ],
)
def test_random_commits(
    warehouse: str, partitioning: LakePartitioning | None, first_version: int, last_version: int
) -> None:
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    drawn = random.Random(seed)
    location = f"{warehouse}/t"
    table = VectorTable(location, drawn, partitioning, format_version=first_version, last_version=last_version)
    random_history(table)
    location = table.table.metadata_location
    read = read_duckdb(location, f"SELECT id, v FROM iceberg_scan('{location}') ORDER BY id").to_pylist()
    assert [(row["id"], row["v"]) for row in read] == sorted(table.rows.items())


def test_a_merge_lands_though_a_source_is_gone_but_not_if_deletes_are_undone(warehouse: str) -> None:
    table = VectorTable(f"{warehouse}/t", random.Random(0))
    for first in range(0, 40, 10):
        table.add(range(first, first + 10))
    undone = table.table
    table.delete([5, 15])
    table.begin(merges=True)
    table.delete(range(10, 20))
    table.delete([25])
    assert table.table.data_files == 3
    table.land()
    table.check()
    assert (table.merges, table.moved, table.table.data_files, table.table.position_deletes) == (1, 1, 1, 10)
    later, table.table = table.table, undone
    table.delete([5])
    table.begin(merges=True)
    table.table = undone
    table.land()
    assert (table.merges, table.superseded) == (1, 1)
    table.table = later
    table.check()


@pytest.mark.parametrize("upgraded_first", [False, True])
def test_a_merge_from_before_rows_had_ids_does_not_land(warehouse: str, upgraded_first: bool) -> None:
    table = VectorTable(f"{warehouse}/t", random.Random(0), format_version=2)
    for first in range(0, 20, 10):
        table.add(range(first, first + 10))
    if upgraded_first:
        table.upgrade()
    table.begin(merges=True)
    table.upgrade()
    table.check()
    table.add([100])
    table.check()
    table.land()
    table.check()
    assert (table.merges, table.superseded) == (0, 1)


@pytest.mark.parametrize("format_version", [2, 3])
def test_a_merge_lands_though_sources_have_expired(warehouse: str, format_version: int) -> None:
    table = VectorTable(f"{warehouse}/t", random.Random(0), format_version=format_version)
    for first in range(0, 40, 10):
        table.add(range(first, first + 10))
    table.delete([15, 35])
    table.begin(merges=True)
    table.delete([25])
    table.commit(RowDelta((), replaces=RowsBelow(CutLine("id", 1, SCHEMA.fields[0].type, 20))))
    table.rows = {key: value for key, value in table.rows.items() if key >= 20}
    assert table.table.data_files == 2
    table.land()
    table.check()
    assert (table.merges, table.superseded, table.table.data_files) == (1, 0, 1)


@pytest.mark.parametrize("merges", [False, True])
def test_a_rewrite_hides_rows_in_the_form_that_the_table_has_by_then(warehouse: str, merges: bool) -> None:
    """A conversion, and a merge of position-delete files, from before an upgrade."""
    table = VectorTable(f"{warehouse}/t", random.Random(0), format_version=2)
    table.add(range(30))
    for key in range(3):
        table.delete([key])
    if not merges:
        table.commit(RowDelta((SegmentFiles((), (table.deletes([7, 8]),)),)))
        del table.rows[7], table.rows[8]
    rewrite = positions_merge(table) if merges else table.conversion()
    assert rewrite is not None
    assert rewrite.hidden
    table.upgrade()
    table.commit(RowDelta((), replaces=rewrite))
    table.format_version = 2 if not merges else 3
    table.check()
    assert table.table.equality_deletes == 0
    assert table.table.delete_files == 1


def positions_merge(table: VectorTable) -> FileRewrite | None:
    plan = plan_merge(table.table, table.listing, 0, MergeSizes(fanout=2))
    assert plan is not None
    assert plan.positions is not None
    return merged_file_rewrite(plan, [], merge_positions(plan.positions))


def test_rows_keep_their_lineage_when_they_are_merged_again(warehouse: str) -> None:
    table = VectorTable(f"{warehouse}/t", random.Random(0))
    for first in range(0, 50, 10):
        table.add(range(first, first + 10))
        table.check()
        table.begin(merges=True)
        table.delete([first + 3])
        table.land()
        table.check()
    assert table.merges > 2


def test_what_is_not_there_cannot_be_hidden(warehouse: str) -> None:
    table = VectorTable(f"{warehouse}/t", random.Random(0))
    with pytest.raises(LakeError, match="not part of the table"):
        table.commit(RowDelta((), hidden={"file:///gone.parquet": np.array([1])}))
    old = LakeTable.create(SCHEMA, f"{warehouse}/old", STORAGE, {}, START_MS).table
    staged = old.stage(RowDelta((), hidden={"file:///gone.parquet": np.array([1])}), START_MS)
    assert staged.table.position_deletes == 1, "tables of version 2 are not looked at: this file hides nothing"


@pytest.mark.parametrize("format_version", [2, 3])
def test_vectors_are_no_backlog(warehouse: str, format_version: int) -> None:
    """Of position-delete files many in one partition are due for a rewrite; vectors never, nor what is left from before
    an upgrade: the pump itself replaces it."""
    table = VectorTable(f"{warehouse}/t", random.Random(0), format_version=format_version)
    policy = Policy(position_delete_rewrite_min_files=5)
    for first in range(0, 50, 10):
        table.add(range(first, first + 10))
        table.delete([first])
    assert table.table.delete_files == 5

    def due() -> list[bool]:
        content = lake_content(table.table.metadata.to_json(), table.table.metadata_location)
        figures = (FileCounter(STORAGE).measure(table.table, TARGET), content.figures)
        return [position_deletes_of(each, policy, requested=False) is not None for each in figures]

    assert due() == 2 * [format_version == 2]
    if format_version == 2:
        table.upgrade()
        table.add([1000])
        assert due() == [False, False]
