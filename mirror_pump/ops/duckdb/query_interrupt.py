"""Ctrl-C while DuckDB works.

Python runs the handlers of signals in the main thread, between two of its own instructions. DuckDB lets it do so now
and then, but not while its own threads have all of the work and the main one waits for them: then Ctrl-C would do
nothing until the query ends. So another thread hears of the signal, and tells DuckDB.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_AGAIN = 0.1
"""Seconds until DuckDB is told once more: it forgets what it is told between two statements."""


@contextmanager
def stopped_by_ctrl_c(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """For the time of the block, Ctrl-C stops what the connection executes; the block then raises KeyboardInterrupt,
    at its end: whatever cleans up after it is not disturbed.

    Has no effect outside of the main thread, which alone hears signals, and where Ctrl-C is ignored.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    import duckdb

    interrupted, over = threading.Event(), threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while heard := os.read(reader, 1):
            if heard[0] == signal.SIGINT:
                interrupted.set()
                while not over.wait(_AGAIN):
                    connection.interrupt()

    watcher = threading.Thread(target=watch, name="ctrl-c", daemon=True)
    watcher.start()
    former_handler = signal.signal(signal.SIGINT, lambda *_: None)
    former_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    finally:
        signal.set_wakeup_fd(former_fd)
        signal.signal(signal.SIGINT, former_handler)
        over.set()
        os.close(writer)
        watcher.join()
        os.close(reader)
    if interrupted.is_set():
        raise KeyboardInterrupt
