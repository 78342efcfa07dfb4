"""Keeps lake tables cheap to read, in the background: threads watch tables, run due jobs in tasks, and report. Mirrored
tables are kept by TableUpkeep, change feeds by FeedUpkeep (feed_upkeep.py).

A job is computed from one state of a table while the stream goes on. The loop publishes the result on top of the state
that is current by then. `mirror_pump.lake.commit.file_rewrite` and `mirror_pump.lake.commit.merged_files` argue why
this changes no row for any reader, and refuse what they cannot prove. A refused result is discarded and computed again.

Each job has a thread of its own, so that a small merge never waits for the conversion of another table's deletes, which
may take minutes. Only one job works on a table at a time, since each job replaces files that the other relies on.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.errors import LakeError, MirrorPumpError, TableError, TaskFailed, with_remedy
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.storage import delete, discard
from mirror_pump.model import MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.events import FileRewriteReady, TableFailed
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.flow.tasks import FileTasks
from mirror_pump.pipeline.upkeep.jobs import Job, Subject
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from sql import queries

_SQL = queries("upkeep")

_FIRST_PAUSE = 1.0
"""Seconds before a job that failed at a table is tried again there."""
_TRIES = 3
"""A table at which a job has failed so often in a row, by an error that no code expects, fails: it would get slower and
slower to read. One of which only the lake has rows goes on without the job: it could not be copied again."""


_UNNEEDED_LOOK = 60.0
"""Seconds between looks of a job that can become due for no table. It is told of a table for which that changes."""


def conversion_workers(cores: int) -> int:
    """Returns the number of concurrent tasks that convert deletes: a quarter of the machine."""
    return max(1, cores // 4)


@dataclass
class JobTurn(Retries):
    """The state of one job at one table. It pauses after a failure, or after a state that changed too much."""

    left: LakeTable | None = None
    """The state in which the job found nothing to do."""
    unexpected: int = 0
    """Failures in a row by errors that no code expects."""


@dataclass
class _Watched:
    """The state of one watched table."""

    lake: LakeTable
    """Its newest state that was reported to these threads."""
    turns: dict[str, JobTurn]
    """The jobs' states, by job name."""
    listing: Listing | None = None
    in_hand: str | None = None
    """The job that works on the table, until the loop has answered."""
    written: tuple[str, ...] = field(default=())
    """URIs of the files of the rewrite that was sent to the loop."""


@dataclass(frozen=True)
class CurrentTable(Generic[Subject]):
    """A table as the catalog has it when a job has taken it."""

    subject: Subject
    name: str
    work: AbstractContextManager[None]
    """Whatever goes wrong in this block is the table's own error."""
    location: str | None
    """Its present Iceberg metadata. None: the job may not run on it now."""
    is_done: bool = False
    """Whether there will be nothing to do for the job in this state."""


