"""Creates partitions above the newest key in advance, for tables whose owner set `premake`.

In a thread of its own: without a partition for their rows the application's INSERTs fail, and a copy or a proof of
other partitions may take minutes. How many are ready grows with the speed of the key (`KeySpeeds`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import suppress
from itertools import pairwise

import psycopg

from mirror_pump.errors import ConnectionLost, MirrorPumpError, TransientRefusal
from mirror_pump.model import MirroredTable, TableId, TierKind
from mirror_pump.partition_life import Refused
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.retention.newest_keys import NewestKeys
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.retention import new_partitions
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Attached, Noted, RetentionChoices
from mirror_pump.source.unchanged_server import UnchangedServer

_LONGEST_PAUSE = 5.0
"""Seconds before a partition that could not be created is tried again, at most."""
_SHORT = 15.0
"""If partitions end within so many seconds, at the speed of the key, that is reported."""
_REPORTED_FOR = 120.0
"""Seconds for which it stays reported. Checks are made every minute."""


class PartitionPremake(ThreadedService):
    """The thread that creates the partitions of one mirror."""

    def __init__(self, context: SessionContext, shared: SharedConnection, speeds: KeySpeeds) -> None:
        """`shared`: for the query whether there is anything to do. With it, the thread has a connection of its own."""
        self._context = context
        self._shared = shared
        self._observer = context.observer
        self._speeds = speeds
        self._interval = context.settings.retention_interval
        self._thread = session_thread("premake", self._run, context.inbox)
        self._newest = NewestKeys()
        limits = context.settings.limits
        self._backoff = Backoff(source.FIRST_PAUSE, min(_LONGEST_PAUSE, limits.retry_pause_max))
        self._refusals: dict[TableId, Retries] = {}
        self._left: dict[TableId, float] = {}
        """Seconds for which the partitions of each table last, as of the last look."""
        self._short_at: dict[TableId, float] = {}
        """When they last ended soon: time.monotonic(), in seconds."""

    def wake(self) -> None:
        """Retry immediately, on request. Any thread may call it."""
        self._refusals.clear()
        self._newest.forget()
        super().wake()

    def _run(self) -> None:
        unchanged = UnchangedServer()
        while self._thread.next_round():
            if unchanged.skips(self._shared.snapshot(self._interval, woken=self._thread.woken)):
                self._thread.await_wake(self._interval)
                continue
            with self._shared.use() as connection:
                tables = self._tables(connection)
            if not tables:
                unchanged.nothing_left()
            else:
                # The pump itself notices a lost connection. This thread only needs a new one.
                with suppress(ConnectionLost, TransientRefusal), self._context.connect() as connection:
                    with source_errors("preparing to make partitions"):
                        source.bounded(connection)
                    while tables and self._thread.next_round():
                        self._look(connection, tables)
                        self._thread.await_wake(self._interval)
                        tables = self._tables(connection)
            self._thread.await_wake(self._interval)

    def _tables(self, connection: PgConnection) -> tuple[TableId, ...]:
        with source_errors("looking for tables whose partitions are made ahead"):
            return source.premade_tables(connection, self._context.slot)

    def _look(self, connection: PgConnection, tables: tuple[TableId, ...]) -> None:
        """Makes what is lacking, where it is lacking soonest first."""
        for table_id in sorted(tables, key=lambda table_id: self._left.get(table_id, 0.0)):
            if self._thread.stopping():
                return
            refusals = self._refusals.get(table_id)
            if refusals is not None and not refusals.due:
                continue
            table = load_table(connection, table_id)
            if table is None or table.tier is None:
                continue
            try:
                with work_for(table, remedy=REPORT), source_errors(f"making partitions of {table.name}"):
                    choices = source.read_choices(connection, table_id)
                    if choices is not None and choices.live and choices.width is not None:
                        self._make(connection, table, choices)
            except ConnectionLost:
                raise
            except MirrorPumpError as error:
                cause = error.__cause__
                reason = source.refusal(cause) if isinstance(cause, psycopg.Error) else str(error)
                self._refused(connection, table, "", source.NOT_SEEN.format(reason))

    def _make(self, connection: PgConnection, table: MirroredTable, choices: RetentionChoices) -> None:
        tier = table.tier
        assert tier is not None
        attached = source.read_attached(connection, table.table_id)
        front = new_partitions.front(tier, self._newest_key(connection, table, attached))
        if front is None:
            return
        if tier.kind is not TierKind.DATE:
            # A day is no speed.
            self._speeds.note(table.table_id, front, time.monotonic())
        speed, reach = self._speeds.speed(table.table_id), self._speeds.reach(table.table_id)
        bounds = new_partitions.wanted_partitions(tier, front, attached, choices, reach)
        top = max((leaf.hi for leaf in attached if not leaf.is_default), default=front)
        left = _seconds(top - front, speed)
        self._report(connection, table, choices, left)
        for lo, hi in bounds:
            name = new_partitions.premade_name(table.name, tier.kind, lo)
            result = new_partitions.make_partition(connection, table.name, name, tier.kind, lo, hi)
            if isinstance(result, Refused):
                soon = f". Without it rows find no partition in {max(left, 0):.0f} s" if left < _SHORT else ""
                self._refused(connection, table, str(name), f"partition {name} was not made: {result.reason}{soon}")
                return
            top = hi
        self._refusals.pop(table.table_id, None)
        if bounds:
            self._report(connection, table, choices, _seconds(top - front, speed))

    def _newest_key(self, connection: PgConnection, table: MirroredTable, attached: tuple[Attached, ...]) -> int | None:
        """The newest key, where that decides what is made."""
        assert table.tier is not None
        if table.tier.kind is not TierKind.BIGINT:
            return None
        newest = self._newest.of(connection, table.table_id, table.tier, attached)
        position = source.sequence_position(connection, table, table.tier)
        return newest if newest is None or position is None else max(newest, position)

    def _report(self, connection: PgConnection, table: MirroredTable, choices: RetentionChoices, left: float) -> None:
        """Stores whether partitions end soon. `left`: in how many seconds."""
        now = time.monotonic()
        self._left[table.table_id] = left
        if left < _SHORT:
            self._short_at[table.table_id] = now
            reason = (
                f"its key moves on faster than partitions are made: they end in {max(left, 0):.0f} s. Make them wider:"
                f" `mirror-pump policy set {table.name.shell} width`"
            )
            self._note(connection, table, reason)
            self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition="", reason=reason)
        elif (
            choices.not_made is not None
            and table.table_id not in self._refusals
            and now - self._short_at.get(table.table_id, -math.inf) >= _REPORTED_FOR
        ):
            self._note(connection, table, None)

    def _refused(self, connection: PgConnection, table: MirroredTable, name: str, reason: str) -> None:
        self._refusals.setdefault(table.table_id, Retries(self._backoff)).failed()
        self._note(connection, table, reason)
        self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition=name, reason=reason)

    @staticmethod
    def _note(connection: PgConnection, table: MirroredTable, reason: str | None) -> None:
        # If the row is being changed, the next attempt reports it again.
        with source_errors("storing why partitions are not made"), suppress(psycopg.errors.LockNotAvailable):
            source.note(connection, table.table_id, Noted.NOT_MADE, reason)


def _seconds(room: int, speed: float) -> float:
    """How long partitions last that have room for so many tier values."""
    return room / speed if speed > 0 else math.inf


_WINDOW = 60.0
"""Seconds over which a speed is measured. Bursts are shorter."""
_SHORTEST = 15.0
"""Seconds that a measurement counts for at least: the first rows after a pause are no speed."""
_AHEAD = 60.0
"""Seconds for which partitions are made ahead, at least."""
_LOOKS_AHEAD = 3
"""Partitions are made ahead for so many times the longest time between two looks: on a busy machine looks are rare."""


class KeySpeeds:
    """How fast the keys of tables move on, over all sessions: where they were in the last minute. Used by one thread at
    a time."""

    def __init__(self) -> None:
        self._looks: dict[TableId, deque[tuple[float, int]]] = {}
        """Times in seconds, and the tier values that new rows had then."""

    def note(self, table_id: TableId, front: int, now: float) -> None:
        """Notes where new rows come. `now`: time.monotonic(), in seconds."""
        looks = self._looks.setdefault(table_id, deque())
        if looks and front < looks[-1][1]:
            # Rows were deleted.
            looks.clear()
        looks.append((now, front))
        while len(looks) > 2 and looks[1][0] <= now - _WINDOW:
            looks.popleft()

    def speed(self, table_id: TableId) -> float:
        """Tier values for each second."""
        looks = self._looks.get(table_id)
        if not looks:
            return 0.0
        (began, first), (ended, last) = looks[0], looks[-1]
        return (last - first) / max(ended - began, _SHORTEST)

    def reach(self, table_id: TableId) -> int:
        """How many tier values ahead a partition is needed."""
        times = [time for time, _ in self._looks.get(table_id, ())]
        longest = max((after - before for before, after in pairwise(times)), default=0.0)
        return round(self.speed(table_id) * max(_AHEAD, _LOOKS_AHEAD * longest))
