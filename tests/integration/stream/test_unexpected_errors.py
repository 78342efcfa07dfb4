"""Whatever code raises while it works for one table fails that table, with a remedy that works; the others go on. A
thread that ends by an unexpected error is an alert, and works again."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import pytest

from mirror_pump.engine.ingest import chunk_copy, segment_tasks
from mirror_pump.errors import TableError
from mirror_pump.ops.register import checked_tables, table_follower
from mirror_pump.ops.register.table_follower import TableFollower
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import Alert, Severity
from mirror_pump.ops.verify import verification
from mirror_pump.pipeline.copy import copier, difference_copier
from mirror_pump.pipeline.key_index.whole_rows import WholeRowDeletes
from mirror_pump.pipeline.operations import change_columns
from mirror_pump.pipeline.publish.staging import Stager
from mirror_pump.pipeline.schema import schema_watcher
from mirror_pump.pipeline.session import services
from mirror_pump.pipeline.stream import assembler, receiver
from mirror_pump.pipeline.stream.batch_planning import BatchPlanner
from mirror_pump.pipeline.stream.toast_completion import Completer
from mirror_pump.pipeline.upkeep.jobs import MergeJob
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand


class PlantedError(Exception):
    """No code knows of it."""


class Faults:
    """Raises PlantedError where code works for a table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.active = False

    def plant(self, owner: object, name: str, concerns: Callable[..., bool]) -> None:
        """In a function or method, for arguments for which `concerns` is true."""
        function = getattr(owner, name)

        @wraps(function)
        def raising(*arguments: Any, **options: Any) -> Any:
            if self.active and concerns(*arguments, **options):
                raise PlantedError(f"planted in {name}")
            return function(*arguments, **options)

        self._monkeypatch.setattr(owner, name, raising)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@dataclass(frozen=True)
class FaultPlace:
    """Where code works for one table, which bears the place's name."""

    owner: object
    function: str
    subjects: Callable[..., str | Collection[str]]
    """The name of the table that the function's arguments are about, or the OIDs of all."""
    trigger: tuple[str, ...] = ("INSERT INTO {} (id) SELECT max(id) + 1 FROM {}",)
    """Statements that lead there, of a table that is live."""
    set_up: tuple[str, ...] = ()
    """Statements about the table before it is registered."""
    rounds: int = 1
    """How often the trigger is needed, each time in a publish of its own."""


def _named(place: int) -> Callable[..., str]:
    """The name of the table that is the argument at this place."""
    return lambda *arguments, **_: str(arguments[place].name.name)


def _in_location(rows: object, schema: object, location: str, *_: object) -> str:
    """The name in a lake table's location."""
    return location.rpartition("/")[2].partition("-")[0]


def _shapes(data: object, lengths: object, shapes: Mapping[int, object], *_: object) -> Collection[str]:
    """The OIDs of the tables that are decoded together."""
    return list(map(str, shapes))


_ALTER = ("ALTER TABLE {} ADD COLUMN more int", "INSERT INTO {} (id) VALUES (1000)")
PLACES = {
    "decoded": FaultPlace(segment_tasks, "decode_segment", _shapes),
    "written": FaultPlace(segment_tasks, "write_data_files", _in_location),
    "described": FaultPlace(receiver, "segment_table", _named(0)),
    "received": FaultPlace(assembler, "difference_from", _named(0), _ALTER),
    "decided": FaultPlace(services, "decide_from_note", _named(1), _ALTER),
    "planned": FaultPlace(BatchPlanner, "_table_request", lambda _, decoded, *_more: decoded.table.name.name),
    "looked_up": FaultPlace(Completer, "complete", _named(1), ("UPDATE {} SET v = 'other' WHERE id = 1",)),
    "staged": FaultPlace(Stager, "_stage", lambda _, request, *_more: request.table.name.name),
    "recorded": FaultPlace(change_columns, "store_change", lambda _, change, *_more: change.table.name.name, _ALTER),
    "whole_rows": FaultPlace(
        WholeRowDeletes,
        "encode",
        _named(1),
        ("DELETE FROM {} WHERE id = 1",),
        ("ALTER TABLE {} DROP CONSTRAINT {}_pkey, REPLICA IDENTITY FULL",),
    ),
    "merged": FaultPlace(MergeJob, "compute", _named(1), rounds=8),
}
"""By the name of the table that fails there."""
COPIES = {
    "chunk": FaultPlace(chunk_copy, "write_chunk", lambda task, *_: task.table.name.name),
    "chunks": FaultPlace(copier, "planned_chunks", _named(1)),
    "compared": FaultPlace(difference_copier, "is_same_copy", _named(0)),
}
"""... while it is copied."""


def _concerns(place: FaultPlace, table: set[str], *arguments: object, **options: object) -> bool:
    subjects = place.subjects(*arguments, **options)
    return not table.isdisjoint([subjects] if isinstance(subjects, str) else subjects)


def _create(database: Database, name: str, *set_up: str) -> None:
    database.execute(
        f"CREATE TABLE {name} (id int PRIMARY KEY, v text, big text STORAGE EXTERNAL)",
        f"INSERT INTO {name} SELECT g, 'v', repeat('x', 3000) FROM generate_series(1, 5) g",
        *(statement.format(name, name) for statement in set_up),
    )


