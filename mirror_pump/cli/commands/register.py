"""`mirror-pump register` and `unregister`: add tables to the mirror and remove them from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirror_pump.cli.arguments.completion import other_tables, tables_argument
from mirror_pump.cli.arguments.durations import seconds_of
from mirror_pump.cli.arguments.options import SLOT, STORAGE, OptionRule, command, is_given, require
from mirror_pump.cli.commands.alter import alter_feeds, alter_tables
from mirror_pump.cli.terminal.output import bytes_text, count_text, each_table, remark, report_error, say, write_json
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.errors import TableError, UsageError
from mirror_pump.settings.config import Settings
from mirror_pump.source.relations.table_patterns import EVERY_TABLE, is_pattern, parse_pattern

if TYPE_CHECKING:
    from mirror_pump.model import SnapshotPlan
    from mirror_pump.ops.register.feed_registration import FeedWish
    from mirror_pump.ops.register.lake_partitions import LayoutWish
    from mirror_pump.ops.register.preview import TablePreview
    from mirror_pump.ops.register.registration import RegisterOutcome
    from mirror_pump.ops.register.selection import SelectedTables
    from mirror_pump.source.relations.column_choices import ColumnChoices
    from mirror_pump.source.retention.retention_plan import RetentionWish


class RegisterMode(StrEnum):
    """How a table's rows come into the lake."""

    MIRRORED = "mirrored"
    TIERED = "tiered"


SHORTEST_INTERVAL = timedelta(minutes=1)
"""Of `--snapshot-every`."""


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
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return once the tables are registered; a running pump copies them")
    ] = False
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Use another lake type for a column: string, decimal(38,9), ..."),
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
    no_copy: Annotated[
        bool,
        typer.Option(
            "--no-copy",
            help="Do not copy the rows: mirror those that change from now on. Readers are told that others are missing",
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
        typer.Option(metavar="NAME", help=r"Storage profile of the tables \[that of `profile set-default`]"),
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
            no_copy=self.no_copy,
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
        lambda given: given.changes is not None and (given.sheds_partitions or given.snapshot_only),
        "--changes is for tables whose rows change by the stream alone",
        "leave out --heap-retention, --mode tiered and --snapshot-only",
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
        "mirror-pump init --format-version, then this command without it",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.alter and replace(given, **_ALTERABLE) != RegisterOptions(given.tables),
        "--alter changes --partition-by, --sort-by and --changes alone",
        "to change something else, unregister and register the table: it is copied again",
    ),
    OptionRule[RegisterOptions](
        lambda given: given.follow_new is not None and not given.followed,
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
        lambda given: (
            given.by_pattern
            and bool(
                given.column
                or given.exclude_column
                or given.columns_only
                or given.mask
                or given.where
                or given.append_only
                or given.no_copy
                or given.partition_by is not None
                or given.sort_by is not None
            )
        ),
        "--column, --mask, --exclude-column, --columns-only, --where, --append-only, --no-copy, --partition-by and"
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
        lambda given: given.no_copy and (given.sheds_partitions or given.append_only or given.snapshot_only),
        "--no-copy is for tables with a key whose rows all stay in the heap, and whose changes are followed",
        "leave out --heap-retention, --mode tiered, --append-only and --snapshot-only",
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


def require_valid(options: RegisterOptions) -> None:
    """Raises UsageError for options that make no sense together."""
    require(options, _REGISTER_RULES)


@dataclass(frozen=True)
class UnregisterOptions:
    """The options of `unregister` about tables, as typed."""

    tables: Annotated[list[str] | None, tables_argument("Names as Postgres reads them", show_default=False)] = None
    drop_lake: Annotated[bool, typer.Option("--drop-lake", help="Also drop the Iceberg table and delete its files")] = (
        False
    )
    keep_lake: Annotated[
        bool,
        typer.Option(
            "--keep-lake", help="Keep the Iceberg table, which has the only copy of rows dropped from the heap"
        ),
    ] = False
    restore_heap: Annotated[
        bool,
        typer.Option("--restore-heap", help="First bring rows that only the lake has back into partitions"),
    ] = False
    abort: Annotated[
        bool,
        typer.Option(
            "--abort", help="With --restore-heap: remove what an unfinished one has copied, and stay registered"
        ),
    ] = False
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="With --drop-lake and --former: lose rows that only the lake has; with --restore-heap: columns"
            " that were left out get their defaults",
        ),
    ] = False
    former_registrations: Annotated[
        bool, typer.Option("--former", help="Only delete the files of registrations of that name that have ended")
    ] = False
    show: Annotated[bool, typer.Option("--list", help="Only show where registrations that have ended left files")] = (
        False
    )
    as_json: Annotated[bool, typer.Option("--json", help="With --list: JSON, as docs/cli-json.md describes it")] = False


