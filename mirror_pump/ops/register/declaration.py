"""Which tables a mirror has, and how, as a file that people keep: what differs from it, and what it would say."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mirror_pump.errors import ConnectionLost, MirrorPumpError, TableError, UsageError
from mirror_pump.model import MirroredTable, TableId, TableMode, TableName, TableState
from mirror_pump.ops.register.checked_tables import RegistrationTarget, check_table
from mirror_pump.ops.register.feed_registration import FeedWish, refuse_feed_change
from mirror_pump.ops.register.format_versions import refuse_upgrade
from mirror_pump.ops.register.lake_partitions import LayoutWish, altered_partitioning
from mirror_pump.ops.register.selection import require_followable, select_tables
from mirror_pump.ops.register.table_wish import TableWish, refuse_difference
from mirror_pump.ops.register.unregistration import present_name, refuse_unregistration
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import default_format_version
from mirror_pump.source.catalog.change_feeds import ChangeFeed, load_feed
from mirror_pump.source.catalog.followed import FollowedPattern, followed_patterns, tables_left_alone
from mirror_pump.source.catalog.profiles import find_profile, profile_of
from mirror_pump.source.catalog.tables import load_table, load_tables
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.column_choices import with_layout_of
from mirror_pump.source.relations.partition_choices import layout_text, partition_choices, sort_choices
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.table_patterns import is_pattern
from mirror_pump.source.relations.tier_keys import NEVER, span_text
from mirror_pump.source.retention.partitions import DROP_GRACE, RetentionChoices, read_choices


@dataclass(frozen=True)
class DeclaredTables:
    """Tables that are registered alike: one entry of a declaration."""

    place: str
    """The file and the number of the entry, for people."""
    names: tuple[str, ...]
    """Names and patterns."""
    excluded: tuple[str, ...]
    wish: TableWish
    """Without a format version: that of new tables, and any of registered ones."""
    followed: tuple[str, ...] = ()
    """Those of the patterns by which new tables join."""


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
    """What was declared is no table, or none that can be mirrored so."""
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
    """Why it cannot be made."""
    table_id: TableId | None = None
    """The table that is unregistered, whatever its name means by then."""

    @property
    def sheds(self) -> bool:
        """Whether partitions leave the heap by it."""
        return self.kind is ChangeKind.REGISTER and self.tables is not None and self.tables.wish.retention is not None

    @property
    def takes_away(self) -> bool:
        """Whether something leaves, or cannot be taken back: a table leaves the mirror, partitions leave the heap, or
        a lake table leaves its format version."""
        return self.kind in (ChangeKind.UNREGISTER, ChangeKind.UPGRADE) or self.sheds


@dataclass(frozen=True)
class Differences:
    """What a declaration and a mirror differ in."""

    changes: tuple[DeclaredChange, ...]
    """Those that cannot be made have an error."""
    ends_all: bool
    """Whether the declaration means no table that exists, while the mirror has tables or patterns."""


def differences(settings: Settings, declared: Sequence[DeclaredTables]) -> Differences:
    """What differs, with all that can be checked before anything is done. Changes nothing. A table that an entry names
    belongs to that one; otherwise to the first one with a pattern that matches. Raises UsageError for a table that two
    entries name."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-apply") as connection:
        registered_tables = {table.table_id: table for table in load_tables(connection, settings.slot)}
        followed = followed_patterns(connection, settings.slot)
        following = _followed_differences(connection, settings, followed, declared)
        changing = {change.subject for change in following}
        joining = [pattern for pattern in followed if pattern.pattern not in changing]
        left_alone = tables_left_alone(connection, settings.slot)
        changes: list[DeclaredChange] = []
        owners = _owners(connection, settings, declared, changes)
        nameless = bool(changes)
        targets: dict[str | None, RegistrationTarget] = {}
        for table_id, owner in owners.items():
            table = registered_tables.get(table_id) or load_table(connection, table_id)
            if table is not None and table.state is not TableState.DROPPED:
                changes += _table_differences(connection, settings, table, owner)
                continue
            joins = owner.by_pattern and any(pattern.means(owner.table) for pattern in joining)
            if joins and table_id in left_alone:
                continue
            profile = owner.entry.wish.profile
            target = targets.setdefault(profile, RegistrationTarget(connection, settings, profile))
            change = _registration(connection, settings, target, table_id, owner)
            # The pump tries what is refused again, and `status` says why: that is the pattern's way.
            if not joins or change.error is None:
                changes.append(change)
        leaving = [
            table
            for table_id, table in registered_tables.items()
            if table_id not in owners and table.state is not TableState.DROPPED
        ]
        changes += [_unregistration(connection, table, nameless=nameless) for table in leaving]
        return Differences((*changes, *following), ends_all=not owners and bool(leaving or followed))


@dataclass(frozen=True)
class _Owner:
    """The entry to which a table belongs."""

    table: TableName
    entry: DeclaredTables
    by_pattern: bool


def _registration(
    connection: PgConnection, settings: Settings, target: RegistrationTarget, table_id: TableId, owner: _Owner
) -> DeclaredChange:
    """The registration of a table, or what refuses it. Leaves nothing behind."""
    try:
        with source_errors(f"looking at {owner.table}"), connection.transaction(force_rollback=True):
            check_table(connection, settings, target, table_id, owner.table, owner.entry.wish)
    except ConnectionLost:
        raise
    except MirrorPumpError as error:
        return DeclaredChange(ChangeKind.REFUSED, str(owner.table), owner.entry, error)
    return DeclaredChange(ChangeKind.REGISTER, str(owner.table), owner.entry)


