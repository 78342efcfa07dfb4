"""A commit per second for as long as a test may take: numbers of files and manifests, and rewriting, stay bounded."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from mirror_pump.engine.rewrite.merge_plan import FANOUT
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.row_delta import RowDelta
from mirror_pump.lake.contents.size_classes import size_class
from mirror_pump.lake.document.snapshot_stats import live_rows, snapshot_stats
from tests.support.lake_tables import Rows, SmallTable

pytestmark = pytest.mark.further

RESOLVED_EVERY = 10
"""Commits; by default there is one per second."""
MERGE_LANDS_AFTER = 2
"""Commits that land while a merge is computed."""
KEYS = 3000


@dataclass(frozen=True)
class Counts:
    data: int
    deletes: int
    manifests: int

    @classmethod
    def of(cls, table: SmallTable) -> Counts:
        return cls(table.table.data_files, table.table.delete_files, len(table.table.manifests))


@pytest.mark.parametrize("commits", [300, pytest.param(800, marks=pytest.mark.soak)])
def test_a_commit_per_second(warehouse: str, commits: int) -> None:
    chance = random.Random(4)
    table = SmallTable(f"{warehouse}/public/t")
    rows: Rows = dict.fromkeys(range(KEYS), "first")
    table.commit(RowDelta((table.segment(rows),)))
    merge: FileRewrite | None = None
    lands_at = 0
    seen: list[Counts] = []
    for number in range(commits):
        new: Rows = dict.fromkeys(chance.sample(range(2 * KEYS), chance.randint(0, 9)), f"v{number}")
        gone = chance.sample(range(KEYS), 2)
        table.commit(RowDelta((table.segment(new, sorted({*new, *gone})),)))
        rows = {key: row for key, row in rows.items() if key not in gone} | new
        # At most one job per table runs at a time.
        if merge is not None:
            if number >= lands_at:
                table.commit(RowDelta((), replaces=merge))
                merge = None
        elif number % RESOLVED_EVERY == 0:
            table.convert()
        else:
            merge, lands_at = table.compute_merge(), number + MERGE_LANDS_AFTER
        seen.append(Counts.of(table))
        if number % 97 == 0:
            table.reload()
    if merge is not None:
        table.commit(RowDelta((), replaces=merge))
    table.convert()
    classes = 1 + size_class(3 * KEYS)
    # Seven files wait in each class, plus those since the last conversion of deletes, and those written during a job.
    waiting = 2 * (RESOLVED_EVERY + MERGE_LANDS_AFTER + 1)
    most = Counts(*(max(getattr(counts, name) for counts in seen) for name in ("data", "deletes", "manifests")))
    assert most.data <= (FANOUT - 1) * classes + waiting
    assert most.deletes <= (FANOUT - 1) * classes + waiting
    # Nine manifests each of one, ten and a hundred entries, of data files and of both kinds of deletes, and those that
    # name removed files.
    assert most.manifests <= 3 * 9 * 2 + 3
    assert table.duckdb() == table.scanned() == rows
    assert live_rows(table.table.metadata, table.table.summary) == len(rows)
    written = snapshot_stats(table.table.metadata)
    amplification = (written.written + written.rewritten) / written.written
    print(most, written, f"write amplification {amplification:.2f}")
    assert amplification < 1 + classes