class Upkeep(ABC, Generic[Subject]):
    """Threads, one for each job, that do due work on tables of one kind of one mirror."""

    def __init__(self, context: SessionContext, shared: SharedConnection, jobs: Sequence[Job[Subject]]) -> None:
        """`shared`: for short queries of these threads and others."""
        self._context = context
        self._shared = shared
        self._storage = context.storage
        self._inbox = context.inbox
        self._slot = context.slot
        self._observer = context.observer
        self._jobs = jobs
        limits = context.settings.limits
        self._look_interval = limits.upkeep_interval
        self._backoff = Backoff(_FIRST_PAUSE, limits.retry_pause_max)
        self._tables: dict[TableId, _Watched] = {}
        self._candidates: dict[str, set[TableId]] = {job.name: set() for job in jobs}
        """By job, the tables for which it is due, or may become so without a change: others cost no look."""
        self._ranked: dict[str, tuple[float, list[TableId]]] = {job.name: (-math.inf, []) for job in jobs}
        """By job, when tables were last ranked, time.monotonic(), in seconds, and those that were due and are not taken
        yet, the most urgent one last: hundreds may be due at once."""
        self._garbage: list[str] = []
        # Guards all of the above. It is notified when something may have become due.
        self._changed = threading.Condition()
        self._threads = [
            session_thread(
                job.name, partial(self._run, job, first=job is jobs[0]), context.inbox, interrupt=self._notify
            )
            for job in jobs
        ]

    @abstractmethod
    def _locations(self, connection: PgConnection) -> Sequence[tuple[int, str]]:
        """The tables that may have to be kept, now or later, with their present Iceberg metadata."""

    @abstractmethod
    def _current(self, connection: PgConnection, job: Job[Subject], table_id: TableId) -> CurrentTable[Subject] | None:
        """A table as it is now. None if it is not to be kept any more."""

    @abstractmethod
    def _failed(self, subject: Subject, turn: JobTurn, error: MirrorPumpError) -> None:
        """Decides what follows from a job's failure at a table, besides another try."""

    def _look(self) -> None:
        """Reads what decides about due jobs besides the states of tables."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads. What they are computing is discarded with its files, and computed again later."""
        for thread in self._threads:
            thread.request_stop()
        for thread in self._threads:
            thread.stop()
        discard(self._garbage, self._storage)

    def _stopping(self) -> bool:
        # `stop` requests all threads to stop before it waits for any of them.
        return self._threads[0].stopping()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def published(self, tables: Mapping[TableId, LakeTable]) -> None:
        """Notes the new states of tables."""
        with self._changed:
            for table_id, lake in tables.items():
                # What the jobs cannot judge is looked at again after the table's next publish.
                with suppress(TableError), work_for(str(table_id)):
                    self._note_state(table_id, lake)

    def _note_state(self, table_id: TableId, lake: LakeTable) -> None:
        """Notes a table's new state. The caller holds the lock."""
        watched = self._tables.get(table_id)
        if watched is None:
            watched = self._watch(table_id, lake)
        watched.lake = lake
        self._reconsider(table_id, watched)
        if any(self._urgency(job, watched) is not None for job in self._jobs):
            self._changed.notify_all()

    def live(self, table_ids: Iterable[TableId]) -> None:
        """Notes that tables are no longer being copied. Files that arrived during the copy may now be replaced."""
        with self._changed:
            for table_id in table_ids:
                if table_id in self._tables:
                    for turn in self._tables[table_id].turns.values():
                        turn.not_before = 0.0
            self._changed.notify_all()

    def finished(self, table_id: TableId, *, landed: bool) -> None:
        """Notes that the table's rewrite was published, or that it was refused, in which case nothing refers to its
        files."""
        with self._changed:
            watched = self._tables[table_id]
            assert watched.in_hand is not None
            turn = watched.turns[watched.in_hand]
            if landed:
                turn.succeeded()
                turn.unexpected = 0
                for other_turn in watched.turns.values():
                    other_turn.left = None
            else:
                self._garbage.extend(watched.written)
                turn.failed()
            watched.in_hand = None
            watched.written = ()
            self._reconsider(table_id, watched)
            self._changed.notify_all()

    def _run(self, job: Job[Subject], first: bool) -> None:
        if first:
            self._begin()
        while not self._stopping():
            self._clear_garbage()
            if first:
                self._look()
            with self._changed:
                table_id = None if self._context.backlog.comes_first else self._take(job)
                if table_id is None:
                    if not self._stopping():
                        self._changed.wait(self._look_interval if self._candidates[job.name] else _UNNEEDED_LOOK)
                    continue
            began = time.monotonic()
            self._do(job, table_id)
            self._threads[0].pause((time.monotonic() - began) * (1 / job.share - 1))

    def _begin(self) -> None:
        """Picks up what a former pump left to do."""
        with self._shared.use() as connection:
            tables = self._locations(connection)
        for table_id, location in tables:
            if self._stopping():
                return
            try:
                with work_for(location):
                    lake = LakeTable.load(location, self._storage)
            except (LakeError, TableError) as error:
                # The next publish to the table meets the same error and reports it.
                self._observer(self._jobs[0].failed, table=location, error=str(error))
                continue
            with self._changed:
                if TableId(table_id) not in self._tables:
                    self._watch(TableId(table_id), lake)
                self._changed.notify_all()

    def _watch(self, table_id: TableId, lake: LakeTable) -> _Watched:
        watched = self._tables[table_id] = _Watched(lake, {job.name: JobTurn(self._backoff) for job in self._jobs})
        self._reconsider(table_id, watched)
        return watched

    def _reconsider(self, table_id: TableId, watched: _Watched) -> None:
        """Notes which jobs may be due for a table whose state has changed, or the state in which a job left it. The
        caller holds the lock."""
        for job in self._jobs:
            candidates = self._candidates[job.name]
            if job.may_become_due(watched.lake, watched.turns[job.name].left):
                if not candidates:
                    self._changed.notify_all()
                candidates.add(table_id)
            else:
                candidates.discard(table_id)

    def _take(self, job: Job[Subject]) -> TableId | None:
        """Picks the table for which the job is most urgent, and marks it as being worked on. The caller holds the
        lock."""
        ranked_at, ranked = self._ranked[job.name]
        outdated = not ranked or time.monotonic() - ranked_at >= self._look_interval
        if outdated:
            candidates = ((table_id, self._tables[table_id]) for table_id in self._candidates[job.name])
            urgencies = [(self._urgency(job, watched), table_id) for table_id, watched in candidates]
            due = [(urgency, table_id) for urgency, table_id in urgencies if urgency is not None]
            ranked = [table_id for _, table_id in sorted(due, reverse=True)]
            self._ranked[job.name] = time.monotonic(), ranked
        while ranked:
            table_id = ranked.pop()
            watched = self._tables.get(table_id)
            if watched is not None and self._urgency(job, watched) is not None:
                watched.in_hand = job.name
                return table_id
        return None if outdated else self._take(job)

    def _urgency(self, job: Job[Subject], watched: _Watched) -> int | None:
        turn = watched.turns[job.name]
        if watched.in_hand is not None or not turn.due:
            return None
        return job.due(watched.lake, turn.left)

    def _do(self, job: Job[Subject], table_id: TableId) -> None:
        """Computes the job for a table that it has taken, and sends the result to the loop."""
        with self._changed:
            watched = self._tables[table_id]
            lake_before = watched.lake
        turn = watched.turns[job.name]
        tasks = FileTasks(self._context.runner, self._stopping)
        ready: FileRewriteReady | None = None
        current: CurrentTable[Subject] | None = None
        try:
            with self._shared.use() as connection:
                current = self._current(connection, job, table_id)
            if current is None:
                self._forget(table_id)
                return
            if current.location is None:
                turn.not_before = time.monotonic() + self._look_interval
                turn.left = lake_before if current.is_done else turn.left
                return
            with current.work:
                lake = self._newest(table_id, watched, current.location)
                if watched.listing is None:
                    watched.listing = listing_for(lake)
                ready = job.compute(current.subject, lake, watched.listing, tasks)
            if ready is None:
                turn.left = lake
                turn.not_before = time.monotonic() + max(job.idle, self._look_interval)
        except (LakeError, TaskFailed, TableError) as error:
            turn.failed()
            turn.unexpected = turn.unexpected + 1 if isinstance(error, TableError) else 0
            name = str(table_id) if current is None else current.name
            self._observer(job.failed, table=name, error=str(error), remedy=error.remedy)
            if current is not None:
                self._failed(current.subject, turn, error)
        finally:
            if ready is None:
                tasks.abandon(self._storage)
            with self._changed:
                if ready is None:
                    watched.in_hand = None
                    if self._tables.get(table_id) is watched:
                        self._reconsider(table_id, watched)
                else:
                    watched.written = tuple(file.path for file in ready.rewrite.written)
        if ready is not None:
            self._inbox.put(ready)

    def _forget(self, table_id: TableId) -> None:
        with self._changed:
            del self._tables[table_id]
            for candidates in self._candidates.values():
                candidates.discard(table_id)

    def _newest(self, table_id: TableId, watched: _Watched, location: str) -> LakeTable:
        """Returns the state that the catalog names. Another engine or the loop may have committed since, or the table
        may belong to another registration by now."""
        lake = tracked_lake = watched.lake
        if lake.metadata_location != location:
            lake = LakeTable.load(location, self._storage)
            with self._changed:
                if watched.lake is tracked_lake and self._tables.get(table_id) is watched:
                    watched.lake = lake
                    self._reconsider(table_id, watched)
        return lake

    def _clear_garbage(self) -> None:
        """Removes the files of refused rewrites."""
        with self._changed:
            garbage, self._garbage = self._garbage, []
        for path in garbage:
            delete(path, self._storage)


