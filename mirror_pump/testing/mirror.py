"""A mirror for tests: initialised in a database, its pump in a thread, its heap and its lake as comparable rows."""

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

from mirror_pump.config import Settings
from mirror_pump.engine.runner import TaskRunner
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.register.unregistration import unregister
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.ops.status.wait_for_frontier import wait_for
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.session.pump import Pump, PumpResult
from mirror_pump.source.relations.column_choices import NO_CHOICES, ColumnChoices
from mirror_pump.source.retention.retention_plan import RetentionWish
from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.lake import metadata_location, read_duckdb

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row: TypeAlias = tuple[Any, ...]

_POLL = 0.02
"""Seconds between two looks at a condition that is waited for."""

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
    """Returns once the condition holds; AssertionError with `what` after so many seconds."""
    deadline = time.monotonic() + seconds
    with keeping_connections():
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
            time.sleep(_POLL)


def audit(database: Database) -> None:
    """Makes an initialised database keep a record of every move of F and of every chunk that was published."""
    with database.connect() as connection:
        connection.execute(_AUDIT)


@dataclass
class Steps:
    """An observer that keeps what it saw; `on` is called with each step, in the thread that took it."""

    on: Callable[[Step, dict[str, object]], None] | None = None
    seen: list[tuple[Step, dict[str, object]]] = field(default_factory=list)

    def __call__(self, step: Step, /, **details: object) -> None:
        self.seen.append((step, details))
        if self.on is not None:
            self.on(step, details)

    def count(self, step: Step) -> int:
        """How often the step was taken."""
        return sum(one is step for one, _ in list(self.seen))

    def details(self, step: Step, name: str) -> list[Any]:
        """What `name` was each time the step was taken."""
        return [details[name] for one, details in list(self.seen) if one is step]


@dataclass
class RunningPump:
    """A pump in a thread."""

    pump: Pump
    steps: Steps
    thread: threading.Thread
    result: PumpResult | None = None
    error: BaseException | None = None

    def join(self, seconds: float = 60) -> PumpResult:
        """What the pump returned; raises what it raised, and AssertionError when it does not end in time."""
        self.thread.join(seconds)
        last = self.steps.seen[-5:]
        assert not self.thread.is_alive(), f"the pump did not end within {seconds:g} s; last steps: {last}"
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def stop(self, seconds: float = 20) -> PumpResult:
        """Asks the pump to stop and waits for it."""
        self.pump.request_stop()
        return self.join(seconds)


