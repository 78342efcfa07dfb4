"""An ingest's row in op_log, by which others find out what became of it, and remove the files of one that died.

The process holds an advisory lock as long as its session lasts, in which it also commits. So whoever gets the lock
knows that the ingest has ended: if it is not `done` then, it never will be, and nothing refers to its files.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

from psycopg.types.json import Jsonb

from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.model import TableId
from mirror_pump.source.advisory_locks import advisory_key
from mirror_pump.source.connect import PgConnection
from sql import queries

_SQL = queries("ingest")


class IngestJournal:
    """The journal of one ingest. Any thread may call `note`."""

    def __init__(self, connection: PgConnection, table_id: TableId) -> None:
        """`connection` is in autocommit mode, and the one that commits."""
        self._connection = connection
        self._table_id = table_id
        self._lock = threading.Lock()
        self.op_id = str(uuid.uuid4())
        self.files: list[str] = []
        """URIs of the files that were begun."""

    def begin(self, inputs: Sequence[str]) -> None:
        """Enters the ingest."""
        self._connection.execute(_SQL["lock"], {"key": _key(self.op_id)})
        details = Jsonb({"kind": "ingest", "inputs": list(inputs), "files": []})
        self._connection.execute(_SQL["begin"], {"op_id": self.op_id, "table_id": self._table_id, "details": details})

    def note(self, location: str) -> None:
        """Notes a file before it is written."""
        with self._lock:
            self.files.append(location)
            self._connection.execute(_SQL["writing"], {"op_id": self.op_id, "location": location})

    def undo(self, storage: StorageOptions) -> None:
        """Removes the files of an ingest that certainly did not land."""
        discard(self.files, storage)
        self._connection.execute(_SQL["undone"], {"op_id": self.op_id})

    def undo_others(self, storage: StorageOptions) -> int:
        """Removes the files of the table's ingests whose processes have died. Returns the number of these ingests."""
        undone = 0
        parameters = {"table_id": self._table_id, "op_id": self.op_id}
        for op_id, _ in self._connection.execute(_SQL["unfinished"], parameters).fetchall():
            key = {"key": _key(op_id)}
            row = self._connection.execute(_SQL["try_lock"], key).fetchone()
            if row is None or not row[0]:
                continue
            try:
                # Its session has ended, so this is what it came to.
                for found, files in self._connection.execute(_SQL["unfinished"], parameters).fetchall():
                    if found == op_id:
                        discard(files, storage)
                        self._connection.execute(_SQL["undone"], {"op_id": op_id})
                        undone += 1
            finally:
                self._connection.execute(_SQL["unlock"], key)
        return undone


def has_landed(connection: PgConnection, op_id: str) -> bool:
    """Whether an ingest is `done`, after its connection was lost. Waits for the end of its transaction. Raises
    psycopg.Error."""
    with connection.transaction():
        row = connection.execute(_SQL["phase"], {"op_id": op_id}).fetchone()
    return row is not None and row[0] == "done"


def _key(op_id: str) -> int:
    return advisory_key(f"ingest {op_id}")
