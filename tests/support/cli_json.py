"""What docs/cli-json.schema.json is made of: of each document that a command prints an example, made by the types that
print it, and the types whose fields have the keys' meanings as docstrings.

`python -m tests.support.cli_json` writes the file. A key whose field has no docstring says what it is by its name."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import UnionType
from typing import Any

from mirror_pump.model import Lsn
from mirror_pump.ops.changes.followed_changes import ReachedFrontier, RowChange
from mirror_pump.ops.doctor.check import Finding
from mirror_pump.ops.doctor.examination import Examination, Examined
from mirror_pump.ops.follow.follower_check import CheckedFollowerTable
from mirror_pump.ops.ingest.ingest_request import IngestOutcome
from mirror_pump.ops.load.load_job import LoadResult
from mirror_pump.ops.maintenance.policies import PolicyEntry
from mirror_pump.ops.moments.cost import MomentCost, MomentTableCost
from mirror_pump.ops.plan.plan import (
    CopyForecast,
    MirrorPlan,
    PlannedLock,
    PlannedServer,
    RequestEstimate,
    SlotForecast,
    UnfitTable,
)
from mirror_pump.ops.plan.planned_tables import PlannedTable
from mirror_pump.ops.plan.server_load import ExistingSlot, OpenTransaction, ServerLoad
from mirror_pump.ops.reconcile.reconciliation import Reconciled, ReconciledTable
from mirror_pump.ops.register.former_files import FormerFiles
from mirror_pump.ops.resync.layout_change import LayoutChange
from mirror_pump.ops.resync.resync import Resync, TableResync
from mirror_pump.ops.retain.retention import PartitionOutlook, TableOutlook
from mirror_pump.ops.setup.profiles import ListedProfile
from mirror_pump.ops.status.feed_status import FeedStatus
from mirror_pump.ops.status.lake_content import LakeContent
from mirror_pump.ops.status.maintenance_due import MaintenanceDue
from mirror_pump.ops.status.resync_state import ResyncState
from mirror_pump.ops.status.retention_state import RetentionState
from mirror_pump.ops.status.status_report import (
    Alert,
    DeleteMode,
    Holder,
    LeaderStatus,
    MirrorStatus,
    SlotState,
    TableStatus,
)
from mirror_pump.ops.verify.comparison import Comparison
from mirror_pump.ops.verify.kept_files import FeedReport, MomentReport
from mirror_pump.ops.verify.requested_repairs import Repair, TableRepair
from mirror_pump.ops.verify.verification import TableReport, VerifyReport
from mirror_pump.ops.where.file_search import RowFile, UnreadFile
from mirror_pump.ops.where.reaching_states import RowState
from mirror_pump.ops.where.whereabouts import Whereabouts
from mirror_pump.runtime.service_thread import ThreadFailure
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.followed import NewTablePattern, NotJoined
from mirror_pump.source.catalog.followers import Follower
from mirror_pump.source.catalog.former_locations import FormerLocation
from mirror_pump.source.catalog.kept_moments import KeptMoment, KeptTable
from mirror_pump.source.catalog.lost_rows import LostRow
from mirror_pump.source.catalog.pump_error import PumpError
from mirror_pump.source.loads.load_writes import LoadCounts
from mirror_pump.source.stream.standby import StandbyProcess
from tests.support.json_schema import SCHEMA, Keys, Part, schema_text

_AT = datetime(2026, 5, 4, 9, 30, 12, 4211, UTC)
_FRONTIER = Lsn(0x5A3EF10)


def parts() -> dict[str, Part]:
    """The parts by their names in the schema, which are those of commands and of keys of `status`."""
    return {
        "status": Part(_sample(MirrorStatus).to_json(), _STATUS_KEYS),
        "resyncs": Part(_sample(ResyncState).to_json(), (Keys("", (ResyncState,)),)),
        "retention": Part(
            _sample(RetentionState).to_json(),
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
            _sample(Examination).to_json(),
            (
                Keys("", (Examination,), computed={"outcome": "The worst of all checks; `skipped` counts as `ok`"}),
                Keys("checks[]", (Examined,), computed={"outcome": "The worst of its findings"}),
                Keys("checks[].findings[]", (Finding,)),
            ),
        ),
        "plan": Part(
            _sample(MirrorPlan).to_json(),
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
        "unregister": Part([_sample(FormerFiles).to_json()], (Keys("[]", (FormerLocation, FormerFiles)),)),
        "changes": Part(_sample(RowChange).to_json(), (Keys("", (RowChange,)),)),
        "frontier": Part(ReachedFrontier(_FRONTIER).to_json(), (Keys("", (ReachedFrontier,)),)),
        "follow": Part([_sample(Follower).to_json()], (Keys("[]", (Follower,), {"credentials": "credential_ref"}),)),
        "follower": Part([_sample(CheckedFollowerTable).to_json()], (Keys("[]", (CheckedFollowerTable,)),)),
        "moment": Part(
            [_sample(MomentCost).to_json()],
            (
                Keys("[]", (MomentCost, KeptMoment), computed={"tables": ""}),
                Keys("[].tables[]", (MomentTableCost, KeptTable)),
            ),
        ),
        "profile": Part(
            [_sample(ListedProfile).to_json()],
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
            _sample(VerifyReport).to_json(),
            (
                Keys("", (VerifyReport,)),
                Keys("tables[]", (TableReport, Comparison)),
                Keys("feeds[]", (FeedReport,)),
                Keys("moments[]", (MomentReport,)),
            ),
        ),
        "reconcile": Part(
            _sample(Reconciled).to_json(), (Keys("", (Reconciled,)), Keys("tables[]", (ReconciledTable,)))
        ),
        "policy": Part(
            {"rewrite_target_bytes": {"value": 268435456, "default": 134217728, "set": True}},
            (Keys("rewrite_target_bytes", (PolicyEntry,), {"set": "is_set"}),),
        ),
        "ingest": Part(
            {**_sample(IngestOutcome).to_json(), "dry_run": False},
            (Keys("", (IngestOutcome,), computed={"dry_run": ""}),),
        ),
        "retain": Part(
            [_sample(TableOutlook).to_json()],
            (
                Keys(
                    "[]",
                    (TableOutlook,),
                    computed={"heap_retention": "`lag` of a mirrored table; None for a tiered one"},
                ),
                Keys("[].partitions[]", (PartitionOutlook,), {"from": "lo", "to": "hi"}),
            ),
        ),
        "where": Part(
            _sample(Whereabouts).to_json(),
            (
                Keys("", (Whereabouts,)),
                Keys("states[]", (RowState,)),
                Keys("files[]", (RowFile,)),
                Keys("unread[]", (UnreadFile,), computed={"remedy": "None if there is no `error`"}),
            ),
        ),
        "load": Part(_sample(LoadResult).to_json(), (_LOAD_KEYS,)),
        "alter": Part(
            [_sample(LayoutChange).to_json()],
            (Keys("[]", (LayoutChange,), computed={"remedy": "None if there is no `error`"}),),
        ),
        "resync": Part(
            _sample(Resync).to_json(),
            (
                Keys("", (Resync,), {"slot_lost": "lost", "new_position": "position"}),
                Keys("tables[]", (TableResync,), computed={"remedy": "None if there is no `error`"}),
            ),
        ),
        "repair": Part(
            _sample(Repair).to_json(),
            (
                Keys("", (Resync,), {"slot_lost": "lost", "new_position": "position"}),
                Keys("tables[]", (TableResync, TableRepair), computed={"remedy": "None if there is no `error`"}),
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
    Keys("slot.held_by", (Holder,)),
    Keys("former_locations[]", (FormerLocation,)),
    Keys("lost_rows[]", (LostRow,), {"table": "table_name"}),
    Keys("followed[]", (NewTablePattern,)),
    Keys("not_joined[]", (NotJoined,)),
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
    Keys("followers[]", (Follower,), {"credentials": "credential_ref"}),
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

_TEXTS: Mapping[str, Any] = {
    "table": "public.orders",
    "schema": "public",
    "error": "cannot connect to database shop on db-1:5432",
    "remedy": "check that the server is running and reachable",
    "warehouse": "s3://lake/shop",
    "location": "s3://lake/shop/public/orders-1f0c9a7be2d4",
    "metadata_location": "s3://lake/shop/public/orders-1f0c9a7be2d4/metadata/00042-5d0c.metadata.json",
    "cut": "2026-02-01 00:00:00+00",
    "lag": "90 days",
    "partitions": {"dropped": 12, "hot": 4, "tiered": 1},
    "row": {"id": 4217, "customer": "Blue Ltd", "total": "19.90", "paid": True},
    "old": {"id": 4217, "customer": "Blue Ltd", "total": "17.10", "paid": False},
    "values": {"id": "4217"},
    "command": "mirror-pump maintain public.customers",
    "options": {"s3.endpoint": "https://s3.example.com", "s3.region": "eu-central-1"},
    "differences": (
        {"key": {"id": 4217}, "kind": "different", "columns": {"total": {"heap": "19.90", "lake": "17.10"}}},
    ),
    "stats": {
        "files": 9,
        "small_files": 6,
        "rows": 2210443,
        "bytes": 61077211,
        "days": 3,
        "looked_at": "2026-05-04T09:29:57.120911+00:00",
    },
    "outcome": {
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
}
"""Values of fields of these names whose type does not say enough."""
_VALUES: Mapping[Any, Any] = {
    str: "text",
    int: 12,
    float: 41.7,
    bool: True,
    datetime: _AT,
    timedelta: timedelta(days=90),
}


_APART: Mapping[str, Any] = {"retention": None, "resyncs": ()}
"""Keys of `status` that are parts of their own."""


def _sample(kind: Any, name: str = "") -> Any:
    """A value of the type, for the field of this name: no optional one is None, and each collection has one item."""
    if name in _APART:
        return _APART[name]
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return _sample(next(option for option in options if option is not type(None)), name)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{entry.name: _sample(hints[entry.name], entry.name) for entry in fields(kind) if entry.init})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(_TEXTS["error"], _TEXTS["remedy"])
    if name in _TEXTS and isinstance(_TEXTS[name], origin or kind):
        return _TEXTS[name]
    if origin in (Mapping, dict):
        return {}
    if origin in (tuple, list, frozenset):
        return origin((_sample(options[0], name),))
    return _FRONTIER if kind is Lsn else _VALUES[getattr(kind, "__supertype__", kind)]


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


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(parts()), encoding="utf-8")
