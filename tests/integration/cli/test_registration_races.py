"""Commands, or a command and the pump, register the same tables at once: who comes second finds them registered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.register.registration import RegisterOutcome, register
from mirror_pump.ops.register.selection import follow
from mirror_pump.ops.register.table_follower import TableFollower
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.integration.feeds.test_feed_rows import KEYS
from tests.support.cli import RunCommand


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    """Commands wait for locks as long as a test needs."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v')")
    return Mirror.create(database, warehouse, ThreadTaskRunner(), lock_timeout=60)


def _outcome(mirror: Mirror, name: str = "t", feed: FeedOptions | None = None) -> RegisterOutcome:
    (outcome,) = register(mirror.settings, [name], wait=False, on_progress=lambda _: None, wish=TableOptions(feed=feed))
    return outcome


def _waiting(database: Database, relation: str) -> int:
    """How many sessions wait for a lock of a table."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
    return int(database.rows(query, (relation,))[0][0])


@pytest.mark.parametrize("feed", [None, pytest.param(KEYS, marks=pytest.mark.further)])
def test_two_registrations_of_a_table(mirror: Mirror, database: Database, feed: FeedOptions | None) -> None:
    """Both have staged it before one of them enters it."""
    with database.session(autocommit=False) as writer, ThreadPoolExecutor() as commands:
        writer.execute("INSERT INTO t VALUES (2, 'w')")
        first, second = (commands.submit(_outcome, mirror, "t", wish) for wish in (None, feed))
        await_true(lambda: _waiting(database, "t") == 2, 60, "both wait for the writer")
        writer.commit()
        outcomes = [first.result(), second.result()]
    errors = [outcome.error for outcome in outcomes]
    if feed is None:
        assert errors == [None, None]
        assert sorted(outcome.was_registered for outcome in outcomes) == [False, True]
    elif errors[0] is None and errors[1] is None:
        assert outcomes[0].was_registered, "the one without a feed takes what is there"
    else:
        assert "is registered without --changes" in str(errors[1])
    mirror.catch_up()
    mirror.assert_equal("public.t")
    files = database.rows("SELECT count(*) FROM modak.former_locations")
    assert files == [(0,)]


def test_a_name_goes_to_another_table_meanwhile(mirror: Mirror, database: Database) -> None:
    """What is registered is the table that has the name once its lock is granted."""
    with database.session(autocommit=False) as writer, ThreadPoolExecutor() as commands:
        writer.execute("ALTER TABLE t RENAME TO t_old; CREATE TABLE t (id int PRIMARY KEY, n int)")
        command = commands.submit(_outcome, mirror)
        await_true(lambda: _waiting(database, "t") == 1, 60, "it waits for the rename")
        writer.commit()
        assert command.result().error is None
    mirror.catch_up()
    assert mirror.state("public.t_old") == ""
    database.execute("INSERT INTO t VALUES (7, 7)")
    mirror.catch_up()
    mirror.assert_equal("public.t")


def test_a_feed_takes_the_name_meanwhile(mirror: Mirror, database: Database) -> None:
    """Its entry in the lake stays its own, and the table that came second is refused."""
    database.execute("CREATE TABLE t__changes (id int PRIMARY KEY)")
    with database.session(autocommit=False) as writer, ThreadPoolExecutor() as commands:
        writer.execute("INSERT INTO t__changes VALUES (1)")
        command = commands.submit(_outcome, mirror, "t__changes")
        await_true(lambda: _waiting(database, "t__changes") == 1, 60, "it waits for the writer")
        assert _outcome(mirror, "t", KEYS).error is None
        writer.commit()
        assert "is the name of a change feed" in str(command.result().error)
    mirror.catch_up()
    assert mirror.state("public.t__changes") == ""
    assert database.rows("SELECT error FROM modak.change_feeds") == [(None,)] * 2
    mirror.unregister("t")
    assert database.rows("SELECT FROM modak.tables") == []


def test_a_pattern_beside_the_pump_that_follows_it(mirror: Mirror, database: Database, run: RunCommand) -> None:
    names = [f"t{number}" for number in range(6)]
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    with mirror.pumping() as pump:
        follow(mirror.settings, ["public.*"], [], None)
        with TableFollower(mirror.settings, pump.steps), ThreadPoolExecutor() as commands:
            outcomes = list(commands.map(lambda name: _outcome(mirror, name), [*names, *names]))
            assert [outcome.error for outcome in outcomes if outcome.error is not None] == []
            mirror.await_live(*(f"public.{name}" for name in names), "public.t")
    again = run("register", "public.*", "t", "--no-wait", "--slot", mirror.settings.slot)
    assert again.exit_code == 0, again.output
    assert "registered already" in again.output


def test_what_is_registered_already_is_said(mirror: Mirror, run: RunCommand) -> None:
    register = ("register", "t", "--no-wait", "--slot", mirror.settings.slot)
    assert run(*register).stdout == "public.t: registered\n"
    assert run(*register).stdout == "public.t: is registered already\n"
    mirror.catch_up()
    assert run(*register).stdout == "public.t: is registered already, and live: nothing was copied\n"
