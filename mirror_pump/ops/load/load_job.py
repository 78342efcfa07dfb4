"""One labelled load: its rows are staged in the session's own temporary table, and written in one transaction with the
label.

Invariant: the rows of a load and its label are committed together, once. Whatever is interrupted before the commit
leaves nothing behind, whatever comes after it with the same label gets the recorded result. `content` binds a label to
the bytes, the mode, the format and the columns of its load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, BinaryIO, TypeAlias, cast

import psycopg
import pyarrow as pa

from mirror_pump.database.errors import is_connection_loss
from mirror_pump.errors import MirrorPumpError, SourceError, UsageError
from mirror_pump.ops.clients.client import ANY_CLIENT, Client, Right
from mirror_pump.ops.load.content_stream import ContentStream, seekable
from mirror_pump.ops.row_files.csv_rows import CsvForm, TextLayout
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.input_files import InputColumns, InputFile
from mirror_pump.ops.row_files.parquet_rows import group_rows, open_parquet, require_columns, row_groups
from mirror_pump.ops.row_files.row_batch import InputError, RowBatch
from mirror_pump.ops.row_files.text_blocks import text_blocks
from mirror_pump.ops.row_files.text_rows import named_blocks, parsed
from mirror_pump.ops.row_files.value_texts import Unfit, column_texts
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.source.connect import PgConnection, as_source_error, connect, source_errors
from mirror_pump.source.loads import labels
from mirror_pump.source.loads.filtered_rows import RowFilter, TooManyFiltered
from mirror_pump.source.loads.load_target import LoadTarget, read_target
from mirror_pump.source.loads.load_writes import LoadCounts, LoadMode, LoadWrites
from mirror_pump.source.loads.staging import StagingTable
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.target_columns import TargetColumn

MOST_ROW_BYTES = 8 << 20
"""Of a row of text. The port of the pump reads rows of any client that may load."""
BATCH_ROWS = 8192
"""Rows that are sent at a time. Those of one that PostgreSQL refuses are sent again, to find it."""
_BLOCK_BYTES = {FileFormat.CSV: 4 << 20, FileFormat.JSONL: 1 << 20}
"""JSON lines take many times their size in memory while they are parsed."""
_PAGE_BYTES = 1 << 20
"""Read of a Parquet file at a time: a row group may be of any size."""


class LoadForbidden(UsageError):
    """The client has no right to load into the table."""


_LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_ATTEMPTS = 5
"""Attempts at a transaction that deadlocked with others."""
_PAUSE = Backoff(0.1, 2.0, 0.5)


@dataclass(frozen=True)
class LoadRequest:
    """What to load, and how."""

    table: str
    """As PostgreSQL reads the name."""
    label: str
    form: FileFormat
    mode: LoadMode = LoadMode.UPSERT
    columns: tuple[str, ...] | None = None
    """Names of the columns of a CSV file without a header; of other files those that are loaded. None: all."""
    max_filtered: int = 0
    """Rows that may be left out."""
    client: Client = ANY_CLIENT
    """Who loads."""

    def content(self, digest: str) -> dict[str, Any]:
        """What the label stands for."""
        columns = None if self.columns is None else list(self.columns)
        return {"digest": digest, "mode": self.mode.value, "format": self.form.value, "columns": columns}


@dataclass(frozen=True)
class LoadResult:
    """The load that is committed under a label."""

    table: str
    label: str
    replayed: bool
    """It had been committed before, and nothing was changed."""
    outcome: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The answer of the command and of the port (docs/cli-json.md)."""
        return {
            "table": self.table,
            "label": self.label,
            "state": "committed",
            "replayed": self.replayed,
            **self.outcome,
        }


LoadFile: TypeAlias = tuple[InputFile, Callable[[], AbstractContextManager[BinaryIO]]]
"""A file of a load, and what opens it."""


class LoadStep(StrEnum):
    """Where a load is."""

    READING = "reading"
    """The input is read into the session's temporary table."""
    WRITING = "writing"
    """The rows are written to the table."""
    COMMITTED = "committed"