_UNREGISTER_RULES = (
    OptionRule[UnregisterOptions](
        lambda given: sum((given.drop_lake, given.keep_lake, given.former_registrations, given.show)) > 1,
        "--drop-lake, --keep-lake, --former and --list exclude each other",
    ),
    OptionRule[UnregisterOptions](lambda given: given.as_json and not given.show, "--json is for --list"),
    OptionRule[UnregisterOptions](
        lambda given: given.restore_heap and (given.former_registrations or given.show),
        "--restore-heap is for tables that are registered: --former and --list exclude it",
    ),
    OptionRule[UnregisterOptions](
        lambda given: given.abort and (not given.restore_heap or given.drop_lake or given.keep_lake),
        "--abort is for --restore-heap, without --drop-lake and --keep-lake",
    ),
    OptionRule[UnregisterOptions](lambda given: bool(given.tables) and given.show, "--list takes no TABLE"),
    OptionRule[UnregisterOptions](lambda given: not given.tables and not given.show, "name a TABLE, or give --list"),
)


def add(app: typer.Typer) -> None:
    fields = (*SLOT, "copy_workers", "copy_chunk_bytes", "copy_rate_bytes", "lock_timeout", "master", *STORAGE)
    command(app, "register", fields, bare={"--changes": "keys"})(register)
    command(app, "unregister", (*SLOT, *STORAGE))(unregister)


def register(settings: Settings, options: RegisterOptions) -> int:
    """Add tables to the mirror and copy their rows while writes continue.

    A table needs a primary key or a replica identity index. If register is killed, run it again: it resumes, and
    does not repeat finished chunks. If a table is refused, the others still proceed; exit code 1 reports it.

    With a pattern, or --all, the tables that match now are registered, small ones first; run it again for those that
    are created later. Partitions come with their root. --dry-run shows their sizes, and which would be refused.

    With --heap-retention, old partitions of a range-partitioned table are dropped from the heap once the lake
    provably holds them. With --mode tiered the same happens without replication: partitions are copied when they
    leave. docs/retention.md and docs/tiered.md explain how their rows are then read and corrected. The command
    first shows which partitions leave and when, and asks for confirmation.

    With --changes, every change is kept, too, in an Iceberg table beside the mirrored one (docs/changes.md).

    With --alter, a mirrored table gets another layout, or a change feed, while the pump runs. Another order applies
    to the next files, and to others as maintenance rewrites them. Other partitions have the table copied again;
    readers keep what they have until it is complete.
    """
    from mirror_pump.ops.register.preview import estimate, preview
    from mirror_pump.ops.register.selection import follow, select_tables
    from mirror_pump.ops.setup.stored_settings import complete

    choices = options.choices()
    require_valid(options)
    retention = options.retention()
    snapshots = options.snapshots()
    feed = options.feed()
    settings = complete(settings)
    if options.alter:
        return _alter(settings, options)
    selected = select_tables(settings, options.names, options.exclude or ())
    unmatched = _tell_left_out(selected, follows=bool(options.follow_new))
    if options.dry_run:
        previews = preview(settings, selected.names, choices, retention)
        refused = _show(previews)
        for line in estimate(settings, previews):
            say(line)
        return refused or unmatched
    if retention is not None and not options.keep_heap and not options.yes:
        previews = preview(settings, selected.names, choices, retention)
        if any(table.retention is not None for table in previews):
            _show(previews)
            _confirm()
    if options.follow_new is not None:
        follow(settings, options.followed, options.exclude or (), options.profile, ends=not options.follow_new)
    outcomes = _carry_out(settings, selected.names, options, choices, retention, snapshots, feed)
    were_live = [outcome for outcome in outcomes if outcome.was_live and outcome.error is None]
    for outcome in outcomes:
        if not (selected.by_pattern and outcome in were_live):
            _report(outcome, options)
    if selected.by_pattern and were_live:
        remark(f"{count_text(len(were_live))} tables are registered already, and live: nothing was copied")
    return 1 if any(outcome.error is not None for outcome in outcomes) else unmatched


