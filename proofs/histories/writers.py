"""Clients that write: transactions that append to lists, transfer between accounts and delete lists, over five tables.

Lists are rows of `a`, `b` (mirrored) and `c` (mirrored, with heap retention), accounts are rows of `x` and `y`.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import psycopg

from mirror_pump.database.catalog_cursor import CatalogCursor
from proofs.histories.recorder import Recorder

APPENDS = 12
"""Appends to a list, in the mean, until later lists take its place."""
LISTS = 6
"""Lists of a table that are appended to at a time."""
AGE = 40
"""How many lists behind the newest one an old list may be deleted. Partitions of `c` leave the heap before."""
ACCOUNTS = [f"{table}/{number}" for table in "xy" for number in range(8)]

_DELETE = {
    "a": "DELETE FROM a WHERE k = %s",
    "b": "DELETE FROM b WHERE k = %s",
    "c": "SELECT modak.delete('c', jsonb_build_object('k', %s))",
}
LAG = 24
"""How far the partitions of `c` stay in the heap: that of no list that is appended to has left."""


class _TooLate(psycopg.Error):
    """A writer that was held up would append to a list whose row is about to leave the heap."""


@dataclass
class Lists:
    """Which lists the writers append to, and which are due to be deleted. For many threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _appends: dict[str, int] = field(default_factory=lambda: dict.fromkeys("abc", 0))
    _old: dict[str, deque[int]] = field(default_factory=lambda: {table: deque() for table in "abc"})
    _oldest: dict[str, int] = field(default_factory=lambda: dict.fromkeys("abc", 0))
    values: count[int] = field(default_factory=lambda: count(1))
    """Each value is appended once."""

    def one(self, table: str, chance: random.Random) -> int:
        """The key of a list to append to."""
        with self._lock:
            self._appends[table] += 1
            return self._appends[table] // APPENDS + chance.randrange(LISTS)

    def is_over(self, name: str) -> bool:
        """Whether the list is half way to where partitions leave."""
        key = int(name[2:])
        return 0 <= key < self._appends[name[0]] // APPENDS - LAG // 2

    def old(self, table: str) -> int | None:
        """The key of a list that nothing is appended to any more."""
        with self._lock:
            if self._oldest[table] + AGE < self._appends[table] // APPENDS:
                self._old[table].append(self._oldest[table])
                self._oldest[table] += 1
            return self._old[table].popleft() if self._old[table] else None

    def give_back(self, name: str) -> None:
        """A list was not deleted after all."""
        with self._lock:
            self._old[name[0]].append(int(name[2:]))


@dataclass
class _Plan:
    """What a transaction is to do."""

    appends: list[tuple[str, int]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)
    late: list[int] | None = None
    """The whole list of this writer's own below the cut-line, which the last append is to."""

    @property
    def value(self) -> list[list[Any]]:
        """Its micro-operations as they are known before."""
        return [*(["r", name, None] for name in self.reads), *(["append", *append] for append in self.appends)]


