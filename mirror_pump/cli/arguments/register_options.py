"""The options of `mirror-pump register`: those of the command, and those of tables, which follow from their entries
(mirror_pump.source.options). A declaration has the latter, too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirror_pump.cli.arguments.completion import other_tables
from mirror_pump.cli.arguments.options import OptionRule, ParameterMap, require
from mirror_pump.source.options.option_values import given_keys
from mirror_pump.source.options.table_option import FOLLOW_NEW, SEVERAL_TABLES, Alteration, Panel, TableOption
from mirror_pump.source.options.table_options import OPTIONS
from mirror_pump.source.relations.table_patterns import EVERY_TABLE, is_pattern, parse_pattern

if TYPE_CHECKING:
    from mirror_pump.ops.register.lake_partitions import LayoutOptions
    from mirror_pump.ops.register.table_wish import TableOptions

_ALTERED = {
    kind: tuple(option for option in OPTIONS if option.alter is kind)
    for kind in (Alteration.LAYOUT, Alteration.CHANGES)
}
"""The options that --alter changes."""
_ALTERABLE = frozenset(option.key for options in _ALTERED.values() for option in options)
_REMOVABLE = tuple(option for option in OPTIONS if option.removal)
_FLAGS = ", ".join(option.flag for option in _REMOVABLE)
BARE = {option.flag: option.bare for option in OPTIONS if option.bare is not None}
"""The values of options that are given without one."""


def _parameter(option: TableOption) -> inspect.Parameter:
    """The option on the command line."""
    described = typer.Option(
        option.flag,
        metavar=option.metavar,
        min=option.lowest,
        max=option.highest,
        help=option.meaning,
        rich_help_panel=_panel(option.panel),
        show_default=option.default is not None and option.kind not in (str, bool, int),
    )
    return inspect.Parameter(
        option.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[option.typed_kind, described],
    )


def _removal(option: TableOption) -> inspect.Parameter:
    described = typer.Option(
        f"--no-{option.flag.removeprefix('--')}", help=option.removal, rich_help_panel=_panel(Panel.ALTER)
    )
    return inspect.Parameter(
        f"no_{option.key}", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, described]
    )


def _panel(panel: Panel) -> str | None:
    return None if panel is Panel.FIRST else panel.value


def _by_panel() -> Iterator[inspect.Parameter]:
    for panel in Panel:
        yield from (_parameter(option) for option in OPTIONS if option.panel is panel)


NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return once the tables are registered; a running pump copies them")
]


@dataclass(frozen=True)
class RegisterOptions:
    """The options of `register`, as typed."""

    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="Table names as Postgres reads them: t, schema.t, 'schema.\"My Table\"'; or patterns, in which * is"
            " any text and ? any character: 'sales.*'",
            autocompletion=other_tables,
            show_default=False,
        ),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="All tables of the database that can be mirrored")] = False
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="With --all or a pattern: leave out tables of this name or pattern"),
    ] = None
    follow_new: Annotated[
        bool | None,
        typer.Option(
            "--follow-new/--no-follow-new",
            help="With --all or a pattern: a running pump registers tables that match when they are created, or not"
            " any more",
            show_default=False,
        ),
    ] = None
    no_wait: NoWait = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print what would be registered, and what would leave the heap"),
    ] = False
    typed: Annotated[Mapping[str, Any], ParameterMap(tuple(_by_panel()))] = field(default_factory=dict)
    """The options of the tables, by key."""
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Do not ask for confirmation before partitions leave the heap",
            rich_help_panel=Panel.PARTITIONS.value,
        ),
    ] = False
    alter: Annotated[
        bool,
        typer.Option(
            "--alter",
            help=f"Change options of a table that is mirrored: {_FLAGS}. Other partitions copy it again",
            rich_help_panel=Panel.ALTER.value,
        ),
    ] = False
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="With --alter: JSON, as docs/cli-json.md describes it",
            rich_help_panel=Panel.ALTER.value,
        ),
    ] = False

    removals: Annotated[Mapping[str, bool], ParameterMap(tuple(map(_removal, _REMOVABLE)))] = field(
        default_factory=dict
    )
    """The `--no-` options of the tables."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names and patterns of tables."""
        return (*(self.tables or ()), *((EVERY_TABLE,) if self.every else ()))

    @property
    def by_pattern(self) -> bool:
        """Whether the database says which tables are meant."""
        return any(map(is_pattern, self.names))

    @property
    def followed(self) -> list[str]:
        """The patterns that can be followed: those with a schema."""
        return [name for name in self.names if is_pattern(name) and parse_pattern(name).schema is not None]

    @property
    def given(self) -> frozenset[str]:
        """The options of tables that are given, by key."""
        return given_keys(self.typed)

    @property
    def removed(self) -> frozenset[str]:
        """The options of tables that --alter takes away, by key."""
        return frozenset(key.removeprefix("no_") for key, is_given in self.removals.items() if is_given)

    @property
    def changes_layout(self) -> bool:
        """Whether --alter is about the layout."""
        return self._alters(Alteration.LAYOUT)

    @property
    def changes_feed(self) -> bool:
        """Whether --alter is about the change feed."""
        return self._alters(Alteration.CHANGES)

    def _alters(self, kind: Alteration) -> bool:
        return any(option.key in self.given | self.removed for option in _ALTERED[kind])

    def layout(self) -> LayoutOptions:
        """The layout that --alter is to give a table."""
        from mirror_pump.ops.register.lake_partitions import LayoutOptions

        given, removed = self.given, self.removed
        return LayoutOptions(
            **{
                option.wish_field: () if option.key in removed else option.parse(self.typed[option.key])
                for option in _ALTERED[Alteration.LAYOUT]
                if option.key in given | removed
            }
        )

    def wish(self) -> TableOptions:
        """All that the tables are to be. Raises UsageError for options that make no sense, alone or together."""
        from mirror_pump.ops.register.table_wish import wish_of

        require(self, _RULES)
        several = not self.alter and (self.by_pattern or len(self.names) > 1)
        others = ((SEVERAL_TABLES, several), (FOLLOW_NEW, bool(self.follow_new)))
        return wish_of(self.typed, [other for other, applies in others if applies])


