"""The row that is looked for: its values as PostgreSQL prints them, and whether the heap or a correction has it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Error, errors

from mirror_pump.database.quoting import identifier, in_query
from mirror_pump.errors import UsageError, one_line_of
from mirror_pump.model import TableId, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("where")
_SEPARATOR = chr(31)
_ANY_PART = rf"(?:[^\\{_SEPARATOR}]|\\.)*"
"""The pattern of a part of a key: a separator within it has a backslash before it."""
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


@dataclass(frozen=True)
class _SearchedColumn:
    """A row of the query `columns`."""

    name: str
    type_sql: str
    whole_type_sql: str
    casts: bool
    """Whether no code of the table's owner runs when a text is cast to the type."""

    @property
    def sql(self) -> str:
        """Its name in a query with parameters."""
        return in_query(identifier(self.name))

    def same_as(self, value: str) -> str:
        """The condition that the column `t` has the value of a parameter, which is a text that PostgreSQL printed. Only
        its own types are compared by an operator: that of a user's type may be in any schema."""
        if "." in self.type_sql:
            return f"format('%%s', t.{self.sql}) = {value}"
        return f"t.{self.sql} = {value}::{in_query(self.whole_type_sql)}"


@dataclass(frozen=True)
class SearchedRow:
    """Values of some columns of a relation."""

    relation: TableName
    table_id: TableId
    texts: Mapping[str, str]
    """By column, as PostgreSQL prints them."""
    columns: Sequence[_SearchedColumn]
    """Those that the relation has now: none if it is gone."""

    def in_heap(self, connection: PgConnection) -> int | None:
        """Number of rows in the heap. None if the role may not read all of them. Raises SourceError."""
        conditions = [column.same_as(f"%({number})s") for number, column in enumerate(self.columns)]
        query = f"SELECT count(*) FROM {in_query(self.relation.quoted)} t WHERE {' AND '.join(conditions)}"
        with source_errors(f"looking into {self.relation}"):
            try:
                with connection.transaction():
                    # Rather no answer than one without the rows that a policy hides.
                    connection.execute("SET LOCAL row_security = off")
                    return self._count(connection, query)
            except errors.InsufficientPrivilege:
                return None

    def in_delta(self, connection: PgConnection, key: Sequence[str]) -> int:
        """Number of corrections. A tombstone has no values but those of the `key`. Raises SourceError."""
        conditions = [
            f"t.{column.sql} IS NOT NULL AND format('%%s', t.{column.sql}) = %({number})s"
            for number, column in enumerate(self.columns)
        ]
        # Not as a row of the table: that has the domains.
        definitions = ", ".join(f"{column.sql} {in_query(column.whole_type_sql)}" for column in self.columns)
        query = (
            f"SELECT count(*) FROM {SCHEMA}.delta d CROSS JOIN LATERAL"
            f" jsonb_to_record(coalesce(d.payload, '{{}}')) t({definitions})"
            f" WHERE d.table_id = %(table_id)s AND ({' AND '.join(conditions)}"
            " OR d.payload IS NULL AND d.pk ~ %(pk)s)"
        )
        with source_errors(f"looking at corrections of {self.relation}"):
            return self._count(connection, query, pk=self._pk(key))

    def _pk(self, key: Sequence[str]) -> str | None:
        """The pattern of `pk` (canonical_pk() in sql/functions/row_images.sql). None if a value is not of the key."""
        if not set(self.texts) <= set(key):
            return None
        booleans = {column.name for column in self.columns if column.type_sql == "boolean"}
        parts = []
        for name in key:
            text = self.texts.get(name)
            if text is None:
                parts.append(_ANY_PART)
                continue
            if len(key) > 1:
                text = text.replace("\\", r"\\").replace(_SEPARATOR, "\\" + _SEPARATOR)
            part = _SPECIAL.sub(r"\\\g<0>", text)
            # What prints as t is true in a key, unless its type is a domain.
            parts.append(f"(?:{part}|{'true' if text == 't' else 'false'})" if name in booleans else part)
        return f"^{_SEPARATOR.join(parts)}$"

    def _count(self, connection: PgConnection, query: str, **further: str | None) -> int:
        if len(self.columns) != len(self.texts):
            return 0
        values = {str(number): self.texts[column.name] for number, column in enumerate(self.columns)}
        parameters = {**values, **further, "table_id": self.table_id}
        ((rows,),) = connection.execute(query.encode(), parameters).fetchall()
        return int(rows)


def searched_row(
    connection: PgConnection, relation: TableName, table_id: TableId, given: Mapping[str, str]
) -> SearchedRow:
    """`given`: values by column, in any form that PostgreSQL reads. Those of columns that it does not have are taken as
    they are. Raises UsageError for one that is no value of its column."""
    with source_errors(f"looking at {relation}"):
        parameters = {"table_id": table_id, "names": list(given)}
        columns = fetch_rows(connection, _SearchedColumn, _SQL["columns"], parameters)
    texts = dict(given)
    for column in columns:
        if not column.casts:
            raise UsageError(
                f"values of column {column.name}, of type {column.whole_type_sql}, do not compare: to read them could"
                " run code of the table's owner",
                "name columns of other types",
            )
        plain, whole = (in_query(sql) for sql in (column.type_sql, column.whole_type_sql))
        # A cast to a type with a modifier rounds numbers and cuts texts off.
        same = "true" if plain == whole else f"%(value)s::{plain} = %(value)s::{whole}"
        query = f"SELECT format('%%s', %(value)s::{whole}), {same}"
        value = given[column.name]
        try:
            with connection.transaction():
                ((text, fits),) = connection.execute(query.encode(), {"value": value}).fetchall()
        except Error as error:
            if error.sqlstate is None or error.sqlstate[:2] not in ("22", "42"):
                raise
            raise UsageError(
                f"{value!r} is no value of column {column.name}, of type {column.whole_type_sql}: {one_line_of(error)}",
                "give a value of the type, as in SQL without its quotes",
            ) from error
        if not fits:
            raise UsageError(
                f"{value!r} does not fit column {column.name}, of type {column.whole_type_sql}",
                f"give a value that the column can have, such as {text}",
            )
        texts[column.name] = str(text)
    return SearchedRow(relation, table_id, texts, columns)
