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


def lag_alert(status: MirrorStatus, max_lag: float) -> Alert | None:
    """Says that the lake is more than `max_lag` seconds behind, if it is. A mirror without live tables has no lag."""
    live = any(table.state is TableState.LIVE for table in status.tables)
    if not live or status.lag_seconds is None or status.lag_seconds <= max_lag:
        return None
    return Alert(
        Severity.CRITICAL,
        f"the lake is {status.lag_seconds:.1f} s behind, more than the {max_lag:g} s that --max-lag allows",
        "see what else is said here, and the pump's log",
    )


def _slot(status: MirrorStatus) -> list[Alert]:
    slot = status.slot
    if slot.error is not None:
        return [Alert(Severity.CRITICAL, str(slot.error), slot.error.remedy)]
    found = []
    if slot.publication_error is not None:
        found.append(Alert(Severity.CRITICAL, slot.publication_error))
    if slot.wal_status == "unreserved":
        found.append(
            Alert(
                Severity.CRITICAL,
                f"replication slot {slot.name} keeps more WAL than max_slot_wal_keep_size allows: the server's next"
                " checkpoint may invalidate it, and then all tables have to be copied again",
                "see that a pump runs and catches up, and raise max_slot_wal_keep_size until it has",
            )
        )
    return found


def _leader(status: MirrorStatus) -> list[Alert]:
    # A pump cannot run without its slot: to start one is not what helps.
    if status.slot.error is not None or (status.leader is not None and status.leader.alive):
        return []
    return [Alert(Severity.CRITICAL, "no pump leads: F stands still", "start one with `mirror-pump run`")]


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
