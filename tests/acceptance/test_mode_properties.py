"""Tables of all modes side by side, with writers, ingests, loads, faults, kills, pins and schema changes: every read in
every mode finds one state that the database had."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.error_bounds import SOAK_SECONDS, printed_seed
from tests.support.mode_world import ModeWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 803
"""Of the short form, unless the environment has another one: a kill, ingests, a load, a restore, and what they need."""
ACTIONS = 8
"""How many things happen in the short form, before they settle."""
WORLD_SECONDS = 60.0
"""How long one database is used in the long form."""


@pytest.mark.soak
@pytest.mark.slow
def test_a_few_things_happen_to_tables_of_all_modes(database: Database, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    actions = iter(range(ACTIONS))
    chance = random.Random(printed_seed(SEED))
    with ModeWorld(database, tmp_path, chance, found) as world:
        world.run(lambda: next(actions, None) is not None)
    _require(found)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_every_read_in_every_mode_is_a_state_that_the_database_had(
    postgres: EmbeddedPostgres, tmp_path: Path, spark: SparkSession
) -> None:
    """Spark compacts, beside everything else."""
    seed = printed_seed()
    found: Counter[str] = Counter()
    deadline = time.monotonic() + SOAK_SECONDS
    while time.monotonic() < deadline:
        found["worlds"] += 1
        name = f"modes_{found['worlds']}"
        print(f"{name}: SEED={seed}", file=sys.stderr, flush=True)
        directory = tmp_path / name
        directory.mkdir()
        with (
            postgres.database(name),
            ModeWorld(Database(postgres, name), directory, random.Random(seed), found, spark) as world,
        ):
            world.run(_before(min(deadline, time.monotonic() + WORLD_SECONDS)))
        seed += 1
    assert found["upgrades"], "no lake table has got another format version"
    _require(found)


def _before(moment: float) -> Callable[[], bool]:
    return lambda: time.monotonic() < moment


def _require(found: Counter[str]) -> None:
    """Fails if too little has happened. Prints what has."""
    print(dict(sorted(found.items())), file=sys.stderr, flush=True)
    for what in ("transactions", "reads by the protocol", "partitions that left", "tables verified"):
        assert found[what], (what, found)
