"""Gauges of the mirror as a whole. They read nothing: they take what the sampler knows when they are collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from mirror_pump.model import TableState
from mirror_pump.monitoring.pump_state import PumpPhase, PumpState
from mirror_pump.monitoring.sampler import STALE_AFTER, StatusReading, StatusSource
from mirror_pump.ops.status.status_report import MirrorStatus, Severity

Values = Iterable[tuple[float | None, Mapping[str, str]]]
"""Values with their attributes. None: there is no value now."""

_WAYS_OUT = ("sealing", "tiering", "tiered")
"""States of partitions on their way out of the heap."""


@dataclass(frozen=True)
class Gauge:
    """One gauge of the mirror."""

    name: str
    unit: str
    description: str
    values: Callable[[MirrorStatus], Values]


def _single(value: Callable[[MirrorStatus], float | None]) -> Callable[[MirrorStatus], Values]:
    return lambda status: [(value(status), {})]


def _led(status: MirrorStatus) -> bool:
    return status.leader is not None and status.leader.alive


def _tables(status: MirrorStatus) -> Values:
    counts = Counter(table.state for table in status.tables)
    return [(counts[state], {"state": state.value}) for state in TableState]


def _alerts(status: MirrorStatus) -> Values:
    counts = Counter(alert.severity for alert in status.alerts)
    return [(counts[severity], {"severity": severity.value}) for severity in Severity]


def _leaving(status: MirrorStatus) -> Values:
    counts: Counter[str] = Counter()
    for table in status.tables:
        if table.retention is not None:
            counts.update(table.retention.partitions)
    return [(counts[state], {"state": state}) for state in _WAYS_OUT]


GAUGES = (
    Gauge(
        "mirror_pump.frontier.lag_wal",
        "By",
        "WAL between the frontier and the end of WAL; absent without a stream",
        _single(lambda status: status.lag_bytes if status.streams else None),
    ),
    Gauge(
        "mirror_pump.frontier.position", "By", "The frontier: a WAL position", _single(lambda status: status.frontier)
    ),
    Gauge("mirror_pump.wal.position", "By", "End of WAL of the server", _single(lambda status: status.wal_position)),
    Gauge(
        "mirror_pump.slot.retained_wal",
        "By",
        "WAL that the server keeps for the slot",
        _single(lambda status: status.slot.retained_bytes),
    ),
    Gauge(
        "mirror_pump.slot.wal_until_invalidation",
        "By",
        "WAL that can be written before the slot may be invalidated; absent without a limit",
        _single(lambda status: status.slot.safe_wal_bytes),
    ),
    Gauge(
        "mirror_pump.slot.usable",
        "",
        "1 if a pump can resume from the slot, else 0; absent without a stream",
        _single(lambda status: status.slot.error is None if status.streams else None),
    ),
    Gauge(
        "mirror_pump.slot.active",
        "",
        "1 while a pump reads the slot; absent without a stream",
        _single(lambda status: status.slot.active if status.streams else None),
    ),
    Gauge("mirror_pump.led", "", "1 while any pump leads the mirror", _single(_led)),
    Gauge(
        "mirror_pump.standbys", "{pump}", "Pumps that wait for leadership", _single(lambda status: len(status.standbys))
    ),
    Gauge("mirror_pump.tables", "{table}", "Mirrored tables by state", _tables),
    Gauge(
        "mirror_pump.copy.chunks_left",
        "{chunk}",
        "Chunks of initial copies that are not published yet",
        _single(lambda status: sum(table.chunks_total - table.chunks_done for table in status.tables)),
    ),
    Gauge(
        "mirror_pump.retention.partitions_leaving",
        "{partition}",
        "Partitions on their way out of the heap, by state",
        _leaving,
    ),
    Gauge(
        "mirror_pump.retention.stopped_tables",
        "{table}",
        "Tables whose retention has stopped until an operator has looked",
        _single(
            lambda status: sum(
                table.retention is not None and table.retention.stopped is not None for table in status.tables
            )
        ),
    ),
    Gauge(
        "mirror_pump.retention.unfolded_corrections",
        "{row}",
        "Corrections of old rows that are not in the lake yet",
        _single(lambda status: sum(table.retention.delta_unfolded for table in status.tables if table.retention)),
    ),
    Gauge(
        "mirror_pump.follower.lag",
        "s",
        "How long ago another catalog that follows was at the frontier",
        lambda status: [(follower.behind_seconds, {"follower": follower.name}) for follower in status.followers],
    ),
    Gauge(
        "mirror_pump.follower.refused_tables",
        "{table}",
        "Tables that do not follow in another catalog",
        lambda status: [(follower.refused, {"follower": follower.name}) for follower in status.followers],
    ),
    Gauge(
        "mirror_pump.maintenance.served",
        "",
        "1 while a maintainer serves",
        _single(lambda status: status.served),
    ),
)
"""Gauges of every reading."""

FULL_GAUGES = (
    Gauge("mirror_pump.alerts", "{alert}", "Alerts of `mirror-pump status`, by severity", _alerts),
    Gauge(
        "mirror_pump.maintenance.tables_due",
        "{table}",
        "Tables for which maintenance is due",
        _single(lambda status: sum(bool(backlog.due) for backlog in status.backlogs)),
    ),
    Gauge(
        "mirror_pump.maintenance.tables_neglected",
        "{table}",
        "Tables with commits that no maintainer has looked at for a day",
        _single(lambda status: sum(backlog.neglected for backlog in status.backlogs)),
    ),
    Gauge(
        "mirror_pump.maintenance.unattended_commits",
        "{commit}",
        "Commits since a maintainer looked at their table",
        _single(lambda status: sum(backlog.commits for backlog in status.backlogs)),
    ),
    Gauge(
        "mirror_pump.lake.size",
        "By",
        "Size of the current snapshots of all tables",
        _single(lambda status: sum(table.content.size_bytes for table in status.tables if table.content)),
    ),
)
"""Gauges of full readings, which also read the tables' metadata files."""


