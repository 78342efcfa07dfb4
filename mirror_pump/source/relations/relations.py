"""Reads the description of a relation from Postgres's catalogs: its columns, its key, its leaf partitions."""

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


def is_gone(conn: PgConnection, table_id: TableId) -> bool:
    """Whether no relation with this OID exists any more."""
    with source_errors("looking for a table"):
        return conn.execute("SELECT FROM pg_class WHERE oid = %s::bigint::oid", (table_id,)).fetchone() is None


def resolve_name(conn: PgConnection, text: str) -> tuple[TableName, TableId]:
    """The relation that `text` names, resolved as Postgres does: with case folding, quotes and the search_path.

    Raises UsageError if there is none.
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
                f"{text!r} is not a table name: {error.diag.message_primary}",
                "write it as in SQL: schema.table, with double quotes around names with capitals or special characters",
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
    schema, name, oid = row
    return TableName(schema, name), TableId(oid)


def describe(conn: PgConnection, oid: int, publication: str | None = None) -> RelationDescription:
    """Describes relation `oid` as `publication` sends it. None: as a publication made by the mirror would.

    Raises TableError if the relation does not exist (any more).
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
            leaf_id,
            TableName(leaf_schema, leaf_name),
            leaf_kind,
            leaf_persistence,
            filenode,
            blocks,
            estimated_rows,
            identities[leaf_id],
            leaf_row_security,
            readable,
        )
        for (
            leaf_id,
            leaf_schema,
            leaf_name,
            leaf_kind,
            leaf_persistence,
            filenode,
            blocks,
            estimated_rows,
            leaf_row_security,
            readable,
        ) in leaf_rows
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
    """The value of RelationDescription.full_needs_generated on this server."""
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

# pg_relation_size is 0 for a relation without storage, and NULL for one that was just dropped.
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

# Follows RelationGetIndexList in the server: under `d` and `f` the mirror's key is the primary key, under `i` the
# chosen index. Only the first indnkeyatts columns count; the INCLUDE columns after them do not.
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
    """The published columns, and the names of the generated columns that are not published. `stored`: stored generated
    columns are published."""
    published: list[tuple[int, str, int, int, str, bool]] = []
    generated: list[str] = []
    for attnum, name, type_oid, modifier, type_sql, not_null, left_out in conn.execute(
        _COLUMNS, {"oid": oid, "stored": stored}
    ).fetchall():
        if left_out:
            generated.append(name)
        else:
            published.append((attnum, name, type_oid, modifier, type_sql, not_null))
    types = resolve_types(conn, ((type_oid, modifier) for _, _, type_oid, modifier, _, _ in published))
    columns = tuple(
        Column(attnum, name, type_oid, modifier, type_sql, types[type_oid, modifier], field_id, not_null)
        for field_id, (attnum, name, type_oid, modifier, type_sql, not_null) in enumerate(published, start=1)
    )
    return columns, tuple(generated)


# The modifier of a domain is in the domain (typtypmod), as in getBaseTypeAndTypmod of the server: the attribute has
# none. A type is an array only if its element names it as its array type, because name, point and int2vector have a
# typelem too. Arrays whose elements are not separated by commas (box) stay text.
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
            # numeric(10,2)[] has the modifier of its elements. An element that is a domain has its own.
            resolved[oid, attribute_modifier] = column_type(
                base.oid, element.modifier(modifier), element_oid=element.oid
            )
    return resolved


def numeric_types(conn: PgConnection, oids: Iterable[int]) -> frozenset[int]:
    """The types among `oids` that are numeric, or arrays of numeric, after resolving domains."""
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
