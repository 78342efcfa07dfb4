"""Threads of tests that write to tables, or do something else, while a pump runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from mirror_pump.testing.database import Database

_IN_EACH_OTHERS_WAY = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)
"""A random key was taken or locked by another writer, or another writer moved its row to another partition, which
Postgres refuses to follow at any isolation level. Failing transactions are intended."""

_PAUSE = 0.02
"""Seconds between two transactions: writers are meant to interfere, not to be the load."""


@contextmanager
def in_thread(work: Callable[[threading.Event], None], name: str, patience: float = 60) -> Iterator[threading.Thread]:
    """Runs `work` in a thread within the block. At its end, the event that `work` got is set, and `work` has `patience`
    seconds to return. Its error is raised at the end of the block; if the block failed itself, it is noted there."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            failures.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield thread
    except BaseException as error:
        if failures:
            error.add_note(f"the {name} had failed: {failures[0]!r}")
        raise
    finally:
        stop.set()
        thread.join(patience)
    assert not thread.is_alive(), f"the {name} hangs"
    if failures:
        raise failures[0]


@contextmanager
def writing(
    database: Database, write: Callable[[psycopg.Connection[Any], random.Random], None], seed: int
) -> Iterator[Callable[[], int]]:
    """Calls `write` repeatedly within the block, in a thread, each time in its own transaction.

    Yields a function that returns the number of calls. An error of `write` is raised at the end of the block.
    """
    count = 0

    def work(stop: threading.Event) -> None:
        nonlocal count
        chance = random.Random(seed)
        with database.session(autocommit=False) as connection:
            while not stop.is_set():
                try:
                    write(connection, chance)
                    connection.commit()
                    count += 1
                except _IN_EACH_OTHERS_WAY:
                    connection.rollback()
                stop.wait(_PAUSE)

    with in_thread(work, "writer") as thread:

        def written() -> int:
            assert thread.is_alive(), "the writer ended"
            return count

        yield written


def change_rows(table: str, rows: int) -> Callable[[psycopg.Connection[Any], random.Random], None]:
    """A writer over a table (id bigint, n int, v text, big text): every kind of change, of random rows below `rows`."""

    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        def run(query: str) -> None:
            connection.execute(query.encode())

        first = chance.randrange(rows)
        last = first + chance.randrange(30)
        match chance.randrange(7):
            case 0:
                run(f"UPDATE {table} SET n = n + 1 WHERE id BETWEEN {first} AND {last}")
            case 1:
                run(f"DELETE FROM {table} WHERE id BETWEEN {first} AND {last}")
            case 2:
                run(
                    f"INSERT INTO {table} SELECT g, 0, 'again', NULL FROM generate_series({first}, {last}) g"
                    " ON CONFLICT (id) DO UPDATE SET v = 'upserted'"
                )
            case 3:
                # Keys are moved away, and the same or others are moved in.
                run(f"UPDATE {table} SET id = id + 10000000 WHERE id BETWEEN {first} AND {last}")
                run(
                    f"UPDATE {table} SET id = id - 10000000, n = n + 1"
                    f" WHERE id BETWEEN {first + 10000000} AND {first + 10000009}"
                )
            case 4:
                run(
                    f"UPDATE {table} SET id = -id, v = 'moved' WHERE id BETWEEN {first} AND {first + 3} AND id > 0"
                    f" AND NOT EXISTS (SELECT FROM {table} o WHERE o.id = -{table}.id)"
                )
            case 5:
                run(
                    f"UPDATE {table} SET big = repeat(md5('{chance.random()}'), 120)"
                    f" WHERE id BETWEEN {first} AND {first + 5}"
                )
            case 6:
                run("SAVEPOINT s")
                run(f"DELETE FROM {table} WHERE id BETWEEN {first} AND {first + 300}")
                run("ROLLBACK TO SAVEPOINT s")
                run(f"UPDATE {table} SET n = -n WHERE big IS NOT NULL AND id BETWEEN {first} AND {first + 500}")

    return write
