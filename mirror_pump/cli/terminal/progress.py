"""Progress on stderr: bars on a terminal, else occasional log lines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from mirror_pump.cli.terminal.output import count_text, stderr
from mirror_pump.runtime.telemetry import get_logger

if TYPE_CHECKING:
    from rich.progress import TaskID

    from mirror_pump.ops.table_progress import TableProgress

_LIVE = "live"
"""mirror_pump.model.TableState.LIVE, which is not imported since --help would then load Arrow."""

_DONE = "done"
"""mirror_pump.ops.verify.verification.Phase.DONE."""

_UNDER_WAY = frozenset({"waiting", "copying", "filling", "reading", "read", "comparing"})
"""States of a copy, and phases of a comparison, that end by themselves."""

LOG_INTERVAL = 5.0
"""Seconds between log lines about the rows of a file: readable in a journal, yet a sign of life."""

TABLES_INTERVAL = 10.0
"""Seconds between log lines about a table that is being copied or compared, whether or not it has come any further."""


Show: TypeAlias = "Callable[[TableProgress], None]"


@contextmanager
def copy_progress(interval: float = TABLES_INTERVAL) -> Iterator[Callable[[Sequence[TableProgress]], None]]:
    """Yields a function that shows the current state of all copies. It may be called any number of times. `interval`:
    seconds between log lines."""
    with _copy_bars() if sys.stderr.isatty() else _TableLines("register", "copy", "state", interval) as show:

        def show_all(tables: Sequence[TableProgress]) -> None:
            for table in tables:
                show(table)

        yield show_all


@contextmanager
def _copy_bars() -> Iterator[Show]:
    with _bars(8) as update:

        def show(table: TableProgress) -> None:
            if table.step == _LIVE:
                # Its chunks are already removed, so their numbers no longer describe the copy.
                update(table.table, step=table.step, completed=1, total=1)
            else:
                update(table.table, **_state(table))

        yield show


@contextmanager
def verify_progress(interval: float = TABLES_INTERVAL) -> Iterator[Show]:
    """Yields a function that shows a table's progress if it takes more than a moment. `interval`: seconds between log
    lines."""
    if not sys.stderr.isatty():
        with _TableLines("verify", "compare", "phase", interval, changes=False) as show:
            yield show
        return
    # The bars are removed at the end, so that only the result remains.
    with _bars(9, transient=True, shows_remaining=False) as update:
        shown: set[str] = set()

        def show_bar(table: TableProgress) -> None:
            if table.is_small and table.table not in shown:
                return
            shown.add(table.table)
            update(table.table, step=table.step, visible=table.step != _DONE)
            if table.total:
                update(table.table, **_state(table))

        yield show_bar


@contextmanager
def file_progress(event: str, *, logs: bool = True) -> Iterator[Show]:
    """Yields a function that shows the progress of an ingest or a load: a bar on a terminal, else occasional log lines
    of this event, if `logs`."""
    if not sys.stderr.isatty():
        yield _FileLines(event).show if logs else lambda _: None
        return
    with _bars(0, transient=True) as update:
        update("")

        def show(table: TableProgress) -> None:
            step = f"{table.step} ({table.detail})" if table.detail else table.step
            update("", description=table.table, **{**_state(table), "step": step})

        yield show


@contextmanager
def _bars(width: int, *, transient: bool = False, shows_remaining: bool = True) -> Iterator[Callable[..., None]]:
    """Yields a function that changes the bar of a table, as rich's Progress.update. `width`: of the step's name."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn(f"{{task.fields[step]:<{width}}}", markup=False),
        TextColumn("{task.fields[rows]} rows"),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if shows_remaining else ()),
    )
    with Progress(*columns, console=stderr(), transient=transient) as progress:
        tasks: dict[str, TaskID] = {}

        def update(table: str, **changes: Any) -> None:
            if table not in tasks:
                tasks[table] = progress.add_task(table, total=None, step="", rows="0")
            progress.update(tasks[table], **changes)

        yield update


def _state(table: TableProgress) -> dict[str, Any]:
    return {
        "step": table.step,
        "completed": table.done,
        "total": table.total or None,
        "rows": count_text(table.rows),
    }


class _FileLines:
    """Logs an ingest or a load when its step changes, and every LOG_INTERVAL while rows are read."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._log = get_logger(event)
        self._step = ""
        self._at = 0.0

    def show(self, progress: TableProgress) -> None:
        now = time.monotonic()
        if progress.step == self._step and now - self._at < LOG_INTERVAL:
            return
        self._step, self._at = str(progress.step), now
        waits = {"waits_for": progress.detail} if progress.detail else {}
        self._log.info(self._event, table=progress.table, step=str(progress.step), rows=progress.rows, **waits)


class _TableLines:
    """Logs each table that is under way every few seconds, from a thread of its own: what takes long may not report
    anything meanwhile. With `changes`, also when a table enters another step."""

    def __init__(self, component: str, event: str, key: str, interval: float, *, changes: bool = True) -> None:
        """`key`: what the step is called in the log lines."""
        self._component = component
        self._event = event
        self._key = key
        self._interval = interval
        self._changes = changes
        self._lock = threading.Lock()
        self._tables: dict[str, TableProgress] = {}
        self._began: dict[str, tuple[float, int]] = {}
        """By table: when its step was first seen (time.monotonic(), seconds), and what was done of it then."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress-lines", daemon=True)

    def __enter__(self) -> Show:
        self._thread.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _show(self, table: TableProgress) -> None:
        with self._lock:
            previous = self._tables.get(table.table)
            self._tables[table.table] = table
            if previous is None or previous.step != table.step:
                self._began[table.table] = time.monotonic(), table.done
                if self._changes:
                    self._log(table)

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            with self._lock:
                for table in self._tables.values():
                    if table.step in _UNDER_WAY:
                        self._log(table)

    def _log(self, table: TableProgress) -> None:
        details: dict[str, object] = {self._key: str(table.step)}
        if table.total:
            details |= {"chunks": f"{table.done}/{table.total}", "rows": table.rows}
        began, before = self._began[table.table]
        if table.done > before:
            pace = (time.monotonic() - began) / (table.done - before)
            details["seconds_left"] = round(pace * (table.total - table.done))
        get_logger(self._component).info(self._event, table=table.table, **details)
