"""Compares a moment's rows in the lake with a receipt, and with the heap where that can be done.

The heap has only the present. So it can be compared with a moment if the table's rows have not changed in the lake
since: then the moment is as of the present frontier, too. The heap is read in one snapshot of the database, which may
have changes that are not mirrored yet: if it is not equal then, that is no proof of a fault, and `verify` can tell.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from decoders.columns import Kind
from decoders.pgtypes import JSONB
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import LakeError, TableError
from mirror_pump.lake.contents.snapshot_history import only_rewritten_since
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.model import format_lsn
from mirror_pump.ops.moments.digests import RowsDigest, rows_digest
from mirror_pump.ops.moments.dropping import one_moment
from mirror_pump.ops.moments.receipts import MomentReader, Receipt
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.kept_moments import KeptMoment, KeptTable
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors


class CheckResult(StrEnum):
    """What a comparison has shown."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class MomentTableCheck:
    """One table of a moment."""

    table: str
    rows: int | None
    """Of the moment, in the lake. None if they cannot be read."""
    receipt: CheckResult
    heap: CheckResult
    notes: tuple[str, ...]
    """What else there is to say, and why something was not compared."""

    @property
    def is_sound(self) -> bool:
        """Whether the lake has what the receipt says. The heap may be ahead."""
        return self.rows is not None and self.receipt is not CheckResult.DIFFERENT


def check(settings: Settings, name: str, receipt: Receipt | None) -> list[MomentTableCheck]:
    """Compare a moment with its receipt and the heap. Raises TableError if there is none of that name, or the receipt
    is of another one; SourceError."""
    reader = MomentReader.open(settings)
    with connect(settings.require_dsn(), application_name="mirror-pump-moment") as connection:
        with source_errors("reading the moment"):
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        moment = one_moment(connection, settings.slot, name)
        if receipt is not None and (receipt.moment, receipt.frontier) != (name, format_lsn(moment.frontier)):
            raise TableError(
                f"the receipt is of the moment {receipt.moment} at {receipt.frontier}, and {name} is at"
                f" {format_lsn(moment.frontier)}",
                "name the receipt of this moment",
            )
        checks = [_table_check(connection, reader, table, receipt) for table in moment.tables]
    return checks + _missing(moment, receipt)


def _missing(moment: KeptMoment, receipt: Receipt | None) -> list[MomentTableCheck]:
    """The tables that the receipt has and the moment has not."""
    names = {str(table.table) for table in moment.tables}
    return [
        MomentTableCheck(name, None, CheckResult.DIFFERENT, CheckResult.NOT_COMPARED, ("not in the moment",))
        for name in (() if receipt is None else receipt.tables)
        if name not in names
    ]


def _table_check(
    connection: PgConnection, reader: MomentReader, table: KeptTable, receipt: Receipt | None
) -> MomentTableCheck:
    name = str(table.table)
    expected = None if receipt is None else receipt.tables.get(name)
    try:
        digest = reader.digest(table, expected)
    except LakeError as error:
        return MomentTableCheck(name, None, CheckResult.NOT_COMPARED, CheckResult.NOT_COMPARED, (str(error),))
    notes: list[str] = []
    result = CheckResult.NOT_COMPARED
    if expected is not None:
        result = CheckResult.EQUAL if digest == expected else CheckResult.DIFFERENT
        notes += _differences(digest, expected)
    elif receipt is not None:
        result, notes = CheckResult.DIFFERENT, ["the receipt lacks it"]
    reason = _why_no_heap(connection, reader, table, digest)
    if reason is not None:
        return MomentTableCheck(name, digest.rows, result, CheckResult.NOT_COMPARED, (*notes, f"heap: {reason}"))
    heap = CheckResult.EQUAL if _heap_digest(connection, reader, table, digest) == digest else CheckResult.DIFFERENT
    if heap is CheckResult.DIFFERENT:
        notes.append("heap: has changes that are not mirrored yet, or differs: `mirror-pump verify` tells which")
    return MomentTableCheck(name, digest.rows, result, heap, tuple(notes))


def _differences(digest: RowsDigest, expected: RowsDigest) -> list[str]:
    return [
        f"rows from {expected_part.begin or 'the first'} on: {part.rows:,} rows, the receipt says"
        f" {expected_part.rows:,}{'' if part.rows != expected_part.rows else ', and other values'}"
        for part, expected_part in zip(digest.ranges, expected.ranges, strict=True)
        if part != expected_part
    ]


def _why_no_heap(connection: PgConnection, reader: MomentReader, table: KeptTable, digest: RowsDigest) -> str | None:
    """Why the heap cannot be compared with a moment's table. None if it can."""
    registered = load_table(connection, table.table_id)
    if registered is None or table.pointer is None:
        return "the table is not registered any more"
    if registered.tier is not None or table.snapshot_id != table.main_snapshot_id:
        return "the heap has a part of the rows only"
    if registered.excluded or registered.row_filter or registered.masked_columns:
        return "not all of it is mirrored as it is"
    names = [column.name for column in registered.columns]
    if names != [column.name for column in digest.columns]:
        return "its columns have changed since"
    variants = [column for column in registered.columns if column.type.kind is Kind.VARIANT]
    plain = [column.name for column in variants if column.type_oid != JSONB]
    if plain:
        return f"variants lose the white space of json ({', '.join(plain)})"
    nested = [column.name for column in digest.columns if column.is_nested]
    if nested:
        return f"PostgreSQL and DuckDB print arrays in different ways ({', '.join(nested)})"
    try:
        metadata = read_metadata(table.pointer, reader.storage)
    except LakeError as error:
        return str(error)
    if not only_rewritten_since(metadata, table.main_snapshot_id):
        return "it has changed since; only the present could be compared"
    return None


def _heap_digest(connection: PgConnection, reader: MomentReader, table: KeptTable, digest: RowsDigest) -> RowsDigest:
    """That of the heap, by a file of its rows as PostgreSQL prints them."""
    names: Sequence[str] = [identifier(column.name) for column in digest.columns]
    with tempfile.TemporaryDirectory(prefix="mirror-pump-check-") as directory:
        path = Path(directory) / "rows.csv"
        with source_errors(f"reading {table.table}"), path.open("wb") as file, connection.cursor() as cursor:
            relation = f"{identifier(table.table.schema)}.{identifier(table.table.name)}"
            statement = (
                f"COPY (SELECT {', '.join(names)} FROM {relation}) TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE *)"
            )
            with cursor.copy(statement.encode()) as rows:
                for block in rows:
                    file.write(block)
        options = (
            "header = true, all_varchar = true, allow_quoted_nulls = false, delim = ',', quote = '\"', escape = '\"'"
        )
        source = f"read_csv({literal(str(path))}, {options}, auto_detect = false, columns = {_columns(digest)})"
        bounds = [part.begin for part in digest.ranges if part.begin is not None]
        return rows_digest(reader.connection, source, digest.columns, digest.key, bounds, of_heap=True)


def _columns(digest: RowsDigest) -> str:
    return "{" + ", ".join(f"{literal(column.name)}: 'VARCHAR'" for column in digest.columns) + "}"
