"""Names and texts as the dialects of SQL want them: PostgreSQL's, which is DuckDB's as well, and Spark's.

Texts are literals where a statement takes no parameters, as COPY and SET. psycopg's own quoting is not used for them:
without a connection it takes the encoding of whichever connection the process used last.
"""

from __future__ import annotations


def identifier(name: str) -> str:
    """The name as PostgreSQL and DuckDB want it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as PostgreSQL's and DuckDB's literal: standard_conforming_strings is pinned."""
    return "'" + text.replace("'", "''") + "'"


def in_query(sql: str) -> str:
    """Part of a query with parameters: there a percent sign is doubled."""
    return sql.replace("%", "%%")


def spark_identifier(name: str) -> str:
    """The name as Spark wants it."""
    return "`" + name.replace("`", "``") + "`"


def spark_literal(text: str) -> str:
    """The text as Spark's literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
