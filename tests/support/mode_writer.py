"""The writer of tests/support/mode_world.py, which never rests but when it is told to."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg

from mirror_pump.testing.database import Database
from tests.support.mode_tables import ModeTable

REFUSED = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    # A row that has expired.
    psycopg.errors.CheckViolation,
    # A partition that has left, and a table that is not registered for a moment.
    psycopg.errors.UndefinedTable,
    # TRUNCATE in an older snapshot.
    psycopg.errors.FeatureNotSupported,
)
"""What ends a transaction of the writer, as documented."""


class ModeWriter:
    """Random transactions over some tables, at several isolation levels. `found` counts what became of them."""

    def __init__(
        self, database: Database, tables: Sequence[ModeTable], chance: random.Random, found: Counter[str]
    ) -> None:
        self._database = database
        self._tables = tables
        self._chance = chance
        self._found = found
        self.turn = threading.Lock()
        """Held during each transaction: who takes it has the tables to himself."""
        self.pid = 0
        """Of its backend."""

    def run(self, stop: threading.Event) -> None:
        """Writes until then."""
        with self._database.connect(autocommit=False) as connection:
            self.pid = connection.info.backend_pid
            while not stop.is_set():
                with self.turn:
                    self._transaction(connection, stop)
                stop.wait(self._chance.choice((0.0, 0.01, 0.05)))

    def _transaction(self, connection: psycopg.Connection[Any], stop: threading.Event) -> None:
        chance = self._chance
        try:
            if chance.random() < 0.15:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                connection.execute("SELECT 1")
                stop.wait(chance.uniform(0, 0.1))
            for _ in range(chance.choice((1, 1, 1, 3))):
                chance.choice(self._tables).write(connection, chance)
            stop.wait(chance.choice((0, 0, 0, 0.1)))
            if chance.random() < 0.1:
                connection.rollback()
            connection.commit()
            self._found["transactions"] += 1
        except REFUSED as error:
            connection.rollback()
            self._found[f"transaction: {type(error).__name__}"] += 1


class OldTransaction:
    """A transaction whose snapshot gets old before it writes."""

    def __init__(self, connection: psycopg.Connection[Any], chance: random.Random, found: Counter[str]) -> None:
        self._connection = connection
        self._chance = chance
        self._found = found
        self._open = False

    @property
    def pid(self) -> int:
        """Of its backend."""
        return self._connection.info.backend_pid

    def begin(self) -> None:
        """Takes its snapshot, unless it has one."""
        if not self._open:
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._connection.execute("SELECT 1")
            self._open = True

    def end(self, table: ModeTable) -> None:
        """It writes at last, if it has begun."""
        if not self._open:
            return
        self._open = False
        try:
            self._connection.execute("SET LOCAL lock_timeout = '1s'")
            table.write(self._connection, self._chance)
            self._connection.commit()
            self._found["old transactions committed"] += 1
        except REFUSED as error:
            self._connection.rollback()
            self._found[f"old transaction: {type(error).__name__}"] += 1
