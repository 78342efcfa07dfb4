"""Acts before the slot keeps more WAL than it may: warns, fails the table that holds it up, or drops the slot.

The WAL that the slot keeps grows while the slot does not move. The guard compares its growth over a window with the
room that is left. A slot that keeps up does not grow, however fast the server writes WAL.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import LakeError, SourceError
from mirror_pump.lake.storage import directory_answers, discard, join, write_bytes
from mirror_pump.model import TableId, TableName
from mirror_pump.pipeline.flow.events import TableGivenUp
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.upkeep.database_watch import database_watch
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import warehouse_of
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.slot import COPY_AGAIN, drop_slot
from mirror_pump.source.stream.wal_room import WalRoom, read_wal_room, seconds_to_invalidation
from sql import queries

_SQL = queries("wal_guard")

_REPEAT_INTERVAL = 3600.0
"""Seconds after which a shortage that lasts is reported again."""
_DROP_WITHIN = 10.0
"""Seconds in which the slot's walsender has to end before the slot is dropped. Then the next check tries again."""
_DROP_POLL = 0.02
_FULL = "no space left"
"""In the message of every StorageFull."""
_PROBE = ".mirror-pump-guard-"
"""The beginning of the name of a file that is written to the warehouse and removed."""
_RETURN = "Mend the cause, then `mirror-pump unregister TABLE` and `mirror-pump register TABLE`"


