"""Shows the outlook of partitions of tiered tables and of those with heap retention, shows and changes the options, and
resumes stopped tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.errors import TableError, UsageError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import MirroredTable, TableId, TableMode, Tier, TierKind
from mirror_pump.ops.maintenance.policies import PolicyEntry
from mirror_pump.partition_life import PartitionState
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pump_channel import RETAIN, notify_pump
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, session_time_zone, source_errors
from mirror_pump.source.options.table_option import Alteration
from mirror_pump.source.options.table_options import OPTIONS
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.tier_keys import (
    DROP_GRACE,
    NEVER,
    duration_text,
    now_value,
    parse_grace,
    parse_lake_retention,
    parse_span,
    shown,
    span_text,
)
from mirror_pump.source.relations.widths import parse_width
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import (
    Partition,
    RetentionChoices,
)
from sql import queries

_SQL = queries("retention")

RETENTION_KEYS = tuple(option.key for option in OPTIONS if option.alter is Alteration.POLICY)
"""Keys of `mirror-pump policy` that tables with a cut-line have in addition to those of maintenance. The distance is
`lag` of a tiered table, and `heap_retention` of a mirrored one."""
_LAKE_KEY = "lake_retention"
"""A key of tiered tables that do not keep their heap."""
_DROP_KEYS = ("drop_grace", "detach")
"""Keys that a table which keeps its heap lacks."""


@dataclass(frozen=True)
class PartitionOutlook(JsonDocument, keys={"lo": "from", "hi": "to"}):
    """The state and outlook of one partition, as text for people."""

    partition: str
    lo: str
    hi: str
    state: str
    outlook: str
    """What happens to the partition next and when, or why nothing happens, for people."""


@dataclass(frozen=True)
class TableOutlook(JsonDocument, also=("heap_retention",)):
    """The outlook of one table with a cut-line."""

    table: str
    mode: TableMode
    keep_heap: bool
    cut: str
    """The cut-line."""
    lag: str
    """How far behind the newest key partitions leave, or `everything`."""
    newest: str | None
    """The newest key; of times, keys later than the present do not count."""
    stopped: str | None
    not_made: str | None
    """Why a partition could not be made ahead, or none be looked at."""
    partitions: tuple[PartitionOutlook, ...]
    lake_retention: str | None = None
    """How far behind the cut-line rows expire from the lake; None if they stay."""
    retention_line: str | None = None
    """Rows below it have expired; None if none has."""
    not_expired: str | None = None
    """Why the retention line does not move, although it is due."""

    @property
    def heap_retention(self) -> str | None:
        """`lag` of a mirrored table; None for a tiered one."""
        return self.lag if self.mode is TableMode.MIRRORED else None

    @property
    def summary(self) -> str:
        if self.stopped is not None:
            return f"cut-line {self.cut}, STOPPED: {self.stopped}"
        what = "partitions stay, and are in the lake" if self.keep_heap else "keeps"
        return f"cut-line {self.cut}, {what} {self.lag} behind {self.newest or 'the first row'}{self._expiry}"

    @property
    def _expiry(self) -> str:
        line = "" if self.retention_line is None else f"; rows below {self.retention_line} have expired"
        lag = "" if self.lake_retention is None else f"; the lake keeps {self.lake_retention} behind the cut-line"
        waits = "" if self.not_expired is None else f"; the next rows do not expire yet: {self.not_expired}"
        return f"{line}{lag}{waits}"


def look(settings: Settings, names: Sequence[str]) -> tuple[TableOutlook, ...]:
    """Return the outlook of the named tables, or of all tables with a cut-line if no name is given.

    It only reads, and its waits for locks are short. Raises TableError for a table without a cut-line, and for a named
    one that is unregistered meanwhile; others are left out then.
    """
    with _connect(settings) as connection, source_errors("looking at partitions"):
        source.bounded(connection)
        outlooks = [_outlook(connection, table_id) for table_id in _requested_tables(connection, settings, names)]
    if names and None in outlooks:
        raise TableError("a table was unregistered during the command", "Run the command again.")
    return tuple(outlook for outlook in outlooks if outlook is not None)


def resume(settings: Settings, names: Sequence[str]) -> None:
    """Resume stopped tables, and wake the pump for all postponed work."""
    with _connect(settings) as connection, source_errors("resuming heap retention"):
        connection.execute(_SQL["resume"], {"table_ids": [*_requested_tables(connection, settings, names)]})
        notify_pump(connection, RETAIN)


def show_retention(settings: Settings, name: str) -> list[PolicyEntry]:
    """Return the options of one table; an empty list if it has no cut-line."""
    with _connect(settings) as connection, source_errors("reading the choices of heap retention"):
        retained = _retained(connection, name)
        if retained is None:
            return []
        table, tier, choices = retained
    lag = None if choices.lag == NEVER else span_text(tier.kind, choices.lag)
    width = None if choices.width is None else choices.width.text(tier.kind)
    grace = duration_text(choices.drop_grace)
    lake = None if choices.lake_lag is None else span_text(tier.kind, choices.lake_lag)
    entries = [
        PolicyEntry(_distance_key(table), lag, None, lag or "never", is_set=lag is not None),
        PolicyEntry("premake", choices.premake, 0, str(choices.premake), is_set=choices.premake != 0),
        PolicyEntry("width", width, None, width or "none", is_set=width is not None),
        PolicyEntry("drop_grace", grace, duration_text(DROP_GRACE), grace, is_set=choices.drop_grace != DROP_GRACE),
        PolicyEntry("detach", choices.detach, default=False, shown=str(choices.detach).lower(), is_set=choices.detach),
        PolicyEntry(_LAKE_KEY, lake, None, lake or "forever", is_set=lake is not None),
    ]
    return [entry for entry in entries if _missing_key(table, choices, entry.key) is None]


def _missing_key(table: MirroredTable, choices: RetentionChoices, key: str | None) -> str | None:
    """Return why the table does not have this option. None if it has."""
    if key == _LAKE_KEY and table.mode is TableMode.MIRRORED:
        return f"is a {table.mode} table: it has no {key}, since its rows stay in the lake"
    if key == _LAKE_KEY and choices.keep_heap:
        return f"keeps its heap: it has no {key}, since all of its rows stay"
    if choices.keep_heap and key in _DROP_KEYS:
        return f"keeps its heap: it has no {key}, since no partition leaves"
    return None


def _distance_key(table: MirroredTable) -> str:
    """Return the key of the distance at which partitions leave the heap."""
    return "lag" if table.mode is TableMode.TIERED else "heap_retention"


def change_retention(
    settings: Settings, name: str, key: str | None, text: str | None, *, keeps_rows: bool = False
) -> None:
    """Set one of the options, or unset it if `text` is None. With `keeps_rows`, raise TableError rather than let rows
    expire that have stayed so far.

    Without a lag no further partition leaves the heap, and without `lake_retention` no further row leaves the lake.
    What has left does not return. Raises TableError for a table without a cut-line, or without this option.
    """
    with _connect(settings) as connection, source_errors("changing the choices of heap retention"):
        retained = _retained(connection, name)
        if retained is None:
            raise TableError(
                f"{name} was registered without heap retention",
                f"`mirror-pump unregister {shlex.quote(name)}`, then register it with --heap-retention or --mode"
                " tiered",
            )
        table, tier, choices = retained
        distance = _distance_key(table)
        if key != distance and key in ("heap_retention", "lag"):
            raise TableError(f"{name} is a {table.mode} table: it has no {key}", f"its key is {distance}")
        if (why := _missing_key(table, choices, key)) is not None:
            raise TableError(f"{name} {why}")
        if key == _LAKE_KEY:
            lag = None if text is None else parse_lake_retention(tier.kind, text, _LAKE_KEY)
            if keeps_rows and lag is not None and (choices.lake_lag is None or lag < choices.lake_lag):
                span = "forever" if choices.lake_lag is None else span_text(tier.kind, choices.lake_lag)
                raise TableError(
                    f"{table.name}: lake_retention is {span}; with {text} older rows expire from the lake within"
                    " seconds, and nothing has another copy of them",
                    "with --yes they expire",
                )
            connection.execute(_SQL["lake_lag"], {"table_id": table.table_id, "lag": lag})
        elif key == distance:
            lag = NEVER if text is None else parse_span(tier.kind, text, distance)
            connection.execute(_SQL["lag"], {"table_id": table.table_id, "lag": lag})
        else:
            zone = "UTC" if tier.kind is not TierKind.TIMESTAMPTZ else session_time_zone(settings.require_dsn())
            chosen = {key: _DEFAULTS[str(key)] if text is None else _parsed(tier.kind, str(key), text, zone)}
            connection.execute(_SQL["choose"], {"table_id": table.table_id, "retention": Jsonb(chosen)})
        notify_pump(connection, RETAIN)


_DEFAULTS: dict[str, Any] = {
    "premake": 0,
    "width": None,
    "drop_grace": DROP_GRACE.total_seconds(),
    "detach": False,
}


def _parsed(kind: TierKind, key: str, text: str, zone: str) -> Any:
    """Return an option's value as the catalog stores it. `zone` is the time zone of a width in months."""
    if key == "width":
        return parse_width(kind, text, "width", zone).to_json()
    if key == "drop_grace":
        return parse_grace(text, "drop_grace").total_seconds()
    if key == "detach":
        if text.lower() not in ("true", "false"):
            raise UsageError(f"detach must be true or false, not {text!r}")
        return text.lower() == "true"
    if not (text.isascii() and text.isdecimal()) or int(text) > 1000:
        raise UsageError(f"premake must be a whole number from 0 to 1000, not {text!r}")
    return int(text)


