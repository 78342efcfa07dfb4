"""The values that all layers share. No I/O; imports nothing of the project but the decoders' column types and
quoting."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType

from decoders.columns import ColumnType
from mirror_pump.database.quoting import identifier, printed_identifier

Lsn = NewType("Lsn", int)
"""A WAL position in bytes from 0/0, as `pg_lsn - '0/0'` gives it."""

SequenceNumber = NewType("SequenceNumber", int)
"""An Iceberg data sequence number: orders commits, and segments within a commit."""

SnapshotId = NewType("SnapshotId", int)
"""An Iceberg snapshot ID. Random: never compare two for order."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_COUNT = re.compile(r"[0-9]{1,18}")

TableId = NewType("TableId", int)
"""The OID of a mirrored relation (the root of a partitioned table)."""


def format_lsn(lsn: int) -> str:
    """Postgres's notation of a WAL position, such as `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """The WAL position that `text` (`16/B374D848`) names; ValueError if it names none."""
    match = _LSN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a WAL position; it looks like 16/B374D848")
    return Lsn((int(match[1], 16) << 32) | int(match[2], 16))


def parse_count(text: str) -> int:
    """The number that `text` has the decimal digits of; ValueError for any other text, unlike `int`, which takes
    signs, blanks, underscores and the digits of other scripts."""
    if _COUNT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a number; it looks like 1000")
    return int(text)


@dataclass(frozen=True, order=True)
class TableName:
    """A relation's schema and name, unquoted, as in pg_class."""

    schema: str
    name: str

    def __str__(self) -> str:
        """The name as Postgres prints it, quoted only where necessary. Commands and SQL accept it as is."""
        return f"{printed_identifier(self.schema)}.{printed_identifier(self.name)}"

    @property
    def shell(self) -> str:
        """The name as an argument of a command that is pasted into a shell."""
        return shlex.quote(str(self))

    @property
    def quoted(self) -> str:
        """The name for use in SQL, with both parts always quoted."""
        return ".".join(identifier(part) for part in (self.schema, self.name))


class TableMode(StrEnum):
    """How a table's rows come into the lake (modak.tables.mode)."""

    MIRRORED = "mirrored"
    """Its rows are copied at registration, and all changes come by the stream. With heap retention, old partitions
    leave the heap."""
    TIERED = "tiered"
    """The lake has none of its rows until a partition leaves the heap, and is copied for that. No stream concerns
    it."""


class TableState(StrEnum):
    """The state of a mirrored table (modak.mirror_tables.state).

    The publish transaction makes all changes of state, with four exceptions: registering inserts the row as COPYING,
    unregistering deletes it from any state, `resync` marks tables as WAITING, and the schema watcher changes FAILED to
    DROPPED.
    `mirror_pump.table_life.TRANSITIONS` lists all changes.
    """

    WAITING = "waiting"
    """The table must be copied again, but cannot be yet. Either it has no key or is not published completely, which
    its owner has to fix (`error` says so), or transactions that wrote to it earlier are still open. No change is
    applied. The table is readable as of its last frontier. The copy starts by itself when the obstacle is gone."""
    COPYING = "copying"
    """Stream changes are applied, but the copy is not complete. Readers see nothing yet; if the table is being copied
    again, they see it as it was before."""
    FILLING = "filling"
    """Every row is in the lake, but rows older than an added column still lack its value. Readers see the table as it
    was before."""
    LIVE = "live"
    """Everything at or below the frontier is in the lake."""
    FAILED = "failed"
    """Mirroring of the table ended with an error. It is readable as of its last frontier. Other tables continue."""
    DROPPED = "dropped"
    """Dropped in Postgres. Readable as of its last frontier until it is unregistered, or until another table of the
    same name is registered."""

    @property
    def has_all_rows(self) -> bool:
        """Whether the lake table that commits build on holds every row as of the frontier, so that no row remains to
        be copied."""
        return self in (TableState.LIVE, TableState.FILLING)

    @property
    def has_ended(self) -> bool:
        """Whether no change of the table will ever be applied again: FAILED or DROPPED."""
        return self in (TableState.FAILED, TableState.DROPPED)


@dataclass(frozen=True)
class Column:
    """One mirrored column: its Postgres side and its lake side."""

    attnum: int
    name: str
    type_oid: int
    type_modifier: int
    """atttypmod; -1 where the type has none."""
    type_sql: str
    """format_type(): `numeric(14,2)`, for messages and `status`."""
    type: ColumnType
    field_id: int
    """The Iceberg field ID. Never changes, never reused."""
    not_null: bool
    chosen: bool = False
    """Whether the user chose the lake type, instead of taking the default mapping."""
    initial: str | None = None
    """The value, as Postgres prints it, of rows that are older than the column. Until they are filled, they are in
    files that lack the column. None: NULL."""
    default: str | None = None
    """The same of a column whose default the lake's schema names, by which readers give older rows the value: files
    that lack the column stay as they are. None: the schema names none."""

    @property
    def older_value(self) -> str | None:
        """The value, as Postgres prints it, of rows in files that lack the column. None: NULL."""
        return self.default if self.initial is None else self.initial


