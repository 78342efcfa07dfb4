"""One pass of maintenance over one table: look at its debt, do what is due, journal it, publish what it left.

The pump may run or not, and commits meanwhile; Iceberg's optimistic commits and ours see to it that neither undoes the
other. A table whose initial copy is not complete is left alone: its later chunks need the deletes that it has.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mirror_pump.backoff import Backoff
from mirror_pump.engine.procedures import Procedures
from mirror_pump.errors import CommitConflict, FileMissing, LakeError, TableError, UsageError
from mirror_pump.lake.commit.catalog import ENGINE_PROPERTIES
from mirror_pump.lake.commit.presence import head_files, require_files
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.table_stats import TableStats
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId, TableName
from mirror_pump.ops.maintenance.commit_pause import CommitPause
from mirror_pump.ops.maintenance.file_counts import FileCounter
from mirror_pump.ops.maintenance.journal import Heartbeat, ended, operation
from mirror_pump.ops.maintenance.plan import (
    NAMES,
    ExpireSnapshots,
    Operation,
    Past,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeletes,
    SweepFiles,
    expiry_of,
    manifests_of,
    position_deletes_of,
    rewrite_of,
    sweep_of,
    warnings_of,
)
from mirror_pump.ops.maintenance.sweep import Sweep, pinned_snapshots, sweep
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles, stored_tables
from mirror_pump.pipeline.publish.republication import republish
from mirror_pump.policy import Policy, policy_of
from mirror_pump.source.catalog.maintenance import (
    COMPACTION,
    FAILED,
    MAINTENANCE,
    REWRITING,
    RUNNING,
    MaintainedTable,
    begin,
    claim,
    clear_up,
    last,
    read_tables,
    store_stats,
    table_lock,
)
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.telemetry import get_logger

_ATTEMPTS = 4
"""Of an operation that other commits were in the way of: Iceberg itself has tried its commit 50 times by then, so the
conflict is in substance, and goes away only with new input."""
_BACKOFF = Backoff(first=0.5, longest=10.0, jitter=1.0)
"""Between these attempts."""
_SWEPT_SHOWN = 20
"""Locations of deleted files that the journal keeps."""


@dataclass(frozen=True)
class MaintenanceBacklog:
    """A table as a look at it found it."""

    table: MaintainedTable
    state: LakeTable
    key: tuple[str, ...]
    """Names of the key columns in the lake."""
    policy: Policy
    figures: TableStats
    past: Past
    warnings: tuple[str, ...]

    @property
    def lake_name(self) -> TableName:
        """The table's name in the Iceberg catalog."""
        return TableName(self.table.name.schema, self.table.lake_table)

    def due(self, *, asked: bool) -> tuple[Operation, ...]:
        """What there is to do; `asked`: somebody wants all of it, whether it is worth the effort or not."""
        return tuple(operation for decide in _DECISIONS if (operation := decide(self, asked)) is not None)


_Decision = Callable[[MaintenanceBacklog, bool], Operation | None]


def _rewrite(debt: MaintenanceBacklog, asked: bool) -> Operation | None:
    return rewrite_of(debt.figures, debt.policy, debt.key, asked=asked)


_DECISIONS: tuple[_Decision, ...] = (
    _rewrite,
    lambda debt, asked: position_deletes_of(debt.figures, debt.policy, asked=asked),
    lambda debt, asked: manifests_of(debt.figures, debt.policy, asked=asked),
    lambda debt, asked: expiry_of(
        debt.state.metadata, debt.table.protected, debt.policy, time.time_ns() // 1_000_000, asked=asked
    ),
    lambda debt, asked: sweep_of(debt.figures, debt.policy, debt.past, asked=asked),
)
"""In the order in which the operations follow each other: each makes work for the next."""


