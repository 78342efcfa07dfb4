"""A mirror for tests: initialised in a database, with a pump in a thread, and heap and lake as comparable rows."""

from __future__ import annotations

import datetime
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ByteSize

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.register.unregistration import unregister
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.ops.status.wait_for_frontier import wait_on
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.session.pump import Pump, PumpResult
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.lake import metadata_location_on, read_duckdb
from sql.mirror_names import SCHEMA, marked

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row: TypeAlias = tuple[Any, ...]

_POLL = 0.02
"""Seconds between checks of a condition, at least."""
_POLL_MAX = 0.5
_PATIENCE = 60.0
"""Seconds that waits for a condition have at least. One that comes to hold ends its wait, so that only failures take so
long, and a busy machine makes none."""
_CHECKING = 0.2
"""Share of the time that goes into checks: they must not take the CPU from what they wait for."""

QUICK = InternalLimits(batch_pause=0.02, upkeep_interval=0.1, retry_pause_max=0.25, batch_memory=ByteSize(512))
"""Tests wait for what users' pumps may take a second for, and small batches of theirs are like large ones of users."""


def paced(seconds: float) -> InternalLimits:
    """QUICK, with another shortest time from the end of one batch to the end of the next."""
    return QUICK.model_copy(update={"batch_pause": seconds})


FORMAT_VERSION = int(os.environ.get("MIRROR_PUMP_TEST_FORMAT_VERSION", "0")) or None
"""Iceberg's format version of mirrored tables in a run of tests, unless they choose one; None: that of the program."""

_AUDIT = """
CREATE SCHEMA audit;
CREATE TABLE audit.frontiers (seen bigserial, former bigint, present bigint);
CREATE TABLE audit.chunks (table_id bigint, start_lsn bigint, generation int, chunk_no int);
CREATE FUNCTION audit.frontier() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.frontiers (former, present) VALUES (OLD.applied_lsn, NEW.applied_lsn); RETURN NULL; END $$;
CREATE FUNCTION audit.chunk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.chunks SELECT NEW.table_id, m.start_lsn, NEW.generation, NEW.chunk_no
    FROM modak.mirror_tables m WHERE m.table_id = NEW.table_id; RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON modak.mirror_slots FOR EACH ROW
  WHEN (OLD.applied_lsn <> NEW.applied_lsn) EXECUTE FUNCTION audit.frontier();
CREATE TRIGGER audit AFTER UPDATE ON modak.copy_chunks FOR EACH ROW
  WHEN (NEW.done_at IS NOT NULL) EXECUTE FUNCTION audit.chunk();
"""


