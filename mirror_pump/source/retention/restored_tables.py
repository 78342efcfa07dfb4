"""Tables that take rows of the lake back into the heap: made as partitions, filled unattached, and attached at the end.

Each is created as a partition of the table and detached in the same transaction, so it has what PARTITION OF gives
(columns, defaults, constraints, indexes, owner), and no session ever finds it attached before its rows are complete. A
CHECK constraint that says what its bounds will say spares the server from reading it when it is attached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from decoders.columns import ColumnType
from mirror_pump.database.quoting import identifier, in_query, literal, shortened
from mirror_pump.model import EVERYTHING_IN_HEAP, MirroredTable, TableName, TierKind
from mirror_pump.source.connect import PgConnection, acting_as
from mirror_pump.source.relations.tier_keys import END
from mirror_pump.source.relations.tier_keys import literal as tier_literal
from mirror_pump.source.retention import new_partitions, partitions
from mirror_pump.source.retention.corrections import Correction
from mirror_pump.source.retention.restore_plan import RestoredRange
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("restore")

_CONSTRAINT = "mirror_pump_restored"


@dataclass(frozen=True)
class RestoredTable:
    """A table that exists, for rows with a tier value in [lo, hi)."""

    relation_id: int
    schema: str
    relation: str
    lo: int
    hi: int
    if_filled: bool
    """It becomes a partition only if it has rows."""

    @property
    def name(self) -> TableName:
        return TableName(self.schema, self.relation)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RestoredColumnRow:
    """A row of the query `columns`."""

    attnum: int
    name: str
    type_sql: str
    generated: bool
    is_array: bool


def columns_of(connection: PgConnection, relation_id: int) -> tuple[RestoredColumnRow, ...]:
    """The columns of a relation."""
    return tuple(fetch_rows(connection, RestoredColumnRow, _SQL["columns"], {"relation_id": relation_id}))


def definition_of(connection: PgConnection, table: MirroredTable) -> str:
    """What partitions get from the table, as a digest."""
    row = connection.execute(_SQL["definition"], {"table_id": table.table_id}).fetchone()
    assert row is not None
    return str(row[0])


def make_table(
    connection: PgConnection, table: MirroredTable, planned: RestoredRange, role: str | None
) -> RestoredTable:
    """Creates a table for a range, in the caller's transaction. Takes ACCESS EXCLUSIVE on the partitioned table."""
    assert table.tier is not None
    name = _free_name(connection, TableName(table.name.schema, planned.name))
    low, high = _bound(table.tier.kind, planned.lo), _bound(table.tier.kind, planned.hi)
    connection.execute(f"LOCK TABLE ONLY {table.name.quoted} IN ACCESS EXCLUSIVE MODE".encode())
    connection.execute(_SQL["quiet"])
    statement = f"CREATE TABLE {name.quoted} PARTITION OF {table.name.quoted} FOR VALUES FROM ({low}) TO ({high})"
    new_partitions.create_partition(connection, table.name, name, statement)
    row = connection.execute(_SQL["identity"], {"name": name.quoted}).fetchone()
    assert row is not None
    relation_id, condition = row
    with acting_as(connection, role):
        connection.execute(f"ALTER TABLE {table.name.quoted} DETACH PARTITION {name.quoted}".encode())
        connection.execute(
            f"ALTER TABLE {name.quoted} ADD CONSTRAINT {_CONSTRAINT} CHECK ({condition})".encode(),
        )
    return RestoredTable(relation_id, name.schema, name.name, planned.lo, planned.hi, planned.if_filled)


def attach_all(
    connection: PgConnection, table: MirroredTable, restored: Sequence[RestoredTable], role: str | None
) -> int:
    """Attaches the tables, and drops those that are not needed. In the caller's transaction, which has locked the
    partitioned table. Returns the number of partitions."""
    connection.execute(_SQL["quiet"])
    return sum(_attach(connection, table, made, role) for made in restored)


def _attach(connection: PgConnection, table: MirroredTable, restored: RestoredTable, role: str | None) -> bool:
    assert table.tier is not None
    name = restored.name.quoted
    if restored.if_filled and not holds_rows(connection, restored):
        drop_table(connection, restored)
        return False
    low, high = _bound(table.tier.kind, restored.lo), _bound(table.tier.kind, restored.hi)
    with acting_as(connection, role):
        connection.execute(
            f"ALTER TABLE {table.name.quoted} ATTACH PARTITION {name} FOR VALUES FROM ({low}) TO ({high})".encode()
        )
        connection.execute(f"ALTER TABLE {name} DROP CONSTRAINT {_CONSTRAINT}".encode())
    return True


