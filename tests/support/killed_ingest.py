"""Ingests in separate processes that are killed at a step, as by kill -9."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

from mirror_pump.config import Settings
from mirror_pump.ops.ingest.ingest_request import IngestProgress, IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["mirror_pump.ops.ingest.ingestion"])


def die_at(settings: Settings, step: str, table: str, *files: str) -> None:
    """An ingest that is killed at the first occurrence of a step. Fails if it ends before."""
    process = _FORKS.Process(target=_run, args=(settings.model_dump(mode="python"), step, table, files))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, (step, process.exitcode)


def _run(settings: dict[str, Any], step: str, table: str, files: tuple[str, ...]) -> None:
    def observe(progress: IngestProgress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    ingest(Settings.model_construct(**settings), IngestRequest(table, files), observe)
