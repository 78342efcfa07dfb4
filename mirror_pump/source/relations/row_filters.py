"""Row filters: conditions under which rows are mirrored, as the publication has them.

The server evaluates a filter for the old and the new version of each row that changes, and turns an UPDATE by which a
row enters or leaves into an INSERT or DELETE. A copy reads rows under the same condition, as the server prints it.

For the old version the server has what the replica identity has, so the filter's columns must be part of it: otherwise
it refuses each UPDATE and DELETE. And a row that enters by an UPDATE needs all of its values: the stream leaves out
large values that did not change, unless the replica identity is FULL.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.errors import SourceError, TableError
from mirror_pump.model import TableId
from mirror_pump.source.connect import PgConnection, limited, source_errors
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.stream.slot import add_to_publication, published_part, remove_from_publication
from sql import queries

_SQL = queries("publication")

_PARSED = "mirror_pump_row_filter"
"""The name of a prepared statement that is there for a moment."""


@dataclass(frozen=True)
class PublishedFilter:
    """A filter as the server understands it; a row of the query `filter`."""

    condition: str
    """As the server prints it."""
    column_numbers: list[int]
    """Attribute numbers of the columns in it."""
    has_large_values: bool
    """Whether the table has a column whose values may be stored outside of the row."""


def read_filter(connection: PgConnection, publication: str, relation: RelationDescription, condition: str) -> str:
    """A filter as the server prints it, after it was tried in the publication; empty for no `condition`.

    Changes nothing. Raises TableError if the server or the mirror refuses it.
    """
    if not condition:
        return ""
    name = relation.name
    with connection.transaction(force_rollback=True), limited(connection):
        remove_from_publication(connection, publication, relation.table_id)
        try:
            _require_closed(connection, relation, condition)
            add_to_publication(connection, publication, name, published_part((), condition))
        except SourceError as error:
            raise TableError(f"{name}: PostgreSQL refuses the row filter: {error}", "correct --where") from error
        row_filter = published_filter(connection, publication, relation.table_id)
    assert row_filter is not None
    refuse_filter(relation, row_filter)
    return row_filter.condition


def _require_closed(connection: PgConnection, relation: RelationDescription, condition: str) -> None:
    """Raise SourceError if the server cannot parse the condition between brackets.

    The publication has it between parentheses, and so would take `id > 0), TABLE other WHERE (true`. PostgreSQL's
    grammar closes each bracket by one of its own kind. What it takes between brackets thus closes neither these nor
    parentheses that it did not open, and is one expression if the publication takes it. It is parsed, not executed.
    """
    text = f"PREPARE {_PARSED} AS SELECT ARRAY[{condition}] FROM {relation.name.quoted}"
    with source_errors("reading the row filter"):
        # As a prepared statement it cannot be more than one.
        connection.execute(text.encode(), prepare=True)
        connection.execute(f"DEALLOCATE {_PARSED}".encode())


def published_filter(connection: PgConnection, publication: str, table_id: TableId) -> PublishedFilter | None:
    """The row filter that the publication has for a table now. None if the table is not in it."""
    return fetch_row(connection, PublishedFilter, _SQL["filter"], {"publication": publication, "table_id": table_id})


def refuse_filter(relation: RelationDescription, row_filter: PublishedFilter) -> None:
    """Raises TableError for a filter under which UPDATE would fail, or that the stream could not follow."""
    name, identity = relation.name, relation.identity
    columns = {column.attnum: column.name for column in relation.columns}
    hidden = [number for number in row_filter.column_numbers if number not in columns]
    if hidden:
        raise TableError(
            f"{name}: the row filter needs a column that is not mirrored", "mirror it, or choose another --where"
        )
    if identity.setting == "f":
        return
    full = f"ALTER TABLE {name.quoted} REPLICA IDENTITY FULL (each UPDATE and DELETE then logs the whole old row)"
    if relation.listed_by:
        full = f"choose another --where: {relation.against_full}"
    outside = [columns[number] for number in row_filter.column_numbers if columns[number] not in identity.key]
    if outside:
        raise TableError(
            f"{name}: PostgreSQL would refuse UPDATE and DELETE, as column {outside[0]} of the row filter is not part"
            " of the replica identity",
            full,
        )
    if row_filter.has_large_values and row_filter.column_numbers:
        raise TableError(
            f"{name}: a row that enters the row filter by an UPDATE would lack large values that did not change", full
        )
