"""Reads the description of a relation from Postgres's catalogs: its columns, its key, its leaf partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from psycopg import errors as pg_errors

from decoders.columns import ColumnType
from decoders.pgtypes import DOCUMENTS, NUMERIC, column_type
from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import Column, TableId, TableMode, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.description import Identity, LeafPartition, RelationDescription
from mirror_pump.source.relations.own_path import find_relation
from mirror_pump.source.relations.refusal import refuse
from mirror_pump.source.relations.similar_names import similar_names
from mirror_pump.source.rows import execute_for, fetch_row, fetch_rows
from mirror_pump.source.stream.slot import sends_generated
from sql import queries

_SQL = queries("relations")

__all__ = [
    "Identity",
    "LeafPartition",
    "RelationDescription",
    "describe",
    "describe_all",
    "full_needs_generated",
    "refuse",
    "resolve_name",
    "resolve_types",
]


def resolve_name(conn: PgConnection, text: str) -> tuple[TableName, TableId]:
    """The relation that `text` names, resolved as Postgres does: with case folding, quotes and the role's search_path.

    Raises UsageError if there is none.
    """
    with source_errors(f"looking up {text!r}"):
        try:
            relation = fetch_row(conn, _Named, _SQL["named"], {"oid": find_relation(conn, text)})
        except (pg_errors.SyntaxError, pg_errors.InvalidName, pg_errors.FeatureNotSupported) as error:
            raise UsageError(
                f"{text!r} is not a table name: {error.diag.message_primary}",
                "write it as in SQL: schema.table, with double quotes around names with capitals or special characters",
            ) from error
        if relation is None:
            tables = [TableName(schema, table) for schema, table in conn.execute(_SQL["readable"]).fetchall()]
            hint = " or ".join(map(str, similar_names(text, tables)))
            raise UsageError(
                f"there is no table {text} in database {conn.info.dbname}",
                f"did you mean {hint}?" if hint else "check the name and our role's search_path",
            )
    return TableName(relation.schema_name, relation.relation_name), relation.table_id


@dataclass(frozen=True)
class _Named:
    """A row of the query `named`."""

    table_id: TableId
    schema_name: str
    relation_name: str


def describe(
    conn: PgConnection, oid: int, publication: str | None = None, mode: TableMode = TableMode.MIRRORED
) -> RelationDescription:
    """Describes relation `oid` as `publication` sends it. None: as a publication made by the mirror would. A tiered
    table is described with its stored generated columns, which are read from its partitions.

    Raises TableError if the relation does not exist (any more).
    """
    described = describe_all(conn, [oid], publication, mode).get(TableId(oid))
    if described is None:
        raise TableError(f"there is no relation with OID {oid} (any more)", "unregister the table")
    return described


def describe_all(
    conn: PgConnection,
    oids: Sequence[int],
    publication: str | None = None,
    mode: TableMode = TableMode.MIRRORED,
    *,
    measured: bool = True,
) -> dict[TableId, RelationDescription]:
    """Describes relations as `describe` does, all by the same few queries. Those that do not exist are left out.

    Unless they are `measured`, their sizes are those of the last VACUUM or ANALYZE, and no lock is taken on them.
    """
    with source_errors("reading the catalogs about tables"):
        stored = mode is TableMode.TIERED or sends_generated(conn, publication)
        parameters = {"oids": list(oids), "stored": stored, "measured": measured}
        # Sent at once, for one answer: a machine that is busy lets each question wait.
        with conn.pipeline():
            relation_cursor = execute_for(conn, _RelationRow, _SQL["relation"], parameters)
            leaf_cursor = execute_for(conn, _LeafRow, _SQL["leaves"], parameters)
            identity_cursor = execute_for(conn, _IdentityRow, _SQL["identities"], parameters)
            column_cursor = execute_for(conn, _ColumnRow, _SQL["columns"], parameters)
        relations = relation_cursor.fetchall()
        leaves = _by_table(leaf_cursor.fetchall())
        identities = {identity.relation_id: identity.identity for identity in identity_cursor.fetchall()}
        columns = _by_table(column_cursor.fetchall())
        types = resolve_types(conn, _published_types(columns.values()))
    # What lacks an identity was dropped between two of the queries.
    return {
        row.table_id: _description(
            row,
            [
                leaf.partition(identities[leaf.relation_id])
                for leaf in leaves.get(row.table_id, ())
                if leaf.relation_id in identities
            ],
            identities[row.table_id],
            columns.get(row.table_id, ()),
            types,
            needs_generated=full_needs_generated(conn),
        )
        for row in relations
        if row.table_id in identities
    }


class _OfTable(Protocol):
    """A row about a table."""

    @property
    def table_id(self) -> TableId: ...


_RowOfTable = TypeVar("_RowOfTable", bound=_OfTable)


def _by_table(rows: Iterable[_RowOfTable]) -> dict[TableId, list[_RowOfTable]]:
    by_table: dict[TableId, list[_RowOfTable]] = {}
    for row in rows:
        by_table.setdefault(row.table_id, []).append(row)
    return by_table


def _description(
    row: _RelationRow,
    leaves: Sequence[LeafPartition],
    identity: Identity,
    columns: Sequence[_ColumnRow],
    types: Mapping[tuple[int, int], ColumnType],
    *,
    needs_generated: bool,
) -> RelationDescription:
    return RelationDescription(
        table_id=row.table_id,
        name=TableName(row.schema_name, row.relation_name),
        kind=row.kind,
        persistence=row.persistence,
        columns=_columns(columns, types),
        generated=tuple(column.name for column in columns if column.left_out),
        identity=identity,
        leaves=tuple(leaves),
        partition_of=row.partition_of,
        inherits=row.inherits,
        owned=row.owned,
        of_catalog=row.of_catalog,
        listed_by=tuple(row.listed_by),
        row_security=row.row_security,
        block_bytes=row.block_bytes,
        full_needs_generated=needs_generated,
        role=row.role,
        publisher=row.publisher,
        owner=row.owner,
    )


@dataclass(frozen=True)
class _RelationRow:
    """A row of the query `relation`."""

    table_id: TableId
    schema_name: str
    relation_name: str
    kind: str
    persistence: str
    root_schema: str | None
    root_name: str | None
    """None, like `root_schema`, unless the relation is a partition."""
    inherits: bool
    owned: bool
    of_catalog: bool
    listed_by: list[str]
    row_security: bool
    block_bytes: int
    role: str
    publisher: str
    owner: str

    @property
    def partition_of(self) -> TableName | None:
        if self.root_schema is None or self.root_name is None:
            return None
        return TableName(self.root_schema, self.root_name)


@dataclass(frozen=True)
class _LeafRow:
    """A row of the query `leaves`."""

    table_id: TableId
    """The table that the relation is, or is a partition of."""
    relation_id: int
    schema_name: str
    relation_name: str
    kind: str
    persistence: str
    filenode: int
    blocks: int
    estimated_rows: int
    row_security: bool
    readable: bool

    def partition(self, identity: Identity) -> LeafPartition:
        return LeafPartition(
            relation_id=self.relation_id,
            name=TableName(self.schema_name, self.relation_name),
            kind=self.kind,
            persistence=self.persistence,
            filenode=self.filenode,
            blocks=self.blocks,
            estimated_rows=self.estimated_rows,
            identity=identity,
            row_security=self.row_security,
            readable=self.readable,
        )


def full_needs_generated(conn: PgConnection) -> bool:
    """The value of RelationDescription.full_needs_generated on this server."""
    return conn.info.server_version >= 180000


@dataclass(frozen=True)
class _IdentityRow:
    """A row of the query `identities`."""

    relation_id: int
    setting: str
    immediate: bool
    key: list[str]

    @property
    def identity(self) -> Identity:
        return Identity(self.setting, tuple(self.key), self.immediate)


def _published_types(columns: Iterable[Sequence[_ColumnRow]]) -> Iterator[tuple[int, int]]:
    """Type and modifier of each published column."""
    for rows in columns:
        yield from ((row.type_oid, row.type_modifier) for row in rows if not row.left_out)


def _columns(rows: Sequence[_ColumnRow], types: Mapping[tuple[int, int], ColumnType]) -> tuple[Column, ...]:
    """The published columns."""
    return tuple(
        Column(
            attnum=row.attnum,
            name=row.name,
            type_oid=row.type_oid,
            type_modifier=row.type_modifier,
            type_sql=row.type_sql,
            type=types[row.type_oid, row.type_modifier],
            field_id=field_id,
            not_null=row.not_null,
        )
        for field_id, row in enumerate((row for row in rows if not row.left_out), start=1)
    )


@dataclass(frozen=True)
class _ColumnRow:
    """A row of the query `columns`."""

    table_id: TableId
    attnum: int
    name: str
    type_oid: int
    type_modifier: int
    type_sql: str
    not_null: bool
    left_out: bool
    """Whether the column is generated and not published."""


@dataclass(frozen=True)
class _BaseType:
    """A row of the query `base_types`."""

    start_oid: int
    """The type that was reduced to its base type."""
    oid: int
    domain_modifier: int | None
    """The modifier of the domain. None if the type is not a domain."""
    element_oid: int
    """0 unless the type is an array whose text can be split into elements."""
    extension_type: str
    """`extension.type` for a type that belongs to an extension; else empty."""

    def modifier(self, attribute_modifier: int) -> int:
        return attribute_modifier if self.domain_modifier is None else self.domain_modifier


def resolve_types(conn: PgConnection, types: Iterable[tuple[int, int]]) -> dict[tuple[int, int], ColumnType]:
    """The column types of (type OID, modifier) pairs, as they are in pg_attribute and in pgoutput's Relation messages.

    Domains are reduced to their base types, also as elements of arrays.
    """
    pairs = set(types)
    bases = _base_types(conn, {oid for oid, _ in pairs})
    elements = _base_types(conn, {base.element_oid for base in bases.values() if base.element_oid})
    resolved: dict[tuple[int, int], ColumnType] = {}
    for oid, attribute_modifier in pairs:
        base = bases[oid]
        modifier = base.modifier(attribute_modifier)
        element = elements.get(base.element_oid)
        if element is None or element.element_oid:
            resolved[oid, attribute_modifier] = column_type(base.oid, modifier, extension_type=base.extension_type)
        else:
            # numeric(10,2)[] has the modifier of its elements. An element that is a domain has its own.
            resolved[oid, attribute_modifier] = column_type(
                base.oid, element.modifier(modifier), element_oid=element.oid
            )
    return resolved


def numeric_types(conn: PgConnection, oids: Iterable[int]) -> frozenset[int]:
    """The types among `oids` that are numeric, or arrays of numeric, after resolving domains."""
    type_oids = set(oids)
    with source_errors("looking up types"):
        bases = _base_types(conn, type_oids)
        elements = _base_types(conn, {base.element_oid for base in bases.values() if base.element_oid})
    return frozenset(
        oid
        for oid, base in bases.items()
        if base.oid == NUMERIC or (base.element_oid and elements[base.element_oid].oid == NUMERIC)
    )


def document_types(conn: PgConnection, oids: Iterable[int]) -> frozenset[int]:
    """The types among `oids` that are json or jsonb, after resolving domains."""
    with source_errors("looking up types"):
        return frozenset(oid for oid, base in _base_types(conn, set(oids)).items() if base.oid in DOCUMENTS)


def _base_types(conn: PgConnection, oids: set[int]) -> dict[int, _BaseType]:
    if not oids:
        return {}
    return {base.start_oid: base for base in fetch_rows(conn, _BaseType, _SQL["base_types"], {"oids": list(oids)})}
