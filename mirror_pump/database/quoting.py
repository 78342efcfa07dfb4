"""Quotes names and texts for SQL: for PostgreSQL and DuckDB, which quote alike, and for Spark.

Texts become literals in statements that take no parameters, such as COPY and SET. psycopg's own quoting is not used:
without a connection it takes the encoding of the connection that the process used last.
"""

from __future__ import annotations

import re

_KEYWORDS = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case
    cast char character check coalesce collate collation column concurrently constraint create cross current_catalog
    current_date current_role current_schema current_time current_timestamp current_user dec decimal default
    deferrable desc distinct do else end except exists extract false fetch float for foreign freeze from full grant
    greatest group grouping having ilike in initially inner inout int integer intersect interval into is isnull join
    json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize
    json_table json_value lateral leading least left like limit localtime localtimestamp merge_action national
    natural nchar none normalize not notnull null nullif numeric offset on only or order out outer overlaps overlay
    placing position precision primary real references returning right row select session_user setof similar
    smallint some substring symmetric system_user table tablesample then time timestamp to trailing treat trim true
    union unique user using values varchar variadic verbose when where window with xmlattributes xmlconcat
    xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
    """.split()  # noqa: SIM905 - a list of 170 words as a page of prose
)
"""The keywords of PostgreSQL 18 (pg_get_keywords()) that quote_ident() quotes: all but the unreserved ones."""


def identifier(name: str) -> str:
    """The name as a quoted identifier of PostgreSQL and DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def printed_identifier(name: str) -> str:
    """The name as quote_ident() of PostgreSQL prints it, quoted only where necessary."""
    if re.fullmatch("[a-z_][a-z0-9_]*", name) and name not in _KEYWORDS:
        return name
    return identifier(name)


def literal(text: str) -> str:
    """The text as a literal of PostgreSQL and DuckDB. Connections pin standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


def in_query(sql: str) -> str:
    """The SQL as part of a query with parameters, with percent signs doubled."""
    return sql.replace("%", "%%")


def spark_identifier(name: str) -> str:
    """The name as a quoted identifier of Spark."""
    return "`" + name.replace("`", "``") + "`"


def spark_literal(text: str) -> str:
    """The text as a literal of Spark."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_NAME_BYTES = 63
"""NAMEDATALEN - 1 of the server."""


def shortened(name: str, suffix: str) -> str:
    """The name with the suffix, cut before it to the length of PostgreSQL's names."""
    return name.encode()[: _NAME_BYTES - len(suffix.encode())].decode(errors="ignore") + suffix
