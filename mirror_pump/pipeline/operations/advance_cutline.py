"""Advances the cut-line to the upper bound of a sealed partition. Its rows are then read from the lake and modak.delta.

Lake: the files of a tiered partition are added, and the archive branch is refreshed at the new cut-line. Catalog:
`modak.advance`, under the partition's lock. This lock has to be taken before the registration's row, since writers of
corrections take the two in that order. If something is in the way, nothing is done (AdvanceRefused), and the advance is
requested again later. That is not an error of the publish.

A tiered partition's files may hold a key twice, or an old row of it: it was changed while they were read. All keys that
were changed until the last file was read are deleted from them by the same snapshot, in a segment of its own, which
brings what the captured changes say of them. What is captured later, of these keys or of others, becomes a correction
here, and corrections win. Others are in one row of one file. Writers wait while corrections are written, so the changes
of the whole copy must not be among them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg

from mirror_pump.errors import ExpectedOutcome
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, SegmentChange, TablePlan, refusal_of
from mirror_pump.pipeline.operations.registrations import Registration
from sql import queries

_SQL = queries("publish")


class AdvanceRefused(ExpectedOutcome):
    """The cut-line cannot advance now. The text says why. Nothing was done."""


@dataclass(frozen=True)
class PartitionFiles:
    """The files with which a tiered partition comes into the lake."""

    data: tuple[WrittenFile, ...]
    """Those of its chunks. They are in the catalog until the publish, which does not remove them if it fails."""
    changed: SegmentChange | None
    """Equality deletes of the keys that were changed while the chunks were read, and their rows. The request owns its
    files."""
    versions: tuple[int, ...]
    """mirror_captured.version of each change in `changed`. A key that was changed again has another one."""
    raw_text_columns: frozenset[int]
    """Field IDs of the columns that have a raw text column in the files."""

    @property
    def segments(self) -> tuple[SegmentChange, ...]:
        """The rows of the chunks, then the changes, whose deletes reach rows of earlier segments only."""
        rows = (SegmentChange(SegmentFiles(self.data, ())),) if self.data else ()
        return rows if self.changed is None else (*rows, self.changed)


@dataclass(frozen=True)
class AdvanceCutline(Operation):
    partition_id: str
    """modak.partitions.partition_id."""
    cut: int
    """The new cut-line, a tier value."""
    brings: PartitionFiles | None = None
    """For a tiered table: its rows in the lake. The stream has brought those of a mirrored one."""

    @property
    def files(self) -> tuple[str, ...]:
        return () if self.brings is None or self.brings.changed is None else self.brings.changed.locations

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        """Raises AdvanceRefused unless readers see commits at once."""
        if not registration.readers_see_commits:
            raise AdvanceRefused("the table is being copied or filled")
        plan = replace(plan, archive_due=True, cut=self.cut)
        if self.brings is None or not self.brings.segments:
            return plan
        return replace(
            plan,
            segments=(*plan.segments, *self.brings.segments),
            raw_text_columns=plan.raw_text_columns | self.brings.raw_text_columns,
            # The keys of these rows were not read.
            forgets_index=True,
        )

    def lock(self, cursor: Cursor, recording: Recording) -> None:
        """Locks the partition and advances the cut-line in the catalog. Raises AdvanceRefused."""
        parameters = {
            "table_id": recording.table.table_id,
            "partition_id": self.partition_id,
            "cut": self.cut,
            "frontier": recording.frontier,
            "brought": [] if self.brings is None else list(self.brings.versions),
        }
        try:
            reason = refusal_of(cursor, _SQL["advance_cutline"], parameters)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            raise AdvanceRefused("the partition is locked by others") from error
        except (psycopg.OperationalError, psycopg.InterfaceError):
            raise
        except psycopg.Error as error:
            raise AdvanceRefused(str(error)) from error
        if reason is not None:
            raise AdvanceRefused(reason)
