"""History that comes before any partition has left: the ingest gives the cut-line its first value, with its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mirror_pump.errors import TableError
from mirror_pump.ops.ingest.ingest_request import IngestStep
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.events_table import EventsTable
from tests.support.ingest_scene import IngestScene
from tests.support.killed_ingest import die_at
from tests.support.tiered import TieredTables

pytestmark = pytest.mark.further

HISTORY = [(-50, 900, 1, "history"), (-1, 900, 1, "history"), (390, 900, 1, "present")]
NOT_MOVED = -(2**63)


@pytest.fixture
def tables(database: Database, warehouse: str) -> Iterator[TieredTables]:
    tables = TieredTables(database, warehouse)
    yield tables
    tables.close()


@pytest.fixture
def events(tables: TieredTables) -> EventsTable:
    """A tiered table with partitions from 0 on, none of which has left, and no pump."""
    return tables.tiered(fold_age=0.05)


@pytest.fixture
def scene(events: EventsTable, tmp_path: Path) -> IngestScene:
    return IngestScene(events.database, tmp_path, events.mirror, ("at", "id", "n", "v"))


def _cut(database: Database) -> int:
    return int(database.rows("SELECT tier_key_hi FROM modak.cutline")[0][0])


def _insert(connection: psycopg.Connection[tuple[object, ...]], at: int) -> None:
    for table in ("events", "model"):
        connection.execute(f"INSERT INTO {table} VALUES ({at}, 901, 1, 'inserted')".encode())


_ID = "'public.events'::regclass::oid::bigint"
_BEGIN = f"SELECT modak.begin_cutline({_ID}, 0)"
_PIN = f"""
INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)
SELECT table_id, lake_snapshot_id, tier_key_hi, now() + interval '1 hour' FROM modak.cutline WHERE table_id = {_ID}
"""


def _default(database: Database) -> str:
    found = "SELECT relation::regclass::text FROM modak.tier_partitions('events'::regclass) WHERE is_default"
    return str(database.rows(found)[0][0])


def test_what_keeps_the_cutline_from_beginning(events: EventsTable) -> None:
    """Each by itself, whatever the ingest has looked at before."""
    default = _default(events.database)
    obstacles = {
        f"ALTER TABLE {default} DISABLE TRIGGER zz_modak_row": "does not route rows",
        f"ALTER TABLE {default} ENABLE TRIGGER zz_modak_row": "does not route rows",
        f"ALTER TABLE events DETACH PARTITION {default}": "moves with its partitions only",
        f"UPDATE modak.tables SET keep_heap = true WHERE table_id = {_ID}": "moves with its partitions only",
        "CREATE TABLE older PARTITION OF events FOR VALUES FROM (-10) TO (0)": "older reaches below",
        _PIN: "of a reader",
        f"UPDATE modak.cutline SET tier_key_hi = 0 WHERE table_id = {_ID}": "has moved meanwhile",
    }
    with events.database.connect(autocommit=False) as connection:
        for obstacle, reason in obstacles.items():
            connection.execute(obstacle.encode())
            found = connection.execute(_BEGIN.encode()).fetchone()
            assert found is not None
            assert reason in str(found[0]), obstacle
            connection.rollback()
        assert connection.execute(_BEGIN.encode()).fetchone() == (None,)
        connection.rollback()


def test_no_partition_is_attached_once_the_cutline_has_begun(events: EventsTable) -> None:
    """Not before the end of the transaction. After it, there is no place below the cut-line either."""
    with (
        events.database.connect(autocommit=False) as beginning,
        events.database.connect(autocommit=False) as attaching,
    ):
        assert beginning.execute(_BEGIN.encode()).fetchone() == (None,)
        attaching.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            attaching.execute("CREATE TABLE older PARTITION OF events FOR VALUES FROM (-10) TO (0)")
        attaching.rollback()
        beginning.rollback()


def test_a_default_partition_without_its_trigger(events: EventsTable, scene: IngestScene) -> None:
    """It may hold rows below all partitions, which nobody would read any more."""
    default, path = _default(events.database), scene.csv("history.csv", HISTORY)
    events.database.execute(f"ALTER TABLE {default} DISABLE TRIGGER zz_modak_row")
    with pytest.raises(TableError, match="does not route rows"):
        scene.ingest(path)
    assert _cut(events.database) == NOT_MOVED
    events.database.execute(f"ALTER TABLE {default} ENABLE ALWAYS TRIGGER zz_modak_row")
    scene.ingest(path)
    scene.into_model(HISTORY)
    events.assert_exact()


def test_history_comes_first(events: EventsTable, scene: IngestScene) -> None:
    path = scene.csv("history.csv", HISTORY)
    dry = scene.ingest(path, dry_run=True)
    assert (dry.lake_rows, dry.heap_rows, _cut(events.database)) == (2, 1, NOT_MOVED)
    outcome = scene.ingest(path)
    assert (outcome.lake_rows, outcome.heap_rows, _cut(events.database)) == (2, 1, 0)
    scene.into_model(HISTORY)
    events.assert_exact()
    with events.database.connect(autocommit=False) as connection:
        _insert(connection, -7)
    again = [(-50, 900, 2, "again"), (-7, 901, 2, "again")]
    assert scene.ingest(scene.csv("again.csv", again)).replaced == 2
    scene.into_model(again)
    events.assert_exact()
    # Retention goes on from there.
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        pending = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: events.database.rows(pending) == [(0,)], 60, "the corrections are folded")
        events.assert_exact()
    assert _cut(events.database) == 200


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step is IngestStep.COMMITTING else pytest.mark.soak)
        for step in IngestStep
        if step is not IngestStep.WAITING
    ],
)
def test_an_ingest_of_history_that_is_killed(events: EventsTable, scene: IngestScene, step: IngestStep) -> None:
    path = scene.csv("history.csv", HISTORY)
    die_at(events.mirror.settings, step, "events", path)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mirror-pump-ingest'"
    await_true(lambda: events.database.rows(sessions) == [(0,)], 30, "the session of the killed ingest has ended")
    landed = step is IngestStep.COMMITTED
    assert _cut(events.database) == (0 if landed else NOT_MOVED)
    if landed:
        scene.into_model(HISTORY)
    events.assert_exact()
    assert scene.ingest(path).replaced == (2 if landed else 0)
    if not landed:
        scene.into_model(HISTORY)
    events.assert_exact()


def test_old_rows_that_are_inserted_meanwhile(events: EventsTable, scene: IngestScene) -> None:
    """They are refused until the cut-line has begun, and are corrections from then on."""
    refused: list[str] = []

    def insert(step: IngestStep) -> None:
        if step in (IngestStep.READING, IngestStep.LOOKING, IngestStep.STAGED, IngestStep.COMMITTING):
            with pytest.raises(psycopg.errors.CheckViolation), events.database.connect(autocommit=False) as connection:
                _insert(connection, -50)
            refused.append(step)

    scene.ingest(scene.csv("history.csv", HISTORY), on_step=insert)
    assert IngestStep.COMMITTING in refused
    scene.into_model(HISTORY)
    events.assert_exact()
    with events.database.connect(autocommit=False) as connection:
        _insert(connection, -51)
    events.assert_exact()
    assert events.database.rows("SELECT count(*) FROM modak.delta") == [(1,)]


def test_a_partition_that_is_attached_meanwhile(events: EventsTable, scene: IngestScene) -> None:
    """Nothing passes a partition that is about to reach below the first row, nor one that does."""
    path = scene.csv("history.csv", HISTORY)
    tries: list[str] = []
    with events.database.connect(autocommit=False) as connection:

        def attach(step: IngestStep) -> None:
            if step is IngestStep.READING and not tries:
                connection.execute("CREATE TABLE older (LIKE events INCLUDING ALL)")
                connection.execute("ALTER TABLE events ATTACH PARTITION older FOR VALUES FROM (-100) TO (0)")
                _insert(connection, -40)
                tries.append(step)
            elif step is IngestStep.LOOKING and len(tries) < 3:
                tries.append(step)
                if len(tries) == 3:
                    connection.commit()

        with pytest.raises(TableError, match="older reaches below"):
            scene.ingest(path, on_step=attach)
    assert len(tries) == 3
    assert _cut(events.database) == NOT_MOVED
    events.assert_exact()
    # Now it has a place in the heap.
    outcome = scene.ingest(path)
    assert (outcome.lake_rows, outcome.heap_rows) == (0, 3)
    scene.into_model(HISTORY)
    events.assert_exact()


def test_a_reader_that_has_pinned_before(events: EventsTable, scene: IngestScene) -> None:
    """It may look at the corrections later, of which there were none below its cut-line."""
    events.database.execute(
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        " SELECT table_id, lake_snapshot_id, tier_key_hi, now() + interval '1 hour' FROM modak.cutline"
    )
    waited: list[int] = []

    def release(step: IngestStep) -> None:
        if step is IngestStep.WAITING:
            waited.append(_cut(events.database))
            events.database.execute("DELETE FROM modak.read_pins")

    scene.ingest(scene.csv("history.csv", HISTORY[:2]), on_step=release)
    assert set(waited) == {NOT_MOVED}
    scene.into_model(HISTORY[:2])
    events.assert_exact()


def test_a_partition_that_was_detached_before(events: EventsTable, scene: IngestScene) -> None:
    """The cut-line begins above it, and does not wait for it later."""
    with events.mirror.pumping():
        await_true(lambda: bool(events.database.rows("SELECT FROM modak.partitions")), 30, "the partitions are known")
    events.database.execute("ALTER TABLE events DETACH PARTITION p0; DELETE FROM model WHERE at < 100")
    rows = [(50, 900, 1, "history"), *HISTORY]
    outcome = scene.ingest(scene.csv("history.csv", rows))
    assert (outcome.lake_rows, outcome.heap_rows, _cut(events.database)) == (3, 1, 100)
    scene.into_model(rows)
    events.assert_exact()
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        events.assert_exact()


def test_ingested_history_is_given_up_by_yes_alone(scene: IngestScene) -> None:
    """No partition has left, so nothing in the catalog but the cut-line tells that the lake alone has these rows."""
    scene.ingest(scene.csv("history.csv", HISTORY))
    with pytest.raises(TableError, match="would destroy the only copy"):
        scene.mirror.unregister("events", drop_lake=True)
    assert scene.files_in_lake()
    scene.mirror.unregister("events", drop_lake=True, yes=True)
    assert not scene.files_in_lake()
