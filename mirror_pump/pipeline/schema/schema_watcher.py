"""Looks for changes of schema and publication that the stream was not told of, and judges those that it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from mirror_pump.errors import about
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.events import CopyFailed, Event
from mirror_pump.pipeline.flow.thread_end import reporting
from mirror_pump.pipeline.schema.decisions import Action, SchemaChangeDecision, decide
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.change_notes import (
    NONSENSE,
    Note,
    Waiting,
    describe_note,
    note_changes,
    waiting_tables,
    watch_partitions,
)
from mirror_pump.source.stream.publication import refuse_changed

_LOOK_INTERVAL = 2.0
"""Seconds between two comparisons: how long a change may go unnoticed where no event trigger tells of it."""
_SHARE = 0.02
"""Of the time, at most so much is spent comparing: with very many tables the pauses get longer."""


def decide_untold(connection: PgConnection, table: MirroredTable, note: Note) -> SchemaChangeDecision:
    """What to do about a table after a note; asks the database for the types that the note names."""
    try:
        return decide(table, note, describe_note(connection, note))
    except NONSENSE:
        # Of a type, the catalogs are further than the stream: a later note describes the table without it. And what
        # somebody else emitted must not end the pump, nor be believed: our own next note says what the table is like.
        return SchemaChangeDecision(
            Action.WAIT, table, "a type of it does not exist any more, or the note of it was none of ours"
        )


class Watcher:
    """A thread that compares the catalogs with what the stream was told, and tells it the difference."""

    def __init__(self, connect: Callable[[], PgConnection], inbox: SimpleQueue[Event], slot: str) -> None:
        self._connect = connect
        self._inbox = inbox
        self._slot = slot
        self._awaited: dict[Waiting, set[str]] = {}
        """By table that waits to be described, the transactions that have to end before."""
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._changed.set()
        self._thread.join()

    def wake(self) -> None:
        """A table waits to be described."""
        self._changed.set()

    def _run(self) -> None:
        with reporting(self._inbox), self._connect() as connection:
            while not self._stopping.is_set():
                self._changed.clear()
                began = time.monotonic()
                # Publishes look as well. But an idle pump makes none, and a table is to be copied again soon.
                refuse_changed(connection.cursor(), self._slot)
                note_changes(connection, self._slot, self._settled(connection), partial(self._set_aside, connection))
                watch_partitions(connection)
                self._changed.wait(max(_LOOK_INTERVAL, (time.monotonic() - began) / _SHARE))

    def _set_aside(self, connection: PgConnection, table_id: TableId, why: str) -> None:
        """A name of the table cannot be told."""
        table = load_table(connection, table_id)
        if table is not None:
            remedy = "Rename what has it (the table, a column, a partition, a label); then unregister and register it"
            self._inbox.put(CopyFailed(table, about(str(table.name), f"{why}. {remedy}")))

    def _settled(self, connection: PgConnection) -> list[Waiting]:
        """The tables that may be described: every transaction that was seen to write to them has ended since.

        A note without that would be no place to begin a copy at: what such a transaction wrote comes behind the note,
        wins over what is copied, and may be printed as a type was before it changed, which takes no lock on the table.
        """
        waiting = waiting_tables(connection, self._slot)
        self._awaited = {one: self._awaited.get(one, holders) & holders for one, holders in waiting.items()}
        return [one for one, awaited in self._awaited.items() if not awaited]
