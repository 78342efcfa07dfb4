"""Which tables a mirror has, and how, as a file that people keep: what differs from it, and what it would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.model import MirroredTable, SnapshotPlan, TableId, TableMode, TableState
from mirror_pump.ops.register.feed_registration import FeedWish
from mirror_pump.ops.register.lake_partitions import LayoutWish, altered_partitioning
from mirror_pump.ops.register.selection import select_tables
from mirror_pump.ops.register.table_wish import refuse_difference
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import default_format_version
from mirror_pump.source.catalog.change_feeds import ChangeFeed, load_feed
from mirror_pump.source.catalog.followed import FollowedPattern, followed_patterns
from mirror_pump.source.catalog.profiles import find_profile, profile_of
from mirror_pump.source.catalog.tables import load_table, load_tables
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.relations.column_choices import ColumnChoices, with_layout_of
from mirror_pump.source.relations.partition_choices import layout_text, partition_choices, sort_choices
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.table_patterns import is_pattern
from mirror_pump.source.relations.tier_keys import NEVER, span_text
from mirror_pump.source.retention.partitions import DROP_GRACE, RetentionChoices, read_choices
from mirror_pump.source.retention.retention_plan import RetentionWish


@dataclass(frozen=True)
class DeclaredTables:
    """Tables that are registered alike: one entry of a declaration."""

    names: tuple[str, ...]
    """Names and patterns."""
    excluded: tuple[str, ...]
    choices: ColumnChoices
    retention: RetentionWish | None
    profile: str | None
    """None: the default one."""
    followed: tuple[str, ...] = ()
    """Those of the patterns by which new tables join."""
    snapshots: SnapshotPlan | None = None
    feed: FeedWish | None = None
    format_version: int | None = None
    """None: that of new tables, and any of registered ones."""


class ChangeKind(StrEnum):
    """What has to be done so that the mirror is as declared."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    ALTER = "alter"
    """The lake table gets another layout (`register --alter`)."""
    ALTER_CHANGES = "alter the change feed of"
    UPGRADE = "upgrade the format version of"
    DIFFERS = "differs"
    """The table is registered in another way, which only a new registration changes."""
    REFUSED = "refused"
    """What was declared is no table."""
    FOLLOW = "follow"
    END_FOLLOWING = "end following"


@dataclass(frozen=True)
class DeclaredChange:
    """One difference between a declaration and a mirror."""

    kind: ChangeKind
    subject: str
    """A table or a pattern, as PostgreSQL reads it."""
    tables: DeclaredTables | None = None
    """The entry that it comes from; None for what no entry names."""
    error: MirrorPumpError | None = None
    """Why nothing can be done about it."""
    sheds: bool = False
    """Whether partitions leave the heap by it."""

    @property
    def takes_away(self) -> bool:
        """Whether something leaves, or cannot be taken back: a table leaves the mirror, partitions leave the heap, or
        a lake table leaves its format version."""
        leaves = (ChangeKind.UNREGISTER, ChangeKind.UPGRADE)
        return self.kind in leaves or (self.kind is ChangeKind.REGISTER and self.sheds)


