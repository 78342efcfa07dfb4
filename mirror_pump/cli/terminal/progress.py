"""Progress on stderr. Copies: bars on a terminal, else occasional log lines. `verify`: only bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from mirror_pump.cli.terminal.output import count_text, stderr
from mirror_pump.telemetry import get_logger

if TYPE_CHECKING:
    from rich.progress import TaskID

_LIVE = "live"
"""mirror_pump.model.TableState.LIVE, which is not imported since --help would then load Arrow."""

_DONE = "done"
"""mirror_pump.ops.verify.verification.Phase.DONE."""

LOG_INTERVAL = 5.0
"""Seconds between log lines about one table's progress: readable in a journal, yet a sign of life."""


class TableCopyProgress(Protocol):
    """What is shown of one table's copy (mirror_pump.ops.register.registration.CopyProgress)."""

    @property
    def table(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def chunks_done(self) -> int: ...
    @property
    def chunks_total(self) -> int: ...
    @property
    def rows(self) -> int: ...


Show = Callable[[Sequence[TableCopyProgress]], None]


@contextmanager
def copy_progress() -> Iterator[Show]:
    """Yields a function that shows the current state of all copies. It may be called any number of times."""
    if sys.stderr.isatty():
        with _bars() as show:
            yield show
    else:
        yield _Lines().show


@contextmanager
def _bars() -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[state]:<8}"),
        TextColumn("{task.fields[rows]} rows"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr()) as progress:
        tasks: dict[str, TaskID] = {}

        def show(tables: Sequence[TableCopyProgress]) -> None:
            for table in tables:
                if table.table not in tasks:
                    tasks[table.table] = progress.add_task(table.table, total=None, state="", rows="0")
                task = tasks[table.table]
                if table.state == _LIVE:
                    # Its chunks are already removed, so their numbers no longer describe the copy.
                    progress.update(task, completed=1, total=1, state=table.state)
                else:
                    progress.update(
                        task,
                        completed=table.chunks_done,
                        total=table.chunks_total or None,
                        state=table.state,
                        rows=count_text(table.rows),
                    )

        yield show


class ComparisonProgress(Protocol):
    """What is shown of one table's comparison (mirror_pump.ops.verify.verification.TableProgress)."""

    @property
    def table(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def small(self) -> bool: ...
    @property
    def chunks_done(self) -> int: ...
    @property
    def chunks_total(self) -> int: ...
    @property
    def rows(self) -> int: ...


@contextmanager
def verify_progress() -> Iterator[Callable[[ComparisonProgress], None]]:
    """Yields a function that shows a table's progress, only on a terminal and if it takes more than a moment."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[phase]:<9}"),
        TextColumn("{task.fields[rows]} rows"),
        TimeElapsedColumn(),
    )
    # The bars are removed at the end, so that only the result remains.
    with Progress(*columns, console=stderr(), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(table: ComparisonProgress) -> None:
            if table.table not in tasks:
                if table.small:
                    return
                tasks[table.table] = progress.add_task(table.table, total=None, phase="", rows="0")
            task = tasks[table.table]
            progress.update(task, phase=table.phase, visible=table.phase != _DONE)
            if table.chunks_total:
                done, rows = table.chunks_done, count_text(table.rows)
                progress.update(task, completed=done, total=table.chunks_total, rows=rows)

        yield show


class FileProgress(Protocol):
    """What is shown of an ingest or a load (IngestProgress, and LoadProgress)."""

    @property
    def step(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes_done(self) -> int: ...
    @property
    def bytes_total(self) -> int: ...
    @property
    def waits_for(self) -> str: ...


@contextmanager
def file_progress(event: str, *, logs: bool = True) -> Iterator[Callable[[FileProgress], None]]:
    """Yields a function that shows the progress of an ingest or a load: a bar on a terminal, else occasional log lines
    of this event, if `logs`."""
    if not sys.stderr.isatty():
        yield _FileLines(event).show if logs else lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[step]}", markup=False),
        TextColumn("{task.fields[rows]} rows"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr(), transient=True) as progress:
        bar = progress.add_task("", total=None, step="", rows="0")

        def show(known: FileProgress) -> None:
            step = f"{known.step} ({known.waits_for})" if known.waits_for else str(known.step)
            progress.update(
                bar,
                description=known.table,
                completed=known.bytes_done,
                total=known.bytes_total or None,
                step=step,
                rows=count_text(known.rows),
            )

        yield show


class _FileLines:
    """Logs an ingest or a load when its step changes, and every LOG_INTERVAL while rows are read."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._log = get_logger(event)
        self._step = ""
        self._at = 0.0

    def show(self, known: FileProgress) -> None:
        now = time.monotonic()
        if known.step == self._step and now - self._at < LOG_INTERVAL:
            return
        self._step, self._at = str(known.step), now
        waits = {"waits_for": known.waits_for} if known.waits_for else {}
        self._log.info(self._event, table=known.table, step=str(known.step), rows=known.rows, **waits)


class _Lines:
    """Logs a table when its state changes, and every LOG_INTERVAL while chunks arrive."""

    def __init__(self) -> None:
        self._log = get_logger("register")
        self._last: dict[str, tuple[str, int, float]] = {}

    def show(self, tables: Sequence[TableCopyProgress]) -> None:
        now = time.monotonic()
        for table in tables:
            state, chunks, at = self._last.get(table.table, ("", -1, 0.0))
            if table.state != state or (table.chunks_done != chunks and now - at >= LOG_INTERVAL):
                self._last[table.table] = (table.state, table.chunks_done, now)
                self._log.info(
                    "copy",
                    table=table.table,
                    state=table.state,
                    chunks=f"{table.chunks_done}/{table.chunks_total}",
                    rows=table.rows,
                )
