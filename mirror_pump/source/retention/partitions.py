"""Partitions of tables with heap retention, in the catalog and in the heap: their bounds, and the steps to drop them.

Every step is one statement or one transaction. Lock requests have a time limit, because other sessions queue behind a
waiting request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from mirror_pump.database.errors import is_connection_loss
from mirror_pump.errors import TableError, one_line_of
from mirror_pump.model import EVERYTHING_IN_HEAP, Lsn, MirroredTable, TableId, TableMode, TableName, Tier, TierKind
from mirror_pump.operation_life import OperationPhase
from mirror_pump.partition_life import TAKEN, PartitionState, Refused, StepResult
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, as_source_error, limited
from mirror_pump.source.relations.tier_keys import DROP_GRACE, END, NEVER, now_value
from mirror_pump.source.relations.widths import Width
from mirror_pump.source.rows import TypedRow, fetch_row, fetch_rows
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("retention")

LOCKED_TIMEOUT = "50ms"
"""How long a step waits for each further lock once it holds ACCESS EXCLUSIVE on the table (as in modak.drop_proven)."""
DROP_TIMEOUT = "1s"
"""How long the statement that drops a partition may take. It locks the table exclusively. If a foreign key refers to
the table, Postgres searches the referring table during that time."""
LOOK_TIMEOUT = "10min"
"""How long any statement of the pump may take. The longest ones read a whole partition: to find its newest key, if no
index begins with the tier key, or to compare it with the lake for a proof."""
FIRST_PAUSE = 0.5
"""Seconds before a refused step is tried again."""


@dataclass(frozen=True)
class Partition(TypedRow):
    """A partition as the catalog knows it. A row of the query `partitions`."""

    partition_id: str
    relation_id: int | None
    lo: int
    hi: int
    """Tier values; exclusive."""
    state: PartitionState
    sealed_lsn: Lsn | None
    truncated: bool
    """The lake may have rows of its range that it has not: it was truncated or attached below the cut-line, or made
    where the lake keeps rows (mirror_pump.lake.contents.kept_ranges)."""
    reason: str | None
    attempts: int
    name: TableName | None
    """None: the partition is no longer attached."""
    present_lo: int | None
    """The present bounds in Postgres; None as `name`."""
    present_hi: int | None
    captured: bool | None
    """Whether changes of the partition are being captured; None as `name`."""
    corrected: bool | None
    """Whether changes of the partition become corrections, without interruption since the cut-line has passed it; None
    as `name`."""
    disproved: bool
    """Whether a comparison with the lake found a difference, less than a day ago."""
    proven_for: float | None = None
    """Seconds since a comparison last proved that the lake holds all rows of the partition."""
    chunks_total: int = 0
    """Of a tiered table's sealed partition: the chunks in which it is copied. 0 until that is planned."""
    chunks_done: int = 0
    altered: bool = False
    """Whether it was altered since it was last proven that the lake holds it."""

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The present bounds in Postgres."""
        return None if self.present_lo is None or self.present_hi is None else (self.present_lo, self.present_hi)

    def grace_left(self, grace: timedelta) -> timedelta:
        """How much longer the partition stays before it may be dropped, if the lake holds it."""
        return grace - timedelta(seconds=self.proven_for or 0.0)

    @property
    def attached_late(self) -> bool:
        """Whether the partition was attached below the cut-line, and the lake may lack rows that it held then."""
        return self.state is PartitionState.TIERING and self.sealed_lsn is None


class CutlineWrong(TableError):
    """The cut-line is beyond a partition that it has not passed: the catalog was changed by hand, or damaged."""


@dataclass(frozen=True)
class Attached(TypedRow):
    """A partition as it is in the heap. A row of the query `attached`."""

    relation_id: int
    name: TableName
    lo: int
    hi: int
    is_default: bool
    is_table: bool
    routes: bool
    """Whether this is a DEFAULT partition with our trigger, which routes late rows."""


@dataclass(frozen=True)
class RetentionChoices:
    """The user's choices for one table, and the state of its retention."""

    premake: int
    """The number of partitions to keep ready above the newest key."""
    width: Width | None
    """The width of each new partition."""
    drop_grace: timedelta
    """How long a partition stays after the proof that the lake holds it."""
    detach: bool
    """Whether partitions are detached instead of dropped."""
    stopped: str | None
    """The reason why retention does not continue by itself, if any."""
    not_made: str | None
    """The reason why a partition could not be created ahead, if any."""
    live: bool
    lag: int
    cut: int
    """The cut-line."""
    applied: Lsn
    """The frontier."""
    keep_heap: bool = False
    """Whether partitions stay in the heap, although the lake holds them."""
    lake_lag: int | None = None
    """How far behind the cut-line rows stay in the lake. None: forever."""
    not_expired: str | None = None
    """The reason why the retention line does not move, although it is due, if any."""


