"""Which errors are of one table, and what is said of them."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

import psycopg
import pytest
from psycopg import errors as pg_errors

from mirror_pump.errors import (
    ConnectionLost,
    ExpectedOutcome,
    LakeError,
    NotLeader,
    SourceError,
    TableError,
    TaskFailed,
    TaskRaised,
)
from mirror_pump.runtime.table_work import work_for


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLost("the server is gone"),
        NotLeader("another pump leads"),
        LakeError("the storage is away"),
        TaskFailed("the worker is gone"),
        SourceError("an operator has to act"),
        TableError("its owner has to act"),
        ExpectedOutcome(),
        MemoryError(),
        OSError("no file descriptor"),
        RuntimeError("can't start new thread"),
        RuntimeError("cannot schedule new futures after shutdown"),
        BrokenProcessPool("a process of the pool ended"),
        ModuleNotFoundError("another version of the program was installed meanwhile"),
        EOFError(),
        pg_errors.FeatureNotSupported("cached plan must not change result type"),
        psycopg.OperationalError("the server is gone"),
        pg_errors.InsufficientPrivilege("permission denied"),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_say_who_has_to_act_stay_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, work_for("public.t"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a value"),
        IndexError(),
        AssertionError(),
        RuntimeError("a value"),
        RecursionError(),
        TaskRaised("merge_files failed: ValueError"),
        pg_errors.NumericValueOutOfRange("a value"),
        pg_errors.UndefinedColumn("no such column"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_no_code_expects_is_of_the_table(error: Exception) -> None:
    with pytest.raises(TableError, match=r"^public\.it's: an unexpected error: ") as raised, work_for("public.it's"):
        raise error
    assert type(error).__name__ in str(raised.value)
    assert "`mirror-pump unregister 'public.it'\"'\"'s'`" in raised.value.remedy


def test_an_error_of_postgres_that_another_one_tells_is_of_the_table() -> None:
    told = SourceError("Postgres refused")
    told.__cause__ = pg_errors.NumericValueOutOfRange("a value")
    with pytest.raises(TableError, match="SourceError: Postgres refused"), work_for("public.t"):
        raise told


def test_a_value_that_a_mask_hides_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TableError) as raised, work_for("public.t", masked=True):
        raise ValueError("secret")
    assert str(raised.value) == "public.t: an unexpected error: ValueError"
    logged = capsys.readouterr().err
    assert "unexpected error while working for a table" in logged
    assert "test_table_work.py" in logged, "the traceback"
    # The line of code that raised it is in the traceback.
    assert logged.count("secret") == logged.count('raise ValueError(\\"secret\\")')
