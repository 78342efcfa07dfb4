"""Compares a moment's rows in the lake with a receipt, and with the heap where that can be done.

The heap has only the present. So it can be compared with a moment if the table's rows have not changed in the lake
since: then the moment is as of the present frontier, too. The heap is read in one snapshot of the database, which may
have changes that are not mirrored yet: if it is not equal then, that is no proof of a fault, and `verify` can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from decoders.pgtypes import JSONB
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import LakeError, TableError
from mirror_pump.lake.contents.snapshot_history import only_rewritten_since
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.model import format_lsn
from mirror_pump.ops.moments.digests import RowsDigest, heap_text, printed_text
from mirror_pump.ops.moments.dropping import one_moment
from mirror_pump.ops.moments.moment_reader import MomentReader, MomentRows
from mirror_pump.ops.moments.receipts import DigestMethod, Receipt
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
        with MomentReader.open(settings, moment) as reader:
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
    try:
        rows = reader.rows(table)
        if receipt is None:
            digest = reader.digest(table, rows, reader.bounds(table, rows, None))
            result, notes = CheckResult.NOT_COMPARED, list[str]()
        else:
            digest, result, notes = _compared(reader, table, rows, receipt)
    except LakeError as error:
        return MomentTableCheck(name, None, CheckResult.NOT_COMPARED, CheckResult.NOT_COMPARED, (str(error),))
    heap, heap_notes = _heap_result(connection, reader, table, rows, digest)
    return MomentTableCheck(name, digest.rows, result, heap, (*notes, *heap_notes))


def _compared(
    reader: MomentReader, table: KeptTable, rows: MomentRows, receipt: Receipt
) -> tuple[RowsDigest, CheckResult, list[str]]:
    """The digest of a table's rows by the receipt's method, and what the comparison has shown. Raises LakeError."""
    if receipt.method is DigestMethod.FIRST:
        rows = reader.rows(table, by_names=True)
    expected = receipt.tables.get(str(table.table))
    digest = reader.digest(table, rows, reader.bounds(table, rows, expected), receipt.method.row_text)
    if expected is None:
        return digest, CheckResult.DIFFERENT, ["the receipt lacks it"]
    notes = _differences(digest, expected)
    pairs = [f"{column.name} and {column.raw}" for column in rows.columns if column.raw is not None]
    if pairs and receipt.method is DigestMethod.FIRST:
        notes.append(
            f"the receipt's method {receipt.method.value} covers one value of each row of {', '.join(pairs)}: the"
            " second if there is one, and not the first beside it. `mirror-pump moment check NAME --write-receipt FILE`"
            " writes one that covers both"
        )
    return digest, CheckResult.EQUAL if digest == expected else CheckResult.DIFFERENT, notes


def _differences(digest: RowsDigest, expected: RowsDigest) -> list[str]:
    notes = []
    if (digest.columns, digest.key) != (expected.columns, expected.key):
        notes.append("the receipt is of other columns, types or another key")
    begins, expected_begins = ([part.begin for part in table.ranges] for table in (digest, expected))
    if begins != expected_begins:
        return [*notes, "the receipt's ranges begin at what is no value of the key"]
    return notes + [
        f"rows from {expected_part.begin or 'the first'} on: {part.rows:,} rows, the receipt says"
        f" {expected_part.rows:,}{'' if part.rows != expected_part.rows else ', and other values'}"
        for part, expected_part in zip(digest.ranges, expected.ranges, strict=True)
        if part != expected_part
    ]


def _heap_result(
    connection: PgConnection, reader: MomentReader, table: KeptTable, rows: MomentRows, digest: RowsDigest
) -> tuple[CheckResult, list[str]]:
    """What a comparison with the heap has shown, and what there is to say. `digest`: of the lake, by any method."""
    reason = _why_no_heap(connection, reader, table, rows)
    if reason is not None:
        return CheckResult.NOT_COMPARED, [f"heap: {reason}"]
    path = reader.directory / f"{table.table_id}.csv"
    try:
        heap = reader.digest(table, replace(rows, source=_heap_copy(connection, table, rows, path)), (), heap_text)
        if any(column.raw is not None for column in (*rows.columns, *digest.columns)):
            digest = reader.digest(table, rows, (), printed_text)
    except LakeError as error:
        return CheckResult.NOT_COMPARED, [f"heap: {error}"]
    finally:
        path.unlink(missing_ok=True)
    if (heap.rows, heap.digest) == (digest.rows, digest.digest):
        return CheckResult.EQUAL, []
    note = "heap: has changes that are not mirrored yet, or differs: `mirror-pump verify` tells which"
    return CheckResult.DIFFERENT, [note]


def _why_no_heap(connection: PgConnection, reader: MomentReader, table: KeptTable, rows: MomentRows) -> str | None:
    """Why the heap cannot be compared with a moment's table. None if it can."""
    registered = load_table(connection, table.table_id)
    if registered is None or table.pointer is None:
        return "the table is not registered any more"
    if registered.tier is not None or table.snapshot_id != table.main_snapshot_id:
        return "the heap has a part of the rows only"
    if registered.excluded or registered.row_filter or registered.masked_columns:
        return "not all of it is mirrored as it is"
    names = [column.name for column in registered.columns]
    if names != [column.name for column in rows.columns]:
        return "its columns have changed since"
    variants = [column for column in registered.columns if column.type.is_document]
    plain = [column.name for column in variants if column.type_oid != JSONB]
    if plain:
        return f"variants lose the white space of json ({', '.join(plain)})"
    nested = [column.name for column in rows.columns if column.is_nested]
    if nested:
        return f"PostgreSQL and DuckDB print arrays in different ways ({', '.join(nested)})"
    try:
        metadata = read_metadata(table.pointer, reader.storage)
    except LakeError as error:
        return str(error)
    if not only_rewritten_since(metadata, table.main_snapshot_id):
        return "it has changed since; only the present could be compared"
    return None


def _heap_copy(connection: PgConnection, table: KeptTable, rows: MomentRows, path: Path) -> str:
    """SQL of a relation with the heap's rows as PostgreSQL prints them, which are written to a file."""
    with source_errors(f"reading {table.table}"), path.open("wb") as file, connection.cursor() as cursor:
        names = ", ".join(identifier(column.name) for column in rows.columns)
        statement = f"COPY (SELECT {names} FROM {table.table.quoted}) TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE *)"
        with cursor.copy(statement.encode()) as blocks:
            for block in blocks:
                file.write(block)
    options = "header = true, all_varchar = true, allow_quoted_nulls = false, delim = ',', quote = '\"', escape = '\"'"
    columns = ", ".join(f"{literal(column.name)}: 'VARCHAR'" for column in rows.columns)
    return f"read_csv({literal(str(path))}, {options}, auto_detect = false, columns = {{{columns}}})"
