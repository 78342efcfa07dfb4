"""`mirror-pump policy`: how far maintenance goes, per table."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import SLOT, command
from mirror_pump.cli.terminal.output import say, write_json
from mirror_pump.config import Settings
from mirror_pump.errors import UsageError


class Verb(StrEnum):
    """What to do with the policy."""

    GET = "get"
    SET = "set"
    UNSET = "unset"


def add(app: typer.Typer) -> None:
    @command(app, "policy", SLOT)
    def policy(
        settings: Settings,
        verb: Annotated[Verb, typer.Argument(metavar="get|set|unset", help="What to do")],
        table: Annotated[
            str, typer.Argument(metavar="TABLE", help="The name as Postgres reads it", autocompletion=mirrored_tables)
        ],
        key: Annotated[str | None, typer.Argument(metavar="KEY", help=r"A key \[all of them]")] = None,
        value: Annotated[str | None, typer.Argument(metavar="VALUE", help="set: such as 128MiB, 0.5, false")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="get: JSON, as docs/cli-json.md describes it")] = False,
    ) -> None:
        """Show or change a table's maintenance policy: thresholds, retention, grace. docs/maintenance.md has the keys.

        A table with heap retention also has heap_retention, premake, width, drop_grace and detach (docs/retention.md).

        A change counts from the next look of a maintainer on; unset goes back to the default.
        """
        if (verb is Verb.SET) is not (value is not None):
            raise UsageError(f"policy {verb.value} takes {'KEY and VALUE' if verb is Verb.SET else 'no VALUE'}")

        from mirror_pump.ops.maintenance.policies import change, show
        from mirror_pump.ops.retain.retention import RETENTION_KEYS, change_retention, show_retention
        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.policy import parse_value, require_key

        # Before the database is asked: a typing error should not wait for it.
        changes = None
        if key is not None and key not in RETENTION_KEYS:
            changes = {require_key(key): parse_value(key, value) if value is not None else None}
        settings = complete(settings)
        if verb is not Verb.GET and key in RETENTION_KEYS:
            change_retention(settings, table, key, value)
        elif verb is not Verb.GET:
            change(settings, table, changes)
        entries = [
            one for one in (*show_retention(settings, table), *show(settings, table)) if key is None or one.key == key
        ]
        if as_json:
            write_json({one.key: {"value": one.value, "default": one.default, "set": one.is_set} for one in entries})
            return
        for one in entries:
            say(f"{one.key} = {one.shown} ({'set' if one.is_set else 'default'})")
