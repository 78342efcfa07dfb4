"""Rows of the heap and of the lake become visible together or not at all, whatever happens to the ingest, the cut-line,
the files of the lake, corrections, and readers meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString

import pytest

from mirror_pump.errors import Interrupted, MirrorPumpError, OutcomeUnknown, TableError
from mirror_pump.ops.ingest import ingestion
from mirror_pump.ops.ingest.commit import ingest_commit, ingest_journal
from mirror_pump.ops.ingest.ingest_request import IngestStep, OnConflict
from mirror_pump.pipeline.landing import landing, slot_lock, written_files
from mirror_pump.runtime import interrupts
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog import slot_row
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from tests.support.events_table import EventsTable, RetentionTables, delete, upsert
from tests.support.ingest_scene import IngestScene, csv_text
from tests.support.interrupts import InterruptedLines
from tests.support.killed_ingest import die_at, started_ingest
from tests.support.message_proxy import MessageProxy
from tests.support.pipeline import in_thread, writing

NAMES = ("at", "id", "n", "v")
FIRST = [(at, 1, 1, "first") for at in range(0, 40, 4)] + [(210, 500, 1, "first")]
SECOND = [(at, 1, 2, "second") for at in range(20, 60, 4)] + [(210, 500, 2, "second"), (333, 501, 2, "second")]


def _prepared(scene: IngestScene) -> str:
    """Rows in the lake and the heap, two of which have a correction; and a file that replaces some of each."""
    scene.ingest(scene.csv("first.csv", FIRST))
    scene.into_model(FIRST)
    with scene.database.connect(autocommit=False) as connection:
        upsert(connection, 24, 1, "corrected")
        delete(connection, 28, 1)
    scene.assert_exact()
    return scene.csv("second.csv", SECOND)


_OFTEN = (IngestStep.STAGED, IngestStep.COMMITTING)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step in _OFTEN else pytest.mark.soak)
        for step in IngestStep
        if step is not IngestStep.WAITING
    ],
)
def test_an_ingest_that_is_killed(scene: IngestScene, step: IngestStep) -> None:
    path = _prepared(scene)
    before = scene.files_in_lake()
    die_at(scene.mirror.settings, step, "events", path)
    landed = step is IngestStep.COMMITTED
    await_true(lambda: _sessions(scene.database) == 0, 30, "the session of the killed ingest has ended")
    if landed:
        scene.into_model(SECOND)
    scene.assert_exact()
    assert scene.phases()[-1] == ("done" if landed else "writing")
    # The next ingest removes what the other one left, and is not disturbed by it.
    outcome = scene.ingest(path)
    assert outcome.replaced == (10 if landed else 4)
    scene.into_model([] if landed else SECOND)
    scene.assert_exact()
    assert sorted(scene.phases()[1:]) == (["done", "done"] if landed else ["done", "undone"])
    if not landed:
        added = {name for name in scene.files_in_lake() - before if not name.endswith("-positions.parquet")}
        assert len(added) == outcome.files


@pytest.mark.further
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_each_step(scene: IngestScene, number: signal.Signals) -> None:
    """Whatever it interrupts, the ingest has landed with all of its files, or nothing of it is there."""
    scene.ingest(scene.csv("first.csv", FIRST))
    scene.into_model(FIRST)
    for round_, step in enumerate(step for step in IngestStep if step is not IngestStep.WAITING):
        rows = [(at, 1, round_, str(step)) for at in (4, 8, 60 + round_)] + [(230 + round_, 600, round_, str(step))]
        path = scene.csv("rows.csv", rows)
        process = started_ingest(scene.mirror.settings, step, "events", path, number=number)
        process.join(60)
        assert process.exitcode == (-number if number is signal.SIGTERM else 130), step
        await_true(lambda: _sessions(scene.database) == 0, 30, "the session of the interrupted ingest has ended")
        landed = step is IngestStep.COMMITTED
        if landed:
            scene.into_model(rows)
        scene.assert_exact()
        expected = "done" if landed else "undone" if number is signal.SIGINT else "writing"
        assert scene.phases()[-1] == expected, step
    # What the others left is removed, and nothing else.
    scene.ingest(path)
    scene.assert_exact()
    assert set(scene.phases()) == {"done", "undone"}


# Makes a COMMIT wait as long as the test holds the lock, as one waits for a synchronous standby.
_SLOW_COMMIT = """
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slowly AFTER INSERT OR UPDATE ON p2 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION slowly()
"""
_COMMIT_WAITS = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'mirror-pump-ingest'"
    " AND wait_event_type = 'Lock' AND query ILIKE 'commit%'"
)


@pytest.mark.further
def test_ctrl_c_while_the_commit_waits(scene: IngestScene) -> None:
    """The commit ends first. Then the program says that it was interrupted, and that the rows are there."""
    path = _prepared(scene)
    scene.database.execute(_SLOW_COMMIT)
    with scene.database.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(4711)")
        process = started_ingest(scene.mirror.settings, None, "events", path)
        await_true(lambda: bool(scene.database.rows(_COMMIT_WAITS)), 60, "the ingest commits")
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        # The handler of the signal takes itself away: a second Ctrl-C would end the program at once.
        await_true(lambda: _ignores_no_interrupt(process.pid), 30, "the signal has arrived")
    process.join(60)
    assert process.exitcode == 130
    scene.into_model(SECOND)
    scene.assert_exact()
    assert scene.phases()[-1] == "done"


def _ignores_no_interrupt(pid: int | None) -> bool:
    """Whether SIGINT has its default effect in a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return not caught >> (signal.SIGINT - 1) & 1