def _connect(settings: Settings) -> PgConnection:
    return connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-retain")


def _requested_tables(connection: PgConnection, settings: Settings, names: Sequence[str]) -> tuple[TableId, ...]:
    if not names:
        return source.retained_tables(connection, settings.slot)
    requested_ids = [resolve_name(connection, name)[1] for name in names]
    retained_ids = source.retained_tables(connection, settings.slot, requested_ids)
    for name, table_id in zip(names, requested_ids, strict=True):
        if table_id not in retained_ids:
            raise TableError(
                f"{name} has no heap retention",
                f"`mirror-pump register {shlex.quote(name)} --heap-retention DISTANCE`, or `mirror-pump register"
                f" {shlex.quote(name)} --mode tiered`",
            )
    return retained_ids


def _retained(connection: PgConnection, name: str) -> tuple[MirroredTable, Tier, RetentionChoices] | None:
    table = load_table(connection, resolve_name(connection, name)[1])
    choices = None if table is None else source.read_choices(connection, table.table_id)
    if table is None or table.tier is None or choices is None:
        return None
    return table, table.tier, choices


def _outlook(connection: PgConnection, table_id: TableId) -> TableOutlook | None:
    """Return what happens next to a table's partitions; none of them while another session's lock hides them. None if
    the table is not mirrored any more."""
    table, choices = load_table(connection, table_id), source.read_choices(connection, table_id)
    if table is None or table.tier is None or choices is None:
        return None
    tier = table.tier
    newest: int | None = None
    partitions: tuple[Partition, ...] = ()
    not_made = choices.not_made
    try:
        attached = source.read_attached(connection, table_id)
        newest = source.high_water(connection, tier, attached)
        partitions = source.read_partitions(connection, table_id)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        not_made = source.NOT_SEEN.format(source.refusal(error))
    return TableOutlook(
        table=str(table.name),
        mode=table.mode,
        keep_heap=choices.keep_heap,
        cut=shown(tier.kind, choices.cut),
        lag="everything" if choices.lag == NEVER else span_text(tier.kind, choices.lag),
        newest=None if newest is None else shown(tier.kind, newest),
        lake_retention=None if choices.lake_lag is None else span_text(tier.kind, choices.lake_lag),
        retention_line=None if tier.line is None else shown(tier.kind, tier.line),
        not_expired=choices.not_expired,
        stopped=choices.stopped,
        not_made=not_made,
        partitions=tuple(
            PartitionOutlook(
                partition.partition_id,
                shown(tier.kind, partition.lo),
                shown(tier.kind, partition.hi),
                partition.state,
                _next(table, partition, choices, newest),
            )
            for partition in partitions
        ),
    )


