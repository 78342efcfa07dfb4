"""Commands that begin and end registrations, to be stopped anywhere, and what has to hold after that."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from mirror_pump.errors import TableError
from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions, alter_feed
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.register.unregistration import unregister, unregister_former
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from tests.support.interrupts import rebuilt
from tests.support.local_files import path_of

_FORKS = multiprocessing.get_context("forkserver")
_KEYS = FeedOptions(FeedMode.KEYS)


def register_t(settings: Settings, feed: FeedOptions | None = None) -> None:
    """Registers `t`, and raises the error because of which it is not."""
    for outcome in register(settings, ["t"], wait=False, on_progress=lambda _: None, wish=TableOptions(feed=feed)):
        if outcome.error is not None:
            raise outcome.error


COMMANDS: dict[str, Callable[[Settings], object]] = {
    "register": lambda settings: register_t(settings, _KEYS),
    "retire": register_t,
    "begin feed": lambda settings: alter_feed(settings, "t", _KEYS),
    "end feed": lambda settings: alter_feed(settings, "t", None),
    "unregister": lambda settings: unregister(settings, "t", drop_lake=False),
    "drop lake": lambda settings: unregister(settings, "t", drop_lake=True),
}


def prepare(mirror: Mirror, command: str) -> None:
    """Removes what earlier commands made, and makes what this one begins with."""
    with suppress(TableError):
        unregister(mirror.settings, "t", drop_lake=True)
    with suppress(TableError):
        unregister_former(mirror.settings, "t")
    make_table(mirror.database)
    if command == "register":
        return
    register_t(mirror.settings, None if command == "begin feed" else _KEYS)
    if command == "retire":
        make_table(mirror.database)


def make_table(database: Database) -> None:
    database.execute(
        "DROP TABLE IF EXISTS t", "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v')"
    )


def state(mirror: Mirror) -> tuple[object, ...]:
    """What is registered of `t`, by its tables in each catalog."""
    return (
        mirror.database.rows("SELECT table_id = 't'::regclass::oid FROM modak.tables"),
        mirror.database.rows("SELECT name FROM modak.change_feeds WHERE feed_id > 0"),
        mirror.database.rows("SELECT table_name FROM modak.iceberg_tables WHERE table_name ~ '^t(__.*)?$' ORDER BY 1"),
    )


def assert_whole(mirror: Mirror, *, orphans: bool = False) -> None:
    """Fails unless all that the catalog names is there and, but for `orphans`, nothing else is."""
    pointers = mirror.database.rows("SELECT metadata_location FROM modak.iceberg_tables")
    assert [location for (location,) in pointers if not path_of(location).exists()] == []
    locations = mirror.database.rows(
        "SELECT location FROM modak.mirror_tables UNION SELECT location FROM modak.change_feeds"
        " UNION SELECT location FROM modak.former_locations"
    )
    roots = [path_of(location) for (location,) in locations]
    assert mirror.settings.warehouse is not None
    files = [path for path in path_of(mirror.settings.warehouse).rglob("*") if path.is_file()]
    assert orphans or [path for path in files if not any(path.is_relative_to(root) for root in roots)] == []


def killed_after(settings: Settings, command: str, function: str) -> int | None:
    """Runs a command in another process, which kills itself when the function of this qualified name returns. Returns
    its exit code."""
    arguments = (settings.model_dump(mode="python"), command, function)
    process = _FORKS.Process(target=_run, args=arguments, daemon=True)
    process.start()
    process.join(120)
    return process.exitcode


def _run(settings: dict[str, Any], command: str, function: str) -> None:
    with at_return(function, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        COMMANDS[command](rebuilt(settings))


@contextmanager
def at_return(function: str, action: Callable[[], object]) -> Iterator[None]:
    """Does something whenever the function of this qualified name returns in this thread, within the block."""

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "return" and frame.f_code.co_qualname == function:
            action()

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