def observe(meter: Meter, state: PumpState, source: StatusSource) -> None:
    """Create all gauges. Those of the mirror are absent while the database cannot be read, but for the lag, which
    grows."""
    for name, unit, description, value in (
        ("frontier.lag", "s", "How old the lake's content is at most", lambda: source.reading.lag_seconds),
        ("database.reachable", "", "1 if the mirror's status could be read", lambda: _reachable(source.reading)),
        ("leader", "", "1 if this process leads the mirror", lambda: state.phase.role == "leader"),
        (
            "slot.time_until_invalidation",
            "s",
            "Time until the slot may be invalidated if its WAL goes on growing; absent if it does not grow",
            lambda: _seconds_to_invalidation(source.reading),
        ),
    ):
        _gauge(meter, f"mirror_pump.{name}", unit, description, _unlabelled(value))
    _gauge(
        meter,
        "mirror_pump.phase",
        "",
        "1 for the phase that this process is in, else 0",
        lambda: [(phase is state.phase, {"phase": phase.value}) for phase in PumpPhase],
    )
    for gauge in GAUGES:
        _gauge(meter, gauge.name, gauge.unit, gauge.description, _of(gauge, source, lambda reading: reading.status))
    for gauge in FULL_GAUGES:
        _gauge(meter, gauge.name, gauge.unit, gauge.description, _of(gauge, source, lambda reading: reading.full))


def _unlabelled(value: Callable[[], float | None]) -> Callable[[], Values]:
    return lambda: [(value(), {})]


def _of(
    gauge: Gauge, source: StatusSource, part: Callable[[StatusReading], MirrorStatus | None]
) -> Callable[[], Values]:
    def values() -> Values:
        reading = source.reading
        status = part(reading)
        return gauge.values(status) if status is not None and _current(reading) else []

    return values


def _gauge(meter: Meter, name: str, unit: str, description: str, values: Callable[[], Values]) -> None:
    def callback(_: CallbackOptions) -> Iterable[Observation]:
        # OTLP has no booleans: its exporter fails on one.
        measurements = ((value, attributes) for value, attributes in values() if value is not None)
        return [Observation(int(value) if isinstance(value, bool) else value, labels) for value, labels in measurements]

    meter.create_observable_gauge(name, [callback], unit, description)


def _current(reading: StatusReading) -> bool:
    return reading.status is not None and reading.age < STALE_AFTER


def _reachable(reading: StatusReading) -> bool:
    return reading.problem is None and _current(reading)


def _seconds_to_invalidation(reading: StatusReading) -> float | None:
    seconds = reading.history.get("seconds_to_invalidation") if _current(reading) else None
    return seconds if isinstance(seconds, float) else None
