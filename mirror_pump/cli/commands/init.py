"""`mirror-pump init`: prepares a database for the mirror."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import say
from mirror_pump.settings.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "init", ("warehouse", *SLOT, *STORAGE))
    def init(
        settings: Settings,
        tiered_only: Annotated[
            bool,
            typer.Option("--tiered-only", help="Without publication and slot, which tiered tables do not need"),
        ] = False,
        format_version: Annotated[
            int | None,
            typer.Option(
                min=2,
                max=3,
                metavar="2|3",
                help=r"Iceberg's format version of tables that are registered from now on \[as before; at first 2]",
            ),
        ] = None,
    ) -> None:
        """Create or migrate schema modak, the publication and the replication slot, and remember the warehouse.

        Reports each step and can be repeated. Afterwards all other commands only need the DSN. If the first init fails
        or is interrupted, it removes what it has created.

        Needs wal_level = logical (replica since PostgreSQL 19), a free replication slot, and a role with REPLICATION
        that may create a schema and a publication. With a lower wal_level, or with `--tiered-only`, it makes no
        publication and no slot: tiered tables can be registered, and a later init adds both.
        """
        from mirror_pump.model import format_lsn
        from mirror_pump.ops.setup.initialisation import initialise

        mirror = initialise(settings, say, tiered_only=tiered_only, format_version=format_version)
        if mirror.streams:
            say(f"ready: frontier {format_lsn(mirror.position)}, warehouse {mirror.warehouse}")
            say("next: mirror-pump register TABLE... and mirror-pump run")
        else:
            say(f"ready: tiered tables only, warehouse {mirror.warehouse}")
            say("next: mirror-pump register TABLE --mode tiered and mirror-pump run")
