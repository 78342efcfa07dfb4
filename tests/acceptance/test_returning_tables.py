"""Tables that come back after pauses and lost slots, with anything happening to them meanwhile, equal their heaps."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.error_bounds import SOAK_SECONDS, printed_seed
from tests.support.pipeline import writing
from tests.support.resyncs import drop_slot, resynced

_KEYS = 400
_LARGE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 120))"
_TABLES = {
    "plain": ("id", "id::int"),
    "texts": ("id", "'k' || id"),
    "pairs": ("id, kind", "id::int, 'kind ' || id % 3"),
    "parts": ("id", "id::int"),
    "indexed": ("id", "id::int"),
}
"""By name, the key's columns and an expression for their values."""
_CREATE = (
    "CREATE TABLE plain (id int PRIMARY KEY, n numeric(8, 2), v text, spare int)",
    "CREATE TABLE texts (id text PRIMARY KEY, n numeric(8, 2), v text, spare int)",
    "CREATE TABLE pairs (id int, kind text, n numeric(8, 2), v text, spare int, PRIMARY KEY (id, kind))",
    "CREATE TABLE parts (id int PRIMARY KEY, n numeric(8, 2), v text, spare int) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (200)",
    "CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (200) TO (MAXVALUE)",
    "CREATE TABLE indexed (id int NOT NULL, n numeric(8, 2), v text, spare int)",
    "CREATE UNIQUE INDEX indexed_id ON indexed (id)",
    "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id",
)


def _change_row(connection: psycopg.Connection[Any], chance: random.Random, table: str) -> None:
    """One change of a row, or of a few."""
    columns, values = _TABLES[table]
    key = chance.randrange(_KEYS)
    where = f"({columns}) = (SELECT {values} FROM (SELECT {key} AS id) k)"
    value = chance.choice(["'v'", "NULL", _LARGE, f"'{chance.random()}'"])
    number = chance.choice(["n + 1", "NULL", "0", "'NaN'"])
    statement = chance.choice(
        [
            f"UPDATE {table} SET v = {value} WHERE {where}",
            f"UPDATE {table} SET n = {number} WHERE {where}",
            # It leaves out a large value.
            f"UPDATE {table} SET spare = {chance.randrange(100)} WHERE {where}",
            f"DELETE FROM {table} WHERE {where}",
            (
                f"INSERT INTO {table} ({columns}, n, v) SELECT {values}, 1, {value} FROM (SELECT {key} AS id) k"
                " ON CONFLICT DO NOTHING"
            ),
            (
                f"UPDATE {table} SET ({columns}) = (SELECT {values} FROM (SELECT {chance.randrange(_KEYS)} AS id) k)"
                f" WHERE {where}"
            ),
        ]
    )
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '5s'")
            connection.execute(statement.encode())
    except (psycopg.errors.UniqueViolation, psycopg.errors.LockNotAvailable):
        return


def _alter(database: Database, chance: random.Random, table: str, number: int) -> None:
    """One thing that concerns the whole table, which may take the heap, or the lake's columns, apart."""
    statements = [
        f"TRUNCATE {table}",
        f"DELETE FROM {table}",
        f"ALTER TABLE {table} ADD COLUMN c{number} text",
        f"ALTER TABLE {table} ADD COLUMN c{number} int DEFAULT 7",
        f"ALTER TABLE {table} ADD COLUMN c{number} float8 DEFAULT random()",
        f"ALTER TABLE {table} ALTER spare TYPE bigint",
        f"ALTER TABLE {table} ALTER spare TYPE bigint USING spare + 1",
        f"ALTER TABLE {table} ALTER v TYPE varchar USING v || 'x'",
        f"ALTER TABLE {table} RENAME COLUMN spare TO other; ALTER TABLE {table} RENAME COLUMN other TO spare",
    ]
    if table != "parts":
        statements += [
            f"VACUUM FULL {table}",
            f"ALTER TABLE {table} DROP COLUMN v; ALTER TABLE {table} ADD COLUMN v text",
        ]
    with database.connect() as connection:
        for statement in chance.choice(statements).split("; "):
            connection.execute(statement.encode())


def _writer(tables: list[str]) -> Callable[[psycopg.Connection[Any], random.Random], None]:
    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        _change_row(connection, chance, chance.choice(tables))

    return write


def _absent(mirror: Mirror, chance: random.Random, tables: list[str], number: int) -> None:
    """Nothing of what happens here is in the stream of these tables."""
    with mirror.database.connect() as connection:
        for _ in range(chance.choice([0, 3, 60])):
            _change_row(connection, chance, chance.choice(tables))
    if chance.random() < 0.35:
        _alter(mirror.database, chance, chance.choice(tables), number)


def _round(mirror: Mirror, chance: random.Random, steps: Steps, number: int) -> None:
    """A pause or a lost slot, and the way back, with writers and with pumps that come and go."""
    database = mirror.database
    away = sorted(chance.sample(sorted(_TABLES), chance.randrange(1, len(_TABLES) + 1)))
    lost = chance.random() < 0.4
    if lost:
        away = sorted(_TABLES)
        drop_slot(mirror)
    else:
        for table in away:
            pause(mirror.settings, table)
    _absent(mirror, chance, away, number)
    with writing(database, _writer(sorted(_TABLES)), chance.randrange(1 << 30)) as written:
        if lost:
            resynced(mirror, where_different=True)
        for table in () if lost else away:
            resume(mirror.settings, table)
        for _ in range(chance.randrange(3)):
            # Sessions end anywhere in the comparisons.
            pump = mirror.start(steps)
            time.sleep(chance.random())
            if chance.random() < 0.2:
                _alter(database, chance, chance.choice(away), 1000 + number)
            pump.stop()
        with mirror.pumping(steps):
            mirror.await_live(*(f"public.{table}" for table in _TABLES))
            first = written()
            while written() < first + 10:
                time.sleep(0.01)
            mirror.await_frontier()
            report = verify(mirror.settings)
            assert report.equal, report
    mirror.catch_up(steps)
    assert verify(mirror.settings).equal
    mirror.assert_sound()


def _play(database: Database, warehouse: str, chance: random.Random, rounds: int) -> int:
    """Returns how many comparisons were made."""
    database.execute(*_CREATE)
    for table, (columns, values) in _TABLES.items():
        with database.connect() as connection:
            connection.execute(
                f"INSERT INTO {table} ({columns}, n, v) SELECT {values}, id, CASE WHEN id % 9 = 0 THEN {_LARGE} END"
                f" FROM generate_series(0, {_KEYS - 1}, 2) g(id)".encode()
            )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(3), copy_chunk_bytes=8192, convert_age=0.2)
    mirror.register(*_TABLES)
    mirror.catch_up()
    steps = Steps()
    for number in range(rounds):
        _round(mirror, chance, steps, number)
    return steps.count(Step.ROWS_COMPARED)


@pytest.mark.further
def test_tables_come_back_from_random_histories(database: Database, warehouse: str) -> None:
    assert _play(database, warehouse, random.Random(printed_seed()), rounds=3)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_tables_come_back_from_random_histories_for_long(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    chance = random.Random(printed_seed())
    deadline = time.monotonic() + SOAK_SECONDS
    number = compared = 0
    while time.monotonic() < deadline:
        number += 1
        warehouse = tmp_path / f"lake{number}"
        warehouse.mkdir()
        with postgres.database(f"t_returning_{number}"):
            compared += _play(Database(postgres, f"t_returning_{number}"), warehouse.as_uri(), chance, rounds=4)
        print(f"{number} histories, {compared} comparisons", file=sys.stderr, flush=True)
    assert compared