def differences(settings: Settings, declared: Sequence[DeclaredTables]) -> list[DeclaredChange]:
    """What differs. Changes nothing. A table that an entry names belongs to that one; otherwise to the first one with a
    pattern that matches. Raises UsageError for a table that two entries name."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-apply") as connection:
        registered_tables = {table.table_id: table for table in load_tables(connection, settings.slot)}
        changes: list[DeclaredChange] = []
        owners = _owners(connection, settings, declared, changes)
        for table_id, (name, entry) in owners.items():
            table = registered_tables.get(table_id) or load_table(connection, table_id)
            if table is None or table.state is TableState.DROPPED:
                changes.append(DeclaredChange(ChangeKind.REGISTER, name, entry, sheds=entry.retention is not None))
                continue
            changes += _table_differences(connection, settings, table, name, entry)
        changes += [
            DeclaredChange(ChangeKind.UNREGISTER, str(table.name))
            for table_id, table in registered_tables.items()
            if table_id not in owners and table.state is not TableState.DROPPED
        ]
        return changes + _followed_differences(followed_patterns(connection, settings.slot), declared)


def _table_differences(
    connection: PgConnection, settings: Settings, table: MirroredTable, name: str, entry: DeclaredTables
) -> list[DeclaredChange]:
    """What differs about a registered table, which the declaration calls `name`."""
    profile = entry.profile or find_profile(connection, None).name
    present_layout = with_layout_of(entry.choices, table)
    alters = table.tier is None and present_layout != entry.choices
    try:
        choices = present_layout if alters else entry.choices
        upgrades = entry.format_version is not None and entry.format_version > table.format_version
        version = None if upgrades else entry.format_version
        refuse_difference(connection, settings, table, choices, entry.retention, profile, entry.snapshots, version)
        if alters:
            altered_partitioning(table, LayoutWish(entry.choices.partition_by, entry.choices.sort_by))
    except MirrorPumpError as error:
        return [DeclaredChange(ChangeKind.DIFFERS, name, entry, error)]
    changes = [DeclaredChange(ChangeKind.ALTER, name, entry)] if alters else []
    if _feed_wish(load_feed(connection, table.table_id)) != entry.feed:
        changes.append(DeclaredChange(ChangeKind.ALTER_CHANGES, name, entry))
    if upgrades:
        changes.append(DeclaredChange(ChangeKind.UPGRADE, name, entry))
    return changes


def _feed_wish(feed: ChangeFeed | None) -> FeedWish | None:
    return None if feed is None else FeedWish(feed.mode, feed.keep)


def _owners(
    connection: PgConnection,
    settings: Settings,
    declared: Sequence[DeclaredTables],
    changes: list[DeclaredChange],
) -> dict[TableId, tuple[str, DeclaredTables]]:
    """Each declared table with its name and its entry. Names that mean no table are added to `changes`."""
    named: dict[TableId, tuple[str, DeclaredTables]] = {}
    matched: dict[TableId, tuple[str, DeclaredTables]] = {}
    for entry in declared:
        patterns = [name for name in entry.names if is_pattern(name)]
        for name in entry.names:
            if name in patterns:
                continue
            try:
                table_name, table_id = resolve_name(connection, name)
            except MirrorPumpError as error:
                changes.append(DeclaredChange(ChangeKind.REFUSED, name, entry, error))
                continue
            if table_id in named:
                raise UsageError(f"{table_name} is declared twice", "name it in one entry")
            named[table_id] = str(table_name), entry
        for name in select_tables(settings, patterns, entry.excluded).names:
            table_name, table_id = resolve_name(connection, name)
            matched.setdefault(table_id, (str(table_name), entry))
    return matched | named


def _followed_differences(
    followed_now: Sequence[FollowedPattern], declared: Sequence[DeclaredTables]
) -> list[DeclaredChange]:
    declared_patterns = {pattern: entry for entry in declared for pattern in entry.followed}
    ends = [followed for followed in followed_now if followed.pattern not in declared_patterns]
    same = {
        followed.pattern
        for followed in followed_now
        if (entry := declared_patterns.get(followed.pattern)) is not None
        and (followed.excluded, followed.profile) == (list(entry.excluded), entry.profile)
    }
    return [
        *(
            DeclaredChange(ChangeKind.FOLLOW, pattern, entry)
            for pattern, entry in declared_patterns.items()
            if pattern not in same
        ),
        *(DeclaredChange(ChangeKind.END_FOLLOWING, followed.pattern) for followed in ends),
    ]


def export(settings: Settings) -> list[dict[str, Any]]:
    """The entries that declare the mirror as it is: options of `register`, by their names. Patterns that are followed
    come first, then the tables that differ from what these say."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-export") as connection:
        followed = followed_patterns(connection, settings.slot)
        entries = [_pattern_options(pattern) for pattern in followed]
        default = find_profile(connection, None).name
        default_version = default_format_version(connection, settings.slot)
        plain: dict[str | None, list[str]] = {}
        for table in load_tables(connection, settings.slot):
            if table.state is TableState.DROPPED:
                continue
            stored = profile_of(connection, table.table_id)
            profile = None if stored == default else stored
            options = _column_options(table) | _retention_options(table, read_choices(connection, table.table_id))
            options |= _feed_options(load_feed(connection, table.table_id))
            if table.format_version != default_version:
                options["format_version"] = table.format_version
            if options:
                place = {} if profile is None else {"profile": profile}
                entries.append({"tables": [str(table.name)]} | place | options)
            elif not any(pattern.means(table.name) and pattern.profile == profile for pattern in followed):
                plain.setdefault(profile, []).append(str(table.name))
        for profile, names in plain.items():
            entries.append({"tables": names} | ({} if profile is None else {"profile": profile}))
        return entries


