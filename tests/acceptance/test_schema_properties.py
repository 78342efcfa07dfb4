"""Random schema changes and row changes: at every published frontier, each live table is what the heap was then."""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.ops.maintenance.policies import change as change_policy
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, paced
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.ddl_workload import DDL, SCHEMA, TABLES, DdlWriter, comparable
from tests.support.error_bounds import SOAK_SECONDS, printed_seed

_TRANSACTIONS = 60
"""The number of transactions in each round."""

_SETTLE = 60.0
"""Seconds within which the mirror has to catch up when nobody writes."""

_LIVE = """
SELECT c.table_id, c.replicated_lsn, c.lake_props ->> 'metadata_location'
  FROM modak.cutline c JOIN modak.mirror_tables m USING (table_id) WHERE m.state = 'live'
"""


@pytest.mark.parametrize(
    "event_triggers",
    [
        pytest.param(True, id="event triggers"),
        pytest.param(False, id="no event triggers", marks=pytest.mark.soak),
    ],
)
def test_every_published_frontier_is_exact(database: Database, warehouse: str, event_triggers: bool) -> None:
    """Without event triggers, the frontier is exact again once the pump has compared the catalogs, so only the end
    counts."""
    _play(database, warehouse, random.Random(printed_seed()), event_triggers)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_every_published_frontier_is_exact_for_long(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Rounds with separate databases, with and without event triggers in turn."""
    chance = random.Random(printed_seed())
    deadline = time.monotonic() + SOAK_SECONDS
    rounds = statements = 0
    while time.monotonic() < deadline:
        rounds += 1
        warehouse = tmp_path / f"lake{rounds}"
        warehouse.mkdir()
        # The server has slots for some dozens of mirrors at a time.
        with postgres.database(f"t_schema_properties_{rounds}"):
            database = Database(postgres, f"t_schema_properties_{rounds}")
            statements += _play(database, warehouse.as_uri(), chance, event_triggers=rounds % 2 == 1)
        print(f"{rounds} rounds, {statements} statements", file=sys.stderr, flush=True)


def _play(database: Database, warehouse: str, chance: random.Random, event_triggers: bool) -> int:
    """Runs random transactions against a mirror. Returns how many statements committed."""
    database.execute(*DDL)
    runner = ThreadTaskRunner(3)
    mirror = Mirror.create(database, warehouse, runner, copy_chunk_bytes=8192, convert_age=0.2)
    if not event_triggers:
        database.execute(*(f"DROP EVENT TRIGGER mirror_pump_{name}" for name in ("ddl", "drop", "rewrite")))
    # The new columns' defaults of some are in their metadata; files of the others are rewritten.
    tables = [f"{SCHEMA}.{name}" for name in TABLES]
    newer = [name for name in tables if chance.random() < 0.5]
    for version, names in ((2, [name for name in tables if name not in newer]), (3, newer)):
        if names:
            mirror.register(*names, format_version=version)
    for name in newer:
        change_policy(mirror.settings, name, {"defaults_in_metadata": True})
    points: set[tuple[int, int, str]] = set()
    lock = threading.Lock()

    def on_step(step: Step, _details: dict[str, object]) -> None:
        if step is Step.PUBLISHED:
            with lock, database.connect() as probe:
                points.update(probe.execute(_LIVE).fetchall())

    steps = Steps(on_step)
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        writer = DdlWriter(connection, chance)
        try:
            written = 0
            while written < _TRANSACTIONS:
                options = {
                    "segment_bytes": chance.choice([1, 400, 5000, 1 << 20]),
                    "batch_bytes": chance.choice([1, 3000, 1 << 24]),
                    "limits": paced(chance.choice([0.0, 0.02, 0.2])),
                }
                with mirror.with_options(**options).pumping(steps):
                    for _ in range(chance.randint(1, 20)):
                        writer.transaction()
                        written += 1
                        if chance.random() < 0.3:
                            mirror.await_frontier()
            with mirror.pumping(steps):
                _await_settled(mirror, writer)
        except BaseException:
            print("\n".join(writer.done[-60:]), file=sys.stderr)
            raise
        if event_triggers:
            problems = _differences(writer, points)
            assert not problems, "\n".join([*problems[:5], *writer.done[-80:]])
    mirror.assert_sound()
    assert_verified(database)
    runner.close()
    print(
        f"{len(points)} published states of tables; {steps.count(Step.TABLE_CHANGED)} changes followed,"
        f" {steps.count(Step.TABLE_FILLING)} tables filled, {steps.count(Step.TABLE_COPIED_AGAIN)} copies begun again",
        file=sys.stderr,
    )
    assert steps.count(Step.TABLE_FAILED) == 0, steps.details(Step.TABLE_FAILED, "error")
    assert steps.count(Step.TABLE_COPIED_AGAIN) > 0
    return writer.committed


def _await_settled(mirror: Mirror, writer: DdlWriter) -> None:
    """Returns once every table is live at the present end of WAL and holds the heap's rows."""
    deadline = time.monotonic() + _SETTLE
    while True:
        mirror.await_frontier()
        live = {row[0]: (row[1], row[2]) for row in mirror.database.rows(_LIVE)}
        problems = [f"{name} is not live" for table_id, name in writer.table_ids.items() if table_id not in live]
        if not problems:
            end = max(frontier for frontier, _ in live.values())
            problems = _differences(writer, {(table_id, end, location) for table_id, (_, location) in live.items()})
        if not problems:
            return
        states = mirror.database.rows("SELECT table_id, state, live_after_lsn, error FROM modak.mirror_tables")
        assert time.monotonic() < deadline, f"not within {_SETTLE} s: {problems}; {states}"


def _differences(writer: DdlWriter, points: set[tuple[int, int, str]]) -> list[str]:
    """The tables whose lake content differs from the heap's former content."""
    problems = []
    with duckdb_connection() as duckdb:
        for table_id, frontier, location in sorted(points, key=lambda point: point[1]):
            found = _lake(duckdb, location)
            possible = [(state.columns, state.rows) for state in writer.history.possible(table_id, frontier)]
            if found not in possible:
                wanted = possible[0]
                problems.append(
                    f"table {writer.table_ids[table_id]} at frontier {frontier}: columns {found[0]},"
                    f" wanted {wanted[0]}; missing {sorted(set(wanted[1]) - set(found[1]))[:3]},"
                    f" extra {sorted(set(found[1]) - set(wanted[1]))[:3]}"
                )
    return problems


def _lake(duckdb: Any, location: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    table = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return tuple(table.column_names), comparable(rows)
