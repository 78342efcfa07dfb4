"""A consistent snapshot pins what it shows, keeps and releases the pins, and blocks nobody."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from mirror_pump.errors import SourceError, TableError, UsageError
from mirror_pump.model import TableId
from mirror_pump.runtime.service_thread import ServiceThread
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot, Locks, mirrored_ids
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pipeline import in_thread
from tests.support.proxy import proxied


@pytest.fixture
def mirror(database: Database, tmp_path: Path, tasks: ThreadTaskRunner) -> Mirror:
    made = Mirror.create(database, tmp_path.as_uri(), tasks)
    database.execute(
        "CREATE TABLE public.t (id bigint, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE public.low PARTITION OF public.t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE public.rest PARTITION OF public.t DEFAULT",
        "INSERT INTO public.t SELECT g, g FROM generate_series(0, 99) g",
    )
    made.register("public.t")
    made.catch_up()
    return made


@pytest.fixture
def table(mirror: Mirror) -> TableId:
    with connect(mirror.database.dsn, autocommit=True) as connection:
        return mirrored_ids(connection, ["t"])[0]


def pins(mirror: Mirror) -> list[tuple[int, int, int]]:
    return mirror.database.rows(
        "SELECT pin_id, pinned_tier_key_hi, pinned_lake_snapshot_id FROM modak.read_pins ORDER BY pin_id"
    )


def test_a_pin_is_taken_again_until_it_is_on_what_the_snapshot_shows(mirror: Mirror, table: TableId) -> None:
    """An advance that lands between pin and snapshot has not seen the pin, and may have cleared what it needs."""
    mirror.database.execute(
        "CREATE TABLE public.once (left_over int)",
        "INSERT INTO public.once VALUES (2)",
        "CREATE FUNCTION public.meanwhile() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE public.once SET left_over = left_over - 1 WHERE left_over > 0;"
        " IF FOUND THEN"
        " UPDATE modak.cutline SET tier_key_hi = tier_key_hi + 1, lake_snapshot_id = lake_snapshot_id + 1;"
        " END IF; RETURN NULL; END $$",
        "UPDATE modak.cutline SET tier_key_hi = 0",
        "CREATE TRIGGER meanwhile AFTER INSERT ON modak.read_pin_rows EXECUTE FUNCTION public.meanwhile()",
    )
    with ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.NONE) as moment:
        seam = moment.seams[table]
        assert seam.state.cut == 2
        assert pins(mirror) == [(moment.pins[0].pin_id, seam.state.cut, seam.state.snapshot_id)]
        assert moment.pins[0].pin_id == 3, "two pins were given back"
        tied = "SELECT count(*) FROM modak.read_pins p JOIN pg_stat_activity a ON a.pid = p.ends_with"
        assert mirror.database.rows(tied) == [(1,)], "it ends with the reader"
    assert pins(mirror) == []


def test_a_pin_lives_as_long_as_its_reader_and_not_longer(mirror: Mirror, table: TableId) -> None:
    gone = threading.Event()
    moment = ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.NONE, stopped=gone.is_set, pin_seconds=1.0)
    (before,) = mirror.database.rows("SELECT expires_at FROM modak.read_pins")
    await_true(
        lambda: mirror.database.rows("SELECT expires_at > %s FROM modak.read_pins", before) == [(True,)], 20, "kept"
    )
    moment.check()
    gone.set()
    await_true(lambda: pins(mirror) == [], 20, "released")
    with pytest.raises(SourceError, match="released already"):
        moment.check()
    moment.release()


def test_a_reader_that_is_interrupted_while_it_pins_leaves_no_pin(mirror: Mirror, table: TableId) -> None:
    """At the worst moment: the pin is committed, and the reader does not know it yet."""

    def interrupt(_: threading.Event) -> None:
        await_true(lambda: len(pins(mirror)) == 1, 60, "the pin is committed")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with proxied(mirror.database.dsn) as proxy:
        proxy.hold_answer(b"pin_tables")
        with in_thread(interrupt, "interruption", 60), pytest.raises(KeyboardInterrupt):
            ConsistentSnapshot(proxy.dsn, [table], locks=Locks.NONE)
    assert pins(mirror) == []


@pytest.mark.parametrize("place", ["start", "stop"])
def test_a_reader_that_is_interrupted_beside_its_thread_leaves_no_pin(
    mirror: Mirror, table: TableId, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """To start a thread and to wait for its end takes a moment, too, in which Ctrl-C may come."""
    work = getattr(ServiceThread, place)

    def interrupted(thread: ServiceThread) -> None:
        work(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(ServiceThread, place, interrupted)
    with pytest.raises(KeyboardInterrupt), ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.NONE):
        assert len(pins(mirror)) == 1
    monkeypatch.undo()
    assert pins(mirror) == []


def test_a_reader_whose_pin_was_swept_gets_an_error(mirror: Mirror, table: TableId) -> None:
    with ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.NONE, pin_seconds=0.6) as moment:
        mirror.database.execute("DELETE FROM modak.read_pins")

        def ended() -> bool:
            try:
                moment.check()
            except SourceError as error:
                return "expired while it was in use" in str(error)
            return False

        await_true(ended, 20, "the reader gets its error")


def test_a_read_of_the_heap_keeps_its_files_and_lets_partitions_be_added(mirror: Mirror, table: TableId) -> None:
    mirror.database.execute("UPDATE modak.tables SET heap_retention_lag = 100")
    with (
        ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.ALL) as moment,
        mirror.database.connect() as other,
    ):
        other.execute("SET lock_timeout = '100ms'")
        for statement in ("TRUNCATE public.low", "TRUNCATE public.t", "ALTER TABLE public.t ADD COLUMN x int"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute(statement.encode())
        other.execute("CREATE TABLE public.high PARTITION OF public.t FOR VALUES FROM (100) TO (200)")
        other.execute("INSERT INTO public.t VALUES (150, 150)")
        assert not moment.rewritten(moment.seams[table])
        assert moment.connection.execute("SELECT count(*) FROM public.t").fetchone() == (100,)


def test_a_reader_gives_up_on_a_lock_that_it_does_not_get(mirror: Mirror, table: TableId) -> None:
    with closing(mirror.database.connect(autocommit=False)) as other:
        other.execute("ALTER TABLE public.t ADD COLUMN x int")
        with pytest.raises(SourceError, match="lock timeout"):
            ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.ALL, lock_seconds=0.1)
        with ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.NONE, lock_seconds=0.1):
            pass
    assert pins(mirror) == []


def test_a_partition_that_is_dropped_just_now_holds_up_a_reader_and_no_more(mirror: Mirror, table: TableId) -> None:
    counted = []

    def read(_: threading.Event) -> None:
        with ConsistentSnapshot(mirror.database.dsn, [table], locks=Locks.ALL) as moment:
            counted.append(moment.connection.execute("SELECT count(*) FROM public.t").fetchone())
            assert [pin for pin, _, _ in pins(mirror)] == [pin.pin_id for pin in moment.pins]

    with mirror.database.connect(autocommit=False) as owner:
        owner.execute("DROP TABLE public.low")
        with in_thread(read, "reader"):
            waiting: LiteralString = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
            pid = owner.info.backend_pid
            await_true(lambda: mirror.database.rows(waiting, (pid,)), 20, "the reader waits")
            owner.commit()
    assert counted == [(0,)]


def test_tables_that_are_not_there_are_refused_by_name(mirror: Mirror) -> None:
    mirror.database.execute("CREATE TABLE public.plain (id int PRIMARY KEY)")
    with connect(mirror.database.dsn, autocommit=True) as connection:
        with pytest.raises(UsageError, match="there is no table nothing"):
            mirrored_ids(connection, ["nothing"])
        with pytest.raises(TableError, match=r"public\.plain is not mirrored"):
            mirrored_ids(connection, ["public.plain"])
    with pytest.raises(TableError, match="not mirrored"):
        ConsistentSnapshot(mirror.database.dsn, [TableId(1)], locks=Locks.NONE)
