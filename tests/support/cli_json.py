"""What docs/cli-json.schema.json is made of: of each document that a command prints an example, made by the types that
print it, and the types whose fields have the keys' meanings as docstrings.

`python -m tests.support.cli_json` writes the file. A key whose field has no docstring says what it is by its name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mirror_pump.model import FeedMode, Lsn, SnapshotId, TableId, TableMode, TableName, TableState
from mirror_pump.ops.changes.followed_changes import ReachedFrontier, RowChange
from mirror_pump.ops.doctor.check import Finding, Outcome
from mirror_pump.ops.doctor.examination import Examination, Examined
from mirror_pump.ops.ingest.ingest_request import IngestOutcome
from mirror_pump.ops.load.load_job import LoadResult
from mirror_pump.ops.maintenance.policies import PolicyEntry
from mirror_pump.ops.moments.cost import MomentCost, MomentTableCost
from mirror_pump.ops.plan.plan import (
    LOCKS,
    CopyForecast,
    MirrorPlan,
    PlannedLock,
    PlannedServer,
    RequestEstimate,
    SlotForecast,
    UnfitTable,
)
from mirror_pump.ops.plan.planned_tables import PlannedMode, PlannedTable
from mirror_pump.ops.plan.server_load import ExistingSlot, OpenTransaction, ServerLoad
from mirror_pump.ops.reconcile.reconciliation import Reconciled, ReconciledTable
from mirror_pump.ops.register.former_files import FormerFiles
from mirror_pump.ops.resync.layout_change import LayoutAction, LayoutChange
from mirror_pump.ops.resync.resync import Resync, ResyncAction, TableResync
from mirror_pump.ops.retain.retention import PartitionOutlook, TableOutlook
from mirror_pump.ops.setup.profiles import ListedProfile
from mirror_pump.ops.status.feed_status import FeedStatus
from mirror_pump.ops.status.lake_content import LakeContent
from mirror_pump.ops.status.maintenance_due import DueOperation, MaintenanceDue
from mirror_pump.ops.status.resync_state import ResyncState
from mirror_pump.ops.status.retention_state import RetentionState
from mirror_pump.ops.status.status_report import (
    Alert,
    DeleteMode,
    LeaderStatus,
    MirrorStatus,
    Severity,
    SlotState,
    TableStatus,
)
from mirror_pump.ops.verify.comparison import Comparison
from mirror_pump.ops.verify.kept_files import FeedReport, MomentReport
from mirror_pump.ops.verify.requested_repairs import Repair, TableRepair
from mirror_pump.ops.verify.verification import TableReport, VerifyReport
from mirror_pump.runtime.service_thread import ThreadFailure
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.former_locations import EndedBy, FormerLocation
from mirror_pump.source.catalog.kept_moments import KeptMoment, KeptTable
from mirror_pump.source.catalog.pump_error import PumpError
from mirror_pump.source.loads.load_writes import LoadCounts
from mirror_pump.source.stream.standby import StandbyProcess
from mirror_pump.source.stream.wal_room import WalRate
from tests.support.json_schema import SCHEMA, Keys, Part, schema_text

_AT = datetime(2026, 5, 4, 9, 30, 12, 4211, UTC)
_FRONTIER = Lsn(0x5A3EF10)


def parts() -> dict[str, Part]:
    """The parts by their names in the schema, which are those of commands and of keys of `status`."""
    return {
        "status": Part(_status().to_json(), _STATUS_KEYS),
        "resyncs": Part(_RESYNC_STATE.to_json(), (Keys("", (ResyncState,)),)),
        "retention": Part(
            _RETENTION.to_json(),
            (
                Keys(
                    "",
                    (RetentionState,),
                    computed={
                        "heap_retention": "`lag` of a mirrored table; None for a tiered one",
                        "copy": "Chunks of its partitions that are being copied",
                    },
                ),
            ),
        ),
        "doctor": Part(
            _EXAMINATION.to_json(),
            (
                Keys("", (Examination,), computed={"outcome": "The worst of all checks; `skipped` counts as `ok`"}),
                Keys("checks[]", (Examined,), computed={"outcome": "The worst of its findings"}),
                Keys("checks[].findings[]", (Finding,)),
            ),
        ),
        "plan": Part(
            _PLAN.to_json(),
            (
                Keys("", (MirrorPlan,)),
                Keys("server", (PlannedServer,)),
                Keys("findings[]", (Finding,)),
                Keys("load", (ServerLoad,)),
                Keys("slot", (SlotForecast,)),
                Keys("copy", (CopyForecast,)),
                Keys("requests[]", (RequestEstimate,)),
                Keys("slots[]", (ExistingSlot,)),
                Keys("transactions[]", (OpenTransaction,)),
                Keys("locks[]", (PlannedLock,)),
                Keys("tables[]", (PlannedTable,)),
                Keys("left_out[]", (UnfitTable,)),
            ),
        ),
        "unregister": Part([_FORMER_FILES.to_json()], (Keys("[]", (FormerLocation, FormerFiles)),)),
        "changes": Part(_CHANGE.to_json(), (Keys("", (RowChange,)),)),
        "frontier": Part(ReachedFrontier(_FRONTIER).to_json(), (Keys("", (ReachedFrontier,)),)),
        "moment": Part(
            [_MOMENT.to_json()],
            (
                Keys("[]", (MomentCost, KeptMoment), computed={"tables": ""}),
                Keys("[].tables[]", (MomentTableCost, KeptTable)),
            ),
        ),
        "profile": Part(
            [_PROFILE.to_json()],
            (
                Keys(
                    "[]",
                    (ListedProfile, StorageProfile),
                    computed={
                        "profile": "",
                        "options": "Storage properties by pyiceberg's names; none of them is secret",
                        "credentials": "The reference to the credentials; None: those of the settings",
                        "default": "Whether tables that are registered without `--profile` get it",
                    },
                ),
            ),
        ),
        "verify": Part(
            _VERIFIED.to_json(),
            (
                Keys("", (VerifyReport,)),
                Keys("tables[]", (TableReport, Comparison)),
                Keys("feeds[]", (FeedReport,)),
                Keys("moments[]", (MomentReport,)),
            ),
        ),
        "reconcile": Part(_RECONCILED.to_json(), (Keys("", (Reconciled,)), Keys("tables[]", (ReconciledTable,)))),
        "policy": Part(
            {_POLICY.key: {"value": _POLICY.value, "default": _POLICY.default, "set": _POLICY.is_set}},
            (Keys("rewrite_target_bytes", (PolicyEntry,), {"set": "is_set"}),),
        ),
        "ingest": Part(
            {**_INGESTED.to_json(), "dry_run": False}, (Keys("", (IngestOutcome,), computed={"dry_run": ""}),)
        ),
        "retain": Part(
            [_OUTLOOK.to_json()],
            (
                Keys(
                    "[]",
                    (TableOutlook,),
                    computed={"heap_retention": "`lag` of a mirrored table; None for a tiered one"},
                ),
                Keys("[].partitions[]", (PartitionOutlook,), {"from": "lo", "to": "hi"}),
            ),
        ),
        "load": Part(_LOADED.to_json(), (_LOAD_KEYS,)),
        "alter": Part([_ALTERED.to_json()], (Keys("[]", (LayoutChange,), computed={"remedy": ""}),)),
        "resync": Part(
            _RESYNC.to_json(),
            (
                Keys("", (Resync,), {"slot_lost": "lost", "new_position": "position"}),
                Keys("tables[]", (TableResync,), computed={"remedy": ""}),
            ),
        ),
        "repair": Part(
            Repair(_RESYNC, (_REPAIRED,)).to_json(),
            (
                Keys("", (Resync,), {"slot_lost": "lost", "new_position": "position"}),
                Keys("tables[]", (TableResync, TableRepair), computed={"remedy": ""}),
            ),
        ),
    }


_STATUS_KEYS = (
    Keys("", (MirrorStatus,), computed={"maintenance": ""}),
    Keys(
        "slot",
        (SlotState,),
        {"confirmed_lsn": "confirmed", "wal_bytes_per_second": "wal_rate"},
        {"remedy": "None if there is no `error`", "wal_rate_seconds": "None if the rate is unknown"},
    ),
    Keys("leader", (LeaderStatus,)),
    Keys("leader.failing_threads[]", (ThreadFailure,)),
    Keys("standbys[]", (StandbyProcess,)),
    Keys("last_error", (PumpError,)),
    Keys(
        "maintenance",
        (MirrorStatus,),
        computed={"tables_due": "", "tables_neglected": "", "unattended_commits": "Of all tables"},
    ),
    Keys("alerts[]", (Alert,)),
    Keys(
        "feeds[]",
        (FeedStatus,),
        computed={
            "keep": "Seconds that changes stay. None: for ever; that of transactions follows from the tables",
            "files": "As the pump counted them when it last looked for files to merge. None before",
            "small_files": "Below the size up to which files are merged. None as `files` is",
            "rows": "Changes. None as `files` is",
            "bytes": "None as `files` is",
            "days": "On which its changes were committed. None as `files` is",
            "looked_at": "When the pump counted. None before",
        },
    ),
    Keys(
        "moments[]",
        (KeptMoment,),
        computed={
            "tables": "Their names in the lake",
            "damaged_files": "URIs of its files that were lost or damaged when the pump looked last, which is an alert",
        },
    ),
    Keys(
        "tables[]",
        (TableStatus, LakeContent, DeleteMode),
        {
            "delete_mode": "mode of DeleteMode",
            "index_phase": "phase",
            "index_rows": "rows of DeleteMode",
            "index_bytes": "bytes",
            "index_disk_bytes": "disk_bytes",
        },
        {"copy": "The running initial copy: chunks, those that are published, and the rows in these"},
    ),
    Keys("tables[].maintenance", (MaintenanceDue,), {"unattended_commits": "commits"}),
)

_SLOT = SlotState(
    name="mirror_pump",
    publication="mirror_pump",
    exists=True,
    active=True,
    wal_status="reserved",
    retained_bytes=26392,
    confirmed=_FRONTIER,
    safe_wal_bytes=1073741824,
    wal_rate=WalRate(131072.0, 142.1),
)

_TABLE = TableStatus(
    table="public.orders",
    lake_table="public.orders",
    state=TableState.LIVE,
    frontier=_FRONTIER,
    lag_bytes=984,
    lag_seconds=0.391203,
    snapshot_id=SnapshotId(7312893412893412893),
    metadata_location="s3://lake/shop/public/orders/metadata/00042-5d0c.metadata.json",
    equality_deletes_age=4.21,
    content=LakeContent(
        rows=1000120,
        rows_exact=False,
        data_files=14,
        delete_files=12,
        equality_deletes=431,
        equality_deletes_since=None,
        size_bytes=48210944,
        written_bytes=61077211,
        rewritten_bytes=40112870,
    ),
    chunks_total=0,
    chunks_done=0,
    rows_copied=0,
    deletes=DeleteMode("equality", "building"),
    error=None,
    maintenance=MaintenanceDue(
        enabled=True,
        due=(DueOperation("remove_orphan_files", "", "2417 commits since the last sweep"),),
        commits=2417,
        looked_at=None,
        unattended_seconds=93784.2,
        neglected=True,
        problem=None,
    ),
)


_FEED = FeedStatus(
    table="public.orders",
    lake_table="public.orders__changes",
    mode=FeedMode.KEYS,
    keep=timedelta(days=90),
    begins=Lsn(0x4F10A88),
    expired=Lsn(0),
    pins=1,
    metadata_location="s3://lake/shop/public/orders__changes/metadata/00107-91c2.metadata.json",
    stats={
        "files": 9,
        "small_files": 6,
        "rows": 2210443,
        "bytes": 61077211,
        "days": 3,
        "looked_at": "2026-05-04T09:29:57.120911+00:00",
    },
    error=None,
)


_THREADS = (ThreadFailure("follow", "KeyError: 'columns'", "2026-05-04T09:28:11.031200+00:00", 3),)


def _status() -> MirrorStatus:
    return MirrorStatus(
        database="shop",
        warehouse="s3://lake/shop",
        at=_AT,
        wal_position=Lsn(0x5A3F2E8),
        frontier=_FRONTIER,
        commit_time=_AT.replace(second=11, microsecond=613008),
        lag_bytes=984,
        lag_seconds=0.391203,
        slot=_SLOT,
        leader=LeaderStatus(
            "pump-1", 4242, "2026-05-04T08:00:00.120000+00:00", 3, alive=True, retrying=True, failing_threads=_THREADS
        ),
        last_error=PumpError(
            at=_AT.replace(second=3),
            since=_AT.replace(minute=28, second=47),
            attempts=5,
            error="reading file:///lake/orders/metadata/v3.json failed: it does not exist",
            remedy="",
            retry_in=30.0,
            host="pump-1",
            pid=4242,
        ),
        tables=(_TABLE,),
        moments=(_KEPT_MOMENT,),
        feeds=(_FEED,),
        standbys=(StandbyProcess("pump-2", 4711, _AT.replace(hour=8, minute=0)),),
        alerts=(Alert(Severity.CRITICAL, "column note: its type is not supported any more", table="public.notes"),),
    )


_RESYNC_STATE = ResyncState(
    _AT.replace(minute=12),
    slot_lost=True,
    tables=12,
    tables_copied=9,
    frontier=Lsn(0x4F10A88),
    copied=0.8214,
    seconds_left=226.1,
)

_RETENTION = RetentionState(
    cut="2026-02-01 00:00:00+00",
    lag="90 days",
    retention_line=None,
    partitions={"dropped": 12, "hot": 4, "tiered": 1},
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

_EXAMINATION = Examination(
    (
        Examined(
            "replication",
            0.041,
            (
                Finding(
                    Outcome.WARNING,
                    "max_slot_wal_keep_size is unlimited: while the pump is down, WAL is kept until the disk is full",
                    "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf()",
                ),
            ),
        ),
    )
)

_PLAN = MirrorPlan(
    at=_AT.isoformat(timespec="seconds"),
    server=PlannedServer(
        database="shop",
        version="18.6",
        standby=False,
        service=None,
        wal_level="replica",
        restart=("wal_level",),
        pending=("max_wal_senders",),
        free_slots=8,
        free_walsenders=9,
        free_connections=71,
    ),
    findings=(
        Finding(
            Outcome.FAILED,
            "wal_level is replica: the WAL does not carry row changes",
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
        ),
    ),
    load=ServerLoad(
        seconds=60.0,
        since="2026-01-12T04:00:00+00:00",
        wal_bytes_per_hour=6.4e9,
        changes_per_second=2410.5,
        transactions_per_second=188.2,
        catalog_changes_per_hour=320.0,
    ),
    slot=SlotForecast(
        limit_bytes=100 * 2**30,
        hours_until_lost=16.8,
        hours_per_100_gib=16.8,
        walsender_cores=0.006,
        decoding_bytes=64 * 2**20,
        decoded_in_memory=224_000,
        changes_per_transaction=12.8,
    ),
    copy=CopyForecast(
        tables=1,
        heap_bytes=48 * 2**30,
        shortest_seconds=184.1,
        longest_seconds=1030.8,
        least_wal_bytes=3.3e8,
        most_wal_bytes=1.8e9,
    ),
    requests=(RequestEstimate(60, 600),),
    slots=(
        ExistingSlot(
            slot="standby_1",
            kind="physical",
            active=True,
            wal_status="reserved",
            retained_bytes=16384,
            xmin_age=12,
            catalog_xmin_age=None,
            spilled_transactions=0,
            spilled_bytes=0,
        ),
    ),
    transactions=(
        OpenTransaction(
            pid=4711,
            database="shop",
            role="batch",
            application="nightly",
            prepared_as="",
            transaction_id="81234",
            seconds=5400.0,
        ),
    ),
    locks=(LOCKS[0],),
    tables=(
        PlannedTable(
            table="public.audit",
            owner="app",
            size_bytes=48 * 2**30,
            rows=210_000_000,
            heaps=1,
            unmeasured=0,
            key=(),
            replica_identity="default",
            modes=(PlannedMode.APPEND_ONLY,),
            refusal="public.audit has no primary key, without which rows cannot be found in the lake",
            remedy="ALTER TABLE public.audit ADD PRIMARY KEY (...)",
            tiering=None,
            row_security=False,
            left_out=("total",),
            changes_per_hour=41_000.0,
            full_identity_bytes_per_hour=0.0,
        ),
    ),
    left_out=(UnfitTable("public.scratch", "an unlogged table has no WAL"),),
    unknown=("free space on the server's disk: no SQL tells it",),
)

_FORMER_FILES = FormerFiles(
    FormerLocation(
        location="s3://lake/shop/public/orders-1f0c9a7be2d4",
        table=TableName("public", "orders"),
        metadata_location="s3://lake/shop/public/orders-1f0c9a7be2d4/metadata/00042-5d0c.metadata.json",
        registered_at=_AT.replace(month=2, microsecond=0),
        ended_at=_AT,
        ended_by=EndedBy.REGISTER,
        only_copy=False,
    ),
    files=87,
    size_bytes=48210944,
)

_KEPT_TABLE = KeptTable(
    TableId(16402),
    TableName("public", "orders"),
    SnapshotId(7312893412893412893),
    "s3://lake/shop/public/orders-1f0c9a7be2d4/seam/00000-0c6d.metadata.json",
    SnapshotId(7312893412893412893),
    "s3://lake/shop/public/orders-1f0c9a7be2d4/seam/00000-0c6d.metadata.json",
    "s3://lake/shop/public/orders-1f0c9a7be2d4/metadata/00042-5d0c.metadata.json",
)

_KEPT_MOMENT = KeptMoment("month-end", _FRONTIER, _AT, "shop_admin", "closing of April", (_KEPT_TABLE,))

_CHANGE = RowChange(
    "update",
    Lsn(0x5A3EE40),
    2,
    741,
    _AT,
    None,
    {"id": 4217, "customer": "Blue Ltd", "total": "19.90", "paid": True, "tags": '{new,"to ship"}'},
    None,
)

_MOMENT = MomentCost(_KEPT_MOMENT, (MomentTableCost(_KEPT_TABLE, 48210944, 40112870),))

_PROFILE = ListedProfile(
    StorageProfile(
        name="archive",
        warehouse="s3://archive/shop",
        options={"s3.endpoint": "https://s3.example.com", "s3.region": "eu-central-1"},
        credential_ref="archive",
        is_default=False,
    ),
    tables=3,
)

_VERIFIED = VerifyReport(
    Lsn(0x5A3F2E8),
    (TableReport("public.orders", Comparison(1000103, 1000103, 0, ()), frontier=Lsn(0x5A3F2E8)),),
    (
        FeedReport(
            "public.orders",
            "public.orders__changes",
            since=_FRONTIER,
            until=Lsn(0x5A3F2E8),
            changes=312,
            different_rows=0,
        ),
    ),
    (MomentReport("month-end"),),
)

_ALTERED = LayoutChange(
    "public.orders", LayoutAction.COPY, "day(created_at), bucket(16, tenant)", "tenant", "live", rows=1000
)
_REPAIRED = TableRepair(
    "public.orders", 1000103, 1000101, missing=2, different_rows=2, repaired=True, frontier=Lsn(0x5A3F2E8)
)

_RECONCILED = Reconciled(
    timeline=2,
    former_timeline=1,
    lost=None,
    slot="made",
    frontier=Lsn(0x5A3F1D8),
    tables=(
        ReconciledTable(
            "public.orders", "copied-again", "100 rows differ at 0/5A3F1D8: the heap has 3000, the lake 2900"
        ),
    ),
)

_POLICY = PolicyEntry("rewrite_target_bytes", 268435456, 134217728, "256MiB", is_set=True)

_INGESTED = IngestOutcome(
    table="public.events",
    op_id="0c1f5c7a-0d1b-4bb1-9d2a-2f1c6f1f9a10",
    rows=1000120,
    lake_rows=1000000,
    heap_rows=120,
    corrected=3,
    replaced=17,
    rejected=0,
    files=4,
    seconds=3.512,
)

_OUTLOOK = TableOutlook(
    table="public.events",
    mode=TableMode.MIRRORED,
    keep_heap=False,
    cut="2026-02-01 00:00:00+00",
    lag="90 days",
    newest="2026-05-04 09:30:11.613008+00",
    stopped=None,
    not_made=None,
    partitions=(
        PartitionOutlook(
            "public.events_p202602",
            "2026-02-01 00:00:00+00",
            "2026-03-01 00:00:00+00",
            "hot",
            "leaves when a row of 2026-05-30 00:00:00+00 or later arrives",
        ),
    ),
)

_LOADED = LoadResult(
    "public.events",
    "etl-2026-11-21",
    replayed=False,
    outcome={
        "bytes": 141,
        "content": {"digest": "sha256:9f1c02...", "mode": "upsert", "format": "csv", "columns": None},
        "filtered": [{"row": 2, "reason": 'column at: date/time field value out of range: "2026-02-30"'}],
        "rows_read": 4,
        "rows_loaded": 3,
        "rows_below_cutline": 1,
        "rows_filtered": 1,
        "rows_not_found": 0,
        "rows_superseded": 0,
        "loaded_at": _AT.isoformat(),
    },
)

_LOAD_KEYS = Keys(
    "",
    (LoadResult, LoadCounts),
    {
        "rows_loaded": "loaded",
        "rows_below_cutline": "below_cutline",
        "rows_superseded": "superseded",
        "rows_not_found": "not_found",
    },
    {
        "state": "`committed`: a load that is not committed prints no JSON, and exits 1",
        "bytes": "",
        "content": "What the label stands for",
        "rows_read": "The sum of `rows_loaded`, `rows_superseded`, `rows_not_found` and `rows_filtered`",
        "rows_filtered": "",
        "filtered": "Rows that were left out, and why: the first 100",
        "loaded_at": "",
    },
)

_RESYNC = Resync(
    slot="mirror_pump",
    lost=None,
    frontier=Lsn(0x4F10A88),
    position=_FRONTIER,
    tables=(
        TableResync(
            TableId(16402), "public.orders", ResyncAction.COPY, TableState.LIVE, size_bytes=48210944, rows=1000120
        ),
    ),
)


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(parts()), encoding="utf-8")
