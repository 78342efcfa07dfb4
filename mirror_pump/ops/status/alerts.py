"""Derives alerts from the status of a mirror, the most urgent first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

from mirror_pump.model import TableState, format_lsn
from mirror_pump.ops.status.feed_status import FeedStatus
from mirror_pump.ops.status.status_report import Alert, MirrorStatus, Severity, TableStatus
from mirror_pump.runtime.service_thread import ThreadFailure
from mirror_pump.settings.storage_profiles import warehouse_of
from mirror_pump.source.catalog.change_feeds import feed_repair
from mirror_pump.source.catalog.followed import NotJoined
from mirror_pump.source.catalog.followers import Follower
from mirror_pump.source.catalog.kept_moments import KeptMoment, moment_repair
from mirror_pump.source.catalog.pump_error import PumpError
from mirror_pump.source.stream.slot import RECONCILE

_FAILING_TOO_LONG = 60.0
"""Seconds for which a pump may fail and retry by itself before the alert becomes critical."""
_FOLLOWER_LATE = 300.0
"""Seconds that a follower may be behind without an error."""
_MORE_ROOM = (
    "make sure that a pump runs without errors; until then, raise max_slot_wal_keep_size by ALTER SYSTEM and SELECT"
    " pg_reload_conf(), if the server's disk has room"
)
_NAMED = 3
"""How many tables an alert names if it concerns many."""


def alerts_of(status: MirrorStatus, wal_warn_within: float = 0.0) -> tuple[Alert, ...]:
    """Return all alerts, critical ones first. Within a severity, alerts of the whole mirror precede those of tables.

    `wal_warn_within`: a slot that no pump moves is worth a warning if it is lost within this many seconds.
    """
    away = _warehouses_away(status)
    leader = _leader(status)
    reasons: list[Alert] = []
    if status.last_error is not None and any(warehouse in status.last_error.error for warehouse in away):
        # The pump fails for the same reason.
        leader, reasons = [], leader
    outages = [_away(warehouse, tables, reasons) for warehouse, tables in away.items()]
    alerts = [*_slot(status), *_wal(status, wal_warn_within), *leader, *outages, *_gaps(status), *_neglect(status)]
    alerts.extend(_locks(status))
    alerts.extend(_synchronous(status))
    alerts.extend(_went_back(status))
    alerts.extend(Alert(Severity.CRITICAL, row.message, row.remedy, row.table_name) for row in status.lost_rows)
    alerts.extend(_refused(refused) for refused in status.not_joined)
    alerts.extend(alert for feed in status.feeds if (alert := _feed(feed)) is not None)
    alerts.extend(alert for feed in status.feeds if (alert := _feed_files(feed)) is not None)
    alerts.extend(alert for moment in status.moments if (alert := _moment_files(moment)) is not None)
    alerts.extend(alert for follower in status.followers for alert in follower_alerts(follower))
    away_tables = {table.table for tables in away.values() for table in tables}
    for table in status.tables:
        alerts.extend(_table(table, readable=table.table not in away_tables))
    return tuple(sorted(alerts, key=lambda alert: alert.severity is not Severity.CRITICAL))


def lag_alert(status: MirrorStatus, max_lag: float) -> Alert | None:
    """Return an alert if the lake lags by more than `max_lag` seconds. A mirror without live tables has no lag."""
    live = any(table.state is TableState.LIVE for table in status.tables)
    if not live or status.lag_seconds is None or status.lag_seconds <= max_lag:
        return None
    return Alert(
        Severity.CRITICAL,
        f"the lake is {status.lag_seconds:.1f} s behind, more than the {max_lag:g} s that --max-lag allows",
        "see the other alerts, and the pump's log",
    )


def wal_alert(status: MirrorStatus, min_wal_time: float) -> Alert | None:
    """Return an alert if the slot would not survive an outage of the pump for `min_wal_time` seconds."""
    left = status.slot.max_outage_seconds
    if left is None or left >= min_wal_time:
        return None
    return Alert(
        Severity.CRITICAL,
        f"without a pump, the slot would be lost in {left:.0f} s at the present rate of WAL, sooner than the"
        f" {min_wal_time:g} s that --min-wal-time asks for",
        _MORE_ROOM,
    )


def moment_text(moment: datetime) -> str:
    """Format a time in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _slot(status: MirrorStatus) -> list[Alert]:
    slot = status.slot
    diverged = status.last_error
    if slot.error is not None and diverged is not None and diverged.remedy.endswith(RECONCILE):
        # The pump has looked at the lake too, and knows better than the slot alone tells.
        return [Alert(Severity.CRITICAL, diverged.error, diverged.remedy)]
    if slot.error is not None:
        return [Alert(Severity.CRITICAL, str(slot.error), slot.error.remedy)]
    alerts = []
    if slot.publication_error is not None:
        alerts.append(Alert(Severity.CRITICAL, slot.publication_error))
    if slot.wal_status == "unreserved":
        alerts.append(
            Alert(
                Severity.CRITICAL,
                f"replication slot {slot.name} keeps more WAL than max_slot_wal_keep_size allows: the server's next"
                " checkpoint may invalidate it, and then all tables have to be copied again",
                "make sure that a pump runs and catches up, and raise max_slot_wal_keep_size until it has",
            )
        )
    return alerts