def await_true(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Returns once the condition holds. Raises AssertionError with `what` after this many seconds, and _PATIENCE."""
    seconds = max(seconds, _PATIENCE)
    deadline = time.monotonic() + seconds
    with keeping_connections():
        while True:
            began = time.monotonic()
            if condition():
                return
            now = time.monotonic()
            assert now < deadline, f"not within {seconds:g} s: {what}"
            time.sleep(min(max(_POLL, (now - began) * (1 / _CHECKING - 1)), _POLL_MAX))


def audit(database: Database) -> None:
    """Makes an initialised database record every move of the frontier and every published chunk."""
    with database.session() as connection:
        connection.execute(marked(_AUDIT))


@dataclass
class Steps:
    """An observer that records all steps. Calls `on` with each step, in the thread of the step."""

    on: Callable[[Step, dict[str, object]], None] | None = None
    occurrences: list[tuple[Step, dict[str, object]]] = field(default_factory=list)

    def __call__(self, step: Step, /, **details: object) -> None:
        self.occurrences.append((step, details))
        if self.on is not None:
            self.on(step, details)

    def count(self, step: Step) -> int:
        """Number of times that the step occurred."""
        return sum(past_step is step for past_step, _ in list(self.occurrences))

    def details(self, step: Step, name: str) -> list[Any]:
        """Value of the detail `name` at each occurrence of the step."""
        return [details[name] for past_step, details in list(self.occurrences) if past_step is step]


@dataclass
class RunningPump:
    """A pump that runs in a thread."""

    pump: Pump
    steps: Steps
    thread: threading.Thread
    result: PumpResult | None = None
    error: BaseException | None = None

    def join(self, seconds: float = 60) -> PumpResult:
        """Returns the pump's result or raises its error. Raises AssertionError if it does not end in time."""
        self.thread.join(seconds)
        last = self.steps.occurrences[-5:]
        assert not self.thread.is_alive(), f"the pump did not end within {seconds:g} s; last steps: {last}"
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def stop(self, seconds: float = _PATIENCE) -> PumpResult:
        """Requests a stop and waits for the pump to end."""
        self.pump.request_stop()
        return self.join(seconds)


@dataclass(frozen=True)
class Mirror:
    """An initialised mirror of one database. Its pumps use `settings`."""

    database: Database
    settings: Settings
    runner: TaskRunner

    @classmethod
    def create(
        cls, database: Database, warehouse: str, runner: TaskRunner, *, dsn: str | None = None, **options: Any
    ) -> Mirror:
        """Initialises the mirror, with small batches unless `options` (fields of Settings) differ. `dsn` is used by the
        pump if it has to reach the database in another way than the test."""
        chosen = {
            "slot": f"s_{os.urandom(4).hex()}",
            "mirror": database.mirror,
            "storage_fsync": False,
            "retention_interval": 0.2,
            "limits": QUICK,
            **options,
        }
        settings = Settings(dsn=dsn or database.dsn, warehouse=warehouse, publication=chosen["slot"], **chosen)
        initialise(settings, lambda _: None, format_version=FORMAT_VERSION)
        if database.mirror is None:
            audit(database)
        return cls(database, settings, runner)

    def with_options(self, **options: Any) -> Mirror:
        """The same mirror with other settings for its pumps."""
        return Mirror(self.database, self.settings.model_copy(update=options), self.runner)

    def start(self, steps: Steps | None = None, **run: Any) -> RunningPump:
        """Starts a pump with `run` as the arguments of Pump.run. The caller stops it."""
        observer = steps or Steps()
        pump = Pump(self.settings, observer=observer, runner=self.runner)

        def work() -> None:
            try:
                running.result = pump.run(**run)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the pump
                running.error = error

        running = RunningPump(pump, observer, threading.Thread(target=work, name="pump", daemon=True))
        running.thread.start()
        return running

    @contextmanager
    def pumping(self, steps: Steps | None = None, **run: Any) -> Iterator[RunningPump]:
        """Runs a pump during the block. An error of the pump is raised at the end, unless the block itself fails."""
        running = self.start(steps, **run)
        try:
            yield running
        except BaseException as error:
            running.pump.request_stop()
            running.thread.join(_PATIENCE)
            if running.error is not None:
                raise running.error from error
            raise
        running.stop()

    def catch_up(self, steps: Steps | None = None) -> PumpResult:
        """Runs a pump until everything committed so far is published and all copies are complete."""
        return self.start(steps, once=True).join(120)

    def register(self, *tables: str, **wish: Any) -> None:
        """Registers tables without waiting for their copies. `wish`: fields of TableOptions. Raises the first
        refusal."""
        chosen = TableOptions(**wish)
        for outcome in register(self.settings, tables, wait=False, on_progress=lambda _: None, wish=chosen):
            if outcome.error is not None:
                raise outcome.error

    def unregister(self, table: str, drop_lake: bool = False, keep_lake: bool = False, **options: Any) -> str:
        """Removes a table from the mirror. `options` as of ops.register.unregistration.unregister."""
        return unregister(self.settings, table, drop_lake, keep_lake, **options)

    def await_live(self, *tables: str, seconds: float = 90) -> None:
        """Returns once a pump has made the tables live."""
        try:
            await_true(lambda: all(self.state(table) == "live" for table in tables), seconds, f"{tables} live")
        except AssertionError as error:
            states = {table: (self.state(table), self.error(table)) for table in tables}
            raise AssertionError(f"{error}, but {states}") from error

    def await_frontier(self, target: int | None = None, seconds: float = 60) -> Lsn:
        """Returns the frontier once it has passed `target`, by default the current end of WAL."""
        target = self.database.lsn() if target is None else target
        with self.database.session() as connection:
            # As connections of the program have it, whatever the database's own setting is.
            connection.execute("SET datestyle = 'ISO'")
            result = wait_on(connection, self.settings, Lsn(target), seconds, poll=_POLL)
        if result.error is not None:
            raise result.error
        return result.frontier

    def frontier(self) -> int:
        """The frontier: the WAL position up to which changes are applied."""
        rows = self.database.rows(
            f"SELECT applied_lsn FROM {SCHEMA}.mirror_slots WHERE slot_name = %s", (self.settings.slot,)
        )
        return int(rows[0][0])

    def acknowledged(self) -> int:
        """The slot's confirmed WAL position."""
        rows = self.database.rows(
            "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s",
            (self.settings.slot,),
        )
        return int(rows[0][0])

    def state(self, table: str) -> str:
        """State of a registered table; empty if it is not registered."""
        return self._mirror_table(table)[0]

    def error(self, table: str) -> str:
        """Why a table has failed."""
        return self._mirror_table(table)[1]

    def location(self, table: str) -> str:
        """URI of the metadata file that the catalog has for `schema.name`."""
        with self.database.session() as connection:
            return metadata_location_on(connection, table)

    def heap(self, table: str) -> list[Row]:
        """All rows of the Postgres table, normalised and sorted."""
        with self.database.session() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return normalised(connection.execute(f"SELECT * FROM {table}".encode()).fetchall())

    def lake(self, table: str) -> list[Row]:
        """All rows of the Iceberg table, read by DuckDB, normalised and sorted."""
        return lake_rows(self.location(table))

    def assert_equal(self, *tables: str) -> None:
        """Fails unless heap and lake hold the same rows, each once. No session may write meanwhile."""
        for table in tables:
            where = f"{table}, {self.state(table)}, at frontier {format_lsn(self.frontier())}"
            assert_same(self.heap(table), self.lake(table), where)

    def assert_sound(self) -> None:
        """Fails if the frontier ever moved back, a chunk was published twice, or the slot is ahead of the frontier."""
        back = self.database.rows("SELECT former, present FROM audit.frontiers WHERE present < former ORDER BY seen")
        assert not back, f"the frontier moved back: {back}"
        twice = self.database.rows("SELECT * FROM audit.chunks GROUP BY 1, 2, 3, 4 HAVING count(*) > 1")
        assert not twice, f"chunks (table, start LSN, generation, number) published twice: {twice}"
        acknowledged, frontier = self.acknowledged(), self.frontier()
        ahead = f"the slot is at {format_lsn(acknowledged)}, beyond the frontier {format_lsn(frontier)}"
        assert acknowledged <= frontier, ahead

    def _mirror_table(self, table: str) -> tuple[str, str]:
        rows = self.database.rows(
            f"SELECT m.state, coalesce(m.error, '') FROM {SCHEMA}.mirror_tables m"
            f" JOIN {SCHEMA}.tables t USING (table_id)"
            " WHERE %s IN (t.schema_name || '.' || t.table_name,"
            " quote_ident(t.schema_name) || '.' || quote_ident(t.table_name))",
            (table,),
        )
        for state, error in rows:
            return state, error
        return "", ""


def lake_rows(location: str, duckdb: DuckDBPyConnection | None = None) -> list[Row]:
    """All rows of the Iceberg table with this metadata file, read by DuckDB, normalised and sorted.

    `duckdb` is a connection to use; without it, each call opens a new one.
    """
    if duckdb is None:
        table = read_duckdb(location)
    else:
        table = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
    return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def normalised(rows: Sequence[Row]) -> list[Row]:
    """Rows in a canonical order, with values that compare equal however a driver presents them."""
    return sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)


def assert_same(heap: Sequence[Row], lake: Sequence[Row], what: str) -> None:
    """Fails with the first differences unless both hold the same rows, each the same number of times."""
    heap_counts, lake_counts = Counter(map(repr, heap)), Counter(map(repr, lake))
    if heap_counts == lake_counts:
        return
    missing, extra = heap_counts - lake_counts, lake_counts - heap_counts
    sides = (("missing", missing), ("extra", extra))
    shown = "".join(f"\n  {kind}: {text[:300]}" for kind, texts in sides for text in list(texts)[:5])
    raise AssertionError(
        f"{what}: heap has {len(heap)} rows, lake {len(lake)}; {missing.total()} missing, {extra.total()} extra{shown}"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, memoryview):
        return bytes(value)
    return str(value) if isinstance(value, uuid.UUID) else value
