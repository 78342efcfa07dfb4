"""The options of a table, in the order in which they are listed: an entry for each (mirror_pump.source.options.
table_option)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mirror_pump.errors import UsageError
from mirror_pump.model import FeedMode, MirroredTable, TableMode
from mirror_pump.runtime.durations import seconds_of
from mirror_pump.source.options.table_option import (
    FOLLOW_NEW,
    SEVERAL_TABLES,
    Alteration,
    ComparedWhen,
    Conflict,
    Panel,
    RegisteredOptions,
    TableOption,
)
from mirror_pump.source.relations.column_texts import list_text, parse_list, parse_masks, parse_types, texts_of_types
from mirror_pump.source.relations.lake_layout import is_present_layout
from mirror_pump.source.relations.partition_choices import (
    layout_text,
    parse_partition_by,
    parse_sort_by,
    partition_choices,
    sort_choices,
)
from mirror_pump.source.relations.tier_keys import DROP_GRACE, NEVER, parse_grace, span_text

if TYPE_CHECKING:
    from mirror_pump.source.retention.partitions import RetentionChoices

_SHORTEST_INTERVAL = timedelta(minutes=1)
"""Of `--snapshot-every`."""
_SHEDDING = ("heap_retention", "mode")
"""Options with which partitions are copied into the lake, and may leave the heap."""
_ONE_TABLE = Conflict(
    (SEVERAL_TABLES,),
    "it is about one table, which has to be named",
    "register that table by itself first, and then the others",
)
_WHOLE_ROWS = Conflict(
    _SHEDDING,
    "rows leave the heap: the lake alone has those of a dropped partition, and what it does not get would be gone for"
    " good",
)
_OTHER_LAYOUT = Conflict(
    _SHEDDING, "the lake table of such a table has partitions by its tier key", "use --lake-partition"
)
_MORE_THAN_STREAM = Conflict(
    (*_SHEDDING, "snapshot_only"), "the rows of such a table change by more than the stream has", "leave out --changes"
)
_JOINING = "tables that match are registered as they are created, each as a plain mirrored table"


def _types(registered: RegisteredOptions, *, masked: bool) -> dict[str, Any]:
    return {
        column.name: column.type
        for column in registered.table.columns
        if column.chosen and (column.type.mask is not None) is masked
    }


def _excluded(registered: RegisteredOptions) -> list[str]:
    """Columns that are left out one by one."""
    table = registered.table
    return [] if table.column_list else [column.name for column in table.excluded]


def _same_excluded(requested: Any, registered: RegisteredOptions) -> bool:
    excluded = set(_excluded(registered))
    # Others may have been added since.
    return excluded == requested or (registered.table.leaves_out_new and excluded > requested)


def _listed(registered: RegisteredOptions) -> list[str]:
    """The columns of a column list."""
    return [*registered.table.column_names, *(registered.also_listed if registered.table.column_list else ())]


def _cutline(registered: RegisteredOptions, mode: TableMode | None = None) -> RetentionChoices | None:
    """What is chosen for a table with a cut-line; None if partitions never leave, and for tables of another mode."""
    table, choices = registered.table, registered.retention
    if choices is None or table.tier is None or mode not in (None, table.mode):
        return None
    return None if table.mode is TableMode.MIRRORED and choices.lag == NEVER else choices


def _span(registered: RegisteredOptions, span: int | None) -> str | None:
    """A distance as it is typed; None for none."""
    tier = registered.table.tier
    return None if tier is None or span is None else span_text(tier.kind, span)


def _heap_retention(registered: RegisteredOptions) -> str | None:
    choices = _cutline(registered, TableMode.MIRRORED)
    return None if choices is None else _span(registered, choices.lag)


def _same_retention(requested: Any, registered: RegisteredOptions) -> bool:
    if requested is None:
        return _heap_retention(registered) is None
    return registered.retention is not None


def _lag(registered: RegisteredOptions) -> str | None:
    choices = _cutline(registered, TableMode.TIERED)
    return None if choices is None or choices.lag in (0, NEVER) else _span(registered, choices.lag)


def _lake_retention(registered: RegisteredOptions) -> str | None:
    choices = _cutline(registered, TableMode.TIERED)
    return None if choices is None else _span(registered, choices.lake_lag)


def _width(registered: RegisteredOptions) -> str | None:
    choices, tier = _cutline(registered), registered.table.tier
    if choices is None or tier is None or not choices.premake or choices.width is None:
        return None
    return choices.width.text(tier.kind)


def _drop_grace(registered: RegisteredOptions) -> timedelta | None:
    choices = _cutline(registered)
    return None if choices is None or choices.keep_heap or choices.drop_grace == DROP_GRACE else choices.drop_grace


def _transform(registered: RegisteredOptions) -> str | None:
    """By what the lake table of a table with a cut-line is partitioned."""
    partitioning = registered.table.partitioning
    return None if registered.retention is None or partitioning is None else partitioning.fields[0].transform


def _lake_partition(registered: RegisteredOptions) -> str | None:
    transform = _transform(registered)
    if transform is None or _cutline(registered) is None:
        return None
    return transform.removeprefix("truncate[").removesuffix("]")


def _same_partition(requested: Any, registered: RegisteredOptions) -> bool:
    return is_present_layout(requested, _transform(registered))


def _seconds_text(duration: timedelta | str | None) -> str | None:
    return duration if duration is None or isinstance(duration, str) else f"{round(duration.total_seconds())}s"


def _parse_feed_mode(text: str) -> FeedMode:
    if text not in (FeedMode.KEYS, FeedMode.ROWS):
        raise UsageError(f"--changes is keys or rows, not {text!r}", "--changes=keys")
    return FeedMode(text)


def _parse_keep(text: str) -> timedelta:
    keep = timedelta(seconds=seconds_of(text, "--keep-changes"))
    if not keep:
        raise UsageError("--keep-changes is longer than that", "without it, changes stay for ever")
    return keep


def _parse_interval(text: str) -> timedelta:
    every = parse_grace(text, "--snapshot-every")
    if every < _SHORTEST_INTERVAL:
        raise UsageError(
            "--snapshot-every is at least a minute", "register the table without --snapshot-only: it is followed"
        )
    return every


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnOption(TableOption):
    """An option about columns, rows or layout of one table, which goes to its ColumnChoices."""

    panel: Panel = Panel.COLUMNS
    part: str = "choices"
    conflicts: tuple[Conflict, ...] = (_ONE_TABLE,)

    def holder(self, registered: RegisteredOptions) -> MirroredTable:
        return registered.table


@dataclass(frozen=True, kw_only=True, eq=False)
class RetentionOption(TableOption):
    """An option of tables with a cut-line, which `policy set` changes later."""

    panel: Panel = Panel.PARTITIONS
    part: str = "retention"
    compared: ComparedWhen = ComparedWhen.NEVER
    alter: Alteration = Alteration.POLICY
    requires: tuple[str, ...] = _SHEDDING

    def holder(self, registered: RegisteredOptions) -> RetentionChoices | None:
        return _cutline(registered)


OPTIONS = (
    ColumnOption(
        key="column",
        meaning="Use another lake type for a column: string, decimal(38,9), variant, ...",
        metavar="NAME=TYPE",
        kind=list[str],
        field="types",
        parse=parse_types,
        text=texts_of_types,
        stored=partial(_types, masked=False),
    ),
    ColumnOption(
        key="exclude_column",
        meaning="Leave out this column, which must not be part of the key",
        metavar="NAME",
        kind=list[str],
        field="excluded",
        parse=frozenset,
        stored=_excluded,
        same=_same_excluded,
        conflicts=(
            _ONE_TABLE,
            Conflict(("columns_only",), "what is not listed is left out anyway", only_typed=True),
        ),
    ),
    ColumnOption(
        key="columns_only",
        meaning=r"The server sends only these columns, also of those to come \[all columns]",
        metavar="NAME,...",
        default="",
        field="listed",
        parse=parse_list,
        text=list_text,
        stored=_listed,
        same=lambda requested, registered: requested == set(_listed(registered)),
        conflicts=(_ONE_TABLE, _WHOLE_ROWS),
    ),
    ColumnOption(
        key="mask",
        meaning="Mask a column: sha256, hmac(env:NAME), hmac(file:PATH), null, prefix(N) or constant(TEXT)",
        metavar="NAME=MASK",
        panel=Panel.FIRST,
        kind=list[str],
        field="masks",
        parse=parse_masks,
        text=texts_of_types,
        stored=partial(_types, masked=True),
        conflicts=(_ONE_TABLE, _WHOLE_ROWS),
    ),
    ColumnOption(
        key="where",
        meaning=r"Mirror only rows that meet an SQL condition \[all rows]",
        metavar="CONDITION",
        panel=Panel.FIRST,
        default="",
        parse=str.strip,
        stored=lambda registered: registered.table.row_filter,
        conflicts=(
            _ONE_TABLE,
            _WHOLE_ROWS,
            Conflict(
                ("append_only",), "the table has no key, and a row filter needs one", "leave it out, or give it a key"
            ),
        ),
    ),
    ColumnOption(
        key="append_only",
        meaning="For a table without a key whose rows are only inserted: PostgreSQL refuses UPDATE and DELETE of it"
        " while it is mirrored",
        kind=bool,
        default=False,
        conflicts=(
            _ONE_TABLE,
            Conflict(
                _SHEDDING,
                "corrections of rows in the lake find them by key",
                "give the table a key, or leave out --heap-retention and --mode tiered",
            ),
        ),
    ),
    ColumnOption(
        key="partition_by",
        meaning="Partition the lake table, by 'day(created_at), bucket(16, tenant), truncate(4, code), region'",
        metavar="FIELDS",
        panel=Panel.FIRST,
        parse=parse_partition_by,
        text=layout_text,
        stored=lambda registered: partition_choices(registered.table),
        alter=Alteration.LAYOUT,
        removal="With --alter: do not partition the lake table any more",
        conflicts=(_ONE_TABLE, _OTHER_LAYOUT),
    ),
    ColumnOption(
        key="sort_by",
        meaning="Sort the rows of the lake's files, by 'tenant, created_at desc nulls last'",
        metavar="COLUMNS",
        panel=Panel.LAKE,
        parse=parse_sort_by,
        text=layout_text,
        stored=lambda registered: sort_choices(registered.table),
        alter=Alteration.LAYOUT,
        removal="With --alter: do not sort the rows of the lake's files any more",
        conflicts=(_ONE_TABLE, _OTHER_LAYOUT),
    ),
    TableOption(
        key="profile",
        meaning=r"Storage profile of the tables \[the default profile]",
        metavar="NAME",
        panel=Panel.LAKE,
        compared=ComparedWhen.IF_GIVEN,
    ),
    TableOption(
        key="format_version",
        meaning="Iceberg's format version of the lake table: deletes are position-delete files or deletion vectors"
        r" \[what init set, else 2]",
        metavar="2|3",
        panel=Panel.LAKE,
        kind=int,
        lowest=2,
        highest=3,
        stored=lambda registered: registered.table.format_version,
        compared=ComparedWhen.IF_GIVEN,
        alter=Alteration.UPGRADE,
        conflicts=(
            Conflict(
                (FOLLOW_NEW,),
                "tables that match get the format version that init has set",
                "`mirror-pump init --format-version 3`, then this command without it",
            ),
        ),
    ),
    TableOption(
        key="changes",
        meaning="Keep a change feed beside the table, an Iceberg table of all its changes: --changes has new rows and"
        " deleted keys, --changes=rows old rows too",
        metavar="keys|rows",
        panel=Panel.FIRST,
        bare="keys",
        part="feed",
        field="mode",
        parse=_parse_feed_mode,
        text=lambda mode: mode.value,
        stored=lambda registered: None if registered.feed is None else registered.feed.mode,
        compared=ComparedWhen.IF_GIVEN,
        alter=Alteration.CHANGES,
        removal="With --alter: end the change feed of the table",
        conflicts=(
            _MORE_THAN_STREAM,
            Conflict(
                (FOLLOW_NEW,),
                _JOINING,
                "register those that are to have a change feed by name, or give them one by --alter",
            ),
        ),
    ),
    TableOption(
        key="keep_changes",
        meaning=r"With --changes: how long changes stay, such as 90d \[for ever]",
        metavar="DURATION",
        panel=Panel.SNAPSHOTS,
        part="feed",
        field="keep",
        parse=_parse_keep,
        text=_seconds_text,
        stored=lambda registered: None if registered.feed is None else registered.feed.keep,
        compared=ComparedWhen.NEVER,
        alter=Alteration.CHANGES,
        requires=("changes",),
    ),
    TableOption(
        key="snapshot_only",
        meaning="Copy the tables and do not follow their changes: resume, or --snapshot-every, has them copied again",
        panel=Panel.SNAPSHOTS,
        kind=bool,
        default=False,
        part="snapshots",
        field="",
        wished=lambda wish: wish.snapshots is not None,
        stored=lambda registered: registered.table.snapshots is not None,
        conflicts=(
            Conflict(
                (*_SHEDDING, FOLLOW_NEW),
                "it is for tables whose rows all stay in the heap, and that are named or match now",
                "leave out --heap-retention, --mode tiered and --follow-new",
            ),
        ),
    ),
    TableOption(
        key="snapshot_every",
        meaning="With --snapshot-only: a running pump copies the tables again this long after their last copy",
        metavar="DURATION",
        panel=Panel.SNAPSHOTS,
        part="snapshots",
        field="every",
        parse=_parse_interval,
        text=_seconds_text,
        stored=lambda registered: (
            None if registered.table.snapshots is None else registered.table.snapshots.every
        ),
        requires=("snapshot_only",),
    ),
    TableOption(
        key="mode",
        meaning="mirrored: copy all rows and follow their changes; tiered: copy partitions when they leave",
        panel=Panel.PARTITIONS,
        kind=TableMode,
        default=TableMode.MIRRORED,
        shown="--mode tiered",
        part="retention",
        parse=TableMode,
        text=lambda mode: mode.value,
        wished=lambda wish: wish.mode,
        stored=lambda registered: registered.table.mode,
        compared=ComparedWhen.ALWAYS,
        lost_by_anew="its partitions come into the lake in another way",
        conflicts=(
            Conflict(("heap_retention",), "of a tiered table the distance is --lag"),
            Conflict((FOLLOW_NEW,), _JOINING, "register tables whose partitions leave by name: each has its own key"),
        ),
    ),
    RetentionOption(
        key="tier_key",
        meaning=r"With --mode tiered: the column by which the table is partitioned \[that column]",
        metavar="COLUMN",
        alter=Alteration.ANEW,
        requires=("mode",),
    ),
    RetentionOption(
        key="lag",
        meaning=r"With --mode tiered: how far behind the newest key partitions leave the heap \[0]",
        metavar="DISTANCE",
        parse=lambda text: text or "0",
        wished=lambda wish: wish.retention.lag if wish.mode is TableMode.TIERED else None,
        stored=_lag,
        requires=("mode",),
    ),
    RetentionOption(
        key="keep_heap",
        meaning="With --mode tiered: partitions stay in the heap, and are in the lake as well",
        kind=bool,
        default=False,
        alter=Alteration.ANEW,
        requires=("mode",),
        conflicts=(
            Conflict(("lake_retention",), "it keeps all rows, and the other lets old ones expire"),
        ),
    ),
    RetentionOption(
        key="lake_retention",
        meaning=r"With --mode tiered: rows this far behind the cut-line expire from the lake \[they stay]",
        metavar="DISTANCE",
        stored=_lake_retention,
        requires=("mode",),
    ),
    RetentionOption(
        key="heap_retention",
        meaning="Drop partitions from the heap this far behind the newest key: 1000000, '90 days', ...",
        metavar="DISTANCE",
        panel=Panel.FIRST,
        field="lag",
        wished=lambda wish: (
            None if wish.retention is None or wish.mode is TableMode.TIERED else wish.retention.lag
        ),
        stored=_heap_retention,
        compared=ComparedWhen.WITH_PART,
        same=_same_retention,
        requires=(),
        lost_by_anew="what its heap holds is copied again",
        conflicts=(
            Conflict(
                (FOLLOW_NEW,), _JOINING, "register tables whose partitions leave by name: each has its own distance"
            ),
        ),
    ),
    RetentionOption(
        key="premake",
        meaning="With --heap-retention or --mode tiered: keep this many future partitions ready",
        metavar="PARTITIONS",
        kind=int,
        default=0,
        lowest=0,
        highest=1000,
    ),
    RetentionOption(
        key="width",
        meaning=r"With --premake: width of a partition, such as 1d or 1mon \[that of the newest partitions]",
        metavar="WIDTH",
        stored=_width,
    ),
    RetentionOption(
        key="drop_grace",
        meaning=r"How long partitions stay in the heap after proof that the lake holds them \[1 hour]",
        metavar="DURATION",
        text=_seconds_text,
        stored=_drop_grace,
        conflicts=(Conflict(("keep_heap",), "it is for partitions that leave the heap"),),
    ),
    RetentionOption(
        key="detach",
        meaning="Detach partitions that leave the heap, which stay as tables, instead of dropping them",
        kind=bool,
        default=False,
        conflicts=(Conflict(("keep_heap",), "it is for partitions that leave the heap"),),
    ),
    RetentionOption(
        key="lake_partition",
        meaning="Partition the lake table by the tier key: hour, day, month, year, of an integer a width such as"
        " 1000000, or `width`: as the heap is",
        metavar="UNIT|WIDTH",
        alter=Alteration.ANEW,
        stored=_lake_partition,
        compared=ComparedWhen.IF_GIVEN,
        same=_same_partition,
        lost_by_anew="what its heap holds is copied again. Rows that have left the heap stay in the former lake table"
        " (docs/retention.md#tables-that-exist)",
        required_since="a plain mirrored table has no tier key to partition by, --partition-by does without one",
    ),
)  # fmt: skip
"""All options of a table."""

BY_KEY = {option.key: option for option in OPTIONS}
