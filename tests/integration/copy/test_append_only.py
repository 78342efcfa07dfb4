"""Tables without a key: rows are only inserted, may repeat, and are each copied or streamed, never both."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, paced
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pipeline import writing
from tests.support.resyncs import resynced

APPEND_ONLY = ColumnChoices(append_only=True)


def insert_rows(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """One to three rows of few distinct values, so that whole rows repeat."""
    for _ in range(chance.randrange(1, 4)):
        connection.execute(
            "INSERT INTO log SELECT %s, %s, CASE WHEN %s THEN repeat(md5(%s), 100) END FROM generate_series(1, %s)",
            (
                chance.randrange(3),
                chance.choice([None, "a", "b"]),
                chance.random() < 0.2,
                str(chance.randrange(2)),
                chance.randrange(1, 3),
            ),
        )
    if chance.random() < 0.2:
        connection.rollback()


@pytest.fixture
def log(database: Database) -> Database:
    """Table log, with many equal rows."""
    database.execute(
        "CREATE TABLE log (n int, v text, big text)",
        "ALTER TABLE log ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO log SELECT g % 5, repeat('v', 40), NULL FROM generate_series(1, 20000) g",
    )
    return database


def _equal(mirror: Mirror) -> None:
    (report,) = verify(mirror.settings, ["log"]).tables
    assert report.comparison is not None, report
    assert report.comparison.different_rows == 0, report
    mirror.assert_equal("public.log")
    mirror.assert_sound()


@pytest.mark.parametrize("event", ["", "TRUNCATE log", "VACUUM FULL log", "a restart", "a resync"])
def test_rows_are_copied_or_streamed_and_never_both(
    log: Database, warehouse: str, tasks: ThreadTaskRunner, event: str
) -> None:
    """While rows are inserted all the time. The copy begins again at each event."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"writer's seed: {seed}")
    mirror = Mirror.create(log, warehouse, tasks, limits=paced(0.1), copy_chunk_bytes=1 << 16, copy_workers=2)
    steps = Steps()
    with writing(log, insert_rows, seed) as written:
        with mirror.pumping(steps):
            mirror.register("log", choices=APPEND_ONLY)
            await_true(lambda: steps.count(Step.CHUNK_COPIED) >= 2, 60, "two chunks are copied")
            if event == "a resync":
                mirror.await_live("public.log")
                resynced(mirror, "log")
            elif event and event != "a restart":
                log.execute(event)
            elif not event:
                mirror.await_live("public.log")
        with mirror.pumping(steps):
            mirror.await_live("public.log", seconds=120)
            after = written()
            await_true(lambda: written() > after + 10, 60, "rows are inserted into the live table")
    with mirror.pumping():
        mirror.await_frontier()
    _equal(mirror)