def _unregistration(connection: PgConnection, table: MirroredTable, *, nameless: bool) -> DeclaredChange:
    """`nameless`: an entry has a name that means no table."""
    error: MirrorPumpError | None = None
    # The pump may not have followed a rename yet, and the former name may mean another table.
    table = replace(table, name=present_name(connection, table))
    if nameless:
        error = TableError(
            f"{table.name} stays while the file has names that mean no table: one of them may be meant for it",
            f"correct the file, or take the table out: mirror-pump unregister {shlex.quote(str(table.name))}",
        )
    else:
        try:
            refuse_unregistration(connection, table)
        except TableError as refusal:
            error = refusal
    return DeclaredChange(ChangeKind.UNREGISTER, str(table.name), error=error, table_id=table.table_id)


def _table_differences(
    connection: PgConnection, settings: Settings, table: MirroredTable, owner: _Owner
) -> list[DeclaredChange]:
    """What differs about a registered table."""
    name, entry = str(owner.table), owner.entry
    wish = replace(entry.wish, profile=entry.wish.profile or find_profile(connection, None).name)
    present_layout = with_layout_of(wish.choices, table)
    alters = table.tier is None and present_layout != wish.choices
    upgrades = wish.format_version is not None and wish.format_version > table.format_version
    alters_feed = _feed_wish(load_feed(connection, table.table_id)) != wish.feed
    if upgrades:
        wish = replace(wish, format_version=None)
    try:
        refuse_difference(connection, settings, table, replace(wish, choices=present_layout) if alters else wish)
        if alters:
            altered_partitioning(table, LayoutWish(wish.choices.partition_by, wish.choices.sort_by))
        if alters_feed:
            refuse_feed_change(connection, settings, table, wish.feed)
        if upgrades and entry.wish.format_version is not None:
            refuse_upgrade(connection, table, entry.wish.format_version)
    except ConnectionLost:
        raise
    except MirrorPumpError as error:
        return [DeclaredChange(ChangeKind.DIFFERS, name, entry, error)]
    kinds = {ChangeKind.ALTER: alters, ChangeKind.ALTER_CHANGES: alters_feed, ChangeKind.UPGRADE: upgrades}
    return [DeclaredChange(kind, name, entry) for kind, applies in kinds.items() if applies]


def _feed_wish(feed: ChangeFeed | None) -> FeedWish | None:
    return None if feed is None else FeedWish(feed.mode, feed.keep)


def _owners(
    connection: PgConnection,
    settings: Settings,
    declared: Sequence[DeclaredTables],
    changes: list[DeclaredChange],
) -> dict[TableId, _Owner]:
    """The entry of each declared table. Names that mean no table are added to `changes`."""
    named: dict[TableId, _Owner] = {}
    matched: dict[TableId, _Owner] = {}
    for entry in declared:
        patterns = [name for name in entry.names if is_pattern(name)]
        for name in entry.names:
            if name in patterns:
                continue
            try:
                table_name, table_id = resolve_name(connection, name)
            except UsageError as error:
                changes.append(DeclaredChange(ChangeKind.REFUSED, name, entry, error))
                continue
            if table_id in named:
                raise UsageError(
                    f"{entry.place}: tables: {table_name} is declared twice: {named[table_id].entry.place} names it"
                    " too",
                    "name it in one entry",
                )
            named[table_id] = _Owner(table_name, entry, by_pattern=False)
        for name in select_tables(settings, patterns, entry.excluded).names:
            table_name, table_id = resolve_name(connection, name)
            matched.setdefault(table_id, _Owner(table_name, entry, by_pattern=True))
    return matched | named


def _followed_differences(
    connection: PgConnection,
    settings: Settings,
    followed_now: Sequence[FollowedPattern],
    declared: Sequence[DeclaredTables],
) -> list[DeclaredChange]:
    current_patterns = {followed.pattern: followed for followed in followed_now}
    declared_patterns = {pattern: entry for entry in declared for pattern in entry.followed}
    changes = []
    for pattern, entry in declared_patterns.items():
        if current_patterns.get(pattern) == FollowedPattern(pattern, list(entry.excluded), entry.wish.profile):
            continue
        error = None
        try:
            require_followable(connection, settings, entry.wish.profile)
        except ConnectionLost:
            raise
        except MirrorPumpError as refusal:
            error = refusal
        changes.append(DeclaredChange(ChangeKind.FOLLOW, pattern, entry, error))
    ends = current_patterns.keys() - declared_patterns.keys()
    return [*changes, *(DeclaredChange(ChangeKind.END_FOLLOWING, pattern) for pattern in sorted(ends))]


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
            elif not _joins_so(table.name, profile, followed):
                plain.setdefault(profile, []).append(str(table.name))
        for profile, names in plain.items():
            entries.append({"tables": names} | ({} if profile is None else {"profile": profile}))
        return entries


def _joins_so(table: TableName, profile: str | None, followed: Sequence[FollowedPattern]) -> bool:
    """Whether a table belongs to a pattern, the first that means it, with this storage profile."""
    return next((pattern.profile == profile for pattern in followed if pattern.means(table)), False)


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
