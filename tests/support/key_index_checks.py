"""Compares the key indexes of an idle pump with the content of its tables."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.key_index.index_plan import FileNumbers
from mirror_pump.lake.key_index.key_index import KeyIndex
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.pipeline.key_index.index_builder import IndexBuilder, IndexJob
from mirror_pump.pipeline.key_index.table_index import IndexPhase, TableIndex
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true


def check_indexes(pump: Pump, runner: TaskRunner, database: Database) -> int:
    """Fails unless every ready index names exactly the live rows of its table, like a newly built one. Returns the
    number of indexes. Nobody may write. Merges may land meanwhile, so equality has to be reached within seconds."""
    live = {row[0] for row in database.rows("SELECT table_id FROM modak.mirror_tables WHERE state = 'live'")}
    ready = [
        (table_id, tracked)
        for table_id, tracked in pump._indexes._tracked.items()
        if tracked.phase is IndexPhase.READY and table_id in live
    ]
    for table_id, tracked in ready:
        await_true(partial(_exact, table_id, tracked, runner), 60, "the index is exact")
    return len(ready)


def _exact(table_id: TableId, tracked: TableIndex, runner: TaskRunner) -> bool:
    location = tracked.location
    known = contents(tracked.index, tracked.numbers)
    lake = LakeTable.load(location, StorageOptions())
    built = IndexBuilder(runner, SimpleQueue())._build(IndexJob(table_id, 0, lake, tracked.packing, None, 1 << 40))
    return known == contents(built.index, built.numbers) and tracked.index.alive == built.index.alive == len(known)


def contents(index: KeyIndex, numbers: FileNumbers) -> dict[tuple[int, int], tuple[str, int]]:
    """File and position by packed key."""
    found = {}
    for run in (*index._leaves, *index._recent):
        second = run.keys.first if run.keys.second is None else run.keys.second
        for key, other, place in zip(run.keys.first.tolist(), second.tolist(), run.places.tolist(), strict=True):
            if place >= 0:
                assert (key, other) not in found
                found[key, other] = numbers.path(place >> 32), place & 0xFFFF_FFFF
    return found
