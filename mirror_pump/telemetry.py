"""Logs and meters behind one door: structlog to stderr, OpenTelemetry's API for counters (no-op without an SDK).

Stdout belongs to what a command was asked for; everything said along the way is a log line on stderr.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, cast

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
    """Sends log lines to stderr: for people when `human` (or `auto` on a terminal), else one JSON object a line."""
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
        # Whatever stderr is when a line is written: who embeds the pump may exchange it.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # py4j and pyiceberg log through the standard library; their chatter is of interest only when something is wrong.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


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
    """Counts one landed publish. `batch_seconds` is None when it published no batch, but copies or F alone."""
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