def _await_states(mirror: Mirror, names: Sequence[str], state: str) -> None:
    """Returns once all tables are in this state. Names the others if that does not happen."""
    others: list[str] = []

    def in_state() -> bool:
        others[:] = [f"{name} is {mirror.state(name)}" for name in names if mirror.state(name) != state]
        return not others

    try:
        await_true(in_state, 30, state)
    except AssertionError as error:
        raise AssertionError(f"{error}: {others}") from None


def _alerts(mirror: Mirror) -> list[Alert]:
    with StatusReader(mirror.settings) as reader:
        return list(reader.read().alerts)


def test_an_unexpected_error_fails_the_table_for_which_code_worked(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, faults: Faults, run: RunCommand
) -> None:
    mirror = Mirror.create(database, warehouse, tasks)
    for name in ("good", *PLACES, *COPIES):
        _create(database, name, *(PLACES[name].set_up if name in PLACES else ()))
    names = [f"public.{name}" for name in (*PLACES, *COPIES)]
    for name, place in (PLACES | COPIES).items():
        oid = str(database.rows(f"SELECT '{name}'::regclass::oid")[0][0])
        faults.plant(place.owner, place.function, partial(_concerns, place, {name, oid}))
    with mirror.pumping():
        mirror.register("good", "compared", *PLACES)
        mirror.await_live("public.good", "public.compared", *(f"public.{name}" for name in PLACES))
        pause(mirror.settings, "compared")
        faults.active = True
        # The pump may have failed them before this looks.
        with suppress(TableError):
            mirror.register("chunk", "chunks")
        resume(mirror.settings, "compared")
        for round_number in range(max(place.rounds for place in PLACES.values())):
            for name, place in PLACES.items():
                if round_number < place.rounds:
                    database.execute(*(statement.format(name, name) for statement in place.trigger))
            database.execute("INSERT INTO good SELECT max(id) + 1 FROM good")
            mirror.await_frontier()
        _await_states(mirror, names, "failed")
        mirror.assert_equal("public.good")
        for name in names:
            error = mirror.error(name)
            assert f"{name}: an unexpected error: PlantedError: planted in " in error
            assert f"`mirror-pump unregister {name}` and `mirror-pump register {name}`" in error
        checked = run("status", "--check", "--slot", mirror.settings.slot)
        assert checked.exit_code == 1
        assert [name for name in names if name not in checked.output] == []

        faults.active = False
        for name in names:
            mirror.unregister(name)
        mirror.register(*names)
        _await_states(mirror, names, "live")
        mirror.await_frontier()
        mirror.assert_equal("public.good", *names)
        assert run("status", "--check", "--slot", mirror.settings.slot).exit_code == 0
    mirror.assert_sound()


def test_a_table_that_code_cannot_register_or_compare_is_told_and_others_go_on(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, faults: Faults, run: RunCommand
) -> None:
    mirror = Mirror.create(database, warehouse, tasks)
    faults.plant(checked_tables, "refuse_fixed_rows", lambda relation: relation.name.name == "bad")
    for name in ("bad", "good"):
        _create(database, name)
    slot = ("--slot", mirror.settings.slot)
    faults.active = True
    with mirror.pumping():
        refused = run("register", "bad", "good", *slot)
        assert refused.exit_code == 1
        assert "bad: an unexpected error: PlantedError: planted in refuse_fixed_rows" in refused.stderr
        assert mirror.state("public.good") == "live"
        faults.active = False
        mirror.register("bad")
        mirror.await_live("public.bad")
        faults.plant(verification, "refuse_missing", lambda _, table, *_more: table.name.name == "bad")
        faults.active = True
        verified = run("verify", "--json", *slot)
        assert verified.exit_code == 1
        problems = {table["table"]: table["problem"] for table in json.loads(verified.stdout)["tables"]}
        assert "PlantedError: planted in refuse_missing" in problems["public.bad"]
        assert problems["public.good"] is None


def test_a_thread_that_ends_is_an_alert_and_works_again(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, faults: Faults, run: RunCommand
) -> None:
    mirror = Mirror.create(database, warehouse, tasks)
    slot = ("--slot", mirror.settings.slot)
    _create(database, "good")
    assert run("register", "public.*", "--follow-new", "--no-wait", *slot).exit_code == 0
    # One of the threads leads alone, and one belongs to a session.
    faults.plant(table_follower, "new_tables", lambda *_: True)
    faults.plant(schema_watcher, "waiting_tables", lambda *_: True)
    faults.active = True

    def threads() -> set[str]:
        return {
            name for name in ("follow", "watcher") for alert in _alerts(mirror) if f"thread {name} " in alert.message
        }

    with mirror.pumping() as pump, TableFollower(mirror.settings, pump.steps) as follower:
        mirror.await_live("public.good")
        database.execute("INSERT INTO good SELECT max(id) + 1 FROM good")
        mirror.await_frontier()
        mirror.assert_equal("public.good")
        await_true(lambda: threads() == {"follow", "watcher"}, 30, "alerts")
        alert = next(alert for alert in _alerts(mirror) if "thread follow " in alert.message)
        assert alert.severity is Severity.CRITICAL
        assert "PlantedError: planted in new_tables" in alert.message
        assert run("status", "--check", *slot).exit_code == 1
        faults.active = False
        database.execute("CREATE TABLE born (id int PRIMARY KEY)")
        follower.wake()
        mirror.await_live("public.born")
        mirror.await_frontier()
        mirror.assert_equal("public.good", "public.born")
