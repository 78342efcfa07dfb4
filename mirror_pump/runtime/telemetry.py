"""Logs: structlog to stderr. Metrics and traces are in mirror_pump.monitoring.

Stdout is reserved for the result of a command. Everything else is a log line on stderr. structlog is loaded with the
first line: most commands write none.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from mirror_pump.errors import of_this_mirror

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

LogFormat = Literal["auto", "human", "json"]

_PLACEHOLDER = r"""(?!["']?\.{3}(?:["',;&)\s]|$))"""
"""Three dots stand for a secret in what explains how one is written."""
_PASSWORD = re.compile(
    # Up to the last @ of the word: a password in which it is not quoted is as secret as any other.
    r"(?P<uri>[a-z][a-z0-9+.-]*://[^\s:/@]*:)\S*(?=@)"
    r"|(?P<key>(?:password|secret[a-z_-]*|access[_-]?key[a-z_-]*|(?:session|listen|load)[_-]token)[\"']?\s*[=:]\s*)"
    rf"{_PLACEHOLDER}(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"&,;]+)"
    rf"|(?P<header>\bauthorization[\"']?\s*[=:]\s*[\"']?(?:bearer|basic)\s+){_PLACEHOLDER}[^\s'\",;]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """`text` with the secrets in URIs, in key=value strings and in headers replaced by `***`."""
    return _PASSWORD.sub(lambda match: (match["uri"] or match["key"] or match["header"]) + "***", text)


def _redacted(value: object) -> object:
    """A field of a log line. What is not made of JSON's types becomes text, as it would in the line."""
    match value:
        case str():
            return redact(value)
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {redact(str(name)): _redacted(part) for name, part in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_redacted(part) for part in value]
        case BaseException():
            return redact(f"{type(value).__name__}: {value}")
        case _:
            return redact(repr(value))


def _redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The last step before a line is written: everything in it, the text of a traceback too, has its final form."""
    if isinstance(remedy := event.get("remedy"), str):
        event["remedy"] = of_this_mirror(remedy)
    return {name: _redacted(value) for name, value in event.items()}


@dataclass
class _LineFormat:
    """How log lines of this process look."""

    configured: bool = False
    human: bool = False
    level: str = "info"
    structlog_knows: bool = False


_format = _LineFormat()


def configure_logging(log_format: LogFormat = "auto", level: str = "info") -> None:
    """Sends log lines to stderr: readable text with `human` (or `auto` on a terminal), else one JSON object per line.

    The standard library's `logging` and `warnings` go the same way.
    """
    _format.configured = True
    _format.human = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    _format.level = level
    _format.structlog_knows = False
    # py4j and pyiceberg log through the standard library. Their messages matter only when something is wrong.
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    # psycopg warns when it cannot roll back on a connection that Ctrl-C interrupted in the middle of a query. The
    # connection is closed then, and nothing is wrong.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    if not any(isinstance(handler, _Forward) for handler in root.handlers):
        root.addHandler(_Forward())
    warnings.showwarning = _show_warning


def _structlog() -> Any:
    """structlog, configured like this process; as the program that uses this library has configured it, if it has."""
    import structlog

    if _format.structlog_knows or (not _format.configured and structlog.is_configured()):
        return structlog
    human = not logs_json()
    renderer: Any
    if human:
        # By default it prints the variables of each frame, among them connection strings.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human),
            structlog.processors.format_exc_info,
            _redact_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, _format.level.upper())),
        logger_factory=lambda *_: _Stderr(),
        cache_logger_on_first_use=False,
    )
    _format.structlog_knows = True
    return structlog


class _Stderr:
    """Writes each line to the stderr of the moment: a program that embeds the pump may replace stderr, and a progress
    bar does so to print above itself. One write per line keeps the lines of several threads apart."""

    def msg(self, message: str) -> None:
        stream = sys.stderr.stream if isinstance(sys.stderr, _JsonLines) else sys.stderr
        try:
            stream.write(message + "\n")
            stream.flush()
        except (BrokenPipeError, ValueError):
            # No process reads stderr any more: the program continues.
            return

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Forward(logging.Handler):
    """Turns records of the standard library's logging into log lines like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # py4j logs with a traceback what it raises as well: that a call was interrupted, or that Java has ended, as it
        # does while the program stops. The caller reports it.
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Py4JNetworkError":
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
    """Logs uncaught errors of this thread, of other threads and of destructors like everything else."""
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
    """Replaces stderr while log lines are JSON: turns text that others write there, such as a library's traceback, into
    JSON lines."""

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
    """Whether log lines are JSON. Before logging is configured: whether stderr is not a terminal."""
    return not _format.human if _format.configured else not sys.stderr.isatty()


def say_always(component: str, event: str, level: str, **fields: object) -> None:
    """Writes a log line regardless of the configured level: output that a command was asked for."""
    structlog = _structlog()
    logger = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
    getattr(logger.bind(component=component), level)(event, **fields)


class Logger:
    """Writes log lines of one component, in the format and from the level on that are configured when it writes."""

    def __init__(self, component: str) -> None:
        self._component = component

    def _bound(self) -> FilteringBoundLogger:
        return cast("FilteringBoundLogger", _structlog().get_logger(component=self._component))

    def debug(self, event: str, **fields: Any) -> None:
        self._bound().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self._bound().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._bound().warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self._bound().error(event, **fields)

    def log(self, level: int, event: str, **fields: Any) -> None:
        """`level`: a number of the standard library's logging."""
        self._bound().log(level, event, **fields)


def get_logger(name: str) -> Logger:
    """A logger whose lines carry `component=name`."""
    return Logger(name)
