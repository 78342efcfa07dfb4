"""What people ask about heap retention and change of it: outlook of every partition, choices, and another try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.config import Settings
from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import MirroredTable, TableId, Tier, TierKind
from mirror_pump.ops.maintenance.policies import PolicyEntry
from mirror_pump.pipeline.session.listener import CHANNEL, RETAIN
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, session_time_zone, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.tier_keys import NEVER, now_value, parse_span, shown, span_text
from mirror_pump.source.relations.widths import parse_width
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import (
    DROP_GRACE,
    HOT,
    SEALING,
    TIERED,
    TIERING,
    Partition,
    RetentionChoices,
)
from mirror_pump.source.retention.retention_plan import parse_grace
from sql import queries

_SQL = queries("retention")

RETENTION_KEYS = ("heap_retention", "premake", "width", "drop_grace", "detach")
"""Keys of `mirror-pump policy` that tables with heap retention have beside those of maintenance."""


@dataclass(frozen=True)
class PartitionOutlook:
    """One partition, as people read it."""

    partition: str
    lo: str
    hi: str
    state: str
    outlook: str
    """What happens to it next, and when; or why not."""

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "from": self.lo,
            "to": self.hi,
            "state": self.state,
            "outlook": self.outlook,
        }


@dataclass(frozen=True)
class TableOutlook:
    """One table with heap retention."""

    table: str
    cut: str
    """T."""
    lag: str
    newest: str | None
    """The high-water mark: the newest key, of times no later than the present."""
    stopped: str | None
    not_made: str | None
    """Why a partition could not be made ahead, or none be looked at."""
    partitions: tuple[PartitionOutlook, ...]

    @property
    def summary(self) -> str:
        if self.stopped is not None:
            return f"T = {self.cut}, STOPPED: {self.stopped}"
        return f"T = {self.cut}, keeps {self.lag} behind {self.newest or 'the first row'}"

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "cut": self.cut,
            "heap_retention": self.lag,
            "newest": self.newest,
            "stopped": self.stopped,
            "not_made": self.not_made,
            "partitions": [one.to_json() for one in self.partitions],
        }


def look(settings: Settings, names: Sequence[str]) -> tuple[TableOutlook, ...]:
    """The named tables, or all that have heap retention. Reads only, and waits for no lock to speak of. TableError for
    a table without."""
    with _connect(settings) as connection, source_errors("looking at partitions"):
        source.bounded(connection)
        return tuple(_outlook(connection, table_id) for table_id in _chosen(connection, settings, names))


def resume(settings: Settings, names: Sequence[str]) -> None:
    """Lets stopped tables go on, and wakes the pump for everything that was put off."""
    with _connect(settings) as connection, source_errors("resuming heap retention"):
        connection.execute(_SQL["resume"], {"table_ids": [*_chosen(connection, settings, names)]})
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, RETAIN))


def show_retention(settings: Settings, name: str) -> list[PolicyEntry]:
    """The choices of one table; none without heap retention."""
    with _connect(settings) as connection, source_errors("reading the choices of heap retention"):
        found = _retained(connection, name)
        if found is None:
            return []
        _, tier, choices = found
    lag = None if choices.lag == NEVER else span_text(tier.kind, choices.lag)
    width = None if choices.width is None else choices.width.text(tier.kind)
    grace = grace_text(choices.drop_grace)
    return [
        PolicyEntry("heap_retention", lag, None, lag or "never", is_set=lag is not None),
        PolicyEntry("premake", choices.premake, 0, str(choices.premake), is_set=choices.premake != 0),
        PolicyEntry("width", width, None, width or "none", is_set=width is not None),
        PolicyEntry("drop_grace", grace, grace_text(DROP_GRACE), grace, is_set=choices.drop_grace != DROP_GRACE),
        PolicyEntry("detach", choices.detach, default=False, shown=str(choices.detach).lower(), is_set=choices.detach),
    ]


def grace_text(grace: timedelta) -> str:
    """As `parse_grace` reads it."""
    return span_text(TierKind.TIMESTAMP, grace // timedelta(microseconds=1))


def change_retention(settings: Settings, name: str, key: str | None, text: str | None) -> None:
    """Sets or (None) unsets one choice. Without a lag no further partition leaves; those that have left stay away."""
    with _connect(settings) as connection, source_errors("changing the choices of heap retention"):
        found = _retained(connection, name)
        if found is None:
            raise TableError(
                f"{name} was registered without heap retention", "unregister it, and register it with --heap-retention"
            )
        table, tier, _ = found
        if key == "heap_retention":
            lag = NEVER if text is None else parse_span(tier.kind, text, key)
            connection.execute(_SQL["lag"], {"table_id": table.table_id, "lag": lag})
        else:
            zone = "UTC" if tier.kind is not TierKind.TIMESTAMPTZ else session_time_zone(settings.require_dsn())
            chosen = {key: _DEFAULTS[str(key)] if text is None else _parsed(tier.kind, str(key), text, zone)}
            connection.execute(_SQL["choose"], {"table_id": table.table_id, "retention": Jsonb(chosen)})
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, RETAIN))


_DEFAULTS: dict[str, Any] = {
    "premake": 0,
    "width": None,
    "drop_grace": DROP_GRACE.total_seconds(),
    "detach": False,
}


def _parsed(kind: TierKind, key: str, text: str, zone: str) -> Any:
    """A choice as the catalog keeps it. `zone`: that of a width in months."""
    if key == "width":
        return parse_width(kind, text, "width", zone).to_json()
    if key == "drop_grace":
        return parse_grace(text, "drop_grace").total_seconds()
    if key == "detach":
        if text.lower() not in ("true", "false"):
            raise UsageError(f"detach {text!r} is neither true nor false")
        return text.lower() == "true"
    if not text.isdecimal() or int(text) > 1000:
        raise UsageError(f"premake {text!r} is no number from 0 to 1000")
    return int(text)


def _connect(settings: Settings) -> PgConnection:
    return connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-retain")


def _chosen(connection: PgConnection, settings: Settings, names: Sequence[str]) -> tuple[TableId, ...]:
    if not names:
        return source.retained_tables(connection, settings.slot)
    wanted = [resolve_name(connection, name)[1] for name in names]
    found = source.retained_tables(connection, settings.slot, wanted)
    for name, table_id in zip(names, wanted, strict=True):
        if table_id not in found:
            raise TableError(f"{name} has no heap retention", "mirror-pump register TABLE --heap-retention N")
    return found


def _retained(connection: PgConnection, name: str) -> tuple[MirroredTable, Tier, RetentionChoices] | None:
    table = load_table(connection, resolve_name(connection, name)[1])
    choices = None if table is None else source.read_choices(connection, table.table_id)
    if table is None or table.tier is None or choices is None:
        return None
    return table, table.tier, choices


def _outlook(connection: PgConnection, table_id: TableId) -> TableOutlook:
    table, choices = load_table(connection, table_id), source.read_choices(connection, table_id)
    if table is None or table.tier is None or choices is None:
        raise TableError("a table was unregistered just now", "Ask again.")
    tier = table.tier
    newest: int | None = None
    known: tuple[Partition, ...] = ()
    not_made = choices.not_made
    try:
        attached = source.read_attached(connection, table_id)
        newest = source.high_water(connection, tier, attached)
        known = source.read_partitions(connection, table_id)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        not_made = source.NOT_SEEN.format(source.refusal(error))
    return TableOutlook(
        table=str(table.name),
        cut=shown(tier.kind, choices.cut),
        lag="everything" if choices.lag == NEVER else span_text(tier.kind, choices.lag),
        newest=None if newest is None else shown(tier.kind, newest),
        stopped=choices.stopped,
        not_made=not_made,
        partitions=tuple(
            PartitionOutlook(
                one.partition_id,
                shown(tier.kind, one.lo),
                shown(tier.kind, one.hi),
                one.state,
                _next(tier, one, choices, newest),
            )
            for one in known
        ),
    )


def _next(tier: Tier, one: Partition, choices: RetentionChoices, newest: int | None) -> str:
    """What comes next for a partition."""
    why = f": {one.reason}" if one.reason else ""
    tried = f" (tried {one.attempts} times)" if one.attempts else ""
    if choices.stopped is not None:
        return f"nothing happens before `mirror-pump retain TABLE`{why}"
    if one.name is None:
        return f"T passes it in its turn{why}"
    if one.state == HOT:
        return when_due(tier, one.hi, choices.lag, newest) + why + tried
    if one.state == TIERED:
        return _leaving(one, choices) + why + tried
    follows = {
        SEALING: "T passes it once F has passed the position at which it was sealed",
        TIERING: "it is compared with the lake next",
    }
    return follows[one.state] + why + tried


def _leaving(one: Partition, choices: RetentionChoices) -> str:
    """When a partition goes that the lake holds."""
    how = "detached" if choices.detach else "dropped"
    left = one.grace_left(choices.drop_grace)
    if left <= timedelta(0):
        return f"the lake holds it: it is {how} next"
    return f"the lake holds it: it is {how} after {datetime.now(UTC) + left:%Y-%m-%d %H:%M:%S}+00 (drop_grace)"


def when_due(tier: Tier, hi: int, lag: int, newest: int | None) -> str:
    """When a partition with this upper bound begins to leave, `newest` being the newest key."""
    if lag == NEVER:
        return "stays: heap_retention is not set"
    due = hi + lag
    if due >= 2**63 - 1:
        return "stays: it has no upper bound that could fall behind"
    if newest is not None and due <= newest:
        return "is due: it is sealed next"
    present = now_value(tier.kind, datetime.now(UTC))
    if present is not None and newest is not None and due <= present:
        return f"leaves when a row of {shown(tier.kind, due)} or later arrives"
    return f"leaves when the newest key reaches {shown(tier.kind, due)}"
