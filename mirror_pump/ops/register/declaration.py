"""Which tables a mirror has, and how, as a file that people keep: what differs from it, and what it would say."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mirror_pump.errors import ConnectionLost, MirrorPumpError, TableError, UsageError
from mirror_pump.model import MirroredTable, TableId, TableName, TableState
from mirror_pump.ops.register.checked_tables import RegistrationTarget, check_table
from mirror_pump.ops.register.feed_registration import refuse_feed_change
from mirror_pump.ops.register.format_versions import refuse_upgrade
from mirror_pump.ops.register.lake_partitions import altered_partitioning
from mirror_pump.ops.register.selection import require_followable, select_tables
from mirror_pump.ops.register.table_wish import (
    TableOptions,
    altered_by,
    differing_options,
    read_registered,
    refuse_differences,
    refuse_unusable,
)
from mirror_pump.ops.register.unregistration import present_name, refuse_unregistration
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import default_format_version
from mirror_pump.source.catalog.followed import NewTablePattern, followed_patterns, tables_left_alone
from mirror_pump.source.catalog.profiles import find_profile
from mirror_pump.source.catalog.tables import load_table, load_tables
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.options.option_values import typed_options
from mirror_pump.source.options.table_option import Alteration, RegisteredOptions, TableOption
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.table_patterns import is_pattern


@dataclass(frozen=True)
class DeclaredTables:
    """Tables that are registered alike: one entry of a declaration."""

    place: str
    """The file and the number of the entry, for people."""
    names: tuple[str, ...]
    """Names and patterns."""
    excluded: tuple[str, ...]
    wish: TableOptions
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
    try:
        refuse_unusable(connection, settings, table)
        registered = read_registered(connection, table)
        differing = differing_options(connection, settings, registered, wish, in_full=True)
        kinds = _alterations(connection, settings, registered, wish, differing)
    except ConnectionLost:
        raise
    except MirrorPumpError as error:
        return [DeclaredChange(ChangeKind.DIFFERS, name, entry, error)]
    return [DeclaredChange(kind, name, entry) for kind in kinds]


def _alterations(
    connection: PgConnection,
    settings: Settings,
    registered: RegisteredOptions,
    wish: TableOptions,
    differing: Sequence[TableOption],
) -> list[ChangeKind]:
    """What alters the options in which a registered table differs. Raises TableError if nothing does, or it cannot be
    done."""
    table, kinds = registered.table, []
    upgrades = wish.format_version is not None and wish.format_version > table.format_version
    altered = {Alteration.LAYOUT, Alteration.CHANGES, *({Alteration.UPGRADE} if upgrades else ())}
    refuse_differences(registered, wish, [option for option in differing if option.alter not in altered])
    if any(option.alter is Alteration.LAYOUT for option in differing):
        altered_partitioning(table, wish.layout)
        kinds.append(ChangeKind.ALTER)
    if any(option.differs(wish, registered) for option in altered_by(Alteration.CHANGES)):
        refuse_feed_change(connection, settings, table, wish.feed)
        kinds.append(ChangeKind.ALTER_CHANGES)
    if upgrades and wish.format_version is not None:
        refuse_upgrade(connection, table, wish.format_version)
        kinds.append(ChangeKind.UPGRADE)
    return kinds


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
    followed_now: Sequence[NewTablePattern],
    declared: Sequence[DeclaredTables],
) -> list[DeclaredChange]:
    current_patterns = {followed.pattern: followed for followed in followed_now}
    declared_patterns = {pattern: entry for entry in declared for pattern in entry.followed}
    changes = []
    for pattern, entry in declared_patterns.items():
        if current_patterns.get(pattern) == NewTablePattern(pattern, list(entry.excluded), entry.wish.profile):
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
        defaults = {
            "profile": find_profile(connection, None).name,
            "format_version": default_format_version(connection, settings.slot),
        }
        plain: dict[str | None, list[str]] = {}
        for table in load_tables(connection, settings.slot):
            if table.state is TableState.DROPPED:
                continue
            options = typed_options(read_registered(connection, table), defaults)
            profile = options.get("profile")
            if options.keys() - {"profile"}:
                entries.append({"tables": [str(table.name)], **options})
            elif not _joins_so(table.name, profile, followed):
                plain.setdefault(profile, []).append(str(table.name))
        for profile, names in plain.items():
            entries.append({"tables": names} | ({} if profile is None else {"profile": profile}))
        return entries


def _joins_so(table: TableName, profile: str | None, followed: Sequence[NewTablePattern]) -> bool:
    """Whether a table belongs to a pattern, the first that means it, with this storage profile."""
    return next((pattern.profile == profile for pattern in followed if pattern.means(table)), False)


def _pattern_options(followed: NewTablePattern) -> dict[str, Any]:
    options: dict[str, Any] = {"tables": [followed.pattern]}
    if followed.excluded:
        options["exclude"] = followed.excluded
    if followed.profile is not None:
        options["profile"] = followed.profile
    return options | {"follow_new": True}
