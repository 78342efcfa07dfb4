"""The values every layer speaks in. No I/O; imports nothing of the project but the decoders' column types.

Words: F is the frontier, L0 the WAL position from which a table's changes are in the slot, s0 the Iceberg
sequence number of a table's start snapshot, S the published lake snapshot (design sections 1, 4 and 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from decoders.columns import ColumnType
from mirror_pump.quoting import identifier, printed_identifier

Lsn = NewType("Lsn", int)
"""A WAL position in bytes from 0/0, as `pg_lsn - '0/0'` gives it."""

SequenceNumber = NewType("SequenceNumber", int)
"""An Iceberg data sequence number: orders commits, and segments within a commit."""

SnapshotId = NewType("SnapshotId", int)
"""An Iceberg snapshot ID. Random: never compare two for order."""

TableId = NewType("TableId", int)
"""The OID of a mirrored relation (the root of a partitioned table)."""


def format_lsn(lsn: int) -> str:
    """Postgres's notation of a WAL position, such as `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """The WAL position that `text` (`16/B374D848`) names; ValueError if it names none."""
    high, slash, low = text.strip().partition("/")
    if not slash or len(high) > 8 or len(low) > 8:
        raise ValueError(f"{text!r} is not a WAL position; it looks like 16/B374D848")
    return Lsn((int(high, 16) << 32) | int(low, 16))


@dataclass(frozen=True, order=True)
class TableName:
    """A relation's schema and name as they stand in pg_class, unquoted."""

    schema: str
    name: str

    def __str__(self) -> str:
        """As Postgres prints it, in quotes where they are needed: commands and SQL take it as it stands."""
        return f"{printed_identifier(self.schema)}.{printed_identifier(self.name)}"

    @property
    def quoted(self) -> str:
        """The name as SQL wants it, with both parts quoted whether they need it or not."""
        return ".".join(identifier(part) for part in (self.schema, self.name))


class TableState(StrEnum):
    """Where a mirrored table stands (modak.mirror_tables.state)."""

    COPYING = "copying"
    """Its stream changes are applied, its initial copy is not complete: readers are promised nothing yet."""
    FILLING = "filling"
    """Every row is in the lake, but rows from before a column was added still lack its value. Readers see the table as
    it was before."""
    LIVE = "live"
    """Everything at or below F is in the lake."""
    FAILED = "failed"
    """Set aside with an error; readable as of its last F; other tables go on."""

    @property
    def has_all_rows(self) -> bool:
        """Whether the lake table that commits build on holds every row as of F: no row is still to be copied."""
        return self in (TableState.LIVE, TableState.FILLING)


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
    """The lake type is the user's choice, not the mapping's."""
    initial: str | None = None
    """What rows have that existed before the column did, as Postgres prints it: they are in files that lack the column,
    until these are filled. None: NULL."""


@dataclass(frozen=True)
class ExcludedColumn:
    """A column that the user left out of the mirror: it is sent, and thrown away."""

    attnum: int
    name: str


class TierKind(StrEnum):
    """What the tier key is (modak.tables.tier_key_type); smallint and integer keys count as bigint."""

    BIGINT = "bigint"
    TIMESTAMPTZ = "timestamptz"
    TIMESTAMP = "timestamp"
    DATE = "date"


EVERYTHING_IN_HEAP = -(2**63)
"""T (cutline.tier_key_hi) of a table whose every row is at or above it, hence in Postgres."""

FIRST_YEAR = {
    TierKind.BIGINT: EVERYTHING_IN_HEAP,
    TierKind.TIMESTAMPTZ: -62_135_596_800_000_000,
    TierKind.TIMESTAMP: -62_135_596_800_000_000,
    TierKind.DATE: -719_162,
}
"""0001-01-01, where T of a time key begins if the table has no partition for anything older: not every engine can write
down what is before."""


@dataclass(frozen=True)
class Tier:
    """Heap retention of a table: rows below the cut-line T are the lake's and the delta's, the others the heap's.

    Tier values are integers: bigint keys as they are, times as microseconds since 1970-01-01 UTC (a timestamp: as if it
    were UTC), dates as days since then, -infinity -2^63, infinity 2^63-1.
    """

    column: str
    """The partition key's column."""
    kind: TierKind
    cut: int = EVERYTHING_IN_HEAP
    """T."""
    lag: int | None = None
    """How far below the high-water mark rows stay in the heap, in tier values. None: retention was switched off after
    T had moved; what is below T stays the lake's."""

    @property
    def moved(self) -> bool:
        """Whether any row may be below T."""
        return self.cut > FIRST_YEAR[self.kind]


@dataclass(frozen=True)
class MirroredTable:
    """A registered table as the pipeline needs it: read from the catalog, sent to tasks, never mutated."""

    table_id: TableId
    name: TableName
    columns: tuple[Column, ...]
    """In attribute order, which is the order pgoutput sends."""
    key: tuple[str, ...]
    """Names of the key columns, in attribute order: the primary key, or the replica identity index."""
    state: TableState
    start_lsn: Lsn
    """L0: only transactions that end after it concern the table."""
    data_sequence_number: SequenceNumber
    """s0: the sequence number that copied files are born at."""
    generation: int
    """Counts restarts of the initial copy; a chunk read for an older generation is thrown away."""
    lake_table: str
    """The Iceberg table's name within its namespace (the namespace is the Postgres schema)."""
    location: str
    """Root URI of the Iceberg table's files."""
    live_after_lsn: Lsn | None
    """Set once the last chunk is read: the table is live when F reaches it."""
    next_field_id: int = 0
    """The lowest field ID that no column ever had; 0: one above the highest in use."""
    shape: str = ""
    """What the table is like as of F (modak.mirror_shape(), JSON); empty for one that was registered without."""
    awaiting_description: bool = False
    """It has to be copied again, and cannot be before the stream says what it is like: until then it is not applied."""
    excluded: tuple[ExcludedColumn, ...] = ()
    """In attribute order."""
    dropped_rows: tuple[str, ...] = ()
    """Rows that went with their partitions, and may still be in the lake (mirror_pump.lake.contents.dropped_rows), as
    JSON."""
    tier: Tier | None = None
    """Heap retention; None: a plain mirror, all of whose rows are in the heap."""

    @property
    def excluded_places(self) -> tuple[int, ...]:
        """Where the excluded columns are in the rows that pgoutput sends, counted from 0."""
        order = sorted([column.attnum for column in self.columns] + [one.attnum for one in self.excluded])
        return tuple(order.index(one.attnum) for one in self.excluded)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.name in self.key)
