"""Pins: what they name stays until they end. A reader's pin, a lease and the pins of a comparison differ in their end.

A `PinnedSet` holds the pins of one holder. Its end is `seconds` after the last renewal: of a lease by each load that
finds it due, and any process finds its pins by its name; of a reader (`ReaderPins`) by a thread for as long as it
lives, and they end soon after its session. A moment that is kept needs no pin: its rows name what stays
(mirror_pump/source/catalog/kept_moments.py).

Invariant: as long as a pin is not over, the snapshot that it names stays in its table's history, with all of its files.

- A transaction that pins has the lock of the pins' table from before it reads what is published, which publishes,
  cut-lines and folds take notice of.
- Any other snapshot is pinned first, and looked for afterwards (`PinnedSet.take`). A pin that came too late is
  released: a sweep refuses to work while a pinned snapshot is not in the history. So the files stay of a snapshot that
  is thinned out right after that, by a publish which was under way when it was pinned.
- A pin that has expired is never renewed.

    take: pin statement -> look again -> pins that hold        renew: when a third of the time is over        release
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import psycopg

from mirror_pump.errors import SourceError
from mirror_pump.model import SnapshotId, TableId
from mirror_pump.runtime.service_thread import ServiceThread
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("pins")

PIN_SECONDS = 900.0
"""How long a pin outlives a reader that died. A live reader extends its pin."""
TRIES = 20
"""Attempts to pin. Each fails only if what is read changes within the milliseconds that it takes."""
LAKE_ALONE = 9223372036854775807
"""A pin of this cut-line promises that the lake alone is read: neither a partition nor a correction waits for it."""
RENEWED_AFTER = 1 / 3
"""Share of their time after which pins are renewed."""
_LOOK_INTERVAL = 1.0
"""Seconds between two checks whether the reader still exists."""

Connections = Callable[[], AbstractContextManager[PgConnection]]
"""Gives a connection in autocommit mode, for one query or a few."""


class PinRelation(StrEnum):
    """Where pins are, for those who change them."""

    TABLES = "read_pins"
    FEEDS = "feed_pins"
    ROWS_OF_TABLES = "read_pin_rows"
    """The table behind `read_pins`, for roles with rights on it: readers can make the view wait (docs/design/locks)."""


@dataclass(frozen=True)
class Pin:
    """A row of the queries that pin."""

    pin_id: int
    subject: int
    """`table_id`, or `feed_id`."""
    snapshot_id: SnapshotId
    cut: int | None
    """The pinned cut-line of a table; NULL of a feed."""


@dataclass(frozen=True)
class PinSubject:
    """A snapshot of a table that is to stay."""

    table_id: TableId
    snapshot_id: SnapshotId
    cut: int | None = LAKE_ALONE
    """The cut-line to pin. None: the present one."""


PinStatement = Callable[[PgConnection, float], list[Pin]]
"""Pins for so many seconds, in the caller's transaction. What is not in the mirror any more gets no pin."""


def of_published(table_ids: Collection[TableId]) -> PinStatement:
    """Pins the published snapshots and the cut-lines of tables."""
    return lambda connection, seconds: _rows(connection, "published", subjects=sorted(table_ids), seconds=seconds)


def of_snapshots(snapshots: Collection[PinSubject]) -> PinStatement:
    """Pins snapshots of tables."""
    return lambda connection, seconds: _rows(
        connection,
        "snapshots",
        subjects=[subject.table_id for subject in snapshots],
        snapshot_ids=[subject.snapshot_id for subject in snapshots],
        cuts=[subject.cut for subject in snapshots],
        seconds=seconds,
    )


def of_feed(feed_id: int, snapshot_id: SnapshotId, lease: str | None) -> PinStatement:
    """Pins a snapshot of a feed, under the name of a lease if there is one."""
    return lambda connection, seconds: _rows(
        connection, "feed", subject=feed_id, snapshot_id=snapshot_id, lease=_suffix(lease), seconds=seconds
    )


