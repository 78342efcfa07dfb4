"""`mirror-pump where`: which states have a row, and what ends each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.model import FeedMode
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.where.reaching_states import StateKind
from mirror_pump.ops.where.whereabouts import where as look_for
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.local_files import path_of
from tests.support.maintenance import NO_UPKEEP
from tests.support.readers import role_of

Where = Callable[..., dict[str, Any]]


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, email text NOT NULL, born date)",
        "ALTER TABLE customers REPLICA IDENTITY FULL",
        "INSERT INTO customers SELECT g, 'c' || g || '@example.com', date '1980-01-01' + g FROM generate_series(1, 9) g"
        " ORDER BY g",
    )
    return Mirror.create(database, warehouse, tasks, **NO_UPKEEP)


@pytest.fixture
def where(mirror: Mirror, run: RunCommand) -> Where:
    """Runs the command. The document that it prints."""

    def look(*arguments: str, code: int = 0) -> dict[str, Any]:
        result = run("where", *arguments, "--json", "--slot", mirror.settings.slot)
        assert result.exit_code == code, result.output
        return dict(json.loads(result.stdout or "{}"))

    return look


def _kinds(document: dict[str, Any]) -> dict[str, tuple[str | None, int | None]]:
    """Without former snapshots: how many there are depends on when the pump has published."""
    return {
        state["kind"]: (state["name"], state["files"]) for state in document["states"] if state["kind"] != "history"
    }


def test_each_state_is_named(mirror: Mirror, where: Where, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment, the feed's old row, former snapshots, and files that nothing refers to all outlive a DELETE."""
    mirror.register("customers", feed=FeedOptions(FeedMode.ROWS))
    mirror.catch_up()
    keep(mirror.settings, MomentOptions("closing"))
    mirror.database.execute("INSERT INTO customers VALUES (100, 'later@example.com', NULL)")
    mirror.catch_up()
    before = where("customers", "7")
    assert (before["values"], before["heap_read"], before["unread"]) == ({"id": "7"}, True, [])
    assert _kinds(before) == {
        "heap": (None, None),
        "moment": ("closing", 1),
        "current": (None, 1),
    }
    assert before["files_left_out"] == 1, "the file with 100"

    mirror.database.execute("DELETE FROM customers WHERE id = 7")
    mirror.catch_up()
    copied = Path(path_of(before["files"][0]["location"]))
    shutil.copy(copied, copied.with_name("lost.parquet"))
    after = where("customers", "7")
    feed = "public.customers__changes"
    # Its key is in a file of equality deletes besides.
    assert _kinds(after) == {
        "moment": ("closing", 1),
        "current": (None, 2),
        "feed": (feed, 1),
        "unreferenced": (None, 1),
    }
    assert "history" in [state["kind"] for state in after["states"]]
    (orphan,) = [state for state in after["states"] if state["kind"] == "unreferenced"]
    assert (orphan["ends_by"], orphan["ends_at"] is not None) == ("orphan_grace_hours = 24", True)
    # Of the old row the feed has all columns, the delete file none but the key.
    by_mail = where("customers", "c7@example.com", "1980-01-08", "--column", "email", "--column", "born")
    assert _kinds(by_mail) == _kinds(after) | {"current": (None, 1)}
    said = run("where", "customers", "7", "--slot", mirror.settings.slot).stdout
    assert "moment closing: 1 files, no time ends it (it is kept): mirror-pump moment drop closing\n" in said

    with role_of(mirror.database) as reader, monkeypatch.context() as as_reader:
        assert run("reader", reader.name).exit_code == 0
        as_reader.setenv("MIRROR_PUMP_DSN", reader.dsn)
        by_reader = where("customers", "7")
        assert (by_reader["heap_read"], _kinds(by_reader)) == (False, _kinds(after))

    nowhere = where("customers", "12")
    assert (nowhere["states"], nowhere["files"]) == ([], [])
    assert "nowhere" in run("where", "customers", "12", "--slot", mirror.settings.slot).stdout

    copied.write_bytes(copied.read_bytes()[:-9])
    damaged = where("customers", "7", code=1)
    assert [unread["location"] for unread in damaged["unread"]] == [copied.as_uri()]


def test_what_a_registration_left_is_named(mirror: Mirror, where: Where) -> None:
    """Whether the table is registered again, is not, or is gone from PostgreSQL."""
    mirror.register("customers")
    mirror.catch_up()
    former = mirror.location("public.customers")
    mirror.unregister("customers")
    assert set(_kinds(where("customers", "7"))) == {"heap", "former"}
    mirror.register("customers")
    mirror.catch_up()
    again = where("customers", "7")
    assert set(_kinds(again)) == {"heap", "current", "former"}
    (state,) = [state for state in again["states"] if state["kind"] == "former"]
    assert former.startswith(state["name"])
    assert state["command"] == "mirror-pump unregister --former public.customers"
    mirror.unregister("customers")
    mirror.database.execute("DROP TABLE customers")
    assert set(_kinds(where("public.customers", "7"))) == {"former"}
    where("public.nothing", "7", code=2)


_TYPES = {
    "smallint": ("7", "8"),
    "bigint": (" 7 ", "8"),
    "numeric(6,2)": ("1.5", "1.6"),
    "numeric": ("NaN", "1.6"),
    "boolean": ("yes", "no"),
    "real": ("0.1", "0.2"),
    "float8": ("NaN", "0.1"),
    "text": ("ä'\\", "b"),
    "varchar(3)": ("abc", "abd"),
    "char(5)": ("ab", "abc"),
    "bytea": ("\\x00ff", "\\x00"),
    "date": ("8 Jan 1980", "1980-01-09"),
    "timestamp": ("1980-01-08 10:00", "1980-01-08 10:01"),
    "timestamptz": ("1980-01-08 10:00+02", "1980-01-08 10:00"),
    "time": ("10:00", "10:01"),
    "interval": ("60 minutes", "2 hours"),
    "uuid": ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12"),
    "inet": ("10.0.0.1", "10.0.0.2"),
    "mood": ("glad", "sad"),
}
"""By type, a value that a row has, as a user may write it, and one that none has."""


def test_values_of_every_type_are_what_postgresql_makes_of_them(mirror: Mirror, where: Where) -> None:
    """Without a key, too. What PostgreSQL would round or cut off to fit is refused, and so is what does not compare."""
    columns = ", ".join(f'"c{number}" {kind}' for number, kind in enumerate(_TYPES))
    mirror.database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')", f"CREATE TABLE kinds ({columns}, list int[])")
    values = [value for value, _ in _TYPES.values()]
    with mirror.database.session() as connection:
        connection.execute(f"INSERT INTO kinds VALUES ({', '.join(['%s'] * len(values))})".encode(), values)
    mirror.database.execute("ALTER TABLE kinds REPLICA IDENTITY FULL")
    mirror.register("kinds")
    mirror.catch_up()

    def kinds_of(value: str, column: str) -> set[str]:
        return {state.kind for state in look_for(mirror.settings, "kinds", [value], [column]).states}

    for number, (kind, (value, other)) in enumerate(_TYPES.items()):
        assert kinds_of(value, f"c{number}") - {StateKind.HISTORY} == {StateKind.HEAP, StateKind.CURRENT}, kind
        assert not kinds_of(other, f"c{number}"), kind
    where("kinds", "7", code=2)
    where("kinds", "7", "--column", "list", code=2)
    where("kinds", "7", "--column", "c99", code=2)
    for column, value in (("c2", "1.501"), ("c8", "abcd"), ("c0", "seven"), ("c9", "toolong")):
        where("kinds", value, "--column", column, code=2)
