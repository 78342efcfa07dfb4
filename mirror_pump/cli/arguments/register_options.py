"""The options of `mirror-pump register` about tables, and which of them go together. A declaration has the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirror_pump.cli.arguments.completion import other_tables
from mirror_pump.cli.arguments.durations import seconds_of
from mirror_pump.cli.arguments.options import OptionRule, is_given, require
from mirror_pump.errors import UsageError
from mirror_pump.source.relations.table_patterns import EVERY_TABLE, is_pattern, parse_pattern

if TYPE_CHECKING:
    from mirror_pump.model import SnapshotPlan
    from mirror_pump.ops.register.feed_registration import FeedWish
    from mirror_pump.ops.register.lake_partitions import LayoutWish
    from mirror_pump.ops.register.table_wish import TableWish
    from mirror_pump.source.relations.column_choices import ColumnChoices
    from mirror_pump.source.retention.retention_plan import RetentionWish


class RegisterMode(StrEnum):
    """How a table's rows come into the lake."""

    MIRRORED = "mirrored"
    TIERED = "tiered"


SHORTEST_INTERVAL = timedelta(minutes=1)
"""Of `--snapshot-every`."""


NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return once the tables are registered; a running pump copies them")
]


@dataclass(frozen=True)
class RegisterOptions:
    """The options of `register` about tables, as typed."""

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
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE", help="Use another lake type for a column: string, decimal(38,9), variant, ..."
        ),
    ] = None
    exclude_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave out this column, which must not be part of the key"),
    ] = None
    columns_only: Annotated[
        str,
        typer.Option(
            metavar="NAME,...", help=r"The server sends only these columns, also of those to come \[all columns]"
        ),
    ] = ""
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MASK",
            help="Mask a column: sha256, hmac(env:NAME), hmac(file:PATH), null, prefix(N) or constant(TEXT)",
        ),
    ] = None
    where: Annotated[
        str,
        typer.Option(metavar="CONDITION", help=r"Mirror only rows that meet an SQL condition \[all rows]"),
    ] = ""
    append_only: Annotated[
        bool,
        typer.Option(
            "--append-only",
            help="For a table without a key whose rows are only inserted: PostgreSQL refuses UPDATE and DELETE of it"
            " while it is mirrored",
        ),
    ] = False
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="FIELDS",
            help="Partition the lake table, by 'day(created_at), bucket(16, tenant), truncate(4, code), region'",
        ),
    ] = None
    sort_by: Annotated[
        str | None,
        typer.Option(
            "--sort-by",
            metavar="COLUMNS",
            help="Sort the rows of the lake's files, by 'tenant, created_at desc nulls last'",
        ),
    ] = None
    changes: Annotated[
        str | None,
        typer.Option(
            metavar="keys|rows",
            help="Keep a change feed beside the table, an Iceberg table of all its changes: --changes has new rows and"
            " deleted keys, --changes=rows old rows too",
        ),
    ] = None
    keep_changes: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help=r"With --changes: how long changes stay, such as 90d \[for ever]"),
    ] = None
    no_changes: Annotated[bool, typer.Option("--no-changes", help="With --alter: end the change feed of the table")] = (
        False
    )
    no_partition_by: Annotated[
        bool, typer.Option("--no-partition-by", help="With --alter: do not partition the lake table any more")
    ] = False
    no_sort_by: Annotated[
        bool, typer.Option("--no-sort-by", help="With --alter: do not sort the rows of the lake's files any more")
    ] = False
    alter: Annotated[
        bool,
        typer.Option(
            "--alter",
            help="Change --partition-by, --sort-by or --changes of a table that is mirrored. Other partitions copy it"
            " again",
        ),
    ] = False
    snapshot_only: Annotated[
        bool,
        typer.Option(
            "--snapshot-only",
            help="Copy the tables and do not follow their changes: resume, or --snapshot-every, has them copied again",
        ),
    ] = False
    snapshot_every: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --snapshot-only: a running pump copies the tables again this long after their last copy",
        ),
    ] = None
    mode: Annotated[
        RegisterMode,
        typer.Option(
            help="mirrored: copy all rows and follow their changes; tiered: copy partitions when they leave",
            show_default=True,
        ),
    ] = RegisterMode.MIRRORED
    tier_key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help=r"With --mode tiered: the column by which the table is partitioned \[that column]",
        ),
    ] = None
    lag: Annotated[
        str | None,
        typer.Option(
            metavar="DISTANCE",
            help=r"With --mode tiered: how far behind the newest key partitions leave the heap \[0]",
        ),
    ] = None
    keep_heap: Annotated[
        bool,
        typer.Option(
            "--keep-heap", help="With --mode tiered: partitions stay in the heap, and are in the lake as well"
        ),
    ] = False
    lake_retention: Annotated[
        str | None,
        typer.Option(
            metavar="DISTANCE",
            help=r"With --mode tiered: rows this far behind the cut-line expire from the lake \[they stay]",
        ),
    ] = None
    heap_retention: Annotated[
        str | None,
        typer.Option(
            metavar="DISTANCE",
            help="Drop partitions from the heap this far behind the newest key: 1000000, '90 days', ...",
        ),
    ] = None
    premake: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            metavar="PARTITIONS",
            help="With --heap-retention or --mode tiered: keep this many future partitions ready",
        ),
    ] = 0
    width: Annotated[
        str | None,
        typer.Option(
            metavar="WIDTH",
            help=r"With --premake: width of a partition, such as 1d or 1mon \[that of the newest partitions]",
        ),
    ] = None
    drop_grace: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=r"How long partitions stay in the heap after proof that the lake holds them \[1 hour]",
        ),
    ] = None
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Detach partitions that leave the heap, which stay as tables, instead of dropping them",
        ),
    ] = False
    lake_partition: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT|WIDTH",
            help="Partition the lake table by the tier key: hour, day, month, year, of an integer a width such as"
            " 1000000, or `width`: as the heap is",
        ),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=r"Storage profile of the tables \[the default profile]"),
    ] = None
    format_version: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=3,
            metavar="2|3",
            help=r"Iceberg's format version of the lake table: deletes are position-delete files or deletion vectors"
            r" \[what init set, else 2]",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print what would be registered, and what would leave the heap"),
    ] = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation before partitions leave the heap")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="With --alter: JSON, as docs/cli-json.md describes it")] = (
        False
    )

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
    def changes_layout(self) -> bool:
        """Whether an option of --alter is given."""
        return is_given(self.partition_by, self.sort_by) or self.no_partition_by or self.no_sort_by

    @property
    def changes_feed(self) -> bool:
        """Whether --alter is about the change feed."""
        return self.changes is not None or self.no_changes

    @property
    def tiered(self) -> bool:
        return self.mode is RegisterMode.TIERED

    @property
    def sheds_partitions(self) -> bool:
        """Whether partitions are copied into the lake, and may leave the heap."""
        return self.tiered or self.heap_retention is not None

    def choices(self) -> ColumnChoices:
        """Which columns and rows are mirrored, and as what."""
        from mirror_pump.source.relations.column_choices import parse_choices

        return parse_choices(
            self.column or (),
            self.exclude_column or (),
            self.mask or (),
            where=self.where,
            listed=self.columns_only,
            append_only=self.append_only,
            partition_by=self.partition_by,
            sort_by=self.sort_by,
        )

    def layout(self) -> LayoutWish:
        """The layout that --alter is to give a table."""
        from mirror_pump.ops.register.lake_partitions import LayoutWish
        from mirror_pump.source.relations.partition_choices import parse_partition_by, parse_sort_by

        partition_by = () if self.no_partition_by else None
        sort_by = () if self.no_sort_by else None
        return LayoutWish(
            partition_by if self.partition_by is None else parse_partition_by(self.partition_by),
            sort_by if self.sort_by is None else parse_sort_by(self.sort_by),
        )

    def feed(self) -> FeedWish | None:
        """The change feed that the tables get; None: none."""
        if self.changes is None:
            return None
        from mirror_pump.ops.register.feed_registration import parse_feed

        keep = None
        if self.keep_changes is not None:
            keep = timedelta(seconds=seconds_of(self.keep_changes, "--keep-changes"))
            if not keep:
                raise UsageError("--keep-changes is longer than that", "without it, changes stay for ever")
        return parse_feed(self.changes, keep)

    def snapshots(self) -> SnapshotPlan | None:
        """When the tables are copied again, if their changes are not followed. None: they are."""
        from mirror_pump.model import SnapshotPlan
        from mirror_pump.source.retention.retention_plan import parse_grace

        if not self.snapshot_only:
            return None
        every = None if self.snapshot_every is None else parse_grace(self.snapshot_every, "--snapshot-every")
        if every is not None and every < SHORTEST_INTERVAL:
            raise UsageError(
                "--snapshot-every is at least a minute", "register the table without --snapshot-only: it is followed"
            )
        return SnapshotPlan(every)

    def retention(self) -> RetentionWish | None:
        """How partitions leave the heap; None if they stay."""
        from mirror_pump.model import TableMode
        from mirror_pump.source.retention.retention_plan import RetentionWish

        lag = (self.lag or "0") if self.tiered else self.heap_retention
        if lag is None:
            return None
        return RetentionWish(
            lag=lag,
            premake=self.premake,
            width=self.width,
            drop_grace=self.drop_grace,
            detach=self.detach,
            lake_partition=self.lake_partition,
            mode=TableMode(self.mode.value),
            tier_key=self.tier_key,
            keep_heap=self.keep_heap,
            lake_retention=self.lake_retention,
        )


