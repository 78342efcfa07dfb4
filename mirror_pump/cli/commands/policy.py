"""`mirror-pump policy`: shows and changes a table's maintenance policy."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import SLOT, command
from mirror_pump.cli.terminal.output import say, write_json
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings


class Verb(StrEnum):
    """Operation on the policy."""

    GET = "get"
    SET = "set"
    UNSET = "unset"


def add(app: typer.Typer) -> None:
    @command(app, "policy", SLOT)
    def policy(
        settings: Settings,
        verb: Annotated[Verb, typer.Argument(metavar="get|set|unset", help="The operation")],
        table: Annotated[
            str, typer.Argument(metavar="TABLE", help="The name as Postgres reads it", autocompletion=mirrored_tables)
        ],
        key: Annotated[str | None, typer.Argument(metavar="KEY", help=r"A policy key \[all keys]")] = None,
        value: Annotated[
            str | None, typer.Argument(metavar="VALUE", help="The new value for set, such as 128MiB, 0.5 or false")
        ] = None,
        yes: Annotated[
            bool,
            typer.Option(
                "--yes",
                "-y",
                help="Let rows expire that a shorter lake_retention does not keep any more; upgrade the lake table",
            ),
        ] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print the result of get as JSON (docs/cli-json.md)")
        ] = False,
    ) -> None:
        """Show or change a table's maintenance policy: thresholds, retention, grace periods.

        docs/maintenance.md lists the keys. format_version is that of the lake table. A table with heap retention also
        has heap_retention, premake, width, drop_grace and detach (docs/retention.md); a tiered table has lag in place
        of heap_retention, and lake_retention (docs/tiered.md).

        A shorter lake_retention deletes rows that nothing else has, and wants --yes. A later format_version upgrades
        the lake table at once, and there is no way back but a copy: it wants --yes, too. Other changes take effect when
        a maintainer next looks at the table. unset restores the default.
        """
        if (verb is Verb.SET) is not (value is not None):
            raise UsageError(f"policy {verb.value} takes {'KEY and VALUE' if verb is Verb.SET else 'no VALUE'}")

        from mirror_pump.ops.maintenance.policies import show
        from mirror_pump.ops.retain.retention import show_retention
        from mirror_pump.ops.setup.stored_settings import complete

        key = None if key is None else key.replace("-", "_")
        change = _checked_change(key, value, is_read=verb is Verb.GET)
        settings = complete(settings)
        if verb is not Verb.GET:
            change(settings, table, yes)
        entries = [
            entry
            for entry in (*show_retention(settings, table), *show(settings, table))
            if key is None or entry.key == key
        ]
        if as_json:
            write_json(
                {entry.key: {"value": entry.value, "default": entry.default, "set": entry.is_set} for entry in entries}
            )
            return
        for entry in entries:
            say(f"{entry.key} = {entry.shown} ({'set' if entry.is_set else 'default'})")


def _checked_change(key: str | None, value: str | None, *, is_read: bool) -> Callable[[Settings, str, bool], object]:
    """What sets or unsets a key of a table, if `--yes` is given or not. A typing error raises UsageError here, without
    waiting for the database. `is_read`: the key is only to be shown."""
    from mirror_pump.ops.maintenance.policies import change
    from mirror_pump.ops.retain.retention import RETENTION_KEYS, change_retention
    from mirror_pump.settings.policy import FORMAT_VERSION_KEY, parse_value, require_key

    if key in RETENTION_KEYS:
        return lambda settings, table, yes: change_retention(settings, table, key, value, keeps_rows=not yes)
    if key == FORMAT_VERSION_KEY:
        from mirror_pump.ops.register.format_versions import parse_format_version
        from mirror_pump.ops.resync.format_upgrade import upgrade

        if value is None and not is_read:
            raise UsageError(f"a lake table has one {FORMAT_VERSION_KEY}", "set it to 3; there is no way back")
        version = 0 if value is None else parse_format_version(value)
        return lambda settings, table, yes: upgrade(settings, table, version, confirmed=yes)
    changes = None
    if key is not None:
        changes = {require_key(key): parse_value(key, value) if value is not None else None}
    return lambda settings, table, _: change(settings, table, changes)
