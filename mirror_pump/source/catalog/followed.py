"""The patterns of tables that join the mirror when they are created, and the tables that match and do not join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.model import TableId, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.table_patterns import parse_pattern
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("followed")


@dataclass(frozen=True)
class NewTablePattern:
    """Tables that join by themselves. The fields are columns of modak.mirror_followed."""

    pattern: str
    """As it was typed, with a schema."""
    excluded: list[str]
    """Patterns of tables that do not join."""
    profile: str | None
    """The storage profile of the tables that join; None for the default one."""

    def means(self, table: TableName) -> bool:
        """Whether a table joins."""
        return parse_pattern(self.pattern).matches(table) and not any(
            parse_pattern(text).matches(table) for text in self.excluded
        )


@dataclass(frozen=True)
class NotJoined:
    """A table that matches, and is refused."""

    schema: str
    name: str
    error: str

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.name)


@dataclass(frozen=True)
class NewTable:
    """A table that nothing mirrors. A row of the query `new`."""

    table_id: TableId
    schema: str
    name: str

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.name)


def followed_patterns(connection: PgConnection, slot: str) -> list[NewTablePattern]:
    """Reads the patterns, ordered."""
    return fetch_rows(connection, NewTablePattern, _SQL["patterns"], {"slot": slot})


def follow_patterns(
    connection: PgConnection, slot: str, patterns: Sequence[str], excluded: Sequence[str], profile: str | None
) -> None:
    """Has tables that match join from now on. A pattern that is followed already gets these exclusions and profile."""
    with source_errors("recording which tables join by themselves"), connection.transaction():
        for pattern in patterns:
            parameters = {"slot": slot, "pattern": pattern, "excluded": list(excluded), "profile": profile}
            connection.execute(_SQL["follow"], parameters)


def end_following(connection: PgConnection, slot: str, pattern: str) -> bool:
    """Has no table join for this pattern any more. Returns False if none did."""
    with source_errors("recording which tables join by themselves"):
        return connection.execute(_SQL["end"], {"slot": slot, "pattern": pattern}).rowcount > 0


def new_tables(connection: PgConnection, slot: str) -> list[NewTable]:
    """The tables that could join now, whether they match or not."""
    connection.execute(_SQL["forget"], {"slot": slot})
    return fetch_rows(connection, NewTable, _SQL["new"])


def refuse_to_join(connection: PgConnection, slot: str, table_id: TableId, error: str) -> None:
    """Records why a table that matches cannot join. It is tried again later."""
    connection.execute(_SQL["refused"], {"slot": slot, "table_id": table_id, "error": error})


def leave_alone(connection: PgConnection, table_id: TableId) -> None:
    """Keeps a table that is being unregistered from joining by itself, in the caller's transaction."""
    connection.execute(_SQL["left_alone"], {"table_id": table_id})


def tables_left_alone(connection: PgConnection, slot: str) -> set[TableId]:
    """The tables that were unregistered, and do not join by themselves."""
    with source_errors("reading which tables do not join"):
        return {TableId(table_id) for (table_id,) in connection.execute(_SQL["stay_away"], {"slot": slot})}


def forget_refusal(connection: PgConnection, table_id: TableId) -> None:
    """Forgets that a table did not join, in the transaction that registers it."""
    connection.execute(_SQL["joined"], {"table_id": table_id})


def not_joined(connection: PgConnection, slot: str) -> list[NotJoined]:
    """The tables that match and are refused, ordered by name."""
    return fetch_rows(connection, NotJoined, _SQL["not_joined"], {"slot": slot})
