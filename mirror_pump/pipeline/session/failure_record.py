"""Keeps the catalog told of why a pump cannot go on, over all its sessions."""

from __future__ import annotations

import time
from contextlib import suppress

import psycopg

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn
from mirror_pump.source.catalog.pump_error import note_error


class FailureRecord:
    """One pump's failures in a row: as long as F does not move, they are one trouble."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn = dsn
        self._slot = slot
        self._frontier = Lsn(0)
        self._attempts = 0
        self._began = 0.0

    def failed(self, error: Exception, frontier: Lsn, epoch: int | None, retry_in: float | None) -> None:
        """An attempt failed, with F where it is; the next one comes in so many seconds (None: there is none).

        Whoever never led (`epoch` is None) has nothing to say. Nor is anything stored while the database cannot be
        reached: that is tried for some seconds, and forgotten.
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