def read_choices(connection: PgConnection, table_id: TableId) -> RetentionChoices | None:
    """The table's choices. None for a table without heap retention, and for one that is gone."""
    row = fetch_row(connection, _ChoicesRow, _SQL["choices"], {"table_id": table_id})
    if row is None or row.retention is None:
        return None
    stored = row.retention
    return RetentionChoices(
        int(stored.get("premake", 0)),
        Width.from_json(stored.get("width")),
        timedelta(seconds=float(stored.get("drop_grace", DROP_GRACE.total_seconds()))),
        bool(stored.get("detach", False)),
        stored.get("stopped"),
        row.not_made,
        row.live,
        NEVER if row.lag is None else row.lag,
        row.cut,
        row.applied,
        row.keep_heap,
        row.lake_lag,
        row.not_expired,
    )


@dataclass(frozen=True)
class _ChoicesRow:
    """A row of the query `choices`."""

    retention: dict[str, Any] | None
    """The user's choices; None for a table without heap retention."""
    live: bool
    lag: int | None
    """None: no partition leaves the heap."""
    keep_heap: bool
    lake_lag: int | None
    cut: int
    applied: Lsn
    not_made: str | None
    not_expired: str | None


def made_default(connection: PgConnection, table_id: TableId) -> bool:
    """Whether the mirror created the table's DEFAULT partition."""
    row = fetch_row(connection, _ChoicesRow, _SQL["choices"], {"table_id": table_id})
    return row is not None and row.retention is not None and bool(row.retention.get("own_default"))


def retained_tables(
    connection: PgConnection, slot: str, table_ids: Sequence[TableId] | None = None
) -> tuple[TableId, ...]:
    """The slot's tables with heap retention, or those of `table_ids` with it."""
    rows = connection.execute(_SQL["tables"], {"slot": slot, "table_ids": None if table_ids is None else [*table_ids]})
    return tuple(TableId(table_id) for (table_id,) in rows.fetchall())


def premade_tables(connection: PgConnection, slot: str) -> tuple[TableId, ...]:
    """The slot's live tables that get partitions ahead of their newest key."""
    rows = connection.execute(_SQL["premade_tables"], {"slot": slot}).fetchall()
    return tuple(TableId(table_id) for (table_id,) in rows)


def require_passed(table: MirroredTable, partitions: Sequence[Partition], cut: int) -> None:
    """Raises CutlineWrong if a partition is attached below the cut-line, and waits for it by its state: its changes
    would be in no lake, and are no corrections. `partitions` have to be read after `cut`."""
    for partition in partitions:
        bounds = partition.bounds
        if partition.state.is_above_cutline and bounds is not None and max(partition.hi, bounds[1]) <= cut:
            raise CutlineWrong(
                f"modak.cutline has cut-line {cut} for {table.name}, which has not passed {partition.name} yet",
                "Restore its row of modak.cutline from a backup, and let no partition be dropped until then. Then"
                f" `mirror-pump resync {table.name.shell}`",
            )


def read_partitions(connection: PgConnection, table_id: TableId) -> tuple[Partition, ...]:
    """The partitions that are not dropped yet, the oldest first."""
    return tuple(fetch_rows(connection, Partition, _SQL["partitions"], {"table_id": table_id}))


def read_attached(connection: PgConnection, table_id: TableId) -> tuple[Attached, ...]:
    """The partitions in the heap, ordered by their bounds."""
    return tuple(fetch_rows(connection, Attached, _SQL["attached"], {"table_id": table_id}))


NOT_SEEN = "its partitions cannot be examined: {}"
"""The reason that a table shows while its partitions cannot be read."""


def refusal(error: psycopg.Error, lock_timeout: str = LOCK_TIMEOUT) -> str:
    """Why Postgres refused a step, as text. Raises ConnectionLost if the connection broke instead."""
    if is_connection_loss(error):
        raise as_source_error(error, "changing a partition") from error
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return f"other sessions held the locks that it needs for longer than {lock_timeout}"
    detail = error.diag.message_detail
    return one_line_of(error.diag.message_primary or error) + (f" ({one_line_of(detail)})" if detail else "")


