"""Ingests and loads in separate processes that are killed, as by kill -9, or get another signal."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.load.load_job import LoadRequest, load
from mirror_pump.settings.config import Settings
from tests.support.interrupts import interruptible, rebuilt

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["mirror_pump.ops.ingest.ingestion", "mirror_pump.ops.load.load_job"])


def die_at(settings: Settings, step: str, table: str, *files: str) -> None:
    """An ingest that is killed at the first occurrence of a step. Fails if it ends before."""
    process = started_ingest(settings, step, table, *files)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, (step, process.exitcode)


def started_ingest(
    settings: Settings, step: str | None, table: str, *files: str, number: int = signal.SIGKILL
) -> BaseProcess:
    """An ingest that sends itself a signal at the first occurrence of a step. It ends with 1 if it is refused before,
    and with 130 if it was interrupted, as the program does."""
    return _started(_run, settings.model_dump(mode="python"), step, number, table, files)


def signalled_load(dsn: str, request: LoadRequest, content: bytes, step: str, number: int) -> BaseProcess:
    """A load that sends itself a signal at the first occurrence of a step. Ends as `started_ingest`."""
    return _started(_signalled_load, dsn, request, content, step, number)


def started_load(dsn: str, request: LoadRequest, content: bytes, least: int | None) -> BaseProcess:
    """A load that kills itself once so many bytes are read; with None it runs until somebody kills it."""
    return _started(_load, dsn, request, content, least)


def _started(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = _FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _run(settings: dict[str, Any], step: str | None, number: int, table: str, files: tuple[str, ...]) -> None:
    request = IngestRequest(table, files)
    interruptible(lambda at: ingest(rebuilt(settings), request, lambda progress: at(progress.step)), step, number)


def _signalled_load(dsn: str, request: LoadRequest, content: bytes, step: str, number: int) -> None:
    interruptible(
        lambda at: load(dsn, request, io.BytesIO(content), observe=lambda progress: at(progress.step)), step, number
    )


class _Deadly(io.BytesIO):
    """Kills the process that has read so many bytes of it."""

    def __init__(self, content: bytes, least: int) -> None:
        super().__init__(content)
        self._least = least

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if self.tell() >= self._least:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def _load(dsn: str, request: LoadRequest, content: bytes, least: int | None) -> None:
    load(dsn, request, io.BytesIO(content) if least is None else _Deadly(content, least))
