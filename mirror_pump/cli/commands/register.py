"""`mirror-pump register` and `unregister`: put tables under the mirror, and take them out."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.options import SLOT, STORAGE, command
from mirror_pump.cli.output import count_text, remark, report_error, say
from mirror_pump.cli.progress import copy_progress
from mirror_pump.config import Settings

Tables = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="Names as Postgres reads them: t, schema.t, 'schema.\"My Table\"'"),
]


def add(app: typer.Typer) -> None:
    @command(app, "register", (*SLOT, "copy_workers", "copy_chunk_bytes", "lock_timeout", "master", *STORAGE))
    def register(
        settings: Settings,
        tables: Tables,
        no_wait: Annotated[
            bool, typer.Option("--no-wait", help="Return once the tables are registered; a running pump copies them")
        ] = False,
    ) -> int:
        """Put tables under the mirror and copy their rows while writes go on.

        A table needs a primary key or a replica identity index. A register that was killed resumes with the next
        one, and no finished chunk is read twice. One table's refusal does not stop the others; exit 1 reports it.
        """
        from mirror_pump.ops.profile import complete
        from mirror_pump.pipeline.registration import register as put_under_mirror

        settings = complete(settings)
        with copy_progress() as show:
            outcomes = put_under_mirror(settings, tables, not no_wait, show)
        for outcome in outcomes:
            if outcome.error is not None:
                remark(f"mirror-pump: {outcome.table}: {'copy failed' if outcome.registered else 'not registered'}")
                report_error(outcome.error)
            elif no_wait:
                say(f"{outcome.table}: registered")
            else:
                say(f"{outcome.table}: live" + (f", {count_text(outcome.rows)} rows copied" if outcome.rows else ""))
        return 1 if any(outcome.error is not None for outcome in outcomes) else 0

    @command(app, "unregister", (*SLOT, *STORAGE))
    def unregister(
        settings: Settings,
        table: Annotated[str, typer.Argument(metavar="TABLE", help="The name as Postgres reads it")],
        drop_lake: Annotated[
            bool, typer.Option("--drop-lake", help="Also drop the Iceberg table and delete its files")
        ] = False,
    ) -> None:
        """Take a table out of the mirror. Its lake table stays as of its last F unless --drop-lake is given."""
        from mirror_pump.ops.profile import complete
        from mirror_pump.pipeline.registration import unregister as take_out

        say(take_out(complete(settings), table, drop_lake))
