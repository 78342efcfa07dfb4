"""`mirror-pump reconcile`: continues after a failover or a restore that the pump refuses."""

from __future__ import annotations

import typer

from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, command
from mirror_pump.cli.terminal.output import remark, say, write_json
from mirror_pump.cli.terminal.progress import verify_progress
from mirror_pump.settings.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "reconcile", (*SLOT, "master", *STORAGE))
    def reconcile(
        settings: Settings,
        as_json: AsJson = False,
    ) -> int:
        """Continue a mirror whose database was promoted, restored or upgraded so that the pump refuses it.

        It says what was lost: what readers of the lake may have seen that the server no longer has. If the slot does
        not continue from the frontier, it makes a new one, compares every table with its heap at the slot's first
        position, and has the next pump replace what differs. Readers keep the present content meanwhile.
        A mirror without a stream has nothing to compare: maintenance may delete files again.

        No pump may run. Exit code 1 if a table has failed. It can be repeated.
        """
        from mirror_pump.ops.reconcile.reconciliation import reconcile as heal
        from mirror_pump.ops.setup.stored_settings import complete

        with verify_progress() as show:
            result = heal(complete(settings), remark if as_json else say, observe=show)
        if as_json:
            write_json(result.to_json())
        elif result.slot == "none":
            say("start the pump")
        elif result.slot == "kept":
            say("start the pump; `mirror-pump verify` compares all tables once it runs")
        else:
            say("start the pump: it replaces what differs")
        return 1 if any(table.outcome == "failed" for table in result.tables) else 0