def _wal(status: MirrorStatus, warn_time: float) -> list[Alert]:
    """Return an alert if the slot does not move and has little room left. A pump that leads without errors moves it."""
    left = status.slot.max_outage_seconds
    leader = status.leader
    moves = leader is not None and leader.alive and not leader.retrying
    if left is None or left >= warn_time or moves or status.slot.wal_status == "unreserved":
        return []
    message = (
        f"nothing moves replication slot {status.slot.name}: it is lost in {left:.0f} s at the present rate of WAL"
    )
    return [Alert(Severity.WARNING, message, _MORE_ROOM)]


def _locks(status: MirrorStatus) -> list[Alert]:
    """Return an alert for each session that keeps others waiting, and for each that stands in the place of a pump."""
    alerts = []
    for holder in status.lock_waits:
        message = (
            f"{holder.waiting or 'a session'} has waited for {holder.seconds:.0f} s for a lock on"
            f" {holder.relation}, which {holder.text} holds or has asked for before"
        )
        severity = Severity.CRITICAL if holder.seconds >= _FAILING_TOO_LONG else Severity.WARNING
        alerts.append(Alert(severity, message, holder.remedy))
    for holder in status.foreign_leads:
        message = (
            f"{holder.text} holds an advisory lock of the mirror's and is no pump: no pump or maintainer begins beside"
            " it"
        )
        alerts.append(Alert(Severity.CRITICAL, message, holder.remedy))
    return alerts


def _synchronous(status: MirrorStatus) -> list[Alert]:
    commits = status.synchronous
    if commits is None:
        return []
    waiting = f"; {commits.waiting} sessions wait now" if commits.waiting else ""
    severity = Severity.CRITICAL if commits.waiting else Severity.WARNING
    return [Alert(severity, f"{commits.message}{waiting}", commits.remedy)]


def _went_back(status: MirrorStatus) -> list[Alert]:
    if status.went_back_at is None:
        return []
    message = (
        f"the database went back: a pump found at {moment_text(status.went_back_at)} that the lake has publishes which"
        " the catalog does not know. Reads are right; until an operator has reconciled, maintenance deletes no file"
    )
    remedy = "if this is the mirror's database, and no copy of it: stop the pump, `mirror-pump reconcile`, start it"
    return [Alert(Severity.WARNING, message, remedy)]


def _leader(status: MirrorStatus) -> list[Alert]:
    error = status.last_error
    idle = "the frontier stands still" if status.streams else "no partition is tiered, and no correction is folded"
    if status.leader is not None and status.leader.alive:
        failing_threads = list(map(_thread, status.leader.failing_threads))
        if error is None or not status.leader.retrying:
            return failing_threads
        waited = (status.at - error.since).total_seconds() >= _FAILING_TOO_LONG
        severity = Severity.CRITICAL if waited else Severity.WARNING
        return [Alert(severity, failing(error, idle), error.remedy), *failing_threads]
    # A pump cannot run without its slot, so starting one would not help.
    if status.slot.error is not None:
        return []
    start = "start one with `mirror-pump run`"
    if error is None:
        return [Alert(Severity.CRITICAL, f"no pump leads: {idle}", start)]
    last = f"the last one stopped at {moment_text(error.at)}: {error.error}"
    if error.retry_in is not None:
        last = f"the last one disappeared while {failing(error, idle)}"
    return [Alert(Severity.CRITICAL, f"no pump leads: {idle}; {last}", f"{error.remedy or start}")]


