"""ALTER TABLE ... MERGE PARTITIONS and SPLIT PARTITION of PostgreSQL 19, by the statements that they consist of.

The server detaches the old partitions, makes new tables, moves the rows, drops the old tables and attaches the new
ones, in one transaction. The stream does not have the moved rows, if they are moved before the new tables are attached
or are logged so. A server that sends them as INSERTs is imitated by `decoded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.testing.database import Database


@dataclass(frozen=True)
class NewPartition:
    """A partition by range of one integer column, by its bounds."""

    name: str
    lower: int
    upper: int


def rearrange(
    database: Database,
    table: str,
    old: Sequence[str],
    new: Sequence[NewPartition],
    *,
    decoded: bool = False,
    key: str = "at",
) -> None:
    """Replaces partitions by others that have the same rows."""
    moves = [f"ALTER TABLE {table} DETACH PARTITION {name}" for name in old]
    for part in new:
        bounds = f"FOR VALUES FROM ({part.lower}) TO ({part.upper})"
        attach = f"ALTER TABLE {table} ATTACH PARTITION {part.name} {bounds}"
        rows = [
            f"INSERT INTO {part.name} SELECT * FROM {name} WHERE {key} >= {part.lower} AND {key} < {part.upper}"
            for name in old
        ]
        moves.append(f"CREATE TABLE {part.name} (LIKE {table} INCLUDING ALL)")
        moves += [attach, *rows] if decoded else [*rows, attach]
    moves += [f"DROP TABLE {name}" for name in old]
    with database.session(autocommit=False) as connection:
        for statement in moves:
            connection.execute(statement.encode())
