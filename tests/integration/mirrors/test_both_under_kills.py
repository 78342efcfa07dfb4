"""Two mirrors of the same tables, while their pumps are killed and several sessions alter the tables and write."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.killed_pump import die
from tests.support.pipeline import in_thread

pytestmark = pytest.mark.further

_STEPS = (Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED)
_DDL = (
    "ALTER TABLE {table} ADD COLUMN c{n} int",
    "ALTER TABLE {table} ADD COLUMN d{n} text DEFAULT 'd'",
    "ALTER TABLE {table} ALTER v SET DEFAULT '{n}'",
    "TRUNCATE p{part}",
    "CREATE TABLE x{n} PARTITION OF p FOR VALUES FROM ({low}) TO ({high})",
    "ALTER TABLE p DETACH PARTITION p{part}; ALTER TABLE p ATTACH PARTITION p{part} FOR VALUES FROM ({from}) TO ({to})",
    "BEGIN; ALTER TABLE t ADD e{n} int; ALTER TABLE p ADD e{n} int; COMMIT",
    "BEGIN; ALTER TABLE p ADD f{n} int; ALTER TABLE t ADD f{n} int; ROLLBACK",
)


class _Alterer:
    """Alters tables again and again, one statement after the other."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._random = random.Random(seed)
        self.done = 0

    def __call__(self, stop: threading.Event) -> None:
        with self._database.connect() as connection:
            while not stop.wait(0.02):
                self.done += 1
                part = self._random.randrange(3)
                names = {"n": self.done, "part": part, "from": part * 100, "to": part * 100 + 100}
                names |= {"low": 1000 + self.done * 10, "high": 1010 + self.done * 10}
                statement = self._random.choice(_DDL).format(table=self._random.choice("tp"), **names)
                connection.execute(statement.encode())


def _write(database: Database, seed: int, stop: threading.Event) -> None:
    chosen = random.Random(seed)
    with database.connect() as connection:
        while not stop.wait(0.005):
            table, key = chosen.choice("tp"), chosen.randrange(300)
            connection.execute(
                chosen.choice(
                    (
                        f"INSERT INTO {table} (id, v) VALUES ({key}, 'i') ON CONFLICT DO NOTHING",
                        f"UPDATE {table} SET v = v || 'u' WHERE id = {key}",
                        f"DELETE FROM {table} WHERE id = {key}",
                    )
                ).encode()
            )


def test_both_are_exact_whichever_pump_is_killed(database: Database, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chosen = random.Random(seed)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        *(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n * 100}) TO ({n * 100 + 100})" for n in range(3)),
        "INSERT INTO t SELECT g, g FROM generate_series(0, 299) g",
        "INSERT INTO p SELECT g, g FROM generate_series(0, 299) g",
    )
    mirrors = [
        Mirror.create(replace(database, mirror=name), (tmp_path / str(name)).as_uri(), ThreadTaskRunner())
        for name in (None, "light")
    ]
    for mirror in mirrors:
        mirror.register("t", "p")
        mirror.catch_up()
    alterer = _Alterer(database, seed)
    with in_thread(alterer, "alterer"), in_thread(lambda stop: _write(database, seed, stop), "writer"):
        for number in range(4):
            killed, other = mirrors[number % 2], mirrors[1 - number % 2]
            with other.pumping():
                die(killed, chosen.choice(_STEPS), chosen.randrange(1, 4), once="false")
                other.await_frontier()
    assert alterer.done > 10
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    for mirror in mirrors:
        mirror.catch_up()
        mirror.assert_equal("public.t", "public.p")
    mirrors[0].assert_sound()
    assert database.rows(deadlocks) == [(0,)]
