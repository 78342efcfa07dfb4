"""An ingest's row in op_log, by which others find out what became of it, and remove the files of one that died.

The process holds an advisory lock as long as its session lasts, in which it also commits. So a session that gets the
lock knows that the ingest has ended: if it is not `done` then, it never will be, and nothing refers to its files.

These are numbered. The row has what their names have in common, and a number below which those of all files are that
may exist. It grows by half, so that an ingest of many files writes the row seldom.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.lake.format.data_files import data_location
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.model import MirroredTable
from mirror_pump.operation_life import OperationPhase
from mirror_pump.source.advisory_locks import advisory_key
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("ingest")

_END_PATIENCE = "60s"
"""A transaction ends later if its COMMIT waits for a synchronous standby, or its server has not noticed yet that the
connection is gone."""


_FIRST_NUMBERS = 16
"""Files that are announced when the first one is begun."""


class IngestJournal:
    """The journal of one ingest. Any thread may call `begin_file`."""

    def __init__(self, connection: PgConnection, table: MirroredTable) -> None:
        """`connection` is in autocommit mode, and the one that commits."""
        self._connection = connection
        self._table_id = table.table_id
        self._lock = threading.Lock()
        self._announced = 0
        """The number below which files may be written."""
        self.op_id = str(uuid.uuid4())
        self._prefix = data_location(table.location, f"{uuid.UUID(self.op_id).hex}-")
        self.files: list[str] = []
        """URIs of the files that were begun, by number."""

    def begin(self, inputs: Sequence[str]) -> None:
        """Enters the ingest."""
        self._connection.execute(_SQL["lock"], {"key": _key(self.op_id)})
        details = Jsonb({"kind": "ingest", "inputs": list(inputs), "prefix": self._prefix, "numbered": 0})
        self._connection.execute(_SQL["begin"], {"op_id": self.op_id, "table_id": self._table_id, "details": details})

    def begin_file(self) -> tuple[int, str]:
        """The number and the URI of another file, which may be written from now on."""
        with self._lock:
            number = len(self.files)
            if number >= self._announced:
                numbers = max(_FIRST_NUMBERS, number + number // 2)
                self._connection.execute(_SQL["writing"], {"op_id": self.op_id, "numbered": numbers})
                self._announced = numbers
            self.files.append(_numbered(self._prefix, number))
        return number, self.files[number]

    def undo(self, storage: StorageOptions) -> None:
        """Removes the files of an ingest that certainly did not land."""
        discard(self.files, storage)
        self._connection.execute(_SQL["undone"], {"op_id": self.op_id})

    def undo_others(self, storage: StorageOptions) -> int:
        """Removes the files of the table's ingests whose processes have died. Returns the number of these ingests."""
        undone = 0
        parameters = {"table_id": self._table_id, "op_id": self.op_id}
        for unfinished in fetch_rows(self._connection, _Unfinished, _SQL["unfinished"], parameters):
            key = {"key": _key(unfinished.op_id)}
            row = self._connection.execute(_SQL["try_lock"], key).fetchone()
            if row is None or not row[0]:
                continue
            try:
                # Its session has ended, so this is what it came to.
                for ended in fetch_rows(self._connection, _Unfinished, _SQL["unfinished"], parameters):
                    if ended.op_id == unfinished.op_id:
                        discard(ended.locations, storage)
                        self._connection.execute(_SQL["undone"], {"op_id": ended.op_id})
                        undone += 1
            finally:
                self._connection.execute(_SQL["unlock"], key)
        return undone


@dataclass(frozen=True)
class _Unfinished:
    """A row of the query `unfinished`."""

    op_id: str
    files: list[str]
    """As versions noted them that did not number files."""
    prefix: str
    numbered: int

    @property
    def locations(self) -> list[str]:
        """URIs of all files that may exist."""
        return [*self.files, *(_numbered(self.prefix, number) for number in range(self.numbered))]


def _numbered(prefix: str, number: int) -> str:
    return f"{prefix}{number}.parquet"


def has_landed(connection: PgConnection, op_id: str) -> bool:
    """Whether an ingest is `done`, after its connection was lost. Waits for the end of its transaction, at most
    _END_PATIENCE. Raises psycopg.Error."""
    with connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (_END_PATIENCE,))
        row = connection.execute(_SQL["phase"], {"op_id": op_id}).fetchone()
    return row is not None and row[0] == OperationPhase.DONE


def _key(op_id: str) -> int:
    return advisory_key(f"ingest {op_id}")
