"""`mirror-pump reader`: grants a role the rights to read the mirror."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, command
from mirror_pump.cli.terminal.output import say
from mirror_pump.settings.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "reader", SLOT)
    def reader(
        settings: Settings,
        role: Annotated[str, typer.Argument(metavar="ROLE", help="An existing role; its case is not folded")],
        tables: Annotated[
            list[str] | None,
            typer.Argument(metavar="[TABLE]...", help="Also grant SELECT on these tables and their present partitions"),
        ] = None,
        print_only: Annotated[
            bool, typer.Option("--print", help="Only print the GRANT statements, for a role that may run them")
        ] = False,
    ) -> None:
        """Let a role read the mirror: with SQL, other engines, and mirror-pump's own readers.

        The role can pin what it reads and change nothing else in the catalog. You create the role yourself, and let it
        read the lake's files. Can be repeated; run it again after an upgrade, and for new partitions.
        """
        from mirror_pump.ops.reads.reader_roles import grant, grants

        if print_only:
            say(grants(settings, role, tables or ()))
            return
        grant(settings, role, tables or ())
        command = f"mirror-pump connect --engine ENGINE --user {shlex.quote(role)}"
        say(f"{role} may read the mirror; settings for it: {command}")
