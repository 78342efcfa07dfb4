"""Inserts rows of an ingest into the table, as its owner's applications do: with defaults, constraints and triggers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import TableError, one_line_of
from mirror_pump.model import MirroredTable
from mirror_pump.ops.ingest.ingest_target import IngestTarget
from mirror_pump.source.connect import PgConnection

_STAGE = "pg_temp.mirror_pump_ingest"


def insert_rows(
    connection: PgConnection, target: IngestTarget, parts: Iterable[bytes], names: Sequence[str], *, refuses: bool
) -> None:
    """Writes rows of CSV with the columns `names` to the table, in the open transaction. Existing rows with their keys
    are replaced, unless `refuses`. Raises TableError for a row that the table refuses."""
    relation = target.relation
    listed = ", ".join(map(identifier, names))
    with _row_errors(target.table), connection.cursor() as cursor:
        if refuses:
            _copy(cursor, f"{relation} ({listed})", parts)
            return
        cursor.execute(f"CREATE TEMP TABLE mirror_pump_ingest AS SELECT {listed} FROM {relation} WITH NO DATA".encode())
        _copy(cursor, f"{_STAGE} ({listed})", parts)
        cursor.execute(
            f"INSERT INTO {relation} ({listed}) OVERRIDING SYSTEM VALUE SELECT {listed} FROM {_STAGE}"
            f" {_on_conflict(target)}".encode()
        )
        cursor.execute(f"DROP TABLE {_STAGE}".encode())


def _copy(cursor: psycopg.Cursor[tuple[object, ...]], into: str, parts: Iterable[bytes]) -> None:
    with cursor.copy(f"COPY {into} FROM STDIN (FORMAT csv)".encode()) as copy:
        for part in parts:
            copy.write(part)


def _on_conflict(target: IngestTarget) -> str:
    """The whole row is replaced: columns that the input lacks get their default."""
    key = target.table.key
    others = [
        column.name
        for column in target.columns
        # PostgreSQL changes no identity that is always generated.
        if column.name not in key and not column.is_generated and column.identity != "a"
    ]
    assignments = ", ".join(f"{identifier(name)} = excluded.{identifier(name)}" for name in others)
    action = f"UPDATE SET {assignments}" if others else "NOTHING"
    return f"ON CONFLICT ({', '.join(map(identifier, key))}) DO {action}"


@contextmanager
def _row_errors(table: MirroredTable) -> Iterator[None]:
    """Turns what PostgreSQL says of a row into TableError."""
    try:
        yield
    except psycopg.errors.CardinalityViolation as error:
        raise TableError(
            f"two rows of the input have the same key of {table.name}", "leave one of them out: nothing was ingested"
        ) from error
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.RaiseException) as error:
        detail = one_line_of(error.diag.message_detail or "")
        raise TableError(
            f"{table.name}: {one_line_of(error.diag.message_primary or error)}" + (f" ({detail})" if detail else ""),
            _remedy(error),
        ) from error


def _remedy(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.UniqueViolation):
        return "nothing was ingested; leave the row out, or replace rows with --on-conflict replace"
    # A row without a partition violates no constraint that has a name.
    if isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None:
        return (
            "nothing was ingested. Rows at or above the cut-line need a partition: create one for them. Rows of before"
            " the first partition go to the lake if the table is tiered, and otherwise once the cut-line has moved"
        )
    return "nothing was ingested"