def leased_snapshots(connection: PgConnection, slot: str, lease: str, *, of_all_roles: bool = False) -> list[Pin]:
    """The pins of a lease on tables; none if it is over. Raises psycopg.Error."""
    return _rows(connection, "leased", slot=slot, lease=_suffix(lease), of_all_roles=of_all_roles)


def leased_feed_snapshots(connection: PgConnection, feed_id: int, lease: str) -> list[Pin]:
    """The pins of a lease on a feed that have not expired, oldest first. Raises psycopg.Error."""
    return _rows(connection, "leased_feed", feed_id=feed_id, lease=_suffix(lease))


def _suffix(lease: str | None) -> str | None:
    return None if lease is None else f", {lease}"


def _rows(connection: PgConnection, query: str, **parameters: object) -> list[Pin]:
    return fetch_rows(connection, Pin, _SQL[query], parameters)


def _without(pins: Collection[Pin], dropped: Collection[Pin]) -> list[Pin]:
    """By number: a holder may have one for each of thousands of tables."""
    numbers = {pin.pin_id for pin in dropped}
    return [pin for pin in pins if pin.pin_id not in numbers]


class PinnedSet:
    """The pins of one holder. Everything raises SourceError."""

    def __init__(
        self,
        connections: Connections,
        relation: PinRelation,
        seconds: float,
        pins: Collection[Pin] = (),
        *,
        tied: bool = False,
    ) -> None:
        """`tied`: the pins end soon after the session that takes them, if nothing releases them."""
        self.connections = connections
        self._relation = relation
        self._seconds = seconds
        self._pins = list(pins)
        self._tied = tied
        self._renewed = time.monotonic()
        self._changing = threading.RLock()
        """So that no pin is released or added while all are renewed."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pins that are held."""
        return tuple(self._pins)

    def take(self, statement: PinStatement, is_there: Callable[[Pin], bool] = lambda _pin: True) -> list[Pin]:
        """Pins, and then looks again: `is_there` tells whether a pinned snapshot is in the history. Returns the pins
        that hold. The others are released, and so are all of these if looking fails."""
        with (
            self._changing,
            source_errors("pinning what is read"),
            self.connections() as connection,
            connection.transaction(),
        ):
            pins = statement(connection, self._seconds)
            # Known before they are committed, so that an interrupted holder (Ctrl-C) releases them, too.
            self._pins += pins
            if self._tied:
                connection.execute(_SQL["tie"], {"pins": [pin.pin_id for pin in pins]})
        late = pins
        try:
            late = [pin for pin in pins if not is_there(pin)]
        finally:
            self.drop(late)
        return _without(pins, late)

    def take_published(
        self, *, slot: str | None = None, table_ids: Collection[TableId] | None = None, lake_alone: bool = False
    ) -> list[PublishedState]:
        """What is published of these tables, each of which is pinned unless it is already, also while it is copied for
        the first time, and if the Iceberg catalog does not name it any more. `lake_alone`: their heaps are not."""
        states: list[PublishedState] = []

        def statement(connection: PgConnection, seconds: float) -> list[Pin]:
            connection.execute(_SQL["lock"])
            states.extend(published_states(connection, slot=slot, table_ids=table_ids))
            pinned = {PinSubject(TableId(pin.subject), pin.snapshot_id, pin.cut) for pin in self._pins}
            subjects = [
                PinSubject(state.table_id, state.snapshot_id, LAKE_ALONE if lake_alone else state.cut)
                for state in states
                if state.published_location
            ]
            return of_snapshots([subject for subject in subjects if subject not in pinned])(connection, seconds)

        self.take(statement)
        return states

    def name(self, lease: str, pins: Collection[Pin] | None = None) -> None:
        """Makes these pins, or all, a lease, which any process finds by its name."""
        with source_errors("naming a lease"), self.connections() as connection:
            self._execute(connection, "name", pins, lease=_suffix(lease))

    def keep(self) -> bool:
        """Renews the pins if that is due. False if one of them has expired."""
        return self.is_fresh or self.renew()

    @property
    def is_fresh(self) -> bool:
        """Whether a renewal is not due yet."""
        return time.monotonic() - self._renewed < self._seconds * RENEWED_AFTER

    @property
    def may_be_over(self) -> bool:
        """Whether nothing has renewed them here for as long as they last."""
        return time.monotonic() - self._renewed >= self._seconds

    def renew(self) -> bool:
        """Lets the pins last for `seconds` from now on. False if one of them has expired."""
        now = time.monotonic()
        with self._changing, source_errors("renewing pins"), self.connections() as connection:
            if self._execute(connection, "renew", seconds=self._seconds) != len(self._pins):
                return False
        self._renewed = now
        return True

    def drop(self, pins: Collection[Pin] | None = None) -> None:
        """Removes these pins, or all."""
        pins = self.pins if pins is None else pins
        if not pins:
            return
        with self._changing, source_errors("releasing pins"), self.connections() as connection:
            try:
                self._execute(connection, "release", pins)
            except KeyboardInterrupt:
                # psycopg has canceled the statement, and ended a transaction with it.
                with suppress(psycopg.Error):
                    self._execute(connection, "release", pins)
                raise
            self._pins = _without(self._pins, pins)

    def _execute(
        self, connection: PgConnection, query: str, pins: Collection[Pin] | None = None, **parameters: object
    ) -> int:
        statement = _SQL[query].format(relation=f"{SCHEMA}.{self._relation}")
        pin_ids = [pin.pin_id for pin in (self._pins if pins is None else pins)]
        return connection.execute(statement, {"pins": pin_ids, **parameters}).rowcount


