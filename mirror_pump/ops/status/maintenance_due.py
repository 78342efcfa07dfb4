"""Reports for `status` which maintenance is due, table by table, and whether a maintainer does it.

It applies the rules of a maintainer (mirror_pump.ops.maintenance.plan) to the catalog and the metadata files that
`status` reads in any case. It reads no manifest and lists no storage. If nothing was committed since a maintainer last
examined the table, the file sizes found then are used. Otherwise the number of small files is a lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mirror_pump.errors import UsageError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.contents.table_stats import FIGURE_NAMES, TableStats, class_bounds
from mirror_pump.model import TableId
from mirror_pump.ops.maintenance.plan import MaintenanceOperation, PastMaintenance, TableCondition
from mirror_pump.ops.status.lake_content import LakeContent
from mirror_pump.settings.policy import Policy, policy_of
from mirror_pump.source.catalog.maintenance import Attention, MaintainedTable, attention, read_tables
from mirror_pump.source.connect import PgConnection


@dataclass(frozen=True)
class DueOperation(JsonDocument, keys={"words": None}):
    """One maintenance operation that is due."""

    operation: str
    """The operation's name in the journal."""
    words: str
    """What the operation does, in plain words."""
    reason: str


@dataclass(frozen=True)
class MaintenanceDue(JsonDocument, keys={"commits": "unattended_commits"}):
    """The state of one table's maintenance."""

    enabled: bool
    """False if the table's policy allows maintenance on request only."""
    due: tuple[DueOperation, ...]
    """Operations (docs/maintenance.md#what-it-does-in-this-order) that the table's policy calls for now. Between two
    looks of a maintainer, only as many small files are counted as there must be."""
    commits: int
    """Commits since a maintainer last examined the table, or since the table was created."""
    looked_at: datetime | None
    """When a maintainer looked last; None: never."""
    unattended_seconds: float | None
    """How long the table has had commits that no maintainer has examined; None if it has none."""
    neglected: bool
    """True if `unattended_seconds` is a day or more, and `enabled`."""
    problem: str | None
    """Why the last maintenance failed, or why the policy cannot be followed."""


def maintenance_due(
    connection: PgConnection, slot: str, contents: Mapping[str, LakeContent], now: datetime
) -> dict[TableId, MaintenanceDue]:
    """Return the maintenance state by table. `contents` maps metadata locations to figures.

    Tables that are being copied, or whose metadata file is not in `contents`, are left out.
    """
    attentions = {table.table_id: table for table in attention(connection, slot)}
    backlogs = {}
    for table in read_tables(connection, slot):
        content = contents.get(table.metadata_location)
        state = attentions.get(table.table_id)
        if not table.copying and content is not None and state is not None:
            backlogs[table.table_id] = _backlog(table, content, state, now)
    return backlogs


def _backlog(table: MaintainedTable, content: LakeContent, state: Attention, now: datetime) -> MaintenanceDue:
    due: tuple[MaintenanceOperation, ...] = ()
    enabled, problem, stats = True, state.failure, state.stats or {}
    try:
        policy = policy_of(table.policy or {})
    except UsageError as error:
        problem = f"{error}. {error.remedy}"
    else:
        enabled = policy.maintenance_enabled
        due = _due(table, content, state, policy, now) if enabled else ()
    return MaintenanceDue(
        enabled=enabled,
        due=tuple(DueOperation(operation.name, operation.words, operation.reason) for operation in due),
        commits=max(0, content.figures.sequence_number - int(stats.get("sequence_number", 0))),
        looked_at=state.collected_at,
        unattended_seconds=state.unattended_seconds,
        neglected=state.neglected,
        problem=problem,
    )


def _due(
    table: MaintainedTable, content: LakeContent, state: Attention, policy: Policy, now: datetime
) -> tuple[MaintenanceOperation, ...]:
    figures, past = _figures(table, content, state.stats or {}, policy), PastMaintenance(state.swept_at_sequence or 0)
    return TableCondition(table, content.history, policy, figures, past, now.timestamp()).due(requested=False)


def _figures(table: MaintainedTable, content: LakeContent, stats: Mapping[str, Any], policy: Policy) -> TableStats:
    """Return a maintainer's figures if they describe the present state, else what the metadata file proves."""
    if stats.get("metadata_location") == table.metadata_location:
        counted = {name: stats[name] for name in FIGURE_NAMES if name in stats}
        return TableStats(**{**counted, "small_by_class": tuple(counted.get("small_by_class", ()))})
    figures = content.figures
    if content.partitioned:
        # The metadata file does not tell how many of the files are in one partition, where they can be merged.
        return replace(figures, position_delete_files_together=0)
    bounds = class_bounds(policy.rewrite_target_bytes)
    # At most data_bytes // bound files can reach the bound, so at least the others are smaller.
    smallest = max(0, figures.data_files - figures.data_bytes // bounds[-1])
    return replace(
        figures,
        small_files=max(0, figures.data_files - figures.data_bytes // bounds[0]),
        small_by_class=(*(0 for _ in bounds[1:]), smallest),
    )
