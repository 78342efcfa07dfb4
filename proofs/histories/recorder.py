"""Writes a history while it happens: one operation a line, as JSON (proofs/histories/judge.py has the form)."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class Recorder:
    """A file of operations, in the order in which they began and ended. For many threads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._index = 0
        self._processes: dict[str, int] = {}
        self._started = 0

    def note(self, client: str, type_: str, f: str = "txn", **fields: Any) -> None:
        """Writes an operation. Its time is taken here, so the order of lines is the order of times. A client is a new
        process after each operation of which it does not know the outcome, as Elle has it."""
        with self._lock:
            if client not in self._processes:
                self._processes[client] = self._started
                self._started += 1
            process = self._processes[client] if f == "txn" else "nemesis"
            operation = {"index": self._index, "time": time.monotonic_ns(), "process": process, "client": client}
            self._file.write(json.dumps(operation | {"type": type_, "f": f} | fields, separators=(",", ":")) + "\n")
            self._index += 1
            if type_ == "info":
                del self._processes[client]

    def close(self) -> None:
        """Ends the file."""
        self._file.close()