class WalGuard(ThreadedService):
    """A thread that runs for the duration of the block, unless `wal_guard` is `off`. It acts for the leader only."""

    def __init__(
        self,
        settings: Settings,
        observer: Observer,
        epoch: Callable[[], int | None],
        submit: Callable[[TableGivenUp], None],
    ) -> None:
        """`epoch` returns the epoch of the pump's last leadership. `submit` hands an event to the present session."""
        self._settings = settings
        self._slot = settings.slot
        self._observer = observer
        self._epoch = epoch
        self._submit = submit
        self._samples: deque[WalRoom] = deque()
        """In the order of time. The first is as old as the window, or the oldest since the pump leads."""
        self._short_since: WalRoom | None = None
        """The first sample since which time to act has been short, without a break."""
        self._written: dict[TableId, int] = {}
        """Rows written to each table at that moment."""
        self._failing = False
        """Whether the pump failed at the last sample."""
        self._suspect: _Suspect | None = None
        self._reported_at: dict[str, float] = {}
        """When each thing was last reported: time.monotonic(), in seconds."""
        self._given_up: dict[TableId, TableGivenUp] = {}
        self._dropped: SourceError | None = None
        self._thread = database_watch(
            "wal-guard", settings.require_dsn(), "mirror-pump-wal-guard", self._look, settings.limits.wal_guard_interval
        )

    def start(self) -> None:
        """Start the thread, unless the guard is off."""
        if self._settings.wal_guard != "off":
            super().start()

    @property
    def given_up(self) -> tuple[TableGivenUp, ...]:
        """Tables that have to fail and have not yet. Each new session gets them first: the work that it begins with
        may be what a table of them does not let it end."""
        return tuple(event for event in self._given_up.copy().values() if not event.handled.is_set())

    @property
    def dropped(self) -> SourceError | None:
        """What happened, and what to do, if the guard has dropped the slot. No session can start after that."""
        return self._dropped

    def _look(self, connection: PgConnection) -> None:
        trouble = self._trouble(connection)
        sample = None if trouble is None else read_wal_room(connection, self._slot)
        if trouble is None or sample is None or sample.retained_bytes is None:
            # Another pump leads, or the slot is lost, which the session reports.
            self._forget()
            return
        self._add(sample)
        # What it kept while it failed does not show that a pump which works again falls behind, nor for which table.
        recovered = self._settings.wal_guard == "fail-table" and self._failing and trouble.error is None
        self._failing = trouble.error is not None
        left = self._seconds_to_invalidation(sample)
        if left is not None and left < self._settings.wal_warn_within:
            self._report(
                "short",
                seconds_to_invalidation=round(left),
                retained_bytes=sample.retained_bytes,
                policy=self._settings.wal_guard,
                **({"error": trouble.error} if trouble.error else {}),
            )
        if left is None or left >= self._settings.wal_act_within or self.given_up:
            # A table that was given up has to have failed before it can be seen whether that has helped.
            self._short_since = self._suspect = None
        elif self._short_since is None or recovered:
            self._short_since = sample
            self._written = {table.table_id: table.written for table in self._tables(connection)}
        elif _age(self._short_since, sample) >= self._settings.limits.wal_guard_window:
            self._act(connection, sample, trouble)

    def _trouble(self, connection: PgConnection) -> _Trouble | None:
        """Whether the pump fails at present; None if another one leads."""
        with source_errors("looking for the leader"):
            row = connection.execute(_SQL["leads"], {"slot": self._slot, "epoch": self._epoch()}).fetchone()
        if row is None:
            return None
        error, attempts = row
        return _Trouble(error, attempts)

    def _tables(self, connection: PgConnection) -> list[GuardedTable]:
        with source_errors("looking for the table that holds up the slot"):
            return fetch_rows(connection, GuardedTable, _SQL["tables"], {"slot": self._slot})

    def _forget(self) -> None:
        self._samples.clear()
        self._short_since = self._suspect = None

    def _add(self, sample: WalRoom) -> None:
        self._samples.append(sample)
        while len(self._samples) > 1 and _age(self._samples[1], sample) >= self._settings.limits.wal_guard_window:
            self._samples.popleft()

    def _seconds_to_invalidation(self, sample: WalRoom) -> float | None:
        """Seconds until the slot has no room left at its present growth. None if it does not grow, has no limit, or has
        not been watched for a window yet."""
        if _age(self._samples[0], sample) < self._settings.limits.wal_guard_window:
            return None
        return seconds_to_invalidation(self._samples[0], sample, sample.room(self._settings.wal_guard_bytes))

    def _report(self, what: str, **details: object) -> None:
        """Report a shortage, unless the same was reported within the hour."""
        now = time.monotonic()
        if now - self._reported_at.get(what, -_REPEAT_INTERVAL) >= _REPEAT_INTERVAL:
            self._reported_at[what] = now
            self._observer(Step.WAL_SHORT, **details)

    def _act(self, connection: PgConnection, sample: WalRoom, trouble: _Trouble) -> None:
        if self._settings.wal_guard == "fail-table":
            self._fail_table(connection, sample, trouble)
        elif self._settings.wal_guard == "drop-slot":
            self._drop_slot(connection, sample)

    def _fail_table(self, connection: PgConnection, sample: WalRoom, trouble: _Trouble) -> None:
        error = trouble.error
        table = holding_table(self._tables(connection), sample, error, self._written)
        if table is not None and error is not None:
            convicted = self._convicted(connection, table, trouble)
            if convicted is None:
                return
            table = table if convicted else None
        # The next table gets its turn if this one has failed, and that has not helped within another window.
        self._short_since = self._suspect = None
        if table is None:
            self._report("nobody", reason="no single table holds up the slot: none is failed")
            return
        why = f"it holds up all tables: {error}" if error else "it had the most row changes while the pump fell behind"
        given_up = TableGivenUp(table.table_id, f"the WAL guard failed it before the slot was lost: {why}. {_RETURN}")
        self._given_up[table.table_id] = given_up
        self._observer(Step.WAL_SHORT, table=str(table.name), reason=why)
        self._submit(given_up)

    def _convicted(self, connection: PgConnection, table: GuardedTable, trouble: _Trouble) -> bool | None:
        """Whether an error below a table's location is that table's, not the storage's. None: wait for more attempts.

        When the storage is away, the error names the table that was written to first. So an attempt has to fail that
        began after the storage was seen to work: the second one to be counted from then on.
        """
        suspect = self._suspect
        if suspect is None or suspect.table_id != table.table_id or trouble.attempts < suspect.attempts:
            if not self._storage_works(trouble.error or "", warehouse_of(table.location)):
                return False
            # Attempts may have failed since `trouble` was read, while the storage was still away.
            now = self._trouble(connection)
            self._suspect = None if now is None else _Suspect(table.table_id, now.attempts)
            return None
        return True if trouble.attempts >= suspect.attempts + 2 else None

    def _storage_works(self, error: str, warehouse: str) -> bool:
        """Whether the warehouse takes a file. If it does not, the next table would meet the same error."""
        if _FULL in error.lower():
            # A small file may still find room.
            return False
        storage = lake_storage(self._settings, make_directories=False)
        location = join(warehouse, f"{_PROBE}{secrets.token_hex(8)}")
        try:
            if not directory_answers(warehouse, storage):
                return False
            write_bytes(location, b"", storage)
        except LakeError:
            return False
        finally:
            discard([location], storage)
        return True

    def _drop_slot(self, connection: PgConnection, sample: WalRoom) -> None:
        deadline = time.monotonic() + _DROP_WITHIN
        while self._trouble(connection) is not None and time.monotonic() < deadline:
            room = read_wal_room(connection, self._slot)
            if room is not None and room.active_pid is not None:
                with source_errors("ending the walsender of the slot"):
                    connection.execute("SELECT pg_terminate_backend(%s)", (room.active_pid,))
            try:
                if drop_slot(connection, self._slot):
                    self._slot_dropped(sample)
                return
            except SourceError:
                # The walsender that was told to end needs a moment.
                if self._thread.pause(_DROP_POLL):
                    return

    def _slot_dropped(self, sample: WalRoom) -> None:
        message = (
            f"the WAL guard dropped replication slot {self._slot}, which kept {sample.retained_bytes} bytes of WAL:"
            " whatever was committed after the frontier is lost to the mirror"
        )
        self._dropped = SourceError(message, COPY_AGAIN)
        self._thread.request_stop()
        self._observer(Step.SLOT_DROPPED, slot=self._slot, retained_bytes=sample.retained_bytes)


