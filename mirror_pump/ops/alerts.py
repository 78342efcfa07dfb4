"""What somebody should look at, from what a look at the mirror found: the most urgent first."""

from __future__ import annotations

from mirror_pump.model import TableState
from mirror_pump.ops.status_report import Alert, MirrorStatus, Severity, TableStatus


def alerts_of(status: MirrorStatus) -> tuple[Alert, ...]:
    """What somebody should look at: what concerns the whole mirror, then the tables, critical ones first."""
    found = [*_slot(status), *_leader(status)]
    for table in status.tables:
        found.extend(_table(table))
    return tuple(sorted(found, key=lambda alert: alert.severity is not Severity.CRITICAL))


def _slot(status: MirrorStatus) -> list[Alert]:
    slot = status.slot
    if not slot.exists:
        return [Alert(Severity.CRITICAL, f"slot {slot.name}: MISSING")]
    if slot.publication_error is not None:
        return [Alert(Severity.CRITICAL, slot.publication_error)]
    return []


def _leader(status: MirrorStatus) -> list[Alert]:
    if status.leader is None or not status.leader.alive:
        return [Alert(Severity.CRITICAL, "no pump leads: F stands still", "start one with `mirror-pump run`")]
    return []


def _table(table: TableStatus) -> list[Alert]:
    found = []
    if table.error is not None:
        found.append(Alert(Severity.CRITICAL, table.error, table=table.table))
    elif table.state is TableState.FAILED:
        found.append(Alert(Severity.CRITICAL, "set aside, without a reason", table=table.table))
    if table.retention is not None and table.retention.stopped is not None:
        found.append(Alert(Severity.CRITICAL, f"RETENTION STOPPED: {table.retention.stopped}", table=table.table))
    if table.retention is not None and table.retention.not_made is not None:
        found.append(Alert(Severity.WARNING, table.retention.not_made, table=table.table))
    return found
