"""Advances the cut-line to the upper bound of a sealed partition. Its rows are then read from the lake and modak.delta.

Lake: the archive branch is refreshed at the new cut-line. Catalog: `modak.advance`, under the partition's lock. This
lock has to be taken before the registration's row, since writers of corrections take the two in that order. If
something is in the way, nothing is done (AdvanceRefused), and the advance is requested again later. That is not an
error of the publish.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg

from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.source.connect import LOCK_TIMEOUT
from sql import queries

_SQL = queries("publish")


class AdvanceRefused(Exception):
    """The cut-line cannot advance now. The text says why. Nothing was done."""


@dataclass(frozen=True)
class AdvanceCutline(Operation):
    partition_id: str
    """modak.partitions.partition_id."""
    cut: int
    """The new cut-line, a tier value."""

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        """Raises AdvanceRefused unless readers see commits at once."""
        if not registration.readers_see_commits:
            raise AdvanceRefused("the table is being copied or filled")
        return replace(plan, archive_due=True, cut=self.cut)

    def lock(self, cursor: Cursor, recording: Recording) -> None:
        """Locks the partition and advances the cut-line in the catalog. Raises AdvanceRefused."""
        parameters = {
            "table_id": recording.table.table_id,
            "partition_id": self.partition_id,
            "cut": self.cut,
            "frontier": recording.frontier,
        }
        try:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
            cursor.execute(_SQL["advance_cutline"], parameters)
            row = cursor.fetchone()
            cursor.execute("SET LOCAL lock_timeout = DEFAULT")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            raise AdvanceRefused("the partition is locked by others") from error
        except (psycopg.OperationalError, psycopg.InterfaceError):
            raise
        except psycopg.Error as error:
            raise AdvanceRefused(str(error)) from error
        if row is None or row[0] is not None:
            raise AdvanceRefused(str(row[0] if row else "the table is not registered any more"))
