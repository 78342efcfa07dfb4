"""Heap retention's side of the catalog and of the heap: partitions with their bounds, and each step of their way out.

Every step is one statement or one transaction, and says by its return value why it was not taken. Locks are asked for
with a time limit: sessions of others queue behind a waiting request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from mirror_pump.model import EVERYTHING_IN_HEAP, Lsn, TableId, TableName, Tier, TierKind
from mirror_pump.quoting import identifier
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, as_source_error, is_connection_loss
from mirror_pump.source.relations.tier_keys import END, NEVER, literal, name_token, now_value
from mirror_pump.source.relations.widths import Width
from sql import queries

_SQL = queries("retention")

LOCKED_TIMEOUT = "50ms"
"""How long a step waits for each further lock once it has locked everybody out of the table (as modak.drop_proven)."""
DROP_TIMEOUT = "1s"
"""How long the statement that drops a partition may take. It locks everybody out, and with a foreign key to the table
Postgres meanwhile looks through the table that refers."""
MAKE_TIMEOUT = "1s"
"""How long the statement may take that makes a partition. It locks everybody out as well, and looks through the DEFAULT
partition: that holds no row, but every late row leaves room behind until the next VACUUM."""
LOOK_TIMEOUT = "10min"
"""How long any statement of ours may take. The longest read a partition: for its newest key, where no index begins with
the tier key, or for what a proof compares in the database."""
DROP_GRACE = timedelta(hours=1)
"""How long partitions stay, unless somebody chose otherwise: who asked for the wrong distance has that long to mend
it."""
FIRST_PAUSE = 0.5
"""Seconds before a refused step is tried again."""

HOT, SEALING, TIERING, TIERED, DROPPED = "hot", "sealing", "tiering", "tiered", "dropped"
"""modak.partitions.state."""

_NAME_BYTES = 63
"""NAMEDATALEN - 1 of the server."""


@dataclass(frozen=True)
class Partition:
    """A partition as the catalog knows it."""

    partition_id: str
    relation_id: int | None
    lo: int
    hi: int
    """Tier values; exclusive."""
    state: str
    sealed_lsn: Lsn | None
    truncated: bool
    reason: str | None
    attempts: int
    name: TableName | None
    """None: it is not attached any more."""
    bounds: tuple[int, int] | None
    """Its bounds as they are now."""
    captured: bool
    """Its changes are being captured."""
    corrected: bool
    """Its changes become corrections."""
    disproved: bool
    """It was found to differ from the lake, less than a day ago."""
    proven_for: float | None = None
    """Seconds since the lake was last found to hold it."""

    def grace_left(self, grace: timedelta) -> timedelta:
        """How long it stays before it may be dropped, if the lake holds it."""
        return grace - timedelta(seconds=self.proven_for or 0.0)

    @property
    def attached_late(self) -> bool:
        """It came to the table below T: what it held then is not in the lake, unless by chance."""
        return self.state == TIERING and self.sealed_lsn is None


@dataclass(frozen=True)
class Attached:
    """A partition as the heap has it."""

    relation_id: int
    name: TableName
    lo: int
    hi: int
    is_default: bool
    is_table: bool
    routes: bool
    """It is a DEFAULT partition with our trigger."""


@dataclass(frozen=True)
class RetentionChoices:
    """What is chosen for one table, and how far it is."""

    premake: int
    """Partitions to keep ready above the newest key."""
    width: Width | None
    """Of each."""
    drop_grace: timedelta
    """How long a partition stays after the lake was found to hold it."""
    detach: bool
    """Partitions are detached, not dropped."""
    stopped: str | None
    """Why retention does not go on by itself."""
    not_made: str | None
    """Why a partition could not be made ahead."""
    live: bool
    lag: int
    cut: int
    """T."""
    applied: Lsn
    """F."""


def read_choices(connection: PgConnection, table_id: TableId) -> RetentionChoices | None:
    """None for a table without heap retention, and for one that is gone."""
    row = connection.execute(_SQL["choices"], {"table_id": table_id}).fetchone()
    if row is None or row[0] is None:
        return None
    stored, live, lag, cut, applied = row
    return RetentionChoices(
        int(stored.get("premake", 0)),
        Width.from_json(stored.get("width")),
        timedelta(seconds=float(stored.get("drop_grace", DROP_GRACE.total_seconds()))),
        bool(stored.get("detach", False)),
        stored.get("stopped"),
        stored.get("not_made"),
        bool(live),
        NEVER if lag is None else lag,
        cut,
        Lsn(applied),
    )


def retained_tables(
    connection: PgConnection, slot: str, table_ids: Sequence[TableId] | None = None
) -> tuple[TableId, ...]:
    """Those of the slot's tables that have heap retention."""
    rows = connection.execute(_SQL["tables"], {"slot": slot, "table_ids": None if table_ids is None else [*table_ids]})
    return tuple(TableId(row[0]) for row in rows.fetchall())