@dataclass(frozen=True)
class ExcludedColumn:
    """A column that the user excluded from the mirror, or that was added to a table that leaves out new ones. The
    stream sends it, and the pump discards it, unless the table has a column list."""

    attnum: int
    name: str


class TierKind(StrEnum):
    """The type of the tier key (modak.tables.tier_key_type). Keys of type smallint and integer count as bigint."""

    BIGINT = "bigint"
    TIMESTAMPTZ = "timestamptz"
    TIMESTAMP = "timestamp"
    DATE = "date"


def tier_kind(column_type: ColumnType) -> TierKind | None:
    """The kind of a tier key with this type in the lake; None if it is not ordered as PostgreSQL orders it, by
    numbers."""
    if column_type.is_whole:
        return TierKind.BIGINT
    return TierKind(column_type.kind.value) if column_type.is_temporal else None


EVERYTHING_IN_HEAP = -(2**63)
"""The lowest cut-line (cutline.tier_key_hi): every row is at or above it, hence in Postgres."""

FIRST_YEAR = {
    TierKind.BIGINT: EVERYTHING_IN_HEAP,
    TierKind.TIMESTAMPTZ: -62_135_596_800_000_000,
    TierKind.TIMESTAMP: -62_135_596_800_000_000,
    TierKind.DATE: -719_162,
}
"""0001-01-01: the first cut-line of a time key, if the table has no partition for older rows. Not every engine has
literals for earlier times."""


@dataclass(frozen=True)
class Tier:
    """The cut-line of a table: rows below the cut-line are in the lake, as corrected by modak.delta; all others are
    in the heap.

    Tier values are integers: bigint keys unchanged, times in microseconds since 1970-01-01 UTC (timestamps as if in
    UTC), dates in days since 1970-01-01, -infinity as -2^63, infinity as 2^63-1.
    """

    column: str
    """The column of the partition key."""
    kind: TierKind
    cut: int = EVERYTHING_IN_HEAP
    """The cut-line."""
    lag: int | None = None
    """How far below the high-water mark rows stay in the heap, in tier values. None: retention was switched off after
    the cut-line had moved; rows below the cut-line stay in the lake."""
    line: int | None = None
    """The retention line: rows below it have expired. None: no row has."""

    @property
    def floor(self) -> int:
        """The lowest tier value that a row can have: no reader finds one below it."""
        return EVERYTHING_IN_HEAP if self.line is None else self.line

    @property
    def moved(self) -> bool:
        """Whether any row may be below the cut-line."""
        return self.cut > FIRST_YEAR[self.kind]


@dataclass(frozen=True)
class PartitionedColumn:
    """One of the values by which the files of a lake table are divided."""

    field_id: int
    """Field ID of the column."""
    transform: str
    """Iceberg's name of the partition transform: `identity`, `hour`, `day`, `month`, `year`, `bucket[N]` or
    `truncate[W]`."""


@dataclass(frozen=True)
class SortedColumn:
    """A column by which the rows of a file are sorted."""

    field_id: int
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class LakePartitioning:
    """How the files of a lake table are divided, each holding rows of one lake partition only, and their rows sorted.

    Iceberg's hidden partitioning: queries name the columns, and engines skip files by them
    (mirror_pump.lake.format.partitioning).
    """

    fields: tuple[PartitionedColumn, ...]
    """None if only rows are sorted. With heap retention, one of the tier key."""
    order: tuple[SortedColumn, ...] = ()
    """How rows are sorted that are written together; a column that is gone is left out. None: they stay as they
    come."""

    @classmethod
    def by(cls, field_id: int, transform: str) -> LakePartitioning:
        """By one column."""
        return cls((PartitionedColumn(field_id, transform),))

    @property
    def or_none(self) -> LakePartitioning | None:
        """The layout; None if it says nothing."""
        return self if self.fields or self.order else None

    @property
    def field_ids(self) -> frozenset[int]:
        """Field IDs of the columns."""
        return frozenset(field.field_id for field in self.fields)


@dataclass(frozen=True)
class SnapshotPlan:
    """How a table is mirrored whose changes are not followed: it is copied, paused, and copied again."""

    every: timedelta | None = None
    """From the end of one copy to the begin of the next. None: copied on request only."""


class FeedMode(StrEnum):
    """What a change feed has (modak.change_feeds.mode)."""

    KEYS = "keys"
    """New rows, and the keys of deleted ones."""
    ROWS = "rows"
    """Old rows, too."""
    TRANSACTIONS = "transactions"
    """The transactions of a mirror, not the changes of a table."""


@dataclass(frozen=True)
class TableFeed:
    """The change feed of a mirrored table, as tasks use it."""

    mode: FeedMode
    location: str
    """Root URI of its files."""
    not_before: Lsn = Lsn(0)
    """It begins at this frontier or a later one: transactions that end before it may lack what the feed needs. 0 once
    it has begun."""


