"""Beside a long transaction, users never wait behind a lock request of ours for longer than lock_timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.ops.verify.verification import verify
from mirror_pump.settings.config import Settings
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.pipeline import in_thread
from tests.support.resyncs import resynced
from tests.support.retention_table import at_once
from tests.support.tiered import tiered

pytestmark = pytest.mark.further

_PATIENCE = 0.3
"""Seconds of lock_timeout."""
_SLACK = 3.0
"""Seconds that a statement may take besides, on a busy machine."""

_WAITING = (
    "SELECT DISTINCT l.pid, l.waitstart FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE NOT l.granted AND l.waitstart IS NOT NULL AND l.locktype = 'relation'"
    " AND a.datname = current_database() AND a.application_name LIKE 'mirror-pump%'"
)
"""Our requests of locks that others hold."""


@dataclass
class Users:
    """Programs that go on using the tables."""

    database: Database
    statements: tuple[str, ...]
    longest: float = 0.0
    """Seconds that the slowest statement took."""
    requests: frozenset[tuple[int, object]] = frozenset()
    """Requests of ours that were seen waiting."""

    def work(self) -> bool:
        """Runs each statement once, in a transaction of its own. Whether two requests of ours have been given up or
        granted: a third one waits, or two do not wait any more."""
        waiting = frozenset(self.database.rows(_WAITING))
        self.requests |= waiting
        for statement in self.statements:
            with self.database.connect() as connection:
                connection.execute(f"SET lock_timeout = '{_PATIENCE + _SLACK:g}s'")
                began = time.monotonic()
                connection.execute(statement.encode())
                self.longest = max(self.longest, time.monotonic() - began)
        return len(self.requests - waiting) >= 2


@contextmanager
def requests_given_up(database: Database, uses: tuple[str, ...], act: Callable[[], object]) -> Iterator[None]:
    """Has `act` ask for its locks again and again beside a transaction of the caller's, while users go on with `uses`.
    The block ends the transaction, and `act` has to return after that."""
    users = Users(database, uses)

    def command(_stop: threading.Event) -> None:
        act()

    with in_thread(command, "command"):
        await_true(users.work, 60, "two requests of ours are given up")
        yield
    assert users.longest < _PATIENCE + _SLACK


USES = ("INSERT INTO t (v) VALUES ('user')", "SELECT count(*) FROM t")


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)",
        "INSERT INTO t (v) SELECT 'first' FROM generate_series(1, 100)",
    )
    return Mirror.create(database, warehouse, tasks, lock_timeout=_PATIENCE)


def test_registering_beside_a_writer(mirror: Mirror) -> None:
    database = mirror.database
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t (v) VALUES ('open')")
        with requests_given_up(database, USES, lambda: mirror.register("t")):
            writer.commit()
    mirror.catch_up()
    mirror.assert_equal("public.t")


def test_unregistering_beside_a_vacuum(mirror: Mirror) -> None:
    database = mirror.database
    mirror.register("t")
    mirror.catch_up()
    with database.connect(autocommit=False) as vacuum:
        vacuum.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
        with requests_given_up(database, USES, lambda: mirror.unregister("t")):
            vacuum.commit()
    assert mirror.state("public.t") == ""


@pytest.mark.parametrize("command", [pause, resume])
def test_pausing_and_resuming_beside_a_vacuum(mirror: Mirror, command: Callable[[Settings, str], object]) -> None:
    database = mirror.database
    mirror.register("t")
    mirror.catch_up()
    if command is resume:
        pause(mirror.settings, "t")
    with database.connect(autocommit=False) as vacuum:
        vacuum.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
        with requests_given_up(database, USES, lambda: command(mirror.settings, "t")):
            vacuum.commit()


def test_copying_beside_a_change_of_the_table(mirror: Mirror) -> None:
    """Users wait for whoever alters the table, and so do we, a fifth of a second at a time."""
    database = mirror.database
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    mirror.register("t")
    with database.connect(autocommit=False) as owner:
        owner.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with requests_given_up(database, ("INSERT INTO u SELECT count(*) FROM u",), mirror.catch_up):
            owner.commit()
    mirror.assert_equal("public.t")


def test_copying_a_table_without_a_key_beside_a_writer(mirror: Mirror) -> None:
    database = mirror.database
    database.execute("CREATE TABLE log (v text)")
    mirror.register("log", choices=ColumnChoices(append_only=True))
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO log VALUES ('open')")
        uses = ("INSERT INTO log VALUES ('user')", "SELECT count(*) FROM log")
        with requests_given_up(database, uses, mirror.catch_up):
            writer.commit()
    mirror.catch_up()
    mirror.assert_equal("public.log")


def _run(mirror: Mirror, command: str, _stop: threading.Event) -> None:
    if command == "verify":
        verify(mirror.settings, ["t"])
    else:
        resynced(mirror, "t")


@pytest.mark.parametrize("command", ["verify", "resync"])
def test_commands_beside_a_writer_ask_for_no_lock_that_it_holds(mirror: Mirror, command: str) -> None:
    """They may wait for its end, by other means than a lock, and users do not notice."""
    database = mirror.database
    mirror.register("t")
    users = Users(database, USES)
    with mirror.pumping():
        mirror.await_live("public.t")
        with database.connect(autocommit=False) as writer:
            writer.execute("INSERT INTO t (v) VALUES ('open')")
            with in_thread(partial(_run, mirror, command), command):
                for _ in range(20):
                    users.work()
                writer.commit()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    assert users.requests == frozenset()
    assert users.longest < _SLACK


EVENT_USES = ("UPDATE events SET n = n WHERE at = 340", "SELECT count(*) FROM events WHERE at > 300")


def test_a_partition_leaves_beside_a_writer_and_comes_back_beside_a_reader(retention_tables: RetentionTables) -> None:
    """Sealing it, dropping it, and restoring it."""
    events = retention_tables.automatic(partitions=4, lag=None, lock_timeout=_PATIENCE)
    mirror, database = events.mirror, events.database
    mirror.register("public.events", retention=at_once("100"))
    with mirror.pumping():
        with database.connect(autocommit=False) as writer:
            writer.execute("UPDATE p0 SET n = n")
            with requests_given_up(database, EVENT_USES, lambda: mirror.await_live("public.events")):
                writer.rollback()
        with database.connect(autocommit=False) as reader:
            reader.execute("SELECT count(*) FROM p1")
            with requests_given_up(database, EVENT_USES, lambda: events.await_state(p0="dropped")):
                reader.rollback()
        events.await_state(p1="dropped")
        events.assert_exact()
        with database.connect(autocommit=False) as reader:
            reader.execute("SELECT count(*) FROM events")
            with requests_given_up(database, EVENT_USES, lambda: mirror.unregister("events", restore_heap=True)):
                reader.rollback()
    assert database.rows("SELECT count(*) FROM events") == database.rows("SELECT count(*) FROM model")


def test_tiering_a_table_beside_a_writer(retention_tables: RetentionTables) -> None:
    events = retention_tables.automatic(partitions=4, lag=None, lock_timeout=_PATIENCE)
    with events.database.connect(autocommit=False) as writer:
        writer.execute("UPDATE p3 SET n = n WHERE at = 300")
        act = partial(events.mirror.register, "public.events", retention=tiered())
        with requests_given_up(events.database, EVENT_USES, act):
            writer.rollback()
    assert events.mirror.state("public.events") == "live"