@dataclass(frozen=True)
class _Trouble:
    """Whether the pump fails."""

    error: str | None
    """None if it has been successful since the last error."""
    attempts: int
    """Attempts that failed at the present frontier."""


@dataclass(frozen=True)
class _Suspect:
    """A table below whose location the pump's error happened, although the storage works."""

    table_id: TableId
    attempts: int
    """Failed attempts when the storage was seen to work."""


@dataclass(frozen=True)
class GuardedTable:
    """A row of the query `tables`."""

    table_id: TableId
    schema_name: str
    table_name: str
    location: str
    written: int
    """Rows written to it since PostgreSQL counts them. Not monotonic: partitions leave with their counts."""

    @property
    def name(self) -> TableName:
        return TableName(self.schema_name, self.table_name)


def holding_table(
    tables: list[GuardedTable], sample: WalRoom, error: str | None, written: Mapping[TableId, int]
) -> GuardedTable | None:
    """The table whose end lets the slot move, as far as that can be known. None if it is not the fault of one table.

    All tables share one slot, so none has a lag of its own. If the pump fails, it is the table below whose location the
    error happened. If the pump works and does not keep up, it is the table with the most row changes since `written`
    was counted. It is none if the WAL is kept for an open transaction: the pump has acknowledged most of it.
    """
    if error:
        named = [table for table in tables if f"{table.location}/" in error]
        return named[0] if len(named) == 1 else None
    if 2 * (sample.unconfirmed_bytes or 0) < (sample.retained_bytes or 0):
        return None
    changes = {table.table_id: table.written - written.get(table.table_id, table.written) for table in tables}
    busiest = max(tables, key=lambda table: changes[table.table_id], default=None)
    return busiest if busiest is not None and changes[busiest.table_id] > 0 else None


def _age(earlier: WalRoom, later: WalRoom) -> float:
    """Seconds between two samples, by the server's clock."""
    return (later.at - earlier.at).total_seconds()
