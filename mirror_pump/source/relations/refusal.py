"""Decides which relations cannot be mirrored, and says what their owner can do about it."""

from __future__ import annotations

import shlex

from mirror_pump.column_names import folded
from mirror_pump.database.quoting import identifier, printed_identifier
from mirror_pump.errors import TableError
from mirror_pump.model import TableMode, TableName
from mirror_pump.source.relations.description import Identity, LeafPartition, RelationDescription
from sql.mirror_names import DEFAULT_SCHEMA

_FIRST_USER_OID = 16384
"""FirstNormalObjectId in the server: initdb creates all objects with a lower OID."""

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "a partitioned index",
    "c": "a composite type",
    "t": "a TOAST table",
}


_RESERVED = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
)
"""The metadata columns of Iceberg (org.apache.iceberg.MetadataColumns) that Spark adds to every table. As tested, Spark
cannot read a table with a column of such a name at all. The names of other metadata columns do no harm."""


def refuse(
    description: RelationDescription, mode: TableMode = TableMode.MIRRORED, *, append_only: bool = False
) -> None:
    """Raises TableError, with what to do, if the relation cannot be mirrored exactly, or cannot be tiered.

    A tiered table is in no publication, so its replica identity matters only where it names the key. An `append_only`
    table needs no key: the server refuses UPDATE and DELETE of it. If it has a key, it is like any other.
    """
    streams = mode is TableMode.MIRRORED
    _refuse_kind(description)
    _refuse_place(description)
    _refuse_access(description)
    _refuse_without_columns(description)
    if append_only and not description.key and description.identity.setting != "i":
        _refuse_updates(description)
    elif not (streams and description.whole_rows):
        _refuse_identity(description, streams=streams)
    if streams:
        _refuse_whole_rows(description)
    _refuse_key_columns(description)
    _refuse_names(description)
    for leaf in description.leaves:
        if leaf.relation_id != description.table_id:
            _refuse_leaf(description, leaf, streams=streams)


def refuse_fixed_rows(relation: RelationDescription) -> None:
    """Raises TableError for partitions whose rows can only be inserted, of a table whose other rows are found by all
    their values. The mirror has nothing against them, but UPDATE and DELETE would fail as soon as the table is
    published, or do so already."""
    fixed = [leaf.name for leaf in relation.leaves if leaf.identity.setting != "f"]
    if relation.whole_rows and fixed:
        raise TableError(
            f"partition {fixed[0]} of {relation.name} has no key and not REPLICA IDENTITY FULL: PostgreSQL refuses to"
            f" update its rows or to delete them while {relation.name} is published",
            f"ALTER TABLE {relation.name.quoted} ADD PRIMARY KEY (...): {relation.against_full}"
            if relation.listed_by
            else "; ".join(f"ALTER TABLE {name.quoted} REPLICA IDENTITY FULL" for name in fixed),
        )


def _refuse_kind(relation: RelationDescription) -> None:
    name = relation.name
    if relation.kind not in ("r", "p"):
        what = _KINDS.get(relation.kind, f"a relation of kind {relation.kind!r}")
        raise TableError(
            f"{name} is {what}: logical decoding only covers tables", "register the tables that it is derived from"
        )
    if relation.persistence == "u":
        raise TableError(
            f"{name} is unlogged: its changes are not in the WAL",
            f"ALTER TABLE {name.quoted} SET LOGGED, then register it",
        )
    if relation.persistence == "t":
        raise TableError(f"{name} is a temporary table, visible only to its session", "register a permanent table")


def _refuse_place(relation: RelationDescription) -> None:
    name = relation.name
    if relation.table_id < _FIRST_USER_OID or name.schema in ("pg_catalog", "information_schema", "pg_toast"):
        raise TableError(f"{name} is a system table, which logical decoding does not cover", "register a user's table")
    if relation.of_catalog or name.schema == DEFAULT_SCHEMA:
        raise TableError(
            f"{name} belongs to a mirror's catalog: each publish would cause another one", "register another table"
        )
    if relation.partition_of is not None:
        raise TableError(
            f"{name} is a partition; the stream carries its changes under the partitioned table's name",
            f"register {relation.partition_of} instead: that includes all partitions",
        )
    if relation.inherits:
        raise TableError(
            f"{name} has parents or children by INHERITS: a query of the parent returns the children's rows, but the"
            " stream keeps them apart",
            "use declarative partitioning, or end the inheritance with ALTER TABLE ... NO INHERIT",
        )


