"""The read algorithm of the seam protocol as published, and attacks on each invariant that its consumers rely on.

Tests are named after the protocol's sentences. Most share one mirror, with a table whose old partitions keep moving to
the lake: each test makes a partition of its own due. Reads are DuckDB's and pyiceberg's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg.errors import DeadlockDetected, SerializationFailure, UniqueViolation
from psycopg.types.json import Jsonb

from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.ops.retain.retention import look, resume
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, lake_rows, normalised
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.maintenance import Maintained, age
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH, Row, at_once, run
from tests.support.seam_scene import (
    HANDLES,
    PIN,
    RELEASE,
    STORAGE,
    SeamScene,
    by_pyiceberg,
    canonical,
    pin_handles,
    repeatable,
)
from tests.support.seam_scene import scene as running_scene

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def lake_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seam")


@pytest.fixture(scope="module")
def scene(postgres: EmbeddedPostgres, lake_root: Path) -> Iterator[SeamScene]:
    database = Database(postgres, f"t_seam_invariants_{random.getrandbits(24):06x}")
    postgres.create_database(database.name)
    try:
        with running_scene(database, lake_root.as_uri()) as made:
            yield made
        assert_verified(database)
    finally:
        postgres.drop_database(database.name)


def test_a_conforming_read_is_a_consistent_point_in_time_view(scene: SeamScene) -> None:
    """Step by step. All of it in one REPEATABLE READ transaction, so that the model shows the same point in time. A pin
    that is deleted is committed before; then its cut-line and the published snapshot are the ones that are read,
    whatever has moved since."""
    stale = 0
    with scene.busy():
        for turn in scene.advancing(3, least=30):
            ended_by = ("delete", "rollback", "never pinned")[turn % 3]
            if turn % 4 == 3:
                scene.await_cut()
            with scene.database.session(autocommit=False) as connection:
                repeatable(connection)
                if ended_by == "never pinned":
                    t, s, location, snapshot = scene.seam(connection)
                else:
                    pin, (t, s, location, snapshot) = pin_handles(connection, scene.table_oid)
                assert str(s) == snapshot
                if ended_by == "delete":
                    connection.commit()
                    with (
                        suppress(UniqueViolation, DeadlockDetected, SerializationFailure),
                        scene.database.connect(autocommit=False) as other,
                    ):
                        scene.events.write(other, random.Random(pin))
                    repeatable(connection)
                stale += scene.seam(connection)[1] != s
                scene.compare(connection, t, location, ended_by)
                if ended_by == "delete":
                    assert connection.execute(RELEASE, {"pin": pin}).rowcount == 1
                    connection.commit()
                connection.rollback()
    print(f"{stale} reads of a snapshot that was replaced by then")
    ours: LiteralString = "SELECT * FROM modak.read_pins WHERE expires_at > now() + interval '5 minutes'"
    assert scene.rows(ours) == [], "but for those of proofs, which are shorter"


def test_doing_the_insert_and_the_read_in_one_transaction_makes_the_pin_atomic(scene: SeamScene) -> None:
    """In READ COMMITTED, with a fold and a partition that becomes due between the two statements."""
    scene.await_quiet()
    where = {"table_oid": scene.table_oid}

    def waits(reader: str) -> bool:
        found = scene.rows("SELECT reason FROM modak.partitions WHERE state = 'sealing' AND reason IS NOT NULL")
        return any(reader in reason for (reason,) in found)

    with scene.database.session(autocommit=False) as connection:
        pinned = connection.execute(PIN, where).fetchone()
        assert pinned is not None
        pin, t, s = pinned
        scene.upsert(7, "folded in between")
        scene.await_folded()
        scene.events.grow()
        await_true(
            partial(waits, f"process {connection.info.backend_pid} is putting a pin in place"), 30, "the cut-line waits"
        )
        handles = connection.execute(HANDLES, where).fetchone()
        assert handles is not None
        location, snapshot = handles
        assert snapshot != str(s), "a fold has landed"
        connection.commit()
        await_true(partial(waits, f"pin {pin} of a reader"), 30, "the cut-line waits for the pin")
        with StatusReader(scene.mirror.settings) as status:
            retention = status.read().tables[0].retention
        assert retention is not None
        assert f"pin {pin} of a reader" in str(retention.waits_for)
        (report,) = look(scene.mirror.settings, ())
        assert any(f"pin {pin} of a reader" in partition.outlook for partition in report.partitions)
        scene.upsert(7, "folded later")
        scene.await_folded()
        assert scene.events.cut == t
        repeatable(connection)
        scene.compare(connection, t, location, "a pin of one snapshot, and the file of a later one")
        assert connection.execute(RELEASE, {"pin": pin}).rowcount == 1
        connection.commit()
    await_true(lambda: scene.events.cut > t, 60, "the cut-line goes on")


def test_t_is_monotonic_per_table_and_t_s_and_metadata_location_advance_together(scene: SeamScene) -> None:
    """The connection of the advance dies when the cut-line has been moved, and before the commit: twice."""
    scene.database.execute(
        "CREATE SEQUENCE audit.attempts",
        "CREATE FUNCTION audit.die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('audit.attempts') <= 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(9);"
        " END IF; RETURN NEW; END $$",
        "CREATE TRIGGER die BEFORE UPDATE ON modak.partitions FOR EACH ROW"
        " WHEN (OLD.state = 'sealing' AND NEW.state = 'tiering') EXECUTE FUNCTION audit.die()",
    )
    retries = scene.running.steps.count(Step.RETRYING)
    seen: dict[tuple[int, int, str], None] = {}
    try:
        with scene.busy(), scene.database.connect() as connection:
            for _ in scene.advancing():
                row = connection.execute(
                    "SELECT tier_key_hi, lake_snapshot_id, lake_props ->> 'metadata_location',"
                    " lake_props ->> 'snapshot_id' FROM modak.cutline"
                ).fetchone()
                assert row is not None
                t, s, location, snapshot = row
                if (t, s, location) in seen:
                    continue
                seen[t, s, location] = None
                assert snapshot == str(s)
                current = read_metadata(location, STORAGE).current_snapshot
                assert current is not None
                assert (current.snapshot_id, current.summary.archive_cut_line) == (s, str(t)), (
                    "one is newer than another"
                )
                assert all(row[0] < t for row in lake_rows(location, scene.duckdb))
    finally:
        scene.database.execute("DROP TRIGGER die ON modak.partitions")
    assert scene.rows("SELECT last_value >= 4 FROM audit.attempts") == [(True,)], "two died, two came through"
    assert scene.running.steps.count(Step.RETRYING) >= retries + 2
    assert len({t for t, _, _ in seen}) >= 2
    # Every state after a transaction, also those that no reader saw.
    left = scene.rows(
        "SELECT t, s, location, snapshot"
        " FROM (SELECT DISTINCT ON (xid) * FROM audit.cutlines ORDER BY xid, seen DESC) c ORDER BY seen"
    )
    for (before_t, before_s, before_at, _), (t, s, at, snapshot) in pairwise(left):
        assert t >= before_t, "the cut-line moved back"
        assert snapshot == str(s)
        assert (t == before_t) or (s != before_s and at != before_at), "the cut-line moved alone"
        assert (s == before_s) == (at == before_at), "the published snapshot or its file moved alone"


def test_rows_at_or_above_t_are_in_the_heap_rows_below_it_in_the_lake_at_s_as_corrected_by_the_delta(
    scene: SeamScene,
) -> None:
    """At any committed point in time, while partitions are sealed, passed by the cut-line, and dropped: no row is in
    both, and none in neither. A pin keeps the first of them attached for a while: rows in the heap below the cut-line
    do not count."""
    pin = scene.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")[0][0]
    attached = 0
    with scene.busy(2):
        for turn in scene.advancing(3):
            scene.read()
            attached += any(state == "tiered" for state in scene.events.states().values())
            if turn == 8:
                assert scene.rows("SELECT modak.release(%(pin)s)", pin=pin) == [(True,)]
    assert attached, "no read met a partition that is below the cut-line and in the heap"
    scene.await_quiet()
    with scene.database.session(autocommit=False) as connection:
        repeatable(connection)
        t, _, location, _ = scene.seam(connection)
        model = normalised(connection.execute("SELECT at, id, n, v FROM model WHERE at < %s", (t,)).fetchall())
        assert connection.execute("SELECT count(*) FROM events WHERE at < %s", (t,)).fetchone() == (0,)
    assert_same(model, lake_rows(location, scene.duckdb), "everything folded: the published snapshot")
    assert_same(model, by_pyiceberg(location) or model, "the same by pyiceberg")


@pytest.mark.further
def test_every_delta_row_targets_a_cold_row_and_a_row_corrected_mid_fold_survives_with_its_newest_value(
    scene: SeamScene,
) -> None:
    with scene.busy(2):
        for _ in scene.advancing(2, least=30):
            misplaced = scene.rows(
                "SELECT d.pk, d.tier_key, c.tier_key_hi FROM modak.delta d JOIN modak.cutline c USING (table_id)"
                " WHERE d.tier_key >= c.tier_key_hi"
            )
            assert misplaced == []
    assert scene.rows("SELECT * FROM audit.misplaced") == []
    assert scene.rows("SELECT count(*) > 0 FROM audit.corrections") == [(True,)]
    scene.await_quiet()
    survived: set[str] = set()
    turns: list[str] = []

    def correct(step: Step, _: dict[str, object]) -> None:
        # Usually the fold is what is staged. If it was a merge, the row did not have to survive anything.
        if step is Step.STAGED and turns:
            scene.upsert(5, turns.pop())
        elif step is Step.FOLDED:
            left = scene.rows("SELECT payload ->> 'v' FROM modak.delta WHERE pk = %(pk)s", pk=canonical(5, 1000))
            survived.update(row[0] for row in left if row[0].startswith("second"))

    def corrected() -> bool:
        return not turns

    scene.running.steps.on = correct
    try:
        for turn in range(20):
            turns.append(f"second {turn}")
            scene.upsert(5, f"first {turn}")
            await_true(corrected, 30, "a correction in the middle of the fold")
            scene.read("a row corrected in the middle of its fold")
            scene.await_folded()
            scene.read("a row that was corrected in the middle of its fold")
            if len(survived) >= 3:
                break
    finally:
        scene.running.steps.on = None
    assert len(survived) >= 3


@pytest.mark.further
def test_rows_below_the_retention_line_when_set_have_been_expired_from_the_lake(scene: SeamScene) -> None:
    """It is never set: no row of the lake expires. The lowest keys of all are read, corrected, folded, not purged."""
    lowest = -(2**63)
    with scene.busy():
        for turn in scene.advancing(1):
            scene.upsert(lowest + turn % 3, f"kept {turn}")
            scene.upsert(0, f"kept {turn}")
    scene.await_quiet()
    assert scene.rows("SELECT retention_line FROM modak.cutline") == [(None,)]
    assert scene.rows("SELECT count(*) FROM audit.cutlines WHERE line IS NOT NULL") == [(0,)]
    scene.read("rows of the lowest keys")
    found = {row[:2]: row for row in lake_rows(scene.seam_now()[2], scene.duckdb)}
    wanted = scene.rows("SELECT at, id, n, v FROM model WHERE id = 1000 AND at <= 0")
    assert len(wanted) == 4
    assert [found[row[:2]] for row in wanted] == wanted


def test_versions_come_from_one_sequence_and_are_assignment_ordered(scene: SeamScene) -> None:
    """Several sessions write the same few keys, in partitions that are dropped, sealed, and passed by the cut-line but
    attached."""
    first = scene.rows("SELECT coalesce(max(seen), 0) FROM audit.corrections")[0][0]
    pin = scene.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")[0][0]
    places = [5, 15, scene.events.cut + 5, scene.events.cut + WIDTH + 5]

    def race(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        key = {"at": chance.choice(places), "id": 2000 + chance.randrange(2), "n": chance.randrange(1 << 30)}
        match chance.randrange(4):
            case 0:
                connection.execute(
                    "SELECT modak.delete('events', jsonb_build_object('at', %(at)s::bigint, 'id', %(id)s::bigint))", key
                )
            case 1:
                connection.execute("UPDATE events SET n = %(n)s WHERE at = %(at)s AND id = %(id)s", key)
            case _:
                connection.execute(
                    "SELECT modak.upsert('events', jsonb_build_object('at', %(at)s::bigint, 'id', %(id)s::bigint,"
                    " 'n', %(n)s::int))",
                    key,
                )

    seeds = [random.getrandbits(32) for _ in range(3)]
    print(f"racers' seeds {seeds}")
    with ExitStack() as stack:
        for seed in seeds:
            stack.enter_context(writing(scene.database, race, seed))
        for _ in scene.advancing(2, least=100):
            ((newest, given),) = scene.rows(
                "SELECT coalesce((SELECT max(version) FROM modak.delta), 0), last_value FROM modak.delta_version"
            )
            assert newest <= given, "a version that the sequence did not give"
        logged = "SELECT count(*) > 150 AND count(DISTINCT pk) = 8 FROM audit.corrections WHERE seen > %(first)s"
        await_true(lambda: scene.rows(logged, first=first)[0][0], 60, "150 corrections, of all eight keys")
    corrections = scene.rows(
        "SELECT pk, version, op, payload FROM audit.corrections WHERE seen > %(first)s ORDER BY seen", first=first
    )
    versions = [row[1] for row in corrections]
    assert len(set(versions)) == len(versions) > 100, "a version was given twice"
    newest_of: dict[str, tuple[int, int, Any]] = {}
    for pk, version, op, payload in corrections:
        assert pk not in newest_of or newest_of[pk][0] < version, f"{pk!r}: a later write has a lower version"
        newest_of[pk] = version, op, payload
    with scene.database.session(autocommit=False) as connection:
        repeatable(connection)
        t, _, location, _ = scene.seam(connection)
        cold = scene.cold(connection, location, t)
    checked = 0
    for at in places:
        for number in (2000, 2001):
            key = canonical(at, number)
            if at < t and key in newest_of:
                _, op, payload = newest_of[key]
                found = cold.get(key)
                assert (None if found is None else found[2]) == (payload["n"] if op == 0 else None), key
                checked += 1
    assert checked == 8
    # The model does not have these rows.
    with scene.database.session() as connection:
        for at in places:
            for number in (2000, 2001):
                connection.execute(
                    "SELECT modak.delete('events', jsonb_build_object('at', %s::bigint, 'id', %s::bigint))",
                    (at, number),
                )
    assert scene.rows("SELECT modak.release(%(pin)s)", pin=pin) == [(True,)]
    scene.read()


@pytest.mark.soak
def test_lake_maintenance_never_expires_a_pinned_snapshot_and_never_changes_what_a_live_one_serves(
    scene: SeamScene, spark: SparkSession, lake_root: Path
) -> None:
    """Folds and an advance after the pin, then compaction, expiry and a sweep, with everything old enough to be
    removed."""
    maintained = Maintained(scene.mirror, spark)
    scene.await_quiet()
    (pinned,) = scene.rows("SELECT pin_id, s, metadata_location FROM modak.pin('events', in_one_snapshot => true)")
    pin, s, location = pinned
    served = {location: lake_rows(location, scene.duckdb)}
    published = [s]
    try:
        for turn in scene.advancing(1, least=12):
            scene.upsert(7 + turn % 5, f"turn {turn}")
            scene.await_folded()
            _, s, location, _ = scene.seam_now()
            published.append(s)
            served[location] = lake_rows(location, scene.duckdb)
        maintained.policy("public.events", snapshot_retention_hours=0, snapshot_min_retained=1)
        age([path for path in lake_root.rglob("*") if path.is_file()], 24 * 365)
        result = maintained.maintain("public.events")
        assert not result.errors
        assert any("rewrite" in line for line in result.done), result.done
        assert len(set(published)) > 10, "more than stay without a pin"
        assert set(published) <= scene.snapshots(), (
            "a snapshot at or above the oldest pinned one, that was published, is gone"
        )
        for location, rows in served.items():
            assert lake_rows(location, scene.duckdb) == rows, location
            assert_same(rows, by_pyiceberg(location) or rows, f"{location} by pyiceberg")
        scene.read("after maintenance")
    finally:
        scene.rows("SELECT modak.release(%(pin)s)", pin=pin)
        maintained.policy("public.events", snapshot_retention_hours=24, snapshot_min_retained=10)


@pytest.mark.further
def test_pk_is_the_canonical_text_encoding_of_the_primary_key(database: Database, warehouse: str) -> None:
    """By every path that writes corrections, in sessions that print values differently. The correction's key finds its
    row in the lake."""
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), retention_interval=0.1, fold_age=3600)
    database.execute(
        "CREATE TABLE named (name text, at bigint, flag boolean, v text, PRIMARY KEY (name, at, flag))"
        " PARTITION BY RANGE (at)",
        "CREATE TABLE timed (at timestamptz PRIMARY KEY, v text) PARTITION BY RANGE (at)",
    )
    with database.session() as connection:
        for number, (low, high, first, last) in enumerate(((0, 100, 1, 2), (100, 200, 2, 31))):
            run(connection, f"CREATE TABLE n{number} PARTITION OF named FOR VALUES FROM ({low}) TO ({high})")
            span = f"FROM ('2026-01-{first:02}Z') TO ('2026-01-{last:02}Z')"
            run(connection, f"CREATE TABLE t{number} PARTITION OF timed FOR VALUES {span}")
    names = ["plain", "", "\x1f", "\\", "\\\x1f", "\x1f\\", "a\x1fb", "a\\\x1fb", "é \\x1f", "true"]
    times = ["2026-01-01 00:00:00+00", "2026-01-01 05:30:00.000001+00", "2026-01-01 23:59:59.9+00"]
    with database.session() as connection:
        for name in names:
            connection.execute(
                "INSERT INTO named VALUES (%s, 5, true, 'first'), (%s, 199, false, 'first')", (name, name)
            )
        for time in [*times, "2026-01-30 00:00:00+00"]:
            connection.execute("INSERT INTO timed VALUES (%s, 'first')", (time,))
    mirror.register("public.named", retention=at_once("50"))
    mirror.register("public.timed", retention=at_once("1 day"))
    # Held by a pin from before the cut-line moves: the rows below the cut-line stay in the heap, where plain UPDATE and
    # DELETE reach them.
    database.rows("SELECT pin_id FROM modak.pin('named', in_one_snapshot => true)")
    database.rows("SELECT pin_id FROM modak.pin('timed', in_one_snapshot => true)")
    mirror.catch_up()

    def states() -> list[Row]:
        return database.rows("SELECT DISTINCT state FROM modak.partitions WHERE partition_id ~ '0$'")

    with mirror.pumping():
        await_true(lambda: states() == [("tiered",)], 60, "the cut-line has passed both")
        with database.session() as connection:
            for setting in ("TimeZone = 'Asia/Kolkata'", "DateStyle = 'SQL, DMY'", "IntervalStyle = 'iso_8601'"):
                connection.execute(f"SET {setting}".encode())
            connection.execute("UPDATE named SET v = 'second' WHERE at = 5 AND name = 'plain'")
            connection.execute("DELETE FROM named WHERE at = 5 AND name = ''")
            connection.execute("UPDATE timed SET v = 'second' WHERE at = %s", (times[0],))
            database.execute("DELETE FROM modak.read_pins")
            resume(mirror.settings, ())
            await_true(lambda: states() == [("dropped",)], 60, "both are dropped")
            for place, name in enumerate(names[2:]):
                if place % 3 == 0:
                    connection.execute("INSERT INTO named VALUES (%s, 5, true, 'second')", (name,))
                    continue
                key = Jsonb({"name": name, "at": 5, "flag": True})
                if place % 3 == 1:
                    connection.execute("SELECT modak.upsert('named', %s || '{\"v\": \"second\"}')", (key,))
                else:
                    connection.execute("SELECT modak.delete('named', %s)", (key,))
            connection.execute("SELECT modak.delete('timed', jsonb_build_object('at', %s::timestamptz))", (times[1],))
            connection.execute("INSERT INTO timed VALUES (%s, 'second')", (times[2],))
        found: LiteralString = "SELECT pk, op FROM modak.delta WHERE table_id = %s::regclass::oid::bigint"
        deleted = {"", *names[4::3]}
        assert dict(database.rows(found, ("named",))) == {
            canonical(name, 5, "true"): int(name in deleted) for name in names
        }
        assert dict(database.rows(found, ("timed",))) == {
            "2026-01-01 00:00:00+00": 0,
            "2026-01-01 05:30:00.000001+00": 1,
            "2026-01-01 23:59:59.9+00": 0,
        }
        ((location,),) = database.rows(
            "SELECT lake_props ->> 'metadata_location' FROM modak.cutline"
            " WHERE table_id = 'named'::regclass::oid::bigint"
        )
        rows = {canonical(name, at, str(flag).lower()) for name, at, flag, _ in lake_rows(location)}
        assert rows == {pk for pk, _ in database.rows(found, ("named",))}, "the delta finds the lake's rows by it"
