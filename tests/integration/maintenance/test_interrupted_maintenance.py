"""Ctrl-C in the middle of maintenance: the table stays whole, and the next pass goes on."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from mirror_pump.engine.iceberg_procedures import procedures
from mirror_pump.ops.maintenance import journal, maintenance_pass, sweep
from mirror_pump.pipeline.publish import foreign_commits
from mirror_pump.testing.database import Database
from tests.support.interrupts import InterruptedLines
from tests.support.maintenance import T, prepare, write_and_publish

pytestmark = pytest.mark.further

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINES = (journal, maintenance_pass, procedures, foreign_commits, sweep)


@pytest.mark.further
@pytest.mark.parametrize("places", [1, pytest.param(60, marks=pytest.mark.soak)])
def test_ctrl_c_at_any_line_of_a_pass(database: Database, warehouse: str, spark: SparkSession, places: int) -> None:
    maintained = prepare(database, warehouse, spark)
    maintained.policy(T, snapshot_retention_hours=0, snapshot_min_retained=1)

    def maintain(at: int | None, number: int) -> int:
        write_and_publish(maintained.mirror, range(3 * number, 3 * number + 3))
        maintained.request(T)
        lines = InterruptedLines(_LINES, at)
        with maintained.maintainer() as maintainer, lines.counted(), suppress(KeyboardInterrupt):
            lines.begin()
            maintainer.maintain(maintained.table_id(T))
        maintained.mirror.assert_equal(T)
        return lines.lines

    total, seed = maintain(None, 0), random.SystemRandom().randrange(2**32)
    print(f"seed {seed}, {total} lines")
    for number, at in enumerate(random.Random(seed).sample(range(total), min(places, total)), 1):
        print(f"line {at}")
        maintain(at, number)
    result = maintained.maintain(T)
    assert not result.errors
    maintained.mirror.assert_equal(T)