def _refuse_access(relation: RelationDescription) -> None:
    name = relation.name
    if not relation.owned:
        raise TableError(
            f"the owner of schema modak does not own {name}; adding a table to a publication requires that",
            f"GRANT {identifier(relation.owner)} TO {identifier(relation.publisher)}",
        )
    hidden = [str(leaf.name) for leaf in relation.leaves if leaf.row_security]
    if relation.row_security or hidden:
        raise TableError(
            f"row security of {hidden[0] if hidden else name} applies to the role that mirror-pump connects as:"
            " rows would be missing from the copy",
            f"ALTER ROLE {identifier(relation.role)} BYPASSRLS",
        )
    unreadable = [leaf.name for leaf in relation.leaves if not leaf.readable]
    if unreadable:
        raise TableError(
            f"the role that mirror-pump connects as may not read {', '.join(map(str, unreadable))}",
            f"GRANT SELECT ON {', '.join(leaf.quoted for leaf in unreadable)} TO {identifier(relation.role)}",
        )


def _refuse_without_columns(relation: RelationDescription) -> None:
    """Raises TableError for a table of whose columns nothing is left: an Iceberg table has rows of values."""
    if relation.columns or relation.identity.key:
        return
    name = relation.name
    if relation.excluded:
        remedy = f"leave out fewer of them: {', '.join(column.name for column in relation.excluded)}"
    elif relation.generated:
        remedy = f"its columns are generated ({', '.join(relation.generated)}): ALTER TABLE {name} ADD COLUMN ..."
    else:
        remedy = f"ALTER TABLE {name} ADD COLUMN ..."
    raise TableError(f"{name} has no column that can be mirrored", remedy)


def _refuse_updates(relation: RelationDescription) -> None:
    """Raises TableError if the server would let rows of a table without a key be updated or deleted."""
    name = relation.name
    if relation.kind != "r":
        raise TableError(
            f"{name} is partitioned and has no key: rows of a partition that has one could be updated",
            f"ALTER TABLE {name.quoted} ADD PRIMARY KEY (...), then register it without --append-only",
        )
    if relation.identity.setting == "f":
        raise TableError(
            f"{name} has REPLICA IDENTITY FULL: its rows can be updated and deleted",
            "register it without --append-only: its rows are found by all their values; or ALTER TABLE"
            f" {name.quoted} REPLICA IDENTITY NOTHING, if rows are only inserted",
        )


def _refuse_identity(relation: RelationDescription, *, streams: bool) -> None:
    name, identity = relation.name, relation.identity
    if streams and identity.setting == "n":
        raise TableError(
            f"{name} has REPLICA IDENTITY NOTHING: updates and deletes would fail as soon as it is published",
            f"ALTER TABLE {name.quoted} REPLICA IDENTITY DEFAULT, with a primary key",
        )
    if not identity.key and identity.setting == "i":
        raise TableError(
            f"{name} has REPLICA IDENTITY USING INDEX, but that index does not exist any more or is not valid",
            f"ALTER TABLE {name.quoted} REPLICA IDENTITY DEFAULT, with a primary key",
        )
    if not identity.key:
        remedy = (
            f"ALTER TABLE {name.quoted} ADD PRIMARY KEY (...), or REPLICA IDENTITY USING INDEX a unique index over"
            " NOT NULL columns"
        )
        remedy += f"; {relation.against_full}" if relation.listed_by else ", or REPLICA IDENTITY FULL"
        if relation.kind == "r":
            remedy += "; or register it with --append-only if its rows are only inserted: then PostgreSQL"
            remedy += " refuses UPDATE and DELETE"
        raise TableError(f"{name} has no primary key, without which rows cannot be found in the lake", remedy)
    if not identity.immediate:
        raise TableError(
            f"the primary key of {name} is DEFERRABLE: Postgres does not use it as replica identity, so updates and"
            " deletes would fail as soon as the table is published. Its values may also repeat within a transaction",
            "make the primary key NOT DEFERRABLE, or choose REPLICA IDENTITY USING INDEX another unique index",
        )


