"""Whatever lands: kills, Ctrl-C, refusals and lost answers leave tables as they were, or as they shall be."""

from __future__ import annotations

import random
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.errors import ConnectionLost, Interrupted, SourceError
from mirror_pump.lake.commit.presence import require_all
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.runtime import interrupts
from mirror_pump.source.catalog.kept_moments import read_moments
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.interrupts import InterruptedLines
from tests.support.landings import COMMANDS, KINDS, MODULES, TABLES, killed_landing
from tests.support.moments import two_tables
from tests.support.pipeline import in_thread
from tests.support.proxy import Loss, proxied

STORAGE = StorageOptions()
Rows = list[tuple[Any, ...]]


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    return two_tables(database, warehouse, tasks)


def _files(warehouse: str) -> set[Path]:
    return {path for path in Path(warehouse.removeprefix("file://")).rglob("*") if path.is_file()}


def _lake(mirror: Mirror) -> list[Rows]:
    return [sorted(mirror.lake(table)) for table in TABLES]


def _heap(mirror: Mirror) -> list[Rows]:
    return [sorted(mirror.heap(table)) for table in TABLES]


def _mirrored(rows: Rows) -> Rows:
    """The rows that are not another engine's."""
    return [row for row in rows if row[0] >= 0]


def _assert_whole(mirror: Mirror, before: list[Rows]) -> None:
    """The tables are as they were or as they shall be, and no file is missing that the catalog names. Rows of another
    engine (`commit_and_insert`) go table by table."""
    lake = _lake(mirror)
    assert [_mirrored(rows) for rows in lake] in ([_mirrored(rows) for rows in before], _heap(mirror))
    assert all(rows in (old, _mirrored(rows)) for rows, old in zip(lake, before, strict=True))
    with mirror.database.session() as connection:
        moments = read_moments(connection, mirror.settings.slot)
    kept = [table.metadata_location for moment in moments for table in moment.tables]
    for location in (*map(mirror.location, TABLES), *kept):
        require_all(location, STORAGE)


def _seed(places: int) -> int:
    """The usual run looks at the same few places each time."""
    return 1 if places < 10 else random.SystemRandom().randrange(2**32)


_KILLS = [
    *(pytest.param(kind, 2) for kind in ("metadata change", "moment keep")),
    *(pytest.param(kind, 12, marks=pytest.mark.further) for kind in KINDS),
    *(pytest.param(kind, 1000, marks=pytest.mark.soak) for kind in KINDS),
]
"""Kinds, and how often each is killed. Each time takes a second of CPU. Publishes are killed by test_kills.py, too."""


@pytest.mark.parametrize(("kind", "places"), _KILLS)
def test_a_kill_at_any_line_of_a_landing(mirror: Mirror, kind: str, places: int) -> None:
    def landed(number: int, at: int | None) -> int | None:
        KINDS[kind].prepare(mirror, number)
        before = _lake(mirror)
        lines = killed_landing(mirror, kind, number, at)
        _assert_whole(mirror, before)
        return lines

    total, seed = landed(0, None), _seed(places)
    assert total is not None
    assert total > 20, "the landing goes through the room"
    print(f"seed {seed}, {total} lines")
    for number, at in enumerate(random.Random(seed).sample(range(total), min(places, total)), 1):
        print(f"killed at line {at}")
        landed(number, at)
    KINDS[kind].prepare(mirror, places + 1)
    KINDS[kind].work(mirror.settings, places + 1)
    mirror.catch_up()
    mirror.assert_equal(*TABLES)