@pytest.mark.further
@pytest.mark.parametrize("places", [6, pytest.param(10_000, marks=pytest.mark.soak)])
def test_ctrl_c_at_any_line_of_the_commit(scene: IngestScene, places: int) -> None:
    scene.ingest(scene.csv("first.csv", FIRST))
    scene.into_model(FIRST)

    def interrupted(at: int | None, value: int) -> int:
        rows = [(at, 1, value, "interrupted") for at in (4, 8, 60)] + [(230, 600, value, "interrupted")]
        lines = InterruptedLines((ingest_commit, ingestion, ingest_journal, interrupts, landing, written_files), at)
        with lines.counted(), suppress(KeyboardInterrupt, Interrupted):
            scene.ingest(
                scene.csv("rows.csv", rows),
                on_step=lambda step: lines.begin() if step is IngestStep.COMMITTING else None,
            )
        if scene.phases()[-1] == "done":
            scene.into_model(rows)
        scene.assert_exact()
        return lines.lines

    total, seed = interrupted(None, 0), random.randrange(2**32)
    print(f"seed {seed}")
    for value, at in enumerate(random.Random(seed).sample(range(total), min(places, total)), 1):
        print(f"line {at} of {total}")
        interrupted(at, value)


def _sessions(database: Database) -> int:
    rows = database.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ="
        " 'mirror-pump-ingest'"
    )
    return int(rows[0][0])