_RULES = (
    OptionRule[RegisterOptions](lambda given: not given.names, "name a TABLE, or give --all"),
    OptionRule[RegisterOptions](
        lambda given: given.every and bool(given.tables),
        "--all takes no TABLE",
        "leave out --all, or the names and patterns; --exclude leaves tables out",
    ),
    OptionRule[RegisterOptions](
        lambda given: (
            given.follow_new is False
            and (
                len(given.followed) < len(given.names)
                or bool(given.given | given.removed)
                or replace(given, tables=None, every=False, no_wait=False, typed={}, removals={})
                != RegisterOptions(follow_new=False)
            )
        ),
        "--no-follow-new ends the following of patterns, and registers nothing: it goes with patterns that have a"
        " schema, or --all, alone",
        "`mirror-pump status` shows the patterns that are followed; leave out the rest",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.follow_new) and not given.followed,
        "--follow-new requires --all, or a pattern with a schema, such as 'sales.*'",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.exclude) and not given.by_pattern, "--exclude requires --all or a pattern"
    ),
    OptionRule[RegisterOptions](
        lambda given: not given.alter and (bool(given.removed) or given.as_json),
        "--json, and what takes a layout or a change feed away, require --alter",
        "leave out the option of a table that is not to have it",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.removed & given.given),
        "an option and its --no- form exclude each other",
        "give only one of them",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and given.by_pattern,
        "--alter is about tables that are named",
        "mirror-pump status lists the tables",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and not given.changes_layout and not given.changes_feed,
        f"--alter requires one of {_FLAGS}, or one of them as --no-...",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and given.changes_layout and given.changes_feed,
        "--alter changes either the layout of a table or its change feed",
        "give the command twice",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and given.changes_feed and (given.as_json or given.dry_run),
        "--json and --dry-run with --alter are about the layout",
    ),
    OptionRule[RegisterOptions](
        lambda given: (
            given.alter
            and (
                not given.given <= _ALTERABLE
                or replace(
                    given, tables=None, alter=False, no_wait=False, dry_run=False, as_json=False, typed={}, removals={}
                )
                != RegisterOptions()
            )
        ),
        f"--alter changes {_FLAGS} alone",
        "to change something else, unregister and register the table: it is copied again",
    ),
)
