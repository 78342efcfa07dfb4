"""Work for one table: whatever goes wrong in it is an error of that table, so that the others go on."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import contextmanager

import psycopg

from mirror_pump.errors import ExpectedOutcome, MirrorPumpError, SourceError, TableError, TaskRaised, one_line_of
from mirror_pump.model import MirroredTable, TableName
from mirror_pump.runtime.telemetry import get_logger

_LONGEST_TEXT = 500
"""Characters of an error's text that are told. The log has all of it."""
REPORT = "report it with the log, which has the traceback"
"""What to do about an error that no code expects, where nothing has to be copied again."""
_NOT_OF_A_TABLE = (
    *(MirrorPumpError, ExpectedOutcome, CancelledError),
    *(MemoryError, OSError, EOFError, BrokenExecutor, ImportError),
)
"""Errors that say by their type who has to act, results that the caller waits for, and troubles of the machine or of
the installation."""
_NO_THREAD = ("can't start new thread", "cannot schedule new futures")
"""How Python's RuntimeErrors begin that come from a machine without room for a thread, or while the process ends."""
_OF_DATA = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.DatatypeMismatch,
)
"""Errors of PostgreSQL that come from the values and columns of a table. Others are about the session or the catalog,
which all tables share."""


@contextmanager
def work_for(
    table: MirroredTable | TableName | str, *, masked: bool = False, remedy: str | None = None
) -> Iterator[None]:
    """Turns an error of the block that no code expects into a TableError of `table`, with a remedy; the log gets the
    traceback.

    Errors that say who has to act stay as they are: those of the table, and those of the session (a lost connection,
    storage that is away, another leader, no memory). So do KeyboardInterrupt and SystemExit. `masked`: values of the
    table must not be told, as of a MirroredTable with masks. `remedy`: None for that of a table whose mirroring ends.
    """
    try:
        yield
    except Exception as error:
        if not is_of_one_table(error):
            raise
        raise unexpected(table, error, masked=masked, remedy=remedy) from error


def is_of_one_table(error: BaseException) -> bool:
    """Whether an error that was raised during the work for one table may be that table's alone."""
    if isinstance(error, TaskRaised):
        return True
    if type(error) is SourceError and isinstance(error.__cause__, psycopg.Error):
        error = error.__cause__
    if isinstance(error, psycopg.Error):
        return isinstance(error, _OF_DATA)
    if isinstance(error, RuntimeError) and error.args and str(error.args[0]).startswith(_NO_THREAD):
        return False
    # Java has ended, or does not answer. py4j is imported where Spark is used.
    if type(error).__module__.startswith("py4j."):
        return False
    return isinstance(error, Exception) and not isinstance(error, _NOT_OF_A_TABLE)


def unexpected(
    table: MirroredTable | TableName | str, error: BaseException, *, masked: bool = False, remedy: str | None = None
) -> TableError:
    """The error of a table at which code failed in a way that none expects, which is logged here. `masked` and
    `remedy`: as of `work_for`."""
    masked |= isinstance(table, MirroredTable) and bool(table.masked_columns)
    name = str(table.name if isinstance(table, MirroredTable) else table)
    trace = "".join(traceback.format_tb(error.__traceback__))
    text = _text(error, masked=masked)
    get_logger("table").error("unexpected error while working for a table", table=name, error=text, traceback=trace)
    if remedy is None:
        tier = table.tier if isinstance(table, MirroredTable) else None
        remedy = _remedy(name, only_copy=tier is not None and tier.moved)
    return TableError(f"{name}: an unexpected error: {text}", remedy)


def _remedy(name: str, *, only_copy: bool) -> str:
    """What to do about a table whose mirroring ends. `only_copy`: rows have left its heap."""
    if only_copy:
        return f"{REPORT}. Do not drop its lake table: it alone has the rows that left the heap"
    return (
        f"`mirror-pump unregister {shlex.quote(name)}` and `mirror-pump register {shlex.quote(name)}`, with the options"
        f" that it had, copy it again. If that fails too, {REPORT}"
    )


def _text(error: BaseException, *, masked: bool) -> str:
    """What is said of an error. Its text may have values, which a mask hides."""
    text = "" if masked else one_line_of(error)[:_LONGEST_TEXT]
    return type(error).__name__ + (f": {text}" if text else "")
