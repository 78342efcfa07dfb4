"""Finds changes of schema and publication that have no note in the stream yet, and decides about those that have. Also
finds those of tiered tables, which the stream does not concern."""

from __future__ import annotations

import time
from functools import partial

from mirror_pump.errors import about
from mirror_pump.model import TableId, TableState
from mirror_pump.pipeline.flow.events import TableFailed
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.operations.lake_names import follow_names
from mirror_pump.pipeline.schema.decisions import DROPPED
from mirror_pump.pipeline.schema.tiered_changes import differing_tiered, tiered_changes
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.change_notes import (
    CatalogLook,
    Waiting,
    note_changes,
    waiting_tables,
    watch_partitions,
)
from mirror_pump.source.stream.publication import PublicationCheck
from mirror_pump.source.unchanged_server import UnchangedServer
from mirror_pump.table_life import TableEvent, state_after
from sql import queries

_SQL = queries("pump")

_LOOK_INTERVAL = 2.0
"""Seconds between two looks: how long a change may go unnoticed where no event trigger reports it."""
_SHARE = 0.02
"""The largest share of time spent looking. With very many tables the pauses get longer."""


class SchemaWatcher(ThreadedService):
    """A thread that compares the catalogs with the notes in the stream, and emits a note for each difference."""

    def __init__(
        self,
        context: SessionContext,
        shared: SharedConnection,
        waiting: SharedConnection,
        publication: PublicationCheck,
    ) -> None:
        """`shared`: for the query whether there is anything to do. `waiting`: for looks, which may wait for locks.
        `publication`: the check that publishes share."""
        self._shared = shared
        self._waiting = waiting
        self._publication = publication
        self._inbox = context.inbox
        self._slot = context.slot
        self._awaited: dict[Waiting, set[str]] = {}
        """By table that awaits its description, the transactions that have to end first."""
        self._thread = session_thread("watcher", self._run, context.inbox)

    def _run(self) -> None:
        look, unchanged = CatalogLook(self._slot), UnchangedServer()
        while self._thread.next_round():
            began = time.monotonic()
            if unchanged.skips(self._shared.snapshot(_LOOK_INTERVAL, woken=self._thread.woken)):
                self._thread.await_wake(_LOOK_INTERVAL)
                continue
            with self._waiting.use() as connection:
                # Publishes check this as well. But an idle pump makes none, and a table should be copied again soon.
                self._publication.refuse_changed(connection.cursor())
                connection.execute(
                    _SQL["failed_and_dropped"],
                    {
                        "slot": self._slot,
                        "error": DROPPED,
                        "former": TableState.FAILED.value,
                        "state": state_after(TableState.FAILED, TableEvent.DROPPED).value,
                    },
                )
                follow_names(connection, self._slot)
                note_changes(connection, look, self._settled(connection), partial(self._fail, connection))
                busy = watch_partitions(connection)
                tiered = differing_tiered(connection, self._slot)
                for change in tiered_changes(connection, tiered):
                    self._inbox.put(change)
                if not (self._awaited or look.differs or busy or tiered):
                    unchanged.nothing_left()
            self._thread.await_wake(max(_LOOK_INTERVAL, (time.monotonic() - began) / _SHARE))

    def _fail(self, connection: PgConnection, table_id: TableId, reason: str) -> None:
        """Fail a table that a note cannot describe because of one of its names."""
        table = load_table(connection, table_id)
        if table is not None:
            remedy = "Rename what has it (the table, a column, a partition, a label); then unregister and register it"
            self._inbox.put(TableFailed(table, about(str(table.name), f"{reason}. {remedy}")))

    def _settled(self, connection: PgConnection) -> list[Waiting]:
        """The tables that may be described: every transaction that was seen writing to them has ended since.

        Otherwise a copy could not start at the note. The rows that such a transaction wrote come after the note in the
        stream and win over the copied rows. They may be printed as a type printed them before it changed, because
        changing a type takes no lock on the table.
        """
        waiting = waiting_tables(connection, self._slot)
        self._awaited = {table: self._awaited.get(table, holders) & holders for table, holders in waiting.items()}
        return [table for table, awaited in self._awaited.items() if not awaited]
