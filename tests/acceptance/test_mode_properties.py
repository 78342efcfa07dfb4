"""Tables of all modes side by side, with writers, ingests, loads, faults, kills, pins and schema changes: every read in
every mode finds one state that the database had."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.error_bounds import SOAK_SECONDS, printed_seed
from tests.support.mode_world import ModeWorld

SECONDS = 6.0
"""How long things happen in the short form, before they settle."""
WORLD_SECONDS = 60.0
"""How long one database is used."""


# The short form, too: what happens is random, and `make test` is the same for everybody.
@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SECONDS, id="short"),
        pytest.param(SOAK_SECONDS, id="long", marks=pytest.mark.timeout(SOAK_SECONDS + 600)),
    ],
)
def test_every_read_in_every_mode_is_a_state_that_the_database_had(
    postgres: EmbeddedPostgres, tmp_path: Path, request: pytest.FixtureRequest, seconds: float
) -> None:
    # Compaction by Spark, beside everything else.
    spark = request.getfixturevalue("spark") if seconds > SECONDS else None
    seed = printed_seed()
    found: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found["worlds"] += 1
        name = f"modes_{found['worlds']}"
        print(f"{name}: seed {seed}", file=sys.stderr, flush=True)
        directory = tmp_path / name
        directory.mkdir()
        with (
            postgres.database(name),
            ModeWorld(Database(postgres, name), directory, random.Random(seed), found, spark) as world,
        ):
            world.run(min(deadline, time.monotonic() + WORLD_SECONDS))
        seed += 1
        print(dict(sorted(found.items())), file=sys.stderr, flush=True)
    for what in ("transactions", "reads by the protocol", "partitions that left", "tables verified"):
        assert found[what], (what, found)
