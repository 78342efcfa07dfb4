"""Operations of maintenance as the journal has them: begun, kept fresh while they run, ended with their outcome."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mirror_pump.errors import MirrorPumpError, SourceError
from mirror_pump.model import TableId
from mirror_pump.source.catalog.maintenance import DONE, FAILED, beat, begin, finish
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.telemetry import get_logger, redact

_BEAT = 5.0
"""Seconds between two signs of life. After 60 s without one nobody waits for the operation any more."""


class Heartbeat:
    """Refreshes the journal rows of what is under way, in a thread with a connection of its own. A context manager."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._open: set[uuid.UUID] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

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
        while not self._stopping.wait(_BEAT):
            with self._lock:
                open_now = tuple(self._open)
            if not open_now:
                continue
            try:
                if connection is None or connection.closed:
                    connection = connect(self._dsn, autocommit=True, application_name="mirror-pump-maintain")
                beat(connection, open_now)
            except SourceError as error:
                # The rewrite under way fails at its commit if this lasts; nothing else depends on it.
                get_logger("maintain").warning("heartbeat", error=str(error))
                connection = None
        if connection is not None:
            connection.close()


@contextmanager
def operation(
    connection: PgConnection,
    heartbeat: Heartbeat,
    table_id: TableId,
    kind: str,
    phase: str,
    details: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """One operation in the journal, for the time of the block; what the block puts into the yielded dict is added to
    its details. An error ends it as failed, and goes on."""
    op_id = begin(connection, table_id, kind, phase, details)
    with ended(connection, heartbeat, op_id) as outcome:
        yield outcome


@contextmanager
def ended(connection: PgConnection, heartbeat: Heartbeat, op_id: uuid.UUID) -> Iterator[dict[str, Any]]:
    """The same for an operation that was begun already."""
    began = time.monotonic()
    outcome: dict[str, Any] = {}
    heartbeat.add(op_id)
    try:
        yield outcome
    except BaseException as error:
        heartbeat.remove(op_id)
        outcome |= {"seconds": round(time.monotonic() - began, 3), "error": _words(error)}
        if not connection.closed and not connection.broken:
            finish(connection, op_id, FAILED, outcome)
        raise
    heartbeat.remove(op_id)
    outcome["seconds"] = round(time.monotonic() - began, 3)
    finish(connection, op_id, str(outcome.pop("phase", DONE)), outcome, outcome.pop("snapshot_id", None))


def _words(error: BaseException) -> str:
    text = f"{error} {error.remedy}" if isinstance(error, MirrorPumpError) else f"{type(error).__name__}: {error}"
    return redact(" ".join(text.split()))[:2000]
