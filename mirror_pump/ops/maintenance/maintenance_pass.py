"""One maintenance pass over one table: finds out what is due, does it, records it in the journal, publishes the result.

The pump may run meanwhile: since commits of both are optimistic, neither undoes the other's. A table whose initial copy
is incomplete is skipped, because its remaining chunks need the present delete files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    FileMissing,
    LakeError,
    SourceError,
    TableError,
    UsageError,
)
from mirror_pump.lake.commit.catalog import ENGINE_PROPERTIES
from mirror_pump.lake.commit.fork_difference import fork_difference
from mirror_pump.lake.commit.merged_manifests import merge_manifests
from mirror_pump.lake.commit.presence import head_files, require_files
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.table_stats import TableStats
from mirror_pump.lake.document.next_metadata import with_properties, without_snapshots, without_tags
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId, TableName
from mirror_pump.operation_life import OperationPhase
from mirror_pump.ops.maintenance.feed_pass import FeedMaintenance
from mirror_pump.ops.maintenance.file_counts import FileCounter
from mirror_pump.ops.maintenance.journal import Heartbeat, journaled_operation, running_operation
from mirror_pump.ops.maintenance.plan import (
    DECISIONS,
    ExpireSnapshots,
    MaintenanceOperation,
    PastMaintenance,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeletes,
    SweepFiles,
    TableCondition,
    warnings_of,
)
from mirror_pump.ops.maintenance.sweep import Sweep, SweptMirror, pinned_snapshots, sweep
from mirror_pump.pipeline.landing.fork import forked
from mirror_pump.pipeline.landing.table_landing import TableLanding
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles, stored_tables
from mirror_pump.pipeline.publish.foreign_commits import republish
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.policy import Policy, policy_of
from mirror_pump.source.catalog.change_feeds import TRANSACTIONS_ID
from mirror_pump.source.catalog.kept_moments import is_stale_tag
from mirror_pump.source.catalog.maintenance import (
    COMPACTION,
    MAINTENANCE,
    MaintainedTable,
    TableUnregistered,
    begin,
    claim,
    clear_up,
    last,
    may_delete_files,
    read_tables,
    safe_time,
    store_stats,
    table_lock,
)
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection

_ATTEMPTS = 4
"""Number of attempts at an operation whose commit conflicts with others. Iceberg has already tried each commit 50
times, so the operation has to be computed again."""
_BACKOFF = Backoff(first=0.5, longest=10.0, jitter=1.0)
"""Pauses between these attempts."""
_ENDED = "no longer registered"
TRANSACTIONS = "modak.transactions"
"""What the table of transactions is called among the tables that are maintained."""
_SWEPT_SHOWN = 20
"""Number of deleted files whose locations the journal keeps."""


@dataclass(frozen=True, kw_only=True)
class MaintenanceBacklog(TableCondition):
    """A table's condition, with its files."""

    state: LakeTable
    warnings: tuple[str, ...]

    @property
    def lake_name(self) -> TableName:
        """The table's name in the Iceberg catalog."""
        return TableName(self.table.name.schema, self.table.lake_table)