def _thread(failure: ThreadFailure) -> Alert:
    message = (
        f"thread {failure.thread} of the pump fails, and what it does is not done: {failure.error}"
        f" ({failure.ends} times since {moment_text(datetime.fromisoformat(failure.since))})"
    )
    remedy = "it begins again by itself after a pause; if it goes on to fail, report it with the pump's log"
    return Alert(Severity.CRITICAL, message, remedy)


def _gaps(status: MirrorStatus) -> list[Alert]:
    """Return an alert for tables that are copied again because the slot was lost: until then the lake is outdated."""
    alerts = []
    for resync in status.resyncs:
        if resync.slot_lost and resync.frontier is not None:
            message = (
                f"the slot was lost and is replaced: readers see the lake as of the former frontier"
                f" {format_lsn(resync.frontier)} until all tables are copied again; {resync.progress}"
            )
            alerts.append(Alert(Severity.WARNING, message, "nothing, while a pump runs: it shows all of them at once"))
    return alerts


def failing(error: PumpError, idle: str = "the frontier stands still") -> str:
    """Return the message for a pump that keeps failing and retrying. `idle`: what does not happen meanwhile."""
    return (
        f"the pump has been failing since {moment_text(error.since)}, {idle} ({error.attempts}"
        f" attempts, the last one at {moment_text(error.at)}): {error.error}"
    )


def _warehouses_away(status: MirrorStatus) -> dict[str, list[TableStatus]]:
    """The warehouses of which several tables are to be read and none can be, with these tables."""
    tables: dict[str, list[TableStatus]] = {}
    for table in status.tables:
        if table.metadata_location is not None and table.state not in (TableState.FAILED, TableState.DROPPED):
            location = table.metadata_location.rpartition("/metadata/")[0]
            tables.setdefault(warehouse_of(location), []).append(table)
    return {
        warehouse: its_tables
        for warehouse, its_tables in tables.items()
        if len(its_tables) > 1
        and all(table.unreadable is not None and not table.metadata_damaged for table in its_tables)
    }


def _away(warehouse: str, tables: Sequence[TableStatus], leader: Sequence[Alert]) -> Alert:
    """One alert for all tables of a warehouse. `leader`: alerts about a pump that fails because of it."""
    message = f"none of the {len(tables)} tables in {warehouse} can be read, such as {tables[0].table}: "
    message += "; ".join((str(tables[0].unreadable), *(alert.message for alert in leader)))
    remedy = (
        "make the warehouse available: mount it, or see whether its storage answers and takes the credentials. Nothing"
        " is lost meanwhile, and the pump continues by itself"
    )
    return Alert(Severity.CRITICAL, message, remedy)


def _neglect(status: MirrorStatus) -> list[Alert]:
    """Return one alert for all tables without maintenance, since tables are usually neglected together."""
    tables = [table for table in status.tables if table.maintenance is not None and table.maintenance.neglected]
    if not tables:
        return []
    names = ", ".join(table.table for table in tables[:_NAMED])
    more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
    commits = sum(table.maintenance.commits for table in tables if table.maintenance is not None)
    remedy = (
        "a maintainer runs, but has not maintained them: see its log"
        if status.served
        else "start `mirror-pump run --maintain`, or have cron run `mirror-pump maintain` daily. To do without:"
        " `mirror-pump policy set TABLE maintenance_enabled false`"
    )
    message = (
        f"no maintenance for more than a day: {names}{more}. {commits} commits have left small files, snapshots and"
        " metadata files, which accumulate"
    )
    return [Alert(Severity.WARNING, message, remedy)]


def _feed(feed: FeedStatus) -> Alert | None:
    """The alert of a feed that gets no changes."""
    error = feed.error
    if error is None and feed.metadata_location is None:
        repair = feed_repair(feed.table, feed.mode, feed.keep, of_file=False)
        error = f"the Iceberg catalog does not have it any more: {repair}"
    if error is None and feed.problem is not None:
        message = f"files of its change feed {feed.lake_table} can be neither merged nor taken out: {feed.problem}"
        remedy = f"if a file is lost or damaged, {feed_repair(feed.table, feed.mode, feed.keep)}"
        return Alert(Severity.WARNING, message, remedy, table=feed.table)
    if error is None and feed.moved:
        message = f"another engine committed to its change feed {feed.lake_table}, and no pump has examined that yet"
        return Alert(Severity.WARNING, message, "a pump does within seconds: start one if none runs", table=feed.table)
    if error is None:
        return None
    return Alert(Severity.CRITICAL, f"its change feed {feed.lake_table} gets no changes: {error}", table=feed.table)


