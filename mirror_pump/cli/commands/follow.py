"""`mirror-pump follow`: other catalogs that show the mirrored tables."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, command
from mirror_pump.cli.terminal.confirmation import confirm
from mirror_pump.cli.terminal.output import one_line, remark, say, write_json
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the follower")]


def add(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Show the mirrored tables in other catalogs too, such as Polaris, AWS Glue or a Hive metastore.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(group, name="follow")
    command(group, "add", (*SLOT, *STORAGE))(add_)
    command(group, "list", SLOT)(list_)
    command(group, "check", (*SLOT, *STORAGE))(check)
    command(group, "remove", (*SLOT, *STORAGE))(remove)


def add_(
    settings: Settings,
    name: _Name,
    rest: Annotated[
        str | None,
        typer.Option("--rest", metavar="URI", help="An Iceberg REST catalog in which tables can be registered"),
    ] = None,
    glue: Annotated[bool, typer.Option("--glue", help="The Data Catalog of AWS Glue")] = False,
    hive: Annotated[
        str | None, typer.Option("--hive", metavar="URI", help="A Hive metastore, such as thrift://HOST:9083")
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(
            "--credentials",
            metavar="REF",
            help="Reference to its credentials, in $MODAK_CREDENTIALS_<REF> or in the file that"
            " $MODAK_CREDENTIALS_<REF>_FILE names, where the pump runs too",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="A property of the catalog, such as warehouse=shop"),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", metavar="PATTERN", help="Namespace of a table; {schema} and {table} stand for its own names"
        ),
    ] = "{schema}",
    table: Annotated[str, typer.Option("--table", metavar="PATTERN", help="Name of a table, likewise")] = "{table}",
) -> None:
    """Have another catalog show all mirrored tables, some seconds behind the mirror: by --rest, --glue or --hive.

    A running pump registers them there, and moves them after each publish. The catalog is tried first. Nothing waits
    for it: one that is away catches up by itself. Its own servers and engines have to reach the mirror's files.
    """
    from mirror_pump.ops.follow.follower_setup import add_follower
    from mirror_pump.ops.setup.stored_settings import complete
    from mirror_pump.source.catalog.followers import FollowerKind

    given = {FollowerKind.REST: rest, FollowerKind.GLUE: glue or None, FollowerKind.HIVE: hive}
    kinds = [kind for kind, value in given.items() if value is not None]
    if len(kinds) != 1:
        raise UsageError("which catalog is to follow?", "give one of --rest URI, --glue and --hive URI")
    uri = rest or hive
    together = add_follower(complete(settings), name, kinds[0], uri, option or (), credentials, namespace, table)
    how = "all tables move there at once" if together else "tables move there one after the other"
    say(f"follower {name}: added; a running pump registers the tables there; {how}")


def list_(settings: Settings, as_json: AsJson = False) -> None:
    """Show the followers, and how far they have followed."""
    from mirror_pump.ops.setup.stored_settings import complete
    from mirror_pump.source.catalog.followers import read_followers
    from mirror_pump.source.connect import connect

    settings = complete(settings)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-follow") as connection:
        followers = read_followers(connection, settings.slot)
    if as_json:
        write_json([follower.to_json() for follower in followers])
        return
    for follower in followers:
        say(one_line(follower.text))
        if follower.error is not None:
            say(f"    {one_line(follower.error)}")
    if not followers:
        say("no catalog follows: mirror-pump follow add NAME --rest URI")


def check(settings: Settings, name: _Name, as_json: AsJson = False) -> int:
    """Compare what a follower shows with the mirror: the snapshot of each table, its files and its columns.

    Exit code 1 if a table is missing there, was changed by others, or cannot follow or be compared. One that is behind
    is not wrong.
    """
    from mirror_pump.ops.follow.follower_check import check_follower
    from mirror_pump.ops.follow.follower_tables import FollowerTableState
    from mirror_pump.ops.setup.stored_settings import complete

    tables = check_follower(complete(settings), name)
    if as_json:
        write_json([table.to_json() for table in tables])
    else:
        for table in tables:
            at = "" if table.frontier is None else f", as of {table.frontier}"
            say(one_line(f"{table.table}: {table.follower_table}: {table.result.value}{at}"))
            if table.error is not None:
                say(f"    {one_line(table.error)}")
    late = (FollowerTableState.BEHIND, FollowerTableState.REPLACED)
    sound = (table.result is FollowerTableState.SAME or (table.result in late and not table.error) for table in tables)
    return 0 if all(sound) else 1


def remove(
    settings: Settings,
    name: _Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Leave its tables in the catalog, which may be gone, and only forget it")
    ] = False,
) -> None:
    """Drop a follower's tables from its catalog, with the namespaces that were made for them, and forget it.

    The mirror's files stay. Tables that others have committed to there are not dropped: the command says which.
    """
    from mirror_pump.ops.follow.follower_setup import remove_follower
    from mirror_pump.ops.setup.stored_settings import complete

    if not yes:
        confirm(
            f"Remove the follower {name}?",
            about_to=f"the follower {name} is about to be removed",
            remedy="give --yes",
            refused="nothing was removed",
        )
    left = remove_follower(complete(settings), name, forget=forget)
    for table in left:
        remark(f"{table}: left in the catalog, where it does not follow any more", "warning")
    say(f"follower {name}: removed")
