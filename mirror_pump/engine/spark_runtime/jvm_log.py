"""Turns what the JVM and its Python workers write to stdout and stderr into our log lines.

Otherwise they would write plain text between JSON lines, across progress bars, and into a command's output.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mirror_pump.runtime.telemetry import get_logger

_EXPECTED = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector"
    r"|Setting default log level to |To adjust logging level use |Setting Spark log level to "
    r"|:: |\t|\s*$|Ivy Default Cache set to|The jars for the packages stored in|\S+#\S+ added as a dependency"
)
"""Beginnings of lines that Spark writes at each start, and of Ivy's report when it resolves jars."""
_LEVELS = re.compile(r"\S+Z (ERROR|FATAL|WARN) spark ")
"""Prefix of a log line as laid out by log4j2.properties."""

_LAST_LINES_WITHIN = 5.0
"""Seconds to wait for the last lines of a JVM. One that goes on after an error keeps the pipe open."""


@contextmanager
def jvm_output() -> Iterator[int]:
    """A descriptor to pass to the JVM as stdout and stderr. Our copy is closed at the end of the block; the JVM's stays
    open as long as the JVM runs. After an error in the block, such as a JVM that has ended, what it wrote is logged
    first."""
    read, write = os.pipe()
    thread = threading.Thread(target=_forward, args=(read,), name="jvm-log", daemon=True)
    thread.start()
    try:
        yield write
    except BaseException:
        os.close(write)
        thread.join(_LAST_LINES_WITHIN)
        raise
    os.close(write)


def _forward(descriptor: int) -> None:
    log = get_logger("spark")
    with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            text = line.rstrip("\r\n")
            if _EXPECTED.match(text):
                log.debug(text)
                continue
            level = _LEVELS.match(text)
            if level is not None and level[1] != "WARN":
                log.error(text)
            else:
                log.warning(text)
