"""Registers tables that are created later and match a pattern that is followed (`register --follow-new`).

It looks at the catalog of the database every few seconds, and so needs no event trigger. It has no rights but those of
the pump's role: where that may not register tables, `status` says which ones an admin has to register.

What it runs is `register` of a name, as a person would: a role that may create tables in a followed schema decides what
is copied, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from mirror_pump.database.quoting import printed_identifier
from mirror_pump.errors import ConnectionLost, MirrorPumpError, one_line_of
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.runtime.service_thread import ServiceThread, ThreadedService
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.followed import NewTable, followed_patterns, new_tables, refuse_to_join
from mirror_pump.source.connect import PgConnection, connect, source_errors

_LOOK_INTERVAL = 2.0
"""Seconds between two looks."""
_SHARE = 0.01
"""The largest share of time spent looking: with very many tables the pauses get longer."""


def _unseen(_: Sequence[TableProgress]) -> None:
    """The pump copies the tables, and tells."""


class TableFollower(ThreadedService):
    """The thread that looks for new tables while the pump leads. Enter it to start, leave it to stop."""

    def __init__(self, settings: Settings, observer: Observer) -> None:
        self._settings = settings
        self._observer = observer
        self._thread = ServiceThread("follower", self._run)
        self._log = get_logger("register")

    def _run(self) -> None:
        while self._thread.next_round():
            try:
                with connect(
                    self._settings.require_dsn(), autocommit=True, application_name="mirror-pump-follow"
                ) as connection:
                    while self._thread.next_round():
                        began = time.monotonic()
                        self._join(connection)
                        self._thread.await_wake(max(_LOOK_INTERVAL, (time.monotonic() - began) / _SHARE))
            except MirrorPumpError as error:
                # The pump itself waits for a server that is away, and tells.
                self._log.debug("no new tables were looked for", error=str(error))
                self._thread.await_wake(_LOOK_INTERVAL)

    def _join(self, connection: PgConnection) -> None:
        with source_errors("looking for new tables"):
            patterns = followed_patterns(connection, self._settings.slot)
            tables = new_tables(connection, self._settings.slot) if patterns else []
        for table in tables:
            pattern = next((pattern for pattern in patterns if pattern.means(table.table)), None)
            if pattern is not None and not self._thread.stopping():
                self._register(connection, table, pattern.profile)

    def _register(self, connection: PgConnection, table: NewTable, profile: str | None) -> None:
        name = ".".join(map(printed_identifier, (table.schema, table.name)))
        outcomes = register(
            self._settings, [name], wait=False, on_progress=_unseen, observer=self._observer, profile=profile
        )
        error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if isinstance(error, ConnectionLost):
            raise error
        if error is not None:
            text = ". ".join(one_line_of(part) for part in (str(error), error.remedy) if part)
            with source_errors("recording a table that is refused"):
                refuse_to_join(connection, self._settings.slot, table.table_id, text)
            self._log.warning("a new table is refused", table=name, error=text)