class ReaderPins(PinnedSet):
    """The pins of one reader, on a connection of their own, until it is released. A context manager. A thread renews
    the pins as long as the reader lives, and releases all when it is gone. Thread-safe."""

    def __init__(
        self, dsn: str, relation: PinRelation, seconds: float, application_name: str, stopped: Callable[[], bool]
    ) -> None:
        """`stopped` is called once a second; when it returns True, because the reader is gone, all is released."""
        self.pinning = connect(dsn, autocommit=True, application_name=application_name)
        """The connection with which the pins end."""
        super().__init__(lambda: nullcontext(self.pinning), relation, seconds, tied=relation is PinRelation.TABLES)
        self._stopped = stopped
        self._release_lock = threading.Lock()
        self._released = False
        self._failure: SourceError | None = None
        self._thread = ServiceThread(application_name, self._renew_while_read)

    def start(self) -> None:
        """Keeps the pins from now on."""
        self._thread.start()

    def check(self) -> None:
        """Raises SourceError if a pin was lost while in use, or the pins were released before their reader finished.
        Rows read since may be incomplete."""
        if self._failure is not None:
            raise self._failure
        if self._released:
            raise SourceError("the read was released already", "open another one")

    def release(self) -> None:
        """Releases the pins, and closes what depends on them. Does nothing the second time."""
        with self._release_lock:
            if self._released:
                return
            self._released = True
        with ExitStack() as ends:
            ends.callback(self.close)
            ends.callback(self._drop_all)
            self._thread.stop()

    def close(self) -> None:
        """Closes the connections."""
        self.pinning.close()

    def _drop_all(self) -> None:
        with suppress(SourceError):
            if not self.pinning.closed:
                self.drop()

    def _renew_while_read(self) -> None:
        while not self._thread.pause(min(_LOOK_INTERVAL, self._seconds * RENEWED_AFTER)):
            if self._stopped():
                self.release()
                return
            try:
                if not self.keep():
                    raise SourceError("a pin expired while it was in use", "read again")  # noqa: TRY301 - one way out
            except SourceError as error:
                self._failure = error
                get_logger("read").warning("a pin was lost", error=str(error))
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