class Writer:
    """One client. Its own lists of `c` have keys below all partitions: those are written as corrections."""

    def __init__(self, dsn: str, recorder: Recorder, lists: Lists, number: int, seed: str) -> None:
        self._dsn = dsn
        self._recorder = recorder
        self._lists = lists
        self._name = f"writer {number}"
        self._chance = random.Random(f"{seed} {number}")
        self._late = -1_000_000 * (number + 1)
        self._late_values: list[int] = []

    def work(self, stop: threading.Event, pause: float) -> None:
        """Transactions, one after the other. A lost connection is made anew."""
        while not stop.is_set():
            try:
                # A server that has crashed may take a while.
                with psycopg.connect(self._dsn, connect_timeout=5, cursor_factory=CatalogCursor) as connection:
                    while not stop.is_set() and not connection.closed:
                        self._transact(connection)
                        stop.wait(self._chance.uniform(0, 2 * pause))
            except psycopg.Error:
                stop.wait(0.2)

    def _plan(self) -> _Plan:
        chance, plan = self._chance, _Plan()
        tables = sorted({chance.choice("ab"), *(table for table in "abc" if chance.random() < 0.35)})
        if (deleted := chance.choice("abc")) and chance.random() < 0.25:
            key = self._lists.old(deleted)
            if key is not None:
                plan.deletes.append(f"{deleted}/{key}")
                tables = sorted({*tables, deleted})
        names = sorted(f"{table}/{self._lists.one(table, chance)}" for table in tables)
        plan.appends = [(name, next(self._lists.values)) for name in names]
        if chance.random() < 0.5:
            one, other = sorted(chance.sample(ACCOUNTS, 2))
            amount = chance.randrange(-50, 50)
            plan.moves = [(one, -amount), (other, amount)]
        if chance.random() < 0.1:
            plan.appends.append((f"c/{self._late}", next(self._lists.values)))
            plan.late = [*self._late_values, plan.appends[-1][1]]
        elif chance.random() < 0.2:
            plan.reads = names
        return plan

    def _transact(self, connection: psycopg.Connection[Any]) -> None:
        plan = self._plan()
        self._recorder.note(self._name, "invoke", value=plan.value, deletes=plan.deletes, moves=plan.moves)
        xid, outcome = None, "fail"
        try:
            if plan.reads:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
            assert row is not None
            xid = row[0]
            value = self._run(connection, plan)
            outcome = "info"
            connection.commit()
        except psycopg.Error as error:
            if outcome == "info" and not connection.closed:
                # The server has refused to commit.
                outcome = "fail"
            self._recorder.note(self._name, outcome, value=plan.value, xid=xid, error=str(error).partition("\n")[0])
            self._take_back(connection, plan, outcome)
            return
        fields = {"deletes": plan.deletes, "moves": plan.moves, "xid": xid}
        self._recorder.note(self._name, "ok", value=value, **fields)
        if plan.late is not None:
            self._late_values = plan.late
        if len(self._late_values) >= APPENDS:
            self._next_late()

    def _run(self, connection: psycopg.Connection[Any], plan: _Plan) -> list[list[Any]]:
        """The statements. Returns the micro-operations with what was read. Locks are taken in one order."""
        run = connection.execute
        read = [["r", name, _values(connection, name)] for name in plan.reads]
        for name, value in plan.appends[: -1 if plan.late else None]:
            table, key = name[0], int(name[2:])
            if self._lists.is_over(name):
                raise _TooLate(name)
            if run(f"UPDATE {table} SET v = v || %s WHERE k = %s".encode(), (f",{value}", key)).rowcount == 0:
                run(f"INSERT INTO {table} (k, v) VALUES (%s, %s)".encode(), (key, str(value)))
        if plan.late:
            text = ",".join(map(str, plan.late))
            run("SELECT modak.upsert('c', jsonb_build_object('k', %s::bigint, 'v', %s::text))", (self._late, text))
        for name in plan.deletes:
            run(_DELETE[name[0]].encode(), (int(name[2:]),))
        for name, amount in plan.moves:
            run(f"UPDATE {name[0]} SET n = n + %s WHERE k = %s".encode(), (amount, int(name[2:])))
        # Elle's order: a read comes before the appends, which it does not have.
        return [*read, *(["append", *append] for append in plan.appends)]

    def _take_back(self, connection: psycopg.Connection[Any], plan: _Plan, outcome: str) -> None:
        if not connection.closed:
            connection.rollback()
        if outcome == "fail":
            for name in plan.deletes:
                self._lists.give_back(name)
        elif plan.late:
            # Whether the list has the value is unknown.
            self._next_late()

    def _next_late(self) -> None:
        self._late, self._late_values = self._late - 1, []


def _values(connection: psycopg.Connection[Any], name: str) -> list[int] | None:
    row = connection.execute(f"SELECT v FROM {name[0]} WHERE k = %s".encode(), (int(name[2:]),)).fetchone()
    return None if row is None else values_of(row[0])


def values_of(text: str) -> list[int]:
    """A list, as its row has it."""
    return [int(value) for value in text.split(",")]