@dataclass(frozen=True)
class Mirror:
    """An initialised mirror of one database. `settings` are those of every pump that names no others."""

    database: Database
    settings: Settings
    runner: TaskRunner

    @classmethod
    def create(
        cls, database: Database, warehouse: str, runner: TaskRunner, *, dsn: str | None = None, **options: Any
    ) -> Mirror:
        """Initialises the mirror, with small batches unless `options` (fields of Settings) say otherwise. `dsn` is
        where the pump finds the database, if not where the test does."""
        chosen = {
            "slot": f"s_{os.urandom(4).hex()}",
            "batch_age": 0.05,
            "storage_fsync": False,
            "retention_interval": 0.2,
            **options,
        }
        settings = Settings(dsn=dsn or database.dsn, warehouse=warehouse, publication=chosen["slot"], **chosen)
        initialise(settings, lambda _: None)
        audit(database)
        return cls(database, settings, runner)

    def with_options(self, **options: Any) -> Mirror:
        """The same mirror, for pumps with other settings."""
        return Mirror(self.database, self.settings.model_copy(update=options), self.runner)

    def start(self, steps: Steps | None = None, **run: Any) -> RunningPump:
        """Starts a pump; `run` are the arguments of Pump.run. The caller stops it."""
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
        """A pump for the time of the block; an error of the pump's is raised at its end, unless the block failed."""
        running = self.start(steps, **run)
        try:
            yield running
        except BaseException as error:
            running.pump.request_stop()
            running.thread.join(20)
            if running.error is not None:
                raise running.error from error
            raise
        running.stop()

    def catch_up(self, steps: Steps | None = None) -> PumpResult:
        """A pump that runs until all that is committed now is published and every copy is complete."""
        return self.start(steps, once=True).join(120)

    def register(
        self, *tables: str, choices: ColumnChoices = NO_CHOICES, retention: RetentionWish | None = None
    ) -> None:
        """Registers tables without waiting for their copies; raises the first refusal."""
        outcomes = register(
            self.settings, tables, wait=False, on_progress=lambda _: None, choices=choices, retention=retention
        )
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error

    def unregister(self, table: str, drop_lake: bool = False, keep_lake: bool = False) -> None:
        """Takes a table out of the mirror."""
        unregister(self.settings, table, drop_lake, keep_lake)

    def await_live(self, *tables: str, seconds: float = 90) -> None:
        """Returns once a pump has made the tables live."""
        await_true(lambda: all(self.state(table) == "live" for table in tables), seconds, f"{tables} live")

    def await_frontier(self, target: int | None = None, seconds: float = 60) -> Lsn:
        """Returns F once it has passed `target`, or what is the end of WAL now."""
        target = self.database.lsn() if target is None else target
        result = wait_for(self.settings, Lsn(target), seconds)
        if result.error is not None:
            raise result.error
        return result.frontier

    def frontier(self) -> int:
        """F: what is applied from the slot."""
        rows = self.database.rows(
            "SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %s", (self.settings.slot,)
        )
        return int(rows[0][0])

    def acknowledged(self) -> int:
        """What the slot holds as confirmed."""
        rows = self.database.rows(
            "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s",
            (self.settings.slot,),
        )
        return int(rows[0][0])

    def state(self, table: str) -> str:
        """A registered table's state; empty when it is not registered."""
        return self._mirror_table(table)[0]

    def error(self, table: str) -> str:
        """Why a table was set aside."""
        return self._mirror_table(table)[1]

    def location(self, table: str) -> str:
        """The metadata file that the catalog names for `schema.name`."""
        return metadata_location(self.database.dsn, table)

    def heap(self, table: str) -> list[Row]:
        """Every row of the Postgres table, normalised and sorted."""
        with self.database.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return normalised(connection.execute(f"SELECT * FROM {table}".encode()).fetchall())

    def lake(self, table: str) -> list[Row]:
        """Every row of the Iceberg table as DuckDB reads it, normalised and sorted."""
        return lake_rows(self.location(table))

    def assert_equal(self, *tables: str) -> None:
        """Fails unless heap and lake hold the same rows, each once. Nobody may write meanwhile."""
        for table in tables:
            assert_same(self.heap(table), self.lake(table), f"{table} at F = {format_lsn(self.frontier())}")

    def assert_sound(self) -> None:
        """Fails if F ever moved back, if a chunk was published twice, or if the slot is acknowledged beyond F."""
        back = self.database.rows("SELECT former, present FROM audit.frontiers WHERE present < former ORDER BY seen")
        assert not back, f"F moved back: {back}"
        twice = self.database.rows("SELECT * FROM audit.chunks GROUP BY 1, 2, 3, 4 HAVING count(*) > 1")
        assert not twice, f"chunks (table, L0, generation, number) published twice: {twice}"
        acknowledged, frontier = self.acknowledged(), self.frontier()
        assert acknowledged <= frontier, f"the slot is at {format_lsn(acknowledged)}, beyond F = {format_lsn(frontier)}"

    def _mirror_table(self, table: str) -> tuple[str, str]:
        rows = self.database.rows(
            "SELECT m.state, coalesce(m.error, '') FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)"
            " WHERE %s IN (t.schema_name || '.' || t.table_name,"
            " quote_ident(t.schema_name) || '.' || quote_ident(t.table_name))",
            (table,),
        )
        return (rows[0][0], rows[0][1]) if rows else ("", "")


def lake_rows(location: str, duckdb: DuckDBPyConnection | None = None) -> list[Row]:
    """Every row of the Iceberg table with this metadata file as DuckDB reads it, normalised and sorted.

    `duckdb` is a connection to use; without one, each call loads DuckDB's extensions anew.
    """
    if duckdb is None:
        table = read_duckdb(location)
    else:
        table = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
    return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def normalised(rows: Sequence[Row]) -> list[Row]:
    """Rows in an order of their own, with values that compare equal however a driver presents them."""
    return sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)


def assert_same(heap: Sequence[Row], lake: Sequence[Row], what: str) -> None:
    """Fails with the first differences unless both hold the same rows, each as often."""
    wanted, found = Counter(map(repr, heap)), Counter(map(repr, lake))
    if wanted == found:
        return
    missing, extra = wanted - found, found - wanted
    shown = "".join(
        f"\n  {kind}: {row[:300]}" for kind, rows in (("missing", missing), ("extra", extra)) for row in list(rows)[:5]
    )
    raise AssertionError(
        f"{what}: heap has {len(heap)} rows, lake {len(lake)}; {missing.total()} missing, {extra.total()} extra{shown}"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, memoryview):
        return bytes(value)
    return str(value) if isinstance(value, uuid.UUID) else value