@dataclass
class PassResult:
    """What a pass did to one table."""

    table: str
    done: list[str] = field(default_factory=list)
    """A line per operation."""
    errors: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why nothing was done, if nothing could be."""
    before: TableStats | None = None
    after: TableStats | None = None


class Maintenance:
    """Looks at tables and maintains them, one at a time. `procedures` starts Spark when it is first called."""

    def __init__(
        self,
        dsn: str,
        connection: PgConnection,
        slot: str,
        storage: StorageOptions,
        procedures: Callable[[], Procedures],
        heartbeat: Heartbeat,
    ) -> None:
        self._dsn = dsn
        self._connection = connection
        self._slot = slot
        self._storage = storage
        self._procedures = procedures
        self._heartbeat = heartbeat
        self._meter = FileCounter(storage)
        self._loaded: dict[TableId, LakeTable] = {}
        self._log = get_logger("maintain")

    def look(self, table_ids: Sequence[TableId] | None = None) -> list[MaintenanceBacklog]:
        """Each table's debt, stored in modak.lake_stats too. Tables that are being copied, or cannot be read, are left
        out; the latter are logged."""
        found = []
        for table in read_tables(self._connection, self._slot, table_ids):
            if table.copying:
                continue
            try:
                found.append(self._debt(table))
            except (LakeError, UsageError) as error:
                self._log.warning("cannot look at a table", table=str(table.name), error=str(error))
        if table_ids is None:
            present = {debt.table.table_id: debt.state for debt in found}
            self._loaded = present
            self._meter.forget_all_but(tuple(present.values()))
        return found

    def maintain(self, table_id: TableId, *, claimed_only: bool = False) -> PassResult | None:
        """One pass. A request for it that is pending is claimed, and makes the pass do all there is to do; with
        `claimed_only` nothing is done without one. None: another maintainer works on the table, or has the request."""
        with table_lock(self._connection, table_id) as granted:
            if not granted:
                return None
            clear_up(self._connection, table_id)
            details = {"operation": "pass"}
            claimed = claim(self._connection, table_id, details)
            if claimed is None and claimed_only:
                return None
            return self._pass(table_id, claimed[0] if claimed else None)

    def dry_run(self, debt: MaintenanceBacklog) -> tuple[tuple[Operation, ...], Sweep | None]:
        """What a requested pass would do now, and which files its sweep would delete."""
        operations = debt.due(asked=True)
        swept = None
        if any(isinstance(operation, SweepFiles) for operation in operations):
            swept = sweep(
                self._connection, self._slot, debt.table, debt.policy, self._procedures(), self._storage, dry_run=True
            )
        return operations, swept

    def _pass(self, table_id: TableId, op_id: uuid.UUID | None) -> PassResult:
        asked = op_id is not None
        result = PassResult(str(table_id))
        if op_id is None:
            if not self._anything_due(table_id, result):
                return result
            op_id = begin(self._connection, table_id, MAINTENANCE, RUNNING, {"operation": "pass"})
        with ended(self._connection, self._heartbeat, op_id) as outcome:
            for decide in _DECISIONS:
                parts = None
                more = True
                while more:
                    debt = self.debt_of(table_id, result)
                    due = decide(debt, asked) if debt is not None else None
                    if isinstance(due, RewriteDataFiles):
                        parts = due.parts if parts is None else parts
                        parts -= 1
                    more = debt is not None and due is not None and self._do(debt, due, result) and bool(parts)
                    result.before = result.before or (debt.figures if debt is not None else None)
            last_look = self.debt_of(table_id, result)
            if last_look is not None:
                result.after = last_look.figures
                self._republish(last_look)
            outcome |= {"done": result.done, "errors": result.errors, "skipped": result.skipped}
            outcome["before"] = result.before.to_json() if result.before else None
            outcome["after"] = result.after.to_json() if result.after else None
            if result.errors:
                outcome["phase"] = FAILED
        return result

    def _anything_due(self, table_id: TableId, result: PassResult) -> bool:
        debt = self.debt_of(table_id, result)
        return debt is not None and debt.policy.maintenance_enabled and bool(debt.due(asked=False))

    def _do(self, debt: MaintenanceBacklog, due: Operation, result: PassResult) -> bool:
        """One operation, journalled; tried again when other commits were in the way. Whether it left a part of its work
        to the next."""
        name = NAMES[type(due)]
        self._log.info(name, table=str(debt.table.name), reason=due.reason)
        try:
            for attempt in _BACKOFF.attempts(lambda error: isinstance(error, CommitConflict), most=_ATTEMPTS):
                with attempt:
                    counts = self._once(debt.table.table_id, due)
        except (LakeError, TableError) as error:
            result.errors.append(f"{name}: {error}")
            self._log.warning(name, table=str(debt.table.name), error=str(error))
        else:
            if counts is not None:
                shown = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in counts.items() if value)
                result.done.append(f"{name} ({due.reason}): {shown or 'nothing to do'}")
                return isinstance(due, RewriteDataFiles) and not due.rewrite.complete(counts)
        return False

    def _once(self, table_id: TableId, due: Operation) -> dict[str, int] | None:
        """One attempt, on the table as it is now. None: the table is gone or being copied."""
        # First: its start may take minutes, in which commits land, readers pin, and a pump should know of no rewrite.
        procedures = self._procedures()
        debt = self.debt_of(table_id, PassResult(""))
        if debt is None:
            return None
        kind = COMPACTION
        phase = RUNNING
        details: dict[str, Any] = {"operation": NAMES[type(due)], "reason": due.reason}
        if isinstance(due, ExpireSnapshots | SweepFiles):
            kind = MAINTENANCE
        else:
            phase = REWRITING
            # Of main's head, which Spark begins at: the last commit may have been one to the branch `cold`.
            details["since_sequence"] = int(debt.state.sequence_number)
        with operation(self._connection, self._heartbeat, table_id, kind, phase, details) as outcome:
            counts = self._execute(procedures, debt, due, outcome)
            outcome["counts"] = counts
            outcome["sequence_number"] = debt.figures.sequence_number
            if kind == COMPACTION:
                after = self.debt_of(table_id, PassResult(""))
                if after is not None:
                    self._republish(after)
                    outcome["snapshot_id"] = int(after.state.snapshot_id)
        return counts

    def _execute(
        self, procedures: Procedures, debt: MaintenanceBacklog, due: Operation, outcome: dict[str, Any]
    ) -> dict[str, int]:
        name = debt.lake_name
        match due:
            case RewriteDataFiles():
                missing = {
                    key: value
                    for key, value in {**ENGINE_PROPERTIES, **debt.state.schema.engine_properties}.items()
                    if key not in debt.state.metadata.properties
                }
                if missing:
                    with self._window(debt, at_once=True):
                        procedures.set_properties(name, missing)
                with self._window(debt):
                    counts = procedures.rewrite_data_files(name, due.rewrite)
                if due.rewrite.deletes and due.rewrite.complete(counts):
                    # The rewrite began at this table or a later one, and took every file that one of its deletes may
                    # concern. Iceberg keeps them as long as any older file is left, which they do not concern.
                    with self._window(debt, at_once=True):
                        dropped = procedures.drop_deletes(name, int(debt.state.sequence_number))
                    counts["removed_delete_files_count"] = counts.get("removed_delete_files_count", 0) + dropped
                return counts
            case RewritePositionDeletes():
                with self._window(debt):
                    return procedures.rewrite_position_deletes(name, due.min_input_files)
            case RewriteManifests():
                with self._window(debt):
                    return procedures.rewrite_manifests(name)
            case ExpireSnapshots():
                return self._expire(procedures, debt, due, outcome)
            case SweepFiles():
                swept = sweep(
                    self._connection, self._slot, debt.table, debt.policy, procedures, self._storage, dry_run=False
                )
                if swept is None:
                    raise TableError(f"{debt.table.name} changed before its sweep", "the next pass looks at it again")
                outcome["locations"] = [file.location for file in swept.files[:_SWEPT_SHOWN]]
                return {
                    "listed_files": swept.listed,
                    "old_files": swept.candidates,
                    "deleted_files": len(swept.files),
                    "deleted_bytes": swept.size_bytes,
                }

    def _expire(
        self, procedures: Procedures, debt: MaintenanceBacklog, due: ExpireSnapshots, outcome: dict[str, Any]
    ) -> dict[str, int]:
        # A pinned one that the history lost may need files of those that are in it.
        pinned_snapshots(debt.state, debt.table)
        # What was pinned since the decision, and what the history has lost since, is left out.
        present = {snapshot.snapshot_id for snapshot in debt.state.metadata.snapshots}
        ids = [
            snapshot_id
            for snapshot_id in due.snapshot_ids
            if snapshot_id in present and snapshot_id not in debt.table.protected
        ]
        if not ids:
            return {"expired_snapshots": 0}
        with self._window(debt, at_once=True):
            delete = procedures.expire_snapshots(debt.lake_name, ids)
        # Readers look whether a snapshot is in the history after they pinned it. So a pin that is not seen now comes
        # from one who does not find it there any more, and reads nothing of it.
        (table,) = read_tables(self._connection, self._slot, [debt.table.table_id]) or (None,)
        if table is None or not table.pinned.isdisjoint(ids):
            outcome["left"] = "one of them was pinned meanwhile: their files are for the sweep, once it no longer is"
            return {"expired_snapshots": len(ids)}
        return {"expired_snapshots": len(ids), **delete()}

    def _window(self, debt: MaintenanceBacklog, *, at_once: bool = False) -> CommitPause:
        return CommitPause(self._dsn, self._slot, debt.lake_name, self._procedures().busy, at_once=at_once)

    def _republish(self, debt: MaintenanceBacklog) -> None:
        republish(self._connection, self._slot, debt.table.table_id, debt.table.start_lsn, self._storage)

    def debt_of(self, table_id: TableId, result: PassResult) -> MaintenanceBacklog | None:
        """The table's present debt; None, with the reason in `result`, if it cannot be maintained now."""
        tables = read_tables(self._connection, self._slot, [table_id])
        if not tables:
            result.skipped = "not registered any more"
            return None
        result.table = str(tables[0].name)
        if tables[0].copying:
            result.skipped = "its initial copy is not complete"
            return None
        try:
            return self._debt(tables[0])
        except (LakeError, UsageError) as error:
            result.errors.append(str(error))
            return None

    def _debt(self, table: MaintainedTable) -> MaintenanceBacklog:
        policy = policy_of(table.policy)
        state = self._loaded.get(table.table_id)
        try:
            if state is None or state.metadata_location != table.metadata_location:
                state = self._loaded[table.table_id] = LakeTable.load(table.metadata_location, self._storage)
            # What is remembered of it may be gone.
            require_files(head_files(state), self._storage)
        except FileMissing as error:
            raise self._explained(table.table_id, error) from error
        # Raises where another engine altered the table: of such a one there is no debt to be decided on.
        key = tuple(field.name for field in state.schema.key.fields)
        figures = self._meter.measure(state, policy.rewrite_target_bytes)
        warnings = tuple(warnings_of(state.metadata, figures, policy))
        stats = {**figures.to_json(), "metadata_location": table.metadata_location}
        store_stats(self._connection, table.table_id, stats, warnings, policy.to_json())
        return MaintenanceBacklog(table, state, key, policy, figures, self._past(table.table_id), warnings)

    def _explained(self, table_id: TableId, error: FileMissing) -> LakeError:
        """What a missing file means: for this table, or for the warehouse."""
        table = load_table(self._connection, table_id)
        if table is None:
            return error
        found = MissingFiles(self._storage, partial(stored_tables, self._connection)).error_of(table, error)
        return LakeError(f"{found}: {found.remedy}")

    def _past(self, table_id: TableId) -> Past:
        swept = last(self._connection, table_id, NAMES[SweepFiles])
        return Past() if swept is None else Past(swept_at_sequence=int(swept[1].get("sequence_number", 0)))


def described(operations: Iterable[Operation]) -> list[str]:
    """Operations as lines for people."""
    return [f"{NAMES[type(operation)]}: {operation.reason}" for operation in operations]
