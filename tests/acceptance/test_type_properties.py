"""Random tables of all types, random edge values, random changes, cuts and restarts, also during the copy.

At each frontier the lake equals the heap, as Postgres prints it.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, paced
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from mirror_pump.testing.verification import spark_report
from tests.support.error_bounds import SOAK_SECONDS, printed_seed
from tests.support.type_oracle import (
    CASES,
    KEYS,
    Held,
    by_duckdb,
    create_pool,
    held_by_text,
    lake_types,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 1.0
"""Rounds with new tables begin until then: one on a slow machine."""
FURTHER_SECONDS = 4.0


class RandomTable:
    """One random table and the changes to it; every value is from the pool."""

    def __init__(self, connection: psycopg.Connection[Any], name: str, chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance
        self.name = name
        keys = [n for n, case in enumerate(CASES) if case.type in KEYS]
        self.key = tuple(chance.sample(keys, chance.choice((1, 1, 2, 3))))
        others = [n for n, case in enumerate(CASES) if n not in self.key and (case.values or case.unheld)]
        # Types with a raw text column are more interesting.
        weights = [3 if CASES[n].unheld else 1 for n in others]
        self.columns = sorted({*self.key, *chance.choices(others, weights, k=chance.randrange(1, 14))})
        self.changes = 0
        definitions = [f"c{n} {CASES[n].type}" for n in self.columns]
        chance.shuffle(definitions)
        key = ", ".join(f"c{n}" for n in self.key)
        self._run(f"CREATE TABLE {name} (n int, {', '.join(definitions)}, big text, PRIMARY KEY ({key}))")
        self._run(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL")
        if chance.random() < 0.3:
            self._run(f"ALTER TABLE {name} REPLICA IDENTITY FULL")

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(CASES[n].type + (' key' if n in self.key else '') for n in self.columns)})"

    def change(self) -> None:
        """One change in its own savepoint, since keys may be taken, and a domain may refuse a value."""
        chance = self._chance
        try:
            with self._connection.transaction():
                match chance.randrange(8):
                    case 0 | 1 | 2:
                        self._insert()
                    case 3 | 4:
                        n = chance.choice(self.columns)
                        self._run(f"UPDATE {self.name} SET c{n} = {self._value(n)} WHERE {self._some()}")
                    case 5:
                        self._run(f"UPDATE {self.name} SET n = n + 1 WHERE {self._some()}")
                    case 6:
                        size = chance.choice((0, 10, 3000))
                        big = f"repeat('{chance.randrange(10)}', {size})"
                        self._run(f"UPDATE {self.name} SET big = {big} WHERE {self._some()}")
                    case _:
                        self._run(f"DELETE FROM {self.name} WHERE {self._some()}")
        except (psycopg.errors.IntegrityError, psycopg.errors.ProgramLimitExceeded):
            return
        self.changes += 1

    def rows(self, held: list[Held], connection: psycopg.Connection[Any]) -> Counter[str]:
        """Rows in comparable form: for each column the typed value and the raw text."""
        names = [f"c{n}" for n in self.columns]
        selected = ", ".join(["n", "big", *names])
        result = connection.execute(f"SELECT {selected} FROM public.{self.name}".encode()).pgresult
        assert result is not None
        found: Counter[str] = Counter()
        for row in range(result.ntuples):
            texts = [
                None if (value := result.get_value(row, place)) is None else value.decode()
                for place in range(result.nfields)
            ]
            cells = [held[n][text] for n, text in zip(self.columns, texts[2:], strict=True)]
            found[repr((texts[0] and int(texts[0]), texts[1], cells))] += 1
        return found

    def _insert(self) -> None:
        cells = ", ".join(self._value(n) for n in self.columns)
        names = ", ".join(f"c{n}" for n in self.columns)
        self._run(
            f"INSERT INTO {self.name} (n, {names}) VALUES ({self._chance.randrange(9)}, {cells}) ON CONFLICT DO NOTHING"
        )

    def _value(self, n: int) -> str:
        case = CASES[n]
        choices = len(case.values) if n in self.key else len(case.values) + len(case.unheld) + 1
        return f"(SELECT c{n} FROM pool WHERE id = {self._chance.randrange(choices)})"

    def _some(self) -> str:
        return f"n % {self._chance.choice((1, 2, 3, 9))} = {self._chance.randrange(3)}"

    def _run(self, query: str) -> None:
        self._connection.execute(query.encode())


def work(
    connection: psycopg.Connection[Any], heaps: Sequence[RandomTable], chance: random.Random, transactions: int
) -> None:
    """Random transactions over the tables, some of them rolled back."""
    for _ in range(transactions):
        for _ in range(chance.choice((1, 3, 20))):
            chance.choice(heaps).change()
        if chance.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()


def lake_rows(mirror: Mirror, heap: RandomTable) -> Counter[str]:
    location = mirror.location(f"public.{heap.name}")
    types = lake_types(LakeTable.load(location, StorageOptions()))
    columns = by_duckdb(location, types, order="")
    absent = [None] * len(columns["n"])
    cells = [list(zip(columns[f"c{n}"], columns.get(f"c{n}__raw", absent), strict=True)) for n in heap.columns]
    return Counter(repr((n, big, list(row))) for n, big, *row in zip(columns["n"], columns["big"], *cells, strict=True))


@pytest.fixture
def pool(postgres: EmbeddedPostgres) -> Iterator[Database]:
    name = "t_type_properties"
    postgres.create_database(name)
    database = Database(postgres, name)
    with database.connect() as connection:
        create_pool(connection, "pool")
    yield database
    postgres.drop_database(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SECONDS, id="short"),
        pytest.param(FURTHER_SECONDS, id="further", marks=pytest.mark.further),
        pytest.param(SOAK_SECONDS, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(SOAK_SECONDS + 280)]),
    ],
)
def test_random_tables_of_all_types(pool: Database, warehouse: str, spark: SparkSession, seconds: float) -> None:
    seed = printed_seed()
    chance = random.Random(seed)
    held = held_by_text(pool)
    gate = GatedCopies(ThreadTaskRunner())
    mirror = Mirror.create(pool, warehouse, gate)
    deadline = time.monotonic() + seconds
    changes = tables = 0
    while time.monotonic() < deadline:
        options = {
            "segment_bytes": chance.choice((300, 3000, 100_000)),
            "limits": paced(chance.choice((0.0, 0.02, 0.2))),
        }
        mirror = mirror.with_options(**options, copy_chunk_bytes=8192)
        # Names with their schema, as the mirror's sessions see them.
        with pool.connect(autocommit=False) as connection, connect(pool.dsn, autocommit=True) as reader:
            reader.execute("SET search_path = pg_catalog")
            heaps = [RandomTable(connection, f"r{tables + number}", chance) for number in range(3)]
            tables += len(heaps)
            print(*heaps, sep="\n")

            connection.commit()
            work(connection, heaps, chance, 6)
            gate.hold()
            with mirror.pumping():
                mirror.register(*(heap.name for heap in heaps))
                for part in range(3):
                    work(connection, heaps, chance, 3)
                    gate.let_go(part)
                gate.let_go()
                mirror.await_live(*(f"public.{heap.name}" for heap in heaps))
                work(connection, heaps, chance, 4)
            with mirror.pumping():
                for _ in range(2):
                    work(connection, heaps, chance, 4)
                    mirror.await_frontier()
                    for heap in heaps:
                        assert mirror.error(f"public.{heap.name}") == ""
                        wanted, found = heap.rows(held, reader), lake_rows(mirror, heap)
                        assert found == wanted, (str(heap), wanted - found, found - wanted)
            changes += sum(heap.changes for heap in heaps)
        if time.monotonic() < deadline:
            for heap in heaps:
                mirror.unregister(heap.name, drop_lake=True)
    print(f"{tables} tables, {changes} changes, seed {seed}", file=sys.stderr)
    assert changes
    with mirror.pumping():
        report = spark_report(mirror.settings, spark)
    assert all(table["equal"] for table in report["tables"]), report
    mirror.assert_sound()
