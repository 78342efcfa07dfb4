"""Renders a MirrorStatus for people: problems first, then the slot, the leader, and every table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pump.cli.terminal.output import bytes_text, count_text, one_line, seconds_text
from mirror_pump.cli.terminal.status_grid import TableGrid
from mirror_pump.errors import about
from mirror_pump.model import FeedMode, TableMode, TableState, format_lsn
from mirror_pump.ops.status.alerts import moment_text
from mirror_pump.ops.status.feed_status import FeedStatus
from mirror_pump.ops.status.resync_state import ResyncState
from mirror_pump.ops.status.status_report import Alert, LeaderStatus, MirrorStatus, Severity, SlotState, TableStatus
from mirror_pump.source.catalog.followed import NewTablePattern
from mirror_pump.source.catalog.former_locations import FormerLocation
from mirror_pump.source.catalog.kept_moments import KeptMoment

_ALERT_STYLES = {Severity.CRITICAL: "red", Severity.WARNING: "yellow"}
_NAMED = 3
"""Tables that the line about former registrations names."""
_STATE_ORDER = (
    TableState.FAILED,
    TableState.WAITING,
    TableState.COPYING,
    TableState.FILLING,
    TableState.LIVE,
    TableState.DROPPED,
)


def render(status: MirrorStatus) -> RenderableType:
    """The whole status. It fits any width, since it is laid out when the console prints it."""
    named = "" if status.mirror is None else f"{status.mirror} "
    parts: list[RenderableType] = [Text(f"mirror {named}of {status.database} in {status.warehouse}")]
    parts.extend(Text(line, style=_ALERT_STYLES[alert.severity]) for alert in status.alerts for line in lines_of(alert))
    parts.extend((*_stream(status), *_pumps(status)))
    parts.extend(_resync(resync) for resync in status.resyncs)
    if status.former_locations:
        parts.append(Text(_former_locations(status.former_locations)))
    if status.moments:
        parts.append(Text(_moments(status.moments)))
    parts.extend(Text(_feed(feed)) for feed in status.feeds)
    parts.extend(Text(f"follower {one_line(follower.text)}") for follower in status.followers)
    parts.extend(Text(_followed(pattern)) for pattern in status.followed)
    if not status.tables:
        mode = "" if status.streams else " --mode tiered"
        return Group(*parts, Text(f"no tables: mirror-pump register TABLE{mode}"))
    tables = _in_order(status)
    parts.extend((_maintenance(status), TableGrid(tables)))
    parts.extend(
        Text(f"{table.table}: due: {'; '.join(f'{job.words} ({job.reason})' for job in table.maintenance.due)}")
        for table in tables
        if table.maintenance is not None and table.maintenance.due
    )
    parts.extend(Text(about(table.table, one_line(table.note))) for table in tables if table.note is not None)
    parts.extend(_retention(table) for table in tables if table.retention is not None and table.retention.has_cutline)
    parts.extend(
        Text(f"{table.table}: generated columns left out: {', '.join(table.generated_left_out)}")
        for table in tables
        if table.generated_left_out
    )
    parts.extend(
        Text(f"{table.table}: {what}: {', '.join(names)}")
        for table in tables
        for what, names in (("columns left out", table.excluded), ("columns masked", table.masked))
        if names
    )
    parts.extend(Text(f"{table.table}: rows: {table.row_filter}") for table in tables if table.row_filter)
    return Group(*parts)


def _feed(feed: FeedStatus) -> str:
    """A feed and what it has, on one line."""
    parts = [f"{feed.table}: change feed {feed.lake_table}"]
    if feed.mode is not FeedMode.TRANSACTIONS:
        begins = "not begun" if feed.begins is None else f"since {format_lsn(feed.begins)}"
        parts += [feed.mode.value, begins]
    if feed.expired:
        parts.append(f"expired below {format_lsn(feed.expired)}")
    if feed.stats:
        rows, files, size = (int(feed.stats[name]) for name in ("rows", "files", "bytes"))
        parts.append(f"{count_text(rows)} changes in {count_text(files)} files, {bytes_text(size)}")
    if feed.pins:
        parts.append(f"{count_text(feed.pins)} pins")
    return ", ".join(parts)


def _followed(pattern: NewTablePattern) -> str:
    excluded = f", but for {', '.join(pattern.excluded)}" if pattern.excluded else ""
    return f"new tables join: {pattern.pattern}{excluded}"


def lines_of(alert: Alert) -> list[str]:
    """Lines that tell the problem and the remedy, without secrets."""
    message = one_line(alert.message)
    lines = [f"{alert.severity.value.upper()} {message if alert.table is None else about(alert.table, message)}"]
    if alert.remedy:
        lines.append(f"  what to do: {one_line(alert.remedy)}")
    return lines


def _in_order(status: MirrorStatus) -> Sequence[TableStatus]:
    """Tables with problems first, then tables being copied; otherwise in the given order."""
    severities = {alert.table: alert.severity for alert in reversed(status.alerts)}

    def urgency(table: TableStatus) -> tuple[int, int]:
        severity = severities.get(table.table)
        return (
            len(Severity) if severity is None else list(Severity).index(severity),
            _STATE_ORDER.index(table.state),
        )

    return sorted(status.tables, key=urgency)


def _stream(status: MirrorStatus) -> list[Text]:
    if not status.streams:
        return [Text("no stream: tiered tables only")]
    return [_frontier(status), _slot(status.slot)]


def _frontier(status: MirrorStatus) -> Text:
    text = f"frontier {format_lsn(status.frontier)}, {bytes_text(status.lag_bytes)} of WAL behind"
    if status.lag_seconds is not None:
        text += f", {seconds_text(status.lag_seconds)}"
    return Text(text)


def _slot(slot: SlotState) -> Text:
    if not slot.exists:
        return Text(f"slot {slot.name}: MISSING", style="red")
    if slot.wal_status == "lost":
        return Text(f"slot {slot.name}: LOST", style="red")
    text = f"slot {slot.name}: {'active' if slot.active else 'inactive'}, retains {bytes_text(slot.retained_bytes)}"
    text += f" of WAL ({slot.wal_status})"
    transaction = slot.held_by
    if transaction is not None:
        holder = (
            f"{transaction.prepared!r}"
            if transaction.prepared is not None
            else f"of pid {transaction.pid} ({transaction.application})"
        )
        text += f", since the beginning of a {transaction.kind} {holder}, open for {seconds_text(transaction.seconds)}"
    return Text(text + _wal_left(slot))


def _wal_left(slot: SlotState) -> str:
    """How long the slot lasts if nothing moves it. Empty without a limit."""
    if slot.safe_wal_bytes is None:
        return ""
    text = f"; room for {bytes_text(slot.safe_wal_bytes)} more"
    left = slot.max_outage_seconds
    return text if left is None else f"{text}, {seconds_text(left)} at the present rate"


def _pumps(status: MirrorStatus) -> list[Text]:
    standbys = [
        f"process {standby.pid} on {standby.host}" + (f" since {standby.since.isoformat()}" if standby.since else "")
        for standby in status.standbys
    ]
    return [_leader(status.leader), *([Text("standby: " + "; ".join(standbys))] if standbys else [])]


def _leader(leader: LeaderStatus | None) -> Text:
    if leader is None:
        return Text("leader: none", style="yellow")
    since = "" if leader.since is None else f" since {leader.since.partition('.')[0].replace('T', ' ')} UTC"
    process = f"process {leader.pid} on {leader.host}{since}"
    if leader.retrying:
        return Text(f"leader: {process}, failing and retrying", style="yellow")
    if leader.alive:
        return Text(f"leader: {process}")
    return Text(f"leader: none ({process} disconnected without releasing leadership)", style="yellow")


def _maintenance(status: MirrorStatus) -> Text:
    """Summary of the due maintenance, and whether a maintainer runs."""
    due = sum(bool(backlog.due) for backlog in status.backlogs)
    commits = sum(backlog.commits for backlog in status.backlogs)
    text = f"maintenance: {f'due for {due} of {len(status.tables)} tables' if due else 'nothing due'}"
    text += f", {count_text(commits)} commits since the last check; "
    text += "a maintainer runs" if status.served else "no maintainer runs (run --maintain, or maintain)"
    return Text(text, style="yellow" if due and not status.served else "")


def _resync(resync: ResyncState) -> Text:
    text = f"resync since {moment_text(resync.since)}: {resync.progress}"
    if resync.seconds_left is not None and resync.copied < 1:
        text += f", about {seconds_text(resync.seconds_left)} left"
    return Text(text)


def _former_locations(locations: Sequence[FormerLocation]) -> str:
    names = list(dict.fromkeys(str(location.table) for location in locations))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"files of former registrations: {', '.join(names[:_NAMED])}{more} (mirror-pump unregister --list shows them,"
        " --former removes them)"
    )


def _moments(moments: Sequence[KeptMoment]) -> str:
    names = [f"{moment.name} ({format_lsn(moment.frontier)})" for moment in moments]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"moments: {', '.join(names[:_NAMED])}{more}; their files stay until `mirror-pump moment drop NAME`"
        " (mirror-pump moment list shows what they cost)"
    )


def _retention(table: TableStatus) -> Text:
    """A table's old partitions, corrections and pins, on one line."""
    state = table.retention
    assert state is not None
    parts = [] if table.mode is TableMode.MIRRORED else ["tiered, keeps its heap" if state.keep_heap else "tiered"]
    parts += [f"cut-line {state.cut}", f"published snapshot {table.snapshot_id}"]
    if state.retention_line is not None:
        parts.append(f"rows below {state.retention_line} have expired")
    if state.partitions:
        parts.append("partitions " + ", ".join(f"{count} {name}" for name, count in sorted(state.partitions.items())))
    if state.chunks_total:
        parts.append(f"{state.chunks_done} of {state.chunks_total} chunks copied")
    parts.append(f"{count_text(state.delta_rows)} corrections")
    if state.delta_unfolded:
        parts[-1] += f", {count_text(state.delta_unfolded)} not folded for {seconds_text(state.delta_age)}"
    if state.pins:
        parts.append(f"{count_text(state.pins)} pins, the oldest {seconds_text(state.oldest_pin_age)} old")
    if state.lake_pins:
        parts.append(f"{count_text(state.lake_pins)} pins of the lake alone, which nothing waits for")
    if state.expired_pins:
        parts.append(f"{count_text(state.expired_pins)} expired")
    if state.waits_for is not None:
        parts.append(f"the next partition waits: {one_line(state.waits_for)}")
    if state.not_expired is not None:
        parts.append(f"the next rows do not expire yet: {one_line(state.not_expired)}")
    return Text(f"{table.table}: {'; '.join(parts)}")