def attempt(
    connection: PgConnection,
    statement: str,
    parameters: Mapping[str, Any],
    *,
    lock_timeout: str = LOCK_TIMEOUT,
    drop_timeout: str = DROP_TIMEOUT,
) -> StepResult:
    """Takes one of the steps whose statement returns NULL if it was taken, and else the reason why not."""
    try:
        with limited(connection, lock_timeout):
            if statement == "drop":
                connection.execute("SELECT set_config('statement_timeout', %s, true)", (drop_timeout,))
            row = connection.execute(_SQL[statement], parameters).fetchone()
            assert row is not None
            if row[0] is not None:
                # The transaction commits: changes before the refusal are part of the step.
                return Refused(str(row[0]))
    except psycopg.Error as error:
        if statement == "drop" and isinstance(error, psycopg.errors.QueryCanceled):
            return Refused(
                f"it takes longer than {drop_timeout}, while the table is locked: a foreign key that refers to the"
                " table needs an index on its columns, or has to be dropped"
            )
        return Refused(refusal(error, lock_timeout))
    return TAKEN


def bounded(connection: PgConnection) -> None:
    """Limits all further statements of the session, or of its open transaction if it has one: to LOCK_TIMEOUT for each
    lock, and to LOOK_TIMEOUT altogether. Even the bounds of partitions cannot be read while a session alters one."""
    inside = connection.info.transaction_status is not TransactionStatus.IDLE
    connection.execute(
        "SELECT set_config('lock_timeout', %s, %s), set_config('statement_timeout', %s, %s)",
        (LOCK_TIMEOUT, inside, LOOK_TIMEOUT, inside),
    )


def run(connection: PgConnection, statement: str, parameters: Mapping[str, Any]) -> int:
    """One of the statements that only change the catalog; returns how many rows it touched."""
    with limited(connection):
        return connection.execute(_SQL[statement], parameters).rowcount


class Noted(StrEnum):
    """What is noted in the catalog if it does not happen: keys of mirror_tables.retention."""

    NOT_MADE = "not_made"
    """A future partition cannot be created ahead, or not soon enough."""
    NOT_SEEN = "not_seen"
    """The partitions cannot be looked at."""
    NOT_EXPIRED = "not_expired"
    """The retention line is due and does not move."""


def note(connection: PgConnection, table_id: TableId, key: Noted, reason: str | None) -> None:
    """Stores why something does not happen, for `status`; None if nothing is in the way."""
    run(connection, "note", {"table_id": table_id, "key": key, "reason": reason})


def require_registered(connection: PgConnection, table: MirroredTable) -> None:
    """Keeps the registration until the end of the open transaction. Raises TableError if it has ended: what is changed
    from then on would concern a table that is not mirrored, or another registration of it."""
    if connection.execute(_SQL["registered"], {"table_id": table.table_id, "start_lsn": table.start_lsn}).rowcount != 1:
        raise TableError(f"{table.name} is not registered any more, or was copied or registered again")


def enter(connection: PgConnection, table: MirroredTable, partition: Attached) -> None:
    """Adds a partition above the cut-line to the catalog, in the caller's transaction. Raises TableError if the
    registration has ended."""
    require_registered(connection, table)
    connection.execute(
        _SQL["enter"],
        {
            "table_id": table.table_id,
            "name": str(partition.name),
            "relation_id": partition.relation_id,
            "lo": partition.lo,
            "hi": partition.hi,
        },
    )