def load(
    dsn: str,
    request: LoadRequest,
    stream: BinaryIO | Sequence[LoadFile],
    *,
    most_bytes: int | None = None,
    lock_timeout: float | None = None,
    total_bytes: int = 0,
    observe: Callable[[TableProgress], None] = lambda _: None,
) -> LoadResult:
    """Load the rows of `stream`, or of several files one after the other, unless a load with the label is committed.

    `most_bytes`: bytes that the input may have. `lock_timeout`: seconds to wait for each lock; without it as long as it
    takes. `total_bytes`: what there is to read, for `observe`. Raises TooManyFiltered, LabelTaken, LabelBusy,
    ContentTooLarge, TableError, InputError, UsageError, SourceError. After ConnectionLost it is not known whether the
    load is committed: the same load again tells.
    """
    if not _LABEL.fullmatch(request.label):
        raise UsageError("a label has 1 to 200 characters, none of them a control character", "such as etl-2026-11-21")
    if request.max_filtered < 0:
        raise UsageError("the number of rows that may be filtered is not negative")
    with connect(dsn, autocommit=True, application_name="mirror-pump-load", lock_timeout="0") as connection:
        with source_errors("preparing a load"):
            # Ordinary DML: policies of row security apply, and what is committed is where the database's standbys are.
            connection.execute("SET row_security = on")
            connection.execute("SET synchronous_commit = on")
            if lock_timeout is not None:
                connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{lock_timeout * 1000:.0f}ms",))
        body = InputFile(0, "the input", request.form, 0)
        inputs = stream if isinstance(stream, Sequence) else [(body, lambda: nullcontext(stream))]
        request = _permitted(connection, request)
        target, content = read_target(connection, request.table), ContentStream(most_bytes)
        return _LoadJob(connection, target, request, inputs, content, total_bytes, observe).run()


def _permitted(connection: PgConnection, request: LoadRequest) -> LoadRequest:
    """The request, for the table that was checked. Raises LoadForbidden if the client may not load into it, or there is
    none: the client does not learn which."""
    if request.client.grants is None:
        return request
    try:
        table, _ = resolve_name(connection, request.table)
        if request.client.may(Right.LOAD, table):
            get_logger("audit").info("loads rows", client=request.client.name, name=str(table), label=request.label)
            return replace(request, table=str(table))
    except UsageError:
        pass
    except SourceError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
    get_logger("audit").info("refused", client=request.client.name, name=request.table, label=request.label)
    raise LoadForbidden(
        f"{request.client.name} may not load into {request.table}", "have the access file grant it `load` there"
    )


