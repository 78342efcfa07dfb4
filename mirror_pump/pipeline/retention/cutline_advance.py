"""Has the session's loop move the cut-line past a sealed partition, once nothing is in its way.

The rows of a mirrored table are in the lake once the frontier has passed the seal. Those of a tiered one are copied
here, and come into the lake with the publish that moves the cut-line.
"""

from __future__ import annotations

from collections.abc import Callable

from mirror_pump.lake.storage import discard
from mirror_pump.model import Lsn, MirroredTable, TableMode
from mirror_pump.partition_life import WAITING, Refused, StepResult
from mirror_pump.pipeline.flow.events import FrontierWanted, PublishWanted
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.tasks import Tasks, publish_outcome
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline, PartitionFiles
from mirror_pump.pipeline.retention.partition_copy import NotCopied, PartitionCopier
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Partition, RetentionChoices

OnCopied = Callable[[int], None]
"""Called with the number of rows of a partition when the last of them is copied."""


class CutlineAdvance:
    """Moves cut-lines, one at a time. Used by one thread."""

    def __init__(self, context: SessionContext, tasks: Tasks, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._inbox = context.inbox
        self._stopping = stopping
        self._copier = PartitionCopier(context, tasks)
        self.awaits_frontier = False
        """An advance waits for the frontier."""
        self.goes_on = False
        """The next step of a partition can be taken at once."""

    def tidy(self, connection: PgConnection, table: MirroredTable) -> None:
        """Removes files of copies that are worthless, and captured changes that the lake has."""
        if table.mode is TableMode.TIERED:
            self._copier.tidy(connection, table)
            source.run(connection, "forget_captured", {"table_id": table.table_id})

    def advance(
        self,
        connection: PgConnection,
        table: MirroredTable,
        partition: Partition,
        choices: RetentionChoices,
        copied: OnCopied,
    ) -> StepResult:
        """Has the cut-line pass the partition. Raises ThreadStopped, ConnectionLost and the errors of tasks."""
        assert partition.sealed_lsn is not None
        try:
            if table.mode is TableMode.TIERED:
                return self._advance_tiered(connection, table, partition, copied)
        except NotCopied as refusal:
            return Refused(str(refusal))
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        if self._reader_in_the_way(connection, table, partition):
            return WAITING
        if partition.name is not None and source.run(connection, "crowded", where):
            return Refused("much of it was changed since it was sealed: it is sealed again")
        if choices.applied < partition.sealed_lsn:
            self.awaits_frontier = True
            self._inbox.put(FrontierWanted(Lsn(partition.sealed_lsn)))
            return WAITING
        return self._publish(table, partition, None)

    def _advance_tiered(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, copied: OnCopied
    ) -> StepResult:
        """As `advance`. Also raises NotCopied."""
        if partition.name is not None:
            turn = self._copier.copy(connection, table, partition)
            if turn.copied:
                if not turn.left:
                    copied(turn.rows)
                # It may have taken long: whether the partition is still due is asked again.
                self.goes_on = True
                return WAITING
        if self._reader_in_the_way(connection, table, partition):
            return WAITING
        if partition.name is None:
            return self._publish(table, partition, None)
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        while source.run(connection, "make_room", where):
            pass
        brings = self._copier.files(connection, table, partition)
        result = self._publish(table, partition, brings)
        if isinstance(result, Refused):
            discard(brings.changed.locations if brings.changed is not None else (), self._context.storage)
        return result

    def _reader_in_the_way(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> bool:
        """Whether the cut-line has to wait for a reader, which is noted."""
        reader = source.reader_in_the_way(connection, table.table_id, partition.hi)
        if reader is None:
            return False
        # Check again at every turn without backoff: the cut-line moves as soon as the reader is done.
        where = {"table_id": table.table_id, "partition_id": partition.partition_id, "reason": reader}
        source.run(connection, "waits", where)
        return True

    def _publish(self, table: MirroredTable, partition: Partition, brings: PartitionFiles | None) -> StepResult:
        """Has the loop publish the advance."""
        request = PublishWanted(table, AdvanceCutline(partition.partition_id, partition.hi, brings))
        return publish_outcome(self._context, request, self._stopping)
