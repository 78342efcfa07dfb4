"""What Postgres's catalogs say about a relation that may be mirrored: its columns, its key, its leaf partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import errors as pg_errors

from decoders.columns import ColumnType
from decoders.pgtypes import NUMERIC, column_type
from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import Column, TableId, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.description import Identity, LeafPartition, RelationDescription
from mirror_pump.source.relations.refusal import refuse
from mirror_pump.source.stream.slot import sends_generated

__all__ = [
    "Identity",
    "LeafPartition",
    "RelationDescription",
    "describe",
    "full_needs_generated",
    "refuse",
    "resolve_name",
    "resolve_types",
]


def resolve_name(conn: PgConnection, text: str) -> tuple[TableName, TableId]:
    """The relation that `text` names, read as Postgres reads it: folding, quotes and the session's search_path.

    UsageError if there is none.
    """
    find = (
        "SELECT n.nspname, c.relname, c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass(%s)"
    )
    with source_errors(f"looking up {text!r}"):
        try:
            with conn.transaction():
                row = conn.execute(find, (text,)).fetchone()
        except (pg_errors.SyntaxError, pg_errors.InvalidName, pg_errors.FeatureNotSupported) as error:
            raise UsageError(
                f"{text!r} is no table name: {error.diag.message_primary}",
                "write it as in SQL: schema.table, with double quotes around names with capitals or signs",
            ) from error
        if row is None:
            similar = conn.execute(
                "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)"
                " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE lower(c.relname) = lower(%s) AND c.relkind IN ('r', 'p') ORDER BY 1 LIMIT 3",
                (text.rpartition(".")[2].strip('" '),),
            ).fetchall()
            hint = " or ".join(name for (name,) in similar)
            raise UsageError(
                f"there is no table {text} in database {conn.info.dbname}",
                f"did you mean {hint}?" if hint else "check the name and our role's search_path",
            )
    return TableName(row[0], row[1]), TableId(row[2])


def describe(conn: PgConnection, oid: int, publication: str | None = None) -> RelationDescription:
    """Reads everything about relation `oid`, as `publication` sends it; None: as one does that we make.

    TableError if it does not exist (any more).
    """
    with source_errors(f"reading the catalogs about relation {oid}"):
        row = conn.execute(_RELATION, {"oid": oid}).fetchone()
        if row is None:
            raise TableError(f"there is no relation with OID {oid} (any more)", "unregister the table")
        schema, name, kind, persistence, root_schema, root_name, inherits, owned, row_security, block_bytes = row
        leaf_rows = conn.execute(_LEAVES, {"oid": oid}).fetchall()
        identities = _identities(conn, [oid, *(leaf[0] for leaf in leaf_rows)])
        columns, generated = _columns(conn, oid, stored=sends_generated(conn, publication))
    leaves = tuple(
        LeafPartition(
            oid_, TableName(schema_, name_), kind_, lives, filenode, blocks, rows, identities[oid_], hidden, readable
        )
        for oid_, schema_, name_, kind_, lives, filenode, blocks, rows, hidden, readable in leaf_rows
    )
    return RelationDescription(
        table_id=TableId(oid),
        name=TableName(schema, name),
        kind=kind,
        persistence=persistence,
        columns=columns,
        generated=generated,
        identity=identities[oid],
        leaves=leaves,
        partition_of=TableName(root_schema, root_name) if root_name else None,
        inherits=inherits,
        owned=owned,
        row_security=row_security,
        block_bytes=block_bytes,
        full_needs_generated=full_needs_generated(conn),
    )


def full_needs_generated(conn: PgConnection) -> bool:
    """As RelationDescription has it."""
    return conn.info.server_version >= 180000


_RELATION = """
SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text, rn.nspname, r.relname,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
               WHERE c.oid IN (i.inhrelid, i.inhparent) AND NOT child.relispartition AND child.relkind IN ('r', 'f')),
       pg_has_role(c.relowner, 'USAGE'), row_security_active(c.oid), current_setting('block_size')::int
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class r ON r.oid = CASE WHEN c.relispartition THEN pg_partition_root(c.oid) END
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE c.oid = %(oid)s
"""

# Sizes only of relations with storage: pg_relation_size of anything else is 0, and of one just dropped NULL.
_LEAVES = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       coalesce(pg_relation_filenode(c.oid), 0)::bigint,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint,
       greatest(c.reltuples, 0)::bigint, row_security_active(c.oid), has_table_privilege(c.oid, 'SELECT')
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)
   OR (c.oid = %(oid)s AND c.relkind <> 'p')
ORDER BY c.oid
"""

# REPLICA IDENTITY as RelationGetIndexList in the server reads it: under `d` and `f` the mirror's key is the primary
# key, under `i` the chosen index; only indnkeyatts columns count, the INCLUDE columns after them do not.
_IDENTITIES = """
SELECT c.oid::bigint, c.relreplident::text, coalesce(i.indimmediate, true),
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY a.attnum)
FROM pg_class c
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid
     AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
WHERE c.oid = ANY (%s)
"""