def read_partitions(connection: PgConnection, table_id: TableId) -> tuple[Partition, ...]:
    """Partitions that were not dropped yet, the oldest first."""
    rows = connection.execute(_SQL["partitions"], {"table_id": table_id}).fetchall()
    return tuple(
        Partition(
            partition_id=row[0],
            relation_id=row[1],
            lo=row[2],
            hi=row[3],
            state=row[4],
            sealed_lsn=None if row[5] is None else Lsn(row[5]),
            truncated=row[6],
            reason=row[7],
            attempts=row[8],
            name=None if row[10] is None else TableName(row[9], row[10]),
            bounds=None if row[11] is None else (row[11], row[12]),
            captured=bool(row[13]),
            corrected=bool(row[14]),
            disproved=row[15],
            proven_for=row[16],
        )
        for row in rows
    )


def read_attached(connection: PgConnection, table_id: TableId) -> tuple[Attached, ...]:
    """The heap's partitions, by their bounds."""
    rows = connection.execute(_SQL["attached"], {"table_id": table_id}).fetchall()
    return tuple(Attached(row[0], TableName(row[1], row[2]), *row[3:]) for row in rows)


@contextmanager
def limited(connection: PgConnection) -> Iterator[None]:
    """A transaction that waits for locks no longer than LOCK_TIMEOUT."""
    with connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
        yield


NOT_SEEN = "its partitions cannot be looked at: {}"
"""What is said of a table as long as that is so."""


def refusal(error: psycopg.Error) -> str:
    """Why Postgres did not take a step, in words. Raises ConnectionLost if it is the connection that broke."""
    if is_connection_loss(error):
        raise as_source_error(error, "changing a partition") from error
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return f"other sessions hold locks that it needs, for longer than {LOCK_TIMEOUT}"
    detail = error.diag.message_detail
    return " ".join((error.diag.message_primary or str(error)).split()) + (
        f" ({' '.join(detail.split())})" if detail else ""
    )


def attempt(connection: PgConnection, statement: str, parameters: Mapping[str, Any]) -> str | None:
    """One of the steps that answer in words: None when it was taken, else why not."""
    try:
        with limited(connection):
            if statement == "drop":
                connection.execute("SELECT set_config('statement_timeout', %s, true)", (DROP_TIMEOUT,))
            row = connection.execute(_SQL[statement], parameters).fetchone()
            assert row is not None
            if row[0] is not None:
                # What it changed before it found a reason stays: that is part of the step.
                return str(row[0])
    except psycopg.Error as error:
        if statement == "drop" and isinstance(error, psycopg.errors.QueryCanceled):
            return (
                f"it takes longer than {DROP_TIMEOUT}, with everybody locked out: a foreign key that refers to the"
                " table needs an index on its columns, or has to go"
            )
        return refusal(error)
    return None


