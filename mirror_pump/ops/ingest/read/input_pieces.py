"""The input of an ingest: which columns its files have, and its rows in pieces, each of which a thread parses."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

from mirror_pump.errors import TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable
from mirror_pump.ops.ingest.convert.conversions import is_unfit
from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingest_target import (
    IngestTarget,
    choose_target,
    is_plain,
    read_at_once,
    read_columns,
)
from mirror_pump.ops.row_files.csv_rows import TextLayout
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.input_files import (
    STDIN,
    InputColumns,
    InputFile,
    find_files,
    open_parquet_input,
    open_stored,
)
from mirror_pump.ops.row_files.parquet_rows import RowGroup, group_rows, open_parquet, require_columns, row_groups
from mirror_pump.ops.row_files.row_batch import RowBatch
from mirror_pump.ops.row_files.text_blocks import BLOCK_BYTES, TextBlock, text_blocks
from mirror_pump.ops.row_files.text_rows import named_blocks, parsed
from mirror_pump.source.connect import PgConnection

Batches = Callable[[], Iterator[RowBatch]]
"""Parses one piece of the input, in a thread."""

_HEAD_BYTES = 256 << 10
"""Bytes that are read of a file at a time to find its columns."""


class IngestInput:
    """The files of one ingest. Used by one thread."""

    def __init__(self, request: IngestRequest, storage: StorageOptions) -> None:
        self._request = request
        self._storage = storage
        self.files = find_files(request.files, request.format, storage)
        self._layouts: dict[int, TextLayout] = {}
        """Of text files, by number."""
        self._stdin: Iterator[TextBlock] | None = None
        """Its blocks: it is read once."""

    @property
    def size(self) -> int:
        """Bytes of all files, as stored; 0 if unknown."""
        sizes = [file.size for file in self.files]
        return sum(sizes) if all(sizes) else 0

    def target(self, connection: PgConnection, table: MirroredTable) -> IngestTarget:
        """How the table's columns get their values from those that all files have. Raises UsageError, TableError."""
        relation, columns = read_columns(connection, table)
        given = InputColumns()
        for file in self.files:
            given.add(file, self._names(file))
        names = given.names
        if names is None:
            # No row has any.
            names = tuple(column.name for column in columns if not column.is_generated)
        target = choose_target(connection, table, relation, columns, names)
        for file in self.files:
            if file.format is FileFormat.PARQUET:
                self._require_types(file, target)
        return target

    def _names(self, file: InputFile) -> tuple[str, ...] | None:
        chosen = self._request.columns
        if file.format is FileFormat.PARQUET:
            if chosen:
                return chosen
            with open_parquet_input(file, self._storage) as source:
                return tuple(open_parquet(file, source).schema_arrow.names)
        layout = TextLayout(file, chosen, self._request.csv, subset=bool(chosen))
        if file.location == STDIN:
            names, self._stdin = self._blocks(layout, BLOCK_BYTES)
        else:
            names, _ = self._blocks(layout, _HEAD_BYTES)
        self._layouts[file.number] = replace(layout, names=names or ())
        return names

    def _blocks(self, layout: TextLayout, block_bytes: int) -> tuple[tuple[str, ...] | None, Iterator[TextBlock]]:
        opened = open_stored(layout.file, self._storage)
        return named_blocks(text_blocks(layout.file, opened, block_bytes=block_bytes), layout)

    def _require_types(self, file: InputFile, target: IngestTarget) -> None:
        """Raises TableError for a Parquet column that no value of which fits."""
        with open_parquet_input(file, self._storage) as source:
            parquet = open_parquet(file, source)
            require_columns(file, parquet, target.given)
            schema = parquet.schema_arrow
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
        typed = read_at_once(target)
        for file in self.files:
            if file.format is FileFormat.PARQUET:
                with open_parquet_input(file, self._storage) as source:
                    groups = row_groups(file, open_parquet(file, source))
                for group in groups:
                    yield partial(_group_rows, group, target.given, self._storage)
                continue
            layout = self._layouts[file.number]
            if self._stdin is not None and file.location == STDIN:
                blocks = self._stdin
            else:
                _, blocks = self._blocks(layout, BLOCK_BYTES)
            # A file without rows of JSON has no columns of its own.
            layout = replace(layout, names=layout.names or target.given, typed=typed)
            for block in blocks:
                yield partial(_text_rows, block, layout)


def _group_rows(group: RowGroup, names: tuple[str, ...], storage: StorageOptions) -> Iterator[RowBatch]:
    with open_parquet_input(group.file, storage) as source:
        yield from group_rows(open_parquet(group.file, source), group, names)


def _text_rows(block: TextBlock, layout: TextLayout) -> Iterator[RowBatch]:
    yield parsed(block, layout)


Piece = TypeVar("Piece")
Result = TypeVar("Result")


def results_in_order(
    pool: Executor, pieces: Iterable[Piece], work: Callable[[Piece], Result], most: int
) -> Iterator[Result]:
    """The result of each piece. The first error ends it; of several, that of the first piece.

    `most` pieces wait or run at a time, and the next one is read. Whichever is done makes room, not the first one: it
    may take as long as many others.
    """
    running: deque[Future[Result]] = deque()
    room = threading.Semaphore(most)
    for piece in pieces:
        room.acquire()
        future = pool.submit(work, piece)
        future.add_done_callback(lambda _: room.release())
        running.append(future)
        while running and running[0].done():
            yield running.popleft().result()
    while running:
        yield running.popleft().result()
