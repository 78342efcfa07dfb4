"""What a pump leaves for later while changes wait in the slot."""

from __future__ import annotations

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pending_deletes import await_index, pending

pytestmark = pytest.mark.further

_BACKGROUND = (Step.CONVERTING, Step.MERGING, Step.INDEX_BUILDING)


def test_background_work_begins_when_the_backlog_is_published(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """A conversion, a merge and a key index are due from the first moment on; each batch asks for them again."""
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int)",
        "INSERT INTO t SELECT g, 0 FROM generate_series(1, 5000) g",
    )
    mirror = Mirror.create(
        database, warehouse, tasks, batch_bytes=1 << 16, segment_bytes=1 << 16, convert_age=0, convert_rows=1,
        limits=InternalLimits(upkeep_interval=0.01),
    )  # fmt: skip
    quiet = mirror.with_options(convert_age=3600, convert_rows=1 << 40, merge_bytes=0, index_memory=0)
    mirror.register("t")
    quiet.catch_up()
    for number in range(12):
        database.execute(f"UPDATE t SET n = n + 1 WHERE id % 12 = {number}")
        quiet.catch_up()
    assert pending(mirror, "public.t") == 5000
    with database.connect() as connection:
        for number in range(400):
            connection.execute("UPDATE t SET n = n + 1 WHERE id %% 400 = %s OR id < 100", (number,))
    target = database.lsn()

    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_frontier(target)
        caught_up = next(
            place for place, (step, details) in enumerate(steps.occurrences)
            if step is Step.PUBLISHED and int(str(details["frontier"])) >= target
        )  # fmt: skip
        before = [step for step, _ in steps.occurrences[:caught_up]]
        assert before.count(Step.PUBLISHED) > 10, "one batch after the other"
        assert not {*_BACKGROUND}.intersection(before)
        await_index(mirror, steps, "public.t", "UPDATE t SET n = -1 WHERE id = 1")
        await_true(lambda: {*_BACKGROUND} <= {step for step, _ in [*steps.occurrences]}, 60, "all of it begins")