class TableUpkeep(Upkeep[MirroredTable]):
    """Keeps the mirrored tables."""

    def _locations(self, connection: PgConnection) -> Sequence[tuple[int, str]]:
        return connection.execute(_SQL["mirrored"], {"slot": self._slot}).fetchall()

    def _current(
        self, connection: PgConnection, job: Job[MirroredTable], table_id: TableId
    ) -> CurrentTable[MirroredTable] | None:
        # Both are read in one snapshot: a fill gives files the latter's columns with the former's values.
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            table = load_table(connection, table_id)
            row = connection.execute(_SQL[job.free], {"table_id": table_id}).fetchone()
        if table is None or table.state.has_ended:
            return None
        # The last snapshot of a fill is marked too. A copy may be followed by one without another snapshot.
        filled = job.free == "free_to_fill" and table.state not in (TableState.COPYING, TableState.WAITING)
        location = None if row is None else row[0]
        return CurrentTable(table, str(table.name), work_for(table), location, is_done=location is None and filled)

    def _failed(self, subject: MirroredTable, turn: JobTurn, error: MirrorPumpError) -> None:
        """A table at which a job fails too often fails."""
        self._context.report_file(subject.table_id, error)
        if turn.unexpected >= _TRIES and not (subject.tier is not None and subject.tier.moved):
            self._inbox.put(TableFailed(subject, with_remedy(error)))