@dataclass
class PassResult:
    """What a pass did to one table."""

    table: str
    done: list[str] = field(default_factory=list)
    """A line per operation that was done."""
    errors: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why the table could not be maintained; empty if it could."""
    before: TableStats | None = None
    after: TableStats | None = None


class Maintenance:
    """Maintains tables, one at a time. `procedures` starts Spark when it is first called."""

    def __init__(
        self,
        connection: PgConnection,
        slot: str,
        storage: StorageOptions,
        procedures: Callable[[], Procedures],
        heartbeat: Heartbeat,
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._storage = storage
        self._procedures = procedures
        self._heartbeat = heartbeat
        self._counter = FileCounter(storage)
        self._loaded: dict[TableId, LakeTable] = {}
        self._log = get_logger("maintain")

    def read_backlogs(self, table_ids: Sequence[TableId] | None = None) -> list[MaintenanceBacklog]:
        """The backlog of each of the tables, of all tables by default. Its statistics are stored in modak.lake_stats.

        Leaves out tables that are being copied, and, with a line in the log, those that cannot be read and those that
        are unregistered meanwhile.
        """
        backlogs = []
        for table in read_tables(self._connection, self._slot, table_ids):
            if table.copying:
                continue
            try:
                with work_for(table.name, remedy=REPORT):
                    backlogs.append(self._backlog_now(table))
            except (LakeError, UsageError, TableError) as error:
                if not self._has_ended(table):
                    self._log.warning("cannot read a table", table=str(table.name), error=str(error))
        if table_ids is None:
            states = {backlog.table.table_id: backlog.state for backlog in backlogs}
            self._loaded = states
            self._counter.forget_all_but(tuple(states.values()))
        return backlogs

    def maintain(self, table_id: TableId, *, claimed_only: bool = False) -> PassResult | None:
        """One pass over a table. Returns None if another maintainer works on the table.

        Claims a pending request for the table; such a pass ignores the policy's thresholds. With `claimed_only` nothing
        is done, and None is returned, if no request is pending.
        """
        with table_lock(self._connection, table_id) as granted:
            if not granted:
                return None
            try:
                clear_up(self._connection, table_id)
                details = {"operation": "pass"}
                claimed = claim(self._connection, table_id, details)
                if claimed is None and claimed_only:
                    return None
                with work_for(str(table_id), remedy=REPORT):
                    return self._pass(table_id, claimed[0] if claimed else None)
            except TableUnregistered:
                return PassResult(str(table_id), skipped=_ENDED)
            except TableError as error:
                return PassResult(str(table_id), errors=[str(error)])

    def dry_run(self, backlog: MaintenanceBacklog) -> tuple[tuple[MaintenanceOperation, ...], Sweep | None]:
        """The operations that a requested pass would run now, and the files that its sweep would delete."""
        operations = backlog.due(requested=True)
        swept = None
        if any(isinstance(operation, SweepFiles) for operation in operations):
            swept = self._swept(backlog, self._procedures().at(backlog.table.location), dry_run=True)
        return operations, swept

    def _pass(self, table_id: TableId, op_id: uuid.UUID | None) -> PassResult:
        """One pass over a table. `op_id`: the journal's row of a requested one, which ignores thresholds.

        What is due is decided operation by operation, on the table as the one before has left it. A rewrite in several
        parts is repeated until it has none left.
        """
        requested = op_id is not None
        result = PassResult(str(table_id))
        if op_id is None:
            if not self._anything_due(table_id, result):
                return result
            op_id = begin(self._connection, table_id, MAINTENANCE, OperationPhase.RUNNING, {"operation": "pass"})
        with running_operation(self._connection, self._heartbeat, op_id) as outcome:
            for decide in DECISIONS:
                parts = None
                more = True
                while more:
                    backlog = self.backlog_of(table_id, result)
                    due = decide(backlog, requested) if backlog is not None else None
                    if isinstance(due, RewriteDataFiles):
                        parts = due.parts if parts is None else parts
                        parts -= 1
                    more = (
                        backlog is not None
                        and due is not None
                        and self._run_operation(backlog, due, result)
                        and bool(parts)
                    )
                    result.before = result.before or (backlog.figures if backlog is not None else None)
            final_backlog = self.backlog_of(table_id, result)
            if final_backlog is not None:
                self._maintain_feed(int(table_id), final_backlog.policy, result, requested=requested)
                result.after = final_backlog.figures
                self._republish(final_backlog)
            outcome |= {"done": result.done, "errors": result.errors, "skipped": result.skipped}
            outcome["before"] = result.before.to_json() if result.before else None
            outcome["after"] = result.after.to_json() if result.after else None
            if result.errors:
                outcome["phase"] = OperationPhase.FAILED
        return result

    def _anything_due(self, table_id: TableId, result: PassResult) -> bool:
        backlog = self.backlog_of(table_id, result)
        return backlog is not None and self.is_due(backlog)

    def is_due(self, backlog: MaintenanceBacklog) -> bool:
        """Whether something is due by itself, for the table or for its change feed."""
        if not backlog.policy.maintenance_enabled:
            return False
        return bool(backlog.due(requested=False)) or self._feed_is_due(backlog)

    def _feed_is_due(self, backlog: MaintenanceBacklog) -> bool:
        try:
            return self._feeds(backlog.policy).due(int(backlog.table.table_id))
        except LakeError as error:
            self._log.warning("cannot read a change feed", table=str(backlog.table.name), error=str(error))
            return False

    def maintain_transactions(self, *, requested: bool) -> PassResult:
        """Maintains the table of transactions, by the default policy. Does nothing if another maintainer does, or if
        there is none."""
        result = PassResult(TRANSACTIONS)
        if not requested and not self._transactions_are_due():
            return result
        with table_lock(self._connection, TableId(TRANSACTIONS_ID)) as granted:
            if granted:
                self._maintain_feed(TRANSACTIONS_ID, Policy(), result, requested=requested)
        return result

    def _transactions_are_due(self) -> bool:
        try:
            return self._feeds(Policy()).due(TRANSACTIONS_ID)
        except LakeError as error:
            self._log.warning("cannot read the table of transactions", error=str(error))
            return False

    def feed_dry_run(self, table_id: int, policy: Policy) -> list[str]:
        """What a requested pass would do to a change feed, as lines of text. Raises LakeError."""
        return self._feeds(policy).dry_run(table_id)

    def _maintain_feed(self, feed_id: int, policy: Policy, result: PassResult, *, requested: bool) -> None:
        try:
            lines = self._feeds(policy).maintain(feed_id, requested=requested)
            result.done += [f"change feed: {line}" for line in lines]
        except (LakeError, SourceError) as error:
            if isinstance(error, ConnectionLost):
                raise
            result.errors.append(f"change feed: {error}")
            self._log.warning("change feed", table=result.table, error=str(error))

    def _feeds(self, policy: Policy) -> FeedMaintenance:
        return FeedMaintenance(self._connection, self._slot, self._storage, policy)

    def _run_operation(self, backlog: MaintenanceBacklog, due: MaintenanceOperation, result: PassResult) -> bool:
        """Runs one operation, again after conflicts with other commits, and adds the outcome to `result`. Returns True
        if it was one part of a rewrite and more parts are left."""
        name = due.name
        self._log.info(name, table=str(backlog.table.name), reason=due.reason)
        try:
            with work_for(backlog.table.name, remedy=REPORT):
                counts = _BACKOFF.call(
                    lambda: self._attempt(backlog.table.table_id, due),
                    lambda error: isinstance(error, CommitConflict),
                    most=_ATTEMPTS,
                )
        except (LakeError, TableError) as error:
            if self._has_ended(backlog.table):
                result.skipped = _ENDED
                return False
            result.errors.append(f"{name}: {error}")
            self._log.warning(name, table=str(backlog.table.name), error=str(error))
        else:
            if counts is not None:
                shown = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in counts.items() if value)
                result.done.append(f"{name} ({due.reason}): {shown or 'nothing to do'}")
                return isinstance(due, RewriteDataFiles) and not due.rewrite.complete(counts)
        return False

    def _attempt(self, table_id: TableId, due: MaintenanceOperation) -> dict[str, int] | None:
        """One attempt, on the table as it is now. Returns the procedure's counts, or None if the table cannot be
        maintained now."""
        # Start Spark before looking at the table. It may take minutes, during which the pump commits and readers pin
        # snapshots, and the journal should not show a rewrite yet.
        procedures = self._procedures()
        backlog = self.backlog_of(table_id, PassResult(""))
        if backlog is None:
            return None
        kind = COMPACTION
        phase = OperationPhase.RUNNING
        details: dict[str, Any] = {"operation": due.name, "reason": due.reason}
        if isinstance(due, ExpireSnapshots | SweepFiles):
            kind = MAINTENANCE
        else:
            phase = OperationPhase.REWRITING
            # The sequence number of main's head, where Spark begins. The last commit may have been to branch `cold`.
            details["since_sequence"] = int(backlog.state.sequence_number)
        with journaled_operation(self._connection, self._heartbeat, table_id, kind, phase, details) as outcome:
            counts = self._execute(procedures.at(backlog.table.location), backlog, due, outcome)
            outcome["counts"] = counts
            outcome["sequence_number"] = backlog.figures.sequence_number
            if kind == COMPACTION:
                after = self.backlog_of(table_id, PassResult(""))
                if after is not None:
                    self._republish(after)
                    outcome["snapshot_id"] = int(after.state.snapshot_id)
        return counts

    def _execute(
        self, procedures: Procedures, backlog: MaintenanceBacklog, due: MaintenanceOperation, outcome: dict[str, Any]
    ) -> dict[str, int]:
        """Runs one operation. Returns its counts as Iceberg's procedures name them. What else the journal shows goes
        into `outcome`."""
        match due:
            case RewriteDataFiles():
                self._land_engine_properties(backlog)
                return self._rewrite_on_fork(
                    backlog,
                    lambda: procedures.on_forks.rewrite_data_files(backlog.lake_name, due.rewrite),
                    lambda counts: due.rewrite.deletes and due.rewrite.complete(counts),
                )
            case RewritePositionDeletes():
                return self._rewrite_on_fork(
                    backlog,
                    lambda: procedures.on_forks.rewrite_position_deletes(backlog.lake_name, due.min_input_files),
                    lambda _: False,
                )
            case RewriteManifests():
                return self._merge_manifests(backlog)
            case ExpireSnapshots():
                return self._expire(procedures, backlog, due, outcome)
            case SweepFiles():
                self._land_without_stale_tags(backlog)
                swept = self._swept(backlog, procedures, dry_run=False)
                if swept is None:
                    raise TableError(
                        f"{backlog.table.name} changed before its sweep", "the next pass looks at it again"
                    )
                outcome["locations"] = [file.location for file in swept.files[:_SWEPT_SHOWN]]
                return {
                    "listed_files": swept.listed,
                    "old_files": swept.candidates,
                    "deleted_files": len(swept.files),
                    "deleted_bytes": swept.size_bytes,
                }

    def _swept(self, backlog: MaintenanceBacklog, procedures: Procedures, *, dry_run: bool) -> Sweep | None:
        table = SweptMirror(self._connection, self._slot, self._storage, backlog.table.name, backlog.table, procedures)
        return sweep(table, backlog.policy, dry_run=dry_run)

    def _land_engine_properties(self, backlog: MaintenanceBacklog) -> None:
        """Lands the properties for engines that the table lacks."""
        missing = {
            key: value
            for key, value in {**ENGINE_PROPERTIES, **backlog.state.schema.engine_properties}.items()
            if key not in backlog.state.metadata.properties
        }
        if missing:
            self._landing(backlog).land_metadata(
                lambda metadata, location, now_ms: with_properties(metadata, missing, location, now_ms)
            )

    def _land_without_stale_tags(self, backlog: MaintenanceBacklog) -> None:
        """Removes tags of moments that were dropped while the lake table was not to be changed."""
        if not any(is_stale_tag(tag, backlog.table.moments) for tag in backlog.state.metadata.refs):
            return

        def cleaned(metadata: TableMetadata, location: str, now_ms: int) -> TableMetadata:
            # Another moment may be kept under the name by now. One that is kept later moves the pointer.
            registered = read_tables(self._connection, self._slot, [backlog.table.table_id])
            names = [name for table in registered for name in table.moments]
            stale = {tag for tag in metadata.refs if is_stale_tag(tag, names)}
            return without_tags(metadata, stale, location, now_ms)

        self._landing(backlog).land_metadata(cleaned)

    def _merge_manifests(self, backlog: MaintenanceBacklog) -> dict[str, int]:
        landing = self._landing(backlog)
        merged = merge_manifests(landing.load_current())
        if merged is None:
            return {}
        landing.land_manifests(merged)
        return {"rewritten_manifests_count": len(merged.sources), "added_manifests_count": len(merged.manifests)}

    def _expire(
        self, procedures: Procedures, backlog: MaintenanceBacklog, due: ExpireSnapshots, outcome: dict[str, Any]
    ) -> dict[str, int]:
        # Raises LakeError if a pinned snapshot is no longer in the history: it may need files that expiry would delete.
        pinned_snapshots(backlog.state, backlog.table)
        self._land_without_stale_tags(backlog)
        landing = self._landing(backlog)
        before = landing.load_current()
        # Leave out snapshots that were pinned, or removed from the history, since the decision.
        ids = backlog.still_expirable(due, before.metadata, backlog.table)
        if not ids:
            return {"expired_snapshots": 0}

        def expired(metadata: TableMetadata, location: str, now_ms: int) -> TableMetadata:
            (table,) = read_tables(self._connection, self._slot, [backlog.table.table_id]) or (backlog.table,)
            remaining = {snapshot.snapshot_id for snapshot in metadata.snapshots}.intersection(ids)
            if not remaining.issubset(backlog.still_expirable(due, metadata, table)):
                raise CommitConflict("one of the snapshots is pinned, or named by a branch or tag, meanwhile")
            return without_snapshots(metadata, remaining, location, now_ms)

        landing.land_metadata(expired)
        # Readers pin a snapshot first, and then check that it is in the history. So a reader whose pin is not visible
        # here will find that the snapshot is gone, and read nothing.
        (table,) = read_tables(self._connection, self._slot, [backlog.table.table_id]) or (None,)
        if table is None or not set(ids).issubset(backlog.still_expirable(due, before.metadata, table)):
            outcome["left"] = "one of them was pinned meanwhile: a sweep deletes their files once the pin is released"
            return {"expired_snapshots": len(ids)}
        if not may_delete_files(self._connection, self._slot):
            outcome["left"] = "the database may have been restored: a sweep deletes their files once that is reconciled"
            return {"expired_snapshots": len(ids)}
        # Iceberg finds their files by what an expiry changes. Here it expires them on a fork, which begins with them.
        with forked(self._connection, backlog.lake_name, before):
            deleted = procedures.on_forks.expire_snapshots(backlog.lake_name, ids)
        return {"expired_snapshots": len(ids), **deleted}

    def _rewrite_on_fork(
        self,
        backlog: MaintenanceBacklog,
        rewrite: Callable[[], dict[str, int]],
        drops_deletes: Callable[[dict[str, int]], bool],
    ) -> dict[str, int]:
        """Has Spark rewrite a fork of the table, and lands what it did. `drops_deletes` tells from the counts whether
        every file that deletes of the fork's base may apply to was rewritten. Returns the counts."""
        landing = self._landing(backlog)
        base = landing.load_current()
        with forked(self._connection, backlog.lake_name, base) as fork:
            counts = rewrite()
            change = fork_difference(base, fork.load(), drop_deletes=drops_deletes(counts))
        if change is None:
            return counts
        landing.land_rewrite(change)
        return counts | {"removed_delete_files_count": len(change.removed - change.removed_data)}

    def _landing(self, backlog: MaintenanceBacklog) -> TableLanding:
        table, name = backlog.table, backlog.lake_name
        return TableLanding(self._connection, self._slot, table.table_id, table.start_lsn, name, self._storage)

    def _republish(self, backlog: MaintenanceBacklog) -> None:
        republish(self._connection, self._slot, backlog.table.table_id, backlog.table.start_lsn, self._storage)

    def backlog_of(self, table_id: TableId, result: PassResult) -> MaintenanceBacklog | None:
        """The table's present backlog. If it cannot be maintained now, adds the reason to `result` and returns None."""
        tables = read_tables(self._connection, self._slot, [table_id])
        if not tables:
            result.skipped = _ENDED
            return None
        result.table = str(tables[0].name)
        if tables[0].copying:
            result.skipped = "its initial copy is not complete"
            return None
        try:
            return self._backlog_now(tables[0])
        except (LakeError, UsageError, TableUnregistered) as error:
            if self._has_ended(tables[0]):
                result.skipped = _ENDED
            else:
                result.errors.append(str(error))
            return None

    def _has_ended(self, table: MaintainedTable) -> bool:
        """Whether this registration has ended: then a failure has no consequence but a line in the log."""
        (current_table,) = read_tables(self._connection, self._slot, [table.table_id]) or (None,)
        ended = current_table is None or current_table.start_lsn != table.start_lsn
        if ended:
            self._log.info("unregistered meanwhile", table=str(table.name))
        return ended

    def _backlog_now(self, table: MaintainedTable) -> MaintenanceBacklog:
        policy = policy_of(table.policy or {})
        state = self._loaded.get(table.table_id)
        try:
            if state is None or state.metadata_location != table.metadata_location:
                state = self._loaded[table.table_id] = LakeTable.load(table.metadata_location, self._storage)
            # The state may have been loaded long ago, and its files may be missing by now.
            require_files(head_files(state), self._storage)
        except FileMissing as error:
            raise self._explain_missing_file(table.table_id, error) from error
        # Raises if another engine has altered the table. Such a table is not maintained.
        key = tuple(field.name for field in state.schema.key.fields)
        figures = self._counter.measure(state, policy.rewrite_target_bytes)
        warnings = tuple(warnings_of(state.metadata, figures, policy))
        stats = {**figures.to_json(), "metadata_location": table.metadata_location}
        store_stats(self._connection, table.table_id, stats, warnings, policy.to_json())
        return MaintenanceBacklog(
            table=table,
            metadata=state.metadata,
            policy=policy,
            figures=figures,
            past=self._past(table.table_id),
            now=safe_time(self._connection),
            key=key,
            names_removed=any(manifest.removed_files for manifest in state.manifests),
            state=state,
            warnings=warnings,
        )

    def _explain_missing_file(self, table_id: TableId, error: FileMissing) -> LakeError:
        """An error that says whether only this table lacks files, or the whole warehouse is gone."""
        table = load_table(self._connection, table_id)
        if table is None:
            return error
        explanation = MissingFiles(self._storage, partial(stored_tables, self._connection)).error_of(table, error)
        return LakeError(f"{explanation}: {explanation.remedy}")

    def _past(self, table_id: TableId) -> PastMaintenance:
        last_sweep = last(self._connection, table_id, SweepFiles.name)
        return (
            PastMaintenance()
            if last_sweep is None
            else PastMaintenance(swept_at_sequence=int(last_sweep[1].get("sequence_number", 0)))
        )


def operation_lines(operations: Iterable[MaintenanceOperation]) -> list[str]:
    """One line of text per operation: its name and its reason."""
    return [f"{operation.name}: {operation.reason}" for operation in operations]