_ALTERABLE: dict[str, Any] = {
    "alter": False,
    "partition_by": None,
    "no_partition_by": False,
    "sort_by": None,
    "no_sort_by": False,
    "changes": None,
    "keep_changes": None,
    "no_changes": False,
    "no_wait": False,
    "as_json": False,
    "dry_run": False,
}
"""The options that go with --alter, as they are if they are not given."""

_REGISTER_RULES = (
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
                or replace(given, tables=None, every=False, no_wait=False) != RegisterOptions(follow_new=False)
            )
        ),
        "--no-follow-new ends the following of patterns, and registers nothing: it goes with patterns that have a"
        " schema, or --all, alone",
        "`mirror-pump status` shows the patterns that are followed; leave out the rest",
    ),
    OptionRule[RegisterOptions](
        lambda given: not given.alter and (given.no_partition_by or given.no_sort_by or given.as_json),
        "--no-partition-by, --no-sort-by and --json require --alter",
        "leave out --partition-by and --sort-by of a table that is not to have them",
    ),
    OptionRule[RegisterOptions](
        lambda given: (
            (given.no_partition_by and given.partition_by is not None)
            or (given.no_sort_by and given.sort_by is not None)
        ),
        "--partition-by and --no-partition-by, or --sort-by and --no-sort-by, exclude each other",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and given.by_pattern,
        "--alter is about tables that are named",
        "mirror-pump status lists the tables",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and not given.changes_layout and not given.changes_feed,
        "--alter requires --partition-by, --no-partition-by, --sort-by, --no-sort-by, --changes or --no-changes",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and given.changes_layout and given.changes_feed,
        "--alter changes either the layout of a table or its change feed",
        "give the command twice",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.keep_changes is not None and given.changes is None,
        "--keep-changes requires --changes",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.no_changes and (not given.alter or given.changes is not None),
        "--no-changes requires --alter, without --changes",
        "leave it out: a table without --changes has no change feed",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and given.changes_feed and (given.as_json or given.dry_run),
        "--json and --dry-run with --alter are about the layout",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.follow_new) and given.changes is not None,
        "--follow-new registers tables without --changes",
        "register those that are to have a change feed by name, or give them one by --alter",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.follow_new) and given.format_version is not None,
        "--follow-new registers tables of the format version that init has set",
        "`mirror-pump init --format-version 3`, then this command without it",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and replace(given, **_ALTERABLE) != RegisterOptions(given.tables),
        "--alter changes --partition-by, --sort-by and --changes alone",
        "to change something else, unregister and register the table: it is copied again",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.follow_new) and not given.followed,
        "--follow-new requires --all, or a pattern with a schema, such as 'sales.*'",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.follow_new) and given.sheds_partitions,
        "--follow-new is for plain mirrored tables, without --heap-retention and --mode tiered",
        "register tables whose partitions leave by name: each has its own distance and key",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.snapshot_every is not None and not given.snapshot_only,
        "--snapshot-every requires --snapshot-only",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.snapshot_only and (given.sheds_partitions or bool(given.follow_new)),
        "--snapshot-only is for tables whose rows all stay in the heap, and that are named or match now",
        "leave out --heap-retention, --mode tiered and --follow-new",
    ),
    OptionRule[RegisterOptions](
        lambda given: bool(given.exclude) and not given.by_pattern, "--exclude requires --all or a pattern"
    ),
    OptionRule[RegisterOptions](
        lambda given: (given.by_pattern or len(given.names) > 1) and not given.alter and bool(given.choices()),
        "--column, --mask, --exclude-column, --columns-only, --where, --append-only, --partition-by and"
        " --sort-by are about one table, which has to be named",
        "register that table by itself first, and then the others",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.append_only and given.sheds_partitions,
        "--append-only is for tables whose rows all stay in the heap: corrections of rows in the lake find them by key",
        "give the table a key, or leave out --heap-retention and --mode tiered",
    ),
    OptionRule[RegisterOptions](
        lambda given: (given.partition_by is not None or given.sort_by is not None) and given.sheds_partitions,
        "--partition-by and --sort-by are for tables whose rows all stay in the heap",
        "use --lake-partition",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.tiered and given.heap_retention is not None,
        "--heap-retention is for mirrored tables",
        "of a tiered table the distance is --lag",
    ),
    OptionRule[RegisterOptions](
        lambda given: (
            not given.tiered and (given.keep_heap or is_given(given.tier_key, given.lag, given.lake_retention))
        ),
        "--tier-key, --lag, --lake-retention and --keep-heap require --mode tiered",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.keep_heap and given.lake_retention is not None,
        "--keep-heap keeps all rows, and --lake-retention lets old ones expire: choose one",
    ),
    OptionRule[RegisterOptions](
        lambda given: (
            not given.sheds_partitions
            and bool(given.premake or given.detach or is_given(given.width, given.drop_grace))
        ),
        "--premake, --width, --drop-grace and --detach require --heap-retention or --mode tiered",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.keep_heap and (given.drop_grace is not None or given.detach),
        "--drop-grace and --detach are for partitions that leave the heap, which --keep-heap keeps",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.lake_partition is not None and not given.sheds_partitions,
        "--lake-partition requires --heap-retention or --mode tiered: a plain mirrored table has no tier key to"
        " partition by",
        "register it without --lake-partition; engines skip its files by the bounds of their columns",
    ),
)


def wish_of(options: RegisterOptions) -> TableWish:
    """All that the tables are to be. Raises UsageError for options that make no sense, alone or together."""
    from mirror_pump.ops.register.table_wish import TableWish

    choices = options.choices()
    require(options, _REGISTER_RULES)
    return TableWish(
        choices, options.retention(), options.profile, options.snapshots(), options.feed(), options.format_version
    )