class _LoadJob:
    def __init__(
        self,
        connection: PgConnection,
        target: LoadTarget,
        request: LoadRequest,
        inputs: Sequence[LoadFile],
        content: ContentStream,
        total_bytes: int,
        observe: Callable[[TableProgress], None],
    ) -> None:
        self._connection = connection
        self._target = target
        self._request = request
        self._inputs = inputs
        self._input = content
        self._total_bytes = total_bytes
        self._observe = observe
        self._filter = RowFilter(str(target.name), request.max_filtered)
        self._rows = 0

    def run(self) -> LoadResult:
        """Returns the committed load. Raises the errors of `load`."""
        try:
            return self._run()
        except (labels.LabelTaken, labels.LabelBusy):
            raise
        except psycopg.Error as error:
            converted = as_source_error(error, f"loading {self._target.name}")
            if not is_connection_loss(error):
                self._record_failure(converted)
            raise converted from error
        except MirrorPumpError as error:
            self._record_failure(error)
            raise

    def _run(self) -> LoadResult:
        if labels.recorded(self._connection, self._target, self._request.label) is not None:
            # Only a load of the same content gets the result.
            for _ in self._contents():
                pass
            content = self._request.content(self._input.digest())
            record = labels.recorded(self._connection, self._target, self._request.label, content)
            if record is not None:
                return self._result(record, replayed=True)
            raise labels.LabelBusy(
                f"{self._target.name}: the label {self._request.label!r} was swept meanwhile", "load again"
            )
        staging = self._stage()
        content = self._request.content(self._input.digest())
        retries = Retries(_PAUSE)
        while True:
            self._report(LoadStep.WRITING)
            try:
                result = self._commit(staging, content)
                self._report(LoadStep.COMMITTED)
                return result
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                if retries.failures + 1 == _ATTEMPTS:
                    raise
                retries.failed()
                retries.wait()

    def _stage(self) -> StagingTable | None:
        """Copies the input into the staging table, and reads it to its end. None for an input without names."""
        request, staging, columns = self._request, None, InputColumns()
        for file, content in self._contents():
            with open_rows(content, file, request.columns) as (names, batches):
                columns.add(file, names)
                if staging is None and names is not None:
                    staging = StagingTable(self._connection, self._columns(names))
                for batch in batches:
                    self._add(batch, staging)
        if staging is not None:
            staging.complete()
        return staging

    def _add(self, batch: RowBatch, staging: StagingTable | None) -> None:
        """Stages rows. Those of all files are numbered from 1."""
        numbers, refused = batch.numbers()
        begin = self._rows + 1
        self._rows += batch.rows + len(refused)
        if staging is not None and batch.rows:
            texts = [_texts(batch, column) for column in staging.columns]
            rows = pa.table([pa.array(begin + numbers), *texts], [str(place) for place in range(len(texts) + 1)])
            for first in range(0, batch.rows, BATCH_ROWS):
                staging.add(rows.slice(first, BATCH_ROWS), self._filter)
        for number, row in zip(refused.tolist(), batch.refused, strict=True):
            self._filter.reject(begin + number, row.reason)
        self._report(LoadStep.READING)

    def _contents(self) -> Iterator[tuple[InputFile, ContentStream]]:
        """The input, for each of its files once; what the caller does not read is read, too."""
        for file, opened in self._inputs:
            with opened() as stream:
                self._input.begin(stream)
                yield file, self._input
                self._input.drain()

    def _report(self, step: LoadStep) -> None:
        table = str(self._target.name)
        self._observe(TableProgress(table, step, self._input.count, self._total_bytes, self._rows))

    def _columns(self, names: Sequence[str]) -> Any:
        return self._target.chosen(names, key_only=self._request.mode is LoadMode.DELETE)

    def _commit(self, staging: StagingTable | None, content: dict[str, Any]) -> LoadResult:
        label, row_filter, counts = self._request.label, self._filter.copy(), LoadCounts()
        with self._connection.transaction():
            record = labels.begin(self._connection, self._target, label, content)
            if record is not None:
                return self._result(record, replayed=True)
            if staging is not None:
                writes = LoadWrites(self._connection, self._target, staging, self._request.mode, row_filter)
                counts = writes.write()
            labels.finish(self._connection, self._target, label, self._outcome(content, counts, row_filter))
            record = labels.recorded(self._connection, self._target, label, content)
            assert record is not None
        return self._result(record, replayed=False)

    def _outcome(self, content: dict[str, Any], counts: LoadCounts, row_filter: RowFilter) -> dict[str, Any]:
        return {
            "content": content,
            "bytes": self._input.count,
            "rows_read": self._rows,
            "rows_loaded": counts.loaded,
            "rows_below_cutline": counts.below_cutline,
            "rows_superseded": counts.superseded,
            "rows_not_found": counts.not_found,
            "rows_filtered": row_filter.count,
            "filtered": [row.to_json() for row in row_filter.shown],
        }

    def _result(self, outcome: dict[str, Any], *, replayed: bool) -> LoadResult:
        return LoadResult(str(self._target.name), self._request.label, replayed, outcome)

    def _record_failure(self, error: MirrorPumpError) -> None:
        """For operators who look at the label; the label stays free."""
        filtered = error.filtered if isinstance(error, TooManyFiltered) else ()
        outcome = {"error": str(error), "filtered": [row.to_json() for row in filtered]}
        with suppress(psycopg.Error):
            labels.fail(self._connection, self._target, self._request.label, outcome)


def _texts(batch: RowBatch, column: TargetColumn) -> pa.Array:
    try:
        return column_texts(batch.columns[column.name], column)
    except Unfit as error:
        raise InputError(
            f"{batch.place(0)}: column {column.name}, here or after it: {error}",
            "convert it, or leave it out with --columns",
        ) from error


@contextmanager
def open_rows(
    content: ContentStream, file: InputFile, columns: Sequence[str] | None = None
) -> Iterator[tuple[tuple[str, ...] | None, Iterator[RowBatch]]]:
    """The columns of a file, None if nothing tells them since it has no rows; and its rows.

    `columns`: of CSV the names of the columns in a file without a header, otherwise those that are read. JSON lines
    without it have the columns of the first line. Raises InputError, UsageError, also while rows are read.
    """
    chosen = tuple(columns or ())
    if file.format is FileFormat.PARQUET:
        with seekable(content) as source:
            parquet = open_parquet(file, source, _PAGE_BYTES)
            require_columns(file, parquet, chosen)
            names = chosen or tuple(parquet.schema_arrow.names)
            groups = row_groups(file, parquet)
            yield names, (batch for group in groups for batch in group_rows(parquet, group, names, BATCH_ROWS))
        return
    layout = TextLayout(file, chosen, CsvForm(header=columns is None), subset=columns is not None)
    opened = nullcontext(cast("BinaryIO", content))
    blocks = text_blocks(file, opened, block_bytes=_BLOCK_BYTES[file.format], most_row_bytes=MOST_ROW_BYTES)
    names_of_file, blocks = named_blocks(blocks, layout)
    layout = replace(layout, names=names_of_file or ())
    yield names_of_file, (parsed(block, layout) for block in blocks)