def bounded(connection: PgConnection) -> None:
    """From now on no statement of the session, or of its open transaction if it has one, waits for a lock longer than
    LOCK_TIMEOUT, or takes longer than LOOK_TIMEOUT. Not even bounds of partitions can be read while somebody alters
    one."""
    inside = connection.info.transaction_status is not TransactionStatus.IDLE
    connection.execute(
        "SELECT set_config('lock_timeout', %s, %s), set_config('statement_timeout', %s, %s)",
        (LOCK_TIMEOUT, inside, LOOK_TIMEOUT, inside),
    )


def run(connection: PgConnection, statement: str, parameters: Mapping[str, Any]) -> int:
    """One of the statements that only change the catalog; returns how many rows it touched."""
    with limited(connection):
        return connection.execute(_SQL[statement], parameters).rowcount


def enter(connection: PgConnection, table_id: TableId, one: Attached, state: str, reason: str | None) -> str:
    """Adds a partition to the catalog; returns its partition_id."""
    row = connection.execute(
        _SQL["enter"],
        {
            "table_id": table_id,
            "name": str(one.name),
            "relation_id": one.relation_id,
            "lo": one.lo,
            "hi": one.hi,
            "state": state,
            "reason": reason,
        },
    ).fetchone()
    assert row is not None
    return str(row[0])


def reader_in_the_way(connection: PgConnection, table_id: TableId, cut: int) -> str | None:
    """For whom T cannot move to `cut` now: the reader's pin, or the session that is putting one in place; None if it
    can."""
    row = connection.execute(_SQL["reader_in_the_way"], {"table_id": table_id, "cut": cut}).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def install(connection: PgConnection, table_id: TableId, relation_id: int, partition_id: str, kind: str) -> None:
    """Puts a partition's triggers in place: `capture`, `cold` or `default`."""
    connection.execute(
        _SQL["triggers"],
        {"table_id": table_id, "relation_id": relation_id, "partition_id": partition_id, "kind": kind},
    )


def journal(
    connection: PgConnection, table_id: TableId, phase: str, details: Mapping[str, Any], snapshot_id: int | None = None
) -> None:
    """One line in modak.op_log about a step that was taken, or failed for good."""
    connection.execute(
        _SQL["journal"],
        {"table_id": table_id, "phase": phase, "snapshot_id": snapshot_id, "details": Jsonb(dict(details))},
    )


def is_due(tier: Tier, hi: int, lag: int, newest: Callable[[], int | None]) -> bool:
    """Whether the newest key is `lag` or more above `hi`; of times, the present too: rows dated in the future do not
    push others out. `newest` is asked only if it matters."""
    if lag == NEVER or hi + lag >= END:
        return False
    if tier.kind is not TierKind.BIGINT:
        present = now_value(tier.kind, datetime.now(UTC))
        if present is not None and hi + lag > present:
            return False
    key = newest()
    return key is not None and key >= hi + lag


def written(connection: PgConnection, attached: Sequence[Attached]) -> tuple[tuple[int, int], ...]:
    """The partitions' OIDs and how many rows the server has counted as inserted there or updated, which it does within
    seconds. Where they are equal to those of another time nothing was written in between."""
    rows = connection.execute(_SQL["written"], {"relation_ids": [one.relation_id for one in attached]}).fetchall()
    return tuple((row[0], row[1]) for row in rows)


