"""`mirror-pump init`: prepare a database for the mirror."""

from __future__ import annotations

import typer

from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import say
from mirror_pump.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "init", ("warehouse", *SLOT, *STORAGE))
    def init(settings: Settings) -> None:
        """Create or migrate schema modak, the publication and the slot; remember the warehouse.

        Says what it did and can be repeated. Afterwards the DSN alone is enough for every other command. A first
        init that fails, or is interrupted, takes back what it made.
        Needs wal_level = logical, a free replication slot, and a role with REPLICATION that may create a
        schema and a publication.
        """
        from mirror_pump.model import format_lsn
        from mirror_pump.ops.setup.initialisation import initialise

        mirror = initialise(settings, say)
        say(f"ready: F = {format_lsn(mirror.position)}, warehouse {mirror.warehouse}")
        say("next: mirror-pump register TABLE... and mirror-pump run")
