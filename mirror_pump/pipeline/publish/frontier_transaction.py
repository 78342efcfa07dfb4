"""The leader's publish transaction: it moves the frontier, and with it tables go live or fail."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mirror_pump.errors import CommitConflict, ExpectedOutcome, TableError
from mirror_pump.model import TableId
from mirror_pump.pipeline.landing.published_tables import publish_snapshot, swap_staged
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.publish.publish_transaction import PublishTransaction, archive_props
from mirror_pump.pipeline.publish.staged_publish import StagedPublish, StagedTable
from mirror_pump.runtime.table_work import work_for
from mirror_pump.table_life import TableEvent, state_by, states_before
from sql import queries

_SQL = queries("publish")


class TablePartFailed(ExpectedOutcome):
    """A table's part of the transaction failed. The publish can be made again without it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class FrontierTransaction(PublishTransaction):
    """A transaction that moves the frontier to `frontier`. Only `Publisher`, which is the leader's, makes one."""

    def apply(self, accepted: StagedTable, written_since: float) -> None:
        """As of PublishTransaction. Raises TablePartFailed."""
        table = replace(accepted.request.table, start_lsn=accepted.registration.start_lsn)
        try:
            with work_for(table):
                super().apply(accepted, written_since)
        except TableError as error:
            raise TablePartFailed(Failure.of(table, error)) from error

    def move_frontier(self, publish_id: int, commit_time_us: int) -> tuple[TableId, ...]:
        """Returns the tables whose copy from the cut-line on is complete, and whose files are filled now."""
        self.cursor.execute(
            _SQL["move_frontier"],
            {
                "slot": self.slot,
                "frontier": self.frontier,
                "publish_id": publish_id,
                "commit_time": commit_time_us / 1e6,
                "former": states_before(TableEvent.COPIED_TO_FILL),
                "state": state_by(TableEvent.COPIED_TO_FILL).value,
            },
        )
        return tuple(TableId(table_id) for (table_id,) in self.cursor.fetchall())

    def swap_in(self, staged: StagedPublish) -> None:
        """Shows readers what was copied again or filled, with its archive branch if that was refreshed. Raises
        CommitConflict if another engine committed meanwhile."""
        if not staged.swaps:
            # Writers may wait for the end of this transaction.
            return
        swap_staged(self.lock, self.slot, self.frontier, staged.swaps)
        for accepted in staged.accepted:
            table_id, archive = accepted.request.table.table_id, accepted.archive
            if archive is not None and table_id in staged.swaps:
                # The refreshed archive snapshot is the one that readers pin.
                publish_snapshot(self.lock, table_id, archive.snapshot_id, archive_props(archive))

    def go_live(self, expected: Collection[TableId]) -> tuple[TableId, ...]:
        """Marks the `expected` tables as live and returns them: those whose snapshots say that they go live. Raises
        CommitConflict if one of them is not due any more: its copy, or that of another table of its resync, was given
        up or restarted since these were staged."""
        if not expected:
            return ()
        self.cursor.execute(
            _SQL["go_live"],
            {
                "slot": self.slot,
                "table_ids": list(expected),
                "frontier": self.frontier,
                "former": states_before(TableEvent.COMPLETED),
                "state": state_by(TableEvent.COMPLETED).value,
            },
        )
        live = tuple(TableId(table_id) for (table_id,) in self.cursor.fetchall())
        if set(live) != set(expected):
            raise CommitConflict("the copy of a table was given up while this was being published")
        return live

    def fail(self, failure: Failure) -> bool:
        """Fails the table. Returns False if the registration that failed no longer exists."""
        table = failure.table
        parameters = {
            "table_id": table.table_id,
            "start_lsn": table.start_lsn,
            "error": failure.error,
            "former": states_before(failure.event),
            "state": state_by(failure.event).value,
        }
        return self.cursor.execute(_SQL["fail"], parameters).rowcount == 1