def _next(table: MirroredTable, partition: Partition, choices: RetentionChoices, newest: int | None) -> str:
    """Return what happens next to a partition, and when or why."""
    tier = table.tier
    assert tier is not None
    why = f": {partition.reason}" if partition.reason else ""
    tried = f" (tried {partition.attempts} times)" if partition.attempts else ""
    if choices.stopped is not None:
        return f"nothing happens before `mirror-pump retain TABLE`{why}"
    if partition.name is None:
        return f"the cut-line passes it after the partitions before it{why}"
    if partition.state is PartitionState.HOT:
        return when_due(tier, partition.hi, choices.lag, newest, _distance_key(table)) + why + tried
    if partition.state is PartitionState.TIERED:
        return _leaving(partition, choices) + why + tried
    passed = "the cut-line passes it once the frontier has passed the position at which it was sealed"
    if table.mode is TableMode.TIERED:
        of = "" if not partition.chunks_total else f" ({partition.chunks_done} of {partition.chunks_total} chunks)"
        passed = f"it is copied{of}, then the cut-line passes it"
    follows = {
        PartitionState.SEALING: passed,
        PartitionState.TIERING: "it is compared with the lake next",
    }
    return follows[partition.state] + why + tried


def _leaving(partition: Partition, choices: RetentionChoices) -> str:
    """Return when a partition that the lake holds is dropped or detached."""
    if choices.keep_heap:
        return "the lake holds it: it stays in the heap as well (keep-heap)"
    how = "detached" if choices.detach else "dropped"
    left = partition.grace_left(choices.drop_grace)
    if left <= timedelta(0):
        return f"the lake holds it: it is {how} next"
    return f"the lake holds it: it is {how} after {datetime.now(UTC) + left:%Y-%m-%d %H:%M:%S}+00 (drop_grace)"


def when_due(tier: Tier, hi: int, lag: int, newest: int | None, key: str = "heap_retention") -> str:
    """Return when a partition with upper bound `hi` begins to leave the heap. `newest` is the newest key, `key` the
    option that sets the distance `lag`."""
    if lag == NEVER:
        return f"stays: {key} is not set"
    due = hi + lag
    if due >= 2**63 - 1:
        return "stays: it has no upper bound that could fall behind"
    if newest is not None and due <= newest:
        return "is due: it is sealed next"
    now = now_value(tier.kind, datetime.now(UTC))
    if now is not None and newest is not None and due <= now:
        return f"leaves when a row of {shown(tier.kind, due)} or later arrives"
    return f"leaves when the newest key reaches {shown(tier.kind, due)}"
