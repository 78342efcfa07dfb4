"""Upgrades: catalog and lake of each released version, in the hands of the present one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirror_pump.ops.maintenance.policies import show
from mirror_pump.ops.resync.format_upgrade import upgrade
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Row, Steps, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.events_table import EventsTable, upsert
from tests.support.pending_deletes import pending
from tests.support.released_mirror import (
    RELEASED,
    UNFOLDED,
    ReleasedMirror,
    describe_states,
    described,
    restored,
    server_kind,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVES = sorted(RELEASED.glob("*.tar.xz"))
PLAIN = ("converted", "pending", "filling", "copying")
"""Tables without heap retention whose values any engine returns as psycopg does."""


def pinned_rows(mirror: Mirror, snapshot: int) -> list[Row]:
    """public.converted as of a snapshot, by DuckDB."""
    with duckdb_connection() as duckdb:
        found = duckdb.execute(
            f"SELECT * FROM iceberg_scan('{mirror.location('public.converted')}', snapshot_from_id={snapshot}::ubigint)"
        )
        return normalised(found.fetchall())


def write(database: Database, turn: int) -> None:
    """Every kind of change in every table."""
    for name in PLAIN:
        with database.connect(autocommit=False) as connection:
            for statement in (
                f"UPDATE {name} SET v = 'turn {turn}' WHERE id % 6 = {turn}",
                f"DELETE FROM {name} WHERE id % 11 = {turn}",
                f"INSERT INTO {name} (id, v) SELECT {turn} * 10000 + g, 'new' FROM generate_series(1, 5) g",
            ):
                connection.execute(statement.encode())
    with database.connect(autocommit=False) as connection:
        connection.execute("UPDATE kinds SET c7 = 'later', c4 = 'NaN' WHERE id = 2")
        connection.execute("INSERT INTO kinds (id, c10) VALUES (%s, '-infinity')", (100 + turn,))
        connection.execute("UPDATE partial SET v = 'later', hidden = 'more' WHERE id < 5")
        upsert(connection, 15 * turn, turn, "after the upgrade")


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def test_a_mirror_of_a_released_version_goes_on(archive: Path, spark: SparkSession) -> None:
    if described(archive).server != server_kind():
        pytest.skip(f"the files of its server need {described(archive).server}")
    with restored(archive) as released:
        assert_goes_on(released, spark)


def assert_goes_on(released: ReleasedMirror, spark: SparkSession) -> None:
    """As docs/operations.md says: `init`, then the pump. Then all of its tables get Iceberg's format version 3."""
    database, frozen = released.database, released.description
    said: list[str] = []
    initialise(Settings(dsn=database.dsn), said.append)
    warnings = [line for line in said if line.startswith("warning")]
    assert all("max_slot_wal_keep_size" in line for line in warnings), "only about the server's settings"
    assert describe_states(database) == frozen.states
    settings = complete(Settings(dsn=database.dsn, storage_fsync=False, retention_interval=0.1))
    tasks = ThreadTaskRunner()
    mirror = Mirror(database, settings, tasks)
    events = EventsTable(database, frozen.partitions, mirror=mirror)
    # Readers, before any pump has run.
    assert mirror.frontier() == frozen.frontier
    mirror.assert_equal("public.converted", "public.pending")
    events.assert_exact()
    assert pinned_rows(mirror, frozen.pinned_snapshot) == normalised([tuple(row) for row in frozen.pinned_rows])
    copied = database.rows(
        "SELECT chunk_no FROM modak.copy_chunks"
        " WHERE done_at IS NOT NULL AND table_id = 'copying'::regclass::oid::bigint ORDER BY 1"
    )
    write(database, 1)
    steps = Steps()
    with mirror.with_options(convert_age=0, fold_age=0.05).pumping(steps):
        mirror.await_live(*frozen.states)
        write(database, 2)
        mirror.await_frontier()
        mirror.assert_equal(*(f"public.{name}" for name in PLAIN))
        events.assert_exact()
        await_true(lambda: not pending(mirror, "public.pending"), 30, "deletes that were pending are converted")
        await_true(lambda: database.rows(UNFOLDED) == [(0,)], 30, "corrections are folded")
        assert events.states()["p1"] == "tiered", "its reader is still there"
        with database.connect() as connection:
            connection.execute("DELETE FROM modak.read_pins WHERE table_id = 'events'::regclass::oid::bigint")
        for name in frozen.states:
            assert upgrade(settings, name, 3, confirmed=True)
        write(database, 3)
        mirror.await_frontier()
        mirror.assert_equal(*(f"public.{name}" for name in PLAIN))
        events.grow()
        events.await_state(p1="dropped", p2="dropped")
        events.assert_exact()
    assert copied
    read_again = set(steps.details(Step.CHUNK_COPIED, "table"))
    assert read_again == {"public.copying"}, "no table was copied that was copied already"
    assert steps.count(Step.TABLE_COPIED_AGAIN) == steps.count(Step.RETRYING) == 0
    assert pinned_rows(mirror, frozen.pinned_snapshot) == normalised([tuple(row) for row in frozen.pinned_rows])
    policy = {entry.key: entry.value for entry in show(settings, "converted") if entry.is_set}
    assert policy == {"snapshot_retention_hours": 48, "format_version": 3}
    assert assert_verified(database) == len(frozen.states)
    session = lake_session(spark, database.dsn, settings.require_warehouse())
    for name in PLAIN:
        assert_same(mirror.heap(name), normalised(read_spark(session, f"public.{name}")), f"{name} by Spark")
    assert normalised(read_spark(session, "public.partial")) == normalised(
        database.rows("SELECT id, v FROM partial")
    ), "the excluded column stays excluded"
    mirror.assert_sound()
    tasks.close()
