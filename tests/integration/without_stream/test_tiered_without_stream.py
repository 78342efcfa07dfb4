"""Tiered tables of a mirror without a stream: their whole way, also on a server that was restored."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from mirror_pump.errors import HistoryDiverged, SourceError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.ops.reconcile.reconciliation import reconcile
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.catalog.maintenance import begin_sweep, may_delete_files, read_tables
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.integration.without_stream.conftest import SETTINGS
from tests.support.cli import RunCommand
from tests.support.events_table import EventsTable
from tests.support.kept_catalog import KeptCatalog
from tests.support.pipeline import writing
from tests.support.replicas import directories, hand_over
from tests.support.tiered import TieredTables


def frontiers_grow(mirror: Mirror) -> bool:
    """Whether the frontier has moved, and never back."""
    rows = mirror.database.rows("SELECT former < present FROM audit.frontiers")
    return bool(rows) and all(forward for (forward,) in rows)


@pytest.mark.further
def test_partitions_leave_the_heap_under_writers(
    database: Database, warehouse: str, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_FSYNC", "false")
    tables = TieredTables(database, warehouse)
    try:
        events = tables.tiered(rows=300)
        steps = Steps()
        with (
            duckdb_connection() as duckdb,
            events.mirror.pumping(steps),
            writing(database, events.write, random.getrandbits(32)),
        ):

            def gone() -> bool:
                events.assert_exact(duckdb)
                states = events.states()
                return states["p0"] == states["p1"] == "dropped"

            await_true(gone, 60, f"p0 and p1 dropped: {events.explained()}")
            database.execute("ALTER TABLE events ADD COLUMN extra int", "ALTER TABLE model ADD COLUMN extra int")
            events.grow()
            events.await_state(p2="dropped")
        events.assert_exact()
        assert steps.count(Step.WITHOUT_STREAM) == 1, "the session goes on"
        assert frontiers_grow(events.mirror)
        status = run("status")
        assert "no stream: tiered tables only" in status.stdout, status.stderr
        assert "public.events" in status.stdout
        checked = run("verify")
        assert checked.exit_code == 0, checked.output
        assert run("unregister", "events", "--keep-lake").exit_code == 0
    finally:
        tables.close()


@dataclass
class Restorable:
    """A server without a stream, a tiered table in it whose first partition has left, and a copy of its files from
    then."""

    root: Path
    server: EmbeddedPostgres
    events: EventsTable
    tables: TieredTables

    @property
    def mirror(self) -> Mirror:
        return self.events.mirror

    def pump_until_dropped(self, partition: str) -> None:
        """Runs a pump until a partition has left the heap."""
        with self.mirror.pumping():
            await_true(lambda: self.events.states()[partition] == "dropped", 60, f"{partition} dropped")
            self.events.assert_exact()

    def restore(self) -> None:
        """Puts the server's files back. Every DSN stays valid."""
        self.events.database.reconnect()
        self.server.stop()
        data = self.server.directory / "data"
        shutil.rmtree(data)
        shutil.copytree(self.root / "kept", data, symlinks=True)
        hand_over(data)
        self.server.start()


@pytest.fixture
def restorable(warehouse: str) -> Iterator[Restorable]:
    with directories() as root, keeping_connections():
        server = EmbeddedPostgres(root / "first", settings=SETTINGS)
        with server:
            server.create_database("mirrored")
            tables = TieredTables(Database(server, "mirrored"), warehouse)
            events = tables.tiered(partitions=3, rows=100)
            found = Restorable(root, server, events, tables)
            found.pump_until_dropped("p0")
            events.database.reconnect()
            server.stop()
            shutil.copytree(root / "first" / "data", root / "kept", symlinks=True)
            server.start()
            yield found
            tables.close()


def data_files(mirror: Mirror) -> list[Path]:
    """The data files that the catalog's state needs."""
    lake = LakeTable.load(mirror.location("public.events"), StorageOptions({}))
    paths = [local_path(file.path) for file in lake.live_data_files()]
    return [path for path in paths if path is not None]


def sweep_refused(mirror: Mirror) -> bool:
    with connect(mirror.database.dsn, autocommit=True) as connection:
        (table,) = read_tables(connection, mirror.settings.slot)
        allowed = may_delete_files(connection, mirror.settings.slot)
        try:
            begin_sweep(connection, mirror.settings.slot, table, 0.0)
        except SourceError:
            return not allowed
    return False


def assert_refuses_a_catalog_that_went_back_alone(mirror: Mirror, lost: str) -> None:
    """Only files that the restored catalog does not know have the rows of partition p1."""
    for attempt in (mirror.catch_up, partial(reconcile, mirror.settings, print)):
        with pytest.raises(HistoryDiverged, match=r"but its heap did not: it lacks public\.p1") as caught:
            attempt()
        assert lost in str(caught.value)
        assert "restore the database as a whole" in caught.value.remedy
    assert Path(lost.removeprefix("file://")).exists()


def test_a_restored_catalog_is_refused_and_a_restored_database_goes_on(restorable: Restorable) -> None:
    """A partition that had left is in the heap again after the restore, and leaves once more. Then the restored state
    lacks a file."""
    events, mirror = restorable.events, restorable.mirror
    needed = data_files(mirror)
    kept = KeptCatalog(events.database, "kept")
    events.grow()
    restorable.pump_until_dropped("p1")
    lost = mirror.location("public.events")
    assert not sweep_refused(mirror)
    kept.put_back()
    assert_refuses_a_catalog_that_went_back_alone(mirror, lost)

    restorable.restore()
    assert events.states()["p1"] == "hot"
    events.assert_exact()
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 1, 60, "the pump works")
        assert steps.details(Step.DATABASE_WENT_BACK, "metadata") == [lost]
        events.grow()
        events.await_state(p1="dropped")
        events.assert_exact()
    assert sweep_refused(mirror)
    with StatusReader(mirror.settings) as reader:
        messages = [alert.message for alert in reader.read().alerts]
    assert any("the database went back: a pump found at" in message for message in messages), messages

    assert reconcile(mirror.settings, print).slot == "none"
    assert not sweep_refused(mirror)
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 1, 60, "the pump works")
    assert not steps.count(Step.DATABASE_WENT_BACK), "what was dealt with is not found again"

    # Once more, after maintenance has deleted a file that the older state names.
    restorable.restore()
    needed[0].unlink()
    with mirror.pumping():
        await_true(lambda: mirror.state("public.events") == "failed", 60, "the table fails")
    assert needed[0].name in mirror.error("public.events")