def _feed_files(feed: FeedStatus) -> Alert | None:
    """The alert of a feed with lost or damaged files."""
    if not feed.damaged_files:
        return None
    message = (
        f"a file of its change feed {feed.lake_table} is lost or damaged: {_some(feed.damaged_files)}. Readers of these"
        " changes fail; new ones go on"
    )
    return Alert(Severity.CRITICAL, message, feed_repair(feed.table, feed.mode, feed.keep), table=feed.table)


def _moment_files(moment: KeptMoment) -> Alert | None:
    """The alert of a moment with lost or damaged files."""
    tables = [str(table.table) for table in moment.tables if table.damaged_files]
    if not tables:
        return None
    files = [location for table in moment.tables for location in table.damaged_files]
    message = (
        f"a file of the moment {moment.name} is lost or damaged: {_some(files)}. It cannot be read of"
        f" {', '.join(tables[:_NAMED])}"
    )
    return Alert(Severity.CRITICAL, message, moment_repair(moment.name))


def follower_alerts(follower: Follower) -> list[Alert]:
    """What is wrong with another catalog that shows the tables. The mirror itself goes on in any case."""
    alerts = []
    behind = follower.behind_seconds
    late = behind > _FOLLOWER_LATE and not follower.refused
    if not follower.ends and (follower.error is not None or late):
        files = "" if follower.files_stay else "; files that its tables name are not kept any more"
        why = follower.error or "its tables have not all moved since"
        message = f"follower {follower.name} is {behind:.0f} s behind{files}: {why}"
        severity = Severity.WARNING if follower.files_stay or follower.tables == 0 else Severity.CRITICAL
        alerts.append(Alert(severity, message, "" if follower.error else "see that a pump runs, and its log"))
    if follower.refused:
        message = f"{follower.refused} tables do not follow in {follower.name}"
        alerts.append(
            Alert(
                Severity.WARNING,
                message,
                f"`mirror-pump follow check {shlex.quote(follower.name)}` says which, and why",
            )
        )
    return alerts


def _some(locations: Sequence[str]) -> str:
    """A few of these files."""
    more = f" and {len(locations) - _NAMED} more" if len(locations) > _NAMED else ""
    return ", ".join(locations[:_NAMED]) + more


def _refused(refused: NotJoined) -> Alert:
    name = str(refused.table)
    return Alert(
        Severity.WARNING,
        f"it matches a pattern that is followed, and cannot be mirrored: {refused.error}",
        f"it is tried again by itself; or `mirror-pump register {shlex.quote(name)}`. To leave it out, register the"
        " pattern once more, with --exclude",
        table=name,
    )


def _table(table: TableStatus, *, readable: bool) -> list[Alert]:
    """`readable`: False if another alert says that its metadata cannot be read."""
    alerts = []
    if table.error is not None and (readable or table.error != table.unreadable):
        remedy = table.unreadable_remedy if table.error == table.unreadable else ""
        alerts.append(Alert(Severity.CRITICAL, table.error, remedy, table=table.table))
    elif table.error is None and table.state is TableState.FAILED:
        alerts.append(Alert(Severity.CRITICAL, "failed, but no reason is recorded", table=table.table))
    if table.state is TableState.DROPPED:
        # The table was dropped on purpose. Nothing has stopped, and no operator needs to act.
        return alerts
    if table.retention is not None and table.retention.stopped is not None:
        alerts.append(Alert(Severity.CRITICAL, f"RETENTION STOPPED: {table.retention.stopped}", table=table.table))
    if table.retention is not None and table.retention.not_made is not None:
        alerts.append(Alert(Severity.WARNING, table.retention.not_made, table=table.table))
    if table.damaged_files:
        message = (
            f"a file of its lake table cannot be read: {_some(table.damaged_files)}. Readers of these rows fail;"
            " changes go on"
        )
        alerts.append(Alert(Severity.CRITICAL, message, table.repair, table=table.table))
    if table.maintenance is not None and table.maintenance.problem is not None:
        message = f"its last maintenance failed: {table.maintenance.problem}"
        alerts.append(Alert(Severity.WARNING, message, table=table.table))
    return alerts
