"""`mirror-pump reader`: the rights of a role that reads the mirror."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, command
from mirror_pump.cli.terminal.output import say
from mirror_pump.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "reader", SLOT)
    def reader(
        settings: Settings,
        role: Annotated[str, typer.Argument(metavar="ROLE", help="An existing role, as it is written: no folding")],
        tables: Annotated[
            list[str] | None,
            typer.Argument(metavar="[TABLE]...", help="Also SELECT on these, and on their present partitions"),
        ] = None,
        print_only: Annotated[
            bool, typer.Option("--print", help="Print the GRANTs for someone who may run them, and change nothing")
        ] = False,
    ) -> None:
        """Let a role read the mirror: by hand, by other engines and by mirror-pump's own readers.

        It can pin what it reads, and change nothing else of the catalog. The role, and its right to read the lake's
        files, are yours to make. May be repeated; run it again after an upgrade, and for new partitions.
        """
        from mirror_pump.ops.reads.reader_roles import grant, grants

        if print_only:
            say(grants(settings, role, tables or ()))
            return
        grant(settings, role, tables or ())
        command = f"mirror-pump connect --engine ENGINE --user {shlex.quote(role)}"
        say(f"{role} may read the mirror; settings for it: {command}")
