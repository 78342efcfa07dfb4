"""The threads of the upkeep, with hundreds of tables that are due at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import FileTasks
from mirror_pump.pipeline.upkeep.upkeep_threads import CurrentTable, JobTurn, Upkeep
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.mirror import Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.lake_tables import SCHEMA, START_MS, STORAGE

_TABLES = 200


class CountingJob:
    """Due once for each table; the more records it has, the less urgent."""

    name = "counting"
    share = 1.0
    failed = Step.MERGE_FAILED
    idle = 0.0
    free = "free_to_change"

    def __init__(self) -> None:
        self.looks = 0
        self.computed: list[int] = []

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        self.looks += 1
        return int(lake.location) if left is None else None

    def may_become_due(self, _lake: LakeTable, left: LakeTable | None, /) -> bool:
        return left is None

    def compute(self, _table: int, lake: LakeTable, _listing: Listing, _tasks: FileTasks, /) -> None:
        self.computed.append(int(lake.location))


class CountedTables(Upkeep[Any]):
    def _locations(self, _connection: Any) -> Sequence[tuple[int, str]]:
        return []

    def _current(self, _connection: Any, _job: Any, table_id: TableId) -> CurrentTable[Any]:
        return CurrentTable(table_id, str(table_id), nullcontext(), "")

    def _failed(self, _subject: Any, _turn: JobTurn, error: Exception) -> None:
        raise error


def test_tables_that_are_due_at_once_are_ranked_once() -> None:
    settings = Settings(dsn="", slot="s", limits=InternalLimits(upkeep_interval=3600))
    context = SessionContext(settings, STORAGE, ThreadTaskRunner(1), Steps(), SimpleQueue())
    connection: Any = None
    job = CountingJob()
    upkeep = CountedTables(context, SharedConnection(lambda: connection), [job])
    tables = {
        TableId(number): LakeTable(TableMetadata.new(SCHEMA, str(_TABLES - number), {}, START_MS), "", STORAGE, ())
        for number in range(_TABLES)
    }
    upkeep.published(tables)
    upkeep.start()
    try:
        await_true(lambda: len(job.computed) == _TABLES, 60, "each is worked on")
    finally:
        upkeep.stop()
    assert job.computed == sorted(job.computed), "the most urgent one first"
    assert job.looks <= 5 * _TABLES, f"{job.looks} looks at {_TABLES} tables"


class PatientJob(CountingJob):
    """Due for a table at the fifth look at it."""

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        urgency = super().due(lake, left)
        return None if self.looks < 5 else urgency


def test_a_job_without_tables_looks_often_once_one_may_become_due() -> None:
    settings = Settings(dsn="", slot="s", limits=InternalLimits(upkeep_interval=0.01))
    context = SessionContext(settings, STORAGE, ThreadTaskRunner(1), Steps(), SimpleQueue())
    connection: Any = None
    job = PatientJob()
    upkeep = CountedTables(context, SharedConnection(lambda: connection), [job])
    upkeep.start()
    try:
        upkeep.published({TableId(1): LakeTable(TableMetadata.new(SCHEMA, "1", {}, START_MS), "", STORAGE, ())})
        await_true(lambda: job.computed == [1], 30, "it is worked on")
    finally:
        upkeep.stop()
