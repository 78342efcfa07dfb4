"""Records operations of maintenance in the journal: their begin, a heartbeat while they run, and their outcome."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mirror_pump.errors import MirrorPumpError, SourceError, one_line_of
from mirror_pump.model import TableId
from mirror_pump.operation_life import OperationPhase
from mirror_pump.runtime.service_thread import ServiceThread, ThreadedService
from mirror_pump.runtime.telemetry import get_logger, redact
from mirror_pump.source.catalog.maintenance import beat, begin, finish
from mirror_pump.source.connect import PgConnection, connect

_BEAT = 5.0
"""Seconds between two heartbeats. After 60 s without one, others stop waiting for the operation."""


class Heartbeat(ThreadedService):
    """Refreshes the journal rows of running operations, in a thread with its own connection. A context manager."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._open: set[uuid.UUID] = set()
        self._thread = ServiceThread("heartbeat", self._run)

    def add(self, op_id: uuid.UUID) -> None:
        """The operation has begun."""
        with self._lock:
            self._open.add(op_id)

    def remove(self, op_id: uuid.UUID) -> None:
        """The operation has ended."""
        with self._lock:
            self._open.discard(op_id)

    def _run(self) -> None:
        connection: PgConnection | None = None
        while not self._thread.pause(_BEAT):
            with self._lock:
                open_now = tuple(self._open)
            if not open_now:
                continue
            try:
                if connection is None or connection.closed:
                    connection = connect(self._dsn, autocommit=True, application_name="mirror-pump-maintain")
                beat(connection, open_now)
            except SourceError as error:
                # If this lasts, a running rewrite fails at its commit. Nothing else depends on heartbeats.
                get_logger("maintain").warning("heartbeat", error=str(error))
                connection = None
        if connection is not None:
            connection.close()


@contextmanager
def journaled_operation(
    connection: PgConnection,
    heartbeat: Heartbeat,
    table_id: TableId,
    kind: str,
    phase: OperationPhase,
    details: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Records one operation in the journal for the duration of the block. What the block puts into the yielded dict is
    added to its details. An error ends the operation as failed, and is raised again."""
    op_id = begin(connection, table_id, kind, phase, details)
    with running_operation(connection, heartbeat, op_id) as outcome:
        yield outcome


@contextmanager
def running_operation(connection: PgConnection, heartbeat: Heartbeat, op_id: uuid.UUID) -> Iterator[dict[str, Any]]:
    """Like `journaled_operation`, for one that is already in the journal."""
    began = time.monotonic()
    outcome: dict[str, Any] = {}
    heartbeat.add(op_id)
    try:
        yield outcome
    except BaseException as error:
        heartbeat.remove(op_id)
        outcome |= {"seconds": round(time.monotonic() - began, 3), "error": _error_text(error)}
        if not connection.closed and not connection.broken:
            finish(connection, op_id, OperationPhase.FAILED, outcome)
        raise
    heartbeat.remove(op_id)
    outcome["seconds"] = round(time.monotonic() - began, 3)
    finish(connection, op_id, outcome.pop("phase", OperationPhase.DONE), outcome, outcome.pop("snapshot_id", None))


def _error_text(error: BaseException) -> str:
    text = f"{error} {error.remedy}" if isinstance(error, MirrorPumpError) else f"{type(error).__name__}: {error}"
    return redact(one_line_of(text))[:2000]