def _refuse_whole_rows(relation: RelationDescription) -> None:
    if not relation.full_needs_generated or not relation.generated:
        return
    settings = {relation.name: relation.identity.setting} | {
        leaf.name: leaf.identity.setting for leaf in relation.leaves
    }
    full = [name for name, setting in settings.items() if setting == "f"]
    if full:
        raise TableError(
            f"{full[0]} has REPLICA IDENTITY FULL and generated columns ({', '.join(relation.generated)}): while it is"
            " published without these, PostgreSQL 18 refuses to update it or to delete from it",
            f"ALTER TABLE {full[0].quoted} REPLICA IDENTITY DEFAULT, or USING INDEX a unique index",
        )


def _refuse_key_columns(relation: RelationDescription) -> None:
    columns = {column.name: column for column in relation.columns}
    for key in relation.key:
        column = columns.get(key)
        if column is None:
            raise TableError(
                f"key column {key} of {relation.name} is generated: the stream does not carry it",
                "choose a key of stored, ordinary columns",
            )
        if column.type.is_floating:
            raise TableError(
                f"key column {key} of {relation.name} is {column.type_sql}: Iceberg allows no floating-point row keys",
                f"register it with --column {shlex.quote(f'{key}=string')}, or choose a key of another type",
            )
        if column.type.element is not None:
            raise TableError(
                f"key column {key} of {relation.name} is {column.type_sql}: Iceberg row keys are single values",
                "choose a key without array columns",
            )
        if column.type.is_document:
            raise TableError(
                f"key column {key} of {relation.name} cannot be a variant: Iceberg row keys are values that compare",
                "keep string",
            )
        if not column.not_null:
            raise null_in_key(relation.name, key)


def null_in_key(name: TableName, key: str) -> TableError:
    """The error of a table that has NULL in a column of its key, or may have: NOT NULL NOT VALID promises nothing of
    the rows that exist."""
    return TableError(
        f"key column {key} of {name} may hold NULL, and rows are found by their keys",
        f"give the rows with NULL another value or delete them, then ALTER TABLE {name} ALTER COLUMN"
        f" {printed_identifier(key)} SET NOT NULL",
    )


def _refuse_names(relation: RelationDescription) -> None:
    names: dict[str, str] = {}
    for column in relation.columns:
        name = folded(column.name)
        if name in _RESERVED:
            raise TableError(
                f"column {column.name} of {relation.name} has a name that Iceberg reserves for itself: Spark would"
                " refuse to read the table",
                f"rename the column, or register the table with --exclude-column {shlex.quote(column.name)}",
            )
        if name in names:
            raise TableError(
                f"columns {names[name]} and {column.name} of {relation.name} differ in case only: Spark, which ignores"
                " case, would refuse to read the table",
                f"rename one of them, or register the table with --exclude-column {shlex.quote(column.name)}",
            )
        names[name] = column.name


def _refuse_leaf(relation: RelationDescription, leaf: LeafPartition, *, streams: bool) -> None:
    if leaf.kind != "r":
        raise TableError(
            f"partition {leaf.name} of {relation.name} is {_KINDS.get(leaf.kind, 'not a table')}:"
            " logical decoding does not cover it",
            "detach it, then register the partitioned table",
        )
    if leaf.persistence != "p":
        raise TableError(
            f"partition {leaf.name} of {relation.name} is unlogged or temporary: its changes are not in the WAL",
            f"ALTER TABLE {leaf.name.quoted} SET LOGGED",
        )
    if streams and not _carries(leaf.identity, relation.identity):
        raise TableError(
            f"partition {leaf.name} has another replica identity than {relation.name}: its changes would not carry the"
            " table's key",
            f"ALTER TABLE {leaf.name.quoted} REPLICA IDENTITY as for {relation.name}",
        )


def _carries(leaf: Identity, root: Identity) -> bool:
    """Whether a leaf's changes carry the old values that the root's replica identity promises.

    The WAL holds old rows according to the leaf's replica identity, but pgoutput labels them with the root's. If the
    root has FULL and the leaf DEFAULT, the key alone would read as a whole row of NULLs. A leaf without any key has no
    old rows: the server refuses UPDATE and DELETE.
    """
    if root.setting == "f":
        return leaf.setting == "f" or not (leaf.key or root.key)
    return leaf.setting == "f" or (leaf.setting != "n" and leaf.immediate and set(leaf.key) == set(root.key))
