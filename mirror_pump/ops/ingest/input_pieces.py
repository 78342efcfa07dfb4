"""The input of an ingest: which columns its files have, and its rows in pieces, each of which a thread parses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable
from mirror_pump.ops.ingest.conversions import is_unfit
from mirror_pump.ops.ingest.csv_input import CsvLayout, csv_names, parse_csv, without_header
from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.input_batch import InputBatch
from mirror_pump.ops.ingest.jsonl_input import jsonl_names, parse_jsonl
from mirror_pump.ops.ingest.parquet_input import read_row_group, read_schema
from mirror_pump.ops.ingest.target_columns import IngestTarget, choose_target, is_plain, read_at_once, read_columns
from mirror_pump.ops.ingest.text_blocks import TextBlock, text_blocks
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.input_files import STDIN, InputFile, find_files
from mirror_pump.source.connect import PgConnection

Batches = Callable[[], Iterator[InputBatch]]
"""Parses one piece of the input, in a thread."""

_HEAD_BYTES = 256 << 10
"""Bytes that are read of a file to find its columns."""


class IngestInput:
    """The files of one ingest. Used by one thread."""

    def __init__(self, request: IngestRequest, storage: StorageOptions) -> None:
        self._request = request
        self._storage = storage
        self.files = find_files(request.files, request.format, storage)
        self._names_of: dict[int, tuple[str, ...]] = {}
        self._stdin: Iterable[TextBlock] | None = None

    @property
    def size(self) -> int:
        """Bytes of all files, as stored; 0 if unknown."""
        sizes = [file.size for file in self.files]
        return sum(sizes) if all(sizes) else 0

    def target(self, connection: PgConnection, table: MirroredTable) -> IngestTarget:
        """How the table's columns get their values from those that all files have. Raises UsageError, TableError."""
        relation, columns = read_columns(connection, table)
        given: tuple[str, ...] | None = None
        for file in self.files:
            names = self._names_of[file.number] = self._names(file)
            if given is not None and set(names) != set(given):
                raise UsageError(
                    f"{file.name} has the columns {', '.join(names)}, and {self.files[0].name} {', '.join(given)}",
                    "ingest files of different columns one after the other",
                )
            given = given or names
        target = choose_target(connection, table, relation, columns, given or ())
        for file in self.files:
            if file.format is FileFormat.PARQUET:
                self._require_types(file, target)
        return target

    def _names(self, file: InputFile) -> tuple[str, ...]:
        chosen = self._request.columns
        if chosen:
            return chosen
        if file.format is FileFormat.PARQUET:
            return tuple(read_schema(file, self._storage)[0].names)
        first = self._first_block(file)
        return csv_names(first, file, self._request.csv) if file.format is FileFormat.CSV else jsonl_names(first)

    def _first_block(self, file: InputFile) -> TextBlock | None:
        """The beginning of a text file. Of stdin, which is read once, it is kept."""
        is_csv = file.format is FileFormat.CSV
        if file.location != STDIN:
            return next(text_blocks(file, self._storage, quoted=is_csv, block_bytes=_HEAD_BYTES), None)
        blocks = text_blocks(file, self._storage, quoted=is_csv)
        first = next(blocks, None)
        self._stdin = blocks if first is None else chain([first], blocks)
        return first

    def _blocks(self, file: InputFile) -> Iterable[TextBlock]:
        if file.location == STDIN and self._stdin is not None:
            return self._stdin
        return text_blocks(file, self._storage, quoted=file.format is FileFormat.CSV)

    def _require_types(self, file: InputFile, target: IngestTarget) -> None:
        """Raises TableError for a Parquet column that no value of which fits."""
        schema, _ = read_schema(file, self._storage)
        missing = [name for name in target.given if name not in schema.names]
        if missing:
            raise UsageError(f"{file.name} has no column {', '.join(missing)}", f"it has {', '.join(schema.names)}")
        for column in target.lake_columns:
            if column.name not in target.given or not is_plain(target.column(column.name), column):
                continue
            kind = schema.field(column.name).type
            if is_unfit(kind, column, target.column(column.name)):
                raise TableError(
                    f"{file.name}: column {column.name} is {kind}, which does not fit into {column.type_sql} without"
                    " loss",
                    "convert it, or give it as strings: these are read as PostgreSQL reads them",
                )

    def pieces(self, target: IngestTarget) -> Iterator[Batches]:
        """The input in pieces. Raises TableError for a file that cannot be read."""
        arrays = frozenset(column.name for column in target.columns if column.type_sql.endswith("[]"))
        for file in self.files:
            if file.format is FileFormat.PARQUET:
                for group in read_schema(file, self._storage)[1]:
                    yield partial(read_row_group, group, target.given, self._storage)
            elif file.format is FileFormat.CSV:
                layout = CsvLayout(self._names_of[file.number], self._request.csv, read_at_once(target))
                for block in without_header(self._blocks(file), self._request.csv):
                    yield partial(_parsed_csv, block, layout)
            else:
                subset = bool(self._request.columns)
                for block in self._blocks(file):
                    yield partial(_parsed_jsonl, block, target.given, arrays, subset)


def _parsed_csv(block: TextBlock, layout: CsvLayout) -> Iterator[InputBatch]:
    batch = parse_csv(block, layout)
    block.release()
    yield batch


def _parsed_jsonl(
    block: TextBlock, names: tuple[str, ...], arrays: frozenset[str], subset: bool
) -> Iterator[InputBatch]:
    batch = parse_jsonl(block, names, arrays, subset=subset)
    block.release()
    yield batch
