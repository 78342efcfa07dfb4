"""Maintains tables: once for `maintain TABLE`, or as a server that handles requests and runs due maintenance."""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.engine.spark_runtime.cluster import check_cluster, is_cluster
from mirror_pump.engine.spark_runtime.executor_watch import ExecutorWatch
from mirror_pump.engine.spark_runtime.lake_sessions import LakeSessions
from mirror_pump.engine.spark_runtime.session import SparkSettings, end_java, maven_packages, spark_session
from mirror_pump.errors import ConnectionLost, LakeError, TableError, TransientRefusal
from mirror_pump.lake.storage import local_path
from mirror_pump.model import TableId
from mirror_pump.operation_life import OperationPhase
from mirror_pump.ops.maintenance.journal import Heartbeat
from mirror_pump.ops.maintenance.maintenance_pass import Maintenance, PassResult, operation_lines
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.private_files import spark_log
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import warehouse_of
from mirror_pump.source.catalog.change_feeds import TRANSACTIONS_ID
from mirror_pump.source.catalog.maintenance import (
    TableUnregistered,
    announce_server,
    answer_to,
    file_request,
    is_served,
    read_tables,
    requested,
    withdraw_requests,
)
from mirror_pump.source.connect import PgConnection, connect, portable_dsn
from mirror_pump.source.relations.relations import resolve_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL = 0.5
"""Seconds between two checks for requests, or for the answer to one."""
_TABLE_BACKOFF = Backoff(first=60.0, longest=3600.0)
"""How long a table is not maintained after its pass failed."""
_TRANSACTIONS = TableId(TRANSACTIONS_ID)
"""Stands for the table of transactions among tables."""
_RECONNECT_BACKOFF = Backoff(first=5.0, longest=5.0)

Start = Callable[[], Procedures]


def own_spark(settings: Settings) -> Start:
    """A function that at its first call starts Spark in this process, with Iceberg's jars and limited cores and
    memory. It raises UsageError for a cluster that cannot reach the database or a warehouse."""
    started: dict[tuple[str, ...], Procedures] = {}
    storage = lake_storage(settings)

    def start() -> Procedures:
        check_cluster(settings.master, settings.require_dsn(), settings.require_warehouse())
        warehouses = [warehouse.root for warehouse in reachable_warehouses(storage)]
        packages = maven_packages(*warehouses)
        if packages not in started:
            if started:
                # A profile was added since, whose storage needs another jar.
                started.popitem()[1].spark.stop()
                end_java()
            master = f"local[{settings.maintain_cores}]" if settings.master == "local[*]" else settings.master
            log = spark_log()
            get_logger("maintain").info("spark-starts", log=str(log))
            spark = spark_session(
                SparkSettings(
                    master=master,
                    app_name="mirror-pump-maintain",
                    background=True,
                    driver_memory=f"{settings.maintain_memory // (1 << 20)}m",
                    log=log,
                    conf={
                        "spark.jars.packages": ",".join(packages),
                        # Hadoop's file system, by which Iceberg writes to a directory, does not ask the process's own.
                        "spark.hadoop.fs.permissions.umask-mode": f"{0o777 & ~storage.directory_mode:03o}",
                    },
                )
            )
            if is_cluster(settings.master):
                # It ends with this Spark.
                ExecutorWatch(spark.sparkContext).start()
            sessions = LakeSessions(spark, _dsn_for_java(settings.require_dsn()))

            def session_at(location: str) -> SparkSession:
                remote = local_path(location) is None
                return sessions.session(warehouse_of(location), storage.properties_of(location) if remote else {})

            started[packages] = Procedures(spark, session_at)
        return started[packages]

    return start


def _dsn_for_java(dsn: str) -> str:
    """The DSN as Spark's JDBC driver can use it, which knows neither services nor password files."""
    with connect(dsn, autocommit=True, application_name="mirror-pump-maintain") as connection:
        return portable_dsn(dsn, connection)


@dataclass(frozen=True)
class MaintenanceOutcome:
    """The outcome of one table's maintenance, as lines for people."""

    table: str
    lines: tuple[str, ...]
    errors: tuple[str, ...] = ()