_USUAL = 2
_KINDS = [
    kind if number < _USUAL else pytest.param(kind, marks=pytest.mark.further) for number, kind in enumerate(COMMANDS)
]
"""Of one mechanism all kinds make use: where that is what is tried, the first ones tell most."""


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("places", [4, pytest.param(1000, marks=pytest.mark.soak)])
def test_ctrl_c_at_any_line_of_a_landing(mirror: Mirror, kind: str, places: int) -> None:
    def landed(number: int, at: int | None) -> int:
        KINDS[kind].prepare(mirror, number)
        before = _lake(mirror)
        lines = InterruptedLines((*MODULES, interrupts), at)
        with lines.counted(), suppress(KeyboardInterrupt, Interrupted):
            lines.begin()
            KINDS[kind].work(mirror.settings, number)
        _assert_whole(mirror, before)
        return lines.lines

    total, seed = landed(0, None), _seed(places)
    print(f"seed {seed}, {total} lines")
    for number, at in enumerate(random.Random(seed).sample(range(total), min(places, total)), 1):
        print(f"interrupted at line {at}")
        landed(number, at)
    mirror.assert_equal(*TABLES)


_AT_COMMIT = """
CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON modak.iceberg_tables DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION at_commit()
"""


@pytest.mark.parametrize("kind", _KINDS)
def test_a_refused_commit_leaves_no_file(mirror: Mirror, warehouse: str, kind: str) -> None:
    KINDS[kind].prepare(mirror, 1)
    before, files = _lake(mirror), _files(warehouse)
    mirror.database.execute(_AT_COMMIT.format("RAISE 'refused';"))
    with pytest.raises(SourceError, match="refused"):
        KINDS[kind].work(mirror.settings, 1)
    assert _files(warehouse) == files
    _assert_whole(mirror, before)
    mirror.database.execute("DROP TRIGGER at_commit ON modak.iceberg_tables")
    KINDS[kind].work(mirror.settings, 1)
    assert _files(warehouse) != files
    _assert_whole(mirror, before)
    mirror.assert_equal(*TABLES)


_COMMIT_WAITS = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ILIKE"
    " 'commit%'"
)


@pytest.mark.parametrize("kind", _KINDS)
def test_ctrl_c_while_a_commit_waits(mirror: Mirror, warehouse: str, kind: str) -> None:
    """It is cancelled: then it certainly did not happen, and its files go."""
    KINDS[kind].prepare(mirror, 1)
    before, files = _lake(mirror), _files(warehouse)
    mirror.database.execute(_AT_COMMIT.format("PERFORM pg_advisory_xact_lock(4711);"))

    def interrupt(_: threading.Event) -> None:
        await_true(lambda: bool(mirror.database.rows(_COMMIT_WAITS)), 60, "the landing commits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with mirror.database.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(4711)")
        with in_thread(interrupt, "interruption", 60), pytest.raises((KeyboardInterrupt, Interrupted)):
            KINDS[kind].work(mirror.settings, 1)
    assert _files(warehouse) == files
    _assert_whole(mirror, before)
    mirror.database.execute("DROP TRIGGER at_commit ON modak.iceberg_tables")
    mirror.assert_equal(*TABLES)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("kind", sorted({*COMMANDS} - {"moment keep"}))
def test_files_stay_if_the_answer_to_the_commit_is_lost(mirror: Mirror, warehouse: str, kind: str, loss: Loss) -> None:
    """Nothing tells whether it happened. (Who keeps a moment asks: test_moments_on_slow_storage.py.)"""
    KINDS[kind].prepare(mirror, 1)
    before, files, locations = _lake(mirror), _files(warehouse), [mirror.location(table) for table in TABLES]
    with proxied(mirror.database.dsn) as proxy:
        proxy.lose(loss, skip=KINDS[kind].other_commits)
        with pytest.raises(ConnectionLost):
            KINDS[kind].work(mirror.settings.model_copy(update={"dsn": proxy.dsn}), 1)
        await_true(lambda: proxy.lost == 1, 30, "the COMMIT is lost, or done")
    assert _files(warehouse) > files
    assert ([mirror.location(table) for table in TABLES] != locations) is (loss is Loss.AFTER)
    _assert_whole(mirror, before)
    mirror.assert_equal(*TABLES)