def take_late(connection: PgConnection, table: MirroredTable, partition: Attached) -> None:
    """Adds a partition that was attached below the cut-line, and makes its later changes corrections, in the caller's
    transaction. Raises as `enter`."""
    require_registered(connection, table)
    connection.execute(f"LOCK TABLE ONLY {partition.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
    connection.execute(_SQL["take_late"], {"table_id": table.table_id, "relation_id": partition.relation_id})


def correct_late(connection: PgConnection, table: MirroredTable, partition: Partition, most_bytes: int) -> bool:
    """Makes the rows that such a partition held then corrections, if it has at most so many bytes. Returns whether it
    did. Raises as `enter`."""
    where = {"table_id": table.table_id, "partition_id": partition.partition_id, "most_bytes": most_bytes}
    with limited(connection):
        require_registered(connection, table)
        row = connection.execute(_SQL["correct_late"], where).fetchone()
    return row is not None and bool(row[0])


def reader_in_the_way(connection: PgConnection, table_id: TableId, cut: int) -> str | None:
    """The reader because of which the cut-line cannot move to `cut` now: its pin, or the session that is creating one.
    None if the cut-line can move."""
    row = connection.execute(_SQL["reader_in_the_way"], {"table_id": table_id, "cut": cut}).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def due_retention_line(connection: PgConnection, table_id: TableId) -> int | None:
    """Where the table's retention line should be, a tier value; None if it need not move."""
    row = connection.execute(_SQL["due_retention_line"], {"table_id": table_id}).fetchone()
    return None if row is None else row[0]


def lake_locations(connection: PgConnection, table_id: TableId) -> frozenset[str]:
    """The metadata files of the published snapshot and of the lake table, one file or two. TableError if the catalog
    lacks one of them."""
    row = connection.execute(_SQL["lake_locations"], {"table_id": table_id}).fetchone()
    if row is None or None in row:
        raise TableError("its lake table is not in the Iceberg catalog any more", "unregister and register the table")
    return frozenset(str(location) for location in row)


def install(connection: PgConnection, table: MirroredTable, relation_id: int, partition_id: str, kind: str) -> None:
    """Installs a partition's triggers, in the caller's transaction. `kind` is `capture`, `cold` or `default`. Raises
    TableError if the registration has ended: they would never be removed, and they fail without it."""
    require_registered(connection, table)
    connection.execute(
        _SQL["triggers"],
        {"table_id": table.table_id, "relation_id": relation_id, "partition_id": partition_id, "kind": kind},
    )


def journal(
    connection: PgConnection,
    table: MirroredTable,
    phase: OperationPhase,
    details: Mapping[str, Any],
    snapshot_id: int | None = None,
) -> None:
    """Adds a row to modak.op_log about a step that was taken or has finally failed."""
    kind = "tiering" if table.mode is TableMode.TIERED else "retention"
    connection.execute(
        _SQL["journal"],
        {
            "table_id": table.table_id,
            "kind": kind,
            "phase": phase,
            "snapshot_id": snapshot_id,
            "details": Jsonb(dict(details)),
        },
    )


def is_due(tier: Tier, hi: int, lag: int, newest: Callable[[], int | None]) -> bool:
    """Whether the newest key is at least `lag` above `hi`. If the key is a time, the present must be as well, so that
    rows dated in the future do not push out others. `newest` is called only if it matters."""
    if lag == NEVER or hi + lag >= END:
        return False
    if tier.kind is not TierKind.BIGINT:
        now = now_value(tier.kind, datetime.now(UTC))
        if now is not None and hi + lag > now:
            return False
    key = newest()
    return key is not None and key >= hi + lag


def written(connection: PgConnection, attached: Sequence[Attached]) -> tuple[tuple[int, int], ...]:
    """The partitions' OIDs, each with the server's count of rows inserted or updated there, which lags by seconds. If
    two results are equal, nothing was written in between."""
    rows = connection.execute(
        _SQL["written"], {"relation_ids": [partition.relation_id for partition in attached]}
    ).fetchall()
    return tuple((relation_id, count) for relation_id, count in rows)


def newest_key(connection: PgConnection, tier: Tier, attached: Sequence[Attached]) -> int | None:
    """The largest tier key in the heap; None if the heap has no rows. Reads partitions from the top until one has a
    row. The connection must have no open transaction, because a partition may be dropped at the same time."""
    query = f"SELECT {SCHEMA}.newest_tier(%s::bigint::oid, %s::text::name)"
    for partition in reversed([partition for partition in attached if not partition.is_default]):
        try:
            row = connection.execute(query, (partition.relation_id, tier.column)).fetchone()
        except psycopg.errors.UndefinedTable:
            # It was dropped since `attached` was read.
            continue
        if row is not None and row[0] is not None:
            return int(row[0])
    return None


def sequence_position(connection: PgConnection, table: MirroredTable, tier: Tier) -> int | None:
    """The last value of the sequence that the tier column's default takes values from. None without one, and if the
    role may not read it."""
    row = connection.execute(_SQL["next_key"], {"table": table.name.quoted, "column": tier.column}).fetchone()
    return None if row is None else row[0]


def high_water(connection: PgConnection, tier: Tier, attached: Sequence[Attached]) -> int | None:
    """The newest key. If the key is a time, at most the present."""
    newest = newest_key(connection, tier, attached)
    now = now_value(tier.kind, datetime.now(UTC))
    return newest if newest is None or now is None else min(newest, now)


def holds_rows(connection: PgConnection, relation_id: int) -> bool:
    """Whether a partition has any rows. Raises psycopg.errors.UndefinedTable if it is gone."""
    row = connection.execute(f"SELECT {SCHEMA}.holds_rows(%s::bigint::oid)", (relation_id,)).fetchone()
    return row is not None and bool(row[0])


def lowest_bound(attached: Sequence[Attached]) -> int:
    """The lower end of the lowest partition, not counting DEFAULT."""
    return min((partition.lo for partition in attached if not partition.is_default), default=EVERYTHING_IN_HEAP)
