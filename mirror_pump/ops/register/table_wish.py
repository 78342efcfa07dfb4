"""What is chosen for the tables of one call of `register`, and whether a registered table is as it was chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import MirroredTable, SnapshotPlan, TableMode, TableName, TableState
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.register.format_versions import refuse_downgrade
from mirror_pump.ops.register.lake_partitions import LayoutOptions
from mirror_pump.settings.config import Settings
from mirror_pump.settings.policy import FORMAT_VERSION_KEY
from mirror_pump.source.catalog.change_feeds import load_feed
from mirror_pump.source.catalog.pauses import paused_text
from mirror_pump.source.catalog.profiles import profile_of
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.options.option_values import (
    anew,
    command_text,
    given_keys,
    refuse_alteration,
    refuse_conflicts,
    typed_options,
)
from mirror_pump.source.options.table_option import Alteration, ComparedWhen, RegisteredOptions, TableOption
from mirror_pump.source.options.table_options import OPTIONS
from mirror_pump.source.relations.column_choices import NO_CHOICES, ColumnChoices, column_choices
from mirror_pump.source.relations.relations import describe
from mirror_pump.source.relations.row_filters import read_filter
from mirror_pump.source.retention.partitions import read_choices
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.source.stream.publication import how_to_restore, lacks_a_part

_PARTS: Mapping[str, Callable[..., Any]] = {
    "choices": column_choices,
    "retention": RetentionOptions,
    "snapshots": SnapshotPlan,
    "feed": FeedOptions,
}
"""What the parts of a wish are made by, from the values of their fields."""


@dataclass(frozen=True)
class TableOptions:
    """What the user chose for the tables of one call, in parts for what registering does."""

    choices: ColumnChoices = NO_CHOICES
    retention: RetentionOptions | None = None
    profile: str | None = None
    """Name of a storage profile; None: the default one."""
    snapshots: SnapshotPlan | None = None
    feed: FeedOptions | None = None
    """The change feed that it gets; None: none."""
    format_version: int | None = None
    """Of the lake table. None: the mirror's default."""

    @property
    def mode(self) -> TableMode:
        return TableMode.MIRRORED if self.retention is None else self.retention.mode

    @property
    def layout(self) -> LayoutOptions:
        """The layout that a registered table is to get."""
        return LayoutOptions(**{option.wish_field: option.of_wish(self) for option in altered_by(Alteration.LAYOUT)})

    def refuse_conflicts(self, name: TableName) -> None:
        """Raise TableError if its options do not go together: some may come from the publication."""
        try:
            keys = [option.key for option in OPTIONS if option.is_given(option.of_wish(self) or None)]
            refuse_conflicts(keys, as_typed=False)
        except UsageError as error:
            raise TableError(f"{name}: {error}", error.remedy) from error


PLAIN = TableOptions()
"""No option is given."""


def wish_of(typed: Mapping[str, Any], others: Collection[str] = ()) -> TableOptions:
    """The wish of options as they are typed, by key. `others`: what else is given, as in `refuse_conflicts`. Raises
    UsageError for options that make no sense, alone or together."""
    given = given_keys(typed)
    refuse_conflicts({*given, *others})
    parts: dict[str, dict[str, Any]] = defaultdict(dict)
    for option in OPTIONS:
        if option.key in given:
            part = parts[option.part]
            if option.wish_field:
                part[option.wish_field] = option.parse(typed[option.key])
    whole = parts.pop("", {})
    return TableOptions(**whole, **{part: _PARTS[part](**fields) for part, fields in parts.items()})


def altered_by(alteration: Alteration) -> list[TableOption]:
    """The options of a registered table that are altered in this way."""
    return [option for option in OPTIONS if option.alter is alteration]


def read_registered(connection: PgConnection, table: MirroredTable) -> RegisteredOptions:
    """A registered table with all of its options."""
    table_id = table.table_id
    profile = profile_of(connection, table_id)
    return RegisteredOptions(table, read_choices(connection, table_id), load_feed(connection, table_id), profile)


