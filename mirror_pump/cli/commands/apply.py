"""`mirror-pump apply` and `export`: which tables are mirrored, and how, as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from mirror_pump.cli.arguments.options import COPIES, SLOT, command
from mirror_pump.cli.arguments.register_options import NoWait, RegisterOptions, require_valid
from mirror_pump.cli.commands.alter import alter_feeds, alter_tables
from mirror_pump.cli.terminal.confirmation import confirm
from mirror_pump.cli.terminal.output import remark, report_error, say
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.runtime.handed_files import has_nul, read_toml
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.register.declaration import DeclaredChange, DeclaredTables

_ENTRY = "register"
_ENDING = ("no_partition_by", "no_sort_by", "no_changes")
_NOT_DECLARED = (
    "every",
    "no_wait",
    "dry_run",
    "yes",
    "alter",
    "no_partition_by",
    "no_sort_by",
    "no_changes",
    "as_json",
)
"""Options of `register` that say nothing about tables."""
KEYS = tuple(field.name for field in fields(RegisterOptions) if field.name not in _NOT_DECLARED)
"""The keys of an entry: the options of `register`, with underscores."""
_OPTIONS: TypeAdapter[RegisterOptions] = TypeAdapter(RegisterOptions)


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
) -> int:
    """Make the mirror as a file declares it: register tables, unregister those that the file does not have.

    Shows what differs first, and asks before anything leaves. Unregistered tables keep their files. A table that is
    registered with another layout is altered, as by register --alter, and a lake table gets a later format version. One
    that is registered in another way is only told: to change that it has to be unregistered. If a table is refused, the
    others still proceed; exit code 1 reports it.
    """
    from mirror_pump.ops.register.declaration import differences
    from mirror_pump.ops.setup.stored_settings import complete

    declared = read_declaration(file)
    settings = complete(settings)
    changes = differences(settings, declared)
    failed = _show(changes)
    if not changes:
        say("nothing differs")
    if dry_run or not changes:
        return int(failed)
    if any(change.takes_away for change in changes) and not yes:
        confirm(
            "Apply?",
            about_to="tables leave the mirror, partitions the heap, or lake tables their format version",
            remedy="check with --dry-run, then give --yes",
            refused="nothing was changed",
        )
    return int(_carry_out(settings, changes, wait=not no_wait) or failed)


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
        options = _OPTIONS.validate_python(entry)
        require_valid(options)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{place}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except UsageError as error:
        raise UsageError(f"{place}: {error}", error.remedy) from None
    return DeclaredTables(
        options.names,
        tuple(options.exclude or ()),
        options.choices(),
        options.retention(),
        options.profile,
        tuple(options.followed) if options.follow_new else (),
        options.snapshots(),
        options.feed(),
        options.format_version,
    )


def _show(changes: Sequence[DeclaredChange]) -> bool:
    """Prints what differs. Returns whether something cannot be mended by `apply`."""
    failed = False
    for change in changes:
        if change.error is not None:
            report_error(change.error, change.kind.value, change.subject)
            failed = True
        else:
            leaves = ", partitions leave its heap" if change.sheds else ""
            say(f"{change.kind.value} {change.subject}{leaves}")
    return failed


def _carry_out(settings: Settings, changes: Sequence[DeclaredChange], *, wait: bool) -> bool:
    """Makes the changes. Returns whether one failed."""
    from mirror_pump.ops.register.declaration import ChangeKind
    from mirror_pump.ops.register.lake_partitions import LayoutWish
    from mirror_pump.ops.register.registration import register
    from mirror_pump.ops.register.selection import follow
    from mirror_pump.ops.register.unregistration import unregister
    from mirror_pump.ops.resync.format_upgrade import upgrade
    from mirror_pump.ops.resync.snapshots import rest

    failed = False
    alike: dict[int, tuple[DeclaredTables, list[str]]] = {}
    for change in changes:
        entry = change.tables
        try:
            if change.kind is ChangeKind.UNREGISTER:
                say(unregister(settings, change.subject, drop_lake=False))
            elif change.kind is ChangeKind.END_FOLLOWING:
                follow(settings, [change.subject], (), None, ends=True)
            elif change.kind is ChangeKind.FOLLOW and entry is not None:
                follow(settings, [change.subject], entry.excluded, entry.profile, ends=False)
            elif change.kind is ChangeKind.ALTER and entry is not None:
                layout = LayoutWish(entry.choices.partition_by, entry.choices.sort_by)
                failed |= bool(
                    alter_tables(settings, [change.subject], layout, wait=wait, dry_run=False, as_json=False)
                )
            elif change.kind is ChangeKind.ALTER_CHANGES and entry is not None:
                failed |= bool(alter_feeds(settings, [change.subject], entry.feed))
            elif change.kind is ChangeKind.UPGRADE and entry is not None and entry.format_version is not None:
                upgrade(settings, change.subject, entry.format_version, confirmed=True)
                say(f"{change.subject}: format version {entry.format_version}")
            elif change.kind is ChangeKind.REGISTER and entry is not None:
                alike.setdefault(id(entry), (entry, []))[1].append(change.subject)
        except MirrorPumpError as error:
            report_error(error, f"not done: {change.kind.value}", change.subject)
            failed = True
    for entry, names in alike.values():
        with copy_progress() as show:
            outcomes = register(
                settings,
                names,
                wait,
                show,
                choices=entry.choices,
                retention=entry.retention,
                profile=entry.profile,
                snapshots=entry.snapshots,
                feed=entry.feed,
                format_version=entry.format_version,
            )
        if entry.snapshots is not None and wait:
            rest(settings)
        for outcome in outcomes:
            if outcome.error is not None:
                report_error(outcome.error, "not registered", outcome.table)
                failed = True
            else:
                remark(f"{outcome.table}: {'live' if wait else 'registered'}")
    return failed


def _toml(entry: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in entry.items()]
    return "\n".join((f"[[{_ENTRY}]]", *lines, ""))


def _value(value: object) -> str:
    """A value in TOML, whose texts are written as those of JSON, but for one character."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