def newest_key(connection: PgConnection, tier: Tier, attached: Sequence[Attached]) -> int | None:
    """The largest tier key in the heap; None if it holds no row. Reads partitions from the top until one has a row. The
    connection has no transaction open: a partition may be dropped meanwhile."""
    column = identifier(tier.column)
    for one in reversed([one for one in attached if not one.is_default]):
        query = f"SELECT modak.tier_value(max({column})) FROM ONLY {one.name.quoted}"
        try:
            row = connection.execute(query.encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            # It was dropped since `attached` was read.
            continue
        if row is not None and row[0] is not None:
            return int(row[0])
    return None


def high_water(connection: PgConnection, tier: Tier, attached: Sequence[Attached]) -> int | None:
    """The newest key, of times no later than the present."""
    newest = newest_key(connection, tier, attached)
    present = now_value(tier.kind, datetime.now(UTC))
    return newest if newest is None or present is None else min(newest, present)


_GAP = 100
"""Partitions that are made to fill a gap, at most; what is more is bridged by one."""


def wanted_partitions(
    tier: Tier, newest: int | None, attached: Sequence[Attached], choices: RetentionChoices
) -> list[tuple[int, int]]:
    """Bounds of the partitions that are missing so that `premake` are ready above the newest key, or the present. They
    begin where the highest one ends, and leave no gap."""
    if not choices.premake or choices.width is None:
        return []
    ranges = [partition for partition in attached if not partition.is_default]
    present = now_value(tier.kind, datetime.now(UTC))
    start = present if present is not None else newest
    if start is None:
        return []
    top = max((partition.hi for partition in ranges), default=choices.width.floor(tier.kind, start))
    if top is None or top == END:
        return []
    bounds: list[tuple[int, int]] = []
    ahead = sum(partition.lo > start for partition in ranges)
    while ahead < choices.premake:
        hi = choices.width.after(tier.kind, top)
        if hi is None:
            break
        bounds.append((top, hi))
        # The one that holds the present, or the newest key, is not ahead of it.
        ahead += top > start
        top = hi
    gap = sum(hi <= start for _, hi in bounds)
    if gap > _GAP:
        bounds[:gap] = [(bounds[0][0], bounds[gap - 1][1])]
    return bounds


def premade_name(table: TableName, kind: TierKind, lo: int) -> TableName:
    """What a partition is called that is made ahead."""
    token = "_p" + name_token(kind, lo)
    stem = table.name.encode()[: _NAME_BYTES - len(token)].decode(errors="ignore")
    return TableName(table.schema, stem + token)


def make_partition(
    connection: PgConnection, table: TableName, name: TableName, kind: TierKind, lo: int, hi: int
) -> str | None:
    """CREATE TABLE ... PARTITION OF; why not, or None."""
    low, high = literal(kind, lo), literal(kind, hi)
    if low is None or high is None:
        return f"its bounds {lo} and {hi} lie outside of the years 1 to 9999"
    statement = f"CREATE TABLE {name.quoted} PARTITION OF {table.quoted} FOR VALUES FROM ({low}) TO ({high})"
    try:
        with limited(connection):
            connection.execute(f"LOCK TABLE ONLY {table.quoted} IN ACCESS EXCLUSIVE MODE".encode())
            connection.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
                (LOCKED_TIMEOUT, MAKE_TIMEOUT),
            )
            connection.execute(statement.encode())
    except psycopg.errors.QueryCanceled:
        return f"it takes longer than {MAKE_TIMEOUT}, with everybody locked out: VACUUM the DEFAULT partition"
    except psycopg.Error as error:
        return refusal(error)
    return None


def create_default(connection: PgConnection, table: TableName) -> TableName:
    """Makes a DEFAULT partition, in the caller's transaction; it gets its trigger by install()."""
    suffix = "_old_rows"
    stem = table.name.encode()[: _NAME_BYTES - len(suffix)].decode(errors="ignore")
    name = TableName(table.schema, stem + suffix)
    connection.execute(f"CREATE TABLE {name.quoted} PARTITION OF {table.quoted} DEFAULT".encode())
    return name


def holds_rows(connection: PgConnection, name: TableName) -> bool:
    """Whether a partition has any row."""
    row = connection.execute(f"SELECT EXISTS (SELECT FROM ONLY {name.quoted})".encode()).fetchone()
    return row is not None and bool(row[0])


def lowest_bound(attached: Sequence[Attached]) -> int:
    """No partition but DEFAULT holds a key below it."""
    return min((one.lo for one in attached if not one.is_default), default=EVERYTHING_IN_HEAP)