def differing_options(
    connection: PgConnection, settings: Settings, registered: RegisteredOptions, wish: TableOptions, *, in_full: bool
) -> list[TableOption]:
    """Options that a registered table has not as they are wished. `in_full`: what was not chosen counts, too. A
    distance, a width and the like do not count: they may have been changed since."""
    wish = replace(wish, choices=_as_printed(connection, settings, registered.table, wish.choices))

    def counts(option: TableOption) -> bool:
        part = getattr(wish, option.part) if option.part else None
        match option.compared:
            case ComparedWhen.WITH_PART:
                return in_full or bool(part)
            case ComparedWhen.IF_GIVEN:
                return option.of_wish(wish) is not None
            case _:
                return option.compared is ComparedWhen.ALWAYS

    return [option for option in OPTIONS if counts(option) and option.differs(wish, registered)]


def _as_printed(
    connection: PgConnection, settings: Settings, table: MirroredTable, choices: ColumnChoices
) -> ColumnChoices:
    """The choices with their row filter as the server prints it, if the table has one."""
    if not choices.where or not table.row_filter:
        return choices
    description = describe(connection, table.table_id, settings.publication, table.mode)
    return replace(choices, where=read_filter(connection, settings.publication, description, choices.where))


def refuse_otherwise(connection: PgConnection, settings: Settings, table: MirroredTable, wish: TableOptions) -> None:
    """Raise TableError if a registered table has failed or is paused, or is registered in another way."""
    refuse_unusable(connection, settings, table)
    if table.paused_since is not None and not table.rests:
        raise TableError(
            f"{table.name} is registered, and {paused_text(table.paused_since)}",
            f"mirror-pump resume {table.name.shell}",
        )
    registered = RegisteredOptions(table) if wish == PLAIN else read_registered(connection, table)
    refuse_differences(registered, wish, differing_options(connection, settings, registered, wish, in_full=False))


def refuse_unusable(connection: PgConnection, settings: Settings, table: MirroredTable) -> None:
    """Raise TableError if a registered table has failed, or is not published whole."""
    if table.state is TableState.FAILED:
        raise TableError(
            f"{table.name} is registered, but has failed",
            f"`mirror-pump status` says why. Fix that, then {anew(table)}",
        )
    if table.paused_since is None and lacks_a_part(connection, settings.slot, table.table_id):
        raise TableError(
            f"{table.name} is registered, but not published whole: publication {settings.publication} was changed",
            how_to_restore(settings.publication, table),
        )


def refuse_differences(registered: RegisteredOptions, wish: TableOptions, differing: Sequence[TableOption]) -> None:
    """Raise TableError for options that a registered table has not as they are wished. It says how they are changed."""
    if not differing:
        return
    table, first = registered.table, differing[0]
    stored = typed_options(registered, part=first.part or None)
    if not first.part:
        stored = {key: value for key, value in stored.items() if key == first.key}
    how = f"with {command_text(stored)}" if stored else f"without {first.name}"
    raise TableError(f"{table.name} is registered {how}", _remedy(registered, wish, differing))


def _remedy(registered: RegisteredOptions, wish: TableOptions, differing: Sequence[TableOption]) -> str:
    """How a registered table gets other options."""
    table, first = registered.table, differing[0]
    if first.alter in (Alteration.LAYOUT, Alteration.CHANGES):
        refuse_alteration(table, first.key)
    if all(option.alter is Alteration.LAYOUT for option in differing):
        flags = " or ".join(option.flag for option in altered_by(Alteration.LAYOUT))
        return f"`mirror-pump register {table.name.shell} --alter` with {flags}, or their --no- forms, changes that"
    if first.alter is Alteration.CHANGES and wish.feed is not None:
        begin = f"`mirror-pump register {table.name.shell} --alter --changes={wish.feed.mode}`"
        end = f"first `mirror-pump register {table.name.shell} --alter --no-changes`, then "
        return begin if registered.feed is None else f"{end}{begin}"
    if first.alter is Alteration.UPGRADE and wish.format_version is not None:
        refuse_downgrade(table, wish.format_version)
        return f"to upgrade it: mirror-pump policy set {table.name.shell} {FORMAT_VERSION_KEY} {wish.format_version}"
    return f"to change that: {anew(table)}: {first.lost_by_anew}"