@pytest.mark.further
@pytest.mark.parametrize("cuts", [4, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_connection_that_breaks(scene: IngestScene, cuts: int) -> None:
    """At each of the last messages, or of all: the ingest knows whether it has landed, or says that it does not."""
    _prepared(scene)
    proxy = MessageProxy(scene.database.dsn, b"pg_advisory_lock")
    scene.mirror = scene.mirror.with_options(dsn=proxy.proxied)
    direct = IngestScene(scene.database, scene.directory, scene.mirror.with_options(dsn=scene.database.dsn), NAMES)

    def rows(number: int) -> list[tuple[object, ...]]:
        return [(at, 1 if at < 200 else 500, number, f"cut at {number}") for at in (20, 24, 100, 210)]

    try:
        # The second one finds the same corrections as all others after it.
        for number in (-2, -1):
            proxy.cut_at(10_000)
            scene.ingest(scene.csv("cut.csv", rows(number)))
            direct.into_model(rows(number))
        total = len(proxy.passed)
        landings = 0
        for number in range(max(total - cuts, 0), total):
            proxy.cut_at(number)
            try:
                scene.ingest(scene.csv("cut.csv", rows(number)))
                landed = True
            except OutcomeUnknown:
                landed = direct.phases()[-1] == "done"
            except MirrorPumpError:
                landed = False
            proxy.cut_at(None)
            landings += landed
            if landed:
                direct.into_model(rows(number))
            direct.assert_exact()
            # The next one has nothing to undo, which would take more messages.
            direct.database.execute("UPDATE modak.op_log SET phase = 'undone' WHERE phase = 'writing'")
        assert proxy.cuts
        assert landings, "the answer to COMMIT was among the messages that did not arrive"
    finally:
        proxy.close()


@pytest.mark.further
def test_what_changes_while_an_ingest_looks(scene: IngestScene) -> None:
    """A correction that is older than the commit does not win, and a younger one does; so does another ingest."""
    path = _prepared(scene)
    rounds: list[int] = []

    def disturb(step: IngestStep) -> None:
        if step is IngestStep.LOOKING and not rounds:
            rounds.append(1)
            with scene.database.connect(autocommit=False) as connection:
                upsert(connection, 48, 1, "older than the commit")
                upsert(connection, 52, 1, "older than the commit")
            scene.mirror.catch_up()
            other = IngestScene(scene.database, scene.directory, scene.mirror, NAMES)
            other.ingest(other.csv("between.csv", [(56, 1, 9, "between"), (57, 1, 9, "between")]))
            other.into_model([(57, 1, 9, "between")])

    outcome = scene.ingest(path, on_step=disturb)
    assert rounds
    assert outcome.corrected >= 2
    scene.into_model(SECOND)
    scene.assert_exact()
    with scene.database.connect(autocommit=False) as connection:
        upsert(connection, 52, 1, "younger")
    scene.assert_exact()
    scene.mirror.with_options(fold_age=0.05).catch_up()
    scene.assert_exact()


def test_a_reader_that_pinned_before_is_waited_for(scene: IngestScene) -> None:
    """Unless none of the rows is in the heap: then such a reader finds nothing of the ingest."""
    path = _prepared(scene)
    scene.database.execute("SELECT modak.pin('events', '5 minutes')")
    scene.ingest(scene.csv("cold.csv", [(100, 9, 1, "cold")]))
    scene.into_model([(100, 9, 1, "cold")])
    assert not any(progress.step is IngestStep.WAITING for progress in scene.steps)

    def release(step: IngestStep) -> None:
        if step is IngestStep.WAITING:
            scene.assert_exact()
            scene.database.execute("DELETE FROM modak.read_pins")

    scene.ingest(path, on_step=release)
    assert any("pin" in progress.detail for progress in scene.steps)
    scene.into_model(SECOND)
    scene.assert_exact()


@pytest.mark.further
def test_a_reader_that_pins_at_the_last_moment_is_waited_for(scene: IngestScene) -> None:
    path = _prepared(scene)
    waited: list[IngestStep] = []

    def pin(step: IngestStep) -> None:
        if step is IngestStep.HEAP:
            scene.database.execute("SELECT modak.pin('events', '5 minutes')")
        elif step is IngestStep.WAITING:
            waited.append(step)
            scene.assert_exact()
            scene.database.execute("DELETE FROM modak.read_pins")

    scene.ingest(path, on_step=pin)
    assert waited
    scene.into_model(SECOND)
    scene.assert_exact()


_OPEN = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'mirror-pump-ingest'"
    " AND xact_start IS NOT NULL"
)


@pytest.mark.further
def test_a_pin_that_stays_holds_no_transaction_open(scene: IngestScene) -> None:
    """The ingest lets its locks go, waits without a transaction, and begins it again."""
    path = _prepared(scene)
    scene.mirror = scene.mirror.with_options(limits=InternalLimits(ingest_pin_hold=0.1))
    waits: list[bool] = []

    def on_step(step: IngestStep) -> None:
        if step is IngestStep.HEAP and not waits:
            scene.database.execute("SELECT modak.pin('events', '5 minutes')")
        elif step is IngestStep.WAITING:
            scene.assert_exact()
            waits.append(bool(scene.database.rows(_OPEN)))
            if not waits[-1]:
                upserted = [(52, 1, 7, "corrected while it waits")]
                with scene.database.connect(autocommit=False) as connection:
                    upsert(connection, 52, 1, upserted[0][3])
                scene.database.execute("DELETE FROM modak.read_pins")

    scene.ingest(path, on_step=on_step)
    assert waits[0], "at first within its transaction"
    assert not waits[-1]
    scene.into_model(SECOND)
    scene.assert_exact()
    assert scene.phases() == ["done", "done"]


@pytest.mark.further
def test_a_pin_that_is_renewed_for_ever_ends_the_ingest(scene: IngestScene) -> None:
    path = _prepared(scene)
    files = scene.files_in_lake()
    scene.mirror = scene.mirror.with_options(limits=InternalLimits(ingest_pin_hold=0.1, ingest_pin_patience=1))

    def pin(step: IngestStep) -> None:
        if step is IngestStep.HEAP:
            scene.database.execute("SELECT modak.pin('events', '5 minutes')")

    with pytest.raises(TableError, match=r"public\.events: .*pin.*for 1 s") as refused:
        scene.ingest(path, on_step=pin)
    assert "ingest again" in refused.value.remedy
    scene.assert_exact()
    assert scene.phases() == ["done", "undone"]
    assert scene.files_in_lake() == files
    scene.database.execute("DELETE FROM modak.read_pins")
    scene.ingest(path)
    scene.into_model(SECOND)
    scene.assert_exact()


@pytest.mark.parametrize("folded", [True, pytest.param(False, marks=pytest.mark.further)])
def test_a_correction_just_before_the_commit(scene: IngestScene, monkeypatch: pytest.MonkeyPatch, folded: bool) -> None:
    """The ingest's commit is staged, and a key of it is corrected: in modak.delta, or in a file that came since."""
    path = _prepared(scene)
    lock = slot_row.lock_slot
    corrected: list[int] = []
    left: LiteralString = "SELECT FROM modak.delta WHERE tier_key = 48"

    def correct(*arguments: Any) -> Any:
        if not corrected:
            corrected.append(48)
            with scene.database.connect(autocommit=False) as connection:
                upsert(connection, 48, 1, "older than the commit")
            if folded:
                with scene.mirror.with_options(fold_age=0.02).pumping():
                    await_true(lambda: scene.database.rows(left) == [], 60, "the correction is folded, and cleared")
        return lock(*arguments)

    monkeypatch.setattr(slot_lock, "lock_slot", correct)
    scene.ingest(path)
    assert corrected
    scene.into_model(SECOND)
    scene.assert_exact()


def test_a_correction_that_was_written_before_others_and_committed_after_them(
    scene: IngestScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version is below those that the ingest has looked at already. It is committed before the ingest, and
    replaced."""
    path = _prepared(scene)
    lock = slot_row.lock_slot
    with scene.database.connect(autocommit=False) as writer, scene.database.connect(autocommit=False) as later:
        upsert(writer, 48, 1, "an earlier version")
        upsert(later, 52, 1, "a later version")
        later.commit()

        def commit(*arguments: Any) -> Any:
            writer.commit()
            return lock(*arguments)

        monkeypatch.setattr(slot_lock, "lock_slot", commit)
        scene.ingest(path)
    scene.into_model(SECOND)
    scene.assert_exact()


def test_an_ingest_into_a_table_that_changes_all_the_time(scene: IngestScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows above the cut-line are published between each look and the lock. The commit is staged under it then."""
    path = _prepared(scene)
    lock = slot_row.lock_slot
    published: list[tuple[int, int, int, str]] = []
    publishing: list[bool] = []

    def publish(*arguments: Any) -> Any:
        if not publishing and len(published) < 6:
            publishing.append(True)
            published.append((390, 1000 + len(published), 1, "hot"))
            with scene.database.connect(autocommit=False) as connection:
                connection.execute("INSERT INTO events VALUES (%s, %s, %s, %s)", published[-1])
            scene.mirror.catch_up()
            publishing.clear()
        return lock(*arguments)

    monkeypatch.setattr(slot_lock, "lock_slot", publish)
    scene.ingest(path)
    assert len(published) == 2
    scene.into_model([*SECOND, *published])
    scene.assert_exact()


def test_rows_that_expire_while_an_ingest_looks(scene: IngestScene) -> None:
    rows = [(20, 1, 1, "expired"), (100, 1, 1, "expired"), (210, 500, 1, "expired")]

    def expire(step: IngestStep) -> None:
        if step is IngestStep.LOOKING:
            scene.database.execute("UPDATE modak.cutline SET retention_line = 30")

    with pytest.raises(TableError, match=r"retention line of public\.events has passed rows"):
        scene.ingest(scene.csv("rows.csv", rows), on_step=expire)
    assert scene.lake("SELECT count(*) FROM lake WHERE v = 'expired'") == [(0,)]
    assert scene.database.rows("SELECT count(*) FROM events WHERE v = 'expired'") == [(0,)]


@pytest.mark.further
def test_two_ingests_at_once(scene: IngestScene) -> None:
    files = [
        scene.csv(f"{number}.csv", [(at, number, number, "both") for at in (*range(50), *range(200, 250))])
        for number in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(scene.ingest, files))
    assert [outcome.lake_rows for outcome in outcomes] == [50] * 4
    for number in range(4):
        scene.into_model([(at, number, number, "both") for at in (*range(50), *range(200, 250))])
    scene.assert_exact()


# `done` is set in the transaction that makes the rows visible: so the model changes with them.
_WITH_THE_MODEL = """
CREATE TABLE coming (LIKE model);
CREATE FUNCTION with_the_model() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  DELETE FROM public.model m USING public.coming c WHERE (m.at, m.id) = (c.at, c.id);
  INSERT INTO public.model SELECT * FROM public.coming; RETURN NULL; END $$;
CREATE TRIGGER with_the_model AFTER UPDATE ON modak.op_log FOR EACH ROW
  WHEN (NEW.op_kind = 'ingest' AND NEW.phase = 'done') EXECUTE FUNCTION with_the_model()
"""


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_every_read_is_one_state(retention_tables: RetentionTables, database: Database, rounds: int) -> None:
    """Beside writers, folds, merges and an advance of the cut-line, over partitions that it has passed and over ones
    that are gone."""
    events = retention_tables.manual(fold_age=0.05, fold_rows=25, index_memory=1 << 24)
    mirror, seed = events.mirror, random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    database.execute(_WITH_THE_MODEL)
    stop = threading.Event()

    def read(ended: threading.Event) -> None:
        with duckdb_connection() as duckdb:
            while not (ended.is_set() or stop.is_set()):
                events.assert_exact(duckdb)

    with mirror.pumping(Steps()) as running:
        mirror.await_live("public.events")
        events.advance(running)
        database.execute("DROP TABLE p0")
        scene = IngestScene(database, _inputs(mirror), mirror, ("at", "id", "n", "v", "big"))
        with writing(database, events.write, seed), in_thread(read, "reader"):
            for number in range(rounds):
                if number == rounds // 2:
                    events.advance(running)
                rows = _random_rows(chance, number)
                _corrections(database, chance)
                _announce(database, rows)
                outcome = scene.ingest(scene.csv("rows.csv", rows))
                assert outcome.rows == len(rows)
        events.assert_exact()
    mirror.assert_sound()


def _inputs(mirror: Mirror) -> Path:
    return Path(mirror.settings.require_warehouse().removeprefix("file://")).parent / "input"


def _random_rows(chance: random.Random, number: int) -> list[tuple[object, ...]]:
    """Rows of all partitions, whose keys the writer does not use, and of which earlier rounds had some."""
    keys = {(chance.randrange(300), 1000 + chance.randrange(6)) for _ in range(120)}
    return [(at, key, number, f"round {number}", None) for at, key in keys]


def _corrections(database: Database, chance: random.Random) -> None:
    """Corrections of keys that are ingested, of which folds are then under way."""
    for _ in range(6):
        with database.connect(autocommit=False) as connection:
            change = upsert if chance.random() < 0.7 else None
            at, key = chance.randrange(300), 1000 + chance.randrange(6)
            if change is None:
                delete(connection, at, key)
            else:
                change(connection, at, key, "corrected")


def _announce(database: Database, rows: list[tuple[object, ...]]) -> None:
    """What the model gets in the transaction of the ingest."""
    with database.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE coming")
        with cursor.copy("COPY coming FROM STDIN (FORMAT csv)") as copy:
            copy.write(csv_text(rows))


@pytest.mark.further
def test_an_ingest_into_partitions_that_the_cut_line_has_passed(
    retention_tables: RetentionTables, database: Database
) -> None:
    """The heap's partition stays equal to the lake: its rows are written by PostgreSQL, and become corrections."""
    events: EventsTable = retention_tables.manual(fold_age=0.05)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        scene = IngestScene(database, _inputs(mirror), mirror, ("at", "id", "n", "v", "big"))
        rows = [(at, 7000, 1, "ingested", None) for at in (5, 50, 150, 250)]
        outcome = scene.ingest(scene.csv("a.csv", rows), on_conflict=OnConflict.REPLACE)
        assert (outcome.lake_rows, outcome.heap_rows) == (0, 4)
        with database.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            with cursor.copy("COPY model FROM STDIN (FORMAT csv)") as copy:
                copy.write(csv_text(rows))
        events.assert_exact()
        assert database.rows("SELECT count(*) FROM p0 WHERE id = 7000") == [(2,)]
    mirror.assert_sound()
