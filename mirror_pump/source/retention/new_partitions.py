"""Creates partitions of tables with heap retention: those that are due ahead of time, and the DEFAULT partition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg

from mirror_pump.database.quoting import identifier, shortened
from mirror_pump.model import TableName, Tier, TierKind
from mirror_pump.partition_life import TAKEN, Refused, StepResult
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, acting_as, limited
from mirror_pump.source.relations.tier_keys import END, literal, name_token, now_value
from mirror_pump.source.retention.partitions import LOCKED_TIMEOUT, Attached, RetentionChoices, refusal
from sql import queries

_SQL = queries("retention")

MAKE_TIMEOUT = "1s"
"""How long the statement that creates a partition may take. It locks the table exclusively and scans the DEFAULT
partition, which holds no row, but grows with every late row until the next VACUUM."""
MOST_AHEAD = 100
"""The most partitions that are created ahead in addition to `premake`, because keys move on fast."""
_GAP = 100
"""The most partitions that are created to fill a gap. A larger gap is covered by a single partition."""


def front(tier: Tier, newest: int | None) -> int | None:
    """Where new rows come: the present, or the newest key if keys are not times."""
    now = now_value(tier.kind, datetime.now(UTC))
    return now if now is not None else newest


def wanted_partitions(
    tier: Tier, newest: int | None, attached: Sequence[Attached], choices: RetentionChoices, reach: int = 0
) -> list[tuple[int, int]]:
    """The bounds of the partitions to create, so that `premake` partitions are ready above the present, or above the
    newest key if keys are not times, and all keys up to `reach` above that have one. They begin where the highest
    partition ends, and leave no gap."""
    if not choices.premake or choices.width is None:
        return []
    ranges = [partition for partition in attached if not partition.is_default]
    start = front(tier, newest)
    if start is None:
        return []
    top = max((partition.hi for partition in ranges), default=choices.width.floor(tier.kind, start))
    if top is None or top == END:
        return []
    bounds: list[tuple[int, int]] = []
    ahead = sum(partition.lo > start for partition in ranges)
    most = choices.premake + MOST_AHEAD
    while ahead < choices.premake or (top < start + reach and ahead < most):
        hi = choices.width.after(tier.kind, top)
        if hi is None:
            break
        bounds.append((top, hi))
        # The partition that contains the present, or the newest key, does not count as ahead.
        ahead += top > start
        top = hi
    gap = sum(hi <= start for _, hi in bounds)
    if gap > _GAP:
        bounds[:gap] = [(bounds[0][0], bounds[gap - 1][1])]
    return bounds


def premade_name(table: TableName, kind: TierKind, lo: int) -> TableName:
    """The name of a partition that is created ahead."""
    return TableName(table.schema, shortened(table.name, "_p" + name_token(kind, lo)))


def make_partition(
    connection: PgConnection,
    table: TableName,
    name: TableName,
    kind: TierKind,
    lo: int,
    hi: int,
    *,
    lock_timeout: str = LOCK_TIMEOUT,
    make_timeout: str = MAKE_TIMEOUT,
) -> StepResult:
    """Creates a partition (CREATE TABLE ... PARTITION OF)."""
    low, high = literal(kind, lo), literal(kind, hi)
    if low is None or high is None:
        return Refused(f"its bounds {lo} and {hi} are outside of the years 1 to 9999")
    statement = f"CREATE TABLE {name.quoted} PARTITION OF {table.quoted} FOR VALUES FROM ({low}) TO ({high})"
    try:
        with limited(connection, lock_timeout):
            connection.execute(f"LOCK TABLE ONLY {table.quoted} IN ACCESS EXCLUSIVE MODE".encode())
            connection.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
                (LOCKED_TIMEOUT, make_timeout),
            )
            create_partition(connection, table, name, statement)
    except psycopg.errors.QueryCanceled:
        return Refused(f"it takes longer than {make_timeout}, while the table is locked: VACUUM the DEFAULT partition")
    except psycopg.Error as error:
        return Refused(refusal(error, lock_timeout))
    return TAKEN


def create_default(connection: PgConnection, table: TableName) -> TableName:
    """Creates a DEFAULT partition in the caller's transaction. Call partitions.install() for its trigger."""
    name = TableName(table.schema, shortened(table.name, "_old_rows"))
    create_partition(connection, table, name, f"CREATE TABLE {name.quoted} PARTITION OF {table.quoted} DEFAULT")
    return name


def other_owner(connection: PgConnection, table: TableName) -> str | None:
    """The owner of a table; None if that is the role of this connection."""
    row = connection.execute(_SQL["other_owner"], {"table": table.quoted}).fetchone()
    return None if row is None else str(row[0])


def create_partition(connection: PgConnection, table: TableName, name: TableName, statement: str) -> None:
    """Creates a partition that belongs to the owner of the table. ALTER TABLE requires that its caller owns every
    partition, and so do our own steps, which may be those of yet another role.

    It is created by the owner, if that role may create tables in the schema: building its indexes calls functions that
    the owner chose, with the rights of the partition's owner at that moment.
    """
    owners: list[tuple[str, bool]] = connection.execute(_SQL["other_owner"], {"table": table.quoted}).fetchall()
    owner, creates = owners[0] if owners else (None, False)
    with acting_as(connection, owner if creates else None):
        connection.execute(statement.encode())
    if owner is not None and not creates:
        connection.execute(f"ALTER TABLE {name.quoted} OWNER TO {identifier(owner)}".encode())