def holds_rows(connection: PgConnection, restored: RestoredTable) -> bool:
    """Whether it has any row."""
    return partitions.holds_rows(connection, restored.relation_id)


def is_intact(connection: PgConnection, table: MirroredTable, restored: RestoredTable) -> bool:
    """Whether it exists under its name, is no partition, and has the table's columns. As columns_of()."""
    if _present_name(connection, restored) != restored.name:
        return False
    expected, actual = (
        {column.name: replace(column, attnum=0) for column in columns_of(connection, relation_id)}
        for relation_id in (table.table_id, restored.relation_id)
    )
    return expected == actual


def as_numbered(connection: PgConnection, table: MirroredTable, restored: RestoredTable) -> MirroredTable:
    """The table with the attribute numbers of this relation, which lacks dropped columns."""
    numbers = {column.name: column.attnum for column in columns_of(connection, restored.relation_id)}
    return replace(table, columns=tuple(replace(column, attnum=numbers[column.name]) for column in table.columns))


def drop_table(connection: PgConnection, restored: RestoredTable) -> None:
    """Drops it, if it exists and is no partition."""
    name = _present_name(connection, restored)
    if name is not None:
        connection.execute(f"DROP TABLE {name.quoted}".encode())


def _present_name(connection: PgConnection, restored: RestoredTable) -> TableName | None:
    """The name that it has by now; None if it is gone, or is a partition."""
    row = connection.execute(_SQL["relation"], {"relation_id": restored.relation_id}).fetchone()
    if row is None:
        return None
    schema, relation = row
    return TableName(schema, relation)


def write_corrections(
    connection: PgConnection,
    table: MirroredTable,
    restored: RestoredTable,
    corrections: Sequence[Correction],
    role: str | None,
) -> None:
    """Applies corrections of one table's range, ordered by version, in the caller's transaction. Twice does no harm."""
    columns = {column.name: column for column in columns_of(connection, restored.relation_id)}
    names = [column.name for column in table.columns]
    places = [place for place, name in enumerate(names) if name in table.key]
    given = [place for place, name in enumerate(names) if not columns[name].generated]
    where = {"table_id": table.table_id, "relation_id": restored.relation_id}
    row = connection.execute(_SQL["key_match"], where).fetchone()
    assert row is not None
    key = ", ".join(f"%s::{in_query(columns[names[place]].type_sql)} AS {_quoted(names[place])}" for place in places)
    delete = f"DELETE FROM ONLY {in_query(restored.name.quoted)} t USING (SELECT {key}) k WHERE {in_query(str(row[0]))}"
    listed = ", ".join(_quoted(names[place]) for place in given)
    # Parameters without a type are read by the columns' input functions.
    insert = f"INSERT INTO {in_query(restored.name.quoted)} ({listed}) VALUES ({', '.join(['%s'] * len(given))})"
    with acting_as(connection, role), connection.pipeline():
        for correction in corrections:
            connection.execute(delete.encode(), [correction.values[place] for place in places])
            if not correction.tombstone:
                connection.execute(insert.encode(), [correction.values[place] for place in given])


def _quoted(name: str) -> str:
    return in_query(identifier(name))


def _bound(kind: TierKind, value: int) -> str:
    """A tier value in a partition's bound."""
    import pyarrow as pa

    from decoders.printing import print_values

    if value in (EVERYTHING_IN_HEAP, END):
        return "MINVALUE" if value < 0 else "MAXVALUE"
    usual = tier_literal(kind, value)
    if usual is not None:
        return usual
    lake = ColumnType.parse(kind.value)
    numbers = pa.array([value], pa.int32() if kind is TierKind.DATE else pa.int64())
    return f"{kind.value} {literal(print_values(numbers.cast(lake.arrow), lake)[0].as_py())}"


def _free_name(connection: PgConnection, preferred: TableName) -> TableName:
    """The name, or one like it, that no relation or type has."""
    name, number = preferred, 1
    while True:
        row = connection.execute(_SQL["taken"], {"name": name.quoted}).fetchone()
        if row is not None and not row[0]:
            return name
        name = TableName(
            preferred.schema, shortened(preferred.name, "_restored" + ("" if number == 1 else str(number)))
        )
        number += 1
