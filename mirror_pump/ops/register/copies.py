"""The initial copies that are under way: their progress, and the wait for their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from mirror_pump.errors import NotLeader, SourceError
from mirror_pump.model import TableId, TableName, TableState
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.leader import is_led
from sql import queries

_SQL = queries("copy")

_PROGRESS_INTERVAL = 0.25
"""Seconds between looks at the progress of copies."""
_FIRST_LOOK = 0.02
"""Seconds between the first two looks. The interval doubles up to _PROGRESS_INTERVAL: a small table is copied in
moments."""
_SHARE = 0.05
"""The largest share of time spent looking. With very many tables the pauses get longer."""
_NO_PUMP_GRACE = 5.0
"""Seconds without a leader after which `register` stops waiting for a pump and copies the tables itself."""


def follow_copies(
    connection: PgConnection,
    settings: Settings,
    tables: Sequence[TableId],
    on_progress: Callable[[Sequence[TableProgress]], None],
    observer: Observer,
) -> None:
    """Return once no table is being copied any more. If no pump runs, copy the tables in this process."""
    led_at: float | None = None
    pause = _FIRST_LOOK
    while True:
        began = time.monotonic()
        progress = copies_progress(connection, tables)
        looking = time.monotonic() - began
        on_progress(progress)
        if not any(map(_under_way, progress)):
            return
        if is_led(connection, settings.slot):
            led_at = time.monotonic()
        elif led_at is None or time.monotonic() - led_at > _NO_PUMP_GRACE:
            # No pump runs; one that is only restarting would be back by now. So this process copies the tables.
            with suppress(NotLeader), _shown(settings, tables, on_progress):
                Pump(settings, observer=observer).run(copies=True)
        time.sleep(max(pause, looking / _SHARE))
        pause = min(2 * pause, _PROGRESS_INTERVAL)


def _under_way(copy: TableProgress) -> bool:
    if copy.step == TableState.WAITING:
        return not copy.detail
    return copy.step in (TableState.COPYING, TableState.FILLING)


@contextmanager
def _shown(
    settings: Settings, tables: Sequence[TableId], on_progress: Callable[[Sequence[TableProgress]], None]
) -> Iterator[None]:
    """Report progress from a separate thread while the block runs."""
    done = threading.Event()

    def show() -> None:
        with suppress(SourceError), connect(settings.require_dsn(), autocommit=True) as connection:
            looking = 0.0
            while not done.wait(max(_PROGRESS_INTERVAL, looking / _SHARE)):
                began = time.monotonic()
                progress = copies_progress(connection, tables)
                looking = time.monotonic() - began
                on_progress(progress)

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def copies_progress(connection: PgConnection, tables: Sequence[TableId]) -> list[TableProgress]:
    """Return the progress of each table's copy."""
    with source_errors("reading the copies' progress"):
        rows = fetch_rows(connection, _ProgressRow, _SQL["progress"], {"table_ids": list(tables)})
    return [row.progress() for row in rows]


@dataclass(frozen=True)
class _ProgressRow:
    """A row of the query `progress`; see TableProgress."""

    schema_name: str
    table_name: str
    state: str
    error: str
    chunks_done: int
    chunks_total: int
    rows: int

    def progress(self) -> TableProgress:
        name = TableName(self.schema_name, self.table_name)
        return TableProgress(str(name), self.state, self.chunks_done, self.chunks_total, self.rows, self.error)
