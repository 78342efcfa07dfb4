"""Registrations, their ends, and feeds are there as a whole or not at all, whatever stops a command."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from mirror_pump.errors import ConnectionLost, Interrupted, SourceError
from mirror_pump.ops import table_locks
from mirror_pump.ops.register import (
    feed_registration,
    former_files,
    new_lake_table,
    registration,
    unregistration,
)
from mirror_pump.ops.register.feed_registration import alter_feed
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.register.unregistration import unregister
from mirror_pump.pipeline.landing import registration_end, written_files
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.integration.feeds.test_feed_rows import KEYS
from tests.support.cli import RunCommand
from tests.support.held_writes import holding_s3_server
from tests.support.interrupts import InterruptedLines
from tests.support.pipeline import in_thread
from tests.support.proxy import Loss, proxied
from tests.support.registration_scene import (
    COMMANDS,
    assert_whole,
    at_return,
    killed_after,
    make_table,
    prepare,
    register_t,
    state,
)

_LINES = (
    feed_registration, former_files, new_lake_table, registration, registration_end, table_locks, unregistration,
    written_files,
)  # fmt: skip

_REFUSED = """
CREATE FUNCTION audit.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE 'no feed today' USING ERRCODE = 'insufficient_resources'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON modak.change_feeds FOR EACH ROW EXECUTE FUNCTION audit.refuse()
"""


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    make_table(database)
    return Mirror.create(database, warehouse, ThreadTaskRunner())


def test_what_the_server_refuses_leaves_no_file(mirror: Mirror, database: Database) -> None:
    """For a reason that has nothing to do with the table."""
    database.execute(_REFUSED)
    with pytest.raises(SourceError, match="no feed today"):
        register_t(mirror.settings, KEYS)
    assert_whole(mirror)
    register_t(mirror.settings)
    with pytest.raises(SourceError, match="no feed today"):
        alter_feed(mirror.settings, "t", KEYS)
    assert_whole(mirror)
    database.execute("DROP TRIGGER refuse ON modak.change_feeds")
    assert alter_feed(mirror.settings, "t", KEYS).changed
    assert_whole(mirror)
    mirror.catch_up()
    mirror.assert_equal("public.t")


@pytest.mark.further
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("places", [6, pytest.param(60, marks=pytest.mark.soak)])
def test_ctrl_c_at_any_line(mirror: Mirror, command: str, places: int) -> None:
    def interrupted(at: int | None) -> int:
        prepare(mirror, command)
        before = state(mirror)
        lines = InterruptedLines(_LINES, at)
        with lines.counted(), suppress(KeyboardInterrupt, Interrupted):
            lines.begin()
            COMMANDS[command](mirror.settings)
        if at is None:
            states[:] = [before, state(mirror)]
            assert before != states[1] or command == "drop lake"
        assert state(mirror) in states
        assert_whole(mirror)
        return lines.lines

    states: list[object] = []
    total, seed = interrupted(None), random.randrange(2**32)
    print(f"seed {seed}")
    for at in random.Random(seed).sample(range(total), min(places, total)):
        print(f"line {at} of {total}")
        interrupted(at)
    prepare(mirror, command)
    COMMANDS[command](mirror.settings)
    register_t(mirror.settings)
    mirror.catch_up()
    mirror.assert_equal("public.t")


@pytest.mark.further
@pytest.mark.parametrize(
    ("command", "function", "happened"),
    [
        ("register", "new_lake_table", False),
        ("register", "stage_feed", False),
        ("register", "_enter", False),
        ("register", "locked_transaction", True),
        ("retire", "end_registration", False),
        ("retire", "locked_transaction", True),
        ("begin feed", "enter_feed", False),
        ("begin feed", "locked_transaction", True),
        ("end feed", "end_feed", False),
        ("end feed", "locked_transaction", True),
        ("unregister", "end_registration", False),
        ("unregister", "locked_transaction", True),
        ("drop lake", "end_registration", False),
        ("drop lake", "_give_up", True),
        ("drop lake", "delete_tree", True),
    ],
)
def test_a_kill(mirror: Mirror, command: str, function: str, happened: bool) -> None:
    """What was staged for a registration that did not land is below a location that is never used again."""
    prepare(mirror, command)
    before = state(mirror)
    assert killed_after(mirror.settings, command, function) == -signal.SIGKILL
    assert (state(mirror) != before) is happened
    assert_whole(mirror, orphans=not happened)
    if not happened:
        COMMANDS[command](mirror.settings)
    with suppress(SourceError):
        register_t(mirror.settings)
    mirror.catch_up()
    mirror.assert_equal("public.t")
    unregister(mirror.settings, "t", drop_lake=True)


@pytest.mark.further
@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("command", ["register", "begin feed"])
def test_an_answer_to_the_commit_that_is_lost(mirror: Mirror, command: str, loss: Loss) -> None:
    prepare(mirror, command)
    before = state(mirror)
    with (
        proxied(mirror.database.dsn) as proxy,
        at_return("enter_feed", lambda: proxy.lose(loss)),
        pytest.raises(ConnectionLost),
    ):
        COMMANDS[command](mirror.settings.model_copy(update={"dsn": proxy.dsn}))
    assert (state(mirror) != before) is (loss is Loss.AFTER)
    assert_whole(mirror)
    mirror.catch_up()


@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_publishes_go_on_while_storage_is_slow(database: Database, tasks: ThreadTaskRunner) -> None:
    """Files are written before, and removed after, the lock of the mirror is held."""
    with holding_s3_server() as s3:
        make_table(database)
        database.execute("CREATE TABLE a (v int PRIMARY KEY)")
        mirror = Mirror.create(database, "s3://lake/shop", tasks, **s3.storage_settings)
        mirror.register("a")
        works: list[tuple[str, bool, Callable[[Settings], object]]] = [
            ("/t-", False, lambda settings: register(settings, ["t"], wait=False, on_progress=lambda _: None)),
            ("__changes-", False, COMMANDS["begin feed"]),
            ("/t-", True, COMMANDS["drop lake"]),
        ]
        with mirror.pumping():
            mirror.await_live("public.a")
            for number, (part, removals, work) in enumerate(works):
                mirror.await_frontier()
                s3.hold(lambda key, part=part: part in key, removals=removals)  # type: ignore[misc]
                with in_thread(lambda _stop, work=work: work(mirror.settings), "command"):  # type: ignore[misc]
                    s3.await_held()
                    database.execute(f"INSERT INTO a VALUES ({number})")
                    mirror.await_frontier()
                    s3.release()


def test_what_is_left_of_a_feed_ends_with_a_lost_registration(
    mirror: Mirror, database: Database, run: RunCommand, warehouse: str
) -> None:
    """So the table can be registered with a feed again."""
    register_t(mirror.settings, KEYS)
    mirror.catch_up()
    with database.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM modak.mirror_tables")
    options = ("--slot", mirror.settings.slot, "--publication", mirror.settings.publication)
    assert "t is not mirrored" in run("init", "--warehouse", warehouse, *options).stdout
    assert database.rows("SELECT count(*) FROM modak.change_feeds WHERE feed_id > 0") == [(0,)]
    assert_whole(mirror)
    register_t(mirror.settings, KEYS)
    mirror.catch_up()
    mirror.assert_equal("public.t")