@dataclass(frozen=True)
class MirroredTable:
    """A registered table as the pipeline uses it: read from the catalog, sent to tasks, never mutated."""

    table_id: TableId
    name: TableName
    columns: tuple[Column, ...]
    """In attribute order, which is the order pgoutput sends."""
    key: tuple[str, ...]
    """Names of the key columns, in attribute order: the primary key, or the replica identity index. Empty for a table
    without a key."""
    state: TableState
    start_lsn: Lsn
    """The start LSN: only transactions that end after it concern the table."""
    data_sequence_number: SequenceNumber
    """The start sequence number: the data sequence number of copied files."""
    generation: int
    """Counts restarts of the initial copy. A chunk that was read for an older generation is discarded."""
    lake_table: str
    """The Iceberg table's name within its namespace (the namespace is the Postgres schema)."""
    location: str
    """Root URI of the Iceberg table's files."""
    live_after_lsn: Lsn | None
    """Set once the last chunk is read. The table becomes live when the frontier reaches it."""
    next_field_id: int = 0
    """The lowest field ID that no column ever had. 0: one above the highest in use."""
    shape: str = ""
    """The shape of the table as of the frontier (modak.mirror_shape(), JSON). Empty for a table that was registered
    without one."""
    excluded: tuple[ExcludedColumn, ...] = ()
    """In attribute order."""
    leaves_out_new: bool = False
    """Whether columns that are added in Postgres are excluded: the table was registered with masks or a column
    list."""
    column_list: bool = False
    """Whether the publication lists the columns, so that the server does not send the excluded ones."""
    row_filter: str = ""
    """The SQL condition of the rows that are mirrored, as the server prints it. Empty: all rows. Names in it may be
    older than `columns` in the middle of a session."""
    paused_since: datetime | None = None
    """Since when it is out of the publication on request. None: it is not."""
    snapshots: SnapshotPlan | None = None
    """When it is copied again, if changes between copies are not followed. None: they are."""
    where_different: bool = False
    """Whether its copy replaces only the rows that differ from the heap."""
    dropped_rows: tuple[str, ...] = ()
    """Rows that were dropped with their partitions and may still be in the lake, as JSON
    (mirror_pump.lake.contents.dropped_rows)."""
    kept_ranges: tuple[tuple[int, int], ...] = ()
    """Ranges of tier values, [lower, upper) each, whose partitions their owner took away above the cut-line: the lake
    may have rows there that the heap has not (mirror_pump.lake.contents.kept_ranges)."""
    tier: Tier | None = None
    """The cut-line of a tiered table, and of a mirrored one with heap retention. None: a plain mirror, with all rows
    in the heap."""
    mode: TableMode = TableMode.MIRRORED
    partitioning: LakePartitioning | None = None
    """The layout of the lake table; while it waits to be copied again, that of the copy. Partitions change only by a
    copy. None: it is not partitioned, and its rows stay as they come."""
    feed: TableFeed | None = None
    """Its change feed. None: it has none."""
    format_version: int = 2
    """Of the lake table, as of the last commit that the mirror made or examined."""

    @property
    def awaiting_description(self) -> bool:
        """Whether the table must be copied again, and the copy must wait until the stream describes the table. Until
        then its changes are not applied."""
        return self.state is TableState.WAITING

    @property
    def rests(self) -> bool:
        """Whether its copy is complete, and is as it should be until the next one (`SnapshotPlan`)."""
        return self.snapshots is not None and self.paused_since is not None

    @property
    def keyless(self) -> bool:
        """Whether the table has no key, so that its rows may repeat."""
        return not self.key

    @property
    def whole_rows(self) -> bool:
        """Whether the table has no key and REPLICA IDENTITY FULL: an old row is found in the lake by all its values,
        and an UPDATE or DELETE removes one of the rows that are equal to it."""
        return self.keyless and bool(self.shape) and json.loads(self.shape)["identity"]["setting"] == "f"

    @property
    def append_only(self) -> bool:
        """Whether rows are only inserted: without a replica identity PostgreSQL refuses UPDATE and DELETE."""
        return self.keyless and not self.whole_rows

    @property
    def excluded_places(self) -> tuple[int, ...]:
        """The positions of the excluded columns in the rows that pgoutput sends, counted from 0."""
        if self.column_list:
            return ()
        order = sorted([column.attnum for column in self.columns] + [column.attnum for column in self.excluded])
        return tuple(order.index(column.attnum) for column in self.excluded)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.name in self.key)

    @property
    def tier_column(self) -> Column:
        """The column of the tier key of a table that has one."""
        assert self.tier is not None
        return next(column for column in self.columns if column.name == self.tier.column)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The column list in the publication; empty for all columns."""
        return tuple(column.name for column in self.columns) if self.column_list else ()

    @property
    def masked_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.type.mask is not None)
