"""Random histories: a change feed, replayed by DuckDB from any published frontier, gives the mirror at any later one.

The histories have values that the stream leaves out, key changes, TRUNCATE, schema changes, renames, transactions of
many segments, pauses, copies again, restarts, and pumps that fail at a step of a publish.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from mirror_pump.errors import MirrorPumpError
from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.ops.resync.resync import resync
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.error_bounds import SOAK_SECONDS
from tests.support.feed_replay import FeedReplay, FrontierTrail
from tests.support.killed_pump import die

SECONDS = 5.0
"""New histories begin until then among the further tests; `make test` has as many as compare something of each kind."""

_TABLES = (
    "CREATE TABLE k (id int PRIMARY KEY, n int, big text, d numeric(8,2))",
    "ALTER TABLE k ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE r (id int PRIMARY KEY, n int, big text, day date)",
    "ALTER TABLE r ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE c (a text, b int, n int, big text, tags int[], PRIMARY KEY (a, b))",
    "ALTER TABLE c ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE w (id int, n int, big text)",
    "ALTER TABLE w REPLICA IDENTITY FULL",
    "INSERT INTO k SELECT g, 0, repeat(g::text || 'k', 3000), g FROM generate_series(1, 20) g",
    "INSERT INTO r SELECT g, 0, repeat(g::text || 'r', 3000), '2026-01-01' FROM generate_series(1, 20) g",
    "INSERT INTO c SELECT 'a' || g % 3, g, 0, repeat(g::text || 'c', 3000), ARRAY[g] FROM generate_series(1, 20) g",
    "INSERT INTO w SELECT g % 4, 0, 'w' FROM generate_series(1, 10) g",
)
_MODES = {"k": FeedMode.KEYS, "r": FeedMode.ROWS, "c": FeedMode.KEYS, "w": FeedMode.ROWS}
_NEW = {
    "k": "SELECT g, 1, repeat(g::text || 'n', 3000), CASE WHEN g % 5 = 0 THEN 'NaN'::numeric(8,2) ELSE g % 10000 END",
    "r": "SELECT g, 1, repeat(g::text || 'n', 3000), CASE WHEN g % 5 = 0 THEN 'infinity'::date ELSE '2026-02-02' END",
    "c": "SELECT 'a' || g % 3, g, 1, repeat(g::text || 'n', 3000), CASE WHEN g % 4 = 0 THEN '{{1},{2}}'::int[] END",
    "w": "SELECT g % 5, 1, 'n'",
}


_FAULTS = (Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED)


class _Fault(Exception):
    """A pump fails at a step."""


class FeedHistory:
    """One mirror and its random history."""

    def __init__(self, database: Database, warehouse: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.database = database
        database.execute(*_TABLES)
        self.mirror = Mirror.create(
            database,
            warehouse,
            ThreadTaskRunner(),
            segment_bytes=self.chance.choice((1000, 5000, 40_000, 1_000_000)),
            batch_bytes=self.chance.choice((4000, 100_000, 10_000_000)),
        )
        self.trail = FrontierTrail(self.mirror)
        self.log: list[str] = []
        self.next_id = 1000
        self.blocks = 0
        self.columns = 0
        self.names = {name: name for name in _MODES}
        self.paused: set[str] = set()

    def register(self) -> None:
        for name, mode in _MODES.items():
            self.mirror.register(name, feed=FeedOptions(mode))

    def _on_step(self, step: Step, details: dict[str, object]) -> None:
        self.trail(step, details)
        if (
            step in (Step.WRITTEN, Step.STAGED, Step.PUBLISHED, Step.RECEIVED)
            and self.faults
            and self.fault.random() < 0.1
        ):
            self.faults -= 1
            raise _Fault

    def run(self, operations: int) -> None:
        """Random operations while a pump runs, or while none does."""
        self.fault = random.Random(self.chance.random())
        while operations > 0:
            self.faults = self.chance.choice((0, 1))
            running = self.mirror.start(Steps(on=self._on_step))
            # Else most tables would be copied all the time.
            self._await(running, lambda: all(self._is_live(name) for name in _MODES if name not in self.paused))
            for _ in range(self.chance.randrange(3, 25)):
                self._operation()
                operations -= 1
                if not running.thread.is_alive():
                    break
                if self.chance.random() < 0.3:
                    target = self.database.lsn()
                    self._await(running, lambda target=target: self.mirror.frontier() >= target)  # type: ignore[misc]
            self._end(running)
            if self.chance.random() < 0.3:
                self._operation()

    def _is_live(self, name: str) -> bool:
        return self.mirror.state(f"public.{self.names[name]}") == "live"

    def _await(self, running: RunningPump, condition: Callable[[], bool]) -> None:
        """Wait for a condition, unless the pump ends. A name that has just changed is another reason to go on."""
        deadline = time.monotonic() + 5
        while running.thread.is_alive() and time.monotonic() < deadline and not condition():
            time.sleep(0.02)

    def _end(self, running: RunningPump) -> None:
        running.pump.request_stop()
        try:
            running.join(90)
        except _Fault:
            self.log.append("-- fault")

    def finish(self) -> None:
        for name in sorted(self.paused):
            resume(self.mirror.settings, self.names[name])
        self.paused.clear()
        self.faults = 0
        with self.mirror.pumping(Steps(on=self._on_step)):
            self.mirror.await_live(*(f"public.{name}" for name in self.names.values()))
            self.mirror.await_frontier()
            for name in self.names.values():
                self._execute([f"INSERT INTO {name} {_NEW_LAST[self._first(name)]}"])
            self.mirror.await_frontier()
            self.mirror.await_frontier()
        self.trail.note()

    def _first(self, present: str) -> str:
        return next(name for name, now in self.names.items() if now == present)

    def _operation(self) -> None:
        chance = self.chance
        kind = chance.random()
        name = chance.choice(list(_MODES))
        table = self.names[name]
        if kind < 0.88:
            self.write()
        elif kind < 0.95:
            self._ddl(name, table)
        else:
            self._command(name, table)

    def write(self) -> None:
        """A random transaction."""
        count = self.chance.choice((1, 1, 2, 5, 20))
        self._execute([self._change(self.chance.choice(list(_MODES))) for _ in range(count)])

    def _execute(self, statements: list[str]) -> None:
        self.log += [*statements, "-- commit"]
        with self.database.connect(autocommit=False) as connection:
            for statement in statements:
                connection.execute(statement.encode())
            if self.chance.random() < 0.05:
                connection.rollback()
            connection.commit()

    def _change(self, name: str) -> str:
        chance, table = self.chance, self.names[name]
        some = f"{'b' if name == 'c' else 'id'} % {chance.randrange(1, 9)} = 0"
        kind = chance.random()
        if kind < 0.3:
            count = chance.choice((1, 1, 3, 15))
            first, self.next_id = self.next_id, self.next_id + count
            return f"INSERT INTO {table} {_NEW[name]} FROM generate_series({first}, {first + count - 1}) g"
        if kind < 0.6:
            return f"UPDATE {table} SET n = n + 1 WHERE {some}"
        if kind < 0.7 and name != "w":
            return f"UPDATE {table} SET big = repeat(n::text || 'x', {chance.choice((1, 3000))}) WHERE {some}"
        if kind < 0.8:
            column = "b" if name == "c" else "id"
            # The last digits of a key stay, and are of one row alone.
            self.blocks += 1
            return f"UPDATE {table} SET {column} = {self.blocks * 100_000} + {column} % 100000 WHERE {some}"
        if kind < 0.97:
            return f"DELETE FROM {table} WHERE {some}"
        return f"TRUNCATE {table}"

    def _ddl(self, name: str, table: str) -> None:
        chance = self.chance
        self.columns += 1
        new = f"x{self.columns}"
        statements: list[list[str]] = [
            [f"ALTER TABLE {table} ADD {new} int"],
            [f"ALTER TABLE {table} ADD {new} text DEFAULT 'filled'"],
            [f"ALTER TABLE {table} ADD {new} int", f"UPDATE {table} SET {new} = n", f"ALTER TABLE {table} DROP {new}"],
            [f"ALTER TABLE {table} ALTER n TYPE bigint"],
            [f"ALTER TABLE {table} RENAME TO {name}{self.columns}"],
            [self._change(name), f"ALTER TABLE {table} ADD {new} int", f"UPDATE {table} SET {new} = n + 1"],
        ]
        chosen = chance.choice(statements)
        self.log += [*chosen, "-- commit"]
        with self.database.connect(autocommit=False) as connection:
            for statement in chosen:
                connection.execute(statement.encode())
            connection.commit()
        if "RENAME TO" in chosen[0]:
            self.names[name] = f"{name}{self.columns}"

    def _command(self, name: str, table: str) -> None:
        settings = self.mirror.settings
        try:
            if name in self.paused:
                self.log.append(f"-- resume {table}")
                resume(settings, table)
                self.paused.discard(name)
            elif self.chance.random() < 0.5:
                self.log.append(f"-- pause {table}")
                pause(settings, table)
                self.paused.add(name)
            else:
                self.log.append(f"-- resync {table}")
                resync(settings, [table], wait=False, say=lambda *_: None, on_progress=lambda _: None)
        except MirrorPumpError as error:
            # It is being copied, for instance.
            self.log.append(f"-- refused: {error}")


_NEW_LAST = {
    "k": "VALUES (-1, 0, 'last', 0)",
    "r": "VALUES (-1, 0, 'last', '2026-03-03')",
    "c": "VALUES ('last', -1, 0, 'last', '{}')",
    "w": "VALUES (-1, 0, 'last')",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "least"),
    [
        pytest.param(0, 5, id="short"),
        pytest.param(SECONDS, 10, id="further", marks=pytest.mark.further),
        pytest.param(SOAK_SECONDS, 20, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(SOAK_SECONDS + 300)]),
    ],
)
def test_a_feed_replayed_from_any_frontier_gives_the_mirror(
    seconds: float,
    least: int,
    tmp_path_factory: pytest.TempPathFactory,
    new_database: Callable[[], Database],
    pytestconfig: pytest.Config,
) -> None:
    seeds = random.Random(pytestconfig.getoption("--hypothesis-seed"))
    replay = FeedReplay()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or min(replay.compared, replay.changes // 20, replay.resets * 10) < least:
        seed = seeds.randrange(2**32)
        print(f"seed {seed}")
        history = FeedHistory(new_database(), tmp_path_factory.mktemp("lake").as_uri(), seed)
        history.register()
        try:
            history.run(40)
            history.finish()
            history.mirror.assert_sound()
            replay.check(history.trail)
        except BaseException as error:
            error.add_note("\n".join(history.log[-200:]))
            raise
    print(f"compared {replay.compared}, resets {replay.resets}, changes {replay.changes}")


_DEATHS = tuple((step, nth) for step in (*_FAULTS, Step.ACKNOWLEDGED) for nth in (1, 3))


@pytest.mark.further
@pytest.mark.parametrize(
    "deaths",
    [pytest.param(_DEATHS[1::4], id="short"), pytest.param(_DEATHS, id="every", marks=pytest.mark.soak)],
)
def test_a_pump_killed_at_steps_of_a_publish(
    database: Database, warehouse: str, deaths: tuple[tuple[Step, int], ...]
) -> None:
    """kill -9: each change is in the feed, and once."""
    history = FeedHistory(database, warehouse, random.randrange(2**32))
    history.register()
    history.mirror.catch_up()
    history.trail.note()
    for step, nth in deaths:
        for _ in range(20):
            history.write()
        die(history.mirror, step, nth, batch_bytes=1, segment_bytes=3000, meanwhile=history.trail.note)
        history.trail.note()
    history.mirror.catch_up()
    history.trail.note()
    replay = FeedReplay()
    replay.check(history.trail)
    assert replay.compared >= len(_MODES)
    for name in _MODES:
        location = history.mirror.location(f"public.{name}__changes")
        twice = "SELECT 1 FROM lake WHERE _op <> 'reset' GROUP BY _lsn, _seq HAVING count(*) > 1"
        assert read_duckdb(location, twice).num_rows == 0
