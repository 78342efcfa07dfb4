"""Lets Ctrl-C interrupt a DuckDB query.

Python runs signal handlers in the main thread, between two of its own instructions. DuckDB allows that now and then,
but not while the main thread waits for DuckDB's own threads, which do all the work. Then Ctrl-C would have no effect
until the query ends. So another thread receives the signal and interrupts DuckDB.
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
"""Seconds between interrupts. They are repeated because DuckDB forgets an interrupt that falls between statements."""


@contextmanager
def stopped_by_ctrl_c(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """While the block runs, Ctrl-C stops what the connection executes.

    KeyboardInterrupt is then raised at the end of the block, so that it does not disturb any cleanup after the block.
    This has no effect outside of the main thread, which alone handles signals, or if Ctrl-C is ignored.
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
