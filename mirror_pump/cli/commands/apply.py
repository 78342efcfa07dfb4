"""`mirror-pump apply` and `export`: which tables are mirrored, and how, as a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import make_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from pydantic import Field, TypeAdapter, ValidationError

from mirror_pump.cli.arguments.options import COPIES, SLOT, command
from mirror_pump.cli.arguments.register_options import NoWait, RegisterOptions
from mirror_pump.cli.commands.alter import alter_feeds, alter_tables
from mirror_pump.cli.commands.register import put_under_mirror
from mirror_pump.cli.terminal.confirmation import confirm
from mirror_pump.cli.terminal.output import remark, report_error, say
from mirror_pump.errors import ConnectionLost, Interrupted, MirrorPumpError, TableError, UsageError
from mirror_pump.runtime.handed_files import has_nul, read_toml
from mirror_pump.settings.config import Settings
from mirror_pump.source.options.table_options import OPTIONS

if TYPE_CHECKING:
    from mirror_pump.ops.register.declaration import DeclaredChange, DeclaredTables

_ENTRY = "register"
_SELECTION = ("tables", "exclude", "follow_new")
"""The keys of an entry that say which tables it is about."""
KEYS = (*_SELECTION, *(option.key for option in OPTIONS))
"""The keys of an entry: options of `register`, with underscores."""


@cache
def _entry_type() -> TypeAdapter[Any]:
    hints = get_type_hints(RegisterOptions)
    keys: list[tuple[str, Any, Any]] = [(name, hints[name], None) for name in _SELECTION]
    for option in OPTIONS:
        within = Field(ge=option.lowest, le=option.highest)
        keys.append((option.key, Annotated[option.typed_kind, within], option.default))
    return TypeAdapter(make_dataclass("Entry", keys))


def add(app: typer.Typer) -> None:
    command(app, "apply", COPIES)(apply)
    command(app, "export", SLOT)(export)


def apply(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `mirror-pump export` prints, as it should be")],
    no_wait: NoWait = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what differs")] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Do not ask before tables leave the mirror, partitions the heap, or lake tables their format version",
        ),
    ] = False,
    end_all: Annotated[
        bool,
        typer.Option("--end-mirror-of-all-tables", help="Take a file that declares no table that exists as it stands"),
    ] = False,
) -> int:
    """Make the mirror as a file declares it: register tables, unregister those that the file does not have.

    Checks everything first and shows what differs, tables that would be refused too, and asks before anything leaves.
    Unregistered tables keep their files. A table that is registered with another layout is altered, as by register
    --alter, and a lake table gets a later format version. One that is registered in another way is only told: to change
    that it has to be unregistered. If a table is refused, the others still proceed; exit code 1 reports it. While a
    name means no table, none is unregistered.

    A file that declares no table that exists, such as an empty one, is refused: --end-mirror-of-all-tables says that it
    is meant.
    """
    from mirror_pump.ops.register.declaration import differences
    from mirror_pump.ops.setup.stored_settings import complete

    declared = read_declaration(file)
    settings = complete(settings)
    differing = differences(settings, declared)
    changes = [_checked(settings, change) for change in differing.changes]
    failed = _show(changes)
    if differing.ends_all and not end_all:
        raise UsageError(
            f"{file} declares no table that exists: all tables would leave the mirror. Nothing was changed",
            "mirror-pump export prints such a file; with --end-mirror-of-all-tables, that is done",
        )
    if not changes:
        say("nothing differs")
    feasible = [change for change in changes if change.error is None]
    if dry_run or not feasible:
        return int(failed)
    if any(change.takes_away for change in feasible) and not yes:
        confirm(
            "Apply?",
            about_to="tables leave the mirror, partitions the heap, or lake tables their format version",
            remedy="check with --dry-run, then give --yes",
            refused="nothing was changed",
        )
    return int(_carry_out(settings, feasible, wait=not no_wait) or failed)


def export(settings: Settings) -> int:
    """Print a file that declares the mirror as it is: its tables, with their options, and the patterns by which new
    tables join. apply makes another mirror like it, or this one again."""
    from mirror_pump.ops.register.declaration import export as entries_of
    from mirror_pump.ops.setup.stored_settings import complete

    text = "\n".join(_toml(entry) for entry in entries_of(complete(settings)))
    say(text or "# no tables")
    return 0


def read_declaration(file: Path) -> list[DeclaredTables]:
    """The entries of a file. Raises UsageError, which names the entry and the key."""
    try:
        content = read_toml(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}", "mirror-pump export prints such a file") from None
    entries = content.pop(_ENTRY, [])
    if content or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        named = f" {min(content)}" if content else ""
        raise UsageError(f"{file} has more than [[{_ENTRY}]] entries:{named}", "mirror-pump export prints such a file")
    return [_declared(f"{file}, entry {number}", entry) for number, entry in enumerate(entries, 1)]


def _declared(place: str, entry: Mapping[str, Any]) -> DeclaredTables:
    from mirror_pump.ops.register.declaration import DeclaredTables

    unknown = sorted(entry.keys() - set(KEYS))
    if unknown:
        raise UsageError(f"{place}: unknown key {unknown[0]}", f"known keys: {', '.join(KEYS)}")
    if texts := [key for key, value in entry.items() if has_nul(value)]:
        raise UsageError(f"{place}: {texts[0]}: the character NUL is in no name or condition", f"correct {texts[0]}")
    try:
        typed = vars(_entry_type().validate_python(entry))
        tables, exclude, follow_new = (typed.pop(key) for key in _SELECTION)
        # Nothing ends by it: what no entry follows is not followed any more.
        options = RegisterOptions(tables, exclude=exclude, follow_new=follow_new or None, typed=typed)
        wish = options.wish()
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{place}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except UsageError as error:
        raise UsageError(f"{place}: {_keys_of(str(error))}", _keys_of(error.remedy)) from None
    followed = tuple(options.followed) if options.follow_new else ()
    return DeclaredTables(place, options.names, tuple(options.exclude or ()), wish, followed)


def _keys_of(text: str) -> str:
    """A text about options of `register`, which are keys in a file. Commands in it stay as they are."""
    if "mirror-pump" in text:
        return text
    keys = {"--" + key.replace("_", "-"): key for key in KEYS}
    return re.sub(r"--[a-z][a-z-]*", lambda option: keys.get(option[0], option[0]), text)


def _checked(settings: Settings, change: DeclaredChange) -> DeclaredChange:
    """The change, with the error for which a table cannot have another layout."""
    from mirror_pump.ops.register.declaration import ChangeKind
    from mirror_pump.ops.resync.layout_change import alter_layout

    if change.kind is not ChangeKind.ALTER or change.tables is None:
        return change
    try:
        layout = change.tables.wish.layout
        alter_layout(settings, change.subject, layout, wait=False, on_progress=lambda _: None, dry_run=True)
    except TableError as error:
        return replace(change, error=error)
    return change


def _show(changes: Sequence[DeclaredChange]) -> bool:
    """Prints what differs. Returns whether something cannot be mended by `apply`."""
    failed = False
    for change in changes:
        if change.error is not None:
            _report(change.error, change, change.kind.value)
            failed = True
        else:
            leaves = ", partitions leave its heap" if change.sheds else ""
            say(f"{change.kind.value} {change.subject}{leaves}")
    return failed


def _report(error: MirrorPumpError, change: DeclaredChange, happened: str) -> None:
    """Reports an error with the place of the table in the file."""
    from mirror_pump.ops.register.declaration import ChangeKind

    place = "" if change.tables is None else f"{change.tables.place}: "
    if change.kind is ChangeKind.REFUSED:
        place += "tables: " if isinstance(error, UsageError) else ""
        error = TableError(_keys_of(str(error)), _keys_of(error.remedy))
    report_error(error, f"{place}{happened}", change.subject)


def _carry_out(settings: Settings, changes: Sequence[DeclaredChange], *, wait: bool) -> bool:
    """Makes the changes, registrations last. Returns whether one failed: the others are made."""
    from mirror_pump.ops.register.declaration import ChangeKind

    steps: list[tuple[DeclaredChange, Callable[[], bool]]] = []
    alike: dict[str, list[DeclaredChange]] = {}
    for change in changes:
        if change.kind is ChangeKind.REGISTER and change.tables is not None:
            alike.setdefault(change.tables.place, []).append(change)
        else:
            steps.append((change, partial(_make, settings, change, wait=wait)))
    steps += [(group[0], partial(_register, settings, group, wait=wait)) for group in alike.values()]
    refused = [_is_refused(change, step) for change, step in steps]
    return any(refused)


def _is_refused(change: DeclaredChange, step: Callable[[], bool]) -> bool:
    """Makes a step. Returns whether it failed. Whatever refuses it is no wrong usage any more: others are made."""
    try:
        return step()
    except (ConnectionLost, Interrupted):
        raise
    except MirrorPumpError as error:
        _report(error, change, f"not done: {change.kind.value}")
        return True


def _make(settings: Settings, change: DeclaredChange, *, wait: bool) -> bool:
    """Makes a change other than a registration. Returns whether it failed."""
    from mirror_pump.ops.register.declaration import ChangeKind
    from mirror_pump.ops.register.selection import follow, unfollow
    from mirror_pump.ops.register.unregistration import unregister
    from mirror_pump.ops.resync.format_upgrade import upgrade

    subject, entry = change.subject, change.tables
    if change.kind is ChangeKind.UNREGISTER:
        say(unregister(settings, subject, drop_lake=False, only=change.table_id))
    elif change.kind is ChangeKind.END_FOLLOWING:
        unfollow(settings, subject)
    elif change.kind is ChangeKind.FOLLOW and entry is not None:
        follow(settings, [subject], entry.excluded, entry.wish.profile)
    elif change.kind is ChangeKind.ALTER and entry is not None:
        return bool(alter_tables(settings, [subject], entry.wish.layout, wait=wait, dry_run=False, as_json=False))
    elif change.kind is ChangeKind.ALTER_CHANGES and entry is not None:
        return bool(alter_feeds(settings, [subject], entry.wish.feed))
    elif change.kind is ChangeKind.UPGRADE and entry is not None and entry.wish.format_version is not None:
        upgrade(settings, subject, entry.wish.format_version, confirmed=True)
        say(f"{subject}: format version {entry.wish.format_version}")
    return False


def _register(settings: Settings, changes: Sequence[DeclaredChange], *, wait: bool) -> bool:
    """Registers tables of one entry. Returns whether one failed."""
    by_name = {change.subject: change for change in changes}
    assert changes[0].tables is not None
    outcomes = put_under_mirror(settings, list(by_name), changes[0].tables.wish, wait=wait)
    for outcome in outcomes:
        if outcome.error is not None:
            _report(outcome.error, by_name.get(outcome.table, changes[0]), "not registered")
        else:
            remark(f"{outcome.table}: {'live' if wait else 'registered'}")
    return any(outcome.error is not None for outcome in outcomes)


def _toml(entry: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in entry.items()]
    return "\n".join((f"[[{_ENTRY}]]", *lines, ""))


def _value(value: object) -> str:
    """A value in TOML, whose texts are written as those of JSON, but for one character."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
