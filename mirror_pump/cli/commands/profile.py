"""`mirror-pump profile`: storage profiles, which are warehouses by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.options import STORAGE, AsJson, command
from mirror_pump.cli.terminal.output import one_line, say, write_json
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings, refuse_unreadable, warehouse_uri

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirror_pump.settings.storage_profiles import StorageProfile

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile")]


def add(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Add, list, choose and test storage profiles: warehouses by name, each with its own credentials.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(group, name="profile")
    _add_add(group)
    _add_list(group)
    _add_set_default(group)
    _add_test(group)


def _add_add(group: typer.Typer) -> None:
    @command(group, "add", STORAGE)
    def add(
        settings: Settings,
        name: Name,
        warehouse: Annotated[
            str, typer.Option("--warehouse", metavar="URI", help="Root of the tables' files: a directory, or a URI")
        ],
        endpoint: Annotated[
            str | None, typer.Option("--endpoint", metavar="URL", help="S3 endpoint of this profile's storage")
        ] = None,
        region: Annotated[
            str | None, typer.Option("--region", metavar="REGION", help="S3 region of this profile's storage")
        ] = None,
        credentials: Annotated[
            str | None,
            typer.Option(
                "--credentials",
                metavar="REF",
                help=r"Reference to credentials, in $MODAK_CREDENTIALS_<REF> or in the file that"
                r" $MODAK_CREDENTIALS_<REF>_FILE names \[those of the settings, with their endpoint and region]",
            ),
        ] = None,
        option: Annotated[
            list[str] | None,
            typer.Option("--option", metavar="NAME=VALUE", help="A storage property, such as s3.connect-timeout=5"),
        ] = None,
        set_default: Annotated[
            bool, typer.Option("--set-default", help="Register tables with it that name no profile")
        ] = False,
        no_test: Annotated[
            bool, typer.Option("--no-test", help="Do not write a file first, where this machine has no credentials")
        ] = False,
    ) -> int:
        """Add a storage profile, or change the one of that name. A file is written to its warehouse and deleted first.

        A profile holds no secrets. The pump, the maintainer and readers find the credentials by their reference, each
        in its own environment: give them to the pump before you register a table with the profile.
        """
        from mirror_pump.ops.setup.profiles import add_profile, described_profile
        from mirror_pump.ops.setup.stored_settings import complete

        try:
            location = warehouse_uri(warehouse)
        except ValueError as error:
            raise UsageError(str(error)) from None
        refuse_unreadable(location)
        settings = complete(settings)
        profile = described_profile(name, location, option or (), endpoint, region, credentials)
        if not no_test and not _works(settings, [profile], quiet=True):
            return 1
        changed = add_profile(settings, profile, default=set_default)
        say(f"profile {name}: {'stored' if changed else 'there already'}, warehouse {location}")
        return 0


def _add_list(group: typer.Typer) -> None:
    @command(group, "list")
    def list_(settings: Settings, as_json: AsJson = False) -> None:
        """Show the storage profiles. * marks the one of tables that are registered without --profile."""
        from mirror_pump.ops.setup.profiles import list_profiles

        profiles = list_profiles(settings)
        if as_json:
            write_json([listed.to_json() for listed in profiles])
            return
        for listed in profiles:
            profile = listed.profile
            parts = [profile.warehouse or "no warehouse"]
            parts += [f"{key}={value}" for key, value in sorted(profile.options.items())]
            parts.append("credentials " + (profile.credential_ref or "of the settings"))
            parts.append(f"{listed.tables} tables")
            say(f"{'*' if profile.is_default else ' '} {profile.name}: {', '.join(parts)}")


def _add_set_default(group: typer.Typer) -> None:
    @command(group, "set-default")
    def set_default(settings: Settings, name: Name) -> None:
        """Choose the profile of tables that are registered without --profile. Registered tables stay where they are."""
        from mirror_pump.ops.setup.profiles import choose_default

        choose_default(settings, name)
        say(f"profile {name}: the default for new tables")


def _add_test(group: typer.Typer) -> None:
    @command(group, "test", STORAGE)
    def test(
        settings: Settings,
        name: Annotated[str | None, typer.Argument(metavar="NAME", help=r"Name of the profile \[all]")] = None,
    ) -> int:
        """Write a file to the warehouse of a profile, read, list and delete it, with the credentials found here.

        Exit code 1 if something fails.
        """
        from mirror_pump.ops.setup.profiles import list_profiles
        from mirror_pump.ops.setup.stored_settings import complete

        settings = complete(settings)
        profiles = [listed.profile for listed in list_profiles(settings)]
        chosen = [profile for profile in profiles if name in (None, profile.name)]
        if not chosen:
            names = ", ".join(profile.name for profile in profiles)
            raise UsageError(f"there is no storage profile {name}", f"known: {names}")
        return 0 if _works(settings, chosen) else 1


def _works(settings: Settings, profiles: Sequence[StorageProfile], *, quiet: bool = False) -> bool:
    """Try the profiles out, and print what was found; with `quiet` only what fails."""
    from mirror_pump.ops.doctor.check import Outcome
    from mirror_pump.ops.doctor.storage import try_profiles

    works = True
    for name, finding in try_profiles(settings, profiles):
        works = works and finding.outcome is not Outcome.FAILED
        if not quiet or finding.outcome is Outcome.FAILED:
            say(f"{finding.outcome.value:<8}{name}: {one_line(finding.message)}")
            if finding.remedy:
                say(f"        what to do: {one_line(finding.remedy)}")
    return works
