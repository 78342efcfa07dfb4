"""Records in the catalog why a pump cannot continue, across all its sessions."""

from __future__ import annotations

import time
from contextlib import suppress

import psycopg

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn
from mirror_pump.source.catalog.pump_error import note_error


class FailureRecord:
    """Counts one pump's consecutive failures. Failures at the same frontier count as one problem."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn = dsn
        self._slot = slot
        self._frontier = Lsn(0)
        self._attempts = 0
        self._began = 0.0

    def failed(self, error: Exception, frontier: Lsn, epoch: int | None, retry_in: float | None) -> None:
        """Record a failed attempt at `frontier`. `retry_in`: seconds until the next attempt, None if there is none.

        Stores nothing for a pump that never led (`epoch` is None). Stores nothing either if the database cannot be
        reached: the write is retried for some seconds and then given up.
        """
        if frontier > self._frontier or not self._attempts:
            self._frontier, self._attempts, self._began = frontier, 0, time.monotonic()
        self._attempts += 1
        if epoch is None:
            return
        with suppress(SourceError, psycopg.Error):
            note_error(
                self._dsn,
                self._slot,
                epoch,
                error=str(error),
                remedy=str(getattr(error, "remedy", "")),
                attempts=self._attempts,
                failing_for=time.monotonic() - self._began,
                retry_in=retry_in,
            )