def _alter(settings: Settings, options: RegisterOptions) -> int:
    if options.changes_feed:
        return alter_feeds(settings, options.names, options.feed())
    return alter_tables(
        settings,
        options.names,
        options.layout(),
        wait=not options.no_wait,
        dry_run=options.dry_run,
        as_json=options.as_json,
    )


def _carry_out(
    settings: Settings,
    names: Sequence[str],
    options: RegisterOptions,
    choices: ColumnChoices,
    retention: RetentionWish | None,
    snapshots: SnapshotPlan | None,
    feed: FeedWish | None,
) -> Sequence[RegisterOutcome]:
    """Registers the tables, and waits for their copies unless --no-wait is given."""
    from mirror_pump.ops.register.registration import register as put_under_mirror
    from mirror_pump.ops.resync.snapshots import rest

    with copy_progress() as show:
        outcomes = put_under_mirror(
            settings,
            names,
            not options.no_wait,
            show,
            choices=choices,
            retention=retention,
            profile=options.profile,
            snapshots=snapshots,
            on_refused=_report_failure,
            feed=feed,
            format_version=options.format_version,
        )
    if snapshots is not None and not options.no_wait:
        rest(settings)
    return outcomes


def unregister(settings: Settings, options: UnregisterOptions) -> int:
    """Remove tables from the mirror. Their lake tables stay as of their last frontier unless --drop-lake is given.

    A table whose partitions were dropped from the heap requires --restore-heap, which brings their rows back and
    can be interrupted and run again, or --keep-lake, or --drop-lake with --yes. Files that stay are listed by
    --list until --former deletes them, or --drop-lake if no table of that name is registered; both want --yes for
    the only copy of rows. If a table is refused, the others still proceed; exit code 1 reports it.
    """
    from mirror_pump.ops.setup.stored_settings import complete

    require(options, _UNREGISTER_RULES)
    settings = complete(settings)
    if options.show:
        return _list_former(settings, as_json=options.as_json)
    return int(
        each_table(
            options.tables or [], lambda table: say(_unregister_one(settings, table, options)), "not unregistered"
        )
    )


def _unregister_one(settings: Settings, name: str, options: UnregisterOptions) -> str:
    """Returns what was done."""
    from mirror_pump.ops.register.unregistration import abort_restore, unregister_former
    from mirror_pump.ops.register.unregistration import unregister as take_out

    if options.former_registrations:
        return unregister_former(settings, name, yes=options.yes)
    if options.abort:
        return abort_restore(settings, name)
    return take_out(
        settings,
        name,
        options.drop_lake,
        options.keep_lake,
        restore_heap=options.restore_heap,
        yes=options.yes,
        report=lambda _step, text: remark(f"{name}: {text}"),
    )


