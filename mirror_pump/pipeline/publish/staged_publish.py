"""What staging has prepared for a publish: the next state of each table, and the tables that are left out or fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror_pump.lake.commit.archive_branch import StagedArchive
from mirror_pump.lake.commit.row_delta import LakeTable, StagedCommit
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.model import Lsn, SequenceNumber, TableId, TableName, TableState
from mirror_pump.pipeline.feeds.feed_staging import PublishedTable, StagedFeeds
from mirror_pump.pipeline.key_index.key_indexes import EncodedDeletes
from mirror_pump.pipeline.landing.published_tables import Swap
from mirror_pump.pipeline.operations.operation import Recording, TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import TableRequest
from mirror_pump.pipeline.operations.table_changes import Failure


@dataclass(frozen=True)
class StagedTable:
    """One table's part of a publish under way."""

    request: TableRequest
    """The operations that are published."""
    plan: TablePlan
    """The combined effect of these operations."""
    registration: Registration
    """The registration that it was staged on."""
    base_sequence: int
    """The lake table's last sequence number before the publish."""
    encoded: EncodedDeletes | None = None
    staged: StagedCommit | None = None
    """None if nothing of main changes."""
    archive: StagedArchive | None = None
    """The refreshed published snapshot, on top of `staged`."""
    data_sequence_number: SequenceNumber | None = None
    """The data sequence number of files that are copied from here on, if it changes."""
    values_kept: tuple[int, int] | None = None
    """As of Recording."""
    goes_live: bool = False
    """The table goes live with this publish, and `staged` says at which frontier."""

    def recording(self, slot: str, frontier: Lsn) -> Recording:
        """Returns what its operations need to know in the publish transaction."""
        return Recording(
            table=self.request.table,
            registration=self.registration,
            state=self.plan.state,
            slot=slot,
            frontier=frontier,
            base_sequence=self.base_sequence,
            archive=self.archive,
            values_kept=self.values_kept,
        )

    @property
    def table(self) -> LakeTable | None:
        """The table after the publish; None if nothing of the lake changes."""
        if self.archive is not None:
            return self.archive.table
        return None if self.staged is None else self.staged.table

    @property
    def hidden(self) -> bool:
        """Whether readers do not see the commit yet: the table is copied again or filled, or that begins here."""
        leaves_readers = self.registration.state is TableState.LIVE and self.plan.state is not TableState.LIVE
        return self.staged is not None and (self.registration.staged or leaves_readers)

    @property
    def head(self) -> TableHead | None:
        """What the publish makes the catalog name; None if the pointer stays where it is."""
        return None if self.table is None or self.hidden else TableHead.of(self.table)

    @property
    def files(self) -> tuple[str, ...]:
        """Files that staging wrote."""
        return (*(self.staged.files if self.staged else ()), *(self.archive.files if self.archive else ()))


@dataclass
class StagedPublish:
    """The staged publish, table by table."""

    accepted: list[StagedTable] = field(default_factory=list)
    dropped: list[TableId] = field(default_factory=list)
    """Tables whose changes were left out: unregistered, registered again, or failed meanwhile."""
    refused: list[TableId] = field(default_factory=list)
    """Tables whose file rewrite or fold was left out."""
    failures: list[Failure] = field(default_factory=list)
    """Tables that fail: another engine altered the lake table, the lake table cannot take their columns, or the table
    would lose rows."""
    swaps: dict[TableId, Swap] = field(default_factory=dict)
    """The swaps of tables that were copied again and go live."""
    feeds: StagedFeeds = field(default_factory=StagedFeeds)
    """The part of change feeds."""

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of the files that tasks and staging wrote for what is published, those of deletes included."""
        return tuple(
            file
            for accepted in self.accepted
            for files in (
                *(operation.files for operation in accepted.request.operations),
                () if accepted.encoded is None else accepted.encoded.written,
                accepted.files,
            )
            for file in files
        ) + tuple(self.feeds.written)

    @property
    def written(self) -> tuple[str, ...]:
        """URIs of the files that staging wrote."""
        return (
            *self.feeds.written,
            *(file for swap in self.swaps.values() for file in swap.files),
            *(
                file
                for accepted in self.accepted
                for files in (accepted.files, () if accepted.encoded is None else accepted.encoded.written)
                for file in files
            ),
        )

    @property
    def feed_tables(self) -> dict[TableId, PublishedTable]:
        """What happens to the tables, for their change feeds."""
        return {
            accepted.request.table.table_id: PublishedTable(
                table=accepted.request.table,
                operations=accepted.request.operations,
                was_live=accepted.registration.state is TableState.LIVE,
                is_live=accepted.goes_live or accepted.plan.state is TableState.LIVE,
            )
            for accepted in self.accepted
        }

    @property
    def names(self) -> dict[TableId, TableName]:
        """Returns the new names of tables that may have been renamed."""
        tables = [accepted.request.table for accepted in self.accepted if accepted.request.change is not None]
        return {table.table_id: table.name for table in tables}

    @property
    def going_live(self) -> frozenset[TableId]:
        """Returns the tables whose staged snapshot says that they go live."""
        return frozenset(accepted.request.table.table_id for accepted in self.accepted if accepted.goes_live)
