"""Logs and meters behind one door: structlog to stderr, OpenTelemetry's API for counters (no-op without an SDK).

Stdout belongs to what a command was asked for; everything said along the way is a log line on stderr.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import warnings
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Literal, TextIO, cast

import structlog
from opentelemetry import metrics

LogFormat = Literal["auto", "human", "json"]

_PASSWORD = re.compile(
    r"(?P<uri>[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@]*(?=@)"
    r"|(?P<key>(?:password|secret[a-z_-]*|access[_-]key[a-z_-]*|session[_-]token)\s*[=:]\s*)(?:'(?:[^'\\]|\\.)*'|[^\s'&,;]+)",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """`text` with the passwords of URIs and of key=value strings replaced by `***`."""
    return _PASSWORD.sub(lambda found: (found["uri"] or found["key"]) + "***", text)


def _redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = redact(value)
    return event


def configure_logging(log_format: LogFormat = "auto", level: str = "info") -> None:
    """Sends log lines to stderr: for people when `human` (or `auto` on a terminal), else one JSON object a line.

    Also what the standard library's `logging` and `warnings` have to say.
    """
    human = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any
    if human:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human),
            *([] if human else [structlog.processors.format_exc_info]),
            _redact_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: _Stderr(),
        cache_logger_on_first_use=False,
    )
    # py4j and pyiceberg log through the standard library; their chatter is of interest only when something is wrong.
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    # psycopg warns when it cannot roll back on a connection that Ctrl-C interrupted in the middle of a query: the
    # connection is closed then, and nothing is wrong.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    if not any(isinstance(handler, _Forward) for handler in root.handlers):
        root.addHandler(_Forward())
    warnings.showwarning = _show_warning


class _Stderr:
    """Writes lines to whatever stderr is when a line is written: whoever embeds the pump may exchange it, and so does
    a progress bar, to print above itself. One write a line, so that lines of several threads stay apart."""

    def msg(self, message: str) -> None:
        stream = sys.stderr.stream if isinstance(sys.stderr, _JsonLines) else sys.stderr
        try:
            stream.write(message + "\n")
            stream.flush()
        except (BrokenPipeError, ValueError):
            # Nobody reads it any more: that ends nothing.
            return

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Forward(logging.Handler):
    """Makes log lines like ours of the standard library's."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt):
            # py4j logs that a call was interrupted, with a traceback; whoever called it says so.
            return
        get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del file, line
    get_logger("warnings").warning(str(message), category=category.__name__, at=f"{filename}:{lineno}")


def install_hooks() -> None:
    """Has errors that nothing catches, in this thread, in others or in destructors, logged like everything else."""
    sys.excepthook = lambda kind, error, trace: _uncaught("uncaught error", kind, error, trace)
    threading.excepthook = lambda args: _uncaught(
        f"uncaught error in thread {args.thread.name if args.thread else '?'}",
        args.exc_type,
        args.exc_value,
        args.exc_traceback,
    )
    sys.unraisablehook = lambda args: _uncaught(
        f"ignored error: {args.err_msg or 'while an object was deleted'}",
        args.exc_type,
        args.exc_value,
        args.exc_traceback,
    )
    sys.stderr = cast("TextIO", _JsonLines(sys.stderr))
    configure_logging()


class _JsonLines(io.TextIOBase):
    """Stands for stderr where log lines are JSON: makes such lines of what others write there, who know nothing of
    that, such as a library that prints a traceback."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._lock = threading.RLock()
        self._rest = ""

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def flush(self) -> None:
        self.stream.flush()

    def write(self, text: str) -> int:
        if not logs_json():
            return self.stream.write(text)
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                if line.strip():
                    say_always("stderr", line, "warning")
        return len(text)


def _uncaught(what: str, kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, SystemExit):
        return
    error = kind() if error is None else error
    get_logger("program").error(what, exc_info=(kind, error, trace))


def logs_json() -> bool:
    """Whether log lines are JSON; by what stderr is as long as nothing was configured."""
    if not structlog.is_configured():
        return not sys.stderr.isatty()
    return isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


def say_always(component: str, event: str, level: str, **fields: object) -> None:
    """A log line whatever the least level is: what a command was asked to say."""
    logger = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
    getattr(logger.bind(component=component), level)(event, **fields)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `component=name`."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(component=name))


_meter = metrics.get_meter("mirror_pump")
_publishes = _meter.create_counter("mirror_pump.publishes", "1", "Publish transactions that landed")
_changes = _meter.create_counter("mirror_pump.changes", "1", "Row changes published")
_reconnects = _meter.create_counter("mirror_pump.reconnects", "1", "New tries after a lost connection or a failed task")
_merged = _meter.create_counter("mirror_pump.merged_bytes", "By", "Bytes of merged files that landed")
_publish_seconds = _meter.create_histogram("mirror_pump.publish.duration", "s", "Time of a publish transaction")
_batch_seconds = _meter.create_histogram("mirror_pump.batch.duration", "s", "From a batch's last commit to its publish")


def record_publish(*, changes: int, publish_seconds: float, batch_seconds: float | None) -> None:
    """Counts one landed publish. `batch_seconds` is None when it published no batch, but copies or the frontier
    alone."""
    _publishes.add(1)
    _changes.add(changes)
    _publish_seconds.record(publish_seconds)
    if batch_seconds is not None:
        _batch_seconds.record(batch_seconds)


def record_merge(size_bytes: int) -> None:
    """Counts the files of one merge that landed."""
    _merged.add(size_bytes)


def record_reconnect() -> None:
    """Counts one return of the pump to what is published, after an error that time may cure."""
    _reconnects.add(1)
