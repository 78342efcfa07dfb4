"""The status of a mirror with everything in it, and the real HTTP application that serves it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import sin

from prometheus_client import CollectorRegistry, ProcessCollector

from mirror_pump.http.access import Access
from mirror_pump.http.endpoints import Endpoints
from mirror_pump.http.server import HttpServer, application
from mirror_pump.model import Lsn, SnapshotId, TableState
from mirror_pump.monitoring.history import INTERVAL, StatusHistory, StatusSample
from mirror_pump.monitoring.pump_state import PumpPhase, PumpState
from mirror_pump.monitoring.sampler import StatusReading, StatusSource
from mirror_pump.ops.status.alerts import alerts_of
from mirror_pump.ops.status.lake_content import LakeContent
from mirror_pump.ops.status.maintenance_due import DueOperation, MaintenanceDue
from mirror_pump.ops.status.retention_state import RetentionState
from mirror_pump.ops.status.status_report import (
    DeleteMode,
    Holder,
    LeaderStatus,
    MirrorStatus,
    SlotState,
    TableStatus,
)
from mirror_pump.source.stream.standby import StandbyProcess

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def table(name: str, state: TableState = TableState.LIVE, **fields: object) -> TableStatus:
    """A mirrored table; `fields` are those of TableStatus."""
    live = state is TableState.LIVE
    made = TableStatus(
        table=name,
        lake_table=name,
        state=state,
        frontier=Lsn(0x16_B374_0000) if live else None,
        lag_bytes=984 if live else None,
        lag_seconds=0.4 if live else None,
        snapshot_id=SnapshotId(7312893412893412893),
        metadata_location="s3://lake/shop/metadata.json",
        equality_deletes_age=0.0,
        content=LakeContent(1_000_120, 14, 12, 0, None, 48_210_944, 61_077_211, 40_112_870),
        chunks_total=0,
        chunks_done=0,
        rows_copied=0,
        deletes=DeleteMode(),
        error=None,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def some_of_everything() -> MirrorStatus:
    """A mirror with healthy tables, and one of each problem."""
    retention = RetentionState(
        cut="2026-02-01 00:00:00+00",
        lag="90 days",
        retention_line=None,
        partitions={"dropped": 12, "hot": 4, "tiered": 1, "sealing": 1},
        stopped=None,
        not_made=None,
        waits_for="pin 4711 of a reader (analyst in process 31337, reports) lasts until 2026-05-04 12:15:00+00",
        delta_rows=210,
        delta_unfolded=17,
        delta_age=3.2,
        pins=1,
        expired_pins=0,
        oldest_pin_age=41.7,
    )
    due = MaintenanceDue(
        enabled=True,
        due=(DueOperation("remove_orphan_files", "delete files", "2417 commits since the last sweep"),),
        commits=2417,
        looked_at=None,
        unattended_seconds=93784.2,
        neglected=True,
        problem=None,
    )
    tables = (
        table("public.customers"),
        table("public.events", retention=retention),
        table("public.order_items", TableState.COPYING, chunks_total=64, chunks_done=23, rows_copied=18_400_000),
        table("public.orders", maintenance=due),
        table("public.notes", TableState.FAILED, error="column note: its type is not supported any more"),
        table("public.sessions", TableState.DROPPED, note="dropped in PostgreSQL; the lake keeps its last state"),
        table("public.stock_levels"),
    )
    status = MirrorStatus(
        database="shop",
        warehouse="s3://lake/shop",
        at=NOW,
        wal_position=Lsn(0x16_B374_D848),
        frontier=Lsn(0x16_B374_0000),
        commit_time=datetime.now(UTC) - timedelta(seconds=1),
        lag_bytes=984,
        lag_seconds=0.391203,
        slot=SlotState(
            "mirror_pump",
            "mirror_pump",
            exists=True,
            active=True,
            wal_status="reserved",
            retained_bytes=268_435_456,
            confirmed=Lsn(0x16_B374_0000),
            safe_wal_bytes=10_737_391_926,
            held_by=Holder("transaction", 912, "psql", None, 732.0),
        ),
        leader=LeaderStatus("pump-1", 4242, "2026-05-04T08:00:00.120000+00:00", 3, alive=True),
        last_error=None,
        tables=tables,
        standbys=(StandbyProcess("pump-2", 4711, NOW),),
    )
    return replace(status, alerts=alerts_of(status))


def history_of(status: MirrorStatus) -> StatusHistory:
    """An hour of samples that ends now: lag and load in waves, with a gap and a peak."""
    history, now, changes, end = StatusHistory(), time.time(), 0, int(3600 / INTERVAL)
    for place in range(end + 1):
        at = now - (end - place) * INTERVAL
        changes += round(3000 + 2600 * sin(place / 60) + 300 * sin(place * 1.7))
        lag = 0.5 + 0.3 * sin(place / 9) ** 2 + (14 * max(0.0, 1 - abs(place - 430) / 14))
        copying = [
            replace(each, chunks_done=min(each.chunks_done, max(0, place - end + 23)))
            if each.state is TableState.COPYING
            else each
            for each in status.tables
        ]
        if not 200 < place < 230:
            sample = StatusSample.of(replace(status, lag_seconds=lag), at, changes)
            history.add(sample, replace(status, tables=tuple(copying)))
    return history


class FixedSource(StatusSource):
    """A source with a fixed status, which tests may replace."""

    def __init__(self, status: MirrorStatus | None, problem: str | None = None) -> None:
        super().__init__()
        self.status = status
        self.problem = problem
        self._history = {} if status is None else history_of(status).to_json(status)

    @property
    def reading(self) -> StatusReading:
        return StatusReading(time.monotonic(), self.status, self.status, self._history, self.problem)

    def fresh(self) -> StatusReading:
        return self.reading


@dataclass
class Served:
    """The application on a loopback port."""

    url: str
    source: FixedSource
    state: PumpState


@contextmanager
def served(
    status: MirrorStatus | None,
    *,
    token: str | None = None,
    problem: str | None = None,
    phase: PumpPhase = PumpPhase.STREAMING,
    head_seconds: float = 1.0,
) -> Iterator[Served]:
    """The application of a pump in `phase`, with this status."""
    state, source = PumpState(), FixedSource(status, problem)
    state.phase = phase
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    endpoints = Endpoints(state, source, registry, 300)
    app = application(endpoints.routes(), Access(token))
    with HttpServer("127.0.0.1", 0, app, head_seconds=head_seconds) as server:
        yield Served(server.url, source, state)