def _tell_left_out(selected: SelectedTables, *, follows: bool) -> int:
    """Reports patterns that mean nothing, and tables that match and cannot be mirrored. Returns the exit code.
    `follows`: tables that match may come later."""
    for name, reason in selected.unfit.items():
        remark(f"{name}: left out: {reason}")
    for pattern in selected.unmatched:
        if follows:
            remark(f"{pattern}: no table matches yet")
            continue
        report_error(TableError("no table matches", "check it with psql's \\dt"), "not registered", pattern)
    return 1 if selected.unmatched and not follows else 0


def _report(outcome: RegisterOutcome, options: RegisterOptions) -> None:
    from mirror_pump.ops.register.preview import as_text
    from mirror_pump.source.relations.column_choices import decimal_option

    if outcome.error is not None:
        # What was refused has been reported before the copies.
        if outcome.registered:
            _report_failure(outcome)
    elif outcome.was_live:
        say(
            f"{outcome.table}: is registered already{'' if options.snapshot_only else ', and live'}: nothing was copied"
        )
    elif options.tiered:
        say(f"{outcome.table}: live; its partitions are copied into the lake when they are due")
    elif options.no_wait:
        say(f"{outcome.table}: registered")
    elif options.snapshot_only:
        say(f"{outcome.table}: copied; its changes are not followed")
    else:
        say(f"{outcome.table}: live" + (f", {count_text(outcome.rows)} rows copied" if outcome.rows else ""))
    if options.no_copy and outcome.registered:
        remark(f"{outcome.table}: rows that do not change from now on are not in the lake", "warning")
    if options.append_only and outcome.registered:
        remark(f"{outcome.table}: PostgreSQL refuses UPDATE and DELETE of it until it is unregistered", "warning")
    if outcome.whole_rows:
        remark(
            f"{outcome.table}: has no key, so its rows are found in the lake by all their values: an UPDATE or DELETE"
            " costs more than with one",
            "warning",
            "nothing; with a primary key it is copied again and is like any other table",
        )
    if outcome.generated_left_out:
        left_out = ", ".join(outcome.generated_left_out)
        remark(
            f"{outcome.table}: generated columns left out: {left_out}"
            " (PostgreSQL publishes stored ones since version 18, virtual ones never)",
            "warning",
        )
    for number in outcome.numbers_as_text:
        remark(
            f"{outcome.table}: {as_text(number)}",
            "warning",
            f"nothing, if queries cast it; else unregister the table, and register it with {decimal_option(number)}",
        )


def _report_failure(outcome: RegisterOutcome) -> None:
    assert outcome.error is not None
    happened = "copy failed" if outcome.registered else "not registered"
    report_error(outcome.error, happened, outcome.table)


def _list_former(settings: Settings, *, as_json: bool) -> int:
    from mirror_pump.ops.register.unregistration import list_former

    registrations = list_former(settings)
    if as_json:
        write_json([registration.to_json() for registration in registrations])
        return 0
    for registration in registrations:
        former_location = registration.former_location
        ended = f"{former_location.ended_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        say(
            f"{former_location.table}: {count_text(registration.files)} files, {bytes_text(registration.size_bytes)},"
            f" ended {ended}"
        )
        say(f"  {former_location.location}" + (", the only copy of some rows" if former_location.only_copy else ""))
    if not registrations:
        remark("no registration that has ended left files")
    return 0


def _show(previews: Sequence[TablePreview]) -> int:
    """Prints the previews. Returns the exit code: 1 if a table would be refused."""
    for table in previews:
        for line in table.lines():
            say(line)
        if table.error is not None:
            report_error(table.error, "would not be registered", table.table)
    return 1 if any(table.error is not None for table in previews) else 0


def _confirm() -> None:
    """Asks for confirmation. Raises TableError if refused, UsageError without a terminal to ask on."""
    if not sys.stdin.isatty():
        raise UsageError(
            "partitions are about to leave the heap, and there is no terminal to ask for confirmation",
            "check with --dry-run, then give --yes",
        )
    if not typer.confirm("Register?", default=False, err=True):
        raise TableError("nothing was registered")