def _pattern_options(followed: FollowedPattern) -> dict[str, Any]:
    options: dict[str, Any] = {"tables": [followed.pattern]}
    if followed.excluded:
        options["exclude"] = followed.excluded
    if followed.profile is not None:
        options["profile"] = followed.profile
    return options | {"follow_new": True}


def _column_options(table: MirroredTable) -> dict[str, Any]:
    chosen = [column for column in table.columns if column.chosen]
    excluded = [column.name for column in table.excluded]
    options: dict[str, Any] = {
        "column": [f"{column.name}={column.type}" for column in chosen if column.type.mask is None],
        "mask": [f"{column.name}={column.type.mask}" for column in chosen if column.type.mask is not None],
        "columns_only": ",".join(map(_listed, table.column_names)),
        "exclude_column": [] if table.column_list else excluded,
        "where": table.row_filter,
        "append_only": table.append_only,
        "no_copy": table.no_copy,
        "partition_by": layout_text(partition_choices(table)),
        "sort_by": layout_text(sort_choices(table)),
        "snapshot_only": table.snapshots is not None,
        "snapshot_every": None
        if table.snapshots is None or table.snapshots.every is None
        else f"{round(table.snapshots.every.total_seconds())}s",
    }
    return {name: value for name, value in options.items() if value}


def _feed_options(feed: ChangeFeed | None) -> dict[str, Any]:
    if feed is None:
        return {}
    keep = {} if feed.keep is None else {"keep_changes": f"{round(feed.keep.total_seconds())}s"}
    return {"changes": feed.mode.value, **keep}


def _listed(name: str) -> str:
    """A name in a list with commas between."""
    return '"' + name.replace('"', '""') + '"' if any(sign in name for sign in ',"') or name != name.strip() else name


def _retention_options(table: MirroredTable, choices: RetentionChoices | None) -> dict[str, Any]:
    if choices is None or table.tier is None or (table.mode is TableMode.MIRRORED and choices.lag == NEVER):
        return {}
    kind = table.tier.kind
    options: dict[str, Any] = {
        "premake": choices.premake,
        "width": None if choices.width is None else choices.width.text(kind),
        "drop_grace": None
        if choices.keep_heap or choices.drop_grace == DROP_GRACE
        else f"{round(choices.drop_grace.total_seconds())}s",
        "detach": choices.detach,
        "lake_partition": None
        if table.partitioning is None
        else table.partitioning.fields[0].transform.removeprefix("truncate[").removesuffix("]"),
    }
    if not choices.premake:
        del options["width"]
    if table.mode is TableMode.TIERED:
        options |= {
            "mode": table.mode.value,
            "keep_heap": choices.keep_heap,
            "lag": None if choices.lag in (0, NEVER) else span_text(kind, choices.lag),
            "lake_retention": None if choices.lake_lag is None else span_text(kind, choices.lake_lag),
        }
    else:
        options["heap_retention"] = span_text(kind, choices.lag)
    return {name: value for name, value in options.items() if value}