def _identities(conn: PgConnection, oids: list[int]) -> dict[int, Identity]:
    rows = conn.execute(_IDENTITIES, (oids,)).fetchall()
    return {oid: Identity(setting, tuple(key), immediate) for oid, setting, immediate, key in rows}


_COLUMNS = """
SELECT a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod),
       a.attnotnull, a.attgenerated = 'v' OR a.attgenerated = 's' AND NOT %(stored)s
FROM pg_attribute a
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


def _columns(conn: PgConnection, oid: int, *, stored: bool) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """What is published, and the names of the generated columns that are not. `stored`: stored ones are published."""
    rows = conn.execute(_COLUMNS, {"oid": oid, "stored": stored}).fetchall()
    published = [row for row in rows if not row[6]]
    types = resolve_types(conn, ((row[2], row[3]) for row in published))
    columns = tuple(
        Column(attnum, name, type_oid, modifier, type_sql, types[type_oid, modifier], field_id, not_null)
        for field_id, (attnum, name, type_oid, modifier, type_sql, not_null, _) in enumerate(published, start=1)
    )
    return columns, tuple(row[1] for row in rows if row[6])


# A domain's modifier is its own (typtypmod), as getBaseTypeAndTypmod in the server takes it: the attribute has none.
# An array is a type that its element names as its array type: name, point and int2vector have a typelem too. Arrays
# whose element separates values by anything but a comma (box) stay text.
_TYPES = """
WITH RECURSIVE reduced(start, oid, modifier, depth) AS (
    SELECT t.oid, t.oid, -1, 0 FROM pg_type t WHERE t.oid = ANY (%s)
    UNION ALL
    SELECT r.start, t.typbasetype, t.typtypmod, r.depth + 1
    FROM reduced r JOIN pg_type t ON t.oid = r.oid WHERE t.typtype = 'd'
)
SELECT DISTINCT ON (r.start) r.start::bigint, r.depth > 0, t.oid::bigint, r.modifier, coalesce(e.oid, 0)::bigint,
       coalesce(x.extname || '.' || t.typname, '')
FROM reduced r
JOIN pg_type t ON t.oid = r.oid
LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
LEFT JOIN pg_extension x ON x.oid = d.refobjid
LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid AND e.typdelim = ','
ORDER BY r.start, r.depth DESC
"""


@dataclass(frozen=True)
class _BaseType:
    oid: int
    domain_modifier: int | None
    """The modifier that a domain brings along; None if the type is no domain."""
    element_oid: int
    """0 unless the type is an array whose text can be split into elements."""
    extension_type: str
    """`extension.type` of a type that an extension brought; else empty."""

    def modifier(self, attribute_modifier: int) -> int:
        return attribute_modifier if self.domain_modifier is None else self.domain_modifier


def resolve_types(conn: PgConnection, types: Iterable[tuple[int, int]]) -> dict[tuple[int, int], ColumnType]:
    """Column types of (type OID, modifier) pairs, as pg_attribute and pgoutput's relation messages give them.

    Domains are reduced to their base type, an array's element likewise.
    """
    wanted = set(types)
    bases = _base_types(conn, {oid for oid, _ in wanted})
    elements = _base_types(conn, {base.element_oid for base in bases.values() if base.element_oid})
    resolved: dict[tuple[int, int], ColumnType] = {}
    for oid, attribute_modifier in wanted:
        base = bases[oid]
        modifier = base.modifier(attribute_modifier)
        element = elements.get(base.element_oid)
        if element is None or element.element_oid:
            resolved[oid, attribute_modifier] = column_type(base.oid, modifier, extension_type=base.extension_type)
        else:
            # numeric(10,2)[] carries its elements' modifier; an element that is a domain has its own.
            resolved[oid, attribute_modifier] = column_type(
                base.oid, element.modifier(modifier), element_oid=element.oid
            )
    return resolved


def numeric_types(conn: PgConnection, oids: Iterable[int]) -> frozenset[int]:
    """Those of the types that are numeric, or arrays of numeric, below any domains."""
    wanted = set(oids)
    with source_errors("looking up types"):
        bases = _base_types(conn, wanted)
        elements = _base_types(conn, {base.element_oid for base in bases.values() if base.element_oid})
    return frozenset(
        oid
        for oid, base in bases.items()
        if base.oid == NUMERIC or (base.element_oid and elements[base.element_oid].oid == NUMERIC)
    )


def _base_types(conn: PgConnection, oids: set[int]) -> dict[int, _BaseType]:
    if not oids:
        return {}
    rows = conn.execute(_TYPES, (list(oids),)).fetchall()
    return {
        start: _BaseType(oid, modifier if is_domain else None, element, extension_type)
        for start, is_domain, oid, modifier, element, extension_type in rows
    }
