"""Options of a table as they are typed, by key: which go together, and those that a registered table has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import MirroredTable, TableMode, TableState
from mirror_pump.source.options.table_option import FOLLOW_NEW, SEVERAL_TABLES, RegisteredOptions
from mirror_pump.source.options.table_options import BY_KEY, OPTIONS

_NAMES = {SEVERAL_TABLES: "several tables", FOLLOW_NEW: "--follow-new"}
"""What is no option of a table, and conflicts with some."""


def given_keys(typed: Mapping[str, Any]) -> frozenset[str]:
    """The options that are given."""
    return frozenset(option.key for option in OPTIONS if option.is_given(typed.get(option.key)))


def refuse_conflicts(keys: Collection[str], *, as_typed: bool = True) -> None:
    """Raise UsageError if options do not go together, or one lacks another. `keys`: those that are given, with
    SEVERAL_TABLES and FOLLOW_NEW. `as_typed`: all of them are a user's."""
    for option in OPTIONS:
        if option.key not in keys:
            continue
        if option.requires and not set(option.requires) & set(keys):
            required = " or ".join(BY_KEY[key].name for key in option.requires)
            reason = f": {option.required_since}" if option.required_since else ""
            raise UsageError(f"{option.name} requires {required}{reason}", "add that, or leave it out")
        for conflict in option.conflicts:
            others = [name_of(key) for key in conflict.others if key in keys]
            if others and (as_typed or not conflict.only_typed):
                raise UsageError(f"{option.name} does not go with {others[0]}: {conflict.reason}", conflict.remedy)


def refuse_alteration(table: MirroredTable, key: str) -> None:
    """Raise TableError if a registered table cannot get or change this option: it has ended, or is registered with one
    that does not go with it."""
    name = table.name
    if table.state.has_ended:
        what = "was dropped in Postgres" if table.state is TableState.DROPPED else "has failed"
        raise TableError(
            f"{name} {what}: nothing more is written to its lake table",
            f"`mirror-pump status` says why. When that is mended, {anew(table)}",
        )
    tiered = table.mode is TableMode.TIERED
    kinds = {"mode": tiered, "heap_retention": table.tier is not None and not tiered, "snapshot_only": table.snapshots}
    try:
        refuse_conflicts({key, *(kind for kind, applies in kinds.items() if applies)})
    except UsageError as error:
        back = " --restore-heap" if table.tier is not None else ""
        raise TableError(
            f"{name} is registered so: {error}",
            f"leave it out, or `mirror-pump unregister {name.shell}{back}`, and register it as it should be",
        ) from error


def anew(table: MirroredTable) -> str:
    """How a table is registered again."""
    return (
        f"`mirror-pump unregister {table.name.shell}`, then `mirror-pump register {table.name.shell}` as it should be"
    )


def name_of(key: str) -> str:
    """What an option, or something else that conflicts with some, is called."""
    return _NAMES.get(key) or BY_KEY[key].name


def typed_options(
    registered: RegisteredOptions, defaults: Mapping[str, Any] | None = None, part: str | None = None
) -> dict[str, Any]:
    """The options that a registered table has, as they are typed: those of one part, or all. `defaults`: further values
    that need not be given."""
    typed = {}
    for option in OPTIONS:
        if part is not None and option.part != part:
            continue
        value = option.of_table(registered)
        if value and value not in (option.default, (defaults or {}).get(option.key)):
            typed[option.key] = option.text(value)
    return typed


def command_text(typed: Mapping[str, Any]) -> str:
    """Options for a shell."""
    return " ".join(BY_KEY[key].arguments(value) for key, value in typed.items())


def choices_text(table: MirroredTable, *, also_listed: Sequence[str] = ()) -> str:
    """For a shell: which columns and rows of a registered table are mirrored, and its layout. `also_listed`: names for
    its column list, if it has one."""
    return command_text(typed_options(RegisteredOptions(table, also_listed=tuple(also_listed)), part="choices"))