def maintain_tables(
    settings: Settings, names: Sequence[str], *, wait: bool, start: Start | None = None
) -> Iterator[MaintenanceOutcome]:
    """Request maintenance of the named tables, or of all, and yield the outcome for each.

    If a maintainer serves the slot, it does the work; otherwise this process does. Without `wait`, only files requests.
    Raises UsageError for a name that is no table, TableError for a table that is not mirrored, or, if it was named, is
    unregistered meanwhile.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-maintain") as connection:
        tables = choose(connection, settings, names)
        requester = _requester()
        filed = _filed(connection, tables, requester)
        for table_id, name in tables.items():
            if table_id not in filed:
                yield _unregistered(name, was_named=bool(names))
            elif not wait:
                yield MaintenanceOutcome(name, ("requested",))
        if not wait:
            return
        try:
            with Heartbeat(settings.require_dsn()) as heartbeat:
                maintenance = _maintenance(settings, connection, start or own_spark(settings), heartbeat)
                for table_id, since in filed.items():
                    outcome = _await_outcome(connection, settings.slot, maintenance, table_id, tables[table_id], since)
                    yield outcome or _unregistered(tables[table_id], was_named=bool(names))
                if not names:
                    result = maintenance.maintain_transactions(requested=True)
                    if result.done or result.errors:
                        yield MaintenanceOutcome(result.table, tuple(result.done), tuple(result.errors))
        except (KeyboardInterrupt, GeneratorExit):
            # Otherwise the next maintainer would handle requests for which no command waits.
            withdraw_requests(connection, list(tables), requester)
            raise


def _filed(connection: PgConnection, table_ids: Iterable[TableId], requester: str) -> dict[TableId, datetime]:
    """Files the requests. Returns when, for each of the tables that is still registered."""
    filed = {}
    for table_id in table_ids:
        with suppress(TableUnregistered):
            filed[table_id] = file_request(connection, table_id, requester)
    return filed


def _unregistered(name: str, *, was_named: bool) -> MaintenanceOutcome:
    """The outcome of a table that is not registered any more. Raises TableError if it was named."""
    if was_named:
        raise TableError(f"{name} is not registered any more")
    return MaintenanceOutcome(name, ("left alone: it is not registered any more",))


def _await_outcome(
    connection: PgConnection, slot: str, maintenance: Maintenance, table_id: TableId, name: str, since: datetime
) -> MaintenanceOutcome | None:
    """Waits for a server's answer, or does the work here if no server runs. None if the table is unregistered
    meanwhile."""
    while True:
        answer = answer_to(connection, table_id, since)
        if answer is not None:
            phase, details = answer
            errors = tuple(details.get("errors") or ()) or (
                (str(details.get("error") or phase),) if phase is not OperationPhase.DONE else ()
            )
            return MaintenanceOutcome(
                name, _outcome_lines(details.get("done") or [], str(details.get("skipped") or "")), errors
            )
        if not read_tables(connection, slot, [table_id]):
            return None
        if not is_served(connection, slot):
            result = maintenance.maintain(table_id, claimed_only=True)
            if result is not None:
                return MaintenanceOutcome(name, _outcome_lines(result.done, result.skipped), tuple(result.errors))
        time.sleep(_POLL)


def _outcome_lines(done: Sequence[str], skipped: str) -> tuple[str, ...]:
    return tuple(done) or ((f"left alone: {skipped}",) if skipped else ("nothing to do",))


def dry_run(settings: Settings, names: Sequence[str], start: Start | None = None) -> Iterator[MaintenanceOutcome]:
    """Yield what maintenance of each table would do now. Changes nothing except statistics in modak.lake_stats."""
    start = start or own_spark(settings)
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-maintain") as connection,
        Heartbeat(settings.require_dsn()) as heartbeat,
    ):
        maintenance = _maintenance(settings, connection, start, heartbeat)
        for table_id, name in choose(connection, settings, names).items():
            result = PassResult(name)
            backlog = maintenance.backlog_of(table_id, result)
            if backlog is None:
                yield MaintenanceOutcome(
                    name, (f"left alone: {result.skipped or 'it cannot be read'}",), tuple(result.errors)
                )
                continue
            try:
                operations, swept = maintenance.dry_run(backlog)
                feed_lines = maintenance.feed_dry_run(int(table_id), backlog.policy)
            except LakeError as error:
                yield MaintenanceOutcome(name, (), (str(error),))
                continue
            lines = [f"would run {line}" for line in operation_lines(operations)]
            if swept is not None:
                lines.append(f"would delete {len(swept.files)} files of {swept.size_bytes} bytes:")
                lines.extend(f"  {file.location}" for file in swept.files)
            lines += feed_lines
            yield MaintenanceOutcome(name, tuple(lines) or ("nothing to do",))


def choose(connection: PgConnection, settings: Settings, names: Sequence[str]) -> dict[TableId, str]:
    """Names of the given tables, or of all tables of the slot, by ID. Raises TableError for one that is not
    mirrored."""
    mirrored = {table.table_id: str(table.name) for table in read_tables(connection, settings.slot)}
    if not names:
        return mirrored
    chosen = {}
    for name in names:
        table_id = resolve_name(connection, name)[1]
        if table_id not in mirrored:
            raise TableError(f"{name} is not mirrored", "`mirror-pump status` lists the tables that are.")
        chosen[table_id] = mirrored[table_id]
    return chosen


def _maintenance(settings: Settings, connection: PgConnection, start: Start, heartbeat: Heartbeat) -> Maintenance:
    storage = lake_storage(settings)
    return Maintenance(connection, settings.slot, storage, start, heartbeat)


def _requester() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}"


class MaintenanceServer:
    """Handles requests at once, and runs due maintenance of all tables periodically. Several servers may run.

    After work that was not requested it pauses, so that this takes at most the share `maintain_share` of the time.
    """

    def __init__(self, settings: Settings, start: Start | None = None) -> None:
        self._settings = settings
        self._start = start or own_spark(settings)
        self._stopping = threading.Event()
        self._failed: dict[TableId, Retries] = {}
        """The tables whose last pass failed."""
        self._log = get_logger("maintain")

    def request_stop(self) -> None:
        """Make `run` return after the current operation. Safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Serve until a stop is requested. Reconnects by itself; raises errors that need an operator."""
        retries = Retries(_RECONNECT_BACKOFF)
        while not self._stopping.is_set():
            try:
                with self._maintenance() as (connection, maintenance):
                    self._serve(connection, maintenance)
            except (ConnectionLost, TransientRefusal) as error:
                self._log.warning("retrying", error=str(error))
                retries.failed()
                retries.wait(self._stopping.wait)

    @contextmanager
    def _maintenance(self) -> Iterator[tuple[PgConnection, Maintenance]]:
        settings = self._settings
        dsn = settings.require_dsn()
        with (
            connect(dsn, autocommit=True, application_name="mirror-pump-maintain") as connection,
            Heartbeat(dsn) as heartbeat,
        ):
            announce_server(connection, settings.slot)
            yield connection, _maintenance(settings, connection, self._start, heartbeat)

    def _serve(self, connection: PgConnection, maintenance: Maintenance) -> None:
        next_look = 0.0
        while not self._stopping.is_set():
            for table_id in requested(connection, self._settings.slot):
                if not self._stopping.is_set():
                    self._report(table_id, maintenance.maintain(table_id, claimed_only=True))
            if time.monotonic() >= next_look:
                began = time.monotonic()
                did_work = self._maintain_due_tables(maintenance)
                seconds = time.monotonic() - began
                rest = seconds * (1 / self._settings.maintain_share - 1) if did_work else 0.0
                next_look = time.monotonic() + max(self._settings.maintain_interval, rest)
            self._stopping.wait(_POLL)

    def _maintain_due_tables(self, maintenance: Maintenance) -> bool:
        """Maintains the tables for which something is due. Returns whether there were any."""
        did_work = False
        for backlog in maintenance.read_backlogs():
            table_id = backlog.table.table_id
            failed = self._failed.get(table_id)
            if self._stopping.is_set() or (failed is not None and not failed.due) or not maintenance.is_due(backlog):
                continue
            did_work = True
            self._report(table_id, maintenance.maintain(table_id))
        failed = self._failed.get(_TRANSACTIONS)
        if not self._stopping.is_set() and (failed is None or failed.due):
            result = maintenance.maintain_transactions(requested=False)
            did_work = did_work or bool(result.done)
            self._report(_TRANSACTIONS, result)
        return did_work

    def _report(self, table_id: TableId, result: PassResult | None) -> None:
        if result is None:
            return
        if result.errors:
            self._failed.setdefault(table_id, Retries(_TABLE_BACKOFF)).failed()
        else:
            self._failed.pop(table_id, None)
        shown: dict[str, Any] = {"table": result.table, "done": result.done, "errors": result.errors}
        if result.done or result.errors or table_id != _TRANSACTIONS:
            self._log.info("pass", **{key: value for key, value in shown.items() if value})
