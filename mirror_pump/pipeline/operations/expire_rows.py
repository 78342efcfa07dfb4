"""Expires the rows below a new retention line: they leave the lake, and writes below the line are refused from then on.

Lake: the rows leave `main` (`mirror_pump.lake.commit.expired_rows`), and the archive branch is made anew on top of it.
So every reader of either starts at the line, whether it knows of the line or not. Catalog: `modak.expire` moves the
line, and corrections below it are removed, folded or not: all in one transaction, with the new published snapshot.

Pins. A pinned snapshot keeps its files, and so does a reader in its middle. But a reader that looks at modak.delta
after it has pinned a former snapshot must find the corrections which that snapshot lacks. Hence:

- A reader that may look at any time, or more than once, holds the line up until its pin is released or expires, and one
  whose pin is not committed yet too (`modak.lock_pins`, as for the cut-line).
- One that takes heap and delta in one snapshot of the database (read_pins.in_one_snapshot) holds nothing up. It has
  promised to leave out what is below the retention line of that database snapshot. If the line has moved by then, the
  corrections that are gone concerned such rows only; otherwise none is gone.

Corrections that come later nevertheless, from transactions that have looked at the former line, are left out by readers
and folds, and removed by the folder (`mirror_pump.source.retention.corrections`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.errors import ExpectedOutcome
from mirror_pump.lake.commit.expired_rows import RowsBelow
from mirror_pump.lake.document.snapshot_summary import Removed
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.operation import Cursor, Operation, Recording, TablePlan, refusal_of
from mirror_pump.pipeline.operations.registrations import Registration, line_of
from sql import queries

_SQL = queries("publish")

_COUNTED = {"files": Removed.DATA_FILES, "rows": Removed.RECORDS, "bytes": Removed.FILES_SIZE}
"""What the journal says of files that are removed as a whole, and the entry of the snapshot's summary."""


class ExpiryRefused(ExpectedOutcome):
    """The retention line cannot move now. The text says why. Nothing was done."""


@dataclass(frozen=True)
class ExpireRows(Operation):
    line: int
    """The new retention line, a tier value."""

    def stage(self, plan: TablePlan, table: MirroredTable, registration: Registration) -> TablePlan:
        """Raises ExpiryRefused unless readers see commits at once, and no other engine rewrites the table."""
        if not registration.readers_see_commits:
            raise ExpiryRefused("the table is being copied or filled")
        if not registration.files_may_be_rewritten:
            raise ExpiryRefused("another engine is rewriting the lake table")
        line = line_of(table, registration.tier, self.line)
        if line is None:
            raise ExpiryRefused("no row can be below the line")
        # The index has the keys of rows that leave.
        return replace(plan, replaces=RowsBelow(line), archive_due=True, forgets_index=True)

    def lock(self, cursor: Cursor, recording: Recording) -> None:
        """Keeps new pins out, and moves the line in the catalog. Raises ExpiryRefused."""
        try:
            reason = refusal_of(cursor, _SQL["expire"], {"table_id": recording.table.table_id, "line": self.line})
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            raise ExpiryRefused("others hold the locks that it needs") from error
        if reason is not None:
            raise ExpiryRefused(reason)

    def complete(self, cursor: Cursor, recording: Recording) -> None:
        archive, tier = recording.archive, recording.registration.tier
        if archive is None:
            return
        cursor.execute(_SQL["purge_expired"], {"table_id": recording.table.table_id})
        (purged,) = cursor.fetchone() or (0,)
        head = archive.table.metadata.current_snapshot
        details = {
            "kind": "expire",
            "line": self.line,
            "former": None if tier is None else tier.line,
            "corrections": purged,
            **{name: 0 if head is None else head.summary.removed(entry) for name, entry in _COUNTED.items()},
        }
        cursor.execute(
            _SQL["journal_expiry"],
            {
                "table_id": recording.table.table_id,
                "snapshot_id": archive.snapshot_id,
                "details": Jsonb(details),
            },
        )
